"""What leaves the private folder tells nothing but what epsilon covers: names, errors, counts, statistics."""

import contextlib
import json
import re
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import output
from flat import train
from safetensors.numpy import save_file

from pipeline.accounting import privacy_tags
from pipeline.learning.data.dataset import load, register_dataset
from pipeline.learning.data.download import DataError
from pipeline.learning.data.maps import computed as maps
from pipeline.learning.mechanisms import register_mechanism
from pipeline.learning.mechanisms.gaussian import PerExampleStep
from pipeline.learning.train import prepare
from pipeline.sweep import cluster
from pipeline.sweep.checkpoints import Checkpoint, Checkpoints
from pipeline.sweep.private import PrivateFolder
from pipeline.tracking.artifacts import NAMED
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.reader import Reader
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.datasets import DATASETS
from pipeline.trials.packs import Pack
from pipeline.trials.promises import check_promises

SECURE = {"dataset": "digits", "hidden": (16,), "batch_size": 128, "epochs": 2, "learning_rate": 0.5,
          "mechanism": "per_example", "sampler": "poisson", "noise_multiplier": 2.0, "noise": "secure",
          "arithmetic": "integer", "feedback_std": 0.15}
CPU = torch.device("cpu")


def rows(bad=None, other=None):
    """Features of digits, 16 of each record; those of the training record `bad` are infinite, `other` has others."""
    data, basis = load("digits"), np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32) / 64
    found = {name: x.numpy() @ basis for name, x in (("train", data.train_x), ("test", data.test_x))}
    if bad is not None:
        found["train"][bad, 3] = np.inf
    if other is not None:
        found["train"][other] *= -1
    return found


def of(path, **values):
    return TrialConfig(**{**SECURE, "features": "file", "feature_file": str(path), "feature_source": "random, seed 0",
                          "feature_name": "projections", "input_norm": 4.0, **values})


@pytest.fixture
def file(tmp_path):
    save_file(rows(), tmp_path / "features.safetensors")
    return tmp_path / "features.safetensors"


def test_a_name_takes_the_place_of_the_digest(file, tmp_path):
    trial = of(file)
    assert trial.feature_sha256 == "" and trial.feature_width == 16
    text = json.dumps(trial.used()) + json.dumps(privacy_tags(trial))
    assert "called projections" in text and not re.search("[0-9a-f]{64}", text)
    save_file(rows(other=7), tmp_path / "neighbour.safetensors")
    assert of(tmp_path / "neighbour.safetensors").trial_key == trial.trial_key
    assert of(file, feature_name="others").trial_key != trial.trial_key
    plain = of(file, feature_name="", noise="research")
    assert len(plain.feature_sha256) == 64 and "feature_name" not in plain.canonical()


CONVOLUTIONS = {"network": "convnet", "channels": (4,), "kernel": 3}


@pytest.mark.parametrize(("values", "message"), [
    ({"feature_name": "a b"}, "feature_name: must be letters, digits"),
    ({"feature_sha256": "0" * 64}, "feature_sha256: must be left out with feature_name"),
    ({"feature_width": 3}, "feature_width: must be 16, which .* has, got 3"),
    *(({"feature_name": "", **values}, "feature_name: must be given with features 'file' and private_metrics")
      for values in ({}, {"noise": "research", "private_metrics": "withheld"},
                     {"noise": "research", "private_metrics": "noisy"})),
    ({"features": "pixels", "inputs": "standardized"},
     "inputs: 'standardized' takes means .* of digits, .* use 'centered'"),
    *(({"features": "pixels", "arithmetic": precision, **CONVOLUTIONS},
       "network: .* which convolutions are not computed in, got 'convnet'; use 'ml")
      for precision in ("integer", "float32"))])
def test_what_would_tell_of_private_records_is_refused(file, values, message):
    with pytest.raises(ConfigError, match=message):
        check_promises([TrialConfig(**{**SECURE, **values}) if "features" in values else of(file, **values)])


