"""Sums of contributions that are rows of floating-point numbers, as integers with secret noise.

A Gaussian mechanism makes one for a user's network. Bounded rows are truncated to multiples of a step of about C/2^19,
which lie on the noise's grid. Truncation makes nothing longer, and sums of these integers are exact in any order
(docs/privacy.md, section 9).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipeline.learning.integers.contributions import SAFETY_FACTOR, Bounds
from pipeline.learning.mechanisms.gradients import GradientRows, Gradients, in_rows, norms
from pipeline.learning.network.stacked import Parameters
from pipeline.learning.randomness import RoundedNoise, seeds_of
from pipeline.trials.config import TrialConfig
from pipeline.trials.steps import GRID_BITS

ROW_BITS = 19  # of C in a row's integers, so that
GROUP = 16  # rows have a sum below 2^24, which is exact in float32
BLOCK_ELEMENTS = 2**17  # numbers of rows that a cache holds

LARGEST_NORM = 2.0**127  # beyond it a row's numbers may not be finite in float32

Factor = Callable[[Tensor], Tensor]  # from norms [R, n, 1] to factors of contributions


def bounded(factor: Factor, gradients: Sequence[Gradients], present: Tensor  # [n]: False for padding
            ) -> tuple[list[Gradients], Tensor]:
    """Return gradients with their factors [n], float64; both 0 for a record whose norm is not finite or too large."""
    lengths = norms(gradients)
    is_finite = lengths < LARGEST_NORM
    if not is_finite.all():
        gradients = [of_one.only(is_finite) for of_one in gradients]
    factors = factor(lengths[None, :, None])[0, :, 0]
    return list(gradients), torch.where(present & is_finite, factors, 0.0).double()


class RowSum:
    """A sum of contributions [1, d] as integers, released with noise.

    Attributes:
        unit: a step of the noise.
        scale: a step of contributions, in steps of the noise.
        total: the sum of contributions that are not released yet, in their steps, with padding as of `shape`.
    """

    def __init__(self, trials: Sequence[TrialConfig], bounds: Sequence[float], deviations: Sequence[float],
                 shape: tuple[int, ...], device: torch.device) -> None:
        self.batch_size, self.unit = trials[0].batch_size, deviations[0] / 2**GRID_BITS
        step = bounds[0] / 2**ROW_BITS  # before it is rounded to a power of two times the unit
        self.scale = 2.0 ** max(0, math.floor(math.log2(step / self.unit)))
        self.noise = RoundedNoise(seeds_of(trials), shape, device)
        self.total = torch.zeros(1, *shape, dtype=torch.float64, device=device)

    def release(self, bounds: Bounds, deltas: list[Tensor],  # one [1, n, d], of n records' whole contributions
                activations: object, out: Parameters) -> None:
        """Write the mean of bounded contributions, with noise, to `out`."""
        rows = deltas[0][0]
        self.add(bounds.factor, [GradientRows(rows)], torch.ones(len(rows), dtype=torch.bool), out)
        self.publish(out)

    def add(self, factor: Factor, gradients: Sequence[Gradients], present: Tensor, out: object = None) -> None:
        """Add contributions to the sum; one that is not finite counts as none, as does padding."""
        gradients, factors = bounded(factor, [in_rows(of_one) for of_one in gradients], present)
        in_steps = (factors * (SAFETY_FACTOR / (self.unit * self.scale))).float()[:, None]
        widths = [of_one.width for of_one in gradients]
        totals = self.total[0, :sum(widths)].split(widths)
        for of_one, total in zip(gradients, totals, strict=True):
            n_rows = GROUP * max(1, BLOCK_ELEMENTS // (GROUP * of_one.width))
            for first in range(0, len(present), n_rows):
                places = slice(first, first + n_rows)
                integers = of_one.rows(places).mul(in_steps[places]).trunc_()
                for group in integers.split(GROUP):
                    total += group.sum(dim=0)

    def publish(self, out: Parameters) -> None:
        """Write the mean of the contributions, with noise, to `out`, and begin a new sum."""
        _, (noise,) = out.views(self.noise.next())  # one layer, whose biases are all the numbers
        total = self.total[:, :noise.shape[1]]
        out.biases[0].copy_(noise.add_(total, alpha=self.scale).mul_(self.unit / self.batch_size))
        self.total.zero_()
