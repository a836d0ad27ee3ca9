"""Noise as secure trials had it before, which the low-order-bit attack sees: Box and Muller's transform of 31 bits."""

from __future__ import annotations

import math
import os

import torch

from pipeline.learning.mechanisms.gaussian import GaussianMechanism
from pipeline.learning.randomness import GaussianNoise
from pipeline.learning.training import Training


def box_muller_31_bits(out: torch.Tensor, sigma: float) -> None:
    """Fill a contiguous float32 tensor with N(0, sigma^2), the radii of whose pairs have 31 bits."""
    pairs = -(-out.numel() // 2)
    radius, angle = torch.frombuffer(bytearray(os.urandom(8 * pairs)), dtype=torch.int32).view(2, pairs)
    radius = (radius & 0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).log_().mul_(-2 * sigma**2).sqrt_()
    angle = angle.float().mul_(math.pi * 2.0**-31)
    flat = out.view(-1)
    torch.mul(radius, angle.cos(), out=flat[:pairs])
    torch.mul(radius[: len(flat) - pairs], angle[: len(flat) - pairs].sin(), out=flat[pairs:])


def with_box_muller_noise(training: Training) -> Training:
    """Return the training of a research trial, which now draws its noise that way."""
    mechanism = training.mechanism
    assert isinstance(mechanism, GaussianMechanism)
    source = mechanism.source
    assert isinstance(source, GaussianNoise)
    block = torch.empty_like(source.next())

    def next_noise() -> torch.Tensor:
        box_muller_31_bits(block, source.sigmas[0])
        return block

    source.next = next_noise  # type: ignore[method-assign]
    return training
