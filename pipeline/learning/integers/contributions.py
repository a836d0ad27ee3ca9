"""Contributions as integers: bounded, summed without error, and released with noise on the same grid.

    D = round(delta/s),   N = ||s D (outer) (b H, 1)|| over all layers,   c = factor(N),   c N <= C
    K = trunc(c s D/a),   S = sum_i K_i (outer) (H_i, 1),   release: gamma (2^j S + R)/m,   gamma = sigma/2^40

With mechanism `component` the two factors of a layer's part are bounded separately. K then differs for weights and
biases: trunc(f g s D/a) and trunc(f s D/a), with f ||s D|| <= bound on delta and g ||b H|| <= tau_h.

Truncation and clamping make no component longer, so no record contributes more than c N <= C despite earlier rounding.
S is exact. a b = 2^j gamma, so the sum is on the noise's grid. The guarantee is the same as for the Gaussian mechanism
with sensitivity C (docs/privacy.md, section 9). Shapes: R trials, m records, n_l units of layer l.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from pipeline.learning.integers.products import (
    as_factor,
    combine_digits,
    combine_factor,
    product,
    signals,
    split_digits,
    whole_type,
)
from pipeline.learning.network.stacked import Parameters
from pipeline.learning.randomness import RoundedNoise, seeds_of
from pipeline.learning.rows import IntegerRows, exact_norm
from pipeline.trials.config import TrialConfig
from pipeline.trials.steps import LARGEST, grid_exponent, largest_integers, signal_steps, steps

# Safety margin on factors: rounding a factor and its products to float32 then lengthens nothing.
SAFETY_FACTOR = 1 - 2.0**-20
CHUNK_ELEMENTS = {"cpu": 2**16, "cuda": 2**28}  # on a CPU, a chunk stays in the cache for several passes

# From ||delta|| and ||h||^2 of every layer, each [R, m, 1], to the factors of its weights and of its biases.
Factors = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[tuple[torch.Tensor, torch.Tensor]]]
LARGEST_OF_BIASES = 2.0**30


class Bounds(Protocol):
    """What a sum asks of the mechanism that bounds contributions (`mechanisms.gaussian.GaussianStep`)."""

    def factors(self, deltas: list[torch.Tensor]) -> list[torch.Tensor]: ...

    def factor(self, norms: torch.Tensor) -> torch.Tensor: ...

    def bounded(self, deltas: list[torch.Tensor],
                activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]: ...

    def layer_factors(self, lengths: Sequence[torch.Tensor],
                      squares: Sequence[torch.Tensor]) -> Sequence[tuple[torch.Tensor, torch.Tensor]]: ...


class IntegerSum:
    """Sums contributions of a pack's trials and releases the sums.

    A step is the real number that integer 1 represents. Learning signals are rounded to `first_steps`, projected if
    there is a basis, rounded again to `signal_steps`, bounded, and rounded to the steps of contributions.
    """

    def __init__(self, trials: Sequence[TrialConfig], bounds: Sequence[float],  # C of every trial
                 deviations: Sequence[float],  # of the noise on every trial's sum; 0 without noise
                 shape: tuple[int, ...],  # of one trial's numbers in one step, in the layout of `Parameters`
                 bases: Sequence[torch.Tensor | None],  # of layers with `denoise`, in steps of 2^-12
                 device: torch.device) -> None:
        self.bases, self.batch_size, self.device = list(bases), trials[0].batch_size, device
        self.steps = [steps(trial, bound, deviation)
                      for trial, bound, deviation in zip(trials, bounds, deviations, strict=True)]
        steps_by_layer = list(zip(*self.steps, strict=True))  # per layer, the steps of every trial
        first_steps = [self._by_trial(values) for values in zip(*map(signal_steps, trials), strict=True)]
        # By layer, s of every trial [R, 1, 1]: before a projection, for the bounded signals; and s/a for these.
        self.first_steps = [step.float() for step in first_steps]
        self.signal_steps = [self._by_trial([step.signal for step in layer]) for layer in steps_by_layer]
        self.step_ratios = [step / first for step, first in zip(self.signal_steps, first_steps, strict=True)]
        self.ratios = [self._by_trial([step.signal / step.contribution for step in layer]) for layer in steps_by_layer]
        self.largest = largest_integers(trials[0])
        self.digits = 2 if self.largest.contribution <= LARGEST else 3  # of a contribution
        self.deviations = tuple(deviations)
        has_noise = [deviation != 0 for deviation in deviations]
        self.noise = RoundedNoise(seeds_of(trials), shape, device, stream="release", active=has_noise)

    def _by_trial(self, values: Sequence[float]) -> torch.Tensor:
        """Return one number per trial as a tensor [R, 1, 1], float64, to be multiplied with [R, m, n]."""
        return torch.tensor(values, dtype=torch.float64, device=self.device).view(-1, 1, 1)

    def signals(self, deltas: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the integers D of every layer's learning signals, as float32 [R, m, n_l].

        With a basis [R, n_l, r_l] (`denoise`) they are projected on it and rounded again: [R, m, r_l].
        """
        integers = self._before_projection(deltas)
        for layer, (basis, ratio) in enumerate(zip(self.bases, self.step_ratios, strict=True)):
            if basis is not None:
                projected = torch.matmul(integers[layer].double(), basis.double())
                integers[layer] = signals(projected, ratio, self.largest.signal).float()
        return integers

    def _before_projection(self, deltas: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the learning signals in integers [R, m, n_l], float32, before `denoise` projects them."""
        return [signals(delta, step, self.largest.signal) for delta, step in zip(deltas, self.first_steps, strict=True)]

    def contributions(self, factors: Factors, deltas: Sequence[torch.Tensor],
                      activations: Sequence[IntegerRows]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return K of every layer's weights, int16 or int32 [R, m, n_l], and of its biases, the same tensor or int32.

        Factors, and so K, depend only on a record's integers.
        """
        integers = self.signals(deltas)
        norms = [exact_norm(d).mul_(step) for d, step in zip(integers, self.signal_steps, strict=True)]
        factors_by_layer = factors(norms, [h.real_squares() for h in activations])
        contributions = []
        for d, h, ratio, (weight_factor, bias_factor) in zip(integers, activations, self.ratios, factors_by_layer,
                                                             strict=True):
            to_biases = None  # the same as to weights, unless factors differ or weights get `h.scales` as well
            if bias_factor is not weight_factor or h.scales is not None:  # before `d` is overwritten
                to_biases = _scaled(d.clone(), bias_factor, ratio, LARGEST_OF_BIASES).int()
            largest = self.largest.contribution
            to_weights = _scaled(d, h.scaled(weight_factor), ratio, largest).to(whole_type(largest))
            contributions.append((to_weights, to_weights if to_biases is None else to_biases))
        return contributions

    def clamped(self, inputs: Sequence[IntegerRows | None], deltas: Sequence[torch.Tensor],
                contributions: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[list[float]]:
        """Return the share of components that are clamped, by trial and layer: of H, D or K, whose share is largest.

        Args:
            inputs: H of every layer; None for one that is not counted.
            deltas: learning signals of every layer [R, m, n_l].
            contributions: K of every layer, as the method `contributions` returns them.
        """
        by_layer = []
        for h, first, d, (k, _) in zip(inputs, self._before_projection(deltas), self.signals(deltas), contributions,
                                       strict=True):
            shares = [_share_at(first, self.largest.signal), _share_at(d, self.largest.signal),
                      _share_at(k, self.largest.contribution)]
            if h is not None:
                shares.append(_share_at(h.values, self.largest.input))
            by_layer.append(torch.stack(shares).amax(dim=0))
        return torch.stack(by_layer, dim=1).tolist()

    def release(self, bounds: Bounds, deltas: Sequence[torch.Tensor], activations: Sequence[IntegerRows],
                out: Parameters) -> None:
        """Write the sum of the contributions, with noise and over the public batch size, to `out`."""
        self._write_sum(bounds.layer_factors, deltas, activations, self.noise.next(), self.batch_size, out)

    def add_up(self, bounds: Bounds, deltas: Sequence[torch.Tensor], activations: Sequence[IntegerRows],
               out: Parameters) -> None:
        """Write the sum of the contributions to `out`, exact in float64."""
        nothing = torch.zeros_like(out.flat, dtype=torch.float64)
        self._write_sum(bounds.layer_factors, deltas, activations, nothing, 1, out)

    def _write_sum(self, factors: Factors, deltas: Sequence[torch.Tensor], activations: Sequence[IntegerRows],
                   noise: torch.Tensor,  # integers R, or 0, float64, in the layout of `out`; overwritten
                   divisor: int, out: Parameters) -> None:
        """Write the sum of the contributions, plus noise, over a divisor to `out`: the public m, or 1 for a sum."""
        contributions = self.contributions(factors, deltas, activations)
        weight_noise, bias_noise = out.views(noise)
        for r, (layer_steps, deviation) in enumerate(zip(self.steps, self.deviations, strict=True)):
            for layer, step in enumerate(layer_steps):
                to_weights, to_biases = (k[r] for k in contributions[layer])  # integers K of trial r
                inputs = activations[layer].values[r]
                # 1 in a sum is 2^j steps of the noise's grid; without noise, one step.
                scale = 2.0 ** grid_exponent(step, deviation) if deviation else 1.0
                unit = step.contribution * step.input / scale / divisor
                bias_sum = to_biases.sum(dim=0, dtype=torch.int64).double().mul_(scale / step.input)
                out.biases[layer][r].copy_(bias_sum.add_(bias_noise[layer][r]).mul_(unit))
                weight_sums = product(as_factor(inputs.t()), split_digits(to_weights, self.digits))
                self._write_weights(weight_sums, weight_noise[layer][r].t(), scale, unit, out.weights[layer][r].t())

    def _write_weights(self, sums: torch.Tensor,  # S in digits of K and of H, int32 [1 or 2 n_{l-1}, 2 or 3 n_l]
                       noise: torch.Tensor, scale: float, unit: float, out: torch.Tensor) -> None:  # noise: overwritten
        """Write the sums of one layer's weights with noise, unit (scale S + R), to `out` [n_{l-1}, n_l], in float64.

        1 in S is `scale` steps of the noise, and a step of the noise is `unit`.
        """
        n_rows = max(1, CHUNK_ELEMENTS[self.device.type] // out.shape[1])
        by_digit = sums.view(-1, len(out), sums.shape[1])  # of H
        chunks = zip(by_digit.split(n_rows, dim=1), noise.split(n_rows), out.split(n_rows), strict=True)
        for digits, noise_chunk, out_chunk in chunks:
            whole = combine_factor(combine_digits(digits, self.digits))
            torch.mul(noise_chunk.add_(whole, alpha=scale), unit, out=out_chunk)


def _share_at(x: torch.Tensor, largest: int) -> torch.Tensor:
    """Return the share of numbers [R, m, n] that are `largest` in size, by trial [R], float64."""
    return (x.abs() >= largest).double().mean(dim=(1, 2))


def _scaled(d: torch.Tensor, factor: torch.Tensor,  # [R, m, n]; [R, m, 1]
            ratio: torch.Tensor, largest: float) -> torch.Tensor:  # s/a [R, 1, 1]
    """Return factor s D/a with the margin `SAFETY_FACTOR`, clamped but not truncated yet; D is overwritten."""
    factors = (factor * SAFETY_FACTOR * ratio).float().nan_to_num_(0.0, posinf=0.0)  # what is cast must be finite
    return d.mul_(factors).clamp_(-largest, largest)
