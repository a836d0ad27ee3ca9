"""Gaussian mechanisms: every record's contribution is bounded, summed, and noise is added to the sum.

    update = (1/m) (sum_i u_i + N(0, (z C)^2 I)),    ||u_i|| <= C

u_i is all that record i contributes to the weights and biases of all layers. It is bounded after every randomness of
the record's own, optical noise included, and divided by the public m (for Poisson batches the expected size), never by
the realised size; an empty batch still releases noise. Adding or removing a record moves the sum by at most C,
replacing one by at most 2C.

    per_example   u_i is shortened to C as a whole (DP-SGD; Abadi et al. 2016). In a linear layer it is an outer
                  product, so its norm is that of its factors and no per-example gradient is ever materialised.
    component     its factors are bounded (Lee & Kifer 2020, Algorithm 1): ||e|| <= tau_e, ||B|| = beta,
                  ||h|| <= tau_h, |phi'| <= gamma. C follows from them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch

from pipeline.config import ACTIVATION_SLOPES, TERNARY, TrialConfig
from pipeline.mechanisms.base import Mechanism, sum_outer_products
from pipeline.mechanisms.optics import OpticalNoise, column, scale
from pipeline.networks import Mlp, Parameters
from pipeline.randomness import GaussianNoise


def contribution_norms(deltas: Sequence[torch.Tensor], activations: Sequence[torch.Tensor]) -> torch.Tensor:
    """||u_i||, u_i = (delta_i^1 (h_i^0)^T, delta_i^1, ..., delta_i^L (h_i^{L-1})^T, delta_i^L).

    Args:
        deltas: delta^1..delta^L, each [R, m, n_l].
        activations: h^0..h^{L-1}, each [R, m, n_{l-1}].

    Returns:
        [R, m, 1]: sqrt(sum_l ||delta_i^l||^2 (||h_i^{l-1}||^2 + 1)).
    """
    squares = [d.square().sum(dim=-1, keepdim=True) * (h.square().sum(dim=-1, keepdim=True) + 1)
               for d, h in zip(deltas, activations, strict=True)]
    return torch.stack(squares).sum(dim=0).sqrt()


class GaussianMechanism(Mechanism):
    """What both ways to bound share: the noise on the sum, and the normaliser.

    Attributes:
        bounds: C of every trial.
    """

    def __init__(self, trials: Sequence[TrialConfig], net: Mlp, device: torch.device) -> None:
        super().__init__(trials, net, device)
        self.bounds = [contribution_bound(t) for t in trials]
        # Optical noise lies on what is projected; the output layer's error is not.
        self.optics = (OpticalNoise(trials, net.sizes[1:-1], trials[0].batch_size, device)
                       if any(t.sigma for t in trials) and trials[0].algorithm == "pdfa" else None)
        deviations = [t.noise_multiplier * bound for t, bound in zip(trials, self.bounds, strict=True)]
        self.noise = Parameters(net.sizes, len(trials), device)
        self.source = GaussianNoise([t.seed for t in trials], deviations, self.noise.flat.shape[1:], device,
                                    stream="release", secure=trials[0].secure)

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """The device's noise on what an OPU projects; it buys nothing here, and is bounded with all else."""
        return signals if self.optics is None else self.optics.perturb(signals)

    @abstractmethod
    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The factors delta_i^l, h_i^{l-1} of the contributions, so bounded that ||u_i|| <= C."""

    def update(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        """Write the released update to `out`: bounded contributions, summed, with noise, over the public m."""
        sum_outer_products(self.net, *self.bounded(deltas, activations), out)
        self.noise.flat.copy_(self.source.next())
        for total, noise in zip(out.weights + out.biases, self.noise.weights + self.noise.biases, strict=True):
            total.add_(noise).div_(self.batch_size)


class PerExample(GaussianMechanism):
    """u_i <- min(1, C/||u_i||) u_i."""

    def __init__(self, trials: Sequence[TrialConfig], net: Mlp, device: torch.device) -> None:
        super().__init__(trials, net, device)
        self.clipping_norm = column(trials, "clipping_norm", device)

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        factor = (self.clipping_norm / contribution_norms(deltas, activations)).clamp_(max=1.0)
        return [d * factor for d in deltas], activations


class Component(GaussianMechanism):
    """||delta^l|| <= beta tau_e gamma_l (output layer tau_e), ||h^{l-1}|| <= tau_h."""

    def __init__(self, trials: Sequence[TrialConfig], net: Mlp, device: torch.device) -> None:
        super().__init__(trials, net, device)
        self.ternary = trials[0].algorithm in TERNARY
        self.tau_e, self.tau_h = column(trials, "tau_e", device), column(trials, "tau_h", device)
        self.delta_bounds = [torch.tensor(bounds, device=device).view(-1, 1, 1)
                             for bounds in zip(*(delta_bounds(t) for t in trials), strict=True)]

    def error(self, error: torch.Tensor) -> torch.Tensor:
        """clip_{tau_e}(e) (Algorithm 1, line 12); a ternarized error is bounded as a delta, its size being lost."""
        return error if self.ternary else scale(error, self.tau_e)

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        # With DFA and spectrally normalised feedback no delta of a hidden layer is longer than its bound already;
        # back-propagated, ternary and optically noisy ones are.
        return ([scale(d, bound) for d, bound in zip(deltas, self.delta_bounds, strict=True)],
                [scale(h, self.tau_h) for h in activations])


def delta_bounds(trial: TrialConfig) -> list[float]:
    """Bound on ||delta^l|| of every layer under component clipping."""
    hidden = trial.feedback_norm * trial.tau_e * ACTIVATION_SLOPES[trial.activation]
    return [hidden] * len(trial.hidden) + [trial.tau_e]


def contribution_bound(trial: TrialConfig) -> float:
    """C: no record contributes more to the sum, in the Euclidean norm over all weights and biases."""
    if trial.mechanism == "per_example":
        return trial.clipping_norm
    return math.sqrt(sum(bound**2 for bound in delta_bounds(trial)) * (1 + trial.tau_h**2))
