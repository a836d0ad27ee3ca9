"""Model an optical processor: bound a signal's norm and add Gaussian noise (Eq. 8 and 10).

Shapes: R trials, m records, n_l units of layer l.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.accounting.finite_precision import STEPS_PER_SIGMA, optical_enlargement
from pipeline.learning.mechanisms.fixed_point import FixedPointRelease
from pipeline.learning.network.layers import matmul
from pipeline.learning.randomness import GaussianNoise, Noise, RoundedNoise, seeds_of
from pipeline.trials.config import TrialConfig


def precision(trials: Sequence[TrialConfig]) -> torch.dtype:
    """Return the type of bounds: float64 for secure trials and integer arithmetic, as their proofs require."""
    return torch.float64 if trials[0].secure or trials[0].exact else torch.float32


def column(trials: Sequence[TrialConfig], field: str, device: torch.device) -> torch.Tensor:
    """Return one field of every trial as [R, 1, 1], in `precision`."""
    return torch.tensor([float(getattr(t, field)) for t in trials], dtype=precision(trials),
                        device=device).view(-1, 1, 1)


def scale(v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:  # [R, m, n]; [R, 1, 1]
    """Return scale_s(v) = min(s, ||v||) v/||v||: rows with norm above s are scaled to s."""
    return v * scale_factor(v, s)


def scale_factor(v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Return min(1, s/||v||) for every row [R, m, 1]; 1 for a row of zeros."""
    return (s / torch.linalg.vector_norm(v, dim=-1, keepdim=True, dtype=s.dtype)).clamp_(max=1.0)


class OpticalNoise:
    """Turns the first feedback signals v into scale_{tau_f}(v) + g, g ~ N(0, sigma^2 I).

    In secure trials of the photonic mechanism this is a `FixedPointRelease`: nothing else protects the labels. Gaussian
    mechanisms bound and perturb later, and their guarantee does not use this noise.
    """

    def __init__(self, trials: Sequence[TrialConfig],  # each with its own tau_f and sigma; all 0 means no noise
                 widths: Sequence[int],  # n_l of the first signals, which get noise; the others are unchanged
                 rows: int, device: torch.device) -> None:  # records per batch
        self.widths, self.rows = tuple(widths), rows
        self.tau_f = column(trials, "tau_f", device)
        self.noise: GaussianNoise | RoundedNoise | None = None
        self.release: FixedPointRelease | None = None
        shape: tuple[int, ...] = (rows, sum(self.widths))
        if not any(t.sigma for t in trials):
            return
        if trials[0].secure and trials[0].parts.mechanism.optical:
            self.release = FixedPointRelease([t.sigma * (1 + optical_enlargement(t)) for t in trials], shape, device,
                                             seeds_of(trials))
            self.noise = self.release.noise
        elif trials[0].exact:
            self.noise = RoundedNoise(seeds_of(trials), shape, device)
            self.step = column(trials, "sigma", device) / STEPS_PER_SIGMA
        else:
            self.noise = GaussianNoise([t.seed for t in trials], [t.sigma for t in trials], shape, device)

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the signals [R, m, n_l] with the device's scaling and noise."""
        to_perturb, unchanged = signals[: len(self.widths)], signals[len(self.widths):]
        if self.noise is None:
            released = [scale(v, self.tau_f).to(v.dtype) for v in to_perturb]
        elif self.release:
            scaled = torch.cat([scale(v.double(), self.tau_f) for v in to_perturb], dim=-1)
            released = [v.to(signals[0].dtype) for v in self.release(scaled).split(self.widths, dim=-1)]
        else:
            noise = self._noise(self.noise, signals[0].shape[1]).split(self.widths, dim=-1)
            factors = [scale_factor(v, self.tau_f).to(v.dtype) for v in to_perturb]
            if isinstance(self.noise, GaussianNoise):
                released = [g.addcmul_(v, f) for g, v, f in zip(noise, to_perturb, factors, strict=True)]
            else:  # in integer arithmetic: some processors round addcmul once, others twice
                released = [(v * f).add_(g) for g, v, f in zip(noise, to_perturb, factors, strict=True)]
        return [*released, *unchanged]

    def noise_sources(self) -> list[Noise]:
        return [] if self.noise is None else [self.noise]

    def _noise(self, source: GaussianNoise | RoundedNoise, rows: int) -> torch.Tensor:
        """Return noise [R, rows, n_1 + ... + n_l]: the start of one block, or several for a large Poisson batch."""
        blocks = [self._next(source)]
        while len(blocks) * self.rows < rows:
            blocks[-1] = blocks[-1].clone()  # the source overwrites it at the next draw
            blocks.append(self._next(source))
        return (blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1))[:, :rows]

    def _next(self, source: GaussianNoise | RoundedNoise) -> torch.Tensor:
        """Return the next block of noise with standard deviation sigma; a `RoundedNoise` gives steps of its grid."""
        drawn = source.next()
        return drawn if isinstance(source, GaussianNoise) else drawn.mul_(self.step).float()


