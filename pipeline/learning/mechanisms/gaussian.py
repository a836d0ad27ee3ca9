"""Gaussian mechanisms: bound every record's contribution, sum the contributions, and add noise to the sum.

    update = (1/m) (sum_i u_i + N(0, (z C)^2 I)),    ||u_i|| <= C

u_i is the contribution of record i to the weights and biases of all layers. The bound comes after all randomness of the
record, such as optical noise. The divisor m is public (with Poisson sampling the expected batch size) and never the
realised size; an empty batch still releases noise. Adding or removing a record changes the sum by at most C, replacing
one by at most 2C. With arithmetic `integer`, contributions and noise are integers (`IntegerSum`), and the guarantee
holds for the released bits.

    per_example   u_i is clipped to C as a whole (DP-SGD; Abadi et al. 2016). In a linear layer u_i is an outer
                  product, so its norm is the product of two norms; for a convolution `layers.Conv` computes it.
    automatic     u_i becomes C u_i/(||u_i|| + gamma), which is shorter than C (AUTO-S; Bu et al. 2023).
    component     The factors of u_i are bounded (Lee & Kifer 2020, Algorithm 1): ||e|| <= tau_e, ||B|| = beta,
                  ||h|| <= tau_h, |phi'| <= gamma. C follows from these bounds. Or C is given (`target_norm`): every
                  layer gets C/sqrt(L), and its tau_h follows. A convolution has no such factors: each record's
                  part in it is clipped to C/sqrt(L), for every kind of feedback.

With `denoise`, fully connected hidden layers project delta_i on the column space of B, which is public and has at most
n_L dimensions (`FeedbackSpace`). Bound, sum and noise then have these few dimensions.

Lee & Kifer state a sensitivity S = 2C of the sum under replace-one, and noise of standard deviation sigma on the mean.
Here this is noise_multiplier = sigma m/C = 2 sigma m/S.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

import torch

from pipeline.learning.integers.contributions import IntegerSum
from pipeline.learning.mechanisms.base import MECHANISMS, MechanismStep
from pipeline.learning.mechanisms.feedback_space import FeedbackSpace
from pipeline.learning.mechanisms.float_sum import FloatSum
from pipeline.learning.mechanisms.optics import column, optical_noise, scale
from pipeline.learning.mechanisms.row_sum import RowSum
from pipeline.learning.network.stacked import Parameters, StackedNetwork
from pipeline.learning.randomness import Noise
from pipeline.learning.rows import Activation
from pipeline.trials import component, mechanism
from pipeline.trials.config import TrialConfig


class GaussianStep(MechanismStep):
    """Base of the Gaussian mechanisms: adds the noise and divides by m; subclasses bound the contributions.

    Attributes:
        bounds: C of every trial.
        deviations: standard deviation of the noise on every trial's sum (`deviation`).
    """

    def __init__(self, trials: Sequence[TrialConfig], net: StackedNetwork, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        shared = trials[0]  # for settings that all trials of the pack share
        self.bounds = [self.bound(trial) for trial in trials]
        self.deviations = [self.deviation(trial) for trial in trials]
        self.optics = optical_noise(trials, net.sizes[1:-1], device)  # the output layer's error is not projected
        self.space = FeedbackSpace(shared, net, matrices) if shared.denoise else None
        self.inside = self.space.blank_parameters(len(trials), device, torch.float32) if self.space else None
        blank = self.inside or net.blank_parameters(len(trials), "meta")  # on "meta": only their shape is needed
        self.sum = self._sum(trials, blank.flat.shape[1:], device)

    def _sum(self, trials: Sequence[TrialConfig], shape: tuple[int, ...],
             device: torch.device) -> FloatSum | IntegerSum | RowSum:
        """Make the sum of contributions, with its noise: in integers for `exact` and secure trials."""
        if trials[0].exact:
            bases = self.space.bases if self.space else [None] * len(self.net.layers)
            return IntegerSum(trials, self.bounds, self.deviations, shape, bases, device)
        if trials[0].secure:
            return RowSum(trials, self.bounds, self.deviations, shape, device)
        return FloatSum(trials, self.deviations, self.net, shape, device)

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """Add an OPU's noise to its projections; it gives no privacy here, and the contribution is bounded after it."""
        return signals if self.optics is None else self.optics.perturb(signals)

    def factors(self, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the deltas or, with `denoise`, their coordinates in the feedback space."""
        return self.space.coordinates(deltas) if self.space else deltas

    def noise_sources(self) -> list[Noise]:
        optical = self.optics.noise_sources() if self.optics else []
        return [*optical, self.sum.noise]

    @staticmethod
    @abstractmethod
    def bound(trial: TrialConfig) -> float:
        """Return C: no record contributes more to the sum, in the Euclidean norm over all weights and biases."""

    @classmethod
    def deviation(cls, trial: TrialConfig) -> float:
        """Return the standard deviation of the noise on each coordinate of the sum.

        This is z C, divided by the mechanism's `sensitivity_ratio`, as accounting has it: above 1 if noise is scaled to
        a smaller norm.
        """
        return trial.noise_multiplier * cls.bound(trial) / trial.parts.mechanism.sensitivity_ratio(trial)

    def factor(self, norms: torch.Tensor) -> torch.Tensor:
        """Return the factors [R, m, 1] >= 0 that scale contributions of these norms [R, m, 1] to ||u_i|| <= C.

        Norms and factors are float64 in integer arithmetic.
        """
        raise NotImplementedError

    def layer_factors(self, lengths: Sequence[torch.Tensor],
                      squares: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each layer's factors for the weights and the biases of a contribution, in integer arithmetic.

        Here all layers have the same factor, which bounds the norm of the whole contribution.

        Args:
            lengths: ||delta_i^l|| [R, m, 1] of every layer, float64: the norm of record i's learning signal.
            squares: ||h_i^{l-1}||^2 [R, m, 1] of every layer: the squared norm of its input.
        """
        total = torch.zeros_like(lengths[0])
        for delta_norm, h_squared in zip(lengths, squares, strict=True):
            total = total + delta_norm.square() * (h_squared + 1)  # the bias has the constant input 1
        factor = self.factor(total.sqrt_())
        return [(factor, factor)] * len(lengths)

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the factors of every record's contribution, scaled so that the contribution has at most norm C.

        The contribution of record i to layer l is the outer product of delta_i^l (learning signal) and h_i^{l-1}
        (input).

        Args:
            deltas: delta^1..delta^L, each [R, m, n_l].
            activations: h^0..h^{L-1}, each [R, m, n_{l-1}].
        """
        squares = [layer.squared_norms(d, h) for layer, d, h in zip(self.net.layers, deltas, activations, strict=True)]
        factor = self.factor(torch.stack(squares).sum(dim=0).sqrt())  # of ||u_i||, over all layers [R, m, 1]
        return [d * factor for d in deltas], activations

    def update(self, deltas: list[torch.Tensor], activations: list[Activation], out: Parameters) -> None:
        """Write the released update to `out`: the noisy sum of bounded contributions, divided by the public m."""
        self.sum.release(self, deltas, activations, self.inside or out)
        if self.space and self.inside:
            self.space.expand_to(self.inside, out)


@MECHANISMS.of(mechanism.PerExample)
class PerExampleStep(GaussianStep):
    """u_i <- min(1, C/||u_i||) u_i, DP-SGD of Abadi et al. (2016)."""

    def __init__(self, trials: Sequence[TrialConfig], net: StackedNetwork, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        self.clipping_norm = column(trials, "clipping_norm", device)  # C [R, 1, 1]

    @staticmethod
    def bound(trial: TrialConfig) -> float:
        return trial.clipping_norm

    def factor(self, norms: torch.Tensor) -> torch.Tensor:
        return (self.clipping_norm / norms).clamp_(max=1.0)


@MECHANISMS.of(mechanism.Automatic)
class AutomaticStep(PerExampleStep):
    """u_i <- C u_i/(||u_i|| + gamma), AUTO-S of Bu et al. (2023)."""

    def __init__(self, trials: Sequence[TrialConfig], net: StackedNetwork, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        self.gamma = column(trials, "clipping_gamma", device)

    def factor(self, norms: torch.Tensor) -> torch.Tensor:
        return self.clipping_norm / (norms + self.gamma)


@MECHANISMS.of(component.Component)
class ComponentStep(GaussianStep):
    """Clips factors: ||delta^l|| <= beta tau_e gamma_l (output layer tau_e), ||h^{l-1}|| <= tau_h.

    A record's part in a convolution is clipped to C/sqrt(L).
    """

    def __init__(self, trials: Sequence[TrialConfig], net: StackedNetwork, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        self.ternary, self.exact = trials[0].parts.feedback.ternary, trials[0].exact
        self.tau_e = column(trials, "tau_e", device)
        parts = [(trial, cast(component.Component, trial.parts.mechanism)) for trial in trials]
        self.conv_bounds = self.by_layer([part.conv_bounds(trial) for trial, part in parts])
        self.delta_bounds = self.by_layer([part.delta_bounds(trial, trial.tau_e) for trial, part in parts])
        self.activation_bounds = self.by_layer([part.activation_bounds(trial) for trial, part in parts])

    def by_layer(self, trial_bounds: Sequence[Sequence[float]]) -> list[torch.Tensor]:
        """Return the bounds of every layer as [R, 1, 1], from R trials' bounds by layer."""
        return [torch.tensor(bounds, dtype=self.tau_e.dtype, device=self.tau_e.device).view(-1, 1, 1)
                for bounds in zip(*trial_bounds, strict=True)]

    @staticmethod
    def bound(trial: TrialConfig) -> float:
        """Return the target C or sqrt(sum_l ||delta^l||^2 (1 + tau_h^2))."""
        return trial.parts.mechanism.stated_norm(trial)

    def error(self, error: torch.Tensor) -> torch.Tensor:
        """Return clip_{tau_e}(e) (Algorithm 1, line 12), or e if it is clipped later.

        A ternarized error has lost its size, so its delta is bounded instead. With integers, `layer_factors` clips it.
        """
        return error if self.ternary or self.exact else scale(error, self.tau_e).to(error.dtype)

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return deltas and activations of all layers, scaled so that every record's gradient is within its bound.

        The first layers are the convolutions: a record's gradient there is bounded as a whole. In the fully connected
        layers after them, the gradient is the outer product of delta and h, so both factors are bounded.
        """
        n_conv = len(self.conv_bounds)
        dense_deltas, dense_inputs = self.bounded_factors(deltas[n_conv:], activations[n_conv:])
        conv_deltas = [d * (bound / layer.squared_norms(d, h).sqrt_()).clamp_(max=1.0) for layer, d, h, bound in
                       zip(self.net.layers[:n_conv], deltas[:n_conv], activations[:n_conv], self.conv_bounds,
                           strict=True)]
        return [*conv_deltas, *dense_deltas], [*activations[:n_conv], *dense_inputs]

    def bounded_factors(self, deltas: list[torch.Tensor],
                        inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return deltas and inputs of the fully connected layers, each clipped.

        With DFA and spectrally normalised feedback a hidden layer's delta is within its bound already. Back-propagated,
        ternary and optically noisy deltas may exceed it.
        """
        return ([scale(d, bound) for d, bound in zip(deltas, self.delta_bounds, strict=True)],
                [scale(h, bound) for h, bound in zip(inputs, self.activation_bounds, strict=True)])

    def layer_factors(self, lengths: Sequence[torch.Tensor],
                      squares: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each layer's factors for the weights and the biases of a record's contribution, in integer arithmetic.

        The first factor clips delta and h, the second delta alone. Feedback is linear in the output error e, so e is
        clipped by scaling the deltas.
        """
        error_factor = self.error_factor(lengths[-1])
        factors = []
        for delta_norm, h_squared, bound, tau_h in zip(lengths, squares, self.delta_bounds, self.activation_bounds,
                                                       strict=True):
            delta_factor = torch.minimum(error_factor, bound / delta_norm)
            factors.append((delta_factor * clip_factor(h_squared, tau_h), delta_factor))
        return factors

    def error_factor(self, error_norm: torch.Tensor) -> torch.Tensor:
        """Return the factors that clip the output error to tau_e, from its norm [R, m, 1]; 1 for a ternarized one."""
        return torch.ones_like(error_norm) if self.ternary else (self.tau_e / error_norm).clamp_(max=1.0)


def clip_factor(squared_norm: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Return the factor that clips a vector of this squared norm to `bound`."""
    return (bound / squared_norm.sqrt()).clamp_(max=1.0)
