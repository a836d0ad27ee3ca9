"""A trial's random streams, and their seeds from the trial's own seed.

    seed -> SeedSequence(seed, spawn_key=(index of the name,)) -> generator

`pipeline.learning.randomness` makes the generators.
"""

from __future__ import annotations

import numpy as np

# Append only: the index seeds the stream. Nothing draws from `camera`; its name keeps the place of the next.
STREAMS = ("split", "init", "feedback", "sampling", "noise", "release", "audit", "evaluation", "camera", "network")


def sequence(seed: int, stream: str, *step: int) -> np.random.SeedSequence:
    """Return the seed of a trial's stream, one of `STREAMS`; with `step`, of a stream for that step alone."""
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(stream), *step))


def integer_seed(seed: int, stream: str) -> int:
    """Return a 32-bit seed from a stream, for libraries that take an integer (lightonml's simulated device)."""
    return int(sequence(seed, stream).generate_state(1, np.uint32)[0])
