"""The photonic mechanism of Ohana et al. 2021, section 3.1 and Algorithm 1.

    delta W^l = -(1/m) sum_i ((scale_s(B^l e_i) + g_i) * phi'(z_i^l)) clip_c(offset_nu(h_i^{l-1}))^T       (Eq. 8)
    s = tau_f,   c = tau_h/sqrt(n_{l-1}),   nu = tau_h_min/sqrt(n_{l-1}),   g_i ~ N(0, sigma^2 I)         (Eq. 9)

Choices where the paper is silent, all of them part of what the claimed epsilon is computed for:

- c and nu use the width of the h that is clipped, n_{l-1} (Eq. 9 prints n_l). The network's input h^0 is clipped too.
- The output layer gets scale(e) + g like every other layer, with noise of its own; `output_noise: false` leaves it
  bare, and then nothing at all can be claimed.
- BP has one error to perturb: scale and noise enter once, on e, at the top of the network.

A departure from the paper: it counts the biases among the weights, so that the constant 1 which they multiply would be
clipped to c like any activation. Here it stays 1, so a bias learns sqrt(n_{l-1})/tau_h times faster than Eq. 8 says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.config import TrialConfig
from pipeline.mechanisms.none import mean_outer_products
from pipeline.networks import Mlp, Parameters
from pipeline.randomness import GaussianNoise


def scale(v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """scale_s(v) = min(s, ||v||) v/||v||: rows of norm above s are shortened to s, others stay.

    Args:
        v: [R, m, n].
        s: [R, 1, 1].
    """
    return v * scale_factor(v, s)


def scale_factor(v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """min(1, s/||v||) for every row [R, m, 1]; 1 for a row of zeros."""
    return (s / torch.linalg.vector_norm(v, dim=-1, keepdim=True)).clamp_(max=1.0)


def offset_and_clip(h: torch.Tensor, nu: torch.Tensor, c: torch.Tensor, floor: bool = False) -> torch.Tensor:
    """clip_c(offset_nu(h)), or, with `floor`, sign(h) clip(|h|, nu, c) with sign(0) = +1.

    Only the second makes every |h_k| >= nu: an offset moves h = -nu to 0.

    Args:
        h: [R, m, n].
        nu, c: [R, 1, 1].
    """
    if floor:
        return torch.where(h >= 0, 1.0, -1.0) * torch.clamp(h.abs(), nu, c)
    return clip(h + nu, c)


def clip(h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """clip_c(h): every component to [-c, c]; h [R, m, n], c [R, 1, 1]. (torch.clamp is slower where bounds are
    tensors.)"""
    return torch.minimum(torch.maximum(h, -c), c)


class Photonic:
    """Eq. 8 for R trials with their own sigma, tau_f, tau_h, tau_h_min and gamma_min."""

    def __init__(self, trials: Sequence[TrialConfig], net: Mlp, device: torch.device) -> None:
        shared = trials[0]

        def column(field: str) -> torch.Tensor:
            return torch.tensor([getattr(t, field) for t in trials], device=device).view(-1, 1, 1)

        self.net = net
        self.tau_f = column("tau_f")
        self.gamma_min = column("gamma_min") if any(t.gamma_min for t in trials) else None
        self.floor = shared.activation_floor
        self.clips = [(column("tau_h_min") / math.sqrt(n), column("tau_h") / math.sqrt(n)) for n in net.sizes[:-1]]
        self.offsets = any(t.tau_h_min for t in trials)
        # BP carries one signal, the error; DFA one for every layer, the output layer's error last.
        widths = net.sizes[-1:] if shared.algorithm == "bp" else net.sizes[1:]
        self.bare_output = not shared.output_noise and shared.algorithm != "bp"
        self.widths = widths[:-1] if self.bare_output else widths
        self.noise = None
        if any(t.sigma for t in trials):
            self.noise = GaussianNoise([t.seed for t in trials], [t.sigma for t in trials],
                                       (shared.batch_size, sum(self.widths)), device)

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """scale_s(signal) + g for every layer's signal [R, m, n_l] (Eq. 8 and 10)."""
        perturbed = signals[: len(self.widths)]
        if self.noise is None:
            released = [scale(v, self.tau_f) for v in perturbed]
        else:
            noise = self.noise.next().split(self.widths, dim=-1)
            released = [g.addcmul_(v, scale_factor(v, self.tau_f)) for g, v in zip(noise, perturbed, strict=True)]
        return [*released, *signals[len(self.widths):]]

    def derivative(self, h: torch.Tensor) -> torch.Tensor:
        """phi'(z) from h; at least gamma_min where that variant is enforced (phi' >= 0 for all activations here)."""
        d = self.net.derivative(h)
        return d if self.gamma_min is None else torch.maximum(d, self.gamma_min)

    def update(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        """Write the mean of the outer products of the deltas with the clipped activations to `out` (Eq. 8)."""
        clipped = [self._clip(h, *bounds) for h, bounds in zip(activations, self.clips, strict=True)]
        mean_outer_products(self.net, deltas, clipped, out)

    def _clip(self, h: torch.Tensor, nu: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        if self.floor or self.offsets:
            return offset_and_clip(h, nu, c, self.floor)
        return clip(h, c)
