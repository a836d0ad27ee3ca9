"""Means over seeds, and how far to trust them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap

N_RESAMPLES = 9999


class MeanInterval(NamedTuple):
    """Mean of n values and its interval; low and high are NaN where n = 1, since one value says nothing of spread."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> MeanInterval:
    """Mean over seeds with a percentile bootstrap interval (Efron 1979), always from the same resamples.

    The percentile method, as BCa is undefined for the handful of seeds, or equal values, that occur here. With few
    values it is too narrow (with two it is their range): read it as a spread, and give n beside it.

    Raises:
        ValueError: for no value, or one that is not finite.
    """
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or sample.size == 0 or not np.isfinite(sample).all():
        raise ValueError(f"values: must be at least one finite number, got {list(values)}")
    mean = float(sample.mean())
    if sample.size == 1:
        return MeanInterval(mean, float("nan"), float("nan"), 1)
    interval = bootstrap((sample,), np.mean, confidence_level=confidence, method="percentile", vectorized=True,
                         n_resamples=N_RESAMPLES, rng=np.random.default_rng(0)).confidence_interval
    return MeanInterval(mean, float(interval.low), float(interval.high), sample.size)
