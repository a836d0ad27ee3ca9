"""Pareto fronts of epsilon (less is better) and a value (more is better), and their dominated area."""

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


def hypervolume(epsilon: Sequence[float], value: Sequence[float], reference_epsilon: float,
                reference_value: float) -> float:
    """Return the area between a frontier and a reference point that is worse in both, with a log epsilon axis.

    It is the integral of max(0, best value at epsilon' <= epsilon, minus reference_value) d(ln epsilon) up to
    reference_epsilon, in units of the value times nats. Larger is better; it is 0 if no point beats the reference.
    """
    epsilons, values = _points(epsilon, value)
    _points([reference_epsilon], [reference_value])
    beats_reference = (epsilons < reference_epsilon) & (values > reference_value)
    order = np.argsort(epsilons[beats_reference], kind="stable")
    epsilons, values = epsilons[beats_reference][order], values[beats_reference][order]
    if not epsilons.size:
        return 0.0
    widths = np.diff(np.log(np.append(epsilons, reference_epsilon)))  # of the steps of the frontier
    heights = np.maximum.accumulate(values) - reference_value
    return float(widths @ heights)


def reference_epsilon(epsilon: Sequence[float]) -> float:
    """Return the smallest power of ten above all epsilons: sweeps of one range then share their reference."""
    return 10.0 ** (np.floor(np.log10(np.max(epsilon))) + 1)


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
