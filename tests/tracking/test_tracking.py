"""The tracking store, on a real SQLite MLflow store, one for the module."""

import contextlib
import csv
import dataclasses
import errno
import getpass
import json
import math
import os
import pickle
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import numpy as np
import pytest
import requests
from fault_tools import environment, impatient_sqlite, locked
from mlflow.entities import RunTag
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, PERMISSION_DENIED, TEMPORARILY_UNAVAILABLE
from mlflow.tracking import MlflowClient
from safetensors.numpy import load_file

from pipeline.accounting.certified import calibrated, with_noise
from pipeline.cli import main
from pipeline.experiment.plan import Grid
from pipeline.sweep import lock
from pipeline.sweep.clock import Clock
from pipeline.sweep.lock import Lease, SweepRunning
from pipeline.sweep.rounds import Rounds
from pipeline.tracking import backend, patience
from pipeline.tracking import reader as reading
from pipeline.tracking import store as tracking
from pipeline.tracking.artifacts import TrackedRun, config_of, total_costs
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store, TrackingError
from pipeline.tracking.ui import runs_address
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import ClassAccuracy, EpochRecord, Outcome

PDFA = TrialConfig(dataset="digits", algorithm="pdfa", mechanism="photonic", sigma=0.1, batch_size=64)
BP = TrialConfig(dataset="digits", algorithm="bp", batch_size=64)
PER_CLASS = (ClassAccuracy(0, "test", 4, 3), ClassAccuracy(1, "test", 0, 0))
# Fortran order: safetensors writes the memory as it lies, so a store that forgets to copy writes another matrix.
WEIGHTS = {"layer_1.weight": np.arange(6, dtype=np.float32).reshape(3, 2).T, "layer_1.bias": np.ones(2, np.float32)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("base") / "tracking store"  # a space in its name


@pytest.fixture
def store(root, request):
    """A store that has opened a sweep named after the test."""
    store = Store(root=root)
    store.open_sweep(request.node.name, "About **this** sweep.", params={"n_trials": 2}, tags={"git_commit": "abc"})
    return store


@pytest.fixture
def client(root):
    return MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")


def epoch(config, number, outcome=None, **metrics):
    return EpochRecord(config.trial_key, number, metrics or {"validation/accuracy": 0.1 * number}, outcome=outcome)


def seeds(count):
    return [TrialConfig(dataset="digits", algorithm="bp", batch_size=64, seed=seed) for seed in range(count)]


@pytest.mark.slow
def test_two_processes_create_one_database(tmp_path):
    """Which part once they have imported what takes long."""
    code = ("import os, sys; from pathlib import Path; from pipeline.tracking.backend import _ENVIRONMENT; "
            "os.environ.update(_ENVIRONMENT); import mlflow.tracking; from pipeline.tracking.store import Store; "
            "child = os.fork(); "
            "s = Store(root=Path(sys.argv[1])); s.open_sweep('both'); print(s._parent_id, flush=True); "
            "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a store")], capture_output=True, text=True,
                          timeout=120, env=environment())
    assert (done.returncode, done.stderr) == (0, "")  # quiet: no migration log, no telemetry notice
    one, other = done.stdout.split()
    assert one == other and len(one) == 32


def test_parent_run_is_described_and_reused(store, root, client, request):
    name = request.node.name
    again = Store(root=root)
    again.open_sweep(name, "About **this** sweep.", params={"n_trials": 3, "added": True})
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    assert len(runs) == 1
    tags, params = runs[0].data.tags, runs[0].data.params
    assert tags["sweep"] == name and tags["git_commit"] == "abc"
    assert "\n\nAbout **this** sweep." in tags["mlflow.note.content"]
    assert "no guarantee" in tags["mlflow.note.content"]
    assert params == {"n_trials": "2", "added": "true"} and tags["latest.n_trials"] == "3"


