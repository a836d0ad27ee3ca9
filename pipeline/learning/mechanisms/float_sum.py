"""Sums of bounded contributions in float32, with noise that is drawn by seed; `gaussian.GaussianStep` makes one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.learning.integers.contributions import Bounds
from pipeline.learning.mechanisms.base import sum_outer_products
from pipeline.learning.mechanisms.gradients import Gradients, add_all
from pipeline.learning.mechanisms.row_sum import Factor, bounded
from pipeline.learning.network.stacked import Parameters, StackedNetwork
from pipeline.learning.randomness import GaussianNoise
from pipeline.learning.rows import Activation
from pipeline.trials.config import TrialConfig


class FloatSum:
    """A sum that is written to the update itself, where noise joins it."""

    def __init__(self, trials: Sequence[TrialConfig], deviations: Sequence[float], net: StackedNetwork,
                 shape: tuple[int, ...], device: torch.device) -> None:
        self.net, self.batch_size = net, trials[0].batch_size
        self.noise = GaussianNoise([t.seed for t in trials], deviations, shape, device, stream="release")

    def release(self, bounds: Bounds, deltas: list[torch.Tensor], activations: list[Activation],
                out: Parameters) -> None:
        """Write the sum of the contributions, with noise and over the public batch size, to `out`."""
        self.add_up(bounds, deltas, activations, out)
        self.publish(out)

    def add_up(self, bounds: Bounds, deltas: list[torch.Tensor], activations: list[Activation],
               out: Parameters) -> None:
        """Write the sum of the contributions to `out`, with `denoise` in feedback-space coordinates."""
        deltas, activations = bounds.bounded(bounds.factors(deltas), activations)
        # A record with a factor or norm that is not finite contributes nothing: otherwise it would turn the whole sum
        # into nan, and so reveal its membership.
        per_factor = [torch.isfinite(x.sum(dim=-1)) for x in (*deltas, *activations)]  # each [R, m]
        finite = torch.stack(per_factor).all(dim=0).unsqueeze(-1)  # [R, m, 1]
        if finite.device.type != "cpu" or not bool(finite.all()):  # on a GPU the check would wait for the device
            deltas, activations = ([torch.where(finite, x, 0.0) for x in factors] for factors in (deltas, activations))
        sum_outer_products(self.net, deltas, activations, out)

    def add(self, factor: Factor, gradients: Sequence[Gradients], present: torch.Tensor, out: Parameters) -> None:
        """Add a user's network's contributions to `out`; one that is not finite counts as none, as does padding."""
        gradients, factors = bounded(factor, gradients, present)
        add_all(gradients, out.biases[0][0], factors.float())  # a user's network is one layer of biases

    def publish(self, out: Parameters) -> None:
        """Add noise to the sum in `out`, and divide it by the public batch size."""
        weights, biases = out.views(self.noise.next())
        for block, noise in zip(out.weights + out.biases, weights + biases, strict=True):
            block.add_(noise).div_(self.batch_size)
