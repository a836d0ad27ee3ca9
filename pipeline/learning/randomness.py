"""Named, independent random streams of a trial, from its seed or, in secure trials, from the operating system.

    seed -> SeedSequence(seed, spawn_key=(index of the name,)) -> generator

A trial draws only from its own streams, so its result does not depend on the other trials of its pack. Anyone with
the seed can reproduce the noise and subtract it. With recorded seeds every epsilon is therefore a simulation: it holds
only if the noise source is secret.

Secure trials draw noise and batches from the operating system; amplification by sampling needs secret batches too.
Nobody can repeat such a trial: only the distribution of its result is independent of its pack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from pipeline.trials.config import TrialConfig

# Append only: the index seeds the stream. Nothing draws from `camera`; its name keeps the place of the next.
STREAMS = ("split", "init", "feedback", "sampling", "noise", "release", "audit", "evaluation", "camera", "network")


def sequence(seed: int, stream: str, *step: int) -> np.random.SeedSequence:
    """Return the seed of a trial's stream, one of `STREAMS`; with `step`, of a stream for that step alone."""
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(stream), *step))


def integer_seed(seed: int, stream: str) -> int:
    """Return a 32-bit seed from a stream, for libraries that take an integer (lightonml's simulated device)."""
    return int(sequence(seed, stream).generate_state(1, np.uint32)[0])


def numpy_generator(seed: int, stream: str) -> np.random.Generator:
    """Return the generator of a stream, for index sampling on the CPU."""
    return np.random.default_rng(sequence(seed, stream))


def torch_generator(seed: int, stream: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of a stream. torch's CPU generator uses only 32 bits of a seed."""
    state = int(sequence(seed, stream).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(state >> 1)


def secret_integers(n: int) -> np.ndarray:
    """Return n independent secret integers of 64 bits, uint64 [n]."""
    from pipeline.learning import rounded_gaussian  # imported here and below: only secrets need the cipher package

    return np.frombuffer(rounded_gaussian.secret_bits()(8 * n), dtype=np.uint64, count=n)


class GaussianNoise:
    """Independent N(0, sigma_r^2) noise for R trials, each from its own stream.

    Noise is drawn in blocks of several steps: this saves kernel launches on a GPU, where each of R generators needs
    one. The block size is fixed per device type, because a generator's values depend on the size of each draw.

    Args:
        seeds: R seeds of trials.
        sigmas: R standard deviations per component; a trial with 0 draws nothing.
        shape: shape of one trial's noise in one step, for example (m, n).
        device: device of the noise.
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
        """Return the noise of the next step [R, *shape]. The caller may overwrite it, and a later call does."""
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
        """Return the generators' states [R, bytes] and the unread part of the block [R, steps, *shape]."""
        return {"generators": torch.stack([generator.get_state() for generator in self.generators]),
                "unread": self.block[:, self.position:]}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from a `state`."""
        for generator, generator_state in zip(self.generators, state["generators"], strict=True):
            generator.set_state(generator_state.clone())
        self.position = self.block.shape[1] - state["unread"].shape[1]
        self.block[:, self.position:] = state["unread"].to(self.block.device)


def seeds_of(trials: Sequence[TrialConfig]) -> list[int | None]:
    """Return the seed of each trial's noise; None for secret noise, which has none."""
    return [None if trial.secure else trial.seed for trial in trials]


class RoundedNoise:
    """Integers round(2^40 x), x ~ N(0, 1), for R trials (`rounded_gaussian`).

    They are drawn on the CPU, the same on every processor: a trial's stream gives one key per step. For a trial without
    a seed (`seeds_of`) the operating system gives the keys, and no key is kept.
    """

    def __init__(self, seeds: Sequence[int | None], shape: tuple[int, ...], device: torch.device,
                 stream: str = "noise", active: Sequence[bool] = ()) -> None:  # active: with noise; all if empty
        self.seeds = list(seeds)
        self.active = list(active) or [True] * len(self.seeds)
        self.shape, self.device, self.stream, self.step = shape, device, stream, 0

    def next(self) -> torch.Tensor:
        """Return the integers of the next step [R, *shape], as float64. The caller may overwrite them."""
        from pipeline.learning import rounded_gaussian

        self.step += 1
        drawn = np.zeros((len(self.seeds), math.prod(self.shape)))
        for trial_noise, seed, active in zip(drawn, self.seeds, self.active, strict=True):
            if not active:
                continue
            if seed is None:
                bits = rounded_gaussian.secret_bits()
            else:
                key = sequence(seed, self.stream, self.step).generate_state(8, np.uint32).tobytes()
                bits = rounded_gaussian.keyed_bits(key)
            rounded_gaussian.fill(trial_noise, bits)
        return torch.from_numpy(drawn).view(len(drawn), *self.shape).to(self.device)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the number of steps drawn; empty for secret noise, which resumes with fresh noise."""
        return {} if None in self.seeds else {"step": torch.tensor([self.step])}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        if state:
            self.step = int(state["step"])


Noise = GaussianNoise | RoundedNoise
