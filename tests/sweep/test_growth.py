"""What a sweep does grows in proportion to its trials: calls, queries and evaluations are counted, not seconds."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy
from search_tools import train
from stored import attached
from sweep_stub import experiment, grid

from analysis.runs import frame_of
from pipeline.experiment import experiment as experiments
from pipeline.sweep import status
from pipeline.sweep.dry_run import as_lines, preview
from pipeline.sweep.progress import SweepProgress
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.records import EpochRecord

FEW, MANY = 3, 12  # trials


@contextlib.contextmanager
def queries() -> Iterator[list[str]]:
    """The statements that any database is sent meanwhile."""
    sent: list[str] = []

    def note(connection, cursor, statement, *_):
        sent.append(statement)

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sqlalchemy.event.remove(sqlalchemy.engine.Engine, "before_cursor_execute", note)


def calls(function: Callable[..., object], *arguments: object) -> int:
    """How many functions, those of C and steps of generators among them, a call makes."""
    made = 0

    def count(frame, event, argument):
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return made


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """(experiment, root) by its number of trials; every third trial is finished, every third failed, others wait."""
    made = {}
    for n in (FEW, MANY):
        swept, root = experiment(grid(("dfa",), n)), tmp_path_factory.mktemp(f"of{n}")
        store = Store(root=root)
        store.open_sweep("stub", params={"trials": n})
        for number, trial in enumerate(swept.trials):
            train(store, [trial], *((2, "finished") if number % 3 == 0 else (1, "")))
            if number % 3 == 1:
                store.fail(trial.trial_key, "no")
        made[n] = swept, root
    return made


@pytest.mark.parametrize("read", [
    lambda store, swept: status.read(store, "stub", swept).trials,
    lambda store, swept: status.read(store, "stub", None).trials,
    lambda store, swept: store.attach("stub") or store.released()],
    ids=["status with its file", "status by the store alone", "what was released"])
def test_a_store_is_asked_as_often_whatever_the_number_of_trials(stores, read):
    asked = {}
    for n, (swept, root) in stores.items():
        store = Reader(root=root)
        with queries() as sent:
            found = read(store, swept)
        asked[n] = len(sent)
        assert len(found) == n
    assert asked[FEW] == asked[MANY] > 0


def test_closing_a_sweep_lists_its_runs_once(stores, monkeypatch):
    _, root = stores[FEW]
    store = Store(root=root)
    store.open_sweep("stub")
    listed, search = [], Store._search
    monkeypatch.setattr(Store, "_search", lambda self, *a: listed.append(a) or search(self, *a))
    runs = store.close_sweep("KILLED")
    assert len(listed) == 1 and [run.status for run in runs] == ["finished", "failed", "running"]


def test_what_varies_is_looked_for_once(stores, monkeypatch):
    swept, root = stores[MANY]
    looked, varied = [], experiments.varied_fields
    monkeypatch.setattr(experiments, "varied_fields", lambda trials: looked.append(len(trials)) or varied(trials))
    for read in (lambda of: status.read(Reader(root=root), "stub", of), lambda of: list(as_lines(preview(of, 1)))):
        looked.clear()
        read(experiment(swept.trials))
        assert looked in ([], [MANY])


def test_a_dry_run_of_a_widened_sweep_is_of_its_new_trials(stores):
    swept, root = stores[MANY]
    run = preview(swept, 1, root)
    new = {trial.trial_key for number, trial in enumerate(swept.trials) if number % 3}
    assert {trial.trial_key for pack in run.packs for trial in pack.trials} == new and run.done == 4
    assert list(as_lines(run))[1].startswith("12 trials, 4 done and 8 new, in ")
    assert preview(swept, 1, None).done == preview(swept, 1, root / "none").done == 0
    done = preview(experiment(swept.trials[::3]), 1, root)
    assert (done.done, done.packs, done.seconds) == (4, (), 0)


def test_an_epoch_moves_the_progress_on_by_as_many_calls_whatever_the_number_of_trials():
    made = {}
    for n in (10, 1000):
        trials = grid(("dfa",), n)
        progress = SweepProgress(quiet=True)
        progress.add(trials)
        progress.start(trials[0])
        record = EpochRecord(trials[0].trial_key, 1, {"validation/accuracy": 0.5})
        progress.record(record)
        made[n] = calls(progress.record, record)
    assert 0 < made[1000] <= 1.1 * made[10]


def test_load_runs_makes_calls_in_proportion_to_the_trials(stores):
    made = {}
    for n, (swept, root) in stores.items():
        runs = attached("stub", root).runs()
        for run in runs:
            run.status = "finished"
        frame = frame_of(list(runs), swept.trials[::-1])
        assert list(frame["trial_key"]) == [trial.trial_key for trial in swept.trials[::-1]]
        made[n] = calls(frame_of, list(runs), swept.trials)
    assert made[MANY] < MANY / FEW * made[FEW]