def test_what_is_public_or_is_not_stored_is_not_refused(file):
    check_promises([of(file, feature_name="")], stored=False)
    check_promises([of(file), of(file, feature_name="", noise="research"), TrialConfig(**SECURE)])
    for values, says in (({"noise": "research"}, "not covered: inputs are shifted"),
                         ({"dataset": "mnist"}, "means and deviations of the training records and count as public")):
        trial = TrialConfig(**{**SECURE, **values}, inputs="standardized")
        check_promises([trial])
        assert says in privacy_tags(trial)["privacy.notes"]


def test_a_name_stands_for_one_file_for_ever_and_only_the_private_folder_knows_which(file, tmp_path, digits):
    folder, other = PrivateFolder(tmp_path / "mlruns"), tmp_path / "other.safetensors"
    folder.make(secure=True)
    save_file(rows(other=7), other)
    for files in ((file, other), (other, file)):
        with pytest.raises(ConfigError, match="feature_name: 'projections' has stood for another file"):
            folder.feature_digests([of(path) for path in files])
    digests = folder.feature_digests([of(file)])
    maps.check_file(of(file), digests)
    assert folder.feature_digests([of(file)]) == digests and list(digests) == ["projections"]
    save_file(rows(other=7), file)
    for check in (lambda: folder.feature_digests([of(file)]), lambda: maps.check_file(of(file), digests)):
        with pytest.raises((ConfigError, DataError), match="another") as error:
            check()
        assert not re.search("[0-9a-f]{64}", str(error.value))
    before = maps.features(digits, of(file))[0].clone()
    save_file(rows(other=8), file)
    assert not torch.equal(maps.features(digits, of(file))[0], before), "the file that is there, not one in memory"


PLUGIN = """
import itertools
import numpy as np
from pipeline.learning import rounded_gaussian

numbers = itertools.count(1)  # in the place of the entropy of the operating system
rounded_gaussian.secret_bits = lambda: lambda n: np.random.default_rng(next(numbers)).bytes(n)
CONTENT = "{content}"  # of a record, perhaps
"""
FILE = """
name: private
plugins: [some_plugin]
base: {dataset: digits, features: file, feature_file: features.safetensors, feature_source: "random, seed 0",
       feature_name: projections, input_norm: 4, hidden: [16], batch_size: 128, epochs: 2, learning_rate: 0.5,
       feedback_std: 0.15,
       mechanism: per_example, sampler: poisson, target_epsilon: 3, noise: secure, arithmetic: integer}
grid: {seed: {range: [0, 2]}}
resources: {pack_size: 1, checkpoint_seconds: 0}
"""
# What may differ between two stores of the same trials, and why. Strings with other keys may not.
DIFFERS = {
    "driver": "random, and names the host and the folder", "driver.nodes": "what was in use on the machine",
    "mlflow.parentRunId": "random", "checkpoint": "how fast the machine was",
    "weights.safetensors": "released iterates", "per_class.csv": "counts on the test set",
    "released.json": "released iterates and noisy scores",
}
NUMBERS = r"\d+\.\d+"  # in the sweep's headline: means of noisy scores, which epsilon covers


