"""The two-point attack: distinguish two neighbouring inputs of one step by its output, for a lower bound on epsilon.

The run itself audits a whole run, by canaries among its training records (`pipeline.learning.canaries`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.accounting.audited import checked, gdp_mu_lower, two_point


def gaussian_log_ratio(output: np.ndarray, mean_0: np.ndarray, mean_1: np.ndarray, sigma: float) -> float:
    """Return log p_1/p_0 of an output under the densities p_j of N(mean_j, sigma^2 I), sigma > 0.

    No other statistic distinguishes j = 1 from j = 0 better.
    """
    middle = (np.asarray(mean_0) + mean_1) / 2
    return float(np.sum((np.asarray(output) - middle) * (np.asarray(mean_1) - mean_0))) / sigma**2


@dataclass(frozen=True)
class TwoPointAudit:
    """The result of a two-point audit."""

    epsilon_lower: float
    mu_lower: float  # if the claim is mu-GDP
    threshold: float  # a statistic above it is assigned to input 1
    false_positives: int
    false_negatives: int
    trials: int  # counted for each input


def two_point_step_audit(step: Callable[[int], float], delta: float, trials: int, conf: float = 0.95,
                         of: str = "epsilon") -> TwoPointAudit:
    """Return lower bounds on one step's epsilon and mu, from a test between two neighbouring inputs (Nasr et al. 2023).

    `step` runs the mechanism with fresh noise on input 0 or 1 and returns a statistic of its output, larger for input 1
    (`gaussian_log_ratio` for Gaussian output); it may be infinite. The first half of the `trials` on each input chooses
    the threshold with the best bound `of` epsilon or mu; the other half is counted. Bounds hold with probability
    `conf`.
    """
    if trials < 2 or trials % 2:
        raise ValueError(f"trials: must be an even number of at least 2, got {trials}")
    half = trials // 2
    statistics = []  # by input, [trials]
    for j in (0, 1):
        values = checked("step", np.array([step(j) for _ in range(trials)]))  # refuses nan
        statistics.append(np.nan_to_num(values))  # infinities become the largest numbers: a threshold fits between
    zeros, ones = statistics  # on input 0, and on input 1
    bounds = {"epsilon": partial(two_point, delta=delta, conf=conf), "mu": partial(gdp_mu_lower, conf=conf)}
    bound = bounds[of]
    threshold = _best_threshold(np.sort(zeros[:half]), np.sort(ones[:half]), bound)
    false_positives = int((zeros[half:] > threshold).sum())
    false_negatives = int((ones[half:] <= threshold).sum())
    counts = false_positives, half, false_negatives, half
    return TwoPointAudit(epsilon_lower=float(two_point(*counts, delta, conf)),
                         mu_lower=float(gdp_mu_lower(*counts, conf)), threshold=threshold,
                         false_positives=false_positives, false_negatives=false_negatives, trials=half)


def _best_threshold(zeros: np.ndarray, ones: np.ndarray,  # statistics on input 0 and 1, sorted and finite
                    bound: Callable[..., np.ndarray | float]) -> float:  # from errors and numbers of zeros and of ones
    """Return the threshold that gives the largest bound, among the midpoints of neighbouring statistics."""
    values = np.unique(np.concatenate([zeros, ones]))
    thresholds = values
    if len(values) > 1:
        thresholds = values[:-1] / 2 + values[1:] / 2  # halves first: the sum of two large numbers would overflow
    false_positives = len(zeros) - np.searchsorted(zeros, thresholds, side="right")
    false_negatives = np.searchsorted(ones, thresholds, side="right")
    best = np.argmax(bound(false_positives, len(zeros), false_negatives, len(ones)))
    return float(thresholds[best])
