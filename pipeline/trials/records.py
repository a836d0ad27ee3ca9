"""Results of training: one record per trial and epoch, and the outcome at the end of a trial.

Plain data without torch, MLflow or Ray, so that every package can use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from pipeline.trials.config import TrialConfig

CLOCK = "time/epoch_seconds"  # every epoch has this metric
ACCURACY = "validation/accuracy"  # settings are chosen by this metric
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
    """How a trial ended.

    Attributes:
        status: `finished`, `diverged` (a weight became infinite or nan; earlier metrics are kept), or `stopped` early.
        weights: final parameters by name (`layer_1.weight` [n_out, n_in], `layer_1.bias` [n_out], ...).
        per_class: accuracy by class, on validation and test.
    """

    status: str
    weights: Mapping[str, np.ndarray]
    per_class: tuple[ClassAccuracy, ...]


@dataclass(frozen=True)
class EpochRecord:
    """The report of one epoch of one trial.

    Attributes:
        trial_key: identity of the trial (`TrialConfig.trial_key`).
        epoch: 1-based; also the MLflow step.
        metrics: finite numbers by MLflow name (`validation/accuracy`, `epsilon/claimed/second/iterations`, ...).
        tags: values that are not numbers: privacy labels, the reason for a missing epsilon, the device.
        outcome: only in a trial's last record.
        if_stopped: the record that replaces this one if the trial is stopped after it, where stopping is possible.
    """

    trial_key: str
    epoch: int
    metrics: Mapping[str, float]
    tags: Mapping[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None
    if_stopped: EpochRecord | None = None


@dataclass(frozen=True)
class Release:
    """What a tracked run has published of a trial.

    Attributes:
        epochs: released epochs: the published and the lost ones.
        deleted: whether the run was deleted since; its release still counts.
        draw: name of the draw of secret noise; empty without secret noise, and for runs without a name.
        lost: epochs of failed attempts that were not published, up to the last.
        earlier: epochs that its epsilon composes besides its published epochs.
    """

    trial: TrialConfig
    epochs: int
    deleted: bool = False
    draw: str = ""
    lost: int = 0
    earlier: int = 0

    @property
    def published(self) -> int:
        """Return the number of epochs in the store."""
        return self.epochs - self.lost

    def whole(self) -> Release:
        """Return the release if the trial trains to its end."""
        return replace(self, epochs=self.trial.epochs + self.lost)


@dataclass(frozen=True)
class Draw:
    """A worker's request before it draws secret noise for a pack, or resumes from a checkpoint.

    A second draw of the same epochs is a second release of the same records. So the writer of the tracking store
    charges the draw before it answers (docs/privacy.md, section 10).

    Attributes:
        name: random; it distinguishes draws and reveals nothing about the noise.
        epoch: of the checkpoint from which this draw would resume; 0 for a new draw.
        reason: for a new draw, why the checkpoint is not used; empty without a checkpoint.
    """

    name: str
    epoch: int = 0
    reason: str = ""
