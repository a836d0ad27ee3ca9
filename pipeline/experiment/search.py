"""Searches: an algorithm asks for trials from a space of settings, instead of a grid.

    search:
      algorithm: optuna                    # or random
      trials: 40                           # most suggestions
      space:
        learning_rate: {loguniform: [0.05, 5]}
        clipping_norm: {uniform: [0.5, 4]}
        epochs: {randint: [5, 21]}         # stop excluded
        batch_size: {choice: [1024, 2048]}
      seed: 1
      max_concurrent: 4                    # suggestions of one round, asked for before any of its results is known

Ranges have the names of Ray Tune, whose searchers draw from them (`pipeline.sweep.rounds`). Suggestions depend only on
the seed and on the results of earlier rounds: not on the order in which trials end, nor on the machine.

The corners of a space are all combinations of choices and of ends of ranges. They represent the unknown trials when a
file is checked.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.accounting.epsilon import Budget
from pipeline.experiment.grid import Combination, check_number, compose, read_as, read_mapping, read_settings
from pipeline.experiment.plan import Grid, Plan, RandomStopping
from pipeline.experiment.stopping import check_alike, draw, read_selection
from pipeline.experiment.yaml_text import Place, placed
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.feature_file import with_located_features
from pipeline.trials.fields import check_whole, is_number, known_fields, plain, refuse
from pipeline.trials.naming import counted
from pipeline.trials.records import ACCURACY
from pipeline.trials.unused import Written

ALGORITHMS = ("random", "optuna")
KINDS = ("uniform", "loguniform", "randint", "choice")
MOST_CORNERS = 1024
DIGITS = 4  # digits of a suggested number; more carry no information and make names long
ENTRIES = ("algorithm", "trials", "metric", "space", "seed", "max_concurrent")


@dataclass(frozen=True)
class Domain:
    """The possible values of a setting: choices, or numbers of a range."""

    kind: str  # one of `KINDS`
    values: tuple[Any, ...]  # the choices, or (low, high); randint leaves out high

    @property
    def ends(self) -> tuple[Any, ...]:
        """Return all choices, or the least and the largest value of a range, once if they are equal."""
        if self.kind == "randint":
            return tuple(dict.fromkeys((self.values[0], self.values[1] - 1)))
        return self.values

    def has(self, value: Any) -> bool:
        """Whether a setting's `plain` value is one of the choices, or lies in the range."""
        if self.kind == "choice":
            return value in [plain(choice) for choice in self.values]
        return bool(self.ends[0] <= value <= self.ends[-1])

    def tidy(self, value: float) -> float:
        """Return a number suggested for a range: whole for randint, else of `DIGITS` significant digits."""
        if self.kind == "randint":
            return int(value)
        low, high = self.values
        rounded = float(f"{value:.{DIGITS}g}")
        return min(max(rounded, low), high)  # rounding may have left the range


def nothing_fits(asked: int, n_trials: int) -> str:
    """Return why a search has no trial: `n_trials` of its name, of another space before an edit, spent the budget."""
    text = f"none of {counted(asked, 'suggestion')} fits the budget"
    if not n_trials:
        return text
    return f"{text}: {counted(n_trials, 'trial')} of another space spent a part of it"


