"""Gaussian mechanisms: every record's contribution is bounded, summed, and noise is added to the sum.

    update = (1/m) (sum_i u_i + N(0, (z C)^2 I)),    ||u_i|| <= C

u_i is all that record i contributes to the weights and biases of all layers. It is bounded after every randomness of
the record's own, optical noise included, and divided by the public m (for Poisson batches the expected size), never by
the realised size; an empty batch still releases noise. Adding or removing a record moves the sum by at most C,
replacing one by at most 2C. With arithmetic `integer` contributions and noise are integers (`IntegerSum`), and then
this holds for the bits that are released.

    per_example   u_i is shortened to C as a whole (DP-SGD; Abadi et al. 2016). In a linear layer it is an outer
                  product, so its norm is that of its factors; in a convolution, `layers.Conv` measures it.
    automatic     u_i becomes C u_i/(||u_i|| + gamma), which is shorter than C (AUTO-S; Bu et al. 2023).
    component     its factors are bounded (Lee & Kifer 2020, Algorithm 1): ||e|| <= tau_e, ||B|| = beta,
                  ||h|| <= tau_h, |phi'| <= gamma. C follows from them; or C is given (`target_norm`), every layer
                  gets C/sqrt(L), and tau_h of a layer follows from that. A convolution has no such factors: each
                  record's part in it is shortened to C/sqrt(L), whatever the feedback that it came from.
                  Other readings of the paper are settings (`Component`). Some keep the noise of Algorithm 1 and let a
                  record contribute more: `trials.bounds` has what noise is measured by, and what epsilon is of.

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
    excess,
    fills_parts,
    part_norm,
)
from pipeline.trials.config import TrialConfig
from pipeline.trials.promises import check_exact


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
    """What all ways to bound share: the noise on the sum, and the normaliser.

    Attributes:
        bounds: C of every trial.
        deviations: standard deviation of the noise on every trial's sum (`deviation`).
    """

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        self.bounds = [self.bound(t) for t in trials]
        # Optical noise lies on what is projected; the output layer's error is not.
        self.optics = (OpticalNoise(trials, net.sizes[1:-1], trials[0].batch_size, device)
                       if any(t.sigma for t in trials) and trials[0].parts.feedback.optical else None)
        self.deviations = [self.deviation(t) for t in trials]
        self.space = FeedbackSpace(trials[0], net, matrices) if trials[0].denoise else None
        blank = self.space.blank_parameters if self.space else net.blank_parameters
        self.inside = self.space.blank_parameters(len(trials), device, torch.float32) if self.space else None
        shape = blank(len(trials), "meta", torch.float32).flat.shape[1:]
        self.integers: IntegerSum | RowSum | None = None
        check_exact(trials[0])
        if trials[0].exact or trials[0].secure:
            bases = self.space.bases if self.space else [None] * len(net.layers)
            of_all = trials, self.bounds, self.deviations, shape
            self.integers = IntegerSum(*of_all, bases, device) if trials[0].exact else RowSum(*of_all, device)
            self.source: GaussianNoise | RoundedNoise = self.integers.noise
        else:
            self.source = GaussianNoise([t.seed for t in trials], self.deviations, shape, device, stream="release")

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

    @classmethod
    def deviation(cls, trial: TrialConfig) -> float:
        """Standard deviation of the noise on every coordinate of the sum: z C, less where accountants are told that C
        exceeds what the noise is measured by (`trials.bounds.excess`)."""
        return trial.noise_multiplier * cls.bound(trial) / excess(trial)

    def factor(self, norms: torch.Tensor) -> torch.Tensor:
        """From norms of contributions [R, m, 1] what they are multiplied by [R, m, 1], at least 0 and such that
        ||u_i|| <= C; float64 in integer arithmetic."""
        raise NotImplementedError

    def layer_factors(self, lengths: Sequence[torch.Tensor],
                      squares: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What the parts of a contribution in weights and in biases are multiplied by, layer by layer, in integer
        arithmetic.

        Args:
            lengths: ||delta_i^l|| [R, m, 1] of every layer, float64.
            squares: ||h_i^{l-1}||^2 [R, m, 1].
        """
        total = torch.zeros_like(lengths[0])
        for delta, h in zip(lengths, squares, strict=True):
            total = total + delta.square() * (h + 1)
        factor = self.factor(total.sqrt_())
        return [(factor, factor)] * len(lengths)

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The factors delta_i^l, h_i^{l-1} of the contributions, so bounded that ||u_i|| <= C."""
        factor = self.factor(contribution_norms(self.net, deltas, activations))
        return [d * factor for d in deltas], activations

    def update(self, deltas: list[torch.Tensor], activations: list[Activation], out: Parameters) -> None:
        """Write the released update to `out`: bounded contributions, summed, with noise, over the public m."""
        released = self.inside or out
        if isinstance(self.integers, IntegerSum):
            self.integers.release(self.layer_factors, deltas, activations, released)
        elif self.integers:
            self.integers.release(self.factor, deltas, activations, released)
        else:
            self.add_up(deltas, activations, released)
            weights, biases = released.views(self.source.next())
            for block, noise in zip(_blocks(released), weights + biases, strict=True):
                block.add_(noise).div_(self.batch_size)
        if self.space:
            self.space.write_outside(released, out)

    def add_up(self, deltas: list[torch.Tensor], activations: list[Activation], out: Parameters) -> None:
        """Write the sum of the bounded contributions to `out`; with `denoise`, in the coordinates of the feedback
        space."""
        if isinstance(self.integers, IntegerSum):
            return self.integers.add_up(self.layer_factors, deltas, activations, out)
        deltas, activations = self.bounded(self.factors(deltas), activations)
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
    """||delta^l|| <= beta tau_e gamma_l (output layer tau_e), ||h^{l-1}|| <= tau_h; a record's part in a convolution is
    shortened to C/sqrt(L).

    Readings of Lee & Kifer 2020 that are settings, and what they do to C (`trials.bounds`):

        error_clip off         ||e|| <= sqrt 2 in place of tau_e. tau_h and noise stay; C is larger.
        tau_h_rule published   One tau_h for all layers. Noise stays; C is what the output layer makes of it.
        conv_error raw         Convolutions of hybrid learn from e before its clip; their part is clipped. C stays.
        conv_clip apart        Weights and bias of a convolution are each clipped to tau, "chosen so that the
                               sensitivity of each convolutional layer is C/sqrt(L)". Two such parts have norm sqrt(2)
                               tau, so that tau is C/sqrt(2 L), and C stays. (With tau = C/sqrt(L) for each, it would be
                               C sqrt(1 + n/L), n being the number of convolutions.)
        bounding scale         A record's part in each layer is made exactly C/sqrt(L) long, but for zeros. C stays.
    """

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        super().__init__(trials, net, device, matrices)
        shared = trials[0]
        self.ternary, self.error_clip = shared.parts.feedback.ternary, shared.error_clip
        self.filled = fills_parts(shared)
        self.raw = shared.conv_error == "raw" and shared.parts.feedback.convolutional and shared.error_clip
        self.apart = shared.conv_clip == "apart" and not self.filled
        self.tau_e = column(trials, "tau_e", device)
        self.conv_bounds, self.delta_bounds, self.activation_bounds = (
            [self._column(bounds, device) for bounds in zip(*of_trials, strict=True)]
            for of_trials in ([conv_bounds(t) for t in trials], [delta_bounds(t, error_bound(t)) for t in trials],
                              [activation_bounds(t) for t in trials]))
        self.part = self._column([part_norm(t) for t in trials], device)

    def _column(self, values: Sequence[float], device: torch.device) -> torch.Tensor:
        """One number of every trial [R, 1, 1], as `column`."""
        return torch.tensor(values, dtype=self.tau_e.dtype, device=device).view(-1, 1, 1)

    @staticmethod
    def bound(trial: TrialConfig) -> float:
        """`trials.bounds.contribution_norm`: the target C or, without, sqrt(sum_l ||delta^l||^2 (1 + tau_h^2)), but for
        readings that bound a contribution by more."""
        return contribution_norm(trial)

    def error(self, error: torch.Tensor) -> torch.Tensor:
        """Clip e to norm tau_e (Algorithm 1, line 12).

        A ternarized error is bounded as a delta, because its size is lost. If convolutions learn from e before its
        clip, `bounded` clips it for the other layers; in integers `layer_factors` does.
        """
        if self.ternary or self.raw or not self.error_clip or self.integers:
            return error
        return scale(error, self.tau_e).to(error.dtype)

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        n = len(self.conv_bounds)
        layers, convolved, seen = self.net.layers[:n], deltas[:n], activations[:n]
        dense = deltas[n:]
        if self.raw:  # feedback is linear in e
            clipped_error = scale_factor(deltas[-1], self.tau_e)
            dense = [d * clipped_error for d in dense]
        # With DFA and spectrally normalised feedback no delta of a hidden layer is longer than its bound already;
        # back-propagated, ternary and optically noisy ones are.
        dense = [scale(d, bound) for d, bound in zip(dense, self.delta_bounds, strict=True)]
        clipped = [scale(h, bound) for h, bound in zip(activations[n:], self.activation_bounds, strict=True)]
        if self.filled:
            deltas, activations = [*convolved, *dense], [*seen, *clipped]
            return [self._filled(*factors) for factors in zip(self.net.layers, deltas, activations, strict=True)
                    ], activations
        if self.apart:
            pairs = [self._clipped_apart(*factors)
                     for factors in zip(layers, convolved, seen, self.conv_bounds, strict=True)]
            convolved, seen = ([pair[k] for pair in pairs] for k in (0, 1))
        else:
            convolved = [d * (bound / layer.squared_norms(d, h).sqrt_()).clamp_(max=1.0)
                         for layer, d, h, bound in zip(layers, convolved, seen, self.conv_bounds, strict=True)]
        return [*convolved, *dense], [*seen, *clipped]

    def layer_factors(self, lengths: Sequence[torch.Tensor],
                      squares: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """As of `GaussianMechanism`. Feedback is linear in e, so that deltas are multiplied by e's clip."""
        clipped = self.error_clip and not self.ternary
        of_error = (self.tau_e / lengths[-1]).clamp_(max=1.0) if clipped else torch.ones_like(lengths[-1])
        found = []
        for delta, h, bound, tau_h in zip(lengths, squares, self.delta_bounds, self.activation_bounds, strict=True):
            of_h = (tau_h / h.sqrt()).clamp_(max=1.0)
            if self.filled:
                of_delta = torch.where(delta > 0, self.part / (delta * (1 + h * of_h.square()).sqrt()), 0.0)
            else:
                of_delta = torch.minimum(of_error, bound / delta)
            found.append((of_delta * of_h, of_delta))
        return found

    def _filled(self, layer: Layer, delta: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """delta with which a record's part in the layer has norm C/sqrt(L); zeros where it is zero."""
        return delta * (self.part / layer.squared_norms(delta, h).sqrt_())

    @staticmethod
    def _clipped_apart(layer: Layer, delta: torch.Tensor, h: torch.Tensor,
                       bound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """delta and h with which a record's part in a convolution has weights and bias of norm bound/sqrt(2) at most.
        The bias learns from delta alone, the weights from its products with h."""
        if not isinstance(layer, Conv):
            raise TypeError(f"layer: must be a convolution, got {type(layer).__name__}")
        of_weights, of_bias = ((bound / math.sqrt(2) / squares.sqrt_()).clamp_(max=1.0)
                               for squares in layer.squared_norms_apart(delta, h))
        return delta * of_bias, h * (of_weights / of_bias)