def test_trial_is_nested_and_has_its_configuration(store, client):
    trial = dataclasses.replace(PDFA, sigma=3.0, learning_rate=1e-5)
    run = client.get_run(store.start(trial, {"git_commit": "abc"}))
    assert run.info.run_name == "pdfa sigma3 s0" and run.info.status == "RUNNING"
    assert client.get_run(run.data.tags["mlflow.parentRunId"]).data.tags["sweep"]
    assert run.data.tags["trial_key"] == trial.trial_key and run.data.tags["status"] == "running"
    assert run.data.tags["git_commit"] == "abc" and run.data.tags["setting"] == "pdfa sigma3"
    params = run.data.params  # numbers as people write them
    assert params["sigma"] == "3" and params["tau_f"] == "1" and params["learning_rate"] == "1e-05"
    assert params["hidden"] == "[512, 512]" and params["output_noise"] == "true" and params["epochs"] == "15"
    assert set(params) == set(trial.canonical()) and config_of(store.runs()[0]) == trial
    assert store.done() == {}


def test_the_experiment_says_what_it_is_and_what_came_of_it(store, client, request):
    store.open_sweep(request.node.name, "About **this** sweep.", contents={"datasets": "digits"})
    store.describe("About **this** sweep.", "BP is best.")
    link = f"[All trials, the best first]({runs_address(store, page='.')})."
    assert f"(./#/experiments/{store.experiment_id}/runs?workflowType=machine_learning&" in link
    tags = client.get_experiment_by_name(request.node.name).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development" and tags["datasets"] == "digits"
    assert tags["mlflow.note.content"] == f"{link} BP is best.\n\nAbout **this** sweep."
    note = client.get_run(store._parent_id).data.tags["mlflow.note.content"]
    assert note.startswith(f"{link} BP is best.\n\nAbout **this** sweep.\n\nEach nested run is one trial")
    store.describe("About **this** sweep.", "x" * 9000)  # more than MLflow takes
    assert set(client.get_run(store._parent_id).data.tags["mlflow.note.content"].removeprefix(f"{link} ")) == {"x"}


def test_mlflow_shows_who_began_a_run_with_which_program_and_data_set_but_no_path_and_no_digest(client, root):
    store = Store(root=root)
    store.open_sweep("origin", contents={"datasets": "digits, mnist"})
    run_id = store.start(BP)
    store.fail(BP.trial_key, "stopped")
    assert store.start(BP) == run_id, "resumed, and logged once"
    parent, trial = map(client.get_run, (store._parent_id, run_id))
    for run, datasets in ((parent, ["digits", "mnist"]), (trial, ["digits"])):
        assert run.info.user_id == run.data.tags["mlflow.user"] == getpass.getuser()
        assert run.data.tags["mlflow.source.type"] == "LOCAL" and "/" not in run.data.tags["mlflow.source.name"]
        logged = sorted((each.dataset.name, each.dataset.digest, each.dataset.source)
                        for each in run.inputs.dataset_inputs)
        assert logged == [(name, "not recorded", json.dumps({"name": name})) for name in datasets]


def test_what_a_target_came_to_is_a_param_and_no_setting(store, root, client, request):
    trial = TrialConfig(dataset="digits", mechanism="per_example", sampler="poisson", batch_size=64, target_epsilon=3)
    run_id = store.start(trial)
    for number, exact in ((1, "1.07421875"), (2, "1.07421876")):  # of another version, in the second epoch
        store.log([EpochRecord(trial.trial_key, number, {"train/loss": 0.5}, {"calibrated.noise_multiplier": exact})])
    again = Store(root=root)
    again.open_sweep(request.node.name)
    again.start(trial)
    again.log([EpochRecord(trial.trial_key, 3, {"train/loss": 0.5}, {"calibrated.noise_multiplier": "1.08"})])
    data = client.get_run(run_id).data
    assert data.params["calibrated.noise_multiplier"] == "1.07422" and data.params["target_epsilon"] == "3"
    assert data.tags["calibrated.noise_multiplier"] == "1.08"


@pytest.mark.parametrize(("setting", "noise"), [
    (dict(mechanism="per_example", sampler="poisson", target_epsilon=3), {"noise_multiplier": 1.25}),
    (dict(mechanism="per_example", sampler="poisson", target_epsilon=0.001), {"noise_multiplier": 680.0}),
    (dict(algorithm="dfa", mechanism="photonic", output_noise=True, target_label_epsilon=3), {"sigma": 7.5})])
