"""The trials of a search, round by round, within its budget.

A round is a set of suggestions made together. When all its trials have ended, the searcher gets their scores, in the
order of the suggestions, and suggests the next round. So a search that runs again suggests the same trials, and finds
the finished ones in the store. A suggestion that did not fit the budget then is passed over again, even if it would fit
now.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator

from pipeline.experiment.plan import Plan
from pipeline.experiment.search import Search
from pipeline.experiment.sections import Halving
from pipeline.sweep.ledger import apart, filter_of, released_by
from pipeline.sweep.searchers import Searcher
from pipeline.tracking.artifacts import (
    BUDGET,
    DONE,
    REFUSED,
    Suggestion,
    TrackedRun,
    done_of,
    recorded_noise,
    started,
)
from pipeline.tracking.reader import Reader
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import ACCURACY, Release


class Rounds:
    """The rounds of a sweep. Without a search, its trials are one round."""

    def __init__(self, plan: Plan, store: Reader, make: Callable[[Search], Searcher]) -> None:  # of a search
        """Restore from the store the filter of the budget, if the plan has one, and what was passed over before."""
        self._plan, self._store, self.filter = plan, store, filter_of(plan, store)
        self._asking = (plan, make(plan)) if isinstance(plan, Search) else None
        self.suggestions = [] if plan.asks else [Suggestion(trial, True) for trial in plan.trials]
        self._before = store.decisions() if self.filter and store.is_open else []
        self._runs: dict[str, TrackedRun] = {}  # by trial_key
        self._done: dict[str, str] = {}  # trial_key -> status of trials that need no more training
        self._refused: set[str] = set()  # trial_keys
        self._noise: dict[str, dict[str, float]] | None = None  # by trial_key, as recorded before this sweep
        self._reported = 0  # number of suggestions with scores that the searcher has

    @property
    def trials(self) -> tuple[TrialConfig, ...]:
        """Trials that were allowed to start, each once; those that have begun with the noise that their runs record."""
        noise = self._noise or {}
        return tuple(trial.with_recorded_noise(noise.get(trial.trial_key, {})) for trial in started(self.suggestions))

    @property
    def plan(self) -> Plan:
        """The plan with the trials so far."""
        return self._plan.with_trials(self.trials)

    @property
    def passed_over(self) -> int:
        """Number of suggestions without a trial of their own: beyond the budget, or equal to an earlier one."""
        return len(self.suggestions) - len(self.trials)

    @property
    def n_done(self) -> int:
        """Number of trials that need no more training."""
        return sum(trial.trial_key in self._done for trial in self.trials)

    @property
    def later(self) -> int:
        """Number of suggestions that are left to make."""
        return self._plan.planned - len(self.suggestions)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the sweep: its budget, and the order of its filter."""
        return {BUDGET: json.dumps(self.filter.initial_state)} if self.filter else {}

    def next(self, runs: Collection[TrackedRun]) -> list[TrialConfig]:
        """Return the trials to train: the last round's that are not done, else the next round's; none at the end."""
        self._runs = {run.trial_key: run for run in runs}
        self._done = done_of(runs)
        if self._noise is None:
            self._noise = {key: recorded_noise(run) for key, run in self._runs.items()}
            self._refused = {key for key, run in self._runs.items() if self.filter and REFUSED in run.tags}
        while True:
            missing = [trial for trial in self.trials if trial.trial_key not in self._done]
            if missing or not self._asking or not self.later:
                return missing
            search, searcher = self._asking
            self._report_scores(search, searcher)
            self._suggest_round(search, searcher)

    def _report_scores(self, search: Search, searcher: Searcher) -> None:
        """Report the last round's scores to the searcher, if it does not have them; None without a score."""
        for number in range(self._reported, len(self.suggestions)):
            suggestion = self.suggestions[number]
            run = self._runs.get(suggestion.trial.trial_key) if suggestion.started else None
            searcher.tell(number, run.metrics.get(search.metric) if run and run.status in DONE else None)
        self._reported = len(self.suggestions)

    def scores(self, stop: Halving) -> Iterator[tuple[str, int, float]]:
        """Yield (trial_key, epoch, score) for every past decision at a rung, in the order of the suggestions."""
        for trial in self.trials:
            run = self._runs.get(trial.trial_key)
            if not run:
                continue
            scores = dict(self._store.history(run.run_id, ACCURACY))
            last = max(scores, default=0)
            decided = last + 1 if run.status in DONE else last  # epochs before this one are decided
            for rung in stop.rungs(trial.epochs):
                if rung in scores and rung < decided:
                    yield trial.trial_key, rung, scores[rung]

    def _suggest_round(self, search: Search, searcher: Searcher) -> None:
        """Add the next round's suggestions; a trial may start if all epochs of all trials so far fit the budget."""
        planned, others = apart(released_by(self._store)) if self.filter else ({}, [])
        for _ in range(min(search.round_size, self.later)):
            trial = search.trial(searcher.ask())
            starts = not self._passed_over(trial)
            if self.filter and starts and trial.trial_key not in self._done:  # done trials cost nothing more
                release = planned.get(trial.trial_key, Release(trial, 0))
                with_it = {**planned, trial.trial_key: release.whole()}
                starts = self.filter.admits([*with_it.values(), *others])
                planned = with_it if starts else planned
            self.suggestions.append(Suggestion(trial, starts))

    def _passed_over(self, trial: TrialConfig) -> bool:
        """Whether an earlier run passed over this trial, the search's next suggestion, or refused it another draw."""
        if trial.trial_key in self._refused:
            return True
        number = len(self.suggestions)  # place of the next suggestion
        return number < len(self._before) and self._before[number] == (trial.trial_key, False)