@dataclass(frozen=True)
class Search(Plan):
    """Trials that an algorithm asks for, each a suggestion of values in a space."""

    algorithm: str  # `random` draws independently; `optuna`: tree-structured Parzen estimator, from all results
    most: int  # suggestions
    base: Mapping[str, Any]  # settings that all trials share
    space: Mapping[str, Domain]  # by setting
    metric: str = ACCURACY  # to maximize, at a trial's last epoch
    seed: int = 0  # of the algorithm
    max_concurrent: int = 4  # suggestions of one round
    preset: str = ""  # sets what base and space leave open; empty for none
    places: Mapping[str, Place] = field(default_factory=dict, compare=False)  # of base and space in the file
    trials: tuple[TrialConfig, ...] = ()
    corners: tuple[TrialConfig, ...] = ()  # of the space
    budget: Budget | None = None
    noun = "corner"
    ends_with_best = "a search"
    asks = True

    @property
    def possible(self) -> tuple[TrialConfig, ...]:
        return self.corners

    @property
    def planned(self) -> int:
        return self.most

    @property
    def adaptive(self) -> bool:
        """Whether suggestions depend on results."""
        return self.algorithm != "random"

    @property
    def by_scores(self) -> bool:
        return self.adaptive or self.budget is not None

    @property
    def round_size(self) -> int:
        """The most suggestions that are made together, before any of their results is known."""
        return self.max_concurrent if self.by_scores else self.most

    def lines(self) -> Iterator[str]:
        rounds = f" in rounds of {self.max_concurrent}" if self.by_scores else ""
        above = "those above are drawn at random from its space" if self.adaptive else "those above"
        fitting = ", as many as fit the budget if none diverges" if self.budget else ""
        yield f"search: {self.algorithm} asks for up to {counted(self.most, 'trial')}{rounds}; {above}{fitting}"

    def trial(self, values: Mapping[str, Any]) -> TrialConfig:
        """Return the trial of one suggestion, a value for every setting of the space; unused settings have defaults."""
        return self._composed(values).trial.pruned()

    def asks_for(self, trial: TrialConfig) -> bool:
        """Whether the trial is one of this space, base and preset; after an edit of the file an earlier one may not."""
        values = {name: plain(getattr(trial, name)) for name in self.space}
        possible = {name: values[name] if domain.has(values[name]) else domain.ends[0]  # an unused one has its default
                    for name, domain in self.space.items()}
        with contextlib.suppress(ConfigError):
            return self.trial(possible).trial_key == trial.trial_key
        return False

    def _composed(self, values: Mapping[str, Any]) -> Combination:
        return compose("search.space", {**self.base, **values}, self.preset, dict(self.places))

    def combinations(self) -> Iterator[Combination]:
        """Yield the trial of every corner; each must be possible, and have a validation accuracy to maximize."""
        for values in itertools.product(*(domain.ends for domain in self.space.values())):
            corner = self._composed(dict(zip(self.space, values, strict=True)))
            with placed({"validation_fraction": "base", "private_metrics": "base", **self.places}):
                for name, value in (("validation_fraction", corner.trial.validation_fraction),
                                    ("private_metrics", corner.trial.disclosure)):
                    if value in (0, "withheld"):
                        raise ConfigError(name, "must leave a validation accuracy, which a search maximizes", value)
            yield corner


def read_search(top: Mapping[str, Any], folder: Path, preset: str) -> Search | None:
    """Return the search of a file in this folder, with its preset; None without the entry `search`."""
    if "search" not in top:
        return None
    for name in ("grid", "zip", "cases", "selection"):
        refuse(name in top, name, "must not stand beside a search, whose space says what varies",
               repr(top.get(name)), "leave one of them out")
    refuse("report" in top, "report", "must be left out beside a search, whose trials are not known before it ran; "
           "every exhibit that they fit is drawn", repr(top.get("report")))
    entry = read_mapping(top["search"], "search", ENTRIES, needed=("algorithm", "trials", "space"))
    refuse(entry["algorithm"] not in ALGORITHMS, "search.algorithm", f"must be one of {', '.join(ALGORITHMS)}",
           repr(entry["algorithm"]))
    for name, low in (("trials", 1), ("seed", 0), ("max_concurrent", 1)):
        check_whole(f"search.{name}", entry.get(name, low), low, below=2**32)
    check_number("search.trials", entry["trials"], "trials")
    metric = entry.get("metric", ACCURACY)
    refuse(metric != ACCURACY, "search.metric", f"must be {ACCURACY}, which noise can cover and settings may be chosen "
           "by", repr(metric))
    refuse(not isinstance(entry["space"], Mapping) or not entry["space"], "search.space",
           "must be a mapping from settings to what they may be", repr(entry["space"]))
    base, base_places = read_settings(top, "base")
    spec, places = read_settings(entry, "space", "search.")
    space = _space(spec, places, base)
    given = {name: value for name, value in entry.items() if name != "trials"}  # the field is called `most`
    return Search(**{**given, "most": entry["trials"], "base": with_located_features(base, folder), "space": space,
                     "preset": preset, "places": base_places | places})


