"""Pareto fronts of epsilon (less is better) and a value (more is better)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pareto_front(epsilon: Sequence[float], value: Sequence[float]) -> np.ndarray:
    """Return whether each point is on the Pareto front: no other point is at least as good in both and better in one.

    Equal points are both on the front, or both not.
    """
    epsilons, values = _points(epsilon, value)
    # Row i, column j: point j against point i.
    no_worse = (epsilons[None, :] <= epsilons[:, None]) & (values[None, :] >= values[:, None])
    better = (epsilons[None, :] < epsilons[:, None]) | (values[None, :] > values[:, None])
    return np.asarray(~(no_worse & better).any(axis=1))


def _points(epsilon: Sequence[float], value: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return epsilons and values as arrays [n] of finite floats, all epsilons > 0 (`ValueError`)."""
    epsilons, values = np.asarray(epsilon, dtype=float), np.asarray(value, dtype=float)
    if epsilons.ndim != 1 or epsilons.shape != values.shape:
        raise ValueError(f"value: must have one per epsilon, got shapes {epsilons.shape} and {values.shape}")
    if not (np.isfinite(epsilons).all() and (epsilons > 0).all()):
        raise ValueError(f"epsilon: must be finite and > 0, got {epsilons.tolist()}")
    if not np.isfinite(values).all():
        raise ValueError(f"value: must be finite, got {values.tolist()}")
    return epsilons, values
