"""The order of writes to the store, which `pipeline.sweep.recorder` and `pipeline.sweep.ledger` list as promises."""

import functools
import re
from types import SimpleNamespace

import pytest
import sweep_stub
from fault_tools import ROOT
from search_tools import parse

from pipeline.learning.randomness import RoundedNoise
from pipeline.learning.training import Training
from pipeline.sweep import ledger, recorder, worker
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.clock import SECONDS
from pipeline.sweep.lock import Lease
from pipeline.sweep.progress import SweepProgress
from pipeline.sweep.run import run_sweep
from pipeline.tracking.artifacts import BUDGET
from pipeline.tracking.store import Store

FILE = """
name: ordered
base: {dataset: digits, hidden: [8], batch_size: 256, epochs: 2, algorithm: dfa, mechanism: per_example,
       sampler: poisson, noise: secure, arithmetic: integer, noise_multiplier: 20, alignment_batches: 0}
search:
  algorithm: random
  trials: 3
  space: {learning_rate: {loguniform: [0.05, 5]}}
  max_concurrent: 2
budget: {epsilon: 8, delta: 1.0e-5}
resources: {pack_size: 1, checkpoint_seconds: 0}
"""


@pytest.fixture
def events(monkeypatch):
    """What a sweep in this process does, in order, as (what, of which trial or trials, epoch); a write counts once it
    has returned, and a step or a view when it begins."""
    found, at = [], SimpleNamespace(key="")

    def spied(cls, name, event, after=False):
        call = getattr(cls, name)

        def spy(self, *arguments, **named):
            result = call(self, *arguments, **named) if after else None
            found.extend(event(self, *arguments, **named))
            return result if after else call(self, *arguments, **named)

        monkeypatch.setattr(cls, name, spy)

    def trains(training):
        at.key = training.pack.shared.trial_key
        return [("step", at.key, training.epoch + 1)]

    spied(Store, "open_sweep", lambda _, *of, contents, **more: [("open with budget" * (BUDGET in contents), "", 0)],
          after=True)
    spied(Store, "log_suggestions", lambda _, those: [("suggestions", {one.trial.trial_key for one in those}, 0)],
          after=True)
    spied(Lease, "confirm", lambda _: [("confirm", "", 0)], after=True)
    spied(Store, "start", lambda _, trial, **more: [("start", trial.trial_key, 0)], after=True)
    spied(Store, "name", lambda _, key, *more: [("name", key, 0)], after=True)
    spied(Lease, "require_own", lambda _: [("own", "", 0)], after=True)
    spied(Store, "names", lambda _, key: [("other names", key, 0)], after=True)
    spied(worker, "unseal", lambda _: [("asked for", at.key, 0)])
    spied(Store, "keep", lambda _, key, records: [("keep", key, 0)], after=True)
    spied(Store, "log", lambda _, records: [("log", record.trial_key, record.epoch) for record in records], after=True)
    spied(Store, "close_sweep", lambda _, status: [(f"close {status}", "", 0)])
    spied(Training, "run_epoch", trains)
    spied(RoundedNoise, "next", lambda noise: [("noise", at.key, 0)] * (None in noise.seeds))  # the secret one
    spied(SweepProgress, "record", lambda _, record: [("shown", record.trial_key, record.epoch)])
    spied(worker, "remove", lambda _: [("remove sealed", at.key, 0)])
    spied(Checkpoints, "remove", lambda _, pack: [("remove", pack.shared.trial_key, 0)])

    def rehearsed(pack, *more, rehearse=worker.rehearse):
        before = len(found)
        rehearse(pack, *more)
        found[before:] = [("rehearse", pack.shared.trial_key, 0)]  # in place of all that it did on test records

    monkeypatch.setattr(worker, "rehearse", rehearsed)
    return found


def test_each_write_comes_before_what_depends_on_it(tmp_path, in_process, events):
    assert run_sweep(parse(text=FILE), root=tmp_path, quiet=True).finished == 3
    place = {}  # event -> when it came first
    for number, (what, of, epoch) in enumerate(events):
        for key in of if what == "suggestions" else [of]:
            place.setdefault((what, key, epoch), number)
    keys = {key for what, key, _ in place if what == "start"}
    assert len(keys) == 3 and max(place.values()) == place["close FINISHED", "", 0] == len(events) - 1
    for key in keys:
        in_order = [("open with budget", "", 0), ("suggestions", key, 0), ("start", key, 0), ("rehearse", key, 0),
                    ("step", key, 1), ("noise", key, 0), ("step", key, 2), ("name", key, 0), ("other names", key, 0),
                    ("asked for", key, 0), ("keep", key, 0), ("log", key, 1), ("log", key, 2), ("shown", key, 1),
                    ("shown", key, 2), ("remove sealed", key, 0), ("remove", key, 0)]
        assert place["confirm", "", 0] < place["start", key, 0]
        came = [place[event] for event in in_order]
        assert came == sorted(came), [event for _, event in sorted(zip(came, in_order, strict=True))]
        assert ("own", "", 0) in events[place["name", key, 0]:place["other names", key, 0]]


@pytest.mark.parametrize(("error", "status"), [(None, "FINISHED"), (KeyboardInterrupt, "KILLED"),
                                               (ZeroDivisionError, "FAILED")])
def test_what_waits_is_written_before_the_sweep_is_closed(tmp_path, in_process, events, monkeypatch, error, status):
    """And it is shown only then. An epoch waits when the driver ends."""
    monkeypatch.setattr("pipeline.sweep.run.SECONDS", {**SECONDS, "write": 1e9})
    trial, = trials = sweep_stub.grid(("dfa",), 1)
    write_due = recorder.Recorder.write_due

    def ends(recorder):
        write_due(recorder)
        if error and recorder._waiting:
            raise error

    monkeypatch.setattr(recorder.Recorder, "write_due", ends)
    sweep = functools.partial(run_sweep, sweep_stub.experiment(trials), root=tmp_path, quiet=True,
                              trainer=functools.partial(sweep_stub.train, folder=tmp_path))
    if error is ZeroDivisionError:
        with pytest.raises(error):
            sweep()
    else:
        sweep()
    epochs = [1] if error else [1, 2]
    assert [event for event in events if event[0] in ("log", "shown", f"close {status}")] == [
        *((what, trial.trial_key, epoch) for what in ("log", "shown") for epoch in epochs), (f"close {status}", "", 0)]


@pytest.mark.parametrize(("module", "names"), [(recorder, 8), (ledger, 1)])
def test_every_promise_names_a_test_that_is_there(module, names):
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", module.__doc__)
    for file, name in named:
        (path,) = (ROOT / "tests").rglob(file)
        assert f"def {name}(" in path.read_text(), f"{file}::{name}"
    assert len(named) == names