class DecodedNoise:
    """`OpticalNoise` with a known B: one release for all layers, less noise, or both (docs/privacy.md, section 5).

    joint_release: v = [B^2; ...; B^L] e is released as one vector, scale_{tau_f}(v) + g. The output layer learns from
    the error decoded from it by least squares, B^+ (scale_{tau_f}(v) + g).

    denoise: the release is projected on the column space of B, P = Q Q^T with Q [n, r] orthonormal, r <= n_L.
    Since P v = v and ||Q^T v|| = ||v||, P (scale(v) + g) = Q (scale(Q^T v) + Q^T g), and Q^T g is N(0, sigma^2 I_r)
    exactly. So r numbers are drawn instead of n, and the rest follows from the r perturbed numbers.
    """

    def __init__(self, trials: Sequence[TrialConfig], widths: Sequence[int],  # as of `OpticalNoise`
                 hidden: Sequence[int], rows: int,  # n_1, ..., n_{L-1}, the widths of the signals that B projects
                 matrices: torch.Tensor | None) -> None:  # B of every trial [R, n_L, n_1 + ... + n_{L-1}]
        if matrices is None:
            raise ValueError("matrices: joint_release and denoise need the feedback matrix B, got None")
        self.hidden, self.joint = list(hidden), trials[0].joint_release
        if self.joint:
            self.decoder = torch.linalg.pinv(matrices.double()).to(matrices.dtype)  # rows e B, so that e = (e B) B^+
            widths = [sum(hidden)]
        self.bases = []
        if trials[0].denoise:
            blocks = [matrices] if self.joint else matrices.split(self.hidden, dim=2)
            self.bases = [torch.linalg.qr(b.mT.double())[0].to(b.dtype) for b in blocks]  # [R, n, r]
            widths = [*(basis.shape[2] for basis in self.bases), *widths[len(self.bases):]]
        self.optics = OpticalNoise(trials, widths, rows, matrices.device)

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the perturbed signals [R, m, n_l] of the hidden layers and, last, the output layer's error."""
        vectors = [torch.cat(signals[:-1], dim=-1)] if self.joint else signals
        n_projected = len(self.bases)  # the first vectors have a basis Q: their coordinates Q^T v get the noise
        coordinates = [matmul(v, basis) for v, basis in zip(vectors, self.bases, strict=False)]
        released = self.optics.perturb([*coordinates, *vectors[n_projected:]])
        projected = [matmul(v, basis.mT) for v, basis in zip(released, self.bases, strict=False)]
        released = [*projected, *released[n_projected:]]
        if not self.joint:
            return released
        return [*released[0].split(self.hidden, dim=-1), matmul(released[0], self.decoder)]  # the decoded error last

    def noise_sources(self) -> list[Noise]:
        return self.optics.noise_sources()


def optical_noise(trials: Sequence[TrialConfig], widths: Sequence[int], device: torch.device) -> OpticalNoise | None:
    """Return an OPU's noise on its projections to hidden layers, for Gaussian mechanisms; None if light has no part.

    It gives no privacy there: contributions are bounded after it, and get noise of their own.
    """
    has_light = trials[0].parts.feedback.optical and any(trial.sigma for trial in trials)
    return OpticalNoise(trials, widths, trials[0].batch_size, device) if has_light else None
