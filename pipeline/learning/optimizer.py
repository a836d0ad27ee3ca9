"""How an update moves the weights, and the average of the iterates that may be released in their place."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch

from pipeline.trials.config import TrialConfig


def make_optimizer(config: TrialConfig, parameters: torch.Tensor) -> torch.optim.Optimizer:
    """The pack's optimizer; element-wise, so that stacked trials do not touch each other."""
    if config.optimizer == "adam":
        return torch.optim.Adam([parameters], lr=config.learning_rate, fused=True)
    return torch.optim.SGD([parameters], lr=config.learning_rate, momentum=config.momentum, fused=True)


def learning_rate(config: TrialConfig, done: int) -> float:
    """eta of the step that comes after `done` steps of a run: it falls from the trial's to 0, if it falls."""
    progress = done / (config.epochs * config.steps_per_epoch)
    return config.learning_rate * {"constant": 1.0, "linear": 1 - progress,
                                   "cosine": (1 + math.cos(math.pi * progress)) / 2}[config.schedule]


class MovingAverage:
    """Exponential moving average of the iterates, w <- d w + (1 - d) w_t: post-processing of what is released.

    The decay of step t is min(d, t/(t + 9)), so that the first iterates are soon forgotten.

    Args:
        iterate: w_t, which the optimizer changes in place.
        decay: d.
    """

    def __init__(self, iterate: torch.Tensor, decay: float) -> None:
        self.iterate, self.decay, self.steps = iterate, decay, 0
        self.mean = iterate.clone()

    def update(self) -> None:
        """Take in the iterate of the step just made."""
        self.steps += 1
        self.mean.lerp_(self.iterate, 1 - min(self.decay, self.steps / (self.steps + 9)))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The average stands in the place of the iterate."""
        iterate = self.iterate.clone()
        self.iterate.copy_(self.mean)
        try:
            yield
        finally:
            self.iterate.copy_(iterate)
