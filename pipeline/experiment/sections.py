"""Short entries of an experiment file. Each is a class, whose fields are the keys that the file may give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pipeline.experiment.grid import read_as
from pipeline.experiment.search import Search
from pipeline.experiment.stopping import check_alike
from pipeline.experiment.yaml_text import is_number, placed
from pipeline.trials.config import ConfigError
from pipeline.trials.fields import check_whole, refuse
from pipeline.trials.naming import counted
from pipeline.trials.unused import Written

if TYPE_CHECKING:
    from pipeline.experiment.grid import Section


@dataclass(frozen=True)
class Halving:
    """Successive halving: trials of a search are stopped early if others were better after as many epochs.

    A trial is promoted at a rung if it is among the best 1/factor of the trials that have reached the rung so far
    (ASHA; Li et al. 2020, "A system for massively parallel hyperparameter tuning").
    """

    rule: str  # `asha`
    grace: int  # epochs of every trial before the first rung
    factor: int = 3  # one in `factor` trials is promoted at a rung

    def __post_init__(self) -> None:
        if self.rule != "asha":
            raise ConfigError(f"stop.rule: must be one of asha, got {self.rule!r}")
        check_whole("stop.grace", self.grace, 1)
        check_whole("stop.factor", self.factor, 2)

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return grace, grace factor, grace factor^2, ... below a trial's epochs: after these it may be stopped."""
        rungs = []
        rung = self.grace
        while rung < epochs:
            rungs.append(rung)
            rung *= self.factor
        return tuple(rungs)


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) of all trials of a search together, however each trial was chosen."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name, high, limit in (("epsilon", math.inf, "finite"), ("delta", 1, "< 1")):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value < high:
                raise ConfigError(f"budget.{name}: must be a number > 0 and {limit}, got {value!r}")
            object.__setattr__(self, name, float(value))

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"


@dataclass(frozen=True)
class Reference:
    """One published result of others, as printed, which a frontier shows beside the experiment's own."""

    source: str  # authors, and the model if needed
    epsilon: float  # of the certified (epsilon, delta)-differential privacy
    delta: float
    accuracy: float  # on the test records, in percent

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source.strip():
            raise ConfigError(f"references.source: must say who published the result, got {self.source!r}")
        for name, high, limit in (("epsilon", math.inf, ""), ("delta", 1, " and at most 1"),
                                  ("accuracy", 100, " and at most 100 percent")):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value <= high:
                raise ConfigError(f"references.{name}: must be > 0{limit}, got {value!r}")


@dataclass(frozen=True)
class Chosen:
    """How the settings of a file were found before the sweep, as its author states it.

    The epsilon of the file's trials does not cover these runs. A report shows the statement, and warns about settings
    without one.
    """

    runs: int  # trained and compared
    by: str  # criterion of the comparison or, without runs, source of the settings, in words
    seeds: tuple[int, ...] | int = ()  # of the runs, or their number; empty without runs

    def __post_init__(self) -> None:
        check_whole("chosen.runs", self.runs, 0)
        if not isinstance(self.by, str) or not self.by.strip():
            raise ConfigError(f"chosen.by: must say what the runs were compared by, as `validation accuracy`, got "
                              f"{self.by!r}")
        if not self.runs:
            if self.seeds != ():
                raise ConfigError(f"chosen.seeds: must be left out where no run was made, got {self.seeds!r}")
        elif self.seeds == ():
            raise ConfigError(f"chosen: needs seeds, got {dict(runs=self.runs, by=self.by)!r}")
        elif isinstance(self.seeds, list | tuple):
            are_whole = all(type(seed) is int and seed >= 0 for seed in self.seeds)
            if not self.seeds or not are_whole or len(set(self.seeds)) < len(self.seeds):
                raise ConfigError(f"chosen.seeds: must be a list of different whole numbers >= 0, or how many there "
                                  f"were, got {list(self.seeds)!r}")
            object.__setattr__(self, "seeds", tuple(self.seeds))
        elif type(self.seeds) is not int or self.seeds < 1:
            raise ConfigError(f"chosen.seeds: must be a list of seeds, or a whole number >= 1 of how many there were, "
                              f"got {self.seeds!r}")

    def __str__(self) -> str:
        """Return how the settings were chosen, for example `12 runs, by validation accuracy, seeds 0, 1`."""
        if not self.runs:
            return f"by no run: {self.by.strip()}"
        if isinstance(self.seeds, int):
            seeds = counted(self.seeds, "seed")
        else:
            seeds = f"{'seed' if len(self.seeds) == 1 else 'seeds'} {', '.join(map(str, self.seeds))}"
        return f"{counted(self.runs, 'run')}, by {self.by.strip()}, {seeds}"


def _of_search(section: type[Section], name: str, top: Mapping[str, Any], search: Search | None, purpose: str,
               use: str = "") -> Section | None:
    """Return an entry that a file may have beside a search alone; None if it has no such entry."""
    if name not in top:
        return None
    refuse(search is None, name, purpose, f"{top[name]!r} without one", use)
    return read_as(section, top[name], name)


def read_stop(top: Mapping[str, Any], search: Search | None, corners: Sequence[Written],
              pack_size: int) -> Halving | None:
    """Return when trials of a file's search are stopped; None if the file has no entry `stop`."""
    stop = _of_search(Halving, "stop", top, search,
                      "stops trials of a search, whose accuracies are compared as they come")
    if stop is None:
        return None
    max_epochs = max(trial.epochs for trial, _ in corners)
    if stop.grace >= max_epochs:
        raise ConfigError(f"stop.grace: must be less than the {max_epochs} epochs of a trial, or none is ever stopped, "
                          f"got {stop.grace}")
    if pack_size > 1:
        raise ConfigError(f"resources.pack_size: must be 1 with `stop`, as trials of a pack cannot end one by one, got "
                          f"{pack_size}; leave it out")
    return stop


def read_budget(top: Mapping[str, Any], search: Search | None, corners: Sequence[Written]) -> Budget | None:
    """Return the privacy budget of a file's search; None if the file has no entry `budget`."""
    budget = _of_search(Budget, "budget", top, search,
                        "is spent by a search, which asks for its trials one round after the other",
                        "the price of a fixed grid is `selected`")
    if budget is None:
        return None
    check_alike(corners, "trial", "under a budget")
    for trial, places in corners:
        with placed(places):
            refuse(trial.delta != budget.delta, "budget.delta", f"must be the delta of the trials, {trial.delta:g}, as "
                   "there is one delta for all", f"{budget.delta:g}")
            refuse(trial.disclosure != "noisy", "private_metrics", "must be 'noisy' under a budget, as validation "
                   "accuracy without noise is not private, and without validation accuracy nothing can be chosen",
                   f"'{trial.disclosure}'")
    return budget


def read_references(top: Mapping[str, Any]) -> tuple[Reference, ...]:
    """Return the published results that a file lists under `references`."""
    entries = top.get("references", [])
    if not isinstance(entries, list):
        raise ConfigError(f"references: must be a list of published results, got {entries!r}")
    references = []
    names = [field.name for field in fields(Reference)]
    for index, entry in enumerate(entries):
        place = f"references[{index}]"
        with placed({f"references.{name}": f"{place}.{name}" for name in names}):  # its errors say of which entry
            references.append(read_as(Reference, entry, place))
    return tuple(references)
