"""`column` epsilon: a proof for one column of one layer in one step, and why nothing follows for the model.

Proposition 3 of Ohana et al. (2021) bounds only neighbours for which the variance grows. Renyi DP needs both orders,
and the other order is worse. Notation as in `photonic`: m batch size, n_out = n_l rows, U = gamma_max tau_h_max, L =
gamma_min tau_h_min, rho = U/L, and for a ratio r of variances (Eq. 7 without its mean)

    g_alpha(r) = -log(r)/2 - log(alpha - (alpha - 1) r)/(2 (alpha - 1)).

The counterexamples evaluate admissible neighbours exactly, for comparison with the printed bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from pipeline.accounting.claimed import (
    ALPHAS,
    Bound,
    Curve,
    a1_alt,
    a3_saturating,
    layers_of,
    not_described,
    prop3_first,
    prop3_second,
)
from pipeline.accounting.curves import smallest_epsilon
from pipeline.accounting.epsilon import Epsilon
from pipeline.trials.config import TrialConfig


def alpha_max(m: int, gamma_min: float, gamma_max: float, tau_h_min: float, tau_h_max: float) -> float:
    """Return the Renyi order from which replacing a record has infinite divergence, for one column of one layer.

        1 + m/(rho^2 - 1),   rho = gamma_max tau_h_max/(gamma_min tau_h_min)

    It is infinite if rho = 1.

    Args:
        m: batch size.
        gamma_min, gamma_max: bounds of phi'.
        tau_h_min, tau_h_max: bounds of every |h_k|, times sqrt(number of activations h_k).
    """
    rho = _rho(gamma_min, gamma_max, tau_h_min, tau_h_max)
    return 1 + m / (rho**2 - 1) if rho > 1 else math.inf


def corrected_column_replace_one(alpha: Curve, m: int, n_out: int, sigma: float, tau_B: float, gamma_min: float,
                                 gamma_max: float, tau_h_min: float, tau_h_max: float) -> Curve:
    """Return the Renyi divergence of order `alpha` > 1 of one column and one step if a record is replaced.

    The larger divergence of both orders of the neighbours counts. It is infinite unless sigma > 0, gamma_min tau_h_min
    > 0 and alpha < `alpha_max`. With rho as there, R = 1 + (rho^2 - 1)/m, K = (m - 1) - (alpha - 1) rho^2, t =
    clip(K/(alpha rho), 1, rho), and g_alpha(R) from variances with ratio R:

        alpha tau_B^2/(2 sigma^2) (rho + t)^2/(K + alpha t^2) + n_out g_alpha(R)

    Args:
        n_out: rows of the column.
        sigma: standard deviation of the optical noise.
        tau_B: bound on ||B e||; others as in `alpha_max`.
    """
    rho = _rho(gamma_min, gamma_max, tau_h_min, tau_h_max)

    def bound(a: np.ndarray) -> np.ndarray:
        K = (m - 1) - (a - 1) * rho**2
        t = np.clip(K / (a * rho), 1, rho)
        return a / 2 * (tau_B / sigma)**2 * (rho + t)**2 / (K + a * t**2) + n_out * _g(a, 1 + (rho**2 - 1) / m)

    limit = alpha_max(m, gamma_min, gamma_max, tau_h_min, tau_h_max)
    return _up_to(limit if sigma > 0 else 1.0, bound, alpha)


def corrected_column_add_remove(alpha: Curve, m: int, n_out: int, sigma: float, tau_B: float, gamma_min: float,
                                gamma_max: float, tau_h_min: float, tau_h_max: float) -> Curve:
    """Return the divergence of `corrected_column_replace_one`, with its arguments, if a record is added or removed.

    Infinite unless (alpha - 1) rho^2 < m - 1:

        alpha tau_B^2/(2 sigma^2) rho^2/(m - 1 - (alpha - 1) rho^2) + n_out g_alpha(1 + rho^2/(m - 1))
    """
    rho = _rho(gamma_min, gamma_max, tau_h_min, tau_h_max)

    def bound(a: np.ndarray) -> np.ndarray:
        mean = a / 2 * (tau_B / sigma)**2 * rho**2 / (m - 1 - (a - 1) * rho**2)
        return mean + n_out * _g(a, 1 + rho**2 / (m - 1))

    return _up_to(1 + (m - 1) / rho**2 if sigma > 0 else 1.0, bound, alpha)


def joint_layer_floor(alpha: float, lam: float, n_out: int, sigma: float, tau_B: float, gamma_max: float,
                      tau_h_max: float) -> float:
    """Return the replace-one Renyi divergence of a whole layer's update in one step with an optical noise floor.

    Both orders of the neighbours are covered. The floor is isotropic, and the optical noise of single records is not
    released. With u_i = phi'_ij h_i of record i, row j of the update is Gaussian with covariance Sigma = sigma^2 (S +
    lam I + u u^T). u is of the replaced record, |u| <= U = gamma_max tau_h_max, and S sums u_i u_i^T over the others.
    The neighbour's covariance Sigma' has v instead of u. Three facts give the bound. First, alpha Sigma' + (1 - alpha)
    Sigma >= sigma^2 (lam - (alpha - 1) U^2) I. Second, the means differ by at most 2 tau_B U over all rows. Third,
    Sigma'^(-1/2) Sigma Sigma'^(-1/2) has at most one eigenvalue above 1 and one below, both within a factor r = 1 +
    U^2/lam. With K = lam - (alpha - 1) U^2 and g_alpha of `_g`, infinite unless K > 0:

        2 alpha tau_B^2 U^2/(sigma^2 K) + n_out (g_alpha(r) + g_alpha(1/r))

    Args:
        alpha: order, > 1.
        lam: variance of the floor per entry of the batch sum, over sigma^2.
        n_out: rows of the update.
        sigma: standard deviation of the optical noise.
        tau_B: bound on ||B e||.
        gamma_max, tau_h_max: bounds of phi' and ||h||.
    """
    U2 = (gamma_max * tau_h_max) ** 2
    K = lam - (alpha - 1) * U2
    if sigma == 0 or K <= 0:
        return math.inf
    r = 1 + U2 / lam
    return float(2 * alpha * (tau_B / sigma) ** 2 * U2 / K + n_out * (_g(alpha, r) + _g(alpha, 1 / r)))


def _rho(gamma_min: float, gamma_max: float, tau_h_min: float, tau_h_max: float) -> float:
    L = gamma_min * tau_h_min
    return gamma_max * tau_h_max / L if L > 0 else math.inf


def _g(alpha: Curve, r: float) -> Curve:
    """Return g_alpha(r) = -log(r)/2 - log(alpha - (alpha - 1) r)/(2 (alpha - 1)), for a ratio r of variances.

    It is the Renyi divergence of order alpha of two Gaussians with one mean.
    """
    return -math.log(r) / 2 - np.log(alpha - (alpha - 1) * r) / (2 * (alpha - 1))


def _up_to(limit: float, bound: Callable[[np.ndarray], np.ndarray], alpha: Curve) -> Curve:
    """Return bound(alpha) below `limit`, and infinity from `limit` on; a float for a float."""
    orders = np.atleast_1d(np.asarray(alpha, dtype=float))
    values = np.full(orders.shape, math.inf)
    finite = orders < limit * (1 - 1e-12)  # within rounding of the limit counts as beyond it
    if finite.any():
        values[finite] = bound(orders[finite])
    return values if np.ndim(alpha) else float(values[0])


_BOUNDS = {"replace-one": corrected_column_replace_one, "add/remove": corrected_column_add_remove}


def column_epsilons(config: TrialConfig) -> list[Epsilon]:
    """Return the epsilon of a trial's worst single column in a single step, for each neighbouring relation.

    The list is empty without the photonic mechanism, or if Prop. 3 does not describe the noise (`not_described`).
    """
    if not config.parts.mechanism.optical or not_described(config):
        return []
    found = []
    for relation, bound in _BOUNDS.items():
        worst = max(_epsilon(bound, config.delta, m=config.batch_size, n_out=layer.n_out, sigma=layer.sigma,
                             tau_B=layer.tau_B, gamma_min=layer.gamma_min, gamma_max=layer.gamma_max,
                             tau_h_min=layer.tau_h_min, tau_h_max=layer.tau_h_max) for layer in layers_of(config))
        found.append(Epsilon(
            worst, "column", relation.replace("/", "-"), relation, config.sampler, config.delta, "classic",
            "one column of one layer in one step, not the model: columns share their noise and do not compose"))
    return found


def _epsilon(bound: Bound, delta: float, **constants: float) -> float:
    return float(np.min(bound(ALPHAS, **constants) + math.log(1 / delta) / (ALPHAS - 1)))


def single_column_eps_counterexample(n_out: int, delta: float, m: int, sigma: float, tau_B: float, gamma_min: float,
                                     gamma_max: float, tau_h_min: float, tau_h_max: float) -> dict[str, float]:
    """Return epsilon of one column and one step by four bounds, and exactly for one admissible pair of neighbours.

    In this pair record I has no error in either data set, so the means agree. Record I reaches U = gamma_max tau_h_max
    in one data set and L = gamma_min tau_h_min in the other; all other records are at L. With rho = U/L, the n_out rows
    are Gaussians with variance ratio R = 1 + (rho^2 - 1)/m. `exact_lower_bound` is their exact epsilon; a valid bound
    is never below it. Arguments as in `corrected_column_replace_one`.

    Raises:
        ValueError: unless L > 0.
    """
    rho = _rho(gamma_min, gamma_max, tau_h_min, tau_h_max)
    if math.isinf(rho):
        raise ValueError(f"gamma_min, tau_h_min: must be > 0, got {gamma_min}, {tau_h_min}")
    constants = dict(m=m, n_out=n_out, sigma=sigma, tau_B=tau_B, gamma_min=gamma_min, gamma_max=gamma_max,
                     tau_h_min=tau_h_min, tau_h_max=tau_h_max)
    bounds = (prop3_first, prop3_second, a1_alt, corrected_column_replace_one)
    return {
        **{bound.__name__: _epsilon(bound, delta, **constants) for bound in bounds},
        "exact_lower_bound": _epsilon_of_variance_ratio(1 + (rho**2 - 1) / m, n_out, delta),
    }


def _epsilon_of_variance_ratio(R: float, n: int, delta: float) -> float:
    """Return the exact epsilon of N(0, R I_n) and N(0, I_n), both orders; R > 1.

    The privacy loss is affine in a chi-square variable.
    """
    def excess(epsilon: float) -> float:
        """Return the larger of the two hockey-stick divergences, minus delta."""
        wide = 2 * (epsilon + n / 2 * math.log(R)) / (1 - 1 / R)  # above this |x|^2 the wide density is e^eps higher
        narrow = 2 * (n / 2 * math.log(R) - epsilon) / (1 - 1 / R)  # below this |x|^2 the narrow density is
        return max(stats.chi2.sf(wide / R, n) - math.exp(epsilon) * stats.chi2.sf(wide, n),
                   stats.chi2.cdf(narrow, n) - math.exp(epsilon) * stats.chi2.cdf(narrow / R, n)) - delta

    return smallest_epsilon(excess)


def joint_column_counterexample(m: int, n_in: int, n_out: int, sigma: float, tau_B: float, alpha: float,
                                h_others: Sequence[float], h_I: Sequence[float],
                                phi_prime: float) -> dict[str, float]:
    """Return two divergences that show that columns do not compose: n_in times the saturating bound, and the exact one.

    The neighbours differ only in record I's label: its projected error turns from +tau_B to -tau_B along some direction
    of the n_out rows. All phi' are equal and all covariances saturated, as the bound assumes. Every row has covariance
    (sigma phi'/m)^2 H with H = sum_i h_i h_i^T. The means differ by 2 tau_B phi' h_I/m over all rows together, whatever
    n_out is:

        D_alpha = 2 alpha tau_B^2/sigma^2 h_I^T H^+ h_I

    Args:
        h_others, h_I: activations of every other record, and of record I [n_in].

    Raises:
        ValueError: unless h_others and h_I have n_in entries, sigma > 0 and phi_prime != 0.
    """
    for name, h in (("h_others", h_others), ("h_I", h_I)):
        if len(h) != n_in:
            raise ValueError(f"{name}: must have n_in = {n_in} entries, got {len(h)}")
    if sigma <= 0 or phi_prime == 0:
        raise ValueError(f"sigma must be > 0 and phi_prime other than 0, got {sigma} and {phi_prime}")
    own, other = np.asarray(h_I, dtype=float), np.asarray(h_others, dtype=float)
    H = (m - 1) * np.outer(other, other) + np.outer(own, own)
    leverage = float(own @ np.linalg.pinv(H, hermitian=True) @ own)
    return {
        "a3_times_n_in": n_in * float(a3_saturating(alpha, m, n_out, sigma, tau_B, phi_prime, phi_prime, 1.0, 1.0)),
        "true_joint": 2 * alpha * (tau_B / sigma) ** 2 * leverage,
    }
