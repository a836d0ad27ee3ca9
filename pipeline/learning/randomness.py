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
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from pipeline.trials.streams import STREAMS, integer_seed, sequence

__all__ = ["STREAMS", "GaussianNoise", "Noise", "RoundedNoise", "StepGenerators", "integer_seed", "numpy_generator",
           "secret_integers", "torch_generator"]


def numpy_generator(seed: int, stream: str) -> np.random.Generator:
    """Generator of a stream, for index sampling on the CPU."""
    return np.random.default_rng(sequence(seed, stream))


def torch_generator(seed: int, stream: str, device: torch.device | str = "cpu", *step: int) -> torch.Generator:
    """Generator of a stream, or of one of its steps, for tensors on `device`. (torch's generator for the CPU takes in
    32 bits of a seed.)"""
    state = int(sequence(seed, stream, *step).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(state >> 1)


def secret_integers(n: int) -> np.ndarray:
    """n independent integers of 64 bits, uint64 [n], that nobody can draw again."""
    from pipeline.learning import rounded_gaussian  # here, and below: only secrets need a package of ciphers

    return np.frombuffer(rounded_gaussian.secret_bits()(8 * n), dtype=np.uint64, count=n)


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

    def state(self) -> dict[str, torch.Tensor]:
        """What goes on with the same values: the generators' states [R, bytes] and what is unread of the block
        [R, steps, *shape]."""
        return {"generators": torch.stack([generator.get_state() for generator in self.generators]),
                "unread": self.block[:, self.position:]}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on where `state` was taken."""
        for generator, own in zip(self.generators, state["generators"], strict=True):
            generator.set_state(own.clone())
        self.position = self.block.shape[1] - state["unread"].shape[1]
        self.block[:, self.position:] = state["unread"].to(self.block.device)


class RoundedNoise:
    """Integers round(2^40 x), x ~ N(0, 1) (`rounded_gaussian`), for R trials: the same on every processor where they
    are drawn by seed. Drawn on the CPU, for any device.

    Args:
        seeds: of R trials, whose stream gives a key for every step; or, of trials whose noise is secret, how many there
            are: keys then come from the operating system, and nothing of them is kept.
        shape: of one trial's noise in one step.
        device: where the noise is handed out.
        stream: name of the stream.
        active: of every trial, whether it has noise; the others get zeros. By default all.
    """

    def __init__(self, seeds: Sequence[int] | int, shape: tuple[int, ...], device: torch.device, stream: str = "noise",
                 active: Sequence[bool] = ()) -> None:
        self.seeds = [None] * seeds if isinstance(seeds, int) else list(seeds)
        self.active = list(active) or [True] * len(self.seeds)
        self.shape, self.device, self.stream, self.step = shape, device, stream, 0

    def next(self) -> torch.Tensor:
        """Noise of the next step [R, *shape], float64; it may be overwritten by the caller."""
        from pipeline.learning import rounded_gaussian

        self.step += 1
        drawn = np.zeros((len(self.seeds), math.prod(self.shape)))
        for own, seed, active in zip(drawn, self.seeds, self.active, strict=True):
            if active:
                bits = rounded_gaussian.secret_bits() if seed is None else rounded_gaussian.keyed_bits(
                    sequence(seed, self.stream, self.step).generate_state(8, np.uint32).tobytes())
                rounded_gaussian.fill(own, bits)
        return torch.from_numpy(drawn).view(len(drawn), *self.shape).to(self.device)

    def state(self) -> dict[str, torch.Tensor]:
        """What goes on with the same values: how many steps were taken. Nothing of secret noise, which goes on with
        fresh noise."""
        return {} if None in self.seeds else {"step": torch.tensor([self.step])}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on where `state` was taken."""
        if state:
            self.step = int(state["step"])


class StepGenerators:
    """Generators of R trials for noise whose law depends on the signal, such as that of light.

    Each is seeded anew in every step. So what a trial draws does not depend on how many numbers earlier steps took, in
    which its batches may have been padded to those of others in its pack.

    Args:
        seeds: R seeds of trials.
        stream: name of the stream.
        device: of the generators.
    """

    def __init__(self, seeds: Sequence[int], stream: str, device: torch.device) -> None:
        self.seeds, self.stream, self.device = tuple(seeds), stream, device
        self.step = 0

    def next(self) -> list[torch.Generator]:
        """The generators of the next step, R of them."""
        self.step += 1
        return [torch_generator(seed, self.stream, self.device, self.step) for seed in self.seeds]

    def state(self) -> dict[str, torch.Tensor]:
        """What goes on with the same values: how many steps were taken."""
        return {"step": torch.tensor([self.step])}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on where `state` was taken."""
        self.step = int(state["step"])


Noise = GaussianNoise | RoundedNoise | StepGenerators
