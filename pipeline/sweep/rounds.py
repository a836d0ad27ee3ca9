"""The trials of a search, round by round, within its budget; and its searchers, from Ray Tune.

A round is a set of suggestions made together. When all its trials have ended, the searcher gets their scores, in the
order of the suggestions, and suggests the next round. So a search that runs again suggests the same trials, and finds
the finished ones in the store. A suggestion that did not fit the budget then is passed over again, even if it would fit
now. Like `pipeline.sweep.cluster`, this is imported after `pipeline.sweep` has set Ray's environment variables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import numpy as np
from ray import tune

from pipeline.experiment.plan import Plan
from pipeline.experiment.search import Domain, Search
from pipeline.sweep.ledger import filter_of, unlike
from pipeline.tracking import artifacts
from pipeline.tracking.artifacts import DONE, ENDED, Suggestion, TrackedRun, config_of, done_of, names_of
from pipeline.tracking.reader import Reader
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import Release


class Searcher(Protocol):
    """Suggests settings, and learns from their scores."""

    def ask(self) -> dict[str, Any]:
        """Suggest a value for every setting of the space."""

    def tell(self, number: int, score: float | None) -> None:
        """Report the score of suggestion `number`, from 0; None if it has none."""


def make_searcher(search: Search) -> Searcher:
    """Make the searcher that a search names."""
    makers: dict[str, Callable[[Search], Searcher]] = {"random": RandomSearcher, "optuna": OptunaSearcher}
    return makers[search.algorithm](search)


class RandomSearcher:
    """Draws every suggestion independently."""

    def __init__(self, search: Search) -> None:
        self._space, self._generator = search.space, np.random.default_rng(search.seed)

    def ask(self) -> dict[str, Any]:
        return {name: chosen(domain, tune_domain(domain).sample(random_state=self._generator))
                for name, domain in self._space.items()}

    def tell(self, number: int, score: float | None) -> None:
        pass


class OptunaSearcher:
    """Optuna's tree-structured Parzen estimator; a round's trials without a score count as bad (constant liar)."""

    def __init__(self, search: Search) -> None:
        import optuna  # imported here, as few sweeps need it
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space = OptunaSearch.convert_search_space({name: tune_domain(domain) for name, domain in search.space.items()})
        sampler = optuna.samplers.TPESampler(seed=search.seed, constant_liar=True)
        self._search = search
        self._n_suggestions = 0
        self._searcher = OptunaSearch(space, metric=search.metric, mode="max", sampler=sampler)

    def ask(self) -> dict[str, Any]:
        values = self._searcher.suggest(str(self._n_suggestions))
        self._n_suggestions += 1
        if not isinstance(values, dict):
            raise RuntimeError(f"Optuna must suggest settings for trial {self._n_suggestions} of the search, got "
                               f"{values!r}")
        return {name: chosen(domain, values[name]) for name, domain in self._search.space.items()}

    def tell(self, number: int, score: float | None) -> None:
        result = None if score is None else {self._search.metric: score}
        self._searcher.on_trial_complete(str(number), result, error=score is None)


def tune_domain(domain: Domain) -> Any:
    """Return a setting's possible values as a domain of Ray Tune; a choice becomes its index, as it may be a list."""
    if domain.kind == "choice":
        return tune.choice(range(len(domain.values)))
    kinds = {"uniform": tune.uniform, "loguniform": tune.loguniform, "randint": tune.randint}
    return kinds[domain.kind](*domain.values)


def chosen(domain: Domain, value: Any) -> Any:
    """Return the setting for a value of `tune_domain`."""
    return domain.values[value] if domain.kind == "choice" else domain.tidy(value)


