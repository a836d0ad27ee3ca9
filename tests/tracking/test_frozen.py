"""A store that commit 38d0955 left is read, reported and gone on with: no key changes, nothing is trained twice.

It has grids, a search with secret noise and a budget, of which one run lies in the trash, features of a file, and a
plugin. Afterwards the trials of `budget` were made those of arithmetic `integer`: in its file, their params and keys.
Its runs get the names here under which trials with secret noise are released now.
"""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fault_tools import environment

from pipeline.accounting.budget import restored_filter
from pipeline.experiment.experiment import load_experiment
from pipeline.sweep import status
from pipeline.tracking.artifacts import config_of
from pipeline.tracking.reader import Reader

FROZEN = Path(__file__).parents[1] / "data" / "frozen"
FACTS = json.loads((FROZEN / "trials.json").read_text())
DONE = ("budget", "features", "finished", "plugin")


@pytest.fixture
def store(tmp_path, extensions):
    """A copy of the store, beside the files of its experiments; its reader."""
    for path in [*FROZEN.glob("*.yaml"), FROZEN / "frozen_plugin.py"]:
        shutil.copy(path, tmp_path)
    with tarfile.open(FROZEN / "store.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "mlruns"
    with contextlib.closing(sqlite3.connect(root / "mlflow.db", isolation_level=None)) as database:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            database.execute(f"UPDATE {table} SET {column} = replace({column}, 'file:///STORE', ?)", [root.as_uri()])
        database.execute("INSERT INTO tags (key, value, run_uuid) SELECT 'released.' || run_uuid, '3 epochs, sealed on "
                         "frozen', run_uuid FROM params WHERE key = 'noise' AND value = 'secure'")
    return Reader(root=root)


def photonic(folder, *arguments):
    return subprocess.run([sys.executable, "-m", "pipeline.cli", *arguments], cwd=folder, capture_output=True,
                          text=True, env=environment())


def facts(store, name):
    """As `trials.json` has them."""
    experiment = load_experiment(store.root.parent / f"{name}.yaml")
    store.attach(name)
    settings = {run.trial_key: config_of(run).used() for run in store.runs()}
    if name == "features":
        for used in settings.values():
            used.pop("feature_file", None)
    found = {"keys": [trial.trial_key for trial in store.as_swept(experiment).trials],
             "status": {run.trial_key: run.status for run in store.runs()},
             "metrics": {run.trial_key: run.metrics for run in store.runs()},
             "settings": settings,
             "released": sorted([r.trial.trial_key, r.epochs, r.deleted] for r in store.released())}
    if store.budget():
        filter = restored_filter(store.budget())
        found["spent"] = filter.epsilon(filter.spent(store.released()))
    return found


@pytest.mark.parametrize("name", FACTS)
def test_keys_settings_numbers_and_what_is_spent_are_what_they_were(store, name):
    found, spent = facts(store, name), FACTS[name].get("spent")
    # Sums of floating-point numbers differ in their last digits between processors.
    assert found == FACTS[name] | ({"spent": pytest.approx(spent, rel=1e-9)} if spent else {})
    experiment = store.as_swept(load_experiment(store.root.parent / f"{name}.yaml"))
    state = status.read(store, name, experiment)
    assert {trial.trial_key: trial.status.replace("interrupted", "running") for trial in state.trials} == FACTS[
        name]["status"]
    assert bool(state.go_on) == (name not in DONE)
    if name == "budget":
        assert state.budget["spent"] == found["spent"] > 0
        assert any(deleted for *_, deleted in FACTS[name]["released"]), "a run lies in the trash, and is paid for"


@pytest.mark.slow
@pytest.mark.parametrize("name", DONE)
def test_what_was_finished_is_not_trained_again_and_has_its_report(store, name):
    before = facts(store, name)
    ended = photonic(store.root.parent, "sweep", f"{name}.yaml")
    assert ended.returncode == 0 and "nothing to do" in ended.stderr, ended.stderr
    assert facts(store, name) == before
    report = photonic(store.root.parent, "report", f"{name}.yaml")
    assert report.returncode == 0, report.stderr
    assert (store.root.parent / "reports" / name / "index.html").stat().st_size > 10_000


@pytest.mark.slow
def test_an_interrupted_grid_is_trained_again_with_the_same_noise_and_costs_nothing(store):
    """Its checkpoints are of other code; what the store had is handed in again, and stays what it was."""
    first = {run.trial_key: dict(store.history(run.run_id, "validation/accuracy")) for run in _runs(store)}
    ended = photonic(store.root.parent, "sweep", "interrupted.yaml")
    assert ended.returncode == 0 and "other software wrote it" in ended.stderr, ended.stderr
    assert not (store.root / "checkpoints" / "interrupted").exists(), "the old place is left"
    for run in _runs(store):
        assert run.status == "finished"
        values = dict(store.history(run.run_id, "validation/accuracy"))
        assert len(values) == 12 and {epoch: values[epoch] for epoch in first[run.trial_key]} == pytest.approx(
            first[run.trial_key], abs=0.02)


def _runs(store, name="interrupted"):
    store.attach(name)
    return store.runs()
