"""The photonic mechanism of Ohana et al. 2021, section 3.1 and Algorithm 1.

    delta W^l = -(1/m) sum_i ((scale_s(B^l e_i) + g_i) * phi'(z_i^l)) clip_c(offset_nu(h_i^{l-1}))^T       (Eq. 8)
    s = tau_f,   c = tau_h/sqrt(n_{l-1}),   nu = tau_h_min/sqrt(n_{l-1}),   g_i ~ N(0, sigma^2 I)         (Eq. 9)

Choices that the paper leaves open; the claimed epsilon assumes all of them:

- c and nu use n_{l-1}, the width of the clipped h (Eq. 9 prints n_l). The network's input h^0 is clipped too.
- The output layer gets scale(e) + g like every other layer, with its own noise. `output_noise: false` leaves it without
  noise, and then no epsilon can be claimed.
- BP has one error to perturb: scale and noise are applied once, on e, at the top of the network.

Two settings are not in the paper. They protect labels only (docs/privacy.md, section 5) and need B. `joint_release`
scales and perturbs the projections of all layers as one vector, and decodes the output layer's error from it. `denoise`
projects the perturbed signal on the column space of B.

One difference from the paper: the paper counts biases as weights, so their constant input 1 would be clipped to c like
an activation. Here it stays 1, so a bias learns sqrt(n_{l-1})/tau_h times faster than in Eq. 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.learning.mechanisms.base import MECHANISMS, MechanismStep, mean_outer_products
from pipeline.learning.mechanisms.optics import DecodedNoise, OpticalNoise, column
from pipeline.learning.network.stacked import Parameters, StackedNetwork
from pipeline.learning.randomness import Noise
from pipeline.trials import mechanism
from pipeline.trials.config import TrialConfig

Bound = torch.Tensor | float  # [R, 1, 1], or one number for all trials


def offset_and_clip(h: torch.Tensor, nu: Bound, c: Bound, floor: bool = False) -> torch.Tensor:
    """Return clip_c(offset_nu(h)) or, with `floor`, sign(h) clip(|h|, nu, c) with sign(0) = +1, for h [R, m, n].

    Only the second guarantees |h_k| >= nu: an offset moves h = -nu to 0.
    """
    if floor:
        return torch.where(h >= 0, 1.0, -1.0) * h.abs().clamp(nu, c)  # type: ignore[arg-type]  # two numbers or two tensors
    return clip(h + nu, c)


def clip(h: torch.Tensor, c: Bound) -> torch.Tensor:
    """Return clip_c(h), every component of h [R, m, n] clipped to [-c, c]."""
    if isinstance(c, float):
        return h.clamp(-c, c)
    return torch.minimum(torch.maximum(h, -c), c)  # `clamp` is slower with tensors as bounds


@MECHANISMS.of(mechanism.Photonic)
class PhotonicStep(MechanismStep):
    """The mechanism of Eq. 8 for R trials, each with its own sigma, tau_f, tau_h, tau_h_min and gamma_min."""

    def __init__(self, trials: Sequence[TrialConfig], net: StackedNetwork, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        """Make the bounds nu and c of every layer's input (Eq. 9), and the noise."""
        shared = trials[0]
        super().__init__(trials, net, device, matrices)
        self.gamma_min = column(trials, "gamma_min", device) if any(t.gamma_min for t in trials) else None
        self.has_floor = shared.activation_floor
        low, high = (column(trials, field, device) for field in ("tau_h_min", "tau_h"))
        self.input_bounds = [_common(low / math.sqrt(n), high / math.sqrt(n)) for n in net.sizes[:-1]]  # (nu, c)
        self.has_offsets = any(t.tau_h_min for t in trials)
        # BP carries one signal, the error; DFA one for every layer, the output layer's error last.
        widths = net.sizes[-1:] if shared.parts.feedback.exact else net.sizes[1:]
        if not shared.output_noise and not shared.parts.feedback.exact:
            widths = widths[:-1]  # no noise on the output layer's error
        self.optics: DecodedNoise | OpticalNoise
        if shared.joint_release or shared.denoise:
            self.optics = DecodedNoise(trials, widths, net.sizes[1:-1], shared.batch_size, matrices)
        else:
            self.optics = OpticalNoise(trials, widths, shared.batch_size, device)

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return scale_s(signal) + g for every layer's signal [R, m, n_l] (Eq. 8 and 10)."""
        return self.optics.perturb(signals)

    def noise_sources(self) -> list[Noise]:
        return self.optics.noise_sources()

    def derivative(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        """Return phi'(z) from h, at least gamma_min if that is set; phi' >= 0 for all activations here."""
        derivative = self.net.derivative(h, layer)
        return derivative if self.gamma_min is None else torch.maximum(derivative, self.gamma_min)

    def update(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        """Write the mean of the outer products of the deltas with the clipped activations to `out` (Eq. 8)."""
        mean_outer_products(self.net, deltas, self.clipped(activations), self.batch_size, out)

    def clipped(self, activations: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return clip_c(offset_nu(h^{l-1})) for every layer's input [R, m, n_{l-1}] (Eq. 9)."""
        bounded = zip(activations, self.input_bounds, strict=True)
        if self.has_floor or self.has_offsets:
            return [offset_and_clip(h, nu, c, self.has_floor) for h, (nu, c) in bounded]
        return [clip(h, c) for h, (_, c) in bounded]


def _common(*bounds: torch.Tensor) -> tuple[Bound, ...]:
    """Return bounds [R, 1, 1] as numbers if all R trials share them: a clip is then a single pass."""
    if all(bool((bound == bound[0]).all()) for bound in bounds):
        return tuple(bound[0].item() for bound in bounds)
    return bounds
