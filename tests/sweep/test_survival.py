"""Sweeps that lose what they stand on (nodes, server, database, disk, another driver) and end as if they had not."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import signal
import sqlite3
import time

import fault_trainer
import pytest
import ray
from fault_tools import (
    Damage,
    Server,
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

from pipeline.experiment.experiment import load_experiment
from pipeline.experiment.plan import Grid
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.checks import ResourceError
from pipeline.sweep.clock import SECONDS, Clock
from pipeline.sweep.lock import Lease, SweepRunning
from pipeline.sweep.run import run_sweep
from pipeline.tracking.store import Store, TrackingError
from pipeline.trials.packs import Pack

cloudpickle.register_pickle_by_value(fault_trainer)  # workers cannot import from the folder of the tests
pytestmark = pytest.mark.slow
FILE = """
name: faults
base: {dataset: digits, hidden: [16, 16], batch_size: 128, epochs: 8, learning_rate: 0.1,
       mechanism: photonic, sigma: 0.1, algorithm: pdfa}
grid: {seed: [0, 1]}
resources: {pack_size: 2}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("experiment") / "faults.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def experiment(file):
    return load_experiment(file)


@pytest.fixture(scope="module")
def new_database(tmp_path_factory):
    """A tracking database without runs; to copy it takes less than to create one."""
    root = tmp_path_factory.mktemp("new")
    Store(root=root)
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return root / "mlflow.db"


@pytest.fixture(scope="module")
def server(tmp_path_factory, new_database):
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(new_database, folder / "server.db")
    server = Server(folder)
    yield server
    server.kill()


def sweep(experiment, root, *, uri=None, idle_seconds=60.0, pause=0.1, **behaviour):
    """In this process, with the real trainer, which saves a checkpoint after every other epoch."""
    trainer = functools.partial(fault_trainer.train, root=root, name=experiment.name, pause=pause, **behaviour)
    return run_sweep(experiment, root=root, tracking_uri=uri, trainer=trainer, idle_seconds=idle_seconds)


def changed(experiment, name, **resources):
    return dataclasses.replace(experiment, name=name, resources=dataclasses.replace(experiment.resources, **resources))


def has_checkpoint(root, name="faults"):
    return lambda: saved_epoch(root, name) >= 2


def test_damage_is_seen(tmp_path, new_database, experiment):
    """What the tests below rely on: a lost trial, a lost epoch, an epoch that stands twice, a changed value."""
    shutil.copy(new_database, tmp_path)
    store, (first, second) = Store(root=tmp_path), experiment.trials
    store.open_sweep("faults")
    assert damage(tmp_path, experiment) == Damage(2, lost=2)
    for trial in (first, second):
        store.start(trial)
    store.log(undisturbed(first))
    assert damage(tmp_path, experiment) == Damage(2, lost=1)
    *early, last = undisturbed(second)
    name = "validation/accuracy"
    wrong = dataclasses.replace(last, metrics={**last.metrics, name: last.metrics[name] + 0.25})
    store.log(early[1:])
    store.log([dataclasses.replace(early[1], metrics={name: 0.5}), wrong])
    found = damage(tmp_path, experiment)
    assert (found.lost, found.duplicated) == (len(early[0].metrics), 1)
    assert found.difference == pytest.approx(0.25) and f"history of {name}" in found.unequal
    assert not any(text.startswith("weights") for text in found.unequal)


