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
                  Settings choose other readings of the paper (`Component`). Some keep the noise of Algorithm 1 but let
                  a record contribute more: `trials.component` has the norms for noise and for epsilon.

With `denoise`, fully connected hidden layers project delta_i on the column space of B, which is public and has at most
n_L dimensions (`FeedbackSpace`). Bound, sum and noise then have these few dimensions.

Lee & Kifer state a sensitivity S = 2C of the sum under replace-one, and noise of standard deviation sigma on the mean.
Here this is noise_multiplier = sigma m/C = 2 sigma m/S.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch

from pipeline.learning.integers.contributions import IntegerSum, RowSum
from pipeline.learning.mechanisms.base import Mechanism, sum_outer_products
from pipeline.learning.mechanisms.feedback_space import FeedbackSpace
from pipeline.learning.mechanisms.optics import OpticalNoise, column, scale, scale_factor
from pipeline.learning.network.layers import Conv, Layer
from pipeline.learning.network.network import Network, Parameters
from pipeline.learning.randomness import GaussianNoise, Noise, RoundedNoise
from pipeline.learning.rows import Activation
from pipeline.trials.component import (
    activation_bounds,
    contribution_norm,
    conv_bounds,
    delta_bounds,
    error_bound,
    layer_bound,
    scales_to_bound,
)
from pipeline.trials.config import TrialConfig


def contribution_norms(net: Network, deltas: Sequence[torch.Tensor], activations: Sequence[torch.Tensor]
                       ) -> torch.Tensor:
    """Return ||u_i|| [R, m, 1], the norm of record i's contribution to the weights and biases of all layers.

    For fully connected layers it is sqrt(sum_l ||delta_i^l||^2 (||h_i^{l-1}||^2 + 1)).
    """
    squares = [layer.squared_norms(d, h) for layer, d, h in zip(net.layers, deltas, activations, strict=True)]
    return torch.stack(squares).sum(dim=0).sqrt()


