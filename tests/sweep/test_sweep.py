"""Sweeps with the real Ray and the real tracking store; only training is a stand-in."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import sweep_stub
from fault_tools import once
from flat import items
from in_process import without_ray
from mlflow.tracking import MlflowClient
from prepared import prepared
from ray import cloudpickle
from rich.console import Console
from sweep_stub import experiment, grid

from analysis import load_runs
from pipeline import load_dataset, load_model
from pipeline.accounting.calibration import calibrate
from pipeline.accounting.certified import with_noise
from pipeline.cli import main
from pipeline.experiment.plugins import LOADED, load_plugins
from pipeline.sweep import cluster, tuning, worker
from pipeline.sweep import progress as progress_module
from pipeline.sweep import run as sweep
from pipeline.sweep.checks import ResourceError, check_resources, slots
from pipeline.sweep.clock import SECONDS, Clock
from pipeline.sweep.ledger import Odometer
from pipeline.sweep.lock import SweepRunning
from pipeline.sweep.nodes import Watch, others
from pipeline.sweep.progress import SweepProgress
from pipeline.sweep.recorder import Recorder
from pipeline.sweep.run import run_sweep
from pipeline.sweep.tuning import PackOrder
from pipeline.sweep.worker import epochs
from pipeline.tracking.backend import Client
from pipeline.tracking.store import Store, TrackingError
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import duration
from pipeline.trials.packs import Pack, Resources
from pipeline.trials.records import REPORTS, Computing, EpochRecord, Hidden, Outcome, Result, Sealed

cloudpickle.register_pickle_by_value(sweep_stub)  # workers cannot import from the folder of the tests

ONE_WORKER = {"cpu": 2}  # of the two cores: a worker takes seconds to start


def run(tmp_path: Path, trials, resources=None, train=sweep_stub.train, **behaviour):
    trainer = functools.partial(train, folder=tmp_path, **behaviour)
    return run_sweep(experiment(trials, **(resources or {})), root=tmp_path / "runs", trainer=trainer, quiet=True)


def tracked(tmp_path: Path):
    store = Store(root=tmp_path / "runs")
    store.attach("stub")
    return store, store.runs()


def assert_tracked_once(tmp_path: Path, trials) -> None:
    store, runs = tracked(tmp_path)
    assert Counter(r.trial_key for r in runs) == Counter(t.trial_key for t in trials)
    for r in runs:
        assert r.status == "finished"
        assert [epoch for epoch, _ in store.history(r.run_id, "validation/accuracy")] == [1, 2]


def test_all_trials_once_and_then_nothing(tmp_path, two_cores, monkeypatch):
    trials = grid(seeds=3)
    result = run(tmp_path, trials, meet=True)
    assert (result.planned, result.skipped, result.finished, result.failed) == (6, 0, 6, {})
    assert 0 < result.compute_seconds and 0 < result.wall_seconds
    assert_tracked_once(tmp_path, trials)
    assert list((tmp_path / "runs" / "private" / "ray").iterdir()) == []
    # An OPU takes one pack at a time, while others run, which `meet` waits for.
    spans = sorted(tuple(map(float, file.read_text().split())) for file in tmp_path.glob("opu-*.interval"))
    assert len(spans) == 3 and all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    # Workers stay in the folder where the sweep was started, so that a relative folder of data is the one checked.
    assert (tmp_path / "worker.cwd").read_text() == str(Path.cwd())

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "running_ray", lambda *a: pytest.fail("Ray was started for nothing"))
        again = run(tmp_path, trials)
    assert (again.planned, again.skipped, again.finished, again.remaining) == (6, 6, 0, 0)


def test_a_worker_of_another_program_trains_nothing(tmp_path, two_cores, monkeypatch):
    """The worker is this process, and gets what `fit` hands to Tune."""
    class TrialContext(Exception):
        pass

    handed = {}
    with monkeypatch.context() as before, pytest.raises(TrialContext):
        before.setattr(tuning, "PROGRAM", "as it was when the sweep began")
        before.setattr(tuning.tune, "with_parameters", lambda trainable, **parameters: handed.update(parameters))
        before.setattr(tuning.tune, "with_resources", Mock(side_effect=TrialContext))
        run(tmp_path, grid(("dfa",), 1))
    outdated, current = (object.__new__(tuning.PackTrainable) for _ in range(2))
    outdated.setup({"pack": 0}, **handed)
    current.setup({"pack": 0}, **handed | {"code": tuning.PROGRAM})
    assert all(worker.step()["item"].pid == os.getpid() for worker in (outdated, current)), "on a caller's Ray"
    step = outdated.step()
    assert not step["item"] and "the files of the package pipeline, or of a plugin, changed since" in step["error"]
    step = current.step()
    assert [record.epoch for record in step["item"]] == [1] and "error" not in step


def test_a_driver_that_stood_still_looks_whose_the_sweep_is_before_it_writes(tmp_path):
    """At its first event, whichever that is: what waited must not reach the store."""
    def lost(nodes):
        raise SweepRunning("another took it over")

    recorder = SimpleNamespace(**{name: lambda *a, **k: pytest.fail("written") for name in (
        "start", "record", "restart", "fail", "died", "hidden", "name", "release", "write_due")})
    sweep = prepared(grid(("dfa",), 1), tmp_path, lease=SimpleNamespace(beat=lost))
    driver = tuning.Driver(sweep, [None], recorder, Watch(dict, print, sweep.clock))
    trial = SimpleNamespace(config={"pack": 0}, trial_id="0")
    for event in (lambda: driver.on_step_end(0, []), lambda: driver.on_trial_start(0, [], trial),
                  *(lambda item=item: driver.on_trial_result(0, [], trial, {"item": item, "time_this_iter_s": 1.0})
                    for item in ([], Result())),
                  *(lambda item=item: driver.lets_go_on(trial, {"item": item, "time_this_iter_s": 1.0})
                    for item in (Hidden(1), Sealed("0", "here"))),
                  lambda: driver.on_trial_recover(0, [], trial), lambda: driver.on_trial_error(0, [], trial)):
        driver.error = None
        with pytest.raises(SweepRunning):
            event()
        assert isinstance(driver.error, SweepRunning)


def test_on_a_cluster_this_node_is_asked_too(tmp_path, two_cores, monkeypatch):
    """Its workers have the environment that Ray was started with, and not that of the driver."""
    monkeypatch.setattr(worker, "prepare_node", lambda *_: pytest.fail("asked in the driver"))
    found = prepared(grid(("dfa",), 1), tmp_path)
    with Watch(others, print, found.clock) as watch:
        cluster.prepare_nodes(found, False, watch)
    assert found.checkpoints.folder.is_dir()


@pytest.mark.slow
def test_what_happens_to_a_pack_happens_to_it_alone_and_then_what_failed_or_is_new_is_trained(tmp_path, two_cores):
    """A worker that is killed starts again, a diverged trial is a result; a trial that raises and one whose worker
    always dies have failed."""
    good, killed, diverged, packed = trials = grid(("dfa",), 4)
    raising, fatal = (grid(("dfa",), 6, hidden=hidden)[seed] for hidden, seed in (((4,), 4), ((6,), 5)))
    trials += (raising, fatal)
    result = run(tmp_path, trials, {"pack_size": 2}, raises=(4,), kills={1: 1, 5: 9}, diverges=(2,))
    assert (tmp_path / "killed-1").read_text() == "x"
    assert (result.finished, result.diverged, result.remaining) == (3, 1, 0)
    assert result.failed.keys() == {raising.trial_key, fatal.trial_key}
    assert "RuntimeError: seed 4 went wrong (sweep_stub.py:" in result.failed[raising.trial_key]
    assert "its worker died, or could not start, 3 times" in result.failed[fatal.trial_key]
    store, runs = tracked(tmp_path)
    run_of = {r.trial_key: r for r in runs}
    assert len(runs) == 6 and {key: r.status for key, r in run_of.items()} == {
        good.trial_key: "finished", killed.trial_key: "finished", diverged.trial_key: "diverged",
        packed.trial_key: "finished", raising.trial_key: "failed", fatal.trial_key: "failed"}
    assert "went wrong" in run_of[raising.trial_key].tags["failure"]
    log = (tmp_path / "runs" / "failures" / "stub.log").read_text()
    assert "Traceback" in log and "worker process has died" in log
    for trial in (good, killed, diverged, packed):
        points = store._client.get_metric_history(run_of[trial.trial_key].run_id, "train/loss")
        assert len(points) == (1 if trial is diverged else 2)

    wider = (*trials, *grid(("dfa",), 1, hidden=(5,)))
    with pytest.MonkeyPatch.context() as patch, without_ray(patch):
        result = run(tmp_path, wider)
    assert (result.planned, result.skipped, result.finished, result.failed) == (7, 4, 3, {})
    assert Counter(r.trial_key for r in tracked(tmp_path)[1]) == Counter(t.trial_key for t in wider)


MOVED = """
name: moved
base: {dataset: digits, hidden: [8], epochs: 1, batch_size: 64, seed: 0}
"""


@pytest.mark.slow
def test_a_store_that_was_packed_and_unpacked_elsewhere_goes_on_there(tmp_path, in_process, monkeypatch, only_svg,
                                                                      capsys):
    old, new, away = tmp_path / "old", tmp_path / "new", tmp_path / "away"
    for folder in (old, new):
        folder.mkdir()
        (folder / "moved.yaml").write_text(MOVED)
    monkeypatch.chdir(old)
    assert main(["sweep", "moved.yaml"]) == 0
    subprocess.run(["tar", "-czf", tmp_path / "mlruns.tgz", "mlruns"], check=True)
    monkeypatch.chdir(new)
    subprocess.run(["tar", "-xzf", tmp_path / "mlruns.tgz"], check=True)
    old.rename(away)
    (run,) = load_runs("moved").to_dict("records")
    assert load_model(run)(load_dataset("digits").test_x).shape == (360, 10)
    assert main(["export", run["run_id"]]) == 0 and main(["report", "moved.yaml"]) == 0
    assert "logged to the sweep's MLflow run" in capsys.readouterr().out
    moved = f"the store was moved from {old / 'mlruns'}: MLflow's page finds its artifacts here again"
    monkeypatch.setattr("pipeline.tracking.ui.serve", lambda *a: 0)
    assert main(["ui"]) == 0 and capsys.readouterr().out == f"{moved}\n"
    client = MlflowClient(f"sqlite:///{new / 'mlruns' / 'mlflow.db'}")
    assert "weights.safetensors" in [file.path for file in client.list_artifacts(run["run_id"])]
    new.rename(tmp_path / "newer")
    monkeypatch.chdir(tmp_path / "newer")
    Path("moved.yaml").write_text(MOVED.replace("seed: 0}", "}\ngrid: {seed: {range: [0, 3]}}"))
    assert main(["sweep", "moved.yaml"]) == 0
    assert moved.replace(str(old), str(new)) in capsys.readouterr().err
    assert len(list(Path("mlruns/artifacts").rglob("*.safetensors"))) == 3
    assert not old.exists() and not new.exists()


def test_a_trial_whose_run_is_deleted_while_others_train_is_left_to_the_next_sweep(tmp_path, in_process, monkeypatch,
                                                                                  said):
    """Asked for again, it would be trained without a run, and asked for again."""
    trials, finish = grid(("dfa",), 2), Store._finish

    def deletes_the_first(store, key, outcome):
        finish(store, key, outcome)
        if key == trials[0].trial_key:
            store._client.delete_run(store._run_id(key))

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_finish", deletes_the_first)
        result = run(tmp_path, trials)
    assert (result.finished, result.remaining) == (2, 0)
    assert ("deleted while the sweep ran: dfa non-private seed=0; run the same command again to train what is "
            "missing") in said
    again = run(tmp_path, trials)
    assert (again.skipped, again.finished) == (1, 1)
    assert_tracked_once(tmp_path, trials)


def test_lost_tracking_store_ends_the_sweep_and_loses_nothing(tmp_path, in_process, monkeypatch):
    trials, calls, log = grid(("dfa",)), itertools.count(), Store.log

    def fails_at_last(store, records):
        if next(calls) >= 2:
            raise TrackingError("the server is gone")
        log(store, records)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "log", fails_at_last)
        with pytest.raises(TrackingError, match="^the server is gone$"):
            run(tmp_path, trials)
    done = [r for r in tracked(tmp_path)[1] if r.status == "finished"]
    result = run(tmp_path, trials)
    assert 0 < len(done) == result.skipped and result.finished == 4 - len(done)
    assert_tracked_once(tmp_path, trials)


@pytest.mark.slow
def test_after_ctrl_c_a_sweep_says_what_is_left_and_a_ray_of_the_caller_is_free_again(tmp_path, two_cores, said):
    """As in a notebook: `run_sweep` returns, and the next one trains on the same cores."""
    trials = grid(("dfa",), 3)
    ended = tmp_path / f"other-{trials[0].trial_key}.interval"
    with once(ended.exists, lambda: os.kill(os.getpid(), signal.SIGINT)):
        result = run(tmp_path, trials, ONE_WORKER, seconds=1.0)
    assert 0 < (left := result.remaining) and result.finished + left == 3
    assert said[-1].endswith(f"interrupted with {left} left: run the same command again to continue")
    store, _ = tracked(tmp_path)
    assert store._client.get_run(store._parent()).info.status == "KILLED"
    result = run(tmp_path, trials, ONE_WORKER)
    assert (result.skipped, result.finished) == (3 - left, left)
    assert_tracked_once(tmp_path, trials)


@pytest.mark.slow
def test_a_worker_whose_answer_was_lost_is_killed_and_its_pack_starts_again(tmp_path, two_cores, monkeypatch):
    killed = []

    def overdue(watch, working):
        if not killed and (tmp_path / "training").exists():
            killed.extend(working)
            return list(killed)
        return []

    monkeypatch.setattr(Watch, "overdue", overdue)
    trials = grid(("dfa",), 1)
    result = run(tmp_path, trials, ONE_WORKER, sweep_stub.silent_at_first)
    assert result.finished == 1 and len(killed) == 1
    assert_tracked_once(tmp_path, trials)


def test_a_worker_whose_first_answer_was_lost_ends_the_sweep_in_one_line():
    """Nobody knows its process."""
    driver = object.__new__(tuning.Driver)
    driver._workers = {}
    with pytest.raises(ResourceError, match="^address: the first answer of a worker was lost .*; run the same command"):
        driver._kill("00000")


def test_resources_must_be_together_on_one_node():
    nodes = [{"CPU": 8, "GPU": 1}, {"CPU": 1, "OPU": 1}]
    check_resources(grid(("dfa",), 1), Resources(cpu=4, gpu=0.5), nodes)
    check_resources(grid(), Resources(cpu=1), nodes)
    with pytest.raises(ResourceError, match=r"CPU: 2, OPU: 1 for pdfa; .* a node that offers all of it at once"):
        check_resources(grid(), Resources(cpu=2), nodes)
    with pytest.raises(ResourceError, match=r"CPU: 9 for .* lower resources.cpu"):
        check_resources(grid(("dfa",), 1), Resources(cpu=9), nodes)
    assert slots(Resources(cpu=2, gpu=0.25), {"CPU": 9, "GPU": 1}) == 4


def test_gpus_that_nothing_uses_are_named(tmp_path, in_process, said, monkeypatch):
    monkeypatch.setattr(sweep, "node_resources", lambda: [{"CPU": 2, "GPU": 1}, {"CPU": 2, "GPU": 3}])
    run(tmp_path, grid(("dfa",), 1))
    assert [line for line in said if line.startswith("4 GPUs of the nodes train nothing: `resources: {gpu: 1}` in")]


def test_freed_worker_leaves_alone_the_packs_for_which_workers_are_starting():
    trials = [SimpleNamespace(name=name, status=status, placement_group_factory=kind, config={"pack": ord(name)})
              for name, status, kind in [("a", "RUNNING", "cpu"), ("b", "PENDING", "opu"), ("c", "PENDING", "cpu"),
                                         ("d", "PENDING", "cpu"), ("e", "PENDING", "cpu")]]
    controller = SimpleNamespace(get_live_trials=lambda: trials[::-1])  # in any order, and not all that there were
    order = PackOrder(starting=2, driver=None)
    assert order.choose_trial_to_run(controller) is None
    order.on_trial_complete(controller, trials[0], {})
    assert order.choose_trial_to_run(controller).name == "e"
    trials[-1].status = "RUNNING"
    assert order.choose_trial_to_run(controller).name == "d"


def test_epochs_reports_a_trainer_that_stops_early():
    pack = Pack(grid(("dfa",), 2))
    key, other = (t.trial_key for t in pack.trials)
    report = Computing("scattering of digits", 10, 5)
    records = [EpochRecord(key, 1, {}), EpochRecord(other, 1, {})]
    first, *results = list(epochs(pack, lambda pack: iter([report, records])))
    assert first == {"item": report}
    assert [r.epoch for r in results[0]["item"]] == [1, 1]
    assert key in results[1]["error"] and "without an outcome" in results[1]["error"]


def test_a_worker_tells_of_features_that_it_computes_and_the_driver_shows_it(cached, tmp_path):
    (trial,) = grid(("bp",), 1, dataset="digits", features="scattering", scattering_scales=1, feature_groups=9,
                    hidden=(4,), epochs=1)
    results = list(epochs(Pack((trial,)), lambda pack: items(pack, tmp_path, 1e9)))
    *first, epoch = results
    assert 20 < len(first) <= REPORTS and {result["item"].features for result in first} == {"scattering of digits"}
    assert [record.epoch for record in epoch["item"]] == [1]
    shown, recorded = [], []
    sweep = prepared((trial,), tmp_path, lease=SimpleNamespace(beat=lambda nodes: None),
                     progress=SimpleNamespace(computing=shown.append))
    recorder = SimpleNamespace(record=lambda pack, records, seconds: recorded.extend(records))
    driver = tuning.Driver(sweep, [Pack((trial,))], recorder, Watch(dict, print, sweep.clock))
    for result in results:
        driver.on_trial_result(0, [], SimpleNamespace(config={"pack": 0}, trial_id="0"),
                               {**result, "done": False, "time_this_iter_s": 1.0})
    assert shown == [result["item"] for result in first] and recorded == epoch["item"]


def test_a_sweep_that_goes_on_lists_its_runs_once_before_the_first_step(tmp_path, in_process, monkeypatch):
    run(tmp_path, grid(("dfa",), 2))
    listings, search = [], Client.search
    monkeypatch.setattr(Client, "search", lambda *a, **k: listings.append(a[2]) or search(*a, **k))
    before_training = []

    def train(pack, folder):
        before_training.extend(listings)
        yield from sweep_stub.train(pack, folder=folder)

    result = run(tmp_path, (*grid(("dfa",), 2), *grid(("bp",), 1)), train=train)
    assert result.finished == 1 and before_training.count("") == 2, "the runs and the trash, once each"
    assert len(before_training) == 4, "and two for its parent"


def test_packs_that_wait_without_a_running_one_say_what_is_lacking_and_end_the_sweep(tmp_path, monkeypatch, said):
    """On a clock that stands still, and where a node is only if it is `there`."""
    clock, there, trials = SimpleNamespace(now=0.0), [], grid(("dfa",), 1)
    sweep = prepared(trials, tmp_path, clock=Clock(now=lambda: clock.now),
                     lease=SimpleNamespace(beat=lambda nodes: None))
    recorder = Recorder(sweep, Odometer(None, None))
    driver = tuning.Driver(sweep, [Pack(trials)], recorder, Watch(dict, print, sweep.clock))
    monkeypatch.setattr(tuning, "node_resources", lambda: there)

    def at(now, *states):
        """A step of Tune's loop with packs of these states."""
        clock.now = now
        live = [SimpleNamespace(trial_id=str(number), status=state) for number, state in enumerate(states)]
        driver.controller = SimpleNamespace(get_live_trials=lambda: live)
        driver.on_step_end(0, [])

    at(0, "PENDING")
    at(61, "RUNNING", "PENDING")
    at(120, "TERMINATED")
    at(120, "PENDING")
    at(139, "PENDING")
    assert not said, "the time to wait begins again"
    for now in (145, 150, 166):
        at(now, "PENDING")
    assert len(said) == 2 and said[0].startswith("resources: no node offers CPU: 1 for dfa; ")
    assert [line.rpartition("; ")[2] for line in said] == ["waiting for 35 s more", "waiting for 14 s more"]
    with pytest.raises(ResourceError, match="no node offers CPU: 1 for dfa"):
        at(181, "PENDING", "TERMINATED")
    there.append({"CPU": 1})
    at(182, "PENDING")
    there.clear()
    at(200, "PENDING")
    assert len(said) == 2


