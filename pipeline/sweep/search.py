"""The trials of a search, round by round, and what its budget still pays for.

A round is what is asked for together. The next one is asked for when all trials of it have ended, with their scores
told in the order in which they were asked for. So a search that is run again, whatever ended it, asks for the same
trials and finds those that are done in the store; nothing else is kept for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from pipeline.accounting.budget import Filter, make_filter
from pipeline.tracking.artifacts import BUDGET, DONE, Suggestion, TrackedRun, started
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.experiment import Experiment, asked_for
from pipeline.trials.halving import Halving
from pipeline.trials.naming import counted
from pipeline.trials.records import EpochRecord, Release
from pipeline.trials.search import Search


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
        self._searcher = make(experiment.search) if experiment.search else None
        self.suggestions = [] if experiment.search else [Suggestion(trial, True) for trial in experiment.trials]
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
        return asked_for(self._experiment, self.trials) if self._searcher else self._experiment

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
            if missing or not self.later:
                return missing
            self._tell()
            self._ask(done)

    def _tell(self) -> None:
        """The scores of the last round."""
        if self._told == len(self.suggestions):
            return
        metric, ended = self._experiment.search.metric, self._ended()
        for number in range(self._told, len(self.suggestions)):
            run = ended.get(self.suggestions[number].trial.trial_key)
            self._searcher.tell(number, run and run.metrics.get(metric))
        self._told = len(self.suggestions)

    def _ended(self) -> dict[str, TrackedRun]:
        """Runs of trials that need no more training, by trial_key."""
        runs = self._store.runs() if self._store.is_open else []  # it is not before the first trial
        return {run.trial_key: run for run in runs if run.status in DONE}

    def scores(self, stop: Halving) -> Iterator[tuple[str, int, float]]:
        """(trial_key, epoch, score) of trials that ended, on every rung that they came to, in the order asked for."""
        ended = self._ended()
        for trial in self.trials:
            if trial.trial_key in ended:
                scores = dict(self._store.history(ended[trial.trial_key].run_id, self._experiment.search.metric))
                yield from ((trial.trial_key, rung, scores[rung])
                            for rung in stop.rungs(trial.epochs) if rung in scores)

    def _ask(self, done: Mapping[str, str]) -> None:
        """The next round: trials are let start, one after the other, as long as all of their epochs fit."""
        search = self._experiment.search
        together = search.max_concurrent if search.adaptive or self.filter else search.trials
        asked = [search.trial(self._searcher.ask())
                 for _ in range(min(together, self.later))]
        keys = {trial.trial_key for trial in asked}
        released = released_by(self._store) if self.filter else []
        planned = [release for release in released if release.trial.trial_key not in keys]
        for trial in asked:
            whole = [*(r for r in released if r.trial.trial_key == trial.trial_key and r.deleted),
                     Release(trial, trial.epochs)]
            fits = not self.filter or trial.trial_key in done or self.filter.admits([*planned, *whole])
            planned += whole if fits else ()
            self.suggestions.append(Suggestion(trial, fits))


class Odometer:
    """Logs `epsilon/spent` of a sweep with a budget to its parent run as epochs reach the store; it never goes down.

    A point's step is the number of epochs that were released.
    """

    def __init__(self, filter: Filter, store: Store) -> None:
        self._filter, self._store = filter, store
        released = released_by(store)
        self._deleted = [release for release in released if release.deleted]
        self._epochs = {r.trial.trial_key: r.epochs for r in released if not r.deleted}
        self._trials = {r.trial.trial_key: r.trial for r in released}

    def begin(self, trials: Iterable[TrialConfig]) -> None:
        """A round of these trials begins."""
        self._trials |= {trial.trial_key: trial for trial in trials}
        self._log()

    def add(self, records: Iterable[EpochRecord]) -> None:
        """Epochs that the store has now, perhaps not for the first time."""
        before = sum(self._epochs.values())
        for record in records:
            self._epochs[record.trial_key] = max(record.epoch, self._epochs.get(record.trial_key, 0))
        if sum(self._epochs.values()) > before:
            self._log()

    def _log(self) -> None:
        """What is spent by now."""
        released = [*self._deleted, *(Release(self._trials[key], epochs) for key, epochs in self._epochs.items())]
        spent = self._filter.epsilon(self._filter.spent(released))
        self._store.log_sweep({"epsilon/spent": spent}, {}, step=sum(release.epochs for release in released))


def released_by(store: Reader) -> list[Release]:
    """What the open sweep has released; nothing of one that was never opened."""
    return store.released() if store.is_open else []


def filter_of(experiment: Experiment, store: Reader) -> Filter | None:
    """The filter of a sweep with a budget: of the order with which it began.

    Raises:
        ConfigError: as `make_filter`; for a budget other than that with which it began, and for trials in the store
            that it cannot cover.
    """
    before = store.budget() if store.is_open else None
    now = [experiment.budget.epsilon, experiment.budget.delta] if experiment.budget else None
    if before and before[:2] != now:
        raise ConfigError(f"budget: must be that with which the sweep began, epsilon {before[0]:g} at delta "
                          f"{before[1]:g}, as one that results have changed covers nothing, got "
                          f"{f'epsilon {now[0]:g} at delta {now[1]:g}' if now else 'none'}; give the experiment "
                          "another name")
    if not experiment.budget:
        return None
    released = released_by(store)
    if released and not before:
        raise ConfigError(f"budget: must be there from the beginning, but {counted(len(released), 'trial')} of the "
                          f"sweep began without one, got epsilon {now[0]:g} at delta {now[1]:g}; give the experiment "
                          "another name")
    for name in ("dataset", "sampler", "delta", "noise"):
        known = {getattr(corner, name) for corner in experiment.corners}
        for trial in (release.trial for release in released):
            if getattr(trial, name) not in known:
                raise ConfigError(f"{name}: must be that of all trials under a budget, got {getattr(trial, name)} of "
                                  f"trial {trial.trial_key}, which the sweep has; give the experiment another name")
    filter = make_filter(experiment, int(before[2]) if before else None)
    filter.spent(released)  # of each it must know the cost
    return filter
