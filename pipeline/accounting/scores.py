"""What an attack's scores show: AUC, members found at a false positive rate, and the one-run lower bound on epsilon."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from pipeline.accounting.audited import one_run


def auc(scores_members: np.ndarray, scores_non_members: np.ndarray) -> float:
    """P[score of a member > score of a non-member] + P[equal]/2: 1 where members always score higher, 1/2 for chance.

    Raises:
        ValueError: for scores that are nan, or none.
    """
    members, others = checked("scores_members", scores_members), checked("scores_non_members", scores_non_members)
    ranks = stats.rankdata(np.concatenate([members, others]))
    n = len(members)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * len(others)))


def tpr_at_fpr(scores_members: np.ndarray, scores_non_members: np.ndarray, fpr: float) -> float:
    """Share of members that score above all but a share `fpr`, in [0, 1], of the non-members; else as `auc`."""
    members, others = checked("scores_members", scores_members), checked("scores_non_members", scores_non_members)
    if not 0 <= fpr <= 1:
        raise ValueError(f"fpr: must be >= 0 and <= 1, got {fpr}")
    above = int(fpr * len(others))
    threshold = np.sort(others)[::-1][above] if above < len(others) else -np.inf
    return float((members > threshold).mean())


@dataclass(frozen=True)
class OneRunAudit:
    """The outcome of a one-run audit: a lower bound on epsilon from `right` of `guesses` on `canaries`."""

    epsilon_lower: float
    canaries: int
    guesses: int
    right: int


def one_run_audit(included: np.ndarray, scores: np.ndarray, r: int, delta: float, p: float = 0.05) -> OneRunAudit:
    """Audit one run: the r/2 canaries with the highest scores are guessed in, the r/2 with the lowest out.

    Args:
        included: which of the m canaries took part, bool [m]; drawn independently with probability 1/2 each.
        scores: [m], computed without `included`; higher for canaries that seem to have taken part.
        r: guesses, even, at most m; fixed before the scores are seen.
        delta: of the epsilon to bound.
        p: probability that the bound is wrong.

    Raises:
        ValueError: for arrays that do not fit, a score that is nan, or an r out of range.
    """
    included, scores = np.asarray(included), checked("scores", scores)
    if included.dtype != bool or included.shape != scores.shape:
        raise ValueError(f"included: must be bool of the shape of scores {list(scores.shape)}, got "
                         f"{included.dtype} {list(included.shape)}")
    m = len(scores)
    if not (2 <= r <= m and r % 2 == 0):
        raise ValueError(f"r: must be even, at least 2 and at most m = {m}, got {r}")
    order = np.argsort(scores, kind="stable")
    v = int((~included[order[: r // 2]]).sum() + included[order[-(r // 2):]].sum())
    return OneRunAudit(one_run(m, r, v, delta, p), m, r, v)


def checked(name: str, scores: np.ndarray) -> np.ndarray:
    """Scores [n] as float64.

    Raises:
        ValueError: for scores that are nan, or none; the message calls them `name`.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1 or not len(scores) or np.isnan(scores).any():
        raise ValueError(f"{name}: must be numbers [n], n >= 1, none of them nan, got {scores}")
    return scores
