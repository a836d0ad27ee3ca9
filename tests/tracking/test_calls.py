"""How many calls of MLflow a trial costs: three when it starts, three when it ends, and few in between."""

import dataclasses
import functools

import pytest
import sweep_stub
from fault_tools import Relay
from mlflow.tracking import MlflowClient

from pipeline.sweep.clock import SECONDS, Clock
from pipeline.sweep.run import run_sweep
from pipeline.tracking import patience
from pipeline.tracking.artifacts import CONFIG
from pipeline.tracking.files import OwnFiles
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.records import EpochRecord, Outcome

EPOCHS, BETWEEN = 12, 2  # of a second each; so many times the epochs so far are written
CALLS = ["create_run", "log_batch", "log_inputs", *["log_batch"] * BETWEEN, "log_batch", "set_terminated"]
REQUESTS = ["POST create", "POST log-batch", "POST log-inputs", *["POST log-batch"] * BETWEEN, "POST log-batch",
            "GET get", *["PUT file"] * 3, "POST update"]  # MLflow asks where the run's files belong
TRIALS = sweep_stub.grid(("dfa",), 202, epochs=EPOCHS)
FIRST, *_ = TRIALS


@pytest.fixture
def relay(server):
    with Relay(server.uri) as relay:
        yield relay
        relay.shutdown()


@pytest.fixture
def sweep(tmp_path, in_process, monkeypatch):
    """A sweep of two trials that has as many others; its clock moves on by a second at every epoch."""
    now = [0]

    def train(pack):
        for records in sweep_stub.train(pack, folder=tmp_path, seconds=0):
            now[0] += 1
            yield records

    def run(n_others, uri=None, name="stub", database=None):
        Store(uri, tmp_path).open_sweep(name)
        store = Store(database, tmp_path)
        store.attach(name)
        for trial in TRIALS[2:2 + n_others]:
            store.start(trial)
        experiment = dataclasses.replace(sweep_stub.experiment(TRIALS[:2]), name=name)
        assert run_sweep(experiment, root=tmp_path, tracking_uri=uri, trainer=train, quiet=True).finished == 2

    monkeypatch.setattr("pipeline.sweep.run.Clock", functools.partial(Clock, now=lambda: now[0]))
    monkeypatch.setattr("pipeline.sweep.run.SECONDS", {**SECONDS, "heartbeat": 1e9})
    return run


def of_last_trials(calls, first, last):
    """The calls of the last two trials, each from its first to its last one."""
    ends = [number for number, call in enumerate(calls) if call == last][-3:]  # the very last is the sweep's
    begins = [number for number, call in enumerate(calls) if call == first][-2:]
    return [calls[begin:end + 1] for begin, end in zip(begins, ends, strict=False)]


@pytest.mark.parametrize("others", [0, 50])
def test_a_trial_costs_so_many_calls_of_a_database_however_many_runs_are_there(sweep, monkeypatch, others):
    calls = []

    def spied(name, method):
        return lambda *given, **named: calls.append(name) or method(*given, **named)

    for name, method in list(vars(MlflowClient).items()):
        if callable(method) and not name.startswith("_"):
            monkeypatch.setattr(MlflowClient, name, spied(name, method))
    sweep(others)
    assert of_last_trials(calls, CALLS[0], CALLS[-1]) == [CALLS] * 2


@pytest.mark.slow
def test_a_trial_costs_so_many_requests_of_a_server_however_many_runs_are_there(sweep, relay, server):
    for others in (0, 200):
        relay.requests.clear()
        sweep(others, relay.uri, f"server {others}", server.database)  # which is faster than through the server
        requests = ["PUT file" if request.startswith("PUT") else request for request in relay.requests]
        assert of_last_trials(requests, REQUESTS[0], REQUESTS[-1]) == [REQUESTS] * 2


class Killed(BaseException):
    pass


@pytest.mark.parametrize("last", range(7))
def test_a_driver_may_die_after_any_call_of_a_trial(tmp_path, monkeypatch, last):
    """The sweep goes on where it was: the trial has one run, and each of its points once."""
    records = [EpochRecord(FIRST.trial_key, epoch, {"train/loss": 1 / epoch}, outcome=outcome)
               for epoch, outcome in ((1, None), (2, Outcome("finished", {}, ())))]
    made = []

    def dies(method):
        def call(*given, **named):
            answer = method(*given, **named)
            made.append(method.__name__)
            if len(made) > last:
                raise Killed
            return answer

        return call

    def write():
        store = Store(root=tmp_path)
        store.open_sweep("stub")
        with monkeypatch.context() as patch:
            for owner, name in [(OwnFiles, "write"), *((MlflowClient, name) for name in set(CALLS))]:
                patch.setattr(owner, name, dies(getattr(owner, name)))
            store.start(FIRST)
            for record in records:
                store.log([record])

    Store(root=tmp_path).open_sweep("stub")
    made.clear()
    with pytest.raises(Killed):
        write()
    reader = Reader(root=tmp_path)
    reader.attach("stub")
    has_ended, last = made[-1] == CALLS[-1], 100
    assert reader.done() == ({FIRST.trial_key: "finished"} if has_ended else {})
    assert [run.status for run in reader.runs()] == ["finished" if has_ended else "running"]
    if not has_ended:
        write()
    (run,) = reader.runs()
    assert run.status == "finished" and reader.artifact(run, CONFIG) and run.params.keys() == FIRST.canonical().keys()
    assert reader.history(run.run_id, "train/loss") == [(1, 1.0), (2, 0.5)]


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "hangs", "is_closed"), [(1, False, True), (1, False, False), (1, True, False),
                                                          (2, False, False)])
def test_a_lost_answer_of_a_server_writes_nothing_twice(relay, server, tmp_path, monkeypatch, lost, hangs, is_closed):
    """MLflow repeats a request once. We notice that if it took long; if that answer is lost too, we repeat the call."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1" if hangs else "20")
    relay.hangs = hangs
    monkeypatch.setattr(patience, "PAUSE_SECONDS", 0)
    name, said = f"lost {lost}, {hangs}, {is_closed}", []
    store = Store(relay.uri, tmp_path)
    store.open_sweep(name)
    store.be_patient(60, said.append)
    reader = Reader(server.uri, tmp_path)
    reader.attach(name)
    relay.lose += [request for request in set(REQUESTS) if request.startswith("POST") for _ in range(lost)]
    run_id = store.start(FIRST)
    assert len(reader.runs()) == (2 if lost == 1 and not hangs else 1)
    if is_closed:
        store.close_sweep("KILLED")
        assert [run.run_id for run in reader.runs()] == [run_id]
    later = Store(relay.uri, tmp_path)
    later.be_patient(60, said.append)
    later.open_sweep(name)
    assert later.start(FIRST) == run_id
    relay.lose += ["POST update"] * lost
    for epoch, outcome in ((1, None), (2, Outcome("finished", {}, ()))):
        later.log([EpochRecord(FIRST.trial_key, epoch, {"train/loss": 0.5}, outcome=outcome)])
    assert not relay.lose and bool(said) == (lost > 1)
    assert [(run.run_id, run.status) for run in reader.runs()] == [(run_id, "finished")]
    client = MlflowClient(server.uri)
    assert [point.step for point in client.get_metric_history(run_id, "train/loss")] == [1, 2]
    assert len(client.get_run(run_id).inputs.dataset_inputs) == 1
