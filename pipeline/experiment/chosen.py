"""How the settings of an experiment file were found, as its author states it.

    chosen: {runs: 45, by: validation accuracy, seeds: [0]}      # or `seeds: 3`, if nobody noted which
    chosen: {runs: 0, by: the settings of Ohana et al. 2021}     # nothing was tried; they come from elsewhere

The epsilon of the file's trials does not cover these runs. A report shows the statement, and warns about settings
without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.experiment.grid import read_mapping
from pipeline.trials.fields import ConfigError, check_whole
from pipeline.trials.naming import counted

NAMES = ("runs", "by", "seeds")


@dataclass(frozen=True)
class Chosen:
    """How settings were found before the sweep.

    Attributes:
        runs: number of trained and compared runs.
        by: the criterion of the comparison or, without runs, the source of the settings, in words.
        seeds: the runs' seeds or their number; empty without runs.

    Raises:
        ConfigError: unless runs is a whole number >= 0, by is text, and seeds are distinct whole numbers >= 0 or a
            number >= 1. Seeds must be given if and only if there were runs.
    """

    runs: int
    by: str
    seeds: tuple[int, ...] | int = ()

    def __post_init__(self) -> None:
        """Refuse malformed `runs`, `by` or `seeds`, and seeds without a run; store a list of seeds as a tuple."""
        check_whole("chosen.runs", self.runs, 0)
        if not isinstance(self.by, str) or not self.by.strip():
            raise ConfigError(f"chosen.by: must say what the runs were compared by, as `validation accuracy`, got "
                              f"{self.by!r}")
        if not self.runs:
            if self.seeds != ():
                raise ConfigError(f"chosen.seeds: must be left out where no run was made, got {self.seeds!r}")
        elif isinstance(self.seeds, list | tuple):
            are_whole = all(_is_whole(seed) and seed >= 0 for seed in self.seeds)
            are_distinct = are_whole and len(set(self.seeds)) == len(self.seeds)
            if not self.seeds or not are_distinct:
                raise ConfigError(f"chosen.seeds: must be a list of different whole numbers >= 0, or how many there "
                                  f"were, got {list(self.seeds)!r}")
            object.__setattr__(self, "seeds", tuple(self.seeds))
        elif not _is_whole(self.seeds) or self.seeds < 1:
            raise ConfigError(f"chosen.seeds: must be a list of seeds, or a whole number >= 1 of how many there were, "
                              f"got {self.seeds!r}")

    def __str__(self) -> str:
        """Return how the settings were chosen, for example `12 runs, by validation accuracy, seeds 0, 1`."""
        if not self.runs:
            return f"by no run: {self.by.strip()}"
        if isinstance(self.seeds, int):
            seeds = counted(self.seeds, "seed")
        else:
            noun = "seed" if len(self.seeds) == 1 else "seeds"
            seeds = f"{noun} {', '.join(map(str, self.seeds))}"
        return f"{counted(self.runs, 'run')}, by {self.by.strip()}, {seeds}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def read_chosen(top: Mapping[str, Any]) -> Chosen | None:
    """Return the statement of how settings were found, an experiment file's entry `chosen`; None without the entry.

    Raises:
        ConfigError: naming the entry, its value and what is accepted.
    """
    if "chosen" not in top:
        return None
    given = read_mapping(top["chosen"], "chosen", NAMES, needed=NAMES[:2])
    return Chosen(**read_mapping(given, "chosen", NAMES, needed=NAMES if given["runs"] else ()))
