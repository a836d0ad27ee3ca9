"""Scattering features: equal to kymatio's, of one record alone, computed once, and trained on like pixels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.accounting import privacy_tags
from pipeline.learning.data import features as maps
from pipeline.learning.data import maps as computing
from pipeline.learning.data.dataset import load
from pipeline.learning.data.dead_leaves import REFERENCES, dead_leaves
from pipeline.learning.data.scattering import scattering
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

# Images of Fashion-MNIST and CIFAR-10, and their coefficients by kymatio 0.3 (`Scattering2D`, float32).
REFERENCE = np.load(Path(__file__).parents[1] / "data" / "scattering.npz")
TRIAL = TrialConfig(dataset="digits", hidden=(16,), batch_size=64, epochs=2, features="scattering", scattering_scales=1,
                    feature_groups=3, input_norm=2.0, learning_rate=0.5)


@pytest.mark.parametrize(("images", "expected", "scales"), [
    ("fashion_x", "fashion_J2_L8", 2), ("fashion_x", "fashion_J3_L8", 3), ("cifar_x", "cifar_J2_L8", 2)])
def test_coefficients_are_kymatios(images, expected, scales):
    x = torch.from_numpy(REFERENCE[images])
    found = scattering(x.view(-1, *x.shape[-2:]), scales).view(REFERENCE[expected].shape)
    assert (found - torch.from_numpy(REFERENCE[expected])).abs().max() < 1e-5
    wrong = scattering(x.view(-1, *x.shape[-2:]) + 1e-3, scales).view(found.shape)
    assert (wrong - torch.from_numpy(REFERENCE[expected])).abs().max() > 1e-4


@pytest.mark.parametrize(("trial", "shape"), [
    (TRIAL, (9, 4, 4)), (dataclasses.replace(TRIAL, scattering_scales=2, feature_groups=27), (81, 2, 2)),
    (TrialConfig(features="scattering"), (81, 7, 7)), (TrialConfig(features="scattering", scattering_scales=3,
                                                                   feature_groups=7), (217, 3, 3)),
    (TrialConfig(dataset="cifar10", features="scattering"), (243, 8, 8)), (TrialConfig(), (1, 28, 28)),
    (dataclasses.replace(TRIAL, features="patches", patch_filters=12, patch_size=3, patch_pools=2), (24, 2, 2)),
    (TrialConfig(features="patches"), (128, 6, 6)),
    (TrialConfig(dataset="cifar10", features="patches", patch_filters=400, patch_pools=3), (800, 3, 3))])
def test_shapes_are_known_without_computing(trial, shape):
    assert trial.parts.features.shape(trial) == shape and trial.layers[0].n_in == np.prod(shape)
    if trial.dataset == "digits":
        data = load("digits")
        assert maps.compute([data.train_x[:3]], data, trial)[0].shape == (3, np.prod(shape))


def test_a_record_s_features_depend_on_no_other_record(cached):
    (some,) = maps.compute([cached.train_x[:200]], cached, TRIAL)
    alone = torch.cat(maps.compute([cached.train_x[k:k + 1] for k in (0, 70, 199)], cached, TRIAL))
    assert torch.equal(some[[0, 70, 199]], alone)
    groups = scattering(cached.train_x[:200].view(200, 8, 8) / 16, 1).view(200, 3, -1)
    mean, variance = groups.mean(-1, keepdim=True), groups.var(-1, correction=0, keepdim=True)
    expected = ((groups - mean) / (variance + maps.LEAST_VARIANCE).sqrt()).flatten(1)
    assert torch.allclose(some.float(), expected, rtol=2**-8, atol=1e-3)
    plain = maps.compute([cached.train_x[:9]], cached, dataclasses.replace(TRIAL, feature_groups=0))[0].float()
    expected = scattering(cached.train_x[:9].view(9, 8, 8) / 16, 1)
    assert torch.allclose(plain, expected.flatten(1), rtol=2**-8)


def test_channels_are_standardised_over_public_images(cached):
    by_leaves = dataclasses.replace(TRIAL, feature_reference="dead_leaves", feature_groups=0)
    images = dead_leaves(REFERENCES, 1, 8)
    (found,) = maps.compute([(images * 16).round().to(torch.uint8).flatten(1)], cached, by_leaves)
    found = found.double().view(-1, 9, 16)
    assert found.mean((0, 2)).abs().max() < 5e-3 and (found.std((0, 2)) - 1).abs().max() < 5e-3
    (of_digits,) = maps.compute([cached.train_x[:300]], cached, by_leaves)
    assert of_digits.double().view(-1, 9, 16).mean((0, 2)).abs().max() > 0.3, "nothing is measured on the records"
    assert dataclasses.replace(by_leaves, feature_groups=-1).canonical()["feature_groups"] == 1


@pytest.mark.parametrize("name", ["scattering", "patches"])
@pytest.mark.parametrize("reference", ["none", "dead_leaves"])
def test_features_may_be_the_mean_of_those_of_an_image_and_of_its_mirror_image(cached, name, reference):
    plain = dataclasses.replace(TRIAL, features=name, feature_reference=reference, feature_groups=0, patch_filters=6,
                                patch_size=3, patch_pools=2)
    both = dataclasses.replace(plain, feature_mirrored=True)
    records = cached.train_x[:40]
    mirrored = records.view(-1, 8, 8).flip(2).flatten(1)
    (found,), (of_mirrored,) = maps.compute([records], cached, both), maps.compute([mirrored], cached, both)
    assert torch.equal(found, of_mirrored), "left and right make no difference"
    parts = maps.compute([records, mirrored], cached, plain)
    assert not torch.allclose(*parts, atol=0.1)
    torch.testing.assert_close(found.float(), (parts[0].float() + parts[1].float()) / 2, atol=2e-2, rtol=2**-6)
    grouped = maps.compute([records], cached, dataclasses.replace(both, feature_groups=1))[0].float()
    assert grouped.mean(1).abs().max() < 1e-2 and (grouped.std(1) - 1).abs().max() < 2e-2


def test_dead_leaves_are_images_of_many_scales_and_always_the_same():
    images = dead_leaves(200, 3, 32)
    assert images.shape == (200, 3, 32, 32) and 0 <= images.min() and images.max() <= 1
    assert torch.equal(images, dead_leaves(200, 3, 32)) and (images == 0.5).all(1).double().mean() < 0.01
    power = torch.fft.rfft2(images - images.mean((2, 3), keepdim=True)).abs().square().mean((0, 1))[0, 1:]
    slope = np.polyfit(np.log(np.arange(2, 13)), np.log(power[1:12].numpy()), 1)[0]
    assert -3 < slope < -1.5, "as 1/f^2, like photographs"


def test_features_are_computed_once_and_a_damaged_cache_anew(cached, tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(computing, "scattering", lambda *a: calls.append(a) or scattering(*a))
    reports = [(report.features, report.done, report.total) for report in maps.steps(cached, TRIAL)]
    assert reports[0] == ("scattering of digits", 64, 1797) and reports[-1][1:] == (1797, 1797), "test records too"
    first = maps.features(cached, TRIAL)
    n = len(calls)
    assert n > 0 and maps.features(cached, TRIAL) is first and len(calls) == n
    assert not list(maps.steps(cached, TRIAL)) and not list(maps.steps(load("digits"), TRIAL))
    again = maps.features(load("digits"), TRIAL)
    assert len(calls) == n and all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    (file,) = (tmp_path / "cache" / "features").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    for damaged in (bytes(content), bytes(content[:100])):
        file.write_bytes(damaged)
        assert all(torch.equal(a, b) for a, b in zip(first, maps.features(load("digits"), TRIAL), strict=True))
        assert "computed anew" in capsys.readouterr().err
    assert len(calls) == 3 * n
    maps.features(load("digits"), dataclasses.replace(TRIAL, feature_groups=9))
    assert len(calls) == 4 * n and len(list((tmp_path / "cache" / "features").glob("*.safetensors"))) == 2


def test_without_hidden_layers_a_step_is_that_of_softmax_regression(cached):
    trial = dataclasses.replace(TRIAL, algorithm="bp", projector="", hidden=(), momentum=0.0)
    training = Training(Pack((trial,)), cached, torch.device("cpu"))
    w, b = (part[0].clone() for part in (training.net.parameters.weights[0], training.net.parameters.biases[0]))
    indices = torch.arange(64).view(1, 64)
    x, y = training.train_inputs.batch(indices)[0], cached.train_y[:64]
    torch.testing.assert_close(x.norm(dim=1), torch.full((64,), trial.input_norm))
    error = torch.softmax(x @ w.T + b, dim=1) - torch.nn.functional.one_hot(y, 10)
    training.step(indices)
    assert torch.allclose(training.net.parameters.weights[0][0], w - 0.5 * error.T @ x / 64, atol=1e-6)
    assert torch.allclose(training.net.parameters.biases[0][0], b - 0.5 * error.mean(0), atol=1e-6)
    training.close()


def test_the_notes_say_that_features_are_public_and_the_key_has_them():
    private = dataclasses.replace(TRIAL, mechanism="per_example", sampler="poisson", noise_multiplier=1.0)
    assert "scattering coefficients, a map of each record alone" in privacy_tags(private)["privacy.notes"]
    assert "scattering" not in privacy_tags(dataclasses.replace(private, features="pixels"))["privacy.notes"]
    fields = TRIAL.canonical()
    assert fields["features"] == "scattering" and fields["scattering_scales"] == 1 and "inputs" not in fields
    assert "features" not in TrialConfig().canonical()
    by_leaves = dataclasses.replace(private, feature_reference="dead_leaves")
    assert "over synthetic images of dead leaves, a map of" in privacy_tags(by_leaves)["privacy.notes"]
    changes = ({}, {"scattering_angles": 4, "feature_groups": 5}, {"feature_groups": 9}, {"features": "pixels"},
               {"feature_reference": "dead_leaves"}, {"feature_mirrored": True},
               {"feature_reference": "dead_leaves", "feature_mirrored": True}, {"feature_power": 0.5})
    trials = [dataclasses.replace(TRIAL, **change) for change in changes]
    assert len({trial.trial_key for trial in trials}) == len({trial.parts.features.key(trial) for trial in trials}) == 8
    mirrored = dataclasses.replace(private, feature_mirrored=True)
    assert "coefficients of a record and its mirror image, a map of" in privacy_tags(mirrored)["privacy.notes"]
    assert "feature_mirrored" not in fields and "feature_power" not in fields
    assert "feature_mirrored" not in TrialConfig(features="optical", feature_mirrored=True).canonical()
