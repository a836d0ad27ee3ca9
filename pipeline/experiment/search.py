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

Ranges have the names of Ray Tune, whose searchers draw from them (`pipeline.sweep.tuning`). Suggestions depend only on
the seed and on the results of earlier rounds: not on the order in which trials end, nor on the machine. With `stop`,
results of stopped trials also depend on which trial reached a rung first.

The corners of a space are all combinations of choices and of ends of ranges. They represent the unknown trials when a
file is checked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.experiment.grid import Combination, check_number, compose, read_mapping, read_settings
from pipeline.experiment.yaml_text import Place, is_number, placed
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.feature_file import with_located_features
from pipeline.trials.fields import check_whole, known_fields
from pipeline.trials.records import ACCURACY

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
        """Return all choices, or both ends of a range."""
        if self.kind == "randint":
            return tuple(dict.fromkeys((self.values[0], self.values[1] - 1)))
        return self.values

    def tidy(self, value: float) -> float:
        """Return a suggested number as the range takes it: whole for randint, else with `DIGITS` significant digits."""
        if self.kind == "randint":
            return int(value)
        low, high = self.values
        rounded = float(f"{value:.{DIGITS}g}")
        return min(max(rounded, low), high)  # rounding may have left the range


@dataclass(frozen=True)
class Search:
    """How the trials of a sweep are chosen."""

    algorithm: str  # `random` draws independently; `optuna`: tree-structured Parzen estimator, from all results
    trials: int  # most suggestions
    base: Mapping[str, Any]  # settings that all trials share
    space: Mapping[str, Domain]  # by setting
    metric: str = ACCURACY  # to maximize, at a trial's last epoch
    seed: int = 0  # of the algorithm
    max_concurrent: int = 4  # suggestions of one round
    preset: str = ""  # version that sets what base and space leave open; empty for none
    places: Mapping[str, Place] = field(default_factory=dict, compare=False)  # of base and space in the file

    @property
    def adaptive(self) -> bool:
        """Whether suggestions depend on results."""
        return self.algorithm != "random"

    def trial(self, values: Mapping[str, Any]) -> TrialConfig:
        """Return the trial of one suggestion, a value for every setting of the space; unused fields have defaults."""
        return self._composed(values).trial.pruned()

    def _composed(self, values: Mapping[str, Any]) -> Combination:
        return compose("search.space", {**self.base, **values}, self.preset, dict(self.places))

    def corners(self) -> Iterator[Combination]:
        """Yield the trial of every corner of the search space.

        Each must be possible, and have a validation accuracy to maximize, as corners stand for the unknown trials.
        """
        for values in itertools.product(*(domain.ends for domain in self.space.values())):
            corner = self._composed(dict(zip(self.space, values, strict=True)))
            with placed({"validation_fraction": "base", "private_metrics": "base", **self.places}):
                for name, value in (("validation_fraction", corner.trial.validation_fraction),
                                    ("private_metrics", corner.trial.disclosure)):
                    if value in (0, "withheld"):
                        raise ConfigError(name, "must leave a validation accuracy, which a search maximizes", value)
            yield corner


def read_search(top: Mapping[str, Any], folder: Path, preset: str) -> Search | None:
    """Return the search of a file in this folder, with the version of its preset; None without the entry `search`."""
    if "search" not in top:
        return None
    for name in ("grid", "cases", "selection"):
        if name in top:
            raise ConfigError(f"{name}: must not stand beside a search, whose space says what varies, got "
                              f"{top[name]!r}; leave one of them out")
    entry = read_mapping(top["search"], "search", ENTRIES, needed=("algorithm", "trials", "space"))
    if entry["algorithm"] not in ALGORITHMS:
        raise ConfigError(f"search.algorithm: must be one of {', '.join(ALGORITHMS)}, got {entry['algorithm']!r}")
    for name, low in (("trials", 1), ("seed", 0), ("max_concurrent", 1)):
        check_whole(f"search.{name}", entry.get(name, low), low, below=2**32)
    check_number("search.trials", entry["trials"], "trials")
    if entry.get("metric", ACCURACY) != ACCURACY:
        raise ConfigError(f"search.metric: must be {ACCURACY}, which noise can cover and settings may be chosen by, "
                          f"got {entry['metric']!r}")
    if not isinstance(entry["space"], Mapping) or not entry["space"]:
        raise ConfigError(f"search.space: must be a mapping from settings to what they may be, got {entry['space']!r}")
    base, base_places = read_settings(top, "base")
    spec, places = read_settings(entry, "space", "search.")
    space = _space(spec, places, base)
    return Search(**{**entry, "base": with_located_features(base, folder), "space": space, "preset": preset,
                     "places": base_places | places})


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
    if corners > MOST_CORNERS:
        raise ConfigError(f"search.space: must have at most {MOST_CORNERS} combinations of choices and ends of ranges, "
                          f"all of which are checked, got {corners}")
    return space


def _domain(place: str, spec: Any) -> Domain:
    """Return the possible values of one setting, at `place`, from a mapping such as `{loguniform: [0.05, 5]}`."""
    if not isinstance(spec, Mapping) or len(spec) != 1 or not spec.keys() <= {*KINDS}:
        raise ConfigError(f"{place}: must be one of {', '.join(KINDS)} with its values, got {spec!r}")
    ((kind, values),) = spec.items()
    if kind == "choice":
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{place}.choice: must be a list of at least one value, got {values!r}")
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
