"""Named, independent random streams of a trial, all derived from its seed.

    seed -> SeedSequence(seed, spawn_key=(index of the name,)) -> generator

A trial draws from its own streams only, so its result does not depend on the trials that share its pack. Whoever
knows the seed can reproduce the noise and subtract it: with recorded seeds every epsilon is a simulation of what a
secret noise source would give.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

STREAMS = ("split", "init", "feedback", "sampling", "noise", "release")


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
    """

    STEPS_PER_BLOCK = {"cpu": 1, "cuda": 16}

    def __init__(self, seeds: Sequence[int], sigmas: Sequence[float], shape: tuple[int, ...],
                 device: torch.device, stream: str = "noise") -> None:
        self.sigmas = tuple(sigmas)
        self.generators = [torch_generator(seed, stream, device) for seed in seeds]
        steps = self.STEPS_PER_BLOCK[device.type]
        self.block = torch.zeros(len(self.generators), steps, *shape, device=device)
        self.position = steps

    def next(self) -> torch.Tensor:
        """Noise of the next step [R, *shape]; it may be overwritten by the caller, and is by the next call."""
        if self.position == self.block.shape[1]:
            for rows, generator, sigma in zip(self.block, self.generators, self.sigmas, strict=True):
                if sigma:
                    rows.normal_(0.0, sigma, generator=generator)
                else:
                    rows.zero_()
            self.position = 0
        self.position += 1
        return self.block[:, self.position - 1]
