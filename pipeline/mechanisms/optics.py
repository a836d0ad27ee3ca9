"""What an optical processor does to a signal: its norm is bounded, and Gaussian noise is added (Eq. 8 and 10)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.config import TrialConfig
from pipeline.randomness import GaussianNoise


def column(trials: Sequence[TrialConfig], field: str, device: torch.device) -> torch.Tensor:
    """One field of every trial as float32 [R, 1, 1]."""
    return torch.tensor([float(getattr(t, field)) for t in trials], device=device).view(-1, 1, 1)


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


class OpticalNoise:
    """scale_{tau_f}(v) + g, g ~ N(0, sigma^2 I), on the first of the signals that feedback carries.

    Args:
        trials: with their own tau_f and sigma.
        widths: n_l of the signals that get it, from the first on; the rest passes.
        rows: records per batch.
        device: where signals live.
    """

    def __init__(self, trials: Sequence[TrialConfig], widths: Sequence[int], rows: int, device: torch.device) -> None:
        self.widths, self.rows = tuple(widths), rows
        self.tau_f = column(trials, "tau_f", device)
        self.noise = None
        if any(t.sigma for t in trials):
            self.noise = GaussianNoise([t.seed for t in trials], [t.sigma for t in trials],
                                       (rows, sum(self.widths)), device, secure=trials[0].secure)

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """The signals [R, m, n_l] as the device hands them out."""
        perturbed = signals[: len(self.widths)]
        if self.noise is None:
            released = [scale(v, self.tau_f) for v in perturbed]
        else:
            noise = self._noise(signals[0].shape[1]).split(self.widths, dim=-1)
            released = [g.addcmul_(v, scale_factor(v, self.tau_f)) for g, v in zip(noise, perturbed, strict=True)]
        return [*released, *signals[len(self.widths):]]

    def _noise(self, rows: int) -> torch.Tensor:
        """Noise [R, rows, sum n_l]; batches of random size take what they need of a block, or of several."""
        blocks = [self.noise.next()]
        while len(blocks) * self.rows < rows:
            blocks[-1] = blocks[-1].clone()
            blocks.append(self.noise.next())
        return (blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1))[:, :rows]
