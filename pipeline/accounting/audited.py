"""`audited`: lower bounds on epsilon from the guesses of an attack, and statistics of its scores.

A bound holds with the requested confidence at the requested delta. The attacker's choices (number of guesses,
threshold) must be fixed before the counted outcomes are seen. If a mechanism's certified epsilon is below the bound,
its proof, its implementation, or the neighbouring relation of the two is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats
from scipy.special import expit, logit

Counts = int | np.ndarray
Curve = float | np.ndarray


def guesses(canaries: int) -> int:
    """Return r, the number of guessed canaries, fixed beforehand: a fifth of all, rounded down to an even number."""
    return canaries // 10 * 2  # more guesses allow a higher bound, but a smaller share of them is right


def one_run(m: int, r: int, v: int, delta: float, p: float = 0.05) -> float:
    """Return a lower bound on epsilon, wrong with probability `p`, from `v` right guesses among `r` in one run.

    It is sup{eps : p(eps) < p} of `m` canaries, each added or left out with probability 1/2 (Steinke, Nasr and
    Jagielski 2023); r is fixed beforehand.
    """
    if not 1 <= r <= m:
        raise ValueError(f"r: must be at least 1 and at most m = {m}, got {r}")
    if not 0 <= v <= r:
        raise ValueError(f"v: must be at least 0 and at most r = {r}, got {v}")
    if not 0 <= delta < 1:
        raise ValueError(f"delta: must be >= 0 and < 1, got {delta}")
    _check_open("p", p)
    if v == 0:
        return 0.0

    def excess(epsilon: float) -> float:  # of p(eps), which bounds the probability of v or more right guesses
        s = expit(epsilon)  # probability that one guess is right
        i = np.arange(1, v + 1)
        just_below = np.cumsum(stats.binom.pmf(v - i, r, s))  # P[v > Bin(r, s) >= v - i]
        return stats.binom.sf(v - 1, r, s) + 2 * m * delta * float(np.max(just_below / i)) - p

    if excess(0.0) >= 0:  # so many right guesses are likely even without any leak
        return 0.0
    # P[Bin(r, s) >= v] alone reaches p at the lower Clopper-Pearson limit s of v in r; add 1 for rounding.
    high = float(logit(stats.beta.ppf(p, v, r - v + 1))) + 1
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-12))


def gdp_mu_lower(fp: Counts, n0: int, fn: Counts, n1: int, conf: float = 0.95) -> Curve:
    """Return a lower bound on mu of a mechanism that claims mu-Gaussian DP, not (epsilon, delta)-DP alone.

    The test between two neighbouring inputs assigns `fp` of `n0` outputs on the first to the second, and `fn` of `n1`
    the other way. The bound holds with probability `conf`. It is Phi^-1(1 - a) - Phi^-1(b), at least 0, with the upper
    limits a and b of the two rates (Nasr et al. 2023).
    """
    a, b = upper_limit(fp, n0, conf, "fp"), upper_limit(fn, n1, conf, "fn")
    return np.maximum(stats.norm.isf(a) - stats.norm.ppf(b), 0.0)[()]  # -inf where a limit is 1


def upper_limit(errors: Counts, n: int, conf: float, name: str = "errors") -> Curve:
    """Return the Clopper-Pearson upper limit of a rate with `errors` in `n`, exceeded with probability (1 - conf)/2."""
    _check_open("conf", conf)
    if n < 1:
        raise ValueError(f"{name}: must come from at least 1 trial, got {n}")
    k = np.asarray(errors)
    if k.size and not (k.min() >= 0 and k.max() <= n):
        raise ValueError(f"{name}: must be at least 0 and at most the {n} trials, got {errors}")
    limits = stats.beta.ppf((1 + conf) / 2, k + 1, np.maximum(n - k, 1))
    return np.where(k < n, limits, 1.0)[()]  # [()] makes a number of an array without dimensions


@dataclass(frozen=True)
class OneRunAudit:
    """The result of a one-run audit, from `right` of `guesses` on `canaries`."""

    epsilon_lower: float  # a lower bound
    canaries: int
    guesses: int
    right: int


def one_run_audit(included: np.ndarray, scores: np.ndarray, r: int, delta: float) -> OneRunAudit:
    """Return the audit that guesses the r/2 canaries with the highest scores in, and the r/2 with the lowest out.

    `included` [m] says which canaries took part, `scores` [m] how much they seem to. The bound has 95% confidence, if
    every canary took part by a fair coin of its own, and `r` was fixed before the scores were seen.
    """
    included, scores = np.asarray(included), checked("scores", scores)
    if included.dtype != bool or included.shape != scores.shape:
        raise ValueError(f"included: must be bool of the shape of scores {list(scores.shape)}, got "
                         f"{included.dtype} {list(included.shape)}")
    m = len(scores)
    if not (2 <= r <= m and r % 2 == 0):
        raise ValueError(f"r: must be even, at least 2 and at most m = {m}, got {r}")
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: r // 2], order[-(r // 2):]
    right = int((~included[lowest]).sum() + included[highest].sum())
    return OneRunAudit(one_run(m, r, right, delta), m, r, right)


def auc(scores_members: np.ndarray, scores_non_members: np.ndarray) -> float:
    """Return P[score of a member > score of a non-member] + P[equal]/2: 1 if members always win, 1/2 for chance."""
    members = checked("scores_members", scores_members)
    non_members = checked("scores_non_members", scores_non_members)
    # U counts pairs with the member ahead, and ties by half. The method affects only the p-value.
    u_statistic = stats.mannwhitneyu(members, non_members, method="asymptotic").statistic
    return float(u_statistic / (len(members) * len(non_members)))


def tpr_at_fpr(scores_members: np.ndarray, scores_non_members: np.ndarray, fpr: float) -> float:
    """Return the share of members above a threshold that at most a share `fpr` of the non-members exceeds."""
    members = checked("scores_members", scores_members)
    non_members = checked("scores_non_members", scores_non_members)
    if not 0 <= fpr <= 1:
        raise ValueError(f"fpr: must be >= 0 and <= 1, got {fpr}")
    n_allowed = int(fpr * len(non_members))  # non-members above the threshold
    descending = np.sort(non_members)[::-1]
    threshold = descending[n_allowed] if n_allowed < len(non_members) else -np.inf
    return float((members > threshold).mean())


def checked(name: str, scores: np.ndarray) -> np.ndarray:
    """Return scores [n] as float64; refuse an empty array and nan, calling the scores `name`."""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1 or not len(scores) or np.isnan(scores).any():
        raise ValueError(f"{name}: must be numbers [n], n >= 1, none of them nan, got {scores}")
    return scores


def _check_open(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name}: must be > 0 and < 1, got {value}")