class Recording:
    """A recorder of one trial, on a clock that stands still but where it is set; `written` is what its store gets, in
    order: epochs, and how reasons of failures begin."""

    def __init__(self, folder, check=lambda record: None):
        trial, = grid(("dfa",), 1, epochs=9)
        self.pack, self.now, self.written = Pack((trial,)), 0.0, []
        store = SimpleNamespace(
            start=lambda *a, **k: None, check=check, fail=lambda key, reason, tags: self.written.append(reason[:25]),
            log=lambda records: self.written.append([r.epoch for r in records]))
        self.sweep = prepared([trial], folder, store=store, clock=Clock(SECONDS, now=lambda: self.now))
        self.taking = Recorder(self.sweep, Odometer(store, None))
        self.taking.start(self.pack)

    def hand_in(self, epoch, outcome=None, metrics=None):
        record = EpochRecord(self.pack.shared.trial_key, epoch, metrics or {}, {}, outcome)
        self.taking.record(self.pack, [record], 1.0)


def test_epochs_wait_for_each_other_but_not_for_long_and_not_at_the_end(tmp_path):
    it, expected = Recording(tmp_path), []
    for numbers, act in (((1,), it.taking.write_due), ((2, 3), it.taking.write_due), ((4,), it.taking.write_all)):
        for epoch in numbers:
            it.hand_in(epoch)
        if act == it.taking.write_due:
            act()
            assert it.written == expected
            it.now += SECONDS["write"]
        act()  # the last as at Ctrl-C
        expected.append(list(numbers))
        assert it.written == expected
    it.hand_in(5)
    it.hand_in(6, outcome=Outcome("finished", {}, ()))
    assert it.written == [*expected, [5, 6]] and it.sweep.result.finished == 1


