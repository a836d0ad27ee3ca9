"""The complex matrix that maps input light to pixels in a simulated optical processor."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=4)
def transmission(seed: int, n_inputs: int, n_pixels: int) -> np.ndarray:
    """Return the matrix of a simulated device, complex64 [n_inputs, n_pixels], read-only; its parts are from N(0, 1).

    It is the matrix of lightonml's simulated device, multiplied by sqrt(n_inputs). The seed has 32 bits:
    `streams.integer_seed(trial.seed, "feedback")`.
    """
    rng = np.random.RandomState(seed)
    scale = 1 / np.sqrt(n_inputs)
    real, imaginary = (rng.normal(0.0, scale, (n_inputs, n_pixels)).astype(np.float32) for _ in range(2))
    matrix = (real + 1j * imaginary) * np.float32(math.sqrt(n_inputs))
    matrix.setflags(write=False)
    return matrix
