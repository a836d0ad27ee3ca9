"""Why secret noise is drawn in integers: noise in floating point gives a batch away by its low-order bits."""

import math
import os

import numpy as np
import torch

from pipeline.accounting.finite_precision import STEPS_PER_SIGMA
from pipeline.learning import rounded_gaussian

N, SIGMA = 2_000_000, 20.0  # coordinates of a sum, and their noise; a record has norm 1, so mu is 1/20
RESOLVED = 2.0**17  # lattice points from 0 that float32 can still resolve
BLUR = 2.0**-24  # relative standard deviation of float32 rounding of x^2 + y^2
DOUBT = 0.01  # probability that a pair is on no lattice
SURE = 20.0  # evidence that chance gives once in e^20


def box_muller_31_bits() -> np.ndarray:
    """Return N(0, SIGMA^2) [N] by Box and Muller's transform in float32, the radii of whose pairs have 31 bits."""
    radius, angle = torch.frombuffer(bytearray(os.urandom(4 * N)), dtype=torch.int32).view(2, N // 2)
    radius = (radius & 0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).log_().mul_(-2 * SIGMA**2).sqrt_()
    angle = angle.float().mul_(math.pi * 2.0**-31)
    return torch.cat([radius * angle.cos(), radius * angle.sin()]).numpy()


def evidence(residual: np.ndarray) -> float:
    """Return log(1 + likelihood ratio) of these numbers [N] being Box-Muller noise of 31 bits against any other noise.

    2^31 exp(-(x^2 + y^2)/(2 SIGMA^2)) then lies half-way between whole numbers. Pairs in the tail show it.
    """
    squared_radius = np.square(residual.reshape(2, -1) / SIGMA).sum(axis=0)
    point = 2.0**31 * np.exp(-squared_radius / 2) + 0.5
    in_tail = (point < RESOLVED) & (point > 0.5)
    point, squared_radius = point[in_tail], squared_radius[in_tail]
    distance, blur = point - np.round(point), point * squared_radius * BLUR
    density = sum(np.exp(-np.square((distance + k) / blur) / 2) for k in (-1, 0, 1)) / (blur * math.sqrt(2 * math.pi))
    return float(np.logaddexp(0.0, np.log(DOUBT + (1 - DOUBT) * density).sum()))


def test_noise_of_31_bits_gives_the_batch_away_and_integer_noise_does_not():
    """Whoever subtracts the right one of two sums, which differ in one record, is left with noise."""
    rng = np.random.default_rng(0)
    record = rng.normal(size=N)
    batch = rng.normal(scale=0.01, size=N).astype(np.float32)
    sums = batch, (batch + record / np.linalg.norm(record)).astype(np.float32)
    noise = box_muller_31_bits()
    for true, other in (sums, sums[::-1]):
        released = (true + noise).astype(float)
        assert evidence(released - true) > SURE > evidence(released - other)
    step = SIGMA / STEPS_PER_SIGMA
    in_steps = [np.rint(total / step) for total in sums]
    released = ((in_steps[0] + rounded_gaussian.draw(N)) * step).astype(np.float32)
    assert all(evidence(released - total * step) < SURE for total in in_steps)
