"""`photonic status`: what became of every trial, why, and how to go on; it reads, and changes nothing."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from approved import approved
from commands import output, written
from search_tools import rounds, train

from pipeline import cli
from pipeline.cli import main
from pipeline.experiment.experiment import load_experiment, parse_experiment
from pipeline.experiment.plugins import LOADED
from pipeline.sweep import lock, run
from pipeline.sweep import status as sweep_status
from pipeline.sweep.checkpoints import Checkpoint, Checkpoints
from pipeline.sweep.clock import Clock
from pipeline.sweep.lock import sweeping
from pipeline.sweep.progress import SweepResult
from pipeline.tracking.store import Store
from pipeline.trials.packs import Pack
from pipeline.trials.part import PARTS

FILE = """
name: mixed
base: {dataset: digits, hidden: [8], epochs: 4}
grid: {seed: {range: [0, 6]}}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(root, driver of the last sweep), to be copied."""
    root, trials = tmp_path_factory.mktemp("made"), parse_experiment(FILE, Path("mixed.yaml")).trials
    finished, diverged, failed, interrupted, running, _ = trials
    for sweep in ((interrupted,), (finished, diverged, failed, running)):
        store = Store(root=root)
        store.open_sweep("mixed", params={"trials": 6})
        for trial, epochs, status in ((finished, 4, "finished"), (diverged, 2, "diverged"), (failed, 1, ""),
                                      (running, 1, ""), (interrupted, 2, "")):
            if trial in sweep:
                train(store, [trial], epochs, status)
        if interrupted in sweep:
            store.close_sweep("KILLED")
    store.fail(failed.trial_key, "ValueError: no (somewhere.py:3)")
    folder = root / "private" / "checkpoints" / "mixed"
    Checkpoints(folder, 30).save(Pack((interrupted,)), Checkpoint("cpu", {}, {"epoch": 2, "active": [0]}, []))
    (folder / "0.safetensors").write_bytes(b"junk")
    return root, store.driver


@pytest.fixture
def mixed(made, tmp_path):
    """(file, experiment, driver of the last sweep): trials 0 to 4 finished, diverged, failed, interrupted and running;
    5 is missing."""
    shutil.copytree(made[0], tmp_path / "mlruns")
    file = written(tmp_path / "mixed.yaml", FILE)
    return file, load_experiment(file), made[1]


def status(capsys, tmp_path, *arguments, code=0):
    return output(capsys, "status", *map(str, arguments), "--mlruns", str(tmp_path / "mlruns"), code=code)


def test_every_trial_has_a_status_an_epoch_and_a_reason(mixed, tmp_path, capsys):
    file, *_ = mixed
    before = sorted(path for path in tmp_path.rglob("*") if path.suffix not in (".db-wal", ".db-shm"))
    text = status(capsys, tmp_path, file)
    approved("status", re.sub(r"(damaged) \(.*\)", r"\1 (WHY)", text.replace(str(tmp_path), "FOLDER")))
    changed = status(capsys, tmp_path, file, "--set", "name=mixed", "--set", "epochs=4")
    assert changed.splitlines()[-1] == f"  to go on: photonic sweep {file} --set name=mixed --set epochs=4"
    assert before == sorted(path for path in tmp_path.rglob("*") if path.suffix not in (".db-wal", ".db-shm"))


def test_neither_what_trains_nor_what_accounts_is_imported_for_it(mixed, tmp_path):
    program = (f"import sys; from pipeline.cli import main; main(['status', {str(mixed[0])!r}, '--mlruns', "
               f"{str(tmp_path / 'mlruns')!r}]); print([m for m in ('torch', 'ray', 'dp_accounting') if m in "
               "sys.modules])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mixed: 6 trials") and done.stdout.splitlines()[-1] == "[]"


def test_without_a_file_all_sweeps_and_as_json_for_scripts(mixed, tmp_path, capsys):
    _, experiment, driver = mixed
    other = Store(root=tmp_path / "mlruns")
    other.open_sweep("other", params={"trials": 3})
    with sweeping(tmp_path / "mlruns", "mixed", "another driver"):  # to which an earlier one left an open trial
        text = status(capsys, tmp_path)
    assert (f"interrupted dfa non-private s4 ({experiment.trials[4].trial_key}), epoch 1 of 4: its sweep ended, "
            "and the one that runs now has not come to it") in text
    with sweeping(tmp_path / "mlruns", "mixed", driver):
        states = {state["name"]: state for state in json.loads(status(capsys, tmp_path, "--json"))}
    assert set(states) == {"mixed", "other"} and states["mixed"]["running"] and not states["mixed"]["go_on"]
    assert states["mixed"]["counts"] == {"done": 2, "running": 1, "finished": 1, "diverged": 1, "failed": 1,
                                         "lost": 0, "interrupted": 1, "missing": 1}
    assert {t["trial_key"]: t["epoch"] for t in states["mixed"]["trials"]} == {
        trial.trial_key: epoch for trial, epoch in zip(experiment.trials, (4, 2, 1, 2, 1), strict=False)}
    assert not states["other"]["running"] and states["other"]["counts"]["missing"] == 3
    assert states["other"]["go_on"] == "photonic sweep FILE"
    assert len(states["mixed"]["refused"]) == 1


def test_of_a_driver_elsewhere_the_shared_store_tells(mixed, tmp_path, capsys, monkeypatch):
    """The sweep is open in the store, and this host has another folder than the driver, as a laptop has."""
    file, experiment, driver = mixed
    place, store = driver.partition("@")[2], Store(root=tmp_path / "mlruns")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlruns' / 'mlflow.db'}")

    def here(*arguments):
        return status(capsys, tmp_path / "laptop", file, *arguments).replace(str(tmp_path), "FOLDER")

    store.attach("mixed")
    began = min(run.start_ms for run in store.runs() if run.tags["driver"] == driver) / 1000
    monkeypatch.setattr(sweep_status.time, "time", lambda: began + 8)  # in which it trained 4 + 2 + 1 + 1 epochs
    assert json.loads(here("--json"))[0]["left_seconds"] == pytest.approx(3 + 3 + 2 + 4)
    texts = [here()]
    store.note_nodes({"nodes": [{"node": "of another driver"}]})
    store.beat(7)
    texts.append("\n".join(here().splitlines()[:3]))
    (state,) = json.loads(here("--json"))
    assert state["running"] and (state["elsewhere"], state["beat"], state["go_on"]) == (place, "7", "")
    key = experiment.trials[4].trial_key
    assert {trial["status"] for trial in state["trials"] if trial["trial_key"] == key} == {"running"}
    store.close_sweep("KILLED")
    approved("status_elsewhere", "\n".join([*texts, here()]).replace(place, "HOST"))


def test_what_is_in_use_of_the_nodes_is_shown_as_its_driver_noted_it(mixed, tmp_path, capsys):
    file, _, _driver = mixed
    store = Store(root=tmp_path / "mlruns")
    store.open_sweep("mixed")
    lease = lock.Lease(store, "mixed", Clock({"heartbeat": 0.0}))
    nodes = [{"node": "a", "CPU": 8.0, "GPU": 4.0}, {"node": "b", "CPU": 2.0, "OPU": 1.0}]
    in_use = {"CPU": [1.0, 10.0], "GPU": [0.75, 4.0], "OPU": [1.0, 1.0]}
    lease.beat(lambda: {"in_use": in_use, "nodes": nodes})
    with sweeping(tmp_path / "mlruns", "mixed", store.driver):
        text = status(capsys, tmp_path, file)
        (state,) = json.loads(status(capsys, tmp_path, file, "--json"))
    assert text.splitlines()[1:4] == ["  in use: CPU 1 of 10, GPU 0.75 of 4, OPU 1 of 1",
                                      "  node a: CPU 8, GPU 4", "  node b: CPU 2, OPU 1"]
    assert state["nodes"] == nodes and state["in_use"] == in_use
    after = status(capsys, tmp_path, file)
    assert "node" not in after, "a sweep that does not run uses nothing"
    assert after.endswith(f"to go on: photonic sweep {file}, with --address and --private as before\n")


def test_a_driver_of_this_folder_that_left_a_shared_store_open_is_dead(mixed, tmp_path, capsys, monkeypatch):
    """It has no lock, and the system lets go of locks when a process dies, and not before."""
    file, *_ = mixed
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'server.db'}")
    gone = Store(root=tmp_path / "mlruns")
    gone.open_sweep("mixed")
    text = status(capsys, tmp_path, file)
    assert "; not running here" in text and f"to go on: photonic sweep {file}" in text
    with sweeping(tmp_path / "mlruns", "mixed", gone.driver):
        (state,) = json.loads(status(capsys, tmp_path, file, "--json"))
    assert state["running"] and (state["elsewhere"], state["beat"], state["go_on"]) == ("", "", "")


@pytest.mark.parametrize("uri", [None, "sqlite:///{folder}/elsewhere.db"])
def test_a_store_that_is_not_there_is_not_created(uri, tmp_path, capsys, monkeypatch):
    if uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(folder=tmp_path))
    said = status(capsys, tmp_path, code=2)
    assert "does not exist (run the sweep first, or say by --mlruns where it ran)" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("result", "code"), [
    (SweepResult(3, finished=2, diverged=1), 0), (SweepResult(3, finished=2, failed={"key": "ValueError: no"}), 1),
    (SweepResult(3, finished=1, failed={"key": "ValueError: no"}), 130)])
def test_exit_code_says_how_a_sweep_ended(result, code, tmp_path, monkeypatch):
    file, given = tmp_path / "mixed.yaml", []
    file.write_text(FILE)
    monkeypatch.setattr(run, "run_sweep", lambda experiment, **options: given.append(experiment) or result)
    assert main(["sweep", str(file), "--checkpoint-seconds", "5"]) == code
    assert given[0].resources.checkpoint_seconds == 5 and given[0].trials == load_experiment(file).trials


def test_watch_looks_again_as_long_as_the_sweep_runs(mixed, tmp_path, capsys, monkeypatch):
    file, _, driver = mixed
    sweep, looks = sweeping(tmp_path / "mlruns", "mixed", driver), []

    def wait(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            sweep.__exit__(None, None, None)

    monkeypatch.setattr(cli.time, "sleep", wait)
    sweep.__enter__()
    text = status(capsys, tmp_path, file, "--watch")
    heads = [line.rpartition("; ")[2].partition(", about")[0] for line in text.splitlines() if "mixed: " in line]
    assert heads == ["running", "running", "not running here"] and looks == [5.0, 5.0]
    assert status(capsys, tmp_path, file, "--watch", "--json", code=2) == (
        "error: --json: is printed once, got it with --watch\n")


PLUGIN = """
import numpy as np
from pipeline.learning.data.dataset import register_dataset
from pipeline.trials.datasets import DatasetSpec
register_dataset("mine", DatasetSpec(2000, 10, (4,), 2, (0.5,), (0.5,)), None)
"""
SEARCH = """
name: mine
plugins: [my_data]
base: {dataset: mine, epochs: 2, mechanism: per_example, sampler: poisson, noise_multiplier: 30, private_metrics: noisy,
       validation_fraction: 0.25, batch_size: 64}
