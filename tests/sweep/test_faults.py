"""Sweeps that lose what they stand on (workers, driver, nodes, server, database, disk), or that another driver wants:
what is left at the end is what an undisturbed sweep leaves, to the last bit."""

import dataclasses
import functools
import itertools
import json
import os
import re
import signal
import time

import fault_trainer
import pytest
import ray
from commands import load, written
from fault_tools import (
    Damage,
    assert_as_if_undisturbed,
    damage,
    fill,
    impatient_sqlite,
    integrity,
    locked,
    once,
    photonic,
    saved_epoch,
    small_disk,
    undisturbed,
    wait_for,
)
from ray import cloudpickle
from ray.cluster_utils import Cluster

from pipeline.cli import main
from pipeline.experiment.experiment import load_experiment
from pipeline.experiment.plan import Grid
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.checks import ResourceError
from pipeline.sweep.clock import SECONDS, Clock
from pipeline.sweep.lock import Lease, SweepRunning, sweeping
from pipeline.sweep.run import run_sweep
from pipeline.tracking.store import Store, TrackingError
from pipeline.trials.packs import Pack

cloudpickle.register_pickle_by_value(fault_trainer)  # workers cannot import from the folder of the tests
OPUS = 2
FILE = """
name: faults
base: {dataset: digits, hidden: [16, 16], batch_size: 128, epochs: 8, learning_rate: 0.1,
       mechanism: photonic, sigma: 0.1, algorithm: pdfa}
grid: {seed: [0, 1]}
resources: {pack_size: 2}
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return load(tmp_path_factory.mktemp("experiment"), FILE)


@pytest.fixture(scope="module")
def two_packs(experiment):
    """Of the photonic and of the per-example mechanism, and shorter."""
    both = tuple(dataclasses.replace(trial, epochs=5, **more)
                 for more in ({}, {"mechanism": "per_example", "noise_multiplier": 1.0}) for trial in experiment.trials)
    return dataclasses.replace(experiment, plan=Grid(both))


def sweep(experiment, root, *, uri=None, idle_seconds=60.0, **behaviour):
    """In this process, with the real trainer, which saves a checkpoint after every other epoch."""
    trainer = functools.partial(fault_trainer.train, root=root, name=experiment.name, **{"pause": 0.1, **behaviour})
    return run_sweep(experiment, root=root, tracking_uri=uri, trainer=trainer, idle_seconds=idle_seconds)


def ended(result):
    """(trials that are done, failures, trials that are left)."""
    return result.skipped + result.finished, result.failed, result.remaining


def has_checkpoint(root, name="faults"):
    return lambda: saved_epoch(root, name) >= 2


def count(said, start):
    return sum(line.startswith(start) for line in said)


@pytest.mark.slow
def test_damage_is_seen(tmp_path, experiment):
    """What the tests below rely on: a lost trial, a lost epoch, an epoch that stands twice, a changed value."""
    store, (first, second) = Store(root=tmp_path), experiment.trials
    store.open_sweep("faults")
    assert damage(tmp_path, experiment) == Damage(2, lost=2)
    for trial in (first, second):
        store.start(trial)
    store.log(undisturbed(first))
    *early, last = undisturbed(second)
    name = "validation/accuracy"
    wrong = dataclasses.replace(last, metrics={**last.metrics, name: last.metrics[name] + 0.25})
    store.log(early[1:])
    store.log([dataclasses.replace(early[1], metrics={name: 0.5}), wrong])
    found = damage(tmp_path, experiment)
    assert (found.lost, found.duplicated) == (len(early[0].metrics), 1)
    assert found.difference == pytest.approx(0.25) and f"history of {name}" in found.unequal
    assert not any(text.startswith("weights") for text in found.unequal)


def test_a_sweep_that_another_process_runs_is_refused(tmp_path):
    with (sweeping(tmp_path, "faults", "driver"),
          pytest.raises(SweepRunning, match="sweep 'faults': another process"),
          sweeping(tmp_path, "faults", "driver", patience=0.1)):
        pytest.fail("two hold it")
    with sweeping(tmp_path, "faults", "driver", patience=0.1):
        pass


@pytest.mark.nightly
def test_opu_node_lost_and_another_added(tmp_path, experiment, said):
    """First none comes for longer than the watchdog waits; then, in the second sweep, one is lost and another comes.
    It stands before the tests that have a Ray in common."""
    # At exit it would want signals, which only the main thread may have; it is shut down below.
    cluster = Cluster(initialize_head=True, shutdown_at_exit=False,
                      head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = tuple(dataclasses.replace(trial, algorithm="dfa", projector="") for trial in experiment.trials)
    checkpoint = Checkpoints(tmp_path / "private" / "checkpoints" / "faults", 0).path(Pack(experiment.trials))
    experiment = dataclasses.replace(experiment, plan=Grid(experiment.trials + others))
    nodes = []

    def add():
        nodes.append(cluster.add_node(num_cpus=1, resources={"OPU": 1}))

    def lose():
        cluster.remove_node(nodes.pop(), allow_graceful=False)

    def replace():
        lose()
        time.sleep(1)
        add()

    try:
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        add()
        with pytest.raises(ResourceError) as error, once(checkpoint.exists, lose):
            sweep(experiment, tmp_path, idle_seconds=2, pause=0.3)
        assert "no node offers OPU: 1 for pdfa" in str(error.value) and "\n" not in str(error.value)
        add()
        with once(lambda: count(said, "resumed from epoch "), replace):
            result = sweep(experiment, tmp_path, pause=0.3)
        assert (result.skipped, result.finished, result.failed) == (2, 2, {})
        assert sum(line.startswith("resumed from epoch ") and "pdfa" in line for line in said) == 2
        assert count(said, "a worker died; starting again: pdfa")
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert_as_if_undisturbed(tmp_path, experiment, "OPU node lost, not replaced; sweep started again, lost, replaced",
                             "SIGKILL of a raylet and its workers; a raylet added")


@pytest.mark.slow
def test_killed_workers_go_on_from_their_checkpoints(tmp_path, two_cores, two_packs, said):
    """Both are at the checkpoint of epoch 2; the store has as many epochs of one pack, and one more of the other."""
    result = sweep(two_packs, tmp_path, pause=0, kill_after={"photonic": 2, "per_example": 3})
    assert len(list(tmp_path.glob("killed-*"))) == 2, "one worker of each pack was killed"
    assert ended(result) == (4, {}, 0) and count(said, "resumed from epoch 2: pdfa ") == 2
    assert_as_if_undisturbed(tmp_path, two_packs, "worker killed", "SIGKILL in the middle of an epoch, once per pack")


@pytest.mark.slow
def test_checkpoint_ahead_of_the_log_and_a_trial_that_is_done_already(tmp_path, two_cores, two_packs, said,
                                                                      monkeypatch):
    """The store fails after a checkpoint was written, and between the last records of two trials of a pack."""
    log, finish, calls = Store.log, Store._finish, itertools.count()

    def fails_in_epoch_two(store, records):
        if any(record.epoch == 2 for record in records):
            raise TrackingError("the server is gone")
        log(store, records)

    def fails_at_the_second(store, key, outcome):
        if key in resumed and next(calls):  # a pack that starts again may overtake the one that goes on
            raise TrackingError("the server is gone again")
        finish(store, key, outcome)

    for name, function, says in (("log", fails_in_epoch_two, "gone$"), ("_finish", fails_at_the_second, "again$")):
        checkpoints = Checkpoints(tmp_path / "private/checkpoints/faults", 0)
        resumed = {key for found in checkpoints.found() for key in found.trial_keys}
        with monkeypatch.context() as patch:
            patch.setattr(Store, name, function)
            patch.setattr("pipeline.sweep.run.SECONDS", {**SECONDS, "write": 0})
            with pytest.raises(TrackingError, match=says):
                sweep(two_packs, tmp_path, pause=0)
    assert count(said, "resumed from epoch 2") >= 1
    said.clear()
    result = sweep(two_packs, tmp_path, pause=0)
    assert (result.skipped, result.finished) in ((1, 3), (3, 1)), "what was done is not done again"
    assert count(said, "resumed from epoch 4") >= 1
    assert_as_if_undisturbed(tmp_path, two_packs, "store fails twice, sweep started again",
                             "exceptions after a checkpoint, and between the ends of two trials")


@pytest.mark.slow
def test_database_locked_by_another_process(tmp_path, two_cores, experiment, said):
    def lock_it():
        with locked(tmp_path / "mlflow.db"):
            (tmp_path / "locked").touch()
            time.sleep(3)

    with impatient_sqlite(), once(has_checkpoint(tmp_path), lock_it):
        result = sweep(experiment, tmp_path, hold=tmp_path / "locked")
    assert ended(result) == (2, {}, 0)
    assert [line.partition(" after ")[0] for line in said if line.startswith("the tracking store")] == [
        "the tracking store cannot be reached; trying again for up to 60 s", "the tracking store is back"]
    assert_as_if_undisturbed(tmp_path, experiment, "database locked", "BEGIN EXCLUSIVE in another process, for 3 s")


@pytest.mark.slow
def test_disk_of_checkpoints_full(tmp_path, two_cores, experiment, said):
    with small_disk(tmp_path / "private" / "checkpoints", "4m") as disk:
        with once(has_checkpoint(tmp_path), lambda: fill(disk, tmp_path / "full")):
            result = sweep(experiment, tmp_path, kill_after={"photonic": 6}, hold=tmp_path / "full")
        assert ended(result) == (2, {}, 0)
        assert count(said, "no checkpoint could be written (OSError: [Errno 28] No space left on device") == 2, (
            "once from every worker, of epochs 4 and 6")
        assert count(said, "resumed from epoch 2: "), "the one before is kept"
        assert_as_if_undisturbed(tmp_path, experiment, "disk of the checkpoints full, then a worker killed",
                                 "a file that fills a mounted disk of 4 MB; SIGKILL")


@pytest.mark.slow
def test_disk_of_store_and_checkpoints_full(tmp_path, two_cores, experiment, said):
    with small_disk(tmp_path / "mlruns", "16m") as disk:
        with pytest.raises(TrackingError) as error, once(has_checkpoint(disk), lambda: fill(disk, tmp_path / "full")):
            sweep(experiment, disk, hold=tmp_path / "full")
        assert "\n" not in str(error.value)
        assert not any("trying again" in line for line in said), "waiting makes no room"
        (disk / "ballast").unlink()
        assert integrity(disk / "mlflow.db") == "ok"
        assert ended(sweep(experiment, disk)) == (2, {}, 0)
        assert_as_if_undisturbed(disk, experiment, "disk of store and checkpoints full, sweep started again",
                                 "a file that fills a mounted disk of 16 MB")


@pytest.mark.slow
def test_server_stopped_then_killed_and_started_again(tmp_path, two_cores, server, experiment, said, monkeypatch):
    def interrupt():
        server.signal(signal.SIGSTOP)
        stopped.touch()
        wait_for(lambda: count(said, "the tracking store cannot be reached"))
        server.signal(signal.SIGCONT)
        wait_for(back)
        server.kill()
        server.start()

    def back():
        return count(said, "the tracking store is back after ")

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr("pipeline.sweep.run.SECONDS", {**SECONDS, "write": 0})  # calls at every epoch
    patient = dataclasses.replace(experiment.resources, store_patience_seconds=300)
    trials, stopped = dataclasses.replace(experiment, name="server", resources=patient), tmp_path / "stopped"
    with once(has_checkpoint(tmp_path, "server"), interrupt):
        result = sweep(trials, tmp_path, uri=server.uri, pause=0.3, hold=stopped)
    assert ended(result) == (2, {}, 0)
    assert said.count("the tracking store cannot be reached; trying again for up to 300 s") == back() >= 2
    assert_as_if_undisturbed(tmp_path, trials, "tracking server hung for some seconds, then killed and started again",
                             "SIGSTOP, SIGCONT; SIGKILL", server.uri)


@pytest.mark.slow
def test_drivers_on_other_hosts_and_on_this_one(tmp_path, two_cores, server, experiment, monkeypatch):
    """A host that shares only the server left the sweep open. Now it is ours, and others are refused, that one too."""
    soon = {**SECONDS, "heartbeat": 0.1}
    monkeypatch.setattr("pipeline.sweep.run.SECONDS", soon)
    over, trials, answers = tmp_path / "over", dataclasses.replace(experiment, name="hosts"), {}
    copy = written(tmp_path / "hosts.yaml", FILE.replace("faults", "hosts"))
    gone = Store(server.uri, tmp_path / "gone")
    asleep = Lease(gone, "hosts", Clock(soon))
    gone.open_sweep("hosts", params={"trials": 2})
    asleep.confirm()
    for trial in trials.trials:
        gone.start(trial)
        gone.log(undisturbed(trial)[:3])

    def others():
        try:
            processes = {root: photonic("sweep", copy, "--mlruns", tmp_path / root, cwd=tmp_path,
                                        MLFLOW_TRACKING_URI=server.uri) for root in ("here", "elsewhere")}
            with pytest.raises(SweepRunning, match=f"{tmp_path / 'here'} took it over"):
                asleep.beat()
            answers.update({root: (*p.communicate(timeout=300), p.returncode) for root, p in processes.items()})
        finally:
            over.touch()

    with once(has_checkpoint(tmp_path / "here", "hosts"), others):
        result = sweep(trials, tmp_path / "here", uri=server.uri, hold=over)
    assert ended(result) == (2, {}, 0)
    for root, says in (("here", "another process is running it"), ("elsewhere", f"{tmp_path / 'here'} is running it")):
        out, err, code = answers[root]
        assert code == 2 and out == "" and len(err.splitlines()) == 1 and says in err, answers
    assert_as_if_undisturbed(
        tmp_path / "here", trials, "driver on another host gone for good; two more drivers, here and on a third host",
        "a sweep left open in the shared store; the same command in two processes, one with its own folder", server.uri)


LONG = """
name: long
base: {dataset: digits, hidden: [64, 32], batch_size: 16, epochs: 40, algorithm: dfa, mechanism: photonic,
       sigma: 0.1}