def read_plan(top: Mapping[str, Any], search: Search | None, written: Sequence[Written],
              possible: tuple[TrialConfig, ...]) -> Plan:
    """Return a file's plan: its search with `possible` corners or, of `possible` trials, a grid or random stopping.

    `written` has all of them as the file writes them, with settings that they do not use.
    """
    if search:
        return replace(search, corners=possible, budget=_budget(top, written))
    refuse("budget" in top, "budget", "is spent by a search, which asks for its trials one round after the other",
           f"{top.get('budget')!r} without one", "the price of a fixed grid is `selected`")
    selection = read_selection(top, written)
    return RandomStopping(draw(possible, selection), possible, selection) if selection.is_random else Grid(possible)


def _budget(top: Mapping[str, Any], corners: Sequence[Written]) -> Budget | None:
    if "budget" not in top:
        return None
    budget = read_as(Budget, top["budget"], "budget")
    check_alike(corners, "trial", "under a budget")
    for trial, places in corners:
        with placed(places):
            refuse(trial.delta != budget.delta, "budget.delta", f"must be the delta of the trials, {trial.delta:g}, as "
                   "there is one delta for all", f"{budget.delta:g}")
            refuse(trial.disclosure != "noisy", "private_metrics", "must be 'noisy' under a budget, as validation "
                   "accuracy without noise is not private, and without validation accuracy nothing can be chosen",
                   f"'{trial.disclosure}'")
    return budget


def _space(spec: Mapping[str, Any], places: Mapping[str, Place], base: Mapping[str, Any]) -> dict[str, Domain]:
    """Return the domain of every setting of `search.space`, sorted by name; none may also stand in `base`."""
    names = [f.name for f in settings()]
    for name in spec:
        if name not in names:
            raise ConfigError(f"{places[name]}: unknown field, got {spec[name]!r}; {known_fields(name, names)}")
        if name in base:
            raise ConfigError(f"{places[name]}: also stands in base; give it once")
    space = {name: _domain(places[name], spec[name]) for name in sorted(spec)}
    corners = math.prod(len(domain.ends) for domain in space.values())
    refuse(corners > MOST_CORNERS, "search.space", f"must have at most {MOST_CORNERS} combinations of choices and ends "
           "of ranges, all of which are checked", corners)
    return space


def _domain(place: str, spec: Any) -> Domain:
    """Return the possible values of one setting, at `place`, from a mapping such as `{loguniform: [0.05, 5]}`."""
    refuse(not isinstance(spec, Mapping) or len(spec) != 1 or not spec.keys() <= {*KINDS}, place,
           f"must be one of {', '.join(KINDS)} with its values", repr(spec))
    ((kind, values),) = spec.items()
    if kind == "choice":
        refuse(not isinstance(values, list) or not values, f"{place}.choice", "must be a list of at least one value",
               repr(values))
        return Domain(kind, tuple(values))
    number = int if kind == "randint" else int | float
    are_numbers = isinstance(values, list) and all(
        is_number(value) and isinstance(value, number) and math.isfinite(value) for value in values)
    is_range = are_numbers and len(values) == 2 and values[0] < values[1]
    if not is_range or (kind == "loguniform" and values[0] <= 0):
        form = "[start, stop], whole, stop excluded" if kind == "randint" else "[low, high]"
        positive = " and above 0" if kind == "loguniform" else ""
        raise ConfigError(f"{place}.{kind}: must be {form}, the first below the second{positive}, got {values!r}")
    return Domain(kind, tuple(values) if kind == "randint" else tuple(map(float, values)))
