"""How training records are drawn into batches, for R trials at once.

    shuffled             a fresh permutation every epoch, cut into batches: a record takes part at most once an epoch
    without_replacement  every step draws m distinct records anew: a record takes part in any step with rate m/N
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from pipeline.randomness import numpy_generator


def split(n_records: int, n_validation: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training, validation) record indices, drawn from the trial's `split` stream."""
    order = numpy_generator(seed, "split").permutation(n_records)
    return order[n_validation:], order[:n_validation]


def _shuffled(rng: np.random.Generator, n: int, steps: int, m: int) -> np.ndarray:
    return rng.permutation(n)[: steps * m].reshape(steps, m)


def _without_replacement(rng: np.random.Generator, n: int, steps: int, m: int) -> np.ndarray:
    return np.stack([rng.choice(n, m, replace=False, shuffle=False) for _ in range(steps)])


SAMPLERS: dict[str, Callable[[np.random.Generator, int, int, int], np.ndarray]] = {
    "shuffled": _shuffled,
    "without_replacement": _without_replacement,
}


class BatchSampler:
    """Batches of R trials, each from its own `sampling` stream.

    Args:
        name: key of `SAMPLERS`.
        records: per trial, the indices of its training records [N].
        seeds: per trial, its seed.
        batch_size: m.
        steps: steps per epoch.
        device: where the indices live.
    """

    def __init__(self, name: str, records: Sequence[np.ndarray], seeds: Sequence[int], batch_size: int, steps: int,
                 device: torch.device) -> None:
        self.draw = SAMPLERS[name]
        self.records = list(records)
        self.generators = [numpy_generator(seed, "sampling") for seed in seeds]
        self.batch_size, self.steps, self.device = batch_size, steps, device

    def epoch(self) -> torch.Tensor:
        """Record indices of the next epoch [steps, R, m], int64."""
        per_trial = [records[self.draw(rng, len(records), self.steps, self.batch_size)]
                     for records, rng in zip(self.records, self.generators, strict=True)]
        return torch.from_numpy(np.stack(per_trial, axis=1).astype(np.int64)).to(self.device)