grid: {seed: [0, 1]}
resources: {pack_size: 2, checkpoint_seconds: 0.2}
"""


@pytest.mark.slow
def test_the_same_command_goes_on_after_the_driver_was_killed_and_after_ctrl_c(tmp_path, capsys):
    file, root, reached = written(tmp_path / "long.yaml", LONG), tmp_path / "mlruns", 0

    def command():
        return photonic("sweep", file, "--workers", "1", cwd=tmp_path)

    for how, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        process = command()
        wait_for(lambda: saved_epoch(root, "long") > reached + 1 or process.poll() is not None)  # noqa: B023
        os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
        _, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        assert main(["status", str(file), "--json", "--mlruns", str(root)]) == 0
        (state,) = json.loads(capsys.readouterr().out)
        assert not state["running"] and state["counts"]["interrupted"] == 2 and state["counts"]["done"] == 0
        stored = 1 if how == signal.SIGINT else 0  # epochs at least: a killed driver may not have written any yet
        assert all(trial["checkpoint"] >= 2 and stored <= trial["epoch"] < 40 for trial in state["trials"])
        reached = saved_epoch(root, "long")
    *lines, last = filter(None, err.splitlines())  # an empty one after what the terminal echoes
    assert last.endswith("interrupted with 2 left: run the same command again to continue")
    assert all(re.match("reading|looking|starting Ray|training|resumed|stopping", line) for line in lines), (
        f"something else was written: {err}")
    _, err = (again := command()).communicate(timeout=120)
    assert again.returncode == 0 and "2 trials: 2 finished" in err, err
    (resumed,) = re.findall("^resumed from epoch .*", err, re.MULTILINE)
    assert resumed.endswith(": dfa sigma=0.1 seed=0, dfa sigma=0.1 seed=1")
    assert_as_if_undisturbed(root, load_experiment(file), "driver killed, then Ctrl-C",
                             "SIGKILL and SIGINT, each followed by the same command")