def test_a_pack_that_fails_keeps_the_epochs_that_waited(tmp_path):
    def check(record):
        if record.metrics:
            raise ValueError("loss: must be finite")

    it = Recording(tmp_path, check=check)
    it.hand_in(1)
    it.hand_in(2)
    it.hand_in(3, metrics={"loss": 1.0})
    assert it.written == [[1, 2], "ValueError: loss: must be"]
    assert it.pack.shared.trial_key in it.sweep.result.failed


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_a_line_per_ended_trial_and_on_a_terminal_one_per_trial_that_trains(terminal, monkeypatch):
    monkeypatch.setattr(progress_module, "time", clock := SimpleNamespace(now=0.0, monotonic=lambda: clock.now))
    text = io.StringIO()
    good, bad = grid(("pdfa",), 2, mechanism="photonic", sigma=0.1)
    progress = SweepProgress(console=Console(file=text, highlight=False, width=100, force_terminal=terminal))
    progress.add((good, bad), already_done=3)
    with progress:
        progress.phase("training 2 trials in 1 pack, 1 at a time")
        progress.start(good)
        computing = Computing("scattering of digits", 1797)
        for clock.now in (29.0, 30.0, 59.0, 61.0):  # one line in half a minute
            computing.add(300)
            computing.seconds = clock.now
            progress.computing(computing)
        progress.start(bad)
        assert progress.eta_seconds() is None
        for clock.now in (61.0, 68.0, 91.0):
            progress.record(EpochRecord(good.trial_key, 1, {"validation/accuracy": 0.5}))
        clock.now = 61.0
        metrics = {"validation/accuracy": 0.839, "test/accuracy": 0.831}
        progress.record(EpochRecord(good.trial_key, 2, metrics, {}, Outcome("finished", {}, ())))
        progress.fail(bad.trial_key, "RuntimeError: no")
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue()).splitlines()
    ended = ["[4/5] pdfa sigma=0.1 seed=0: validation 83.9%, test 83.1%, 61 s",
             "[5/5] pdfa sigma=0.1 seed=1: failed: RuntimeError: no, 0 s"]
    if terminal:
        last = [line for line in lines if "best" in line][-1]
        assert len(last) <= 100 and "5/5 trials" in last and "83.9% pdfa" in last
    else:
        assert lines == ["training 2 trials in 1 pack, 1 at a time", "scattering of digits: 33%, 60 s left",
                         "scattering of digits: 67%, 30 s left", "1 of 4 epochs, 3/5 trials, 90 s left", *ended]
    assert progress.eta_seconds() == 0 and [duration(s) for s in (24.2, 150, 7500)] == ["24 s", "2 min", "2 h 05 min"]


