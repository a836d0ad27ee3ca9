"""What training hands on: one record per trial and epoch, and the outcome that closes a trial.

Plain data, without torch, MLflow or Ray, so that every room to the left and right can speak of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from pipeline.trials.config import TrialConfig

CLOCK = "time/epoch_seconds"  # a metric that every epoch has
ACCURACY = "validation/accuracy"  # what settings are chosen by
DESCRIPTION = "description"  # the tag of a trial's text for people, Markdown


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
        status: `finished`, `diverged` (a weight stopped being finite; metrics until then are kept), or `stopped` early.
        weights: final parameters by name (`layer_1.weight` [n_out, n_in], `layer_1.bias` [n_out], ...).
        per_class: accuracy by class, on validation and test.
    """

    status: str
    weights: Mapping[str, np.ndarray]
    per_class: tuple[ClassAccuracy, ...]


@dataclass(frozen=True)
class EpochRecord:
    """Everything that one trial has to report of one epoch.

    Attributes:
        trial_key: identity of the trial (`TrialConfig.trial_key`).
        epoch: 1-based; also the MLflow step.
        metrics: finite numbers by MLflow name (`validation/accuracy`, `epsilon/claimed/second/iterations`, ...).
        tags: what is not a number: privacy labels, the reason why an epsilon is not logged, the device.
        outcome: only on a trial's last record.
        if_stopped: what takes the place of this record if the trial is stopped after it, where it may be.
    """

    trial_key: str
    epoch: int
    metrics: Mapping[str, float]
    tags: Mapping[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None
    if_stopped: EpochRecord | None = None


@dataclass(frozen=True)
class Release:
    """What a tracked run has made known of a trial.

    Attributes:
        epochs: that count as released: those that were published, and those that were lost.
        deleted: whether the run was deleted since; what it released stays released.
        draw: name of the draw of secret noise that they came from; empty without, and of runs that do not say.
        lost: of attempts that failed, the epochs that were not published, to the last.
        earlier: epochs that its epsilon composes beside those that it publishes.
    """

    trial: TrialConfig
    epochs: int
    deleted: bool = False
    draw: str = ""
    lost: int = 0
    earlier: int = 0

    @property
    def published(self) -> int:
        """Epochs that the store has."""
        return self.epochs - self.lost

    def whole(self) -> Release:
        """As it is at most, if the trial goes on to its end."""
        return replace(self, epochs=self.trial.epochs + self.lost)


@dataclass(frozen=True)
class Draw:
    """What a worker asks before it draws secret noise for a pack, or goes on with what a checkpoint has.

    A second draw of the same epochs is a second release of the same records, so whoever writes the tracking store
    charges it before it answers (docs/privacy.md, section 10).

    Attributes:
        name: random; it tells draws apart and says nothing of what was drawn.
        epoch: of the checkpoint from which this draw would go on; 0 for a draw that is new.
        reason: of a new one, why no checkpoint is used; empty where there is none.
    """

    name: str
    epoch: int = 0
    reason: str = ""