search: {algorithm: random, trials: 3, max_concurrent: 2, space: {learning_rate: {uniform: [0.1, 1]}}}
budget: {epsilon: 4, delta: 1.0e-5}
"""


def test_sweeps_of_absent_plugins_are_shown_as_far_as_the_store_tells(mixed, tmp_path, capsys, extensions, monkeypatch):
    (tmp_path / "my_data.py").write_text(PLUGIN)
    file = written(tmp_path / "mine.yaml", SEARCH)
    experiment, store = load_experiment(file), Store(root=tmp_path / "mlruns")
    search = rounds(experiment, store)
    (trial, _) = search.next(())
    train(store, [trial], 1, "")
    store.log_suggestions(search.suggestions)
    store.open_sweep(experiment.name, params={"trials": 3})
    store.log_experiment(SEARCH)
    known = status(capsys, tmp_path, file)
    assert "of 4 spent at delta 1e-05, simulated" in known
    for name in ("my_data", "mine"):
        monkeypatch.delitem(LOADED, name, raising=False)
        monkeypatch.delitem(PARTS["dataset"], name, raising=False)
    text = status(capsys, tmp_path)
    assert "mixed: 6 trials: 1 finished" in text
    line, *rest = text.partition("\n\n")[2].splitlines()
    assert line == "mine: 3 trials: 1 interrupted, 2 waiting; not running here"
    assert rest[0] == "  search: 2 of 3 suggestions asked for"
    assert rest[1].startswith("  budget: epsilon an unknown part of 4 spent at delta 1e-05, not known from the store "
                              "without its experiment file (run ") and "dataset 'mine' is an extension's" in rest[1]
    assert f"({trial.trial_key}), epoch 1" in rest[2] and json.loads(status(capsys, tmp_path, "--json"))
    assert "plugins: must be none, as nothing that a store names is imported" in status(
        capsys, tmp_path, "mine", code=2)
