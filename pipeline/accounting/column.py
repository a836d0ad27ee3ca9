"""`column` epsilon: a proof for one column of one layer in one step, and why nothing follows for the model.

Proposition 3 of Ohana et al. (2021) bounds only neighbours for which the variance grows. Renyi DP needs both orders,
and the other order is worse. Arguments, U, L and rho as in `claimed`. `reference` evaluates admissible neighbours
exactly, for comparison with the printed bounds; docs/privacy.md, section 2, has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pipeline.accounting.claimed import ALPHAS, Bound, Curve, column_bound, layers_of, not_described, rho_of
from pipeline.accounting.curves import classic_conversion
from pipeline.accounting.epsilon import Epsilon
from pipeline.trials.config import TrialConfig


def alpha_max(m: int, gamma_min: float, gamma_max: float, tau_h_min: float, tau_h_max: float) -> float:
    """Return the order from which on one column's divergence, if a record is replaced, is infinite; inf for rho = 1."""
    return _alpha_max(m, rho_of(gamma_min, gamma_max, tau_h_min, tau_h_max))


def _alpha_max(m: int, rho: float) -> float:
    return 1 + m / (rho**2 - 1) if rho > 1 else math.inf


@column_bound
def corrected_column_replace_one(alpha: Curve, m: int, n: int, snr: float, rho: float) -> Curve:
    """Return a bound on the divergence of one column and one step, in both orders, if a record is replaced.

    It is infinite unless sigma > 0, L > 0 and alpha < `alpha_max`.
    """
    def divergence(a: np.ndarray) -> np.ndarray:  # at orders a [k] below the limit
        K = (m - 1) - (a - 1) * rho**2
        t = np.clip(K / (a * rho), 1, rho)
        mean_term = a / 2 * snr**2 * (rho + t)**2 / (K + a * t**2)
        R = 1 + (rho**2 - 1) / m  # ratio of the variances
        return mean_term + n * g(a, R)

    return _infinite_from(_alpha_max(m, rho) if snr < math.inf else 1.0, divergence, alpha)


@column_bound
def corrected_column_add_remove(alpha: Curve, m: int, n: int, snr: float, rho: float) -> Curve:
    """Return a bound on the divergence of one column and one step, in both orders, if a record is added or removed.

    It is infinite unless sigma > 0 and (alpha - 1) rho^2 < m - 1.
    """
    def divergence(a: np.ndarray) -> np.ndarray:  # at orders a [k] below the limit
        mean_term = a / 2 * snr**2 * rho**2 / (m - 1 - (a - 1) * rho**2)
        return mean_term + n * g(a, 1 + rho**2 / (m - 1))

    return _infinite_from(1 + (m - 1) / rho**2 if snr < math.inf else 1.0, divergence, alpha)


def g(alpha: Curve, r: float) -> Curve:
    """Return g_alpha(r), the Renyi divergence of order alpha of N(0, r) from N(0, 1) (Ohana et al. 2021, Eq. 7)."""
    return -math.log(r) / 2 - np.log(alpha - (alpha - 1) * r) / (2 * (alpha - 1))


def _infinite_from(limit: float, divergence: Callable[[np.ndarray], np.ndarray], alpha: Curve) -> Curve:
    """Return divergence(alpha) for orders below `limit`, where it is defined, and infinity for all others."""
    orders = np.atleast_1d(np.asarray(alpha, dtype=float))
    values = np.full(orders.shape, math.inf)
    finite = orders < limit * (1 - 1e-12)  # within rounding of the limit counts as beyond it
    if finite.any():
        values[finite] = divergence(orders[finite])
    return values if np.ndim(alpha) else float(values[0])


def column_epsilons(trial: TrialConfig) -> list[Epsilon]:
    """Return epsilon of one step for the worst column, one under each relation, of a trial with its calibrated sigma.

    There is none without optical noise that Prop. 3 describes.
    """
    if not trial.parts.mechanism.optical or not_described(trial):
        return []
    bounds = {"replace-one": corrected_column_replace_one, "add/remove": corrected_column_add_remove}
    return [Epsilon(
        max(epsilon_of_column(bound, trial.delta, m=trial.batch_size, **layer.of_column)
            for layer in layers_of(trial)),
        kind="column", variant=relation.replace("/", "-"), relation=relation, sampler=trial.sampler,
        delta=trial.delta, conversion="classic",
        note="one column of one layer in one step, not the model: columns share their noise and do not compose")
        for relation, bound in bounds.items()]


def epsilon_of_column(bound: Bound, delta: float, **constants: float) -> float:
    """Return the smallest epsilon at delta, over the orders `ALPHAS`, from a `Bound` and its arguments except alpha."""
    epsilon, _ = classic_conversion(ALPHAS, np.asarray(bound(ALPHAS, **constants)), delta)
    return epsilon