def texts(root):
    """Every string of a store, by where it stands: of its database, and of its artifacts."""
    found = {}
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        database.row_factory = sqlite3.Row
        names = {run: name for run, name in database.execute("SELECT run_uuid, name FROM runs")}
        for table, keys in (("runs", ("name", "status", "lifecycle_stage", "source_name", "user_id")),
                            ("experiments", ("name", "lifecycle_stage"))):
            for row in database.execute(f"SELECT * FROM {table}"):
                found |= {(table, row["name"], key): row[key] for key in keys}
        found |= {("datasets", *row): ""
                  for row in database.execute("SELECT name, digest, dataset_source FROM datasets")}
        for table in ("params", "tags", "experiment_tags"):
            for row in database.execute(f"SELECT * FROM {table}"):
                of_what = names[row["run_uuid"]] if "run_uuid" in row.keys() else "sweep"  # noqa: SIM118
                key = NAMED if row["key"].startswith(NAMED) else row["key"]  # the name is random
                found[table, of_what, key] = row["value"]
        for row in database.execute("SELECT run_uuid, key, step FROM metrics"):
            found["metrics", names[row["run_uuid"]], row["key"], row["step"]] = ""
        for run, uri in database.execute("SELECT run_uuid, artifact_uri FROM runs"):
            folder = Path(uri.removeprefix("file://"))
            for path in folder.rglob("*") if folder.exists() else ():
                found["artifact", names[run], path.name] = "" if path.name in DIFFERS else path.read_text()
    assert "projections" in str(found), "what is public is found"
    return {place: re.sub(NUMBERS, "", text) if (place[1] == "private" and str(place[-1]).startswith(
        ("mlflow.note.content", "best."))) or place[0].startswith("experiment_tags") else text
        for place, text in found.items() if place[-1] not in DIFFERS}


class Normalised(PerExampleStep):
    """u_i <- C/(||u_i|| + g) u_i, which lengthens short contributions."""

    def factor(self, norms):
        return self.clipping_norm / (norms + 0.01)


class Rewritten(PerExampleStep):
    """Bounds contributions in a way that it does not state as a factor of their norms."""

    def bounded(self, deltas, activations):
        deltas, activations = super().bounded(deltas, activations)
        return [d / 2 for d in deltas], activations


@pytest.mark.usefixtures("extensions")
def test_an_extension_states_its_bound_as_a_factor_or_has_no_secret_noise(digits):
    register_mechanism("normalised", Normalised, settings=("clipping_norm",), guarantee="so it is")
    trial = TrialConfig(**{**SECURE, "mechanism": "normalised", "epochs": 1})
    check_promises([trial])
    assert next(iter(train(Pack((trial,)), digits))).outcome.status == "finished"
    register_mechanism("rewritten", Rewritten, settings=("clipping_norm",), guarantee="half of it")
    why = "it does not state by which factor contributions of a norm are multiplied .a method `factor`."
    with pytest.raises(ConfigError, match=f"arithmetic: 'integer' does not go with mechanism 'rewritten': {why}; use "):
        TrialConfig(**{**SECURE, "mechanism": "rewritten"})
    with pytest.raises(ConfigError, match=f"use that with mechanism 'per_example' .{why}., or noise 'research'"):
        TrialConfig(**{**SECURE, "mechanism": "rewritten", "arithmetic": "float32"})


@pytest.mark.parametrize("values", [
    {}, {"noise": "research", "private_metrics": "noisy"}, {"mechanism": "photonic", "sampler": "shuffled",
                                                           "arithmetic": "float32",
                                                           "noise_multiplier": 0.0, "sigma": 2.0}])
def test_a_record_that_cannot_be_used_contributes_nothing_and_nobody_is_told(tmp_path, digits, values, capfd):
    """Its batch without it has the same sum of contributions, to the last bit."""
    bad = 11
    save_file(rows(bad=bad), tmp_path / "bad.safetensors")
    trial = of(tmp_path / "bad.safetensors", **values)
    training = prepare(Pack((trial,)), digits, CPU)
    assert training.train_inputs.usable.sum() == 1436 and not training.train_inputs.usable[bad]
    batch = torch.arange(128).view(1, -1) % 40
    batch[0, 5] = bad
    without = batch.clone()
    without[0, 5] = -1
    if trial.mechanism == "per_example":
        sums = []
        for indices in (batch, without):
            sums.append(_sum(training, indices))
        assert torch.equal(*sums) and torch.isfinite(sums[0]).all()
    records = list(train(Pack((trial,)), digits))
    assert records[-1].outcome.status == "finished"
    assert all(np.isfinite(weight).all() for weight in records[-1].outcome.weights.values())
    assert str(bad) not in "".join(capfd.readouterr()).replace("0.", "")
    counts = training.evaluation.count(training.net, "validation")
    assert counts[:, 0].sum() == training.validation.shape[1], "what is held out stays the public number"
    training.close()


