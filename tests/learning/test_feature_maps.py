"""Maps of single records beside scattering: an OPU's random features, features from a file, and an extension's."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import shutil
import time
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pytest
import torch
from flat import train
from safetensors.torch import save_file
from simulated_opu import opened

from pipeline.accounting import privacy_tags
from pipeline.experiment.experiment import parse_experiment
from pipeline.learning import opu as opus
from pipeline.learning.data import features as maps
from pipeline.learning.data import optical
from pipeline.learning.data.dataset import DataError, Dataset, load
from pipeline.learning.data.dead_leaves import LEAST_SHARE, REFERENCES, dead_leaves
from pipeline.learning.data.maps import register_features
from pipeline.learning.opu import OpuUnavailable, import_lightonml
from pipeline.sweep.dry_run import as_lines, estimate_seconds, preview
from pipeline.sweep.progress import SweepProgress
from pipeline.sweep.worker import prepare_node
from pipeline.tracking.artifacts import TrackedRun, config_of, param_text
from pipeline.trials import feature_file
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.datasets import DATASETS
from pipeline.trials.fields import setting
from pipeline.trials.packs import Pack
from pipeline.trials.part import PARTS
from pipeline.trials.unused import check_used

SMALL = dict(dataset="digits", hidden=(16,), batch_size=64, epochs=3, input_norm=2.0, learning_rate=0.5)
OPTICAL = TrialConfig(**SMALL, features="optical", optical_width=48, optical_thresholds=3)
SOURCE = "an encoder that was trained on public data"
PRIVATE = dict(mechanism="per_example", noise_multiplier=0.5)


# An OPU.

@pytest.mark.parametrize(("thresholds", "scale"), [(1, 255.0), (4, 255.0), (3, 16.0), (15, 16.0)])
def test_pixels_become_the_bits_of_lightonmls_encoder(thresholds, scale):
    import_lightonml()
    from lightonml.encoding.base import MultiThresholdEncoder

    pixels = torch.arange(int(scale) + 1, dtype=torch.uint8).repeat(2, 1)
    levels = [scale * k / (thresholds + 1) for k in range(1, thresholds + 1)]
    found = optical.encoded(pixels, thresholds, scale)
    assert found.dtype == torch.uint8 and found.shape == (2, thresholds * pixels.shape[1])
    assert np.array_equal(found, MultiThresholdEncoder(thresholds=levels).transform(pixels.numpy()))
    assert found.sum(1).tolist() == [sum(int(v > level) for v in range(int(scale) + 1) for level in levels)] * 2


def test_intensities_are_those_of_lightonmls_opu():
    bits = (torch.rand(20, 192, generator=torch.Generator().manual_seed(0)) < 0.4).to(torch.uint8)
    with opened(192, 48, seed=5) as opu:
        opu.fit1d(n_features=192)
        expected = torch.from_numpy(np.asarray(opu.transform(bits.numpy())))
    torch.testing.assert_close(optical.SimulatedOptics(192, 48, 5)(bits), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(optical.SimulatedOptics(192, 48, 6)(bits), expected, rtol=0.1)


def test_intensities_are_exponential_with_the_mean_of_a_complex_gaussian():
    bits = torch.zeros(1, 64, dtype=torch.uint8)
    bits[0, :16] = 1
    found = optical.SimulatedOptics(64, 20_000, 1)(bits)[0]
    assert abs(found.mean() / (2 * 16 / 64) - 1) < 0.03  # E |R x|^2 = 2 ||x||^2/n
    assert abs(found.std() / found.mean() - 1) < 0.05  # as of an exponential distribution


def test_optical_features_of_a_record_depend_on_no_other_record(cached):
    some, *alone = maps.compute([cached.train_x[:50], *cached.train_x[:50:49].split(1)], cached, OPTICAL)
    assert some.dtype == torch.bfloat16 and some.shape == (50, 48) and len(alone) == 2
    assert torch.allclose(some[::49].float(), torch.cat(alone).float(), rtol=2**-7, atol=1e-3)
    plain = optical.SimulatedOptics(192, 48, 0)(optical.encoded(cached.train_x[:50], 3, 16.0))
    expected = (plain - plain.mean(1, keepdim=True)) / plain.std(1, correction=0, keepdim=True)
    assert torch.allclose(some.float(), expected, rtol=2**-7, atol=1e-3)
    (halves,) = maps.compute([cached.train_x[:50]], cached, changed(OPTICAL, feature_groups=2))
    assert torch.allclose(halves.float().view(50, 2, 24).mean(-1), torch.zeros(50, 2), atol=1e-2)
    assert (some.float().view(50, 2, 24).mean(-1).abs() > 0.05).any()


class Held:
    """An OPU that counts what is done to it, and may fail."""

    def __init__(self, opu, fail=""):
        self.opu, self.fail, self.open, self.patterns = opu, fail, 1, 0

    def fit1d(self, n_features):
        if self.fail == "fit1d":
            raise OSError("fit1d")
        self.opu.fit1d(n_features=n_features)

    def transform(self, patterns):
        if self.fail == "transform":
            raise OSError("transform")
        self.patterns += len(patterns)
        return self.opu.transform(patterns)

    def close(self):
        self.open -= 1
        self.opu.close()


def test_a_real_opu_maps_each_record_once_and_is_given_back(cached, monkeypatch):
    devices = []
    monkeypatch.setattr(opus, "open_host_opu", lambda n: devices.append(Held(opened(192, n, 7))) or devices[-1])
    hardware = changed(OPTICAL, optical_device="hardware")
    found = maps.features(cached, hardware)
    expected = maps.features(cached, changed(OPTICAL, optical_seed=7))
    assert all(torch.allclose(a.float(), b.float(), rtol=2**-6, atol=1e-2)
               for a, b in zip(found, expected, strict=True))
    assert maps.features(load("digits"), hardware)[0].equal(found[0])  # from the cache
    assert [(d.patterns, d.open) for d in devices] == [(1437 + 360, 0)]


@pytest.mark.parametrize("fail", ["fit1d", "transform"])
def test_a_real_opu_that_fails_is_given_back_and_the_cache_is_not_blamed(cached, monkeypatch, tmp_path, fail):
    device = Held(opened(192, 48), fail)
    monkeypatch.setattr(opus, "open_host_opu", lambda n: device)
    with pytest.raises(OSError, match=fail):
        maps.features(cached, changed(OPTICAL, optical_device="hardware"))
    assert not device.open and not list(tmp_path.rglob("*.safetensors"))


def test_a_trial_on_a_real_opu_holds_one_and_is_refused_where_there_is_none(cached, tmp_path):
    hardware = changed(OPTICAL, optical_device="hardware")
    assert (OPTICAL.needs_opu, hardware.needs_opu, hardware.on_hardware) == (False, True, True)
    assert estimate_seconds([Pack((hardware,))], 1, 1, 1, "cpu") > 0  # without it
    with pytest.raises(OpuUnavailable, match="OPU: .*optical_device 'simulated'"):
        maps.features(cached, hardware)
    text = "base: {dataset: digits, features: optical, optical_width: 48, optical_device: hardware, hidden: [8]}\n"
    with pytest.raises(OpuUnavailable):
        preview(parse_experiment(text, tmp_path / "e.yaml"), 1)
    with pytest.raises(ConfigError, match="resources.opu: must be at least 1 for trials on a real OPU, .* got 0.5"):
        parse_experiment(f"{text}resources: {{opu: 0.5}}", tmp_path / "e.yaml")


def test_settings_of_the_optics_are_the_trials_identity():
    changes = ({}, {"optical_width": 32}, {"optical_thresholds": 4}, {"optical_seed": 1}, {"feature_groups": 2},
               {"optical_device": "hardware"})
    assert len({changed(OPTICAL, **change).trial_key for change in changes}) == len(changes)
    assert len({(c := changed(OPTICAL, **change)).parts.features.key(c) for change in changes}) == len(changes)
    assert OPTICAL.parts.features.key(changed(OPTICAL, seed=3, hidden=(8,))) == OPTICAL.parts.features.key(OPTICAL)
    hardware = changed(OPTICAL, optical_device="hardware")  # which has a matrix of its own
    assert changed(hardware, optical_seed=1).trial_key == hardware.trial_key
    with pytest.raises(ConfigError, match="optical_seed: is not used with optical_device 'hardware', got 1; use optic"):
        check_used([changed(hardware, optical_seed=1)])
    with pytest.raises(ConfigError, match="optical_width: is not used with features 'pixels', got 9; use features 'op"):
        check_used([TrialConfig(optical_width=9)])
    assert OPTICAL.parts.features.shape(OPTICAL) == (48,) and OPTICAL.layer_sizes == (48, 16, 10)
    assert OPTICAL.feature_groups == 1


def test_what_is_public_of_optical_features_is_said():
    notes = privacy_tags(changed(OPTICAL, **PRIVATE))["privacy.notes"]
    assert "inputs are optical random features |R x|^2 of pixels compared with 3 thresholds, a map of each" in notes
    assert "crosstalk" not in notes
    hardware = privacy_tags(changed(OPTICAL, **PRIVATE, optical_device="hardware"))["privacy.notes"]
    assert hardware.endswith("presupposes that the device maps every record without crosstalk from others")


def test_a_dry_run_tells_of_maps(tmp_path):
    text = "base: {dataset: digits, hidden: [8]}\ngrid: {features: [pixels, scattering]}\nreport: []"
    lines = list(as_lines(preview(parse_experiment(text, tmp_path / "e.yaml"), 1)))
    assert ("features: scattering of digits, computed before training or read from the cache, once for each setting, "
            "and not in the estimate") in lines
    trials = parse_experiment(text, tmp_path / "e.yaml").trials
    progress, phases = SweepProgress(quiet=True), []
    progress.phase = phases.append
    progress.training(trials, 2, 1)
    assert phases == ["training 2 trials in 2 packs, 1 at a time; first features are computed, or read from the cache: "
                      "scattering of digits"]


# A file.

def rows(n=1437, m=360, d=12, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(k, d, generator=generator).to(dtype) for name, k in (("train", n), ("test", m))}


@pytest.fixture
def file(tmp_path):
    """Features from which digits can be told: random projections of their pixels."""
    data, matrix = load("digits"), torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "f.safetensors"
    save_file({"train": data.train_x.float() @ matrix, "test": data.test_x.float() @ matrix}, path)
    return path


def of(file, **values):
    return TrialConfig(**{**SMALL, "features": "file", "feature_file": str(file), "feature_source": SOURCE, **values})


def test_features_of_a_file_are_rows_as_they_stand_there(file, cached):
    trial = of(file)
    assert trial.parts.features.shape(trial) == (32,) and trial.feature_width == 32 and trial.feature_groups == 0
    train_x, test_x = maps.features(cached, trial)
    matrix = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(train_x, (cached.train_x.float() @ matrix).bfloat16()) and test_x.shape == (360, 32)
    (groups, _) = maps.features(cached, of(file, feature_groups=4))
    assert torch.allclose(groups.float().view(-1, 4, 8).mean(-1), torch.zeros(1437, 4), atol=1e-2)


def test_a_file_is_known_by_its_content_and_not_by_its_place(file, tmp_path, cached):
    trial, moved = of(file), tmp_path / "elsewhere.safetensors"
    shutil.copy(file, moved)
    assert of(moved).trial_key == trial.trial_key and of(moved).pack_key == trial.pack_key
    own = trial.canonical()
    assert "feature_file" not in own and own["feature_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    save_file(rows(d=32), moved)
    assert of(moved).trial_key != trial.trial_key != of(file, feature_source="another").trial_key
    assert trial.pruned() == trial == pickle.loads(pickle.dumps(trial))
    params = {name: param_text(value) for name, value in own.items()}
    stored = config_of(TrackedRun("id", trial.trial_key, params, {}, {}, "finished", 0, None))
    assert stored.trial_key == trial.trial_key and stored.feature_file == ""
    with pytest.raises(DataError, match=f"^feature_file: must name the file with SHA-256 {trial.feature_sha256}, got"):
        maps.features(cached, stored)


def test_a_file_is_read_again_where_it_may_have_changed(file, monkeypatch):
    read = []
    monkeypatch.setattr(feature_file, "_read_description", lambda path: read.append(path) or path.stat().st_mtime_ns)
    now = time.time()
    for age in (-60, -60, 60, 60, 50, 50):  # seconds since it was written; in the future, it may be written once more
        os.utime(file, (now - age, now - age))
        feature_file.describe(file)
    assert len(read) == 4


def test_a_path_is_relative_to_the_experiment_file(file, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    text = (f"base: {{dataset: digits, features: file, feature_source: '{SOURCE}'}}\n"
            "grid: {feature_file: [f.safetensors]}\n")
    (trial,) = parse_experiment(text, tmp_path / "some.yaml").trials
    assert trial.feature_file == str(file) and trial.trial_key == TrialConfig(
        dataset="digits", features="file", feature_source=SOURCE, feature_file=str(file)).trial_key
    (tmp_path / "copy.safetensors").write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match="; feature_file: '.*f.safetensors' and '.*copy.safetensors' make no "):
        parse_experiment(text.replace("f.safetensors]", "f.safetensors, copy.safetensors]"), tmp_path / "e.yaml")
    with pytest.raises(ConfigError, match="feature_file: /g.safetensors cannot be read .no such file.*, at grid.fea"):
        parse_experiment(text.replace("[f.", "[g."), Path("some.yaml"))
    monkeypatch.chdir(tmp_path)
    assert of("f.safetensors").feature_file == str(file)


def test_a_node_with_another_file_is_refused_with_both_digests(file, tmp_path, cached):
    trial, checkpoints = of(file), tmp_path / "checkpoints"
    prepare_node([trial], None, checkpoints, checkpoints / "log")
    save_file(rows(d=32), file)
    said = rf"^feature_file: {file} must have SHA-256 {trial.feature_sha256} and width 32, got [0-9a-f]{{64}} and 32$"
    for look in (lambda: prepare_node([trial], None, checkpoints, checkpoints / "log"),
                 lambda: maps.features(cached, trial)):
        with pytest.raises(DataError, match=said):
            look()
    file.unlink()
    with pytest.raises(DataError, match=f"^feature_file: {file} cannot be read"):
        prepare_node([trial], None, checkpoints, checkpoints / "log")
    assert changed(trial, seed=1).feature_sha256 == trial.feature_sha256  # planned where the file is not


@pytest.mark.parametrize(("tensors", "message"), [
    (rows(n=1436), r"tensor train, must have a row for each of the 1437 records of digits, got shape \(1436, 12\)"),
    (rows(m=361), r"tensor test, must have a row for each of the 360 records of digits, got shape \(361, 12\)"),
    ({**rows(), "test": rows(d=11)["test"]}, r"as many features of test .* train \(1437, 12\) and test \(360, 11\)"),
    ({"train": rows()["train"]}, "must have the tensors train and test, got train"),
    ({**rows(), "train": rows()["train"].int()}, r"must be \[records, features\] of type F16 or .*, got I32 of shape"),
    ({**rows(), "train": rows()["train"][:, 0].clone()}, r"must be \[records, features\] .* of shape \(1437,\)"),
    ("no safetensors", "must be a safetensors file")])
def test_a_file_that_does_not_fit_is_refused_before_anything_starts(tmp_path, tensors, message):
    file = tmp_path / "f.safetensors"
    file.write_text(tensors) if isinstance(tensors, str) else save_file(tensors, file)
    with pytest.raises(ConfigError, match=f"^feature_file: {file}.*{message}") as raised:
        of(file)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("values", "message"), [
    ({"feature_source": " "}, "feature_source: must say in one line, .* which encoder gave the features and why it is"),
    ({"feature_source": "a\nb"}, "feature_source: must say in one line"),
    ({"feature_file": ""}, "feature_file: must name a safetensors file with features 'file', got ''"),
    ({"feature_file": "/nowhere/f"}, "feature_file: /nowhere/f cannot be read"),
    ({"feature_sha256": "0" * 64}, "feature_sha256: must be [0-9a-f]{64}, which .*f.safetensors has, got 0000"),
    ({"feature_width": 31}, "feature_width: must be 32, which"),
    ({"feature_file": "", "feature_sha256": "abc", "feature_width": 3}, "feature_sha256: must be 64 hexadecimal digit"),
])
def test_statements_on_a_file_that_are_refused(file, values, message):
    with pytest.raises(ConfigError, match="^" + message):
        of(file, **values)


@pytest.mark.parametrize(("value", "changes", "limit"), [
    (math.nan, {}, ""), (math.inf, {}, ""),
    (-(2.0**104), PRIVATE | {"arithmetic": "integer"}, r" and smaller than 2.0e\+31 with arithmetic 'integer'")])
def test_features_that_cannot_be_used_are_refused_before_training(tmp_path, cached, value, changes, limit):
    tensors = rows()
    tensors["test"][37, 5] = value
    save_file(tensors, tmp_path / "f.safetensors")
    with pytest.raises(DataError, match=f"^features: 'file' must be finite{limit}, which those of record 37 of 360 "):
        next(iter(train(Pack((of(tmp_path / "f.safetensors", **changes),)), cached)))


def test_what_is_stated_of_a_file_stands_in_the_notes(file):
    trial = of(file, **PRIVATE)
    assert privacy_tags(trial)["privacy.notes"].endswith(
        f"inputs are features from a file (SHA-256 {trial.feature_sha256}), row by row those of one record, which "
        f"costs nothing if their encoder is public; whoever runs the trial states of it: {SOURCE}")


LEARNABLE = {  # settings, and the least accuracy on test records
    "optical": ({"optical_width": 48, "optical_thresholds": 3}, 0.4),
    "file": ({"feature_source": SOURCE}, 0.4),
    "scattering": ({"scattering_scales": 1, "feature_groups": 3}, 0.5),
    "patches": ({"patch_filters": 12, "patch_size": 3, "patch_pools": 2, "epochs": 20}, 0.85),
    "encoder": ({"encoder_pools": 2, "feature_decorrelation": 1.0, "epochs": 20}, 0.85)}


@pytest.mark.parametrize("features", LEARNABLE)
def test_trials_learn_from_features(file, cached, features):
    settings, least = LEARNABLE[features]
    trial = TrialConfig(**{**SMALL, **PRIVATE, "features": features, **settings}, algorithm="dfa", sampler="poisson",
                        feature_file=str(file) if features == "file" else "")
    *_, other, last = train(Pack((changed(trial, seed=1), trial)), cached)
    assert min(record.metrics["test/accuracy"] for record in (other, last)) > least


# Colour.

def test_scattering_takes_each_colour_by_itself():
    reference = np.load(Path(__file__).parents[1] / "data" / "scattering.npz")
    pixels = torch.from_numpy(reference["cifar_x"] * 255).round().to(torch.uint8).flatten(1)
    data = Dataset(DATASETS["cifar10"], pixels, torch.zeros(3), pixels, torch.zeros(3))
    trial = TrialConfig(dataset="cifar10", features="scattering", feature_groups=0)
    (found,) = maps.compute([pixels], data, trial)
    expected = torch.from_numpy(reference["cifar_J2_L8"])  # [image, colour, 81, 8, 8]
    assert trial.parts.features.shape(trial) == (243, 8, 8)
    assert (found.float().view(expected.shape) - expected).abs().max() < 2**-8
    assert (expected[:, 0] - expected[:, 1]).abs().max() > 0.05
    mirrored = pixels.view(3, 3, 32, 32).flip(3).flatten(1)  # colours keep their places
    (both,), (of_mirrored,) = (maps.compute([x], data, c) for x, c in
                               ((pixels, changed(trial, feature_mirrored=True)), (mirrored, trial)))
    assert torch.allclose(both.float(), (found.float() + of_mirrored.float()) / 2, atol=2**-8, rtol=2**-7)
    (groups,) = maps.compute([pixels], data, changed(trial, feature_groups=3))  # one for each colour
    assert torch.allclose(groups.float().view(3, 3, -1).mean(-1), torch.zeros(3, 3), atol=1e-2)


def test_caches_and_keys_of_scattering_are_what_they_were():
    trial = TrialConfig(**{**SMALL, "epochs": 2}, features="scattering", scattering_scales=1, feature_groups=3)
    assert trial.trial_key == "f5362aee056d6a03"
    assert maps._digest(load("digits"), trial) == "0fbc59580171befe4941fbd8f9fdd9b3"
    assert TrialConfig(features="scattering").canonical()["feature_groups"] == 27


# An extension's.

def tiles(records, trial):
    """Means over squares of `tile` x `tile` pixels."""
    return torch.nn.functional.avg_pool2d(records, trial.tile)


OF_TILES = dict(shape=lambda c: (1, 8 // c.tile, 8 // c.tile), public_because="means of fixed squares",
                settings={"tile": setting(2, "rows and columns of a square", low=1, high=8)})


@pytest.mark.usefixtures("extensions")
def test_an_extension_maps_records(cached, tmp_path):
    register_features("tiles", tiles, **OF_TILES)
    trial = TrialConfig(**SMALL, features="tiles")
    (found,) = maps.compute([cached.train_x[:9]], cached, trial)
    expected = cached.train_x[:9].view(9, 4, 2, 4, 2).float().mean((2, 4)) / 16
    assert torch.allclose(found.float(), expected.flatten(1), rtol=2**-8) and trial.layer_sizes[0] == 16
    assert trial.trial_key != TrialConfig(**SMALL, features="tiles", tile=4).trial_key
    assert trial.canonical()["tile"] == 2 and trial.canonical()["feature_groups"] == 0
    assert "tile" not in TrialConfig(**SMALL).canonical()
    notes = privacy_tags(changed(trial, **PRIVATE))["privacy.notes"]
    assert notes.endswith("inputs are features 'tiles', a map of each record alone that no private record had a part "
                          "in, which costs nothing, as the extension states: means of fixed squares")
    assert list(train(Pack((trial,)), cached))[-1].metrics["test/accuracy"] > 0.4
    maps.features(cached, TrialConfig(**SMALL, features="tiles", tile=4))
    assert len(list(tmp_path.rglob("features/*.safetensors"))) == 2


@pytest.mark.usefixtures("extensions")
def test_an_extension_may_have_its_features_mirrored(cached):
    register_features("tiles", tiles, **OF_TILES | {"settings": OF_TILES["settings"] | {"feature_mirrored": None}})
    trial, records = TrialConfig(**SMALL, features="tiles"), cached.train_x[:9]
    (plain,), (both,) = maps.compute([records], cached, trial), maps.compute([records], cached,
                                                                              changed(trial, feature_mirrored=True))
    expected = records.view(9, 4, 2, 4, 2).float().mean((2, 4)) / 16
    assert torch.allclose(plain.float(), expected.flatten(1), rtol=2**-8)
    assert torch.allclose(both.float(), ((expected + expected.flip(2)) / 2).flatten(1), rtol=2**-8)
    assert trial.trial_key != changed(trial, feature_mirrored=True).trial_key
    notes = [privacy_tags(changed(trial, **PRIVATE, feature_mirrored=value))["privacy.notes"]
             for value in (False, True)]
    assert "mirror image" not in notes[0] and "'tiles' of a record and its mirror image, a map of each" in notes[1]


@pytest.mark.usefixtures("extensions")
def test_features_of_an_extension_keep_their_signs_when_raised_to_a_power(cached):
    register_features("signed", lambda records, trial: records.flatten(1)[:, :16] - 0.5, shape=(16,),
                      public_because="pixels", settings={"feature_power": None})
    trial, records = TrialConfig(**SMALL, features="signed", feature_power=0.5), cached.train_x[:9]
    (found,) = maps.compute([records], cached, trial)
    expected = records[:, :16].float() / 16 - 0.5
    torch.testing.assert_close(found.float(), expected.sign() * expected.abs().sqrt(), rtol=2**-8, atol=1e-6)
    assert trial.trial_key != changed(trial, feature_power=1.0).trial_key
    assert "'signed' (to the power 0.5), a map" in privacy_tags(changed(trial, **PRIVATE))["privacy.notes"]


@pytest.mark.usefixtures("extensions")
def test_flat_features_of_an_extension_are_decorrelated_over_synthetic_images(cached):
    names = ("feature_reference", "feature_decorrelation")
    register_features("middle", lambda records, trial: records[:, :, 3:5].flatten(1), shape=(16,),
                      public_because="pixels", settings=dict.fromkeys(names))
    leaves = (dead_leaves(REFERENCES, 1, 8) * 16).round().to(torch.uint8).flatten(1)
    covariances = []
    for degree in (0.0, 1.0):
        trial = TrialConfig(**SMALL, features="middle", feature_groups=0, feature_reference="dead_leaves",
                            feature_decorrelation=degree)
        covariances.append(torch.cov(maps.compute([leaves], cached, trial)[0].double().T))
    identity = torch.eye(16, dtype=torch.float64)
    expected = torch.linalg.solve(covariances[0] + LEAST_SHARE * identity, covariances[0])  # S (S + r)^-1
    torch.testing.assert_close(covariances[1], expected, atol=2e-2, rtol=0)
    with pytest.raises(ConfigError, match="feature_decorrelation: takes channels that are standardised"):
        changed(trial, feature_reference="none")


@pytest.mark.usefixtures("extensions")
def test_a_cache_of_an_extension_is_that_of_its_code_and_a_notebook_has_none(cached, tmp_path):
    paths, function = [], "def tiles(records, trial): return records.flatten(1)[:, :16] * {}"
    for version in (1, 2):
        file = tmp_path / "version.py"  # as a module that was edited since
        file.write_text(function.format(version))
        space = {"__name__": "version"}
        exec(compile(file.read_text(), str(file), "exec"), space)
        register_features("tiles", space["tiles"], **OF_TILES | {"shape": (16,)})
        paths.append(maps._digest(cached, TrialConfig(**SMALL, features="tiles")))
    assert paths[0] != paths[1] and PARTS["features"]["tiles"].works.is_cached
    exec(compile(function.format(3), "a cell", "exec"), space := {"__name__": "version"})
    register_features("tiles", space["tiles"], **OF_TILES | {"shape": (16,)})
    maps.features(cached, TrialConfig(**SMALL, features="tiles"))
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.usefixtures("extensions")
@pytest.mark.parametrize(("function", "message"), [
    (lambda x, c: x.mean(0, keepdim=True), r"'tiles' must give floating point numbers of shape \(9, 1, 4, 4\), got"),
    (lambda x, c: tiles(x, c).int(), r"'tiles' must give floating point numbers .*, got torch.int32 of shape")])
def test_what_an_extension_gives_is_checked(cached, function, message):
    register_features("tiles", function, **OF_TILES)
    with pytest.raises(DataError, match="^features: " + message):
        maps.compute([cached.train_x[:9]], cached, TrialConfig(**SMALL, features="tiles"))
