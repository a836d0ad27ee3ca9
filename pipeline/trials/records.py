"""Results of training: one record per trial and epoch, and the outcome at the end of a trial.

Plain data without torch, MLflow or Ray, so that every package can use it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline.trials.naming import duration

if TYPE_CHECKING:
    import numpy as np

    from pipeline.trials.config import TrialConfig

CLOCK = "time/epoch_seconds"  # every epoch has this metric
ACCURACY = "validation/accuracy"  # settings are chosen by this metric
REPORTS = 50  # most reports on how far features are
DESCRIPTION = "description"  # tag with a trial's description in Markdown


@dataclass(frozen=True)
class ClassAccuracy:
    """Accuracy on the records of one class: `correct` of `count`."""

    label: int
    split: str
    count: int
    correct: int


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    status: str  # `finished`, or `diverged` (a weight became infinite or nan; metrics are kept)
    weights: Mapping[str, np.ndarray]  # final parameters: `layer_1.weight` [n_out, n_in], `layer_1.bias` [n_out], ...
    per_class: tuple[ClassAccuracy, ...]  # on validation and test


@dataclass(frozen=True)
class EpochRecord:
    """The report of one epoch of one trial."""

    trial_key: str
    epoch: int  # 1-based; also the MLflow step
    metrics: Mapping[str, float]  # finite, by MLflow name (`validation/accuracy`, `epsilon/claimed/second/iterations`)
    # What is no number: privacy labels, the reason for a missing epsilon, the device.
    tags: Mapping[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None  # only in a trial's last record

    def as_entry(self) -> dict[str, Any]:
        """Return the record as JSON values, without weights; `from_entry` reads it."""
        entry = asdict(replace(self, outcome=None))
        if self.outcome:
            entry["outcome"] = {"status": self.outcome.status, "per_class": [asdict(c) for c in self.outcome.per_class]}
        return entry

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> EpochRecord:
        """Return the record of an entry, with the final weights of its trial if it has an outcome."""
        if not entry["outcome"]:
            return cls(**entry)
        per_class = tuple(ClassAccuracy(**fields) for fields in entry["outcome"]["per_class"])
        return cls(**{**entry, "outcome": Outcome(entry["outcome"]["status"], weights, per_class)})


@dataclass(frozen=True)
class Release:
    """What a trial has released under one name of its secret noise, or with recorded noise in one run."""

    trial: TrialConfig
    epochs: int  # with secret noise all that are planned, however the trial ends
    deleted: bool = False  # whether the run was deleted since; its release still counts
    name: str = ""  # of the sealed result; empty with recorded noise


@dataclass(frozen=True)
class Hidden:
    """Progress of a pack with secret noise, the same whichever of its trials have diverged: nothing else is told."""

    epoch: int
    note: str = ""  # on the pack's checkpoint


@dataclass(frozen=True)
class Sealed:
    """A worker's word that a pack's result is sealed; it sends the result once the driver has recorded the name."""

    name: str  # random: it tells nothing of the result
    host: str  # where the file lies


@dataclass(frozen=True)
class Result:
    """All that a pack with secret noise releases: every epoch of every trial, or how it failed."""

    records: Sequence[EpochRecord] = ()  # by epoch; each trial's last one has its outcome
    failure: str = ""  # kind and place of the exception that ended the pack
    traceback: str = ""  # of that exception, for the private folder alone


@dataclass(frozen=True)
class Working:
    """Where a pack is trained, so that its worker can be ended there."""

    node: str  # Ray's id
    pid: int


@dataclass
class Computing:
    """How far a worker is with a data set's features, which it computes before its first epoch."""

    features: str  # for people, `scattering of mnist`
    total: int  # records to map; with maps side by side, a record counts once for each
    done: int = 0
    began: float = field(default_factory=time.monotonic)  # on the worker's clock
    seconds: float = 0.0  # from the begin to the last record that is done

    def add(self, n: int) -> bool:
        """Count n more records as done; return whether to report that, which is so at most `REPORTS` times."""
        before = self.done
        self.done += n
        self.seconds = time.monotonic() - self.began
        return before * REPORTS // self.total < self.done * REPORTS // self.total

    def __str__(self) -> str:
        """Return this for people, `scattering of mnist: 34%, 3 min left`; at least one record must be done."""
        seconds_left = self.seconds * (self.total - self.done) / self.done
        return f"{self.features}: {self.done / self.total:.0%}, {duration(seconds_left)} left"
