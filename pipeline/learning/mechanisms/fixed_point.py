"""Release numbers on a grid with integer noise, so that the proof holds for the released bits.

    K = round(S/gamma),   R = round(N(0, sigma^2)/gamma),   gamma = sigma/2^40;   the release is gamma (K + R)

K has integer entries, so K + R = round(K + N(0, sigma^2)/gamma): post-processing of the Gaussian mechanism on gamma K.
Rounding makes the sensitivity of gamma K larger than the sensitivity of S: `accounting.finite_precision` has the
factor, and docs/privacy.md, section 9, proves it. Any computation from gamma (K + R), in any precision, is
post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.accounting.finite_precision import STEPS_PER_SIGMA
from pipeline.learning.randomness import RoundedNoise
from pipeline.trials.fields import ConfigError, listed_or

LEAST_STEP = 1e-60  # steps from this to its inverse keep quotients far inside float64's range
CHUNK_ELEMENTS = {"cpu": 2**15, "cuda": 2**28}  # on a CPU, a chunk stays in the cache for several passes


class FixedPointRelease:
    """Releases float64 numbers of R trials. A device or a step outside the proof is a `ConfigError`."""

    def __init__(self, deviations: Sequence[float],  # sigma of every trial, > 0
                 shape: tuple[int, ...],  # of one trial's numbers in one step
                 device: torch.device, seeds: Sequence[int | None],  # of every trial; None for secret noise
                 stream: str = "noise") -> None:
        if device.type not in CHUNK_ELEMENTS:
            raise ConfigError(f"noise: 'secure' is proved on {listed_or(CHUNK_ELEMENTS)}, got '{device.type}'; use "
                              "one of them, or noise 'research'")
        self.steps = [deviation / STEPS_PER_SIGMA for deviation in deviations]  # gamma of every trial
        for deviation, step in zip(deviations, self.steps, strict=True):
            if not LEAST_STEP <= step <= 1 / LEAST_STEP:
                raise ConfigError(f"noise: must have a standard deviation of {LEAST_STEP * STEPS_PER_SIGMA:.0e} to "
                                  f"{STEPS_PER_SIGMA / LEAST_STEP:.0e}, got {deviation:g}")
        self.noise = RoundedNoise(seeds, shape, device, stream)

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor:
        """Replace numbers S by their noisy release gamma (K + R), with K = round(S/gamma); return them.

        S is [R, *shape] or its first rows, float64 and contiguous.
        """
        noise = self.noise.next()[:, : numbers.shape[1]]
        chunk_size = CHUNK_ELEMENTS[numbers.device.type]
        for trial_numbers, trial_noise, step in zip(numbers, noise, self.steps, strict=True):
            flat, flat_noise = trial_numbers.view(-1), trial_noise.reshape(-1)
            for s, r in zip(flat.split(chunk_size), flat_noise.split(chunk_size), strict=True):
                s.mul_(1 / step).round_().add_(r).mul_(step)
        return numbers
