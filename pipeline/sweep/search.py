"""The trials of a search, round by round, and what its budget still pays for.

A round is what is asked for together. The next one is asked for when all trials of it have ended, with their scores
told in the order in which they were asked for. So a search that is run again, whatever ended it, asks for the same
trials and finds those that are done in the store. What it passed over then, because it did not fit the budget, it
passes over again, whatever would fit by now.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pipeline.accounting.budget import Filter, make_filter, require_as_begun
from pipeline.experiment.experiment import Experiment, asked_for
from pipeline.experiment.halving import Halving
from pipeline.experiment.search import Search
from pipeline.tracking.artifacts import BUDGET, DONE, REFUSED, Suggestion, TrackedRun, started
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.naming import counted
from pipeline.trials.records import ACCURACY, EpochRecord, Release


class Searcher(Protocol):
    """What suggests settings (`pipeline.sweep.tuning.make_searcher`)."""

    def ask(self) -> dict[str, Any]:
        """A value for every setting of the space."""

    def tell(self, number: int, score: float | None) -> None:
        """The score of suggestion `number`, from 0; None for one that has none."""


class Rounds:
    """What a sweep trains, one round after the other. Without a search its trials are one round.

    Args:
        store: with the sweep open, if it was ever opened.
        make: makes the searcher.
        filter: of the search's budget, if it has one.

    Attributes:
        filter: as given.
        suggestions: all that was asked for so far.
    """

    def __init__(self, experiment: Experiment, store: Reader, make: Callable[[Search], Searcher] | None = None,
                 filter: Filter | None = None) -> None:
        self._experiment, self._store, self.filter = experiment, store, filter
        if experiment.search and not make:
            raise ValueError("make: must make the searcher of an experiment with a search, got None")
        self._asking = (experiment.search, make(experiment.search)) if experiment.search and make else None
        self.suggestions = [] if experiment.search else [Suggestion(trial, True) for trial in experiment.trials]
        self._before = store.decisions() if filter and store.is_open else []
        self._refused = {key for key, run in self._runs().items() if REFUSED in run.tags} if filter else set()
        self._told = 0

    @property
    def trials(self) -> tuple[TrialConfig, ...]:
        """Those that were let start, each once."""
        return started(self.suggestions)

    @property
    def passed_over(self) -> int:
        """Suggestions that are no trial of their own: beyond the budget, or the same as one before."""
        return len(self.suggestions) - len(self.trials)

    @property
    def later(self) -> int:
        """Suggestions that are still to be asked for."""
        return self._experiment.planned - len(self.suggestions)

    @property
    def experiment(self) -> Experiment:
        """With the trials so far."""
        return asked_for(self._experiment, self.trials) if self._asking else self._experiment

    @property
    def tags(self) -> dict[str, str]:
        """Of the sweep: its budget, and the order of its filter."""
        return {BUDGET: json.dumps(self.filter.kept)} if self.filter else {}

    def next(self, done: Mapping[str, str]) -> list[TrialConfig]:
        """The trials of the last round that are not done or, where all are, of the first round after it that has any;
        none at the end.

        Args:
            done: trial_key -> status of those that need no more training.
        """
        while True:
            missing = [trial for trial in self.trials if trial.trial_key not in done]
            if missing or not self._asking or not self.later:
                return missing
            self._tell(*self._asking)
            self._ask(*self._asking, done)

    def _tell(self, search: Search, searcher: Searcher) -> None:
        """The scores of the last round."""
        if self._told == len(self.suggestions):
            return
        runs = self._runs()
        for number in range(self._told, len(self.suggestions)):
            suggestion = self.suggestions[number]
            run = runs.get(suggestion.trial.trial_key) if suggestion.started else None
            searcher.tell(number, run.metrics.get(search.metric) if run and run.status in DONE else None)
        self._told = len(self.suggestions)

    def _runs(self) -> dict[str, TrackedRun]:
        """Runs of the sweep by trial_key; none before the first trial."""
        return {run.trial_key: run for run in self._store.runs()} if self._store.began else {}

    def scores(self, stop: Halving) -> Iterator[tuple[str, int, float]]:
        """(trial_key, epoch, score) of trials on every rung where it was decided whether they go on, in the order asked
        for: those that ended came no further, and those that did not have released epochs beyond it."""
        runs = self._runs()
        for trial in self.trials:
            if run := runs.get(trial.trial_key):
                scores = dict(self._store.history(run.run_id, ACCURACY))
                decided = max(scores, default=0) + (run.status in DONE)
                yield from ((trial.trial_key, rung, scores[rung])
                            for rung in stop.rungs(trial.epochs) if rung in scores and rung < decided)

    def _ask(self, search: Search, searcher: Searcher, done: Mapping[str, str]) -> None:
        """The next round: trials are let start, one after the other, as long as all of their epochs fit."""
        together = search.max_concurrent if search.adaptive or self.filter else search.trials
        planned, others = _apart(released_by(self._store)) if self.filter else ({}, [])
        for _ in range(min(together, self.later)):
            trial = search.trial(searcher.ask())
            starts = not self._passed_over(trial)
            if self.filter and starts and trial.trial_key not in done:
                with_it = {**planned, trial.trial_key: planned.get(trial.trial_key, Release(trial, 0)).whole()}
                starts = self.filter.admits([*with_it.values(), *others])
                planned = with_it if starts else planned
            self.suggestions.append(Suggestion(trial, starts))

    def _passed_over(self, trial: TrialConfig) -> bool:
        """Whether the next suggestion is this trial and was passed over when the search was run before, or began then
        and would need another draw of its noise, which did not fit."""
        return (trial.trial_key in self._refused
                or self._before[len(self.suggestions):][:1] == [(trial.trial_key, False)])


def _apart(released: Iterable[Release]) -> tuple[dict[str, Release], list[Release]]:
    """What was released by runs that go on if their trial does, by trial_key, and by all others: those that were
    deleted, and what was restored beside another run of its trial."""
    live: dict[str, Release] = {}
    others = []
    for release in released:
        if release.deleted or release.trial.trial_key in live:
            others.append(release)
        else:
            live[release.trial.trial_key] = release
    return live, others


class Odometer:
    """Logs `epsilon/spent` of a sweep with a budget to its parent run as epochs reach the store; it never goes down.

    A point's step is the number of epochs that were released.
    """

    def __init__(self, filter: Filter, store: Store) -> None:
        self._filter, self._store = filter, store
        self._live, self._others = _apart(released_by(store))

    def read_again(self) -> None:
        """A draw has begun, or failed: the store has runs, or charges, that no epochs tell of."""
        live, self._others = _apart(released_by(self._store))
        self._live = {key: Release(release.trial, 0) for key, release in self._live.items()} | live
        self._log()

    def begin(self, trials: Iterable[TrialConfig]) -> None:
        """A round of these trials begins."""
        for trial in trials:
            self._live.setdefault(trial.trial_key, Release(trial, 0))
        self._log()

    def add(self, records: Iterable[EpochRecord]) -> None:
        """Epochs that the store has now, perhaps not for the first time."""
        before = dict(self._live)
        for record in records:
            release = self._live[record.trial_key]
            self._live[record.trial_key] = replace(release, epochs=max(release.published, record.epoch) + release.lost)
        if self._live != before:
            self._log()

    def _log(self) -> None:
        """What is spent by now."""
        released = [*self._others, *self._live.values()]
        spent = self._filter.epsilon(self._filter.spent(released))
        self._store.log_sweep({"epsilon/spent": spent}, {}, step=sum(release.epochs for release in released))


def published_digests(store: Reader) -> set[str]:
    """Digests of files of features that runs of the sweep have: an earlier version gave no names to files."""
    runs = store.runs() if store.began else ()
    return {run.params["feature_sha256"] for run in runs if "feature_sha256" in run.params}


def released_by(store: Reader) -> list[Release]:
    """What the sweep that was looked for has released; nothing of one that never began."""
    return store.released() if store.began else []


def filter_of(experiment: Experiment, store: Reader) -> Filter | None:
    """The filter of a sweep with a budget: of the order with which it began.

    Raises:
        ConfigError: as `make_filter`; for a budget other than that with which it began, for trials in the store that it
            cannot cover, and for more than it released.
    """
    before = store.budget() if store.began else None
    if before:
        require_as_begun(experiment.budget, before)
    if not experiment.budget:
        return None
    budget, released = experiment.budget, released_by(store)
    if released and not before:
        raise ConfigError(f"budget: must be there from the beginning, but {counted(len(released), 'trial')} of the "
                          f"sweep began without one, got {budget}; give the experiment another name")
    for name in ("dataset", "sampler", "delta", "noise"):
        known = {getattr(corner, name) for corner in experiment.corners}
        for trial in (release.trial for release in released):
            if getattr(trial, name) not in known:
                raise ConfigError(f"{name}: must be that of all trials under a budget, got {getattr(trial, name)} of "
                                  f"trial {trial.trial_key}, which the sweep has; give the experiment another name")
    filter = make_filter(experiment, int(before[2]) if before else None)
    if not filter.admits(released):
        spent = filter.epsilon(filter.spent(released))
        raise ConfigError(f"budget: of {budget}, {spent:.4g} was spent, so that nothing covers the sweep any more; "
                          "give the experiment another name")
    return filter
