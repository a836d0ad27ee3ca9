"""`photonic export`: a trial of the store as files, by run id or trial_key, and no more than it holds."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pipeline.cli import main
from pipeline.tracking.export import export
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store, TrackingError
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.records import EpochRecord, Outcome

DONE, RUNNING = (TrialConfig(dataset="digits", algorithm="bp", mechanism="per_example", noise_multiplier=1.0,
                             sampler="poisson", batch_size=64, seed=seed) for seed in (0, 1))
WEIGHTS = {"layer_1.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "layer_1.bias": np.ones(2, np.float32)}
TAGS = {"privacy.certified": "simulated", "privacy.relation": "add/remove", "privacy.delta": "1e-05"}
NAMES = ["config.json", "metrics.csv", "privacy.json", "weights.safetensors"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    store = Store(root=folder)
    store.open_sweep("exported")
    for config in (DONE, RUNNING):
        store.start(config, {"git_commit": "abc"})
    metrics = [{"test/accuracy": 0.5 * epoch, "epsilon/certified/pld": 1.0 * epoch} for epoch in (1, 2)]
    store.log([EpochRecord(DONE.trial_key, 1, metrics[0], TAGS), EpochRecord(RUNNING.trial_key, 1, metrics[0])])
    store.log([EpochRecord(DONE.trial_key, 2, metrics[1], {}, Outcome("finished", WEIGHTS, ()))])
    return folder


@pytest.fixture
def store(root):
    return Reader(root=root)


@pytest.mark.parametrize("by", ["trial_key", "run_id"])
def test_files_hold_what_the_store_holds(store, tmp_path, by):
    run = store.trial(DONE.trial_key)
    files = export(store, getattr(run, by), tmp_path / "a" / "b")
    assert [file.name for file in files] == NAMES and {file.parent for file in files} == {tmp_path / "a" / "b"}
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"], "nothing is left behind"
    for name in ("weights.safetensors", "config.json"):
        assert (tmp_path / "a" / "b" / name).read_bytes() == store.artifact(run, name)
    found = load_file(files[3])
    assert found.keys() == WEIGHTS.keys() and all(np.array_equal(found[name], WEIGHTS[name]) for name in WEIGHTS)
    assert TrialConfig.from_mapping(json.loads(files[0].read_text())).trial_key == DONE.trial_key
    with open(files[1], newline="") as file:
        assert list(csv.reader(file)) == [["metric", "epoch", "value"], ["epsilon/certified/pld", "1", "1.0"],
                                          ["epsilon/certified/pld", "2", "2.0"], ["test/accuracy", "1", "0.5"],
                                          ["test/accuracy", "2", "1.0"]]
    assert json.loads(files[2].read_text()) == TAGS


def test_the_command_says_what_it_wrote_and_overwrites_nothing(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["export", DONE.trial_key, "--mlruns", str(root)]
    assert main(command) == 0
    folder = Path("exports", DONE.trial_key)
    assert capsys.readouterr().out.split() == ["written:", *(str(folder / name) for name in NAMES)]
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(command) == 2
    assert f"--out: must be a folder that does not exist yet, got {folder}" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in folder.iterdir()}
    assert main([*command, "--out", "other"]) == 0 and len(list(Path("other").iterdir())) == 4


def test_a_trial_that_has_not_ended_or_is_not_there_is_refused_and_nothing_is_written(store, tmp_path):
    for name, message in ((RUNNING.trial_key, "must have ended to have weights, is running"),
                          ("0" * 16, "no trial has the trial_key or run id '0000000000000000'"),
                          ("mine.yaml", "must be a trial_key or a run id")):
        with pytest.raises(TrackingError, match=message):
            export(store, name, tmp_path / "out")
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UserError, match="nothing is overwritten"):
        export(store, DONE.trial_key, tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_that_was_deleted_is_named(root, store, tmp_path):
    gone = next(root.rglob("weights.safetensors"))
    content = gone.read_bytes()
    gone.unlink()
    try:
        with pytest.raises(TrackingError, match="weights.safetensors"):
            export(store, DONE.trial_key, tmp_path / "out")
    finally:
        gone.write_bytes(content)
    assert not list(tmp_path.iterdir())