class GaussianMechanism(Mechanism):
    """Base of the Gaussian mechanisms: adds the noise and divides by m; subclasses bound the contributions.

    Attributes:
        bounds: C of every trial.
        deviations: standard deviation of the noise on every trial's sum (`deviation`).
    """

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        """Make the source of noise: integers on the sum's grid for secure and `exact` trials, else float32."""
        super().__init__(trials, net, device, matrices)
        shared = trials[0]  # for settings that all trials of the pack share
        self.bounds = [self.bound(t) for t in trials]
        self.deviations = [self.deviation(t) for t in trials]
        self.optics: OpticalNoise | None = None
        if shared.parts.feedback.optical and any(t.sigma for t in trials):
            hidden_widths = net.sizes[1:-1]  # the output layer's error is not projected, so it gets no optical noise
            self.optics = OpticalNoise(trials, hidden_widths, shared.batch_size, device)
        self.space, self.inside = None, None
        sums = net.blank_parameters(len(trials), "meta")  # on "meta": only their shape is needed
        if shared.denoise:
            self.space = FeedbackSpace(shared, net, matrices)
            self.inside = sums = self.space.blank_parameters(len(trials), device, torch.float32)
        noise_shape = sums.flat.shape[1:]
        self.integers: IntegerSum | RowSum | None = None
        if shared.exact:
            bases = self.space.bases if self.space else [None] * len(net.layers)
            self.integers = IntegerSum(trials, self.bounds, self.deviations, noise_shape, bases, device)
        elif shared.secure:
            self.integers = RowSum(trials, self.bounds, self.deviations, noise_shape, device)
        self.source: GaussianNoise | RoundedNoise = self.integers.noise if self.integers else GaussianNoise(
            [t.seed for t in trials], self.deviations, noise_shape, device, stream="release")

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """Add an OPU's noise to its projections; it gives no privacy here, and the contribution is bounded after it."""
        return signals if self.optics is None else self.optics.perturb(signals)

    def factors(self, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the deltas or, with `denoise`, their coordinates in the feedback space."""
        return self.space.coordinates(deltas) if self.space else deltas

    def noise_sources(self) -> list[Noise]:
        optical = self.optics.noise_sources() if self.optics else []
        return [*optical, self.source]

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
        factor = self.factor(contribution_norms(self.net, deltas, activations))
        return [d * factor for d in deltas], activations

    def update(self, deltas: list[torch.Tensor], activations: list[Activation], out: Parameters) -> None:
        """Write the released update to `out`: the noisy sum of bounded contributions, divided by the public m."""
        released = self.inside or out
        if isinstance(self.integers, IntegerSum):
            self.integers.release(self.layer_factors, deltas, activations, released)
        elif self.integers:
            self.integers.add(self.factor, deltas[0])
            self.integers.release(released)
        else:
            self.add_up(deltas, activations, released)
            self.release(released)
        if self.space:
            self.space.expand_to(released, out)

    def release(self, total: Parameters) -> None:
        """Add noise to the sum of the bounded contributions, and divide it by the public m."""
        weights, biases = total.views(self.source.next())
        for block, noise in zip(total.weights + total.biases, weights + biases, strict=True):
            block.add_(noise).div_(self.batch_size)

    def add_up(self, deltas: list[torch.Tensor], activations: list[Activation], out: Parameters) -> None:
        """Write the sum of the bounded contributions to `out`, with `denoise` in feedback-space coordinates."""
        if isinstance(self.integers, IntegerSum):
            return self.integers.add_up(self.layer_factors, deltas, activations, out)
        deltas, activations = self.bounded(self.factors(deltas), activations)
        sum_outer_products(self.net, *only_finite(deltas, activations), out)


def only_finite(deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the factors of contributions, with zeros for records that have a factor or norm that is not finite.

    Such a record contributes nothing. Otherwise it would turn the whole sum into nan and so reveal its membership.
    """
    per_factor = [torch.isfinite(x.sum(dim=-1)) for x in (*deltas, *activations)]  # each [R, m]
    finite = torch.stack(per_factor).all(dim=0).unsqueeze(-1)  # [R, m, 1]
    if finite.device.type == "cpu" and bool(finite.all()):  # on a GPU the check would wait for the device
        return deltas, activations
    return ([torch.where(finite, d, 0.0) for d in deltas], [torch.where(finite, h, 0.0) for h in activations])


class PerExample(GaussianMechanism):
    """u_i <- min(1, C/||u_i||) u_i, DP-SGD of Abadi et al. (2016)."""

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        self.clipping_norm = column(trials, "clipping_norm", device)  # C [R, 1, 1]

    @staticmethod
    def bound(trial: TrialConfig) -> float:
        return trial.clipping_norm

    def factor(self, norms: torch.Tensor) -> torch.Tensor:
        return (self.clipping_norm / norms).clamp_(max=1.0)


class Automatic(PerExample):
    """u_i <- C u_i/(||u_i|| + gamma), AUTO-S of Bu et al. (2023)."""

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        self.gamma = column(trials, "clipping_gamma", device)

    def factor(self, norms: torch.Tensor) -> torch.Tensor:
        return self.clipping_norm / (norms + self.gamma)


class Component(GaussianMechanism):
    """Clips factors: ||delta^l|| <= beta tau_e gamma_l (output layer tau_e), ||h^{l-1}|| <= tau_h.

    A record's part in a convolution is clipped to C/sqrt(L).

    Settings choose readings of Lee & Kifer 2020; their effect on C (`trials.component`):

        error_clip off         ||e|| <= sqrt 2 instead of tau_e. tau_h and noise stay; C is larger.
        tau_h_rule published   One tau_h for all layers. Noise stays; the output layer determines C.
        conv_error raw         Convolutions of hybrid learn from e before its clip; their part is clipped. C stays.
        conv_clip apart        Weights and bias of a convolution are each clipped to tau, "chosen so that the
                               sensitivity of each convolutional layer is C/sqrt(L)". Two such parts have norm sqrt(2)
                               tau, so tau is C/sqrt(2 L), and C stays. (With tau = C/sqrt(L) for each it would be
                               C sqrt(1 + n/L) with n convolutions.)
        bounding scale         A record's part in each layer is scaled to exactly C/sqrt(L), zeros excepted. C stays.
    """

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        shared = trials[0]
        self.ternary, self.error_clip = shared.parts.feedback.ternary, shared.error_clip
        self.scales_to_bound = scales_to_bound(shared)  # setting `bounding`; otherwise contributions are clipped
        self.conv_error_is_raw = (shared.conv_error == "raw" and shared.parts.feedback.convolutional
                                  and shared.error_clip)
        self.clips_conv_apart = shared.conv_clip == "apart" and not self.scales_to_bound
        self.tau_e = column(trials, "tau_e", device)
        self.conv_bounds = self._by_layer([conv_bounds(t) for t in trials], device)
        self.delta_bounds = self._by_layer([delta_bounds(t, error_bound(t)) for t in trials], device)
        self.activation_bounds = self._by_layer([activation_bounds(t) for t in trials], device)
        self.layer_bound = self._column([layer_bound(t) for t in trials], device)  # C/sqrt(L)

    def _by_layer(self, trial_bounds: Sequence[Sequence[float]], device: torch.device) -> list[torch.Tensor]:
        """Return the bounds of every layer as [R, 1, 1], from R trials' bounds by layer."""
        return [self._column(bounds, device) for bounds in zip(*trial_bounds, strict=True)]

    def _column(self, values: Sequence[float], device: torch.device) -> torch.Tensor:
        return torch.tensor(values, dtype=self.tau_e.dtype, device=device).view(-1, 1, 1)

    @staticmethod
    def bound(trial: TrialConfig) -> float:
        """Return the target C or sqrt(sum_l ||delta^l||^2 (1 + tau_h^2)), or more for some readings of the paper."""
        return contribution_norm(trial)

    def error(self, error: torch.Tensor) -> torch.Tensor:
        """Return clip_{tau_e}(e) (Algorithm 1, line 12), or e if it is clipped later.

        A ternarized error has lost its size, so its delta is bounded instead. With `conv_error: raw`, `bounded` clips e
        for all layers except convolutions. With integers, `layer_factors` clips it.
        """
        if self.ternary or self.conv_error_is_raw or not self.error_clip or self.integers:
            return error
        return scale(error, self.tau_e).to(error.dtype)

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return deltas and activations of all layers, scaled so that every record's gradient is within its bound.

        The first layers are the convolutions: a record's gradient there is bounded as a whole. In the fully connected
        layers after them, the gradient is the outer product of delta and h, so both factors are bounded.
        """
        n_conv = len(self.conv_bounds)
        dense_deltas = deltas[n_conv:]
        if self.conv_error_is_raw:  # feedback is linear in e, so this clips e for the fully connected layers
            error_factor = scale_factor(deltas[-1], self.tau_e)
            dense_deltas = [d * error_factor for d in dense_deltas]
        # With DFA and spectrally normalised feedback a hidden layer's delta is within its bound already.
        # Back-propagated, ternary and optically noisy deltas may exceed it.
        dense_deltas = [scale(d, bound) for d, bound in zip(dense_deltas, self.delta_bounds, strict=True)]
        dense_inputs = [scale(h, bound) for h, bound in zip(activations[n_conv:], self.activation_bounds, strict=True)]
        if self.scales_to_bound:
            deltas, activations = [*deltas[:n_conv], *dense_deltas], [*activations[:n_conv], *dense_inputs]
            scaled = [d * (self.layer_bound / layer.squared_norms(d, h).sqrt_())  # norm C/sqrt(L); zeros stay zeros
                      for layer, d, h in zip(self.net.layers, deltas, activations, strict=True)]
            return scaled, activations
        conv_deltas, conv_inputs = [], []
        for layer, d, h, bound in zip(self.net.layers[:n_conv], deltas[:n_conv], activations[:n_conv],
                                      self.conv_bounds, strict=True):
            if self.clips_conv_apart:
                d, h = self._clipped_apart(layer, d, h, bound)
            else:
                d = d * (bound / layer.squared_norms(d, h).sqrt_()).clamp_(max=1.0)
            conv_deltas.append(d)
            conv_inputs.append(h)
        return [*conv_deltas, *dense_deltas], [*conv_inputs, *dense_inputs]

    def layer_factors(self, lengths: Sequence[torch.Tensor],
                      squares: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each layer's factors for the weights and the biases of a record's contribution, in integer arithmetic.

        The first factor clips delta and h, the second delta alone. Feedback is linear in the output error e, so e is
        clipped by scaling the deltas.
        """
        error_factor = torch.ones_like(lengths[-1])
        if self.error_clip and not self.ternary:
            error_factor = (self.tau_e / lengths[-1]).clamp_(max=1.0)  # delta^L = e
        factors = []
        for delta_norm, h_squared, bound, tau_h in zip(lengths, squares, self.delta_bounds, self.activation_bounds,
                                                       strict=True):
            h_factor = (tau_h / h_squared.sqrt()).clamp_(max=1.0)
            if self.scales_to_bound:
                norm = delta_norm * (1 + h_squared * h_factor.square()).sqrt()  # of weights and bias together
                delta_factor = torch.where(delta_norm > 0, self.layer_bound / norm, 0.0)
            else:
                delta_factor = torch.minimum(error_factor, bound / delta_norm)
            factors.append((delta_factor * h_factor, delta_factor))
        return factors

    @staticmethod
    def _clipped_apart(layer: Layer, delta: torch.Tensor, h: torch.Tensor,
                       bound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return delta and h, scaled to clip weights and bias of a convolution to bound/sqrt(2) each.

        The bias gradient depends on delta alone, the weight gradient on products of delta and h.
        """
        if not isinstance(layer, Conv):
            raise TypeError(f"layer: must be a convolution, got {type(layer).__name__}")
        weight_factor, bias_factor = ((bound / math.sqrt(2) / squares.sqrt_()).clamp_(max=1.0)
                                      for squares in layer.squared_norms_apart(delta, h))
        return delta * bias_factor, h * (weight_factor / bias_factor)
