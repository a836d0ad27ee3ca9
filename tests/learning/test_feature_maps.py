"""Features from a file."""

import hashlib
import math
import os
import pickle
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flat import train
from mapped import PRIVATE, SMALL
from safetensors.torch import save_file

from pipeline.accounting import privacy_tags
from pipeline.experiment.experiment import parse_experiment
from pipeline.learning.data.dataset import DataError, load
from pipeline.learning.data.maps import computed as maps
from pipeline.learning.integers.integer_inputs import IntegerInputs
from pipeline.learning.train import prepare
from pipeline.sweep.worker import prepare_node
from pipeline.tracking.artifacts import TrackedRun, config_of, param_text
from pipeline.trials import feature_file
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack

SOURCE = "an encoder that was trained on public data"

def rows(n=1437, m=360, d=12):
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(k, d, generator=generator) for name, k in (("train", n), ("test", m))}


@pytest.fixture
def file(tmp_path):
    """Features from which digits can be told: random projections of their pixels."""
    data, matrix = load("digits"), torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "f.safetensors"
    save_file({"train": data.train_x.float() @ matrix, "test": data.test_x.float() @ matrix}, path)
    return path


def of(file, **values):
    return TrialConfig(**{**SMALL, "features": "file", "feature_file": str(file), "feature_source": SOURCE, **values})


def test_features_of_a_file_are_rows_as_they_stand_there_and_trials_learn_from_them(file, cached):
    trial = of(file)
    assert trial.parts.features.shape(trial) == (32,) and trial.feature_width == 32 and trial.feature_groups == 0
    train_x, test_x = maps.features(cached, trial)
    matrix = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(train_x, (cached.train_x.float() @ matrix).bfloat16()) and test_x.shape == (360, 32)
    (groups, _) = maps.features(cached, of(file, feature_groups=4))
    assert groups.float().view(-1, 4, 8).mean(-1).abs().max() < 1e-2
    private = of(file, **PRIVATE, algorithm="dfa", sampler="poisson")
    *_, last = train(Pack((private,)), cached)
    assert last.metrics["test/accuracy"] > 0.4
    assert privacy_tags(private)["privacy.notes"].endswith(
        f"inputs are features from a file (SHA-256 {trial.feature_sha256}), row by row those of one record, which "
        f"costs nothing if their encoder is public; whoever runs the trial states of it: {SOURCE}")


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

    def parsed(names, experiment=tmp_path / "some.yaml"):
        return parse_experiment(f"base: {{dataset: digits, features: file, feature_source: '{SOURCE}'}}\n"
                                f"grid: {{feature_file: [{names}]}}\n", experiment).trials

    (trial,) = parsed("f.safetensors")
    assert trial.feature_file == str(file) and trial.trial_key == TrialConfig(
        dataset="digits", features="file", feature_source=SOURCE, feature_file=str(file)).trial_key
    (tmp_path / "copy.safetensors").write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match="; feature_file: '.*f.safetensors' and '.*copy.safetensors' make no "):
        parsed("f.safetensors, copy.safetensors")
    with pytest.raises(ConfigError, match="feature_file: /g.safetensors cannot be read .no such file.*, at grid.fea"):
        parsed("g.safetensors", Path("some.yaml"))
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
    assert replace(trial, seed=1).feature_sha256 == trial.feature_sha256  # planned where the file is not


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


def test_inputs_of_features_are_made_once_for_packs_that_agree_on_them(file, cached, monkeypatch):
    made, init = [], IntegerInputs.__init__
    monkeypatch.setattr(IntegerInputs, "__init__", lambda self, *a: made.append(len(a[0])) or init(self, *a))
    trial = of(file, **PRIVATE, algorithm="dfa", sampler="poisson", arithmetic="integer", input_norm=4.0)
    first, other = (prepare(Pack((replace(trial, learning_rate=rate),)), cached, "cpu") for rate in (0.1, 0.2))
    assert made == [1437, 360] and first.train_inputs.values is other.train_inputs.values
    batches = [training.train_inputs.batch(torch.arange(4) + start, reuse_buffer=True).values
               for start, training in enumerate((first, other))]
    assert not torch.equal(*batches), "each has its own memory of batches"
    prepare(Pack((replace(trial, input_norm=5.0),)), cached, "cpu")
    prepare(Pack((trial,)), cached, "cpu")
    assert made == [1437, 360] * 3 and len(cached.inputs) == 1, "only those made last are kept"


@pytest.mark.parametrize(("value", "changes", "limit"), [
    (math.nan, {}, ""), (math.inf, {}, ""),
    (-(2.0**104), PRIVATE | {"arithmetic": "integer"}, r" and smaller than 2.0e\+31 with arithmetic 'integer'")])
def test_features_that_cannot_be_used_are_refused_before_training(tmp_path, cached, value, changes, limit):
    tensors = rows()
    tensors["test"][37, 5] = value
    save_file(tensors, tmp_path / "f.safetensors")
    with pytest.raises(DataError, match=f"^features: 'file' must be finite{limit}, which those of record 37 of 360 "):
        next(iter(train(Pack((of(tmp_path / "f.safetensors", **changes),)), cached)))
