"""The names of a trial's random streams, and the seeds that follow from a trial's own seed.

    seed -> SeedSequence(seed, spawn_key=(index of the name,)) -> generator

`pipeline.learning.randomness` makes generators of them; who accounts for a public matrix draws that from its seed.
"""

from __future__ import annotations

import numpy as np

# append only: the index seeds the stream
STREAMS = ("split", "init", "feedback", "sampling", "noise", "release", "audit", "evaluation", "camera",
           "trainer")


def sequence(seed: int, stream: str, *step: int) -> np.random.SeedSequence:
    """The seed of a stream of the trial with this seed or, of a stream that starts anew in every step, of a step."""
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(stream), *step))


def integer_seed(seed: int, stream: str) -> int:
    """A 32-bit seed from a stream, for libraries that take an integer (lightonml's simulated device)."""
    return int(sequence(seed, stream).generate_state(1, np.uint32)[0])