def test_of_equals_the_live_line_names_all():
    text = io.StringIO()
    trials = grid(("bp", "dfa", "tdfa"), 1)
    progress = SweepProgress(console=Console(file=text, highlight=False, width=140, force_terminal=True))
    progress.add(trials)
    with progress:
        for trial, accuracy in zip(trials, (0.83912, 0.83893, 0.7), strict=True):
            progress.record(EpochRecord(trial.trial_key, 1, {"validation/accuracy": accuracy}))
    assert "83.9% bp and dfa " in text.getvalue()


@pytest.mark.parametrize(("lost", "error", "raised"), [
    (False, KeyboardInterrupt, KeyboardInterrupt), (False, ValueError, TrackingError), (False, None, TrackingError),
    *((True, error, SweepRunning) for error in (SweepRunning, KeyboardInterrupt, ValueError, None))])
def test_a_store_that_takes_no_end_hides_no_ctrl_c_and_a_lost_sweep_is_not_written_to(lost, error, raised):
    def write():
        assert not lost, "written"
        raise TrackingError("refused")

    lease = SimpleNamespace(require_own=Mock(side_effect=SweepRunning("another took it over") if lost else None))
    with pytest.raises(raised), sweep.afterwards(lease, write):
        if error:
            raise error


@pytest.mark.slow
def test_noise_is_calibrated_once_for_all_trials_workers_and_commands(tmp_path, two_cores, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("PHOTONIC_CACHE", str(cache))
    search = Mock(wraps=calibrate)
    monkeypatch.setattr("pipeline.accounting.event.calibrate", search)
    trials = [trial for target in (1.0, 2.0) for trial in grid(("dfa",), mechanism="per_example", sampler="shuffled",
                                                               target_epsilon=target)]
    with_noise.cache_clear()
    result = run(tmp_path, trials, {"pack_size": 4}, sweep_stub.without_calibration, seconds=0.01)
    assert result.finished == len(trials) == 8
    noise = {number for file in tmp_path.glob("noise-*") for number in json.loads(file.read_text())}
    assert noise == {with_noise(trial).noise_multiplier for trial in trials} and len(noise) == 2
    n = 2 + 1  # one more for what Poisson batches would save
    assert search.call_count == n == len(list((cache / "noise").iterdir()))

    with_noise.cache_clear()
    assert {with_noise(trial).noise_multiplier for trial in trials} == noise and search.call_count == n


def test_a_worker_with_another_file_of_a_plugin_trains_nothing(tmp_path, extensions):
    """A worker that Ray starts after an edit, or on a host that has another file, imports that one."""
    plugins, file = (["edited"], tmp_path), tmp_path / "edited.py"
    file.write_text("STEP = 1\n")
    load_plugins(*plugins)
    code, refused = tuning.program(plugins), []
    for text in "STEP = 1\n", "STEP = 2  # another program\n":
        file.write_text(text)
        del sys.modules["edited"], LOADED["edited"]  # as in a new process
        worker = object.__new__(tuning.PackTrainable)
        worker.setup({"pack": 0}, packs=[Pack((TrialConfig(),))], trainer=list, plugins=plugins, code=code,
                     announces=False)
        refused.append(worker._trainer is tuning.refuse_to_train)
    assert refused == [False, True]


def test_a_resource_that_no_node_has_is_refused_at_once(tmp_path, two_cores, monkeypatch):
    monkeypatch.setattr(sweep, "fit", lambda *_: pytest.fail("Ray alone would wait for ever"))
    with pytest.raises(ResourceError, match="GPU: 1 for .*offer CPU: 2, GPU: 0, OPU: 1; lower resources.gpu"):
        run(tmp_path, grid(), {"gpu": 1})
    with pytest.raises(TrackingError, match="no sweep named 'stub'"):
        tracked(tmp_path)  # what was refused leaves no trace