def test_a_trial_that_has_begun_goes_on_with_the_noise_that_its_run_records(store, request, setting, noise):
    """Whatever is calibrated today, in the driver and, pickled, in its workers."""
    trial = TrialConfig(dataset="digits", batch_size=64, epochs=2, **setting)
    ((name, value),) = noise.items()
    store.start(trial)
    store.log([EpochRecord(trial.trial_key, 1, {"time/epoch_seconds": 1.0}, {f"calibrated.{name}": repr(value)})])
    rounds = Rounds(Grid((trial,)), store, None)
    (begun,) = rounds.next(store.runs())
    assert rounds.trials == (begun,) and begun.trial_key == trial.trial_key and store.released()[0].trial == begun
    for same in (begun, pickle.loads(pickle.dumps(begun))):
        assert getattr(with_noise(same), name) == value != getattr(with_noise(trial), name)
        assert calibrated(same) == {f"calibrated.{name}": repr(value)}


def test_an_epoch_stands_once_however_often_it_is_handed_in(store, root, client, request):
    def epoch(number, seconds, **metrics):
        return EpochRecord(PDFA.trial_key, number, {"time/epoch_seconds": seconds, **metrics})

    run_id = store.start(PDFA)
    store.log([epoch(1, 0.1, loss=1 / 3), epoch(2, 0.2, loss=0.5)])
    store.log([epoch(1, 0.9, loss=1 / 3)])  # a worker died and trained it again
    later = Store(root=root)  # another process, after this one was killed
    later.open_sweep(request.node.name)
    assert later.start(PDFA) == run_id == store.start(PDFA) and len(later.runs()) == 1
    later.log([epoch(1, 0.8, loss=1 / 3), epoch(2, 0.8, loss=0.5), epoch(3, 0.3, loss=0.25)])
    points = {name: [(p.step, p.value) for p in client.get_metric_history(run_id, name)]
              for name in ("loss", "time/epoch_seconds")}
    assert points == {"loss": [(1, 1 / 3), (2, 0.5), (3, 0.25)], "time/epoch_seconds": [(1, 0.1), (2, 0.2), (3, 0.3)]}
    later.log([epoch(2, 0.8, loss=0.75, accuracy=0.5)])  # trained otherwise: not hidden, and the later value counts
    assert later.history(run_id, "loss") == [(1, 1 / 3), (2, 0.75), (3, 0.25)]
    assert later.history(run_id, "accuracy") == [(2, 0.5)]


def test_runs_are_listed_once_until_another_process_creates_some(store, root, request, monkeypatch):
    other, searches = Store(root=root), []
    other.open_sweep(request.node.name)
    for who in (store, other):
        search = who._client.search_runs
        monkeypatch.setattr(who._client, "search_runs", lambda *a, f=search, **k: searches.append(a) or f(*a, **k))
    first, second, third, fourth = seeds(4)
    ids = [store.start(first), store.start(second)]
    assert len(searches) == 1
    assert other.start(second) == ids[1]
    ids.append(other.start(third))
    assert len(searches) == 2
    assert store.start(third) == ids[2], "created by the other one since"
    ids.append(store.start(fourth))
    assert len(searches) == 3 and [run.run_id for run in store.runs()] == ids


def test_the_database_does_not_flush_the_disk_at_every_commit(store):
    from sqlalchemy import create_engine, text

    with create_engine(store.uri).connect() as connection:  # as MLflow's own: whoever connects in this process
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 1  # NORMAL
    with create_engine("sqlite://").connect() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2, "without a log it stays FULL"


def test_finished_trials_are_done_and_never_started_again_and_their_artifacts_are_complete(store, root, client):
    run_id = store.start(PDFA)
    store.start(BP)
    record = EpochRecord(PDFA.trial_key, 2, {"test/accuracy": 0.75}, {"privacy.certified": "false"},
                         Outcome("finished", WEIGHTS, PER_CLASS))
    store.log([epoch(PDFA, 1), epoch(BP, 1), record])
    store.log([epoch(BP, 2, Outcome("diverged", {}, ()))])
    assert store.done() == {PDFA.trial_key: "finished", BP.trial_key: "diverged"}
    with pytest.raises(TrackingError, match=f"{PDFA.trial_key} is finished already"):
        store.start(PDFA)
    run = next(run for run in store.runs() if run.trial_key == PDFA.trial_key)
    assert run.metrics == {"validation/accuracy": 0.1, "test/accuracy": 0.75}
    assert run.tags["privacy.certified"] == "false" and run.status == "finished"
    assert run.end_ms >= run.start_ms > 0
    assert client.get_run(run_id).info.status == "FINISHED"
    folder = Path(client.download_artifacts(run_id, ""))
    assert (root / "artifacts") in folder.parents and client.get_run(run_id).info.artifact_uri.startswith("file://")
    weights = load_file(folder / "weights.safetensors")
    assert set(weights) == set(WEIGHTS)
    for name, expected in WEIGHTS.items():
        np.testing.assert_array_equal(weights[name], expected)
    with open(folder / "per_class.csv", newline="") as file:
        assert list(csv.reader(file)) == [["split", "label", "count", "correct", "accuracy"],
                                          ["test", "0", "4", "3", "0.75"], ["test", "1", "0", "0", ""]]
    config = json.loads((folder / "config.json").read_text())
    assert TrialConfig(**config).trial_key == PDFA.trial_key


