"""Features that are activations of an encoder trained on synthetic objects."""

from __future__ import annotations

import dataclasses
import hashlib
import math

import pytest
import torch
import train as module
from safetensors.torch import save_file
from train import convolutions, encoder_weights, folded

from pipeline.accounting import privacy_tags
from pipeline.learning.data import dead_leaves
from pipeline.learning.data import features as maps
from pipeline.learning.data.encoder import WEIGHTS, Encoder
from pipeline.trials.config import ConfigError, TrialConfig

TRIAL = TrialConfig(dataset="digits", hidden=(16,), batch_size=64, epochs=20, input_norm=2.0, learning_rate=0.5,
                    features="encoder", encoder_pools=2)


def test_seed_and_code_give_the_weights(monkeypatch):
    for name, value in (("CLASSES", 4), ("BATCH", 16)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("objects.dead_leaves",
                        lambda n, channels, size: torch.rand(n, channels, size, size))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found, same, other = encoder_weights(3, 4), encoder_weights(3, 4), encoder_weights(4, 4)
    finally:
        torch.set_num_threads(threads)
    assert {name: tuple(weight.shape) for name, weight in found.items()} == {
        "weight1": (48, 3, 5, 5), "bias1": (48,), "weight2": (96, 48, 3, 3), "bias2": (96,), "weight3": (192, 96, 3, 3),
        "bias3": (192,)}
    assert all(torch.equal(found[name], same[name]) for name in found)
    assert not any(torch.equal(found[name], other[name]) for name in found)


@pytest.mark.parametrize("size", [8, 28, 32])
def test_features_are_activations_of_the_trained_layers_averaged_over_pools(tmp_path, size):
    torch.manual_seed(2)
    layers = convolutions()
    for _, norm, _ in layers:
        for values, low in ((norm.running_mean, -0.5), (norm.running_var, 0.5), (norm.weight.data, 0.5),
                            (norm.bias.data, -0.5)):
            values.uniform_(low, low + 1)
    layers.eval()
    save_file(folded(layers), tmp_path / "weights.safetensors")
    images = torch.rand(70, 3, size, size)
    with torch.no_grad():
        first = layers[0]((images - 0.5) / 0.25)
        second = layers[1](torch.nn.functional.max_pool2d(first, 2))
        third = layers[2](torch.nn.functional.avg_pool2d(second, 2))
    expected = torch.cat([torch.nn.functional.adaptive_avg_pool2d(maps, 2) for maps in (second, third)], dim=1)
    encoder = Encoder(2, path=tmp_path / "weights.safetensors")
    torch.testing.assert_close(encoder(images), expected, atol=5e-3, rtol=5e-3)
    torch.testing.assert_close(encoder(images[:3]), encoder(images)[:3])
    grey = images[:3, :1]
    assert torch.equal(encoder(grey), encoder(grey.expand(-1, 3, -1, -1)))


def test_the_weights_are_those_that_were_trained_once_and_are_small():
    digest = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    assert digest == "7d525202db0cfa93b051221603c3ebbaafc13219e9a87449119197fa247c300a"
    assert WEIGHTS.stat().st_size < 2_000_000


def test_a_record_s_features_are_of_the_stated_shape_and_its_own(cached):
    (some,) = maps.compute((cached.train_x[:20],), cached, TRIAL)
    (alone,) = maps.compute((cached.train_x[7:8],), cached, TRIAL)
    assert some.shape == (20, 288 * 4) and TRIAL.feature_groups == 1
    torch.testing.assert_close(some[7:8].float(), alone.float(), atol=2e-2, rtol=2**-6)


def test_the_notes_say_why_they_are_public_and_the_key_has_every_setting():
    private = dataclasses.replace(TRIAL, mechanism="per_example", sampler="poisson", noise_multiplier=1.0)
    because = ("inputs are activations of convolutions trained to tell synthetic objects apart, standardised over "
               "synthetic images of dead leaves, a map of each record alone that no private record had a part in")
    assert because in privacy_tags(private)["privacy.notes"]
    changes = ({}, {"encoder_pools": 1}, {"feature_groups": 2}, {"feature_mirrored": True}, {"feature_power": 0.5},
               {"feature_decorrelation": 0.5}, {"features": "patches", "patch_size": 3})
    trials = [dataclasses.replace(TRIAL, **change) for change in changes]
    assert len({trial.trial_key for trial in trials}) == len(changes)
    assert len({trial.parts.features.key(trial) for trial in trials}) == len(changes)


def test_they_may_stand_beside_patches(cached):
    patches = dataclasses.replace(TRIAL, features="patches", patch_filters=6, patch_size=3, patch_pools=2,
                                  feature_groups=0)
    both = dataclasses.replace(patches, patch_beside="encoder")
    found = [maps.compute((cached.train_x[:20],), cached, trial)[0]
             for trial in (patches, dataclasses.replace(TRIAL, feature_groups=0), both)]
    apart = torch.cat(found[:2], dim=1)
    close = torch.isclose(found[2], apart, atol=2e-2, rtol=2**-6)  # faint channels are divided by a share of the median
    assert close.float().mean() > 0.9
    assert both.parts.features.shape(both) == (12 + 288, 2, 2) and "patch_beside" not in patches.canonical()
    assert len({trial.parts.features.key(trial) for trial in (
        patches, both, dataclasses.replace(patches, feature_mirrored=True),
        dataclasses.replace(both, feature_mirrored=True))}) == 4
    notes = privacy_tags(dataclasses.replace(both, mechanism="per_example", sampler="poisson", target_epsilon=3.0))
    said = ("standardised over these, beside activations of convolutions trained to tell synthetic objects apart, a "
            "map of each record alone")
    assert said in notes["privacy.notes"]
    with pytest.raises(ConfigError, match="patch_pools: must be at most the 2 places in a row of the encoder's third"):
        dataclasses.replace(both, patch_pools=3)


JOINT = dataclasses.replace(TRIAL, features="patches", patch_filters=6, patch_size=3, patch_pools=3,
                            patch_beside="encoder", encoder_pools=2, beside_weight=0.5, feature_power=0.5,
                            feature_decorrelation=1.0)
SCATTERING = dict(scattering_scales=1, feature_power=1.0, feature_decorrelation=0.0)


@pytest.mark.parametrize(("changes", "alone"), [
    ({}, ["encoder"]), ({"beside_weight": 2.0, **SCATTERING}, ["scattering"]), (SCATTERING, ["encoder", "scattering"])],
    ids=["encoder", "scattering", "both"])
def test_features_beside_patches_have_their_pools_and_their_weight(changes, alone, cached):
    joint, records = dataclasses.replace(JOINT, patch_beside="_and_".join(alone), **changes), cached.train_x[:20]
    references = {"scattering": {"feature_reference": "dead_leaves"}}
    together, *apart = (maps.compute((records,), cached, trial)[0].float() for trial in (joint, *(
        dataclasses.replace(joint, beside_weight=0.0, patch_beside="none", features=name, **references.get(name, {}))
        for name in ("patches", *alone))))
    widths = [part.shape[1] for part in apart]
    assert together.shape == (20, *joint.parts.features.shape(joint)) == (20, sum(widths)) and widths[0] == 12 * 9
    parts = together.split(widths, dim=1)
    assert all(torch.nn.functional.cosine_similarity(*pair).min() > 0.9999 for pair in zip(parts, apart, strict=True))
    for part in parts[1:]:
        ratio = part.norm(dim=1) / parts[0].norm(dim=1)
        torch.testing.assert_close(ratio, torch.full((20,), joint.beside_weight), rtol=0.01, atol=0)
    torch.testing.assert_close(together.square().mean(1), torch.ones(20), rtol=0.02, atol=0)


def test_synthetic_images_are_drawn_once_for_all_maps(cached, monkeypatch):
    draw, drawn = dead_leaves.dead_leaves, []
    monkeypatch.setattr(dead_leaves, "dead_leaves", lambda n, *shape: drawn.append(n) or draw(n, *shape))
    dead_leaves._reference_records.cache_clear()
    maps.compute((cached.train_x[:2],), cached, dataclasses.replace(JOINT, patch_beside="encoder_and_scattering",
                                                                    scattering_scales=1))
    assert drawn == [dead_leaves.REFERENCES]


def test_what_stands_beside_patches_is_in_keys_notes_and_refusals():
    unusable = torch.ones(2, 3), torch.tensor([[1.0, 1.0], [math.nan, 1.0]])
    assert maps._side_by_side(unusable, [1.0, 2.0]).isfinite().all(1).tolist() == [True, False]
    assert maps._side_by_side(unusable, [1.0, 2.0])[1].isnan().all()
    patches = dataclasses.replace(JOINT, beside_weight=0.0, patch_beside="none")
    trials = [JOINT, patches, *(dataclasses.replace(JOINT, **change) for change in (
        {"beside_weight": 0.0, "patch_pools": 2}, {"beside_weight": 0.7}, {"encoder_pools": 1}))]
    assert len({trial.trial_key for trial in trials}) == len({t.parts.features.key(t) for t in trials}) == len(trials)
    assert not {"beside_weight", "encoder_pools"} & set(patches.canonical())
    notes = privacy_tags(dataclasses.replace(JOINT, mechanism="per_example", sampler="poisson", target_epsilon=3.0))
    assert "trained to tell synthetic objects apart, of 0.5 times the norm, a map" in notes["privacy.notes"]
    scattering = privacy_tags(dataclasses.replace(JOINT, patch_beside="scattering", beside_weight=2.0, **SCATTERING,
                                                  mechanism="per_example", sampler="poisson", target_epsilon=3.0))
    assert ", beside scattering coefficients, of 2 times the norm, a map" in scattering["privacy.notes"]
    both = dataclasses.replace(JOINT, patch_beside="encoder_and_scattering", **SCATTERING)
    assert ("synthetic objects apart, beside scattering coefficients, each of 0.5 times the norm, a map"
            in both.parts.features.public_because(both))
    assert {"encoder_pools", "scattering_scales", "beside_weight"} < set(both.canonical())
    for change, message in (({"encoder_pools": 3}, "encoder_pools: must be at most the 2 places"),
                            ({"patch_beside": "scattering", "beside_weight": 0.0}, "beside_weight: must be > 0 for"),
                            ({"patch_beside": "encoder_and_scattering", "beside_weight": 0.0},
                             "beside_weight: must be > 0 for scattering, which has pools of its own, got 0"),
                            ({"feature_groups": 2}, "beside_weight: takes features that are normalised in one group")):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(JOINT, **change)
