"""`opu_physical`: the optical processor as a device that counts photons (docs/optics.md).

Every record's ternary error takes four exposures, in this order: the positive part with the reference at phase 0 and at
phase pi, then the negative part at both phases. Counts are Poisson; then full well, read noise and ADC follow. The
result is computed only from the four numbers of every pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pipeline.learning.feedback.projection import Projector
from pipeline.learning.network.layers import matmul
from pipeline.learning.randomness import Noise, StepGenerators
from pipeline.trials.camera import Camera
from pipeline.trials.streams import transmission

BLOCK = 16  # torch's block of normal draws on a CPU; it draws a last, partial block again


class PhysicalOpuProjector(Projector):
    """A complex matrix, light of finite brightness, and a camera. `opu_simulated` has the real part of this matrix.

    Without noise, and below the full well, a projection is B e. Cameras, one per replica, share full well and ADC. A
    replica's noise depends on its seed and its number of projections, not on the other replicas. With Poisson sampling
    this holds only on a CPU: batches are padded to the longest of the pack, and a GPU draws in another order.
    """

    takes_ternary = True
    matrices: Tensor

    def __init__(self, n_classes: int, n_out_total: int, seeds: Sequence[int], std: float,
                 device: torch.device | str = "cpu", *, cameras: Sequence[Camera], noise_seeds: Sequence[int]) -> None:
        super().__init__(n_classes, n_out_total, seeds, std, device)
        for name, values in (("cameras", cameras), ("noise_seeds", noise_seeds)):
            if len(values) != self.n_replicas:
                raise ValueError(f"{name}: must be {self.n_replicas}, one for every replica, got {len(values)}")
        if len({(camera.full_well, camera.adc_bits) for camera in cameras}) > 1:
            raise ValueError("cameras: must have one full well and one ADC, got several")
        matrix = std * np.stack([transmission(seed, n_classes, n_out_total) for seed in seeds])
        self.matrices = torch.from_numpy(matrix.real.copy()).to(self.device)
        self._imaginary = torch.from_numpy(matrix.imag.copy()).to(self.device)
        self._noise = StepGenerators(noise_seeds, "camera", self.device)
        self._full_well, self._adc_step = cameras[0].full_well, cameras[0].adc_step
        self._read_noise = [camera.read_noise for camera in cameras]
        self._reference, self._phi, self._dark = (
            torch.tensor([getattr(camera, name) for camera in cameras], device=self.device).view(-1, 1, 1, 1)
            for name in ("reference", "photons_per_unit", "dark_counts"))

    def _project(self, e: Tensor) -> Tensor:
        return self.retrieve(self.expose(self.expected_counts(e)))

    def expected_counts(self, e: Tensor) -> Tensor:
        """Return the mean number of photo-electrons of each exposure [R, m, 4, n_out_total] of ternary errors e.

        The four exposures are those of +1 with the reference beam in phase and against it, then those of -1. The
        intensity is |reference + B e|^2 for a complex B; its mean count adds dark counts.
        """
        parts = torch.stack([e == 1, e == -1], dim=2).to(torch.float32)
        patterns = parts.view(self.n_replicas, -1, self.n_classes)
        real, imaginary = (matmul(patterns, matrix).view(*parts.shape[:3], 1, -1)
                           for matrix in (self.matrices, self._imaginary))
        signs = torch.tensor([1.0, -1.0], device=self.device).view(-1, 1)
        field = self._reference.unsqueeze(-1) * signs + real  # in phase with the reference, or against it
        intensity = (field.square() + imaginary.square()).flatten(2, 3)
        return self._phi * intensity + self._dark

    def expose(self, expected: Tensor) -> Tensor:
        """Return the electrons that the camera reads [R, m, 4, n_out_total], from their means.

        Counts of photons are Poisson. They saturate at the full well, get Gaussian read noise, and are rounded by the
        ADC (the analog-to-digital converter).
        """
        light, electronics = self._noise.next(), self._noise.next()  # generators; two, because padding draws too
        counts = torch.stack([torch.poisson(means, generator=generator)
                              for means, generator in zip(expected, light, strict=True)])
        if self._full_well:
            counts.clamp_(max=self._full_well)
        for trial_counts, sigma, generator in zip(counts, self._read_noise, electronics, strict=True):
            if sigma:
                n = trial_counts.numel()
                n_drawn = math.ceil(n / BLOCK) * BLOCK  # whole blocks: the numbers then do not depend on n
                noise = trial_counts.new_empty(n_drawn).normal_(0.0, sigma, generator=generator)
                trial_counts += noise[:n].view_as(trial_counts)
        if self._adc_step:
            # Levels below 0 exist, as cameras add an offset; clipping read noise at 0 would give a signal in the dark.
            counts.clamp_(max=self._full_well).div_(self._adc_step).round_().mul_(self._adc_step)
        return counts

    def retrieve(self, electrons: Tensor) -> Tensor:
        """Return the estimate of B e [R, m, n_out_total] from the exposures [R, m, 4, n_out_total]."""
        plus, plus_opposite, minus, minus_opposite = electrons.unbind(dim=2)
        differences = (plus - plus_opposite) - (minus - minus_opposite)
        return differences / (4 * self._phi * self._reference).squeeze(-1)

    def noise_sources(self) -> list[Noise]:
        return [self._noise]
