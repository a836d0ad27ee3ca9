"""Named, independent random streams of a trial, derived from its seed, or, for secrets, from the operating system.

    seed -> SeedSequence(seed, spawn_key=(index of the name,)) -> generator

A trial draws from its own streams only, so its result does not depend on the trials that share its pack. Whoever
knows the seed can reproduce the noise and subtract it: with recorded seeds every epsilon is a simulation of what a
secret noise source would give.

Secure trials therefore draw noise and batches (amplification by sampling needs secret batches) from the operating
system. They can be repeated by no one; that they do not depend on their pack is then a statement on distributions.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

# append only: the index seeds the stream
STREAMS = ("split", "init", "feedback", "sampling", "noise", "release", "audit")


def _sequence(seed: int, stream: str) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(stream),))


def numpy_generator(seed: int, stream: str) -> np.random.Generator:
    """Generator of a stream, for index sampling on the CPU."""
    return np.random.default_rng(_sequence(seed, stream))


def torch_generator(seed: int, stream: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Generator of a stream, for tensors on `device`. (torch's generator for the CPU takes in 32 bits of a seed.)"""
    state = int(_sequence(seed, stream).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(state >> 1)


def integer_seed(seed: int, stream: str) -> int:
    """A 32-bit seed from a stream, for libraries that take an integer (lightonml's simulated device)."""
    return int(_sequence(seed, stream).generate_state(1, np.uint32)[0])


def secret_generator() -> np.random.Generator:
    """A generator, for index sampling, that nobody can build again: 255 bits of state from the operating system.

    Its state can be read off it, so use it for one epoch and drop it. It is no cipher; batches are never released, so
    nobody sees what it hands out.
    """
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(secrets.randbits(256), pool_size=8)))


def fill_with_secret_noise(out: torch.Tensor, sigma: float) -> None:
    """Fill a contiguous float32 tensor with N(0, sigma^2), from bits that cannot be found out.

    What is released carries this noise, so it must be unguessable even to those who know most of it: torch's
    generators take in 32 bits of a seed on the CPU and 64 on CUDA, and none of numpy's is a cipher. The bits here are
    AES-256 in counter mode under a key from the operating system, which is used once and not kept, on any device.
    They become Gaussian by Box and Muller's transform, with 31 bits for the radius: |x| <= 6.7 sigma.
    """
    pairs = -(-out.numel() // 2)
    bits = bytearray(Cipher(AES(os.urandom(32)), CTR(bytes(16))).encryptor().update(bytes(8 * pairs)))
    radius, angle = torch.frombuffer(bits, dtype=torch.int32).view(2, pairs).to(out.device)
    radius = (radius & 0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).log_().mul_(-2 * sigma**2).sqrt_()
    angle = angle.float().mul_(math.pi * 2.0**-31)
    flat = out.view(-1)
    torch.mul(radius, angle.cos(), out=flat[:pairs])
    torch.mul(radius[: len(flat) - pairs], angle[: len(flat) - pairs].sin(), out=flat[pairs:])


class GaussianNoise:
    """Independent N(0, sigma_r^2) noise for R trials, each from its own stream.

    Noise is drawn in blocks of several steps, so that on a GPU R generators do not mean R launches a step; the size of
    a block is fixed per kind of device, because a generator's values depend on how they are drawn.

    Args:
        seeds: R seeds of trials.
        sigmas: R standard deviations, per component; a trial with 0 draws nothing.
        shape: shape of one trial's noise in one step, for example (m, n).
        device: where the noise lives.
        stream: name of the stream.
        secure: draw from the operating system, and from neither seeds nor stream.
    """

    STEPS_PER_BLOCK = {"cpu": 1, "cuda": 16}

    def __init__(self, seeds: Sequence[int], sigmas: Sequence[float], shape: tuple[int, ...],
                 device: torch.device, stream: str = "noise", secure: bool = False) -> None:
        self.sigmas = tuple(sigmas)
        self.generators = [None if secure else torch_generator(seed, stream, device) for seed in seeds]
        steps = self.STEPS_PER_BLOCK[device.type]
        self.block = torch.zeros(len(self.generators), steps, *shape, device=device)
        self.position = steps

    def next(self) -> torch.Tensor:
        """Noise of the next step [R, *shape]; it may be overwritten by the caller, and is by the next call."""
        if self.position == self.block.shape[1]:
            for rows, generator, sigma in zip(self.block, self.generators, self.sigmas, strict=True):
                if not sigma:
                    rows.zero_()
                elif generator is None:
                    fill_with_secret_noise(rows, sigma)
                else:
                    rows.normal_(0.0, sigma, generator=generator)
            self.position = 0
        self.position += 1
        return self.block[:, self.position - 1]

    def state(self) -> dict[str, torch.Tensor]:
        """What goes on with the same values: the generators' states [R, bytes] and what is unread of the block
        [R, steps, *shape]. Nothing of secure noise, which goes on with fresh noise."""
        if None in self.generators:
            return {}
        return {"generators": torch.stack([generator.get_state() for generator in self.generators]),
                "unread": self.block[:, self.position:]}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on where `state` was taken."""
        if None in self.generators:
            return
        for generator, own in zip(self.generators, state["generators"], strict=True):
            generator.set_state(own.clone())
        self.position = self.block.shape[1] - state["unread"].shape[1]
        self.block[:, self.position:] = state["unread"].to(self.block.device)
