"""Privacy curves of Gaussian mechanisms with and without subsampling, and conversion of a curve to (epsilon, delta).

z is the noise multiplier (standard deviation over sensitivity), q the probability that a record takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld import privacy_loss_mechanism as mechanism
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy import optimize, special

LossDistribution: TypeAlias = pld.PrivacyLossDistribution

DISCRETIZATION = 1e-4  # interval of the loss grid; losses are rounded pessimistically
FINEST = 5e-7  # smallest interval; float64 resolves the probabilities on a finer grid no more
COARSEST = 1e-3  # largest interval: for large losses of single steps, or trials of several kinds
ORDERS = tuple(range(2, 200))  # Theorem 27 of Wang et al. needs integer orders


def gdp_eps(mu: float, delta: float) -> float:
    """Return the smallest epsilon of a mu-GDP mechanism at `delta` (Balle & Wang 2018, Theorem 8); 0 at mu = 0."""
    if mu > 1e150:  # epsilon, about mu^2/2, would overflow
        return math.inf
    with np.errstate(divide="ignore"):  # so much noise that delta rounds to 0, whose logarithm is taken
        return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0


def gdp_delta(mu: np.ndarray | float, epsilon: float) -> np.ndarray | float:
    """Return delta of mechanisms with mu-Gaussian differential privacy (mu-GDP) at `epsilon`, mu > 0.

        Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

    Phi is the standard normal distribution function. Logarithms keep the difference from overflowing.
    """
    log_first = special.log_ndtr(mu / 2 - epsilon / mu)
    log_second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return -np.exp(log_first) * np.expm1(np.minimum(log_second - log_first, 0.0))


def smallest_epsilon(excess: Callable[[float], float]) -> float:
    """Return the epsilon at which a mechanism's delta(epsilon) falls to a given delta; 0 if delta(0) is small enough.

    `excess` is delta(epsilon) minus the given delta; it decreases, and is finally below 0.
    """
    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-12))


def classic_conversion(orders: Sequence[float] | np.ndarray, curve: np.ndarray, delta: float) -> tuple[float, float]:
    """Return (epsilon, order): the minimum of R(alpha) + log(1/delta)/(alpha - 1) over orders alpha > 1, and its order.

    R is the Renyi divergence `curve`, [len(orders)] (Mironov 2017, Proposition 3).
    """
    epsilons = curve + math.log(1 / delta) / (np.asarray(orders) - 1)
    best = int(np.argmin(epsilons))
    return float(epsilons[best]), float(orders[best])


def improved_conversion(orders: Sequence[float] | np.ndarray, curve: np.ndarray, delta: float) -> tuple[float, float]:
    """Return (epsilon, order) as `classic_conversion` does, by the tighter Proposition 12 of Canonne et al. (2020)."""
    value, order = rdp.compute_epsilon(orders, curve, delta)
    return float(value), float(order)


@lru_cache(maxsize=256)
def without_replacement_rdp(q: float, z: float, orders: tuple[int, ...] = ORDERS) -> np.ndarray:
    """Return the Renyi divergence of one step on a fresh subset of the records, replace-one, [len(orders)], read-only.

    By Wang, Balle & Kasiviswanathan 2019, Theorem 27, at integer orders >= 2, where D(alpha) = alpha/(2 z^2) is the
    divergence of the Gaussian mechanism and C(alpha, j) a binomial coefficient. The result R(alpha) follows from

        (alpha - 1) R = log(1 + q^2 C(alpha, 2) min(4 (e^D(2) - 1), 2 e^D(2)) + sum_{j >= 3} q^j C(alpha, j) b(j)),
        b(j) = min(4 sqrt(B(2 floor(j/2)) B(2 ceil(j/2))), 2 e^((j-1) D(j)))

    with B(k) = Delta^k f(0), the forward difference of f(j) = e^((j-1) D(j)). The values equal those of `dp_accounting`
    (SampledWithoutReplacementDpEvent) up to order 256, a hundred times as fast.
    """
    if q == 1:
        curve = np.array(orders) / (2 * z**2)
    else:
        j = np.arange(max(orders) + 1)
        log_B = _log_central_moments(max(orders) + 1, z)  # log B(0), log B(2), ...
        log_b_of_moments = math.log(4) + (log_B[j // 2] + log_B[(j + 1) // 2]) / 2  # first argument of min in b(j)
        log_b = math.log(2) + j * (j - 1) / (2 * z**2)  # second argument, 2 e^((j-1) D(j))
        log_4_times_difference = math.log(4 * -math.expm1(-1 / z**2)) + 1 / z**2  # log(4 (e^D(2) - 1)), D(2) = 1/z^2
        log_b[2] = min(log_b[2], log_4_times_difference)
        curve = _amplified(q, np.minimum(log_b_of_moments, log_b), orders)
    curve.setflags(write=False)
    return curve


def _amplified(q: float, log_terms: np.ndarray, orders: Sequence[int]) -> np.ndarray:
    """Return the Renyi divergence of a step with sampling rate q at every order alpha, [len(orders)].

        log(1 + sum_{j=2}^alpha q^j C(alpha, j) e^log_terms[j])/(alpha - 1)
    """
    j = np.arange(2, len(log_terms))
    curve = []
    for alpha in orders:
        k = j[: alpha - 1]  # 2, ..., alpha
        log_binomial = special.gammaln(alpha + 1) - special.gammaln(k + 1) - special.gammaln(alpha - k + 1)
        total = special.logsumexp(log_binomial + k * math.log(q) + log_terms[k])
        curve.append(np.logaddexp(0.0, total) / (alpha - 1))
    return np.array(curve)


def _log_central_moments(n: int, z: float) -> np.ndarray:
    """Return log B(k) for even k = 0, 2, ..., n, where B(k) = Delta^k f(0) = E_Q[(P/Q - 1)^k].

    P = N(1/z, 1) and Q = N(0, 1), so that P/Q = e^(x/z - 1/(2 z^2)). Entry i is log B(2 i). B(k) is computed as a sum
    of positive terms, because the differences themselves cancel catastrophically at large z. The integrand is analytic
    and decays like a Gaussian, so the trapezoidal rule is exact to rounding.
    """
    step = 0.05  # of the trapezoidal rule
    x = np.arange(-40.0, n / z + 40.0, step)  # peaks of the integrand lie between 0 and k/z
    loss = x / z - 1 / (2 * z**2)
    with np.errstate(divide="ignore"):  # log 0 where P = Q
        log_ratio = np.maximum(loss, 0) + np.log(-np.expm1(-np.abs(loss)))  # log |P/Q - 1|
    log_density = -x * x / 2 + math.log(step / math.sqrt(2 * math.pi))
    powers = (k * log_ratio if k else 0 for k in range(0, n + 1, 2))  # 0 times log 0 would be nan
    return np.array([special.logsumexp(log_density + power) for power in powers])


@lru_cache(maxsize=8)
def poisson_losses(q: float, z: float, interval: float = DISCRETIZATION) -> LossDistribution:
    """Return the privacy-loss distribution of one step with Poisson sampling, add/remove, on a grid of this interval.

    At rate 1, which takes every record, it is that of the Gaussian mechanism with noise multiplier z.

    It equals `dp_accounting`'s bit for bit. `from_gaussian_mechanism` there inverts the loss point by point in Python,
    which takes three quarters of an accounting. This function inverts all points at once.
    """
    adjacencies = [mechanism.AdjacencyType.REMOVE]
    if q != 1:  # without sampling, adding a record gives the same distribution
        adjacencies.append(mechanism.AdjacencyType.ADD)
    pmfs = []  # probability mass functions of the loss
    for adjacency in adjacencies:
        loss = mechanism.GaussianPrivacyLoss(z, sampling_prob=q, adjacency_type=adjacency)
        bounds = loss.connect_dots_bounds()
        low, high = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        profile = _profile(loss, z, np.arange(low, high + 1) * interval)
        pmfs.append(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, profile))
    return LossDistribution(*pmfs)


def _profile(loss: mechanism.GaussianPrivacyLoss, z: float, epsilons: np.ndarray) -> np.ndarray:
    """Return delta at every epsilon [k] for one step of the Gaussian mechanism, with Poisson sampling.

    It equals `loss.get_delta_for_epsilon(epsilons)` bit for bit, vectorized, by the same operations in the same order:
    do not simplify them. `loss` has sensitivity 1.
    """
    q = loss.sampling_prob
    sign = -1.0 if loss.adjacency_type == mechanism.AdjacencyType.ADD else 1.0
    edge = math.log1p(-q) if q < 1 else -math.inf  # smallest possible loss, or largest negated one
    inside = sign * epsilons > edge
    delta_outside = -np.expm1(epsilons) if sign > 0 else 0.0
    deltas = np.where(inside, 0.0, delta_outside)
    epsilons = epsilons[inside]
    unsampled = sign * epsilons  # `sign` times the loss without sampling that gives this epsilon
    if q < 1:  # log(1 + (e^epsilon - 1)/q)
        at_edge = np.abs(unsampled - edge) <= 1e-9 * np.maximum(np.abs(unsampled), abs(edge))
        at_zero = unsampled == 0
        high = unsampled + np.log(1 / q)
        with np.errstate(divide="ignore", invalid="ignore"):
            unsampled = high + np.log1p(-np.exp(np.log(1 / q - 1) - high))
        unsampled[at_zero] = np.log(1 / q + (1 - 1 / q))
        unsampled[at_edge] = -math.inf
    x = -0.5 - sign * unsampled * z**2 + (sign < 0)
    deltas[inside] = loss.mu_upper_cdf(x) - np.exp(epsilons + loss.mu_lower_log_cdf(x))
    return np.clip(deltas, 0, 1)


@lru_cache(maxsize=8)
def without_replacement_losses(q: float, z: float, interval: float = DISCRETIZATION) -> LossDistribution:
    """Return the privacy-loss distribution of one step on a fresh subset of the records, replace-one.

    Advanced joint convexity (Balle, Barthe & Gaboardi 2018, Theorem 2; Zhu, Dong & Wang 2022, Proposition 30) bounds
    the hockey-stick divergence of order e^eps >= 1. It is at most the divergence of P = (1-q) N(0,1) + q N(1/z,1) from
    Q = N(0,1). The relation is symmetric, so the same holds with the data sets exchanged, which gives the branch below
    1:

        H(e^-eps) = 1 - e^-eps + e^-eps H(e^eps)

    Neither P against Q nor Q against P alone bounds both branches. Connecting the dots of this profile does.
    """
    loss = mechanism.GaussianPrivacyLoss(z, sampling_prob=q, adjacency_type=mechanism.AdjacencyType.REMOVE)
    top = math.ceil(loss.connect_dots_bounds().epsilon_upper / interval)
    epsilons = np.arange(top + 1) * interval
    above = _profile(loss, z, epsilons)
    below = (-np.expm1(-epsilons) + np.exp(-epsilons) * above)[:0:-1]
    profile = np.concatenate([below, above])
    return LossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -top, top, profile))