def test_what_may_not_be_logged_is_refused_and_nothing_of_it_is_written(store):
    with pytest.raises(TrackingError, match=f"{BP.trial_key} was not started"):
        store.log([epoch(BP, 1)])
    with pytest.raises(TrackingError, match="cannot fail"):
        store.fail(BP.trial_key, "reason")
    store.start(BP)
    for value in (math.inf, -math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"epsilon/claimed: must be finite, got {value}.*epoch 2"):
            store.log([epoch(BP, 1), epoch(BP, 2, **{"epsilon/claimed": value})])
    with pytest.raises(ValueError, match="status: must be one of finished, diverged, got 'done'"):
        store.log([epoch(BP, 1, Outcome("done", {}, ()))])
    with pytest.raises(ValueError, match="got 'OK'"):
        store.close_sweep("OK")
    assert store.runs()[0].metrics == {}


class Forgetful:
    """A client that does what it is asked, but of every method loses the first answer."""

    def __init__(self, client):
        self._client, self.lost = client, set()

    def __getattr__(self, name):
        def call(*arguments, **options):
            answer = getattr(self._client, name)(*arguments, **options)
            if name not in self.lost:
                self.lost.add(name)
                raise requests.ConnectionError("the connection was lost")
            return answer

        return call


def patient_client(mlflow, say, seconds=60):
    client = backend.Client(mlflow, "sqlite:///there")
    client.patience = patience.Patience(seconds, say)
    return client


def test_calls_whose_answers_are_lost_are_made_again_and_write_nothing_twice(root, client, request, monkeypatch):
    monkeypatch.setattr(patience, "PAUSE_SECONDS", 0)
    store, said = Store(root=root), []
    store._client.mlflow = forgetful = Forgetful(store._client.mlflow)
    store.be_patient(60, said.append)
    store.open_sweep(request.node.name, params={"n_trials": 1})
    run_id = store.start(PDFA)
    store.log([epoch(PDFA, 1)])
    store.fail(PDFA.trial_key, "lost")
    assert store.start(PDFA) == run_id
    store.log([epoch(PDFA, 2), epoch(PDFA, 3, Outcome("finished", WEIGHTS, PER_CLASS))])
    store.close_sweep("FINISHED")
    assert {"create_experiment", "create_run", "log_batch", "delete_tag", "set_terminated"} < forgetful.lost
    assert said == ["the tracking store cannot be reached; trying again for up to 60 s",
                    "the tracking store is back after 0 s; nothing was lost"] * len(forgetful.lost)
    points = client.get_metric_history(run_id, "validation/accuracy")
    assert [(p.step, p.value) for p in points] == [(n, 0.1 * n) for n in (1, 2, 3)]
    runs = client.search_runs([store._experiment_id])
    assert sorted(run.data.tags.get("trial_key", "parent") for run in runs) == sorted([PDFA.trial_key, "parent"])
    assert store.done() == {PDFA.trial_key: "finished"}


def test_a_database_that_stays_locked_ends_the_patience(store, root, monkeypatch):
    said = []
    store.start(PDFA)
    store.be_patient(0.5, said.append)
    monkeypatch.setattr(patience, "PAUSE_SECONDS", 0.2)
    with impatient_sqlite(), locked(root / "mlflow.db"):
        with pytest.raises(TrackingError, match="database is locked"):
            store.log([epoch(PDFA, 1)])
        monkeypatch.setattr(patience.time, "sleep", lambda _: pytest.fail("nobody waits twice"))
        with pytest.raises(TrackingError, match="database is locked"):
            store.close_sweep("FAILED")
    assert said == ["the tracking store cannot be reached; trying again for up to 0.5 s"]
    store.log([epoch(PDFA, 1)])
    assert store.runs()[0].metrics == {"validation/accuracy": 0.1}


