"""Means over seeds, and how far to trust them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t, ttest_ind

PAIRED, WELCH = "paired by seed", "Welch"  # how a difference of means gets its interval
SUMMARY = ["mean", "half_width", "low", "high", "bootstrap_low", "bootstrap_high", "n"]  # columns of `summarize`
MOST_COUNTED = 5  # values of which all bootstrap draws are counted


class MeanInterval(NamedTuple):
    """Mean of n values and its interval; low and high are NaN where n = 1, since one value says nothing of spread."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Of an interval that is symmetric about its mean."""
        return self.high - self.mean


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> MeanInterval:
    """Mean over seeds with Student's t interval: mean +- t_{n-1} s/sqrt(n).

    It covers the true mean as often as it says for normal values, however few; a percentile bootstrap of two or three
    values covers it half or three quarters of the time.

    Raises:
        ValueError: for no value, or one that is not finite.
    """
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or sample.size == 0 or not np.isfinite(sample).all():
        raise ValueError(f"values: must be at least one finite number, got {list(values)}")
    mean = float(sample.mean())
    if sample.size == 1:
        return MeanInterval(mean, float("nan"), float("nan"), 1)
    half = float(t.ppf((1 + confidence) / 2, sample.size - 1) * sample.std(ddof=1) / np.sqrt(sample.size))
    return MeanInterval(mean, mean - half, mean + half, sample.size)


def bootstrap_interval(values: Sequence[float], confidence: float = 0.95, resamples: int = 10_000) -> MeanInterval:
    """Mean over seeds with the percentile bootstrap's interval: quantiles of the means of n values drawn with
    replacement (Efron 1979).

    Up to n = 5 all n^n draws are counted, beyond that `resamples` of them, always the same. It assumes no
    distribution, but of n = 2 or 3 values it is their range, which covers the mean of normal values half or three
    quarters of the time: `mean_interval` is the one to trust there.

    Raises:
        ValueError: as `mean_interval`.
    """
    mean, _, _, n = mean_interval(values)
    if n == 1:
        return MeanInterval(mean, float("nan"), float("nan"), 1)
    means = np.asarray(values, dtype=float)[_draws(n, resamples)].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], method="inverted_cdf")
    return MeanInterval(mean, float(low), float(high), n)


def welch_interval(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> MeanInterval:
    """Difference of the means of two independent samples, b less a, with Welch's t interval (Welch 1947); n is the
    smaller sample's. low and high are NaN where a sample has one value.

    Raises:
        ValueError: as `mean_interval`.
    """
    mean_a, mean_b = mean_interval(a), mean_interval(b)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # where values are equal, or but one
        low, high = ttest_ind(b, a, equal_var=False).confidence_interval(confidence)
    return MeanInterval(mean_b.mean - mean_a.mean, float(low), float(high), min(mean_a.n, mean_b.n))


def accuracy_error(values: Sequence[float], level: float, records: int) -> float:
    """Standard error of a mean accuracy over seeds that share their test records: sqrt(s^2/n + p(1 - p)/records).

    Seeds differ with standard deviation s. What the test records add is common to all seeds, so that s has no part of
    it: p(1 - p)/records, the variance of a share p among them.

    Args:
        values: accuracies of n seeds, fractions; where there are fewer than two, the test records' part alone.
        level: p, the accuracy at which the error is wanted, a fraction.
        records: in the test set.
    """
    of_seeds = np.var(values, ddof=1) / len(values) if len(values) > 1 else 0.0
    return float(np.sqrt(of_seeds + level * (1 - level) / records))


def difference_of(a: pd.Series, b: pd.Series) -> tuple[MeanInterval, str]:
    """Mean of b less that of a with its 95% t interval, and how: paired where both have the same seeds, else Welch's.

    Args:
        a, b: values by seed, which is their index.
    """
    if sorted(a.index) == sorted(b.index) and a.index.is_unique:
        return mean_interval(b - a), PAIRED
    return welch_interval(a, b), WELCH


def summarize(values: Sequence[float], least: float, most: float) -> dict[str, float]:
    """Mean, 95% t interval (`half_width`, `low`, `high`), 95% bootstrap interval (`bootstrap_low`, `bootstrap_high`)
    and n: the columns that tidy tables have of every mean.

    Args:
        least, most: what the quantity can be. `low` and `high` are cut there, which loses no coverage; `half_width`
            stays that of the t interval.

    Raises:
        ValueError: as `mean_interval`.
    """
    interval, resampled = mean_interval(values), bootstrap_interval(values)
    low, high = np.clip([interval.low, interval.high], least, most).tolist()
    return {"mean": interval.mean, "half_width": interval.half_width, "low": low, "high": high,
            "bootstrap_low": resampled.low, "bootstrap_high": resampled.high, "n": interval.n}


def plus_minus(mean: float, *, half_width: float, digits: int = 2, least: float = -np.inf, most: float = np.inf) -> str:
    """`85.69 ± 0.30` of a mean and half the width of its interval; `85.69` where there is none; `86.67 [47.85, 100.00]`
    where the interval would leave what the quantity can be, `least` to `most`."""
    if np.isnan(half_width):
        return f"{mean:.{digits}f}"
    low, high = mean - half_width, mean + half_width
    if low < least or high > most:
        return f"{mean:.{digits}f} [{max(low, least):.{digits}f}, {min(high, most):.{digits}f}]"
    return f"{mean:.{digits}f} ± {half_width:.{digits}f}"


@lru_cache(maxsize=8)
def _draws(n: int, resamples: int) -> np.ndarray:
    """Indices of n values drawn with replacement, [n^n or resamples, n]."""
    if n <= MOST_COUNTED:
        return np.indices((n,) * n).reshape(n, -1).T
    return np.random.default_rng(n).integers(n, size=(resamples, n))