class Rounds:
    """The rounds of a sweep. Without a search, its trials are one round."""

    def __init__(self, plan: Plan, store: Reader, make: Callable[[Search], Searcher] = make_searcher,
                 elsewhere: Collection[TrackedRun] = ()) -> None:  # runs that may be taken over, with their noise
        """Restore from the store the filter of the budget, if the plan has one, and what was passed over before."""
        self._plan, self._store, self.filter = plan, store, filter_of(plan, store)
        self._asking = (plan, make(plan)) if isinstance(plan, Search) else None
        self.suggestions = [] if plan.asks else [Suggestion(trial, True) for trial in plan.trials]
        self._before = store.decisions() if self.filter and store.is_open else []
        self._elsewhere = elsewhere
        self._may_be_secure = any(trial.secure for trial in plan.possible)
        self.gone: set[str] = set()  # trial_keys with secret noise that were released and then deleted
        self.named: set[str] = set()  # trial_keys with secret noise that were released
        self._runs: dict[str, TrackedRun] = {}  # by trial_key
        self.done: dict[str, str] = {}  # trial_key -> status of trials that are trained no more
        self._noise: dict[str, dict[str, float]] | None = None  # by trial_key, as recorded before this sweep
        self._reported = 0  # number of suggestions with scores that the searcher has

    @property
    def trials(self) -> tuple[TrialConfig, ...]:
        """Trials that were allowed to start, each once, with the calibrated noise of their runs if they have begun."""
        return tuple(map(self._as_recorded, artifacts.started(self.suggestions)))

    def _as_recorded(self, trial: TrialConfig) -> TrialConfig:
        """Return a trial with the noise of its run, in this sweep or in the one that it is taken over from."""
        return trial.with_recorded_noise((self._noise or {}).get(trial.trial_key, {}))

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
        return sum(trial.trial_key in self.done for trial in self.trials)

    @property
    def later(self) -> int:
        """Number of suggestions that are left to make."""
        return self._plan.planned - len(self.suggestions)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the sweep: its budget with the order of its filter, and what scores choose or ask for."""
        plan, tags = self._plan, {}
        if not plan.publishes_all:
            before = self._store.tags().get(artifacts.BY_SCORES, plan.rule) if self._store.has_begun else plan.rule
            tags[artifacts.BY_SCORES] = plan.rule if before in (plan.rule, "true") else "several"
        if plan.by_scores:
            tags[artifacts.ASKED_BY_SCORES] = "true"
        return tags | ({artifacts.BUDGET: json.dumps(self.filter.initial_state)} if self.filter else {})

    def note(self, runs: Collection[TrackedRun]) -> None:
        self._runs = {run.trial_key: run for run in runs}
        self.gone = self._store.gone(runs) if self._may_be_secure and self._store.has_begun else set()
        self.named = self.gone | {run.trial_key for run in runs if names_of(run.tags)}
        self.done = {**dict.fromkeys(self.gone, "deleted"), **done_of(runs)}
        if self._noise is None:
            self._noise = {run.trial_key: artifacts.recorded_noise(run) for run in (*self._elsewhere, *runs)}

    def next(self, runs: Collection[TrackedRun]) -> list[TrialConfig]:
        """Return the trials to train: the last round's that are not done, else the next round's; none at the end."""
        self.note(runs)
        while True:
            missing = [trial for trial in self.trials if trial.trial_key not in self.done]
            if missing or not self._asking or not self.later:
                return missing
            search, searcher = self._asking
            for number in range(self._reported, len(self.suggestions)):
                suggestion = self.suggestions[number]
                run = self._runs.get(suggestion.trial.trial_key) if suggestion.started else None
                score = run.metrics.get(search.metric) if run and run.status in DONE else None
                searcher.tell(number, score)
            self._reported = len(self.suggestions)
            self._suggest_round(search, searcher)

    def _suggest_round(self, search: Search, searcher: Searcher) -> None:
        """Add the next round's suggestions; a trial may start if all epochs of all trials so far fit the budget."""
        planned = self._reserved() if self.filter else []
        for _ in range(min(search.round_size, self.later)):
            trial = search.trial(searcher.ask())
            number = len(self.suggestions)  # an earlier run may have passed over this one
            starts = not (number < len(self._before) and self._before[number] == (trial.trial_key, False))
            if self.filter and starts and trial.trial_key not in self.done:  # done trials cost nothing more
                with_it = [*planned, self._whole(trial)]
                starts = self.filter.admits(with_it)
                planned = with_it if starts else planned
            self.suggestions.append(Suggestion(trial, starts))

    def _reserved(self) -> list[Release]:
        """Return what is spent or reserved: all releases so far, and all epochs of every trial that has not ended."""
        # Also of earlier commands. A run without params is of a driver that died before it had written them.
        begun = [config_of(run) for run in self._runs.values() if run.params and run.status not in ENDED]
        open_ = [trial for trial in (*begun, *self.trials) if trial.trial_key not in self.done]
        return [*self._store.released(), *map(self._whole, open_)]

    def admits(self, trials: Iterable[TrialConfig]) -> bool:
        """Whether the budget, if there is one, covers these trials beside all that is released and reserved."""
        if not self.filter:
            return True
        if any(unlike(self._plan, trial) for trial in trials):
            return False
        return self.filter.admits([*self._reserved(), *map(self._whole, trials)])

    def _whole(self, trial: TrialConfig) -> Release:
        return Release(self._as_recorded(trial), trial.epochs)