def test_a_server_that_hangs_is_told_of_after_every_try_that_takes_long(monkeypatch):
    now, said, seconds = [0.0], [], 40.0  # of a try
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(patience.time, "sleep", lambda pause: now.__setitem__(0, now[0] + pause))

    def get():
        now[0] += seconds
        if now[0] < 200:
            raise requests.Timeout("read timeout")
        return "answer"

    patient = patient_client(SimpleNamespace(get=get), lambda text: said.append((now[0], text)), 300)
    assert patient.get() == "answer"
    waits = [(81.0, 81), (122.0, 122), (163.0, 163)]
    assert said == [(40.0, "the tracking store cannot be reached; trying again for up to 300 s"),
                    *((at, f"the tracking store has not answered for {after} s; trying again for up to 300 s")
                      for at, after in waits),
                    (204.0, "the tracking store is back after 204 s; nothing was lost")]
    assert float(os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]) * (1 + int(
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"])) == seconds, "of a try without an answer"


@pytest.mark.parametrize(("error", "temporary"), [
    (requests.ConnectionError("refused"), True), (requests.Timeout("20 s"), True), (ConnectionResetError(), True),
    (MlflowException("(sqlite3.OperationalError) database is locked", TEMPORARILY_UNAVAILABLE), True),
    (MlflowException("(psycopg2.OperationalError) server closed the connection", TEMPORARILY_UNAVAILABLE), True),
    (MlflowException("(sqlite3.OperationalError) database or disk is full", TEMPORARILY_UNAVAILABLE), False),
    (MlflowException("denied", PERMISSION_DENIED), False), (MlflowException("x", INVALID_PARAMETER_VALUE), False),
    (OSError(errno.ENOSPC, "No space left on device"), False), (PermissionError("denied"), False)])
def test_only_what_may_pass_is_tried_again(error, temporary, monkeypatch):
    monkeypatch.setattr(patience, "PAUSE_SECONDS", 0)
    client, said = SimpleNamespace(get=Mock(side_effect=[error, "answer"])), []
    patient = patient_client(client, said.append)
    outer = MlflowException("API request failed")  # as MLflow wraps errors of the network
    outer.__context__ = error
    assert patience.is_temporary(outer) == (temporary and not isinstance(error, MlflowException))
    if temporary:
        assert patient.get(1, two=2) == "answer" and client.get.call_args_list == [call(1, two=2)] * 2
        return
    with pytest.raises(TrackingError, match="tracking store sqlite:///there: ") as raised:
        patient.get()
    assert raised.value.__cause__ is error and client.get.call_count == 1 and not said


@pytest.mark.parametrize("cut", [
    "", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"])
def test_a_call_is_repeated_whose_server_died_within_its_answer(cut, monkeypatch):
    monkeypatch.setattr(patience, "PAUSE_SECONDS", 0)
    answers, requested = [cut, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"], []

    def serve():
        for answer in answers:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as request:
                head = list(iter(request.readline, b"\r\n"))
                length = next(int(line.split()[1]) for line in head if line.lower().startswith(b"content-length"))
                requested.append(request.read(length))
                connection.sendall(answer.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = MlflowClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        patient_client(client, lambda _: None).log_batch("0" * 32, tags=[RunTag("a", "b")])
        thread.join(60)
    assert len(requested) == 2 and requested[0] == requested[1]


def test_of_drivers_that_begin_at_the_same_time_on_two_hosts_one_goes_on(root, tmp_path, request, monkeypatch):
    monkeypatch.setattr(lock, "SETTLING_SECONDS", 0)
    stores = [Store(f"sqlite:///{root / 'mlflow.db'}", tmp_path / host) for host in ("first", "second")]
    leases = [Lease(store, request.node.name, Clock()) for store in stores]
    for store, lease in zip(stores, leases, strict=True):
        lease.wait_until_free() if store is stores[0] else None
        store.open_sweep(request.node.name)
    leases[1].confirm()
    with pytest.raises(SweepRunning, match="second took it over"):
        leases[0].confirm()


def test_a_driver_whose_sweep_another_has_trained_since_it_looked_ends(root, tmp_path, request, monkeypatch):
    monkeypatch.setattr(lock, "MISSED_BEATS", 0)
    mine, theirs = (Store(f"sqlite:///{root / 'mlflow.db'}", tmp_path / host) for host in ("mine", "theirs"))
    lease = Lease(mine, request.node.name, Clock())
    lease.require_as_found({})  # nobody has begun
    theirs.open_sweep(request.node.name)
    lease.require_as_found({})  # and what is abandoned is free
    theirs.start(PDFA)
    theirs.log([epoch(PDFA, 1, Outcome("finished", WEIGHTS, PER_CLASS))])
    with pytest.raises(SweepRunning, match="another process has trained trials of it .* run the same command again"):
        lease.require_as_found({})
    lease.require_as_found({PDFA.trial_key: "finished"})


def test_ctrl_c_ends_the_wait_for_a_store(monkeypatch):
    monkeypatch.setattr(patience, "PAUSE_SECONDS", 5)
    said = []
    client = SimpleNamespace(get=Mock(side_effect=requests.ConnectionError("refused")))
    patient = patient_client(client, said.append)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        patient.get()
    assert client.get.call_count == 1
    with pytest.raises(TrackingError, match="refused"):
        patient.get()
    assert client.get.call_count == 2, "closing the sweep does not wait again"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_a_call_of_a_database(store, monkeypatch, number):
    """Between two statements of a transaction it would leave the database locked for this process's next call."""
    done = []
    monkeypatch.setattr(store._client.mlflow, "set_tag",
                        lambda *a: done.append("begun") or signal.raise_signal(number) or done.append("ended"))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            store._client.set_tag("run", "name", "value")
    finally:
        assert signal.signal(signal.SIGTERM, before) is signal.default_int_handler
    assert done == ["begun", "ended"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_batches_stay_within_the_limits_of_mlflow(store, monkeypatch):
    run_id = store.start(PDFA)
    sizes = []
    log_batch = store._client.log_batch

    def spy(run_id, metrics=(), params=(), tags=()):
        sizes.append((len(metrics), len(params), len(tags)))
        log_batch(run_id, metrics, params, tags)

    monkeypatch.setattr(store._client, "log_batch", spy)
    tags = {f"note.{i}": "x" for i in range(150)}
    store.log([EpochRecord(PDFA.trial_key, e, {f"metric/{i}": e + i for i in range(10)}, tags) for e in range(1, 111)])
    assert sizes == [(800, 0, 100), (300, 0, 50)]  # at most 1000 entries, 100 of them tags
    assert store.history(run_id, "metric/9") == [(e, e + 9) for e in range(1, 111)]
    assert len([tag for tag in store.runs()[0].tags if tag.startswith("note.")]) == 150


def test_searches_read_every_page(store, monkeypatch):
    configs = seeds(5)
    for config in configs:
        store.start(config)
    store.log([epoch(config, 1, Outcome("finished", {}, ())) for config in configs])
    monkeypatch.setattr(backend, "PAGE_SIZE", 2)
    pages = []
    search = store._client.search_runs
    monkeypatch.setattr(store._client, "search_runs", lambda *a, **k: pages.append(k) or search(*a, **k))
    assert [run.trial_key for run in store.runs()] == [config.trial_key for config in configs]  # oldest first
    assert len(pages) == 3  # six runs, the parent among them
    assert set(store.done()) == {config.trial_key for config in configs}


def test_a_failed_trial_keeps_its_reason_and_is_taken_up_again(store, client):
    run_id = store.start(PDFA)
    store.fail(PDFA.trial_key, "x" * 9000 + "CUDA out of memory")
    run = client.get_run(run_id)
    assert run.info.status == "FAILED" and run.data.tags["status"] == "failed"
    assert run.data.tags["failure"].endswith("CUDA out of memory") and len(run.data.tags["failure"]) == 5000
    assert store.done() == {}
    assert store.start(PDFA) == run_id
    run = client.get_run(run_id)
    assert run.info.status == "RUNNING" and run.data.tags["status"] == "running" and "failure" not in run.data.tags


def test_closing_counts_the_trials(store, client):
    first, second, third, fourth, fifth = seeds(5)
    for config in (first, second, third, fourth, fifth):
        store.start(config)
    store.log([epoch(first, 1, Outcome("finished", {}, ())), epoch(second, 1, Outcome("diverged", {}, ()))])
    store.fail(third.trial_key, "no memory")
    store.fail(fifth.trial_key, "its sealed result was given up", "lost")
    store.close_sweep("FAILED")
    parent = client.get_run(store._parent_id)
    assert parent.info.status == "FAILED"
    counts = {k: v for k, v in parent.data.tags.items() if k.startswith("trials.")}
    assert counts == {"trials.finished": "1", "trials.diverged": "1", "trials.failed": "1", "trials.running": "0",
                      "trials.interrupted": "1", "trials.lost": "1"}
    left = next(run for run in store.runs() if run.trial_key == fourth.trial_key)
    assert left.status == "interrupted" and client.get_run(left.run_id).info.status == "KILLED"
    assert store.start(fourth) == left.run_id, "an interrupted trial is taken up again"
    with pytest.raises(TrackingError, match=f"trial {fifth.trial_key} is lost already"):
        store.start(fifth)


def test_attach_reads_and_takes_a_report_but_changes_nothing(store, root, client, tmp_path, request):
    run_id = store.start(PDFA)
    store.close_sweep("FINISHED")
    reader = Store(root=root)
    with pytest.raises(TrackingError, match="no sweep is open"):
        reader.runs()
    reader.attach(request.node.name)
    assert [run.run_id for run in reader.runs()] == [run_id]
    (tmp_path / "table.md").write_text("| a |")
    (tmp_path / "private.txt").write_text("lies beside the report and is no part of it")
    reader.log_report([tmp_path / "table.md"])
    assert [file.path for file in client.list_artifacts(store._parent_id, "report")] == ["report/table.md"]
    assert client.get_run(store._parent_id).info.status == "FINISHED"


def test_two_runs_of_one_trial_and_a_deleted_experiment_are_refused(store, root, client, request):
    ids = {client.create_run(store._experiment_id, tags={"trial_key": BP.trial_key}).info.run_id for _ in range(2)}
    with pytest.raises(TrackingError, match=f"{BP.trial_key} has 2 runs") as error:
        store.start(BP)
    assert all(run_id in str(error.value) for run_id in ids)
    client.delete_experiment(store._experiment_id)
    with pytest.raises(TrackingError, match="was deleted.*mlflow experiments restore"):
        Store(root=root).open_sweep(request.node.name)


@pytest.mark.parametrize(("text", "expected"), [
    ("https://me:hunter2@host:5000/x", "https://***@host:5000/x"),
    ("postgresql+psycopg2://me:hun/ter@2@host/x", "postgresql+psycopg2://***@host/x"),
    ("https://hunter2@host", "https://***@host"),
    ("postgresql://host/x?user=me&password=hunter2&port=1", "postgresql://host/x?user=me&password=***&port=1"),
    ("no answer of http://me:hunter2@a/b (mail root@a)", "no answer of http://***@a/b (mail root@a)"),
    ("http://host:5000", "http://host:5000"), ("http://host/a@b", "http://host/a@b"),
    ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db")])
def test_a_uri_is_shown_without_user_and_password(text, expected):
    assert backend.redacted(text) == expected


@pytest.mark.parametrize("arguments", [
    ["report", "typo"], ["report", "plain"], ["report", "{file}"], ["audit", "0123456789abcdef"], ["status"], ["ui"],
    ["audit", "{file}"]], ids=" ".join)
def test_no_command_shows_the_password_of_the_store(arguments, root, tmp_path, monkeypatch, capsys):
    """With a real store behind an address of a server, and one that fails where a command has no message of its own."""
    uri, file, real = "https://me:hunter2@host", tmp_path / "typo.yaml", backend.connect
    file.write_text("name: typo\nbase: {dataset: digits, hidden: [8], epochs: 1}\n")
    Store(root=root).open_sweep("plain")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for module in (tracking, reading):
        monkeypatch.setattr(module, "connect", lambda given, lock: backend.Client(
            real(f"sqlite:///{root / 'mlflow.db'}", lock).mlflow, given))
    if arguments == ["status"]:
        monkeypatch.setattr(Reader, "sweeps", backend.reporting_errors(uri)(Mock(side_effect=OSError(f"{uri}/x"))))
    if arguments[0] == "audit":
        monkeypatch.setattr("pipeline.auditing.audit.audit_experiment",
                            Mock(side_effect=AssertionError("the store is looked at first")))
    assert main([*(argument.format(file=file) for argument in arguments), "--mlruns", str(root)]) == 2
    message = capsys.readouterr().err
    assert "https://***@host" in message and "hunter2" not in message, message


def test_what_cannot_be_written_or_is_not_there_is_named_without_a_password(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackingError, match=r"store sqlite:///.*file/mlruns/mlflow.db: "):
        Store(root=tmp_path / "file" / "mlruns")
    for kind in ("postgresql", "http"):  # no driver, or no server
        with pytest.raises(TrackingError, match=rf"store {kind}://\*\*\*@127.0.0.1:9: .*MLFLOW_TRACKING_URI") as error:
            Store(f"{kind}://me:secret@127.0.0.1:9", root=tmp_path / "other")
        assert "secret" not in str(error.value)
    (tmp_path / "linked.db").symlink_to(tmp_path / "nowhere" / "mlflow.db")
    with pytest.raises(TrackingError, match=r"store sqlite:///.*linked.db: unable to open database file"):
        backend.connect(f"sqlite:///{tmp_path / 'linked.db'}", contextlib.nullcontext())
    with pytest.raises(TrackingError, match="does not exist"):
        Store(root=tmp_path / "typo", create=False)
    with pytest.raises(TrackingError, match="does not exist"):
        Reader(root=tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(("blocked", "use"), [
    ("artifacts/blocked", lambda store: store.log_experiment("name: x")),
    (".tracking.lock", lambda store: store.start(PDFA)),
    (".runs-{id}.mark", lambda store: store.runs()),
    ("artifacts/blocked/{parent}/artifacts/experiment.yaml", lambda store: store.experiment()),
    ("", lambda store: store.log_report([Path("none.md")]))])
def test_files_that_cannot_be_read_or_written_are_errors_of_their_store(tmp_path, blocked, use):
    store = Store(root=tmp_path)
    store.open_sweep("blocked")
    store.runs()
    path = tmp_path / blocked.format(id=store.experiment_id, parent=store._parent())
    if blocked == "artifacts/blocked":
        path.parent.mkdir(exist_ok=True)
        path.write_text("in the place of a folder")
    elif blocked:
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
    with pytest.raises(TrackingError, match=r"tracking store sqlite:///.*mlflow.db: \[Errno") as error:
        use(store)
    assert isinstance(error.value.__cause__, OSError)


def test_a_given_uri_goes_first_and_a_list_of_sweeps_leaves_the_open_one_open(store, root, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    Store(f"sqlite:///{root / 'mlflow.db'}", root=root).open_sweep("last")
    mine = store.experiment_id
    assert store.sweeps()[-1] == "last" and store.experiment_id == mine


def test_runs_of_one_trial_are_one_release_with_recorded_noise_and_as_many_with_secret_noise():
    def costs(*epsilons, names=("", "", "")):  # of the sealed results of each run
        runs = [TrackedRun(str(epsilon), "same", {}, {
            "epsilon/certified/pld": epsilon, "epsilon/certified/rdp": epsilon + 1, "epsilon/label/gdp": 0.1},
            {"privacy.delta": "1e-05", **{f"released.{name}": "2 epochs, sealed on here" for name in of_run}},
            "finished", 0, None) for epsilon, of_run in zip(epsilons, names, strict=False)]
        return total_costs(runs)

    assert costs(2.0, 3.0, 1.0) == (3.0, 1e-5)
    assert costs(2.0, 3.0, names=("a", "b")) == (5.0, 2e-5)
    assert costs(2.0, names=("ab",)) == (4.0, 2e-5), "one run with two names"
    assert costs(2.0, 2.0, names=("a", "a")) == (2.0, 1e-5), "one name of two runs"


def test_a_database_whose_maker_was_killed_is_set_aside_and_made_anew(tmp_path):
    """MLflow itself never goes on with such a file: its migrations find their own tables."""
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("CREATE TABLE _alembic_tmp_trace_tags (key TEXT)")
        database.execute("CREATE TABLE experiments (experiment_id INTEGER)")
    store = Store(root=tmp_path)
    store.open_sweep("first")
    assert Store(root=tmp_path).find("first") and (tmp_path / "unfinished-mlflow.db").exists()
