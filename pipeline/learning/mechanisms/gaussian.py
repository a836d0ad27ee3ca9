"""Gaussian mechanisms: every record's contribution is bounded, summed, and noise is added to the sum.

    update = (1/m) (sum_i u_i + N(0, (z C)^2 I)),    ||u_i|| <= C

u_i is all that record i contributes to the weights and biases of all layers. It is bounded after every randomness of
the record's own, optical noise included, and divided by the public m (for Poisson batches the expected size), never by
the realised size; an empty batch still releases noise. Adding or removing a record moves the sum by at most C,
replacing one by at most 2C. In secure trials the sum is a `FixedPointRelease`, and what is bounded and summed is in
float64.

    per_example   u_i is shortened to C as a whole (DP-SGD; Abadi et al. 2016). In a linear layer it is an outer
                  product, so its norm is that of its factors; in a convolution, `layers.Conv` measures it.
    component     its factors are bounded (Lee & Kifer 2020, Algorithm 1): ||e|| <= tau_e, ||B|| = beta,
                  ||h|| <= tau_h, |phi'| <= gamma. C follows from them; or C is given (`target_norm`), every layer
                  gets C/sqrt(L), and tau_h of a layer follows from that. A convolution has no such factors: each
                  record's part in it is shortened to C/sqrt(L), whatever the feedback that it came from.

With `denoise` u_i is what feedback can reach of a record's gradient: in fully connected hidden layers delta_i is put
on the column space of B, which is public and has at most n_L dimensions (`FeedbackSpace`). Bound, sum and noise then
live in these few dimensions.

Lee & Kifer state a sensitivity S of the sum under replace-one, S = 2C, and noise of standard deviation sigma on the
mean: that is noise_multiplier = sigma m/C = 2 sigma m/S here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch

from pipeline.accounting.finite_precision import enlargement
from pipeline.learning.mechanisms.base import Mechanism, sum_outer_products
from pipeline.learning.mechanisms.feedback_space import FeedbackSpace
from pipeline.learning.mechanisms.fixed_point import FixedPointRelease
from pipeline.learning.mechanisms.optics import OpticalNoise, column, precision, scale
from pipeline.learning.network.network import Network, Parameters
from pipeline.learning.randomness import GaussianNoise, Noise
from pipeline.trials.choices import TERNARY
from pipeline.trials.config import TrialConfig


def contribution_norms(net: Network, deltas: Sequence[torch.Tensor], activations: Sequence[torch.Tensor]
                       ) -> torch.Tensor:
    """||u_i||, u_i being all that record i contributes to the weights and biases of all layers.

    Args:
        net: whose layers know how long a record's part is.
        deltas: delta^1..delta^L, each [R, m, n_l].
        activations: h^0..h^{L-1}, each [R, m, n_{l-1}].

    Returns:
        [R, m, 1]: for fully connected layers sqrt(sum_l ||delta_i^l||^2 (||h_i^{l-1}||^2 + 1)).
    """
    squares = [layer.squared_norms(d, h) for layer, d, h in zip(net.layers, deltas, activations, strict=True)]
    return torch.stack(squares).sum(dim=0).sqrt()


class GaussianMechanism(Mechanism):
    """What both ways to bound share: the noise on the sum, and the normaliser.

    Attributes:
        bounds: C of every trial.
    """

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        self.bounds = [self.bound(t) for t in trials]
        # Optical noise lies on what is projected; the output layer's error is not.
        self.optics = (OpticalNoise(trials, net.sizes[1:-1], trials[0].batch_size, device)
                       if any(t.sigma for t in trials) and trials[0].algorithm == "pdfa" else None)
        deviations = [t.noise_multiplier * bound for t, bound in zip(trials, self.bounds, strict=True)]
        self.space = FeedbackSpace(trials[0], net, matrices) if trials[0].denoise else None
        blank = self.space.blank_parameters if self.space else net.blank_parameters
        self.inside = self.space.blank_parameters(len(trials), device, torch.float32) if self.space else None
        self.release: FixedPointRelease | None = None
        if trials[0].secure:
            self.total = blank(len(trials), device, torch.float64)
            enlarged = [sigma * (1 + enlargement(t)) for sigma, t in zip(deviations, trials, strict=True)]
            self.release = FixedPointRelease(enlarged, self.total.flat.shape[1:], device)
            self.source: Noise = self.release.noise
        else:
            self.noise = blank(len(trials), device, torch.float32)
            self.source = GaussianNoise([t.seed for t in trials], deviations, self.noise.flat.shape[1:], device,
                                        stream="release")

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """The device's noise on what an OPU projects; it buys nothing here, and is bounded with all else."""
        return signals if self.optics is None else self.optics.perturb(signals)

    def factors(self, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
        """With `denoise` their coordinates in the feedback space."""
        return self.space.coordinates(deltas) if self.space else deltas

    def noise_sources(self) -> list[Noise]:
        """The optical noise, where there is any, and that of the release."""
        return [*(self.optics.noise_sources() if self.optics else []), self.source]

    @staticmethod
    @abstractmethod
    def bound(trial: TrialConfig) -> float:
        """C: no record contributes more to the sum, in the Euclidean norm over all weights and biases."""

    @abstractmethod
    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The factors delta_i^l, h_i^{l-1} of the contributions, so bounded that ||u_i|| <= C."""

    def update(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        """Write the released update to `out`: bounded contributions, summed, with noise, over the public m."""
        released = self.inside or out
        if self.release:
            self.add_up(deltas, activations, self.total)
            self.release(self.total.flat, self.batch_size)
            for block, number in zip(_blocks(released), _blocks(self.total), strict=True):
                block.copy_(number)
        else:
            self.add_up(deltas, activations, released)
            self.noise.flat.copy_(self.source.next())
            for block, noise in zip(_blocks(released), _blocks(self.noise), strict=True):
                block.add_(noise).div_(self.batch_size)
        if self.space:
            self.space.write_outside(released, out)

    def add_up(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        """Write the sum of the bounded contributions to `out`, of float64 in secure trials; with `denoise`, in the
        coordinates of the feedback space."""
        deltas = self.factors(deltas)
        if self.release:
            deltas, activations = [d.double() for d in deltas], [h.double() for h in activations]
        deltas, activations = self.bounded(deltas, activations)
        if self.release and any(x.dtype != torch.float64 for x in (*deltas, *activations)):
            raise TypeError(f"{type(self).__name__}.bounded: must return float64 for factors of float64")
        sum_outer_products(self.net, *only_finite(deltas, activations), out)


def _blocks(parameters: Parameters) -> list[torch.Tensor]:
    """Weights and biases, without the gaps between them."""
    return parameters.weights + parameters.biases


def only_finite(deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The factors, those of a record zero where one of them, or the norm it was shortened by, is not finite.

    Such a record contributes nothing. Without this it would turn the whole sum into nan, and so tell that it took part.
    """
    finite = torch.stack([torch.isfinite(x.sum(dim=-1)) for x in (*deltas, *activations)]).all(dim=0).unsqueeze(-1)
    if finite.device.type == "cpu" and bool(finite.all()):  # a GPU is not made to wait for the answer
        return deltas, activations
    return ([torch.where(finite, d, 0.0) for d in deltas], [torch.where(finite, h, 0.0) for h in activations])


class PerExample(GaussianMechanism):
    """u_i <- min(1, C/||u_i||) u_i."""

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        self.clipping_norm = column(trials, "clipping_norm", device)

    @staticmethod
    def bound(trial: TrialConfig) -> float:
        return trial.clipping_norm

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        factor = (self.clipping_norm / contribution_norms(self.net, deltas, activations)).clamp_(max=1.0)
        return [d * factor for d in deltas], activations


class Component(GaussianMechanism):
    """||delta^l|| <= beta tau_e gamma_l (output layer tau_e), ||h^{l-1}|| <= tau_h; a record's part in a convolution is
    shortened to C/sqrt(L)."""

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        self.ternary = trials[0].algorithm in TERNARY
        self.tau_e = column(trials, "tau_e", device)
        self.part_bounds, self.delta_bounds, self.activation_bounds = (
            [torch.tensor(bounds, dtype=precision(trials), device=device).view(-1, 1, 1)
             for bounds in zip(*of_trials, strict=True)]
            for of_trials in ([part_bounds(t) for t in trials], [t.delta_bounds for t in trials],
                              [activation_bounds(t) for t in trials]))

    @staticmethod
    def bound(trial: TrialConfig) -> float:
        """The target C, or sqrt(sum_l ||delta^l||^2 (1 + tau_h^2))."""
        return trial.target_norm or math.sqrt(sum(bound**2 for bound in trial.delta_bounds) * (1 + trial.tau_h**2))

    def error(self, error: torch.Tensor) -> torch.Tensor:
        """clip_{tau_e}(e) (Algorithm 1, line 12); a ternarized error is bounded as a delta, its size being lost."""
        return error if self.ternary else scale(error, self.tau_e).to(error.dtype)

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        n = len(self.part_bounds)
        convolved = [d * (bound / layer.squared_norms(d, h).sqrt_()).clamp_(max=1.0) for layer, d, h, bound in
                     zip(self.net.layers[:n], deltas[:n], activations[:n], self.part_bounds, strict=True)]
        # With DFA and spectrally normalised feedback no delta of a hidden layer is longer than its bound already;
        # back-propagated, ternary and optically noisy ones are.
        dense = [scale(d, bound) for d, bound in zip(deltas[n:], self.delta_bounds, strict=True)]
        clipped = [scale(h, bound) for h, bound in zip(activations[n:], self.activation_bounds, strict=True)]
        return [*convolved, *dense], [*activations[:n], *clipped]


def part_bounds(trial: TrialConfig) -> list[float]:
    """Bound on a record's part in each convolution under component clipping: C/sqrt(L)."""
    n = len(trial.layers)
    return [trial.target_norm / math.sqrt(n)] * (n - len(trial.delta_bounds))


def activation_bounds(trial: TrialConfig) -> list[float]:
    """tau_h of each fully connected layer; with a target C, from ||delta^l|| sqrt(1 + tau_h^2) <= C/sqrt(L) (Lee &
    Kifer 2020, section 4.2)."""
    if not trial.target_norm:
        return [trial.tau_h] * len(trial.delta_bounds)
    part = trial.target_norm / math.sqrt(len(trial.layers))
    return [math.sqrt((part / bound) ** 2 - 1) for bound in trial.delta_bounds]