def _sum(training, indices):
    """What the mechanism adds up of a batch, before noise."""
    usable = training.train_inputs.usable
    present = ((indices >= 0) & usable[indices.clamp(min=0)]).unsqueeze(-1).float()
    indices = indices.clamp(min=0)
    activations, logits = training.net.forward(training.train_inputs.batch(indices))

    error, _ = training.loss(logits, training.data.train_y[indices], present)
    out = training.net.blank_parameters(1, CPU, torch.float64)
    deltas = training.deltas(error, activations, present)
    training.mechanism.sum.add_up(training.mechanism, deltas, activations, out)
    return out.flat.clone()


@pytest.mark.usefixtures("extensions")
@pytest.mark.parametrize("fault", ["features", "reader", "no file"])
def test_records_that_cannot_be_used_are_refused_before_ray_is_started(tmp_path, monkeypatch, capsys, fault):
    """Features that are not finite, an exception of a user's reader, and none in the folder: in one line. And there is
    no sweep of it then."""
    def read(spec, folder):
        raise KeyError("column 7")

    register_dataset("mine", DATASETS["digits"].spec, read)
    save_file(rows(bad=11), tmp_path / "bad.safetensors")
    base, says = {"features": ("dataset: digits, features: file, feature_file: bad.safetensors, feature_source: none",
                               "features: 'file' must be finite, which those of record 11 of 1437 are not"),
                  "reader": ("dataset: mine", f"dataset: 'mine' cannot be read by test_promises.{read.__qualname__} "
                             "(KeyError: 'column 7')"),
                  "no file": ("dataset: mnist", f"{tmp_path}: expected one of MNIST/raw/")}[fault]
    (tmp_path / "e.yaml").write_text(f"base: {{{base}, epochs: 1}}")
    monkeypatch.setattr(cluster, "start", lambda *a: pytest.fail("Ray was started"))
    phase, line = output(capsys, "sweep", str(tmp_path / "e.yaml"), "--mlruns", str(tmp_path), "--data", str(tmp_path),
                         code=2).splitlines()
    assert phase.startswith("looking for data sets: ") and line.startswith(f"error: {says}")
    with pytest.raises(TrackingError, match="no sweep named 'e'"):
        Reader(root=tmp_path).attach("e")


def test_the_private_folder_is_for_its_owner_alone_and_outside_what_is_served(tmp_path, monkeypatch):
    folder = PrivateFolder(tmp_path / "mlruns")
    folder.make(secure=True)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.checkpoints("x") == tmp_path / "mlruns" / "private" / "checkpoints" / "x"
    for served in (tmp_path / "mlruns" / "artifacts" / "x", tmp_path / "mlruns" / "reports", tmp_path / "shown" / "x"):
        with pytest.raises(ConfigError, match="private folder: must lie outside .*, which others are shown"):
            PrivateFolder(tmp_path / "mlruns", served).make(False, [tmp_path / "shown"])
    monkeypatch.setenv("PHOTONIC_PRIVATE", str(tmp_path / "elsewhere"))
    assert PrivateFolder(tmp_path / "mlruns").path == tmp_path / "elsewhere"
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="readable by its owner alone .* with mode 755"):
        PrivateFolder(tmp_path, tmp_path / "open").make(secure=True)
    PrivateFolder(tmp_path, tmp_path / "open").make(secure=False)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o755, "a folder of the user's is not changed"
    Checkpoints(tmp_path / "node" / "private" / "checkpoints" / "x", 0).save(
        pack := Pack((TrialConfig(dataset="digits"),)), Checkpoint("cpu", {}, {"epoch": 1}, []))
    assert stat.S_IMODE((tmp_path / "node" / "private").stat().st_mode) == 0o700, "on other hosts, too"
    assert Checkpoints(tmp_path / "node" / "private" / "checkpoints" / "x", 0).path(pack).exists()
