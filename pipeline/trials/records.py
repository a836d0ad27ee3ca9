"""Results of training: one record per trial and epoch, and the outcome at the end of a trial.

Plain data without torch, MLflow or Ray, so that every package can use it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

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


@dataclass(frozen=True)
class Release:
    """What a tracked run has published of a trial."""

    trial: TrialConfig
    epochs: int  # released: the published and the lost ones
    deleted: bool = False  # whether the run was deleted since; its release still counts
    draw: str = ""  # name of the draw of secret noise; empty without secret noise, and for runs without a name
    lost: int = 0  # epochs of failed attempts that were not published, up to the last
    earlier: int = 0  # epochs that its epsilon composes besides its published epochs

    @property
    def published(self) -> int:
        """Return the number of epochs in the store."""
        return self.epochs - self.lost

    def whole(self) -> Release:
        """Return this release as it is once the trial has trained to its end; lost epochs still count."""
        return replace(self, epochs=self.trial.epochs + self.lost)


@dataclass(frozen=True)
class Draw:
    """A worker's request before it draws secret noise for a pack, or resumes from a checkpoint.

    A second draw of the same epochs is a second release of the same records. So the writer of the tracking store
    charges the draw before it answers (docs/privacy.md, section 10).
    """

    name: str  # random; it distinguishes draws and reveals nothing about the noise
    epoch: int = 0  # of the checkpoint from which this draw would resume; 0 for a new draw
    reason: str = ""  # for a new draw, why the checkpoint is not used; empty without a checkpoint


@dataclass
class Computing:
    """How far a worker is with a data set's features, which it computes before its first epoch."""

    features: str  # for people, `scattering of mnist`
    total: int  # records to map; with maps side by side, a record counts once for each
    done: int = 0
    began: float = field(default_factory=time.monotonic)  # on the worker's clock
    seconds: float = 0.0  # from the begin to the last record that is done

    def add(self, n: int) -> bool:
        """Count n more records as done; return whether that is a report: `REPORTS` are made at most."""
        before, self.done = self.done, self.done + n
        self.seconds = time.monotonic() - self.began
        return before * REPORTS // self.total < self.done * REPORTS // self.total

    def __str__(self) -> str:
        """Return this for people, `scattering of mnist: 34%, 3 min left`; at least one record must be done."""
        seconds_left = self.seconds * (self.total - self.done) / self.done
        return f"{self.features}: {self.done / self.total:.0%}, {duration(seconds_left)} left"
