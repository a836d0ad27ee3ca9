"""Short entries of an experiment file. Each is a class, whose fields are the keys that the file may give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.trials.config import ConfigError
from pipeline.trials.feedback import algorithm_labels
from pipeline.trials.fields import check_whole, is_whole, refuse
from pipeline.trials.naming import counted
from pipeline.trials.part import SETTINGS


@dataclass(frozen=True)
class Shown:
    """What the report of a sweep shows; a list in a file has the exhibits."""

    exhibits: tuple[str, ...] | None = None  # their names; all that fit, if there is no list
    best_of: tuple[str, ...] = ()  # settings of which a figure takes the best, by validation accuracy
    labels: Mapping[str, str] = field(default_factory=dict)  # of algorithms, in place of their own

    def __post_init__(self) -> None:
        for name, what in (("exhibits", "exhibits"), ("best_of", "settings, as `[learning_rate]`")):
            value = getattr(self, name)
            if value is None:
                continue
            refuse(not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value),
                   "report" if name == "exhibits" else f"report.{name}", f"must be a list of {what}", repr(value))
            object.__setattr__(self, name, tuple(value))
        for setting in self.best_of:
            refuse(setting not in SETTINGS or setting == "seed", "report.best_of",
                   "must be settings (`photonic fields`) other than the seed", repr(setting))
        labels = self.labels
        refuse(not isinstance(labels, Mapping), "report.labels", "must be a mapping from algorithms to names",
               repr(labels))
        for algorithm, label in labels.items():
            refuse(algorithm not in algorithm_labels(), "report.labels", f"must be of {', '.join(algorithm_labels())}",
                   repr(algorithm))
            refuse(not isinstance(label, str) or not label.strip(), f"report.labels.{algorithm}", "must be text",
                   repr(label))


@dataclass(frozen=True)
class Chosen:
    """How a file's settings were found before the sweep, as its author states it; no epsilon covers those runs."""

    runs: int  # trained and compared
    by: str  # criterion of the comparison or, without runs, source of the settings, in words
    seeds: tuple[int, ...] | int = ()  # of the runs, or their number; empty without runs

    def __post_init__(self) -> None:
        check_whole("chosen.runs", self.runs, 0)
        refuse(not isinstance(self.by, str) or not self.by.strip(), "chosen.by",
               "must say what the runs were compared by, as `validation accuracy`", repr(self.by))
        if not self.runs:
            refuse(self.seeds != (), "chosen.seeds", "must be left out where no run was made", repr(self.seeds))
        elif self.seeds == ():
            raise ConfigError(f"chosen: needs seeds, got {dict(runs=self.runs, by=self.by)!r}")
        elif isinstance(self.seeds, list | tuple):
            refuse(not (self.seeds and all(is_whole(seed, 0) for seed in self.seeds)
                        and len(set(self.seeds)) == len(self.seeds)), "chosen.seeds",
                   "must be a list of different whole numbers >= 0, or how many there were", list(self.seeds))
            object.__setattr__(self, "seeds", tuple(self.seeds))
        else:
            refuse(not is_whole(self.seeds), "chosen.seeds",
                   "must be a list of seeds, or a whole number >= 1 of how many there were", repr(self.seeds))

    def __str__(self) -> str:
        """Return how the settings were chosen, for example `12 runs, by validation accuracy, seeds 0, 1`."""
        if not self.runs:
            return f"by no run: {self.by.strip()}"
        if isinstance(self.seeds, int):
            seeds = counted(self.seeds, "seed")
        else:
            seeds = f"{'seed' if len(self.seeds) == 1 else 'seeds'} {', '.join(map(str, self.seeds))}"
        return f"{counted(self.runs, 'run')}, by {self.by.strip()}, {seeds}"