def test_opu_node_lost_and_another_added(tmp_path, new_database, experiment, said):
    """First none comes for longer than the watchdog waits; then, in the second sweep, one is lost and another comes."""
    shutil.copy(new_database, tmp_path)
    # At exit it would want signals, which only the main thread may have; it is shut down below.
    cluster = Cluster(initialize_head=True, shutdown_at_exit=False,
                      head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = tuple(dataclasses.replace(trial, algorithm="dfa", projector="") for trial in experiment.trials)
    experiment = dataclasses.replace(experiment, plan=Grid(experiment.trials + others))
    checkpoint = Checkpoints(tmp_path / "private" / "checkpoints" / "faults", 0).path(Pack(experiment.trials[:2]))
    try:
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        nodes = [cluster.add_node(num_cpus=1, resources={"OPU": 1})]

        def lose():
            cluster.remove_node(nodes.pop(), allow_graceful=False)

        def replace():
            lose()
            time.sleep(1)
            nodes.append(cluster.add_node(num_cpus=1, resources={"OPU": 1}))

        with pytest.raises(ResourceError) as error, once(checkpoint.exists, lose):
            sweep(experiment, tmp_path, idle_seconds=2, pause=0.3)
        assert "no node offers OPU: 1 for pdfa" in str(error.value) and "\n" not in str(error.value)
        nodes.append(cluster.add_node(num_cpus=1, resources={"OPU": 1}))
        with once(lambda: any(line.startswith("resumed from epoch ") for line in said), replace):
            result = sweep(experiment, tmp_path, pause=0.3)
        assert (result.skipped, result.finished, result.failed) == (2, 2, {})
        assert sum(line.startswith("resumed from epoch ") and "pdfa" in line for line in said) == 2
        assert any(line.startswith("a worker died; starting again: pdfa") for line in said)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert_as_if_undisturbed(tmp_path, experiment, "OPU node lost, not replaced; sweep started again, lost, replaced",
                             "SIGKILL of a raylet and its workers; a raylet added")


def test_server_stopped_then_killed_and_started_again(tmp_path, two_cores, server, experiment, said, monkeypatch):
    def interrupt():
        server.signal(signal.SIGSTOP)
        stopped.touch()
        time.sleep(3)
        server.signal(signal.SIGCONT)
        wait_for(lambda: back() == 1)
        server.kill()
        server.start()

    def back():
        return sum(line.startswith("the tracking store is back after ") for line in said)

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    trials, stopped = changed(experiment, "server", store_patience_seconds=300), tmp_path / "stopped"
    with once(has_checkpoint(tmp_path, "server"), interrupt):
        result = sweep(trials, tmp_path, uri=server.uri, pause=0.3, hold=stopped)
    assert (result.finished, result.failed, result.remaining) == (2, {}, 0)
    assert said.count("the tracking store cannot be reached; trying again for up to 300 s") == back() >= 2
    assert_as_if_undisturbed(tmp_path, trials, "tracking server hung for some seconds, then killed and started again",
                             "SIGSTOP, SIGCONT after 3 s; SIGKILL", server.uri)


def test_database_locked_by_another_process(tmp_path, new_database, two_cores, experiment, said):
    shutil.copy(new_database, tmp_path)

    def lock_it():
        with locked(tmp_path / "mlflow.db"):
            (tmp_path / "locked").touch()
            time.sleep(3)

    with impatient_sqlite(), once(has_checkpoint(tmp_path), lock_it):
        result = sweep(experiment, tmp_path, hold=tmp_path / "locked")
    assert (result.finished, result.failed, result.remaining) == (2, {}, 0)
    assert [line.partition(" after ")[0] for line in said if line.startswith("the tracking store")] == [
        "the tracking store cannot be reached; trying again for up to 60 s", "the tracking store is back"]
    assert_as_if_undisturbed(tmp_path, experiment, "database locked", "BEGIN EXCLUSIVE in another process, for 3 s")


def test_disk_of_checkpoints_full(tmp_path, new_database, two_cores, experiment, said):
    shutil.copy(new_database, tmp_path)
    with small_disk(tmp_path / "private" / "checkpoints", "4m") as disk:
        with once(has_checkpoint(tmp_path), lambda: fill(disk, tmp_path / "full")):
            result = sweep(experiment, tmp_path, kill_after={"photonic": 6}, hold=tmp_path / "full")
        assert (result.finished, result.failed) == (2, {})
        assert sum(line.startswith("no checkpoint could be written (OSError: [Errno 28] No space left on device")
                   for line in said) == 2, "once from every worker, of epochs 4 and 6"
        assert any(line.startswith("resumed from epoch 2: ") for line in said), "the one before is kept"
        assert_as_if_undisturbed(tmp_path, experiment, "disk of the checkpoints full, then a worker killed",
                                 "a file that fills a mounted disk of 4 MB; SIGKILL")


def test_disk_of_store_and_checkpoints_full(tmp_path, new_database, two_cores, experiment, said):
    with small_disk(tmp_path / "mlruns", "16m") as disk:
        shutil.copy(new_database, disk)
        with pytest.raises(TrackingError) as error, once(has_checkpoint(disk),
                                                           lambda: fill(disk, tmp_path / "full")):
            sweep(experiment, disk, hold=tmp_path / "full")
        assert "\n" not in str(error.value)
        assert not any("trying again" in line for line in said), "waiting makes no room"
        (disk / "ballast").unlink()
        assert integrity(disk / "mlflow.db") == "ok"
        result = sweep(experiment, disk)
        assert (result.skipped + result.finished, result.failed, result.remaining) == (2, {}, 0)
        assert_as_if_undisturbed(disk, experiment, "disk of store and checkpoints full, sweep started again",
                                 "a file that fills a mounted disk of 16 MB")


def test_drivers_on_other_hosts_and_on_this_one(tmp_path, two_cores, server, file, experiment, said, monkeypatch):
    """A host that shares only the server left the sweep open. Now it is ours, and others are refused, that one too."""
    soon = {**SECONDS, "heartbeat": 0.1}
    monkeypatch.setattr("pipeline.sweep.run.SECONDS", soon)
    ended, trials, answers = tmp_path / "ended", changed(experiment, "hosts"), {}
    copy = tmp_path / "hosts.yaml"
    copy.write_text(file.read_text().replace("faults", "hosts"))
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
            ended.touch()

    with once(has_checkpoint(tmp_path / "here", "hosts"), others):
        result = sweep(trials, tmp_path / "here", uri=server.uri, hold=ended)
    assert (result.finished, result.failed) == (2, {})
    for root, says in (("here", "another process is running it"), ("elsewhere", f"{tmp_path / 'here'} is running it")):
        out, err, code = answers[root]
        assert code == 2 and out == "" and len(err.splitlines()) == 1 and says in err, answers
    assert_as_if_undisturbed(
        tmp_path / "here", trials, "driver on another host gone for good; two more drivers, here and on a third host",
        "a sweep left open in the shared store; the same command in two processes, one with its own folder", server.uri)


def test_ctrl_c_while_the_server_is_gone_ends_at_once_and_says_how_to_go_on(tmp_path, server, experiment):
    file = tmp_path / "interrupted.yaml"
    file.write_text("""
name: interrupted
base: {dataset: digits, hidden: [64, 32], batch_size: 16, epochs: 200, mechanism: photonic, sigma: 0.1}
grid: {seed: [0, 1]}
resources: {pack_size: 2, checkpoint_seconds: 0.2, store_patience_seconds: 600}
""")
    process = photonic("sweep", file, "--workers", "1", cwd=tmp_path, MLFLOW_TRACKING_URI=server.uri)
    try:
        wait_for(has_checkpoint(tmp_path / "mlruns", "interrupted"))
        server.kill()
        time.sleep(5)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        server.start()
    assert process.returncode == 130, err
    assert "the tracking store cannot be reached; trying again for up to 600 s" in err
    assert err.splitlines()[-1].endswith("interrupted with 2 left: run the same command again to continue")
