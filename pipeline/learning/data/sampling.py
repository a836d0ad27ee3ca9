"""How training records are drawn into batches, for R trials at once.

    shuffled             a fresh permutation every epoch, cut into batches: a record takes part at most once an epoch
    without_replacement  every step draws m distinct records anew: a record takes part in any step with rate m/N
    poisson              every step takes every record with probability q = m/N, independently: batches vary in size

The public numbers of a schedule are the same for all three: rate q = m/N, expected batch m, floor(N/m) steps an epoch.

Secure trials draw from integers of 64 secret bits, one for every place of a record: exactly with these laws, and
poisson with a rate that is m/N rounded down to 64 bits. Which places a batch takes, and in which order, does not depend
on what the records are, or whether a place has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.learning.randomness import numpy_generator, secret_integers
from pipeline.trials import sampler
from pipeline.trials.part import PARTS, Workers

ABSENT = -1  # padding, where a batch is smaller than its tensor

# From a generator, or None for the operating system's secret bits, and from n, steps and m, to the batches of an epoch:
# places of records [steps, width], padded with `ABSENT`.
DrawPlaces = Callable[[np.random.Generator | None, int, int, int], np.ndarray]
BATCHES: Workers[DrawPlaces] = Workers()


def split(n_records: int, n_validation: int, seed: int, used: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return indices of training and validation records, `used` of all together, from the trial's `split` stream."""
    order = numpy_generator(seed, "split").permutation(n_records)[:used]
    return order[n_validation:], order[:n_validation]


@BATCHES.of(sampler.Shuffled)
def shuffled(rng: np.random.Generator | None, n: int, steps: int, m: int) -> np.ndarray:
    """Return the batches of an epoch [steps, m]: a permutation of n records, cut into batches of m."""
    order = _secret_order(n) if rng is None else rng.permutation(n)
    return order[: steps * m].reshape(steps, m)


@BATCHES.of(sampler.WithoutReplacement)
def without_replacement(rng: np.random.Generator | None, n: int, steps: int, m: int) -> np.ndarray:
    """Return the batches of an epoch [steps, m]: each has m of the n records, drawn independently of other batches."""
    if rng is None:
        return np.stack([np.sort(_secret_order(n)[:m]) for _ in range(steps)])
    return np.stack([rng.choice(n, m, replace=False, shuffle=False) for _ in range(steps)])


@BATCHES.of(sampler.Poisson)
def poisson(rng: np.random.Generator | None, n: int, steps: int, m: int) -> np.ndarray:
    """Return the batches of an epoch [steps, capacity], padded with `ABSENT`: each has every record with rate m/n.

    The capacity is six standard deviations above m. A larger batch, about once in 10^9 steps, enlarges it: no record is
    ever left out.
    """
    if rng is not None:
        sizes = rng.binomial(n, m / n, steps)
        batches = [rng.choice(n, size, replace=False, shuffle=False) for size in sizes]
    elif m == n:  # 2^64 m/n has no 64 bits
        batches = [np.arange(n)] * steps
    else:
        below = np.uint64(2**64 * m // n)
        batches = [np.flatnonzero(secret_integers(n) < below) for _ in range(steps)]
    capacity = min(n, math.ceil((m + 6 * math.sqrt(m * (1 - m / n)) + 8) / 16) * 16)  # a multiple of 16, or n
    capacity = max(capacity, *map(len, batches))
    return np.stack([np.pad(batch, (0, capacity - len(batch)), constant_values=ABSENT) for batch in batches])


def _secret_order(n: int) -> np.ndarray:
    """Return a secret permutation of n records, uniform over all: the order of secret random integers.

    They are drawn again if two are equal, as ties would favour some orders.
    """
    while True:
        integers = secret_integers(n)
        order = np.argsort(integers)
        if (np.diff(integers[order]) != 0).all():
            return order


class BatchSampler:
    """Batches of R trials, each from its `sampling` stream or, with `secure`, from the operating system, unrecorded."""

    def __init__(self, name: str,  # of the setting `sampler`
                 records: Sequence[np.ndarray],  # per trial, the indices of its training records [N]
                 seeds: Sequence[int], batch_size: int,  # m; for poisson its expectation
                 steps: int, device: torch.device, secure: bool = False) -> None:  # steps per epoch
        self.draw_places: DrawPlaces = BATCHES[PARTS["sampler"][name]]
        self.records = list(records)
        self.generators = [None if secure else numpy_generator(seed, "sampling") for seed in seeds]
        self.batch_size, self.steps, self.device = batch_size, steps, device

    def epoch(self) -> torch.Tensor:
        """Return the record indices of the next epoch's batches [steps, R, m], int64, padded with `ABSENT`."""
        trial_batches = []
        for records, rng in zip(self.records, self.generators, strict=True):
            places = self.draw_places(rng, len(records), self.steps, self.batch_size)
            trial_batches.append(np.where(places == ABSENT, ABSENT, records[places]))
        width = max(batches.shape[1] for batches in trial_batches)
        padded = [np.pad(batches, ((0, 0), (0, width - batches.shape[1])), constant_values=ABSENT)
                  for batches in trial_batches]
        return torch.from_numpy(np.stack(padded, axis=1).astype(np.int64)).to(self.device)

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each trial's generator as JSON values; empty for secure trials, which have none."""
        return [dict(rng.bit_generator.state) for rng in self.generators if rng]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Set the generators to the states that `state` returned; secure trials have none."""
        seeded = [rng for rng in self.generators if rng]
        for rng, rng_state in zip(seeded, state, strict=True):
            rng.bit_generator.state = rng_state
