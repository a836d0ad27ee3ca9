"""A trial's random streams, their seeds from the trial's own seed, and a device's matrix from such a seed.

    seed -> SeedSequence(seed, spawn_key=(index of the name,)) -> generator

`pipeline.learning.randomness` makes the generators.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

# append only: the index seeds the stream
STREAMS = ("split", "init", "feedback", "sampling", "noise", "release", "audit", "evaluation", "camera", "network")


def sequence(seed: int, stream: str, *step: int) -> np.random.SeedSequence:
    """Return the seed of a trial's stream, one of `STREAMS`; with `step`, of a stream for that step alone."""
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(stream), *step))


def integer_seed(seed: int, stream: str) -> int:
    """Return a 32-bit seed from a stream, for libraries that take an integer (lightonml's simulated device)."""
    return int(sequence(seed, stream).generate_state(1, np.uint32)[0])


@lru_cache(maxsize=4)
def transmission(seed: int, n_inputs: int, n_pixels: int) -> np.ndarray:
    """Return the matrix of a simulated device, complex64 [n_inputs, n_pixels], read-only; its parts are from N(0, 1).

    It is the matrix of lightonml's simulated device, multiplied by sqrt(n_inputs). The seed has 32 bits:
    `integer_seed(trial.seed, "feedback")`.
    """
    rng = np.random.RandomState(seed)
    scale = 1 / np.sqrt(n_inputs)
    real, imaginary = (rng.normal(0.0, scale, (n_inputs, n_pixels)).astype(np.float32) for _ in range(2))
    matrix = (real + 1j * imaginary) * np.float32(math.sqrt(n_inputs))
    matrix.setflags(write=False)
    return matrix
