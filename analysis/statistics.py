"""Means over seeds and their intervals, for every figure, table and verdict."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t, ttest_ind

PAIRED, WELCH = "paired by seed", "Welch"  # methods for the interval of a difference of means
SUMMARY = ["mean", "half_width", "low", "high", "bootstrap_low", "bootstrap_high", "n"]  # columns of `summarize`
CONFIDENCE = 0.95  # of all intervals
MAX_ENUMERATED = 5  # largest sample with all bootstrap draws enumerated


class MeanInterval(NamedTuple):
    """Mean of n values and its interval; low and high are NaN if n = 1, since one value gives no spread."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the width of an interval that is symmetric about its mean."""
        return self.high - self.mean


def mean_interval(values: Sequence[float]) -> MeanInterval:
    """Return the mean over seeds with Student's t interval: mean +- t_{n-1} s/sqrt(n); values must be finite, n >= 1.

    For normal values its coverage is exact for any n. A percentile bootstrap of two or three values covers the true
    mean half or three quarters of the time.
    """
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or sample.size == 0 or not np.isfinite(sample).all():
        raise ValueError(f"values: must be at least one finite number, got {list(values)}")
    mean = float(sample.mean())
    if sample.size == 1:
        return MeanInterval(mean, float("nan"), float("nan"), 1)
    half_width = float(t.ppf((1 + CONFIDENCE) / 2, sample.size - 1) * sample.std(ddof=1) / np.sqrt(sample.size))
    return MeanInterval(mean, mean - half_width, mean + half_width, sample.size)


def bootstrap_interval(values: Sequence[float], confidence: float = CONFIDENCE, resamples: int = 10_000
                       ) -> MeanInterval:
    """Return the mean over seeds with the interval of the percentile bootstrap (Efron 1979).

    The interval has quantiles of means of n values drawn with replacement. Up to n = 5 all n^n draws are enumerated;
    above, a fixed set of `resamples` draws. It assumes no distribution; for n = 2 or 3 use `mean_interval`.
    """
    mean, _, _, n = mean_interval(values)
    if n == 1:
        return MeanInterval(mean, float("nan"), float("nan"), 1)
    means = np.asarray(values, dtype=float)[_draws(n, resamples)].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], method="inverted_cdf")
    return MeanInterval(mean, float(low), float(high), n)


def welch_interval(a: Sequence[float], b: Sequence[float]) -> MeanInterval:
    """Return the difference of the means of two independent samples, b - a, with Welch's t interval (Welch 1947).

    n is the smaller sample's; low and high are NaN if a sample has one value.
    """
    mean_a, mean_b = mean_interval(a), mean_interval(b)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # for equal values or a single one
        low, high = ttest_ind(b, a, equal_var=False).confidence_interval(CONFIDENCE)
    return MeanInterval(mean_b.mean - mean_a.mean, float(low), float(high), min(mean_a.n, mean_b.n))


def accuracy_error(values: Sequence[float], level: float, records: int) -> float:
    """Return the standard error of a mean accuracy over seeds with common test records: sqrt(s^2/n + p(1 - p)/records).

    s is the standard deviation of the values of n seeds, fractions; with fewer than two, s^2/n is left out. All seeds
    share the sampling error of the test records, so s does not contain it; it is p(1 - p)/records, the variance of a
    share p, the `level`.
    """
    seed_variance = np.var(values, ddof=1) / len(values) if len(values) > 1 else 0.0
    sampling_variance = level * (1 - level) / records
    return float(np.sqrt(seed_variance + sampling_variance))


def difference_of(a: pd.Series, b: pd.Series) -> tuple[MeanInterval, str]:
    """Return mean(b) - mean(a) with its 95% t interval, and its method: paired for an equal index, else Welch's."""
    if sorted(a.index) == sorted(b.index) and a.index.is_unique:
        return mean_interval(b - a), PAIRED
    return welch_interval(a, b), WELCH


def summarize(values: Sequence[float], minimum: float = -np.inf, maximum: float = np.inf) -> dict[str, float]:
    """Return the columns of a mean in tidy tables, `SUMMARY`: mean, n, 95% t interval and 95% bootstrap interval.

    `low` and `high` are clipped to the range of the quantity, which loses no coverage; `half_width` is not changed.
    """
    t_interval, bootstrap = mean_interval(values), bootstrap_interval(values)
    low, high = np.clip([t_interval.low, t_interval.high], minimum, maximum).tolist()
    return {"mean": t_interval.mean, "half_width": t_interval.half_width, "low": low, "high": high,
            "bootstrap_low": bootstrap.low, "bootstrap_high": bootstrap.high, "n": t_interval.n}


def plus_minus(mean: float, *, half_width: float, digits: int = 2, minimum: float = -np.inf,
               maximum: float = np.inf) -> str:
    """Return a mean with its interval as text: `85.69 ± 0.30`, or `85.69` if the half width is NaN (no interval).

    If the interval would leave the range `minimum` to `maximum`, the text is `86.67 [47.85, 100.00]`.
    """
    if np.isnan(half_width):
        return f"{mean:.{digits}f}"
    low, high = mean - half_width, mean + half_width
    if low < minimum or high > maximum:
        return f"{mean:.{digits}f} [{max(low, minimum):.{digits}f}, {min(high, maximum):.{digits}f}]"
    return f"{mean:.{digits}f} ± {half_width:.{digits}f}"


@lru_cache(maxsize=8)
def _draws(n: int, resamples: int) -> np.ndarray:
    """Return indices [draws, n] with replacement: all n^n draws for small n, else `resamples` by a fixed seed."""
    if n <= MAX_ENUMERATED:
        return np.indices((n,) * n).reshape(n, -1).T  # [n^n, n]: all tuples of n indices
    return np.random.default_rng(n).integers(n, size=(resamples, n))
