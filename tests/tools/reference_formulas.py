"""Formulas of papers, and counterexamples to them, that only tests evaluate."""

import math

import numpy as np
from scipy import special, stats

from pipeline.accounting import curves
from pipeline.accounting.audited import upper_limit
from pipeline.accounting.claimed import a1_alt, a3_saturating, prop3_first, prop3_second, rho_of
from pipeline.accounting.column import corrected_column_replace_one, epsilon_of_column
from pipeline.accounting.column import g as g_alpha
from pipeline.accounting.curves import classic_conversion


def certified_component_norm(tau_B, gamma, tau_h_prev, bias=True):
    """Return the largest Euclidean norm of one record's contribution if error and activations are clipped.

    By layer, tau_B bounds the projected error, gamma the activation's slope, tau_h_prev the activations that enter.
    """
    layers = zip(tau_B, gamma, tau_h_prev, strict=True)
    return math.sqrt(sum((B * g) ** 2 * (h**2 + bias) for B, g, h in layers))


def leekifer_sensitivity(gamma, beta, tau_e, tau_h, L, m):
    """Return the replace-one sensitivity of the mean update of L equal layers (Lee & Kifer 2020, Section 4.2).

    gamma bounds |phi'|, the slope of the activation; beta is the spectral norm of the feedback matrices; tau_e and
    tau_h are norms to which error and activations are clipped.
    """
    return 2 * gamma * beta * tau_e * math.sqrt((1 + tau_h**2) * L) / m


def leekifer_epsilon(N, m, noise_multiplier, T, delta, orders, divergence=curves.without_replacement_rdp):
    """Return epsilon of T steps on batches of m out of N records (Wang, Balle & Kasiviswanathan 2019, Theorem 27).

    The noise multiplier is over 2 C. Lee & Kifer's table is `epsilon_classic`, truncated to two decimals; `order`
    attains it. `epsilon_improved` converts the same curve tighter. With the `divergence` of Lemma 3 as printed,
    `lemma3_rdp`, the paper's own numbers do not come out.
    """
    curve = T * divergence(m / N, noise_multiplier, tuple(orders))
    classic, order = classic_conversion(orders, curve, delta)
    improved, _ = curves.improved_conversion(orders, curve, delta)
    return {"epsilon_classic": classic, "order": order, "epsilon_improved": improved}


def lemma3_rdp(q, z, orders):
    """Return the Renyi divergence of one step on batches without replacement, by Lemma 3 of Lee & Kifer (2020).

        log(1 + sum_{j=2}^alpha q^j C(alpha, j) b(j))/(alpha - 1),   b(j) = 2 e^(j (j-1)/(2 z^2))

    b(2) is at most 4 (e^(1/z^2) - 1). It is `curves.without_replacement_rdp` without its other bound on b(j).
    """
    j = np.arange(2, max(orders) + 1)
    log_terms = math.log(2) + j * (j - 1) / (2 * z**2) + j * math.log(q)
    log_terms[0] = min(log_terms[0], math.log(4 * math.expm1(1 / z**2)) + 2 * math.log(q))
    curve = []
    for alpha in orders:
        k = j[:alpha - 1]
        log_binomial = special.gammaln(alpha + 1) - special.gammaln(k + 1) - special.gammaln(alpha - k + 1)
        curve.append(np.logaddexp(0.0, special.logsumexp(log_binomial + log_terms[:alpha - 1])) / (alpha - 1))
    return np.array(curve)


def label_dp_photonic_layer(alpha, sigma, tau_B):
    """Return the Renyi divergence of replacing a label, in one layer and participation: 2 alpha tau_B^2/sigma^2."""
    return 2 * alpha * (tau_B / sigma) ** 2 if sigma > 0 else math.inf


def joint_layer_floor(alpha, lam, n_out, sigma, tau_B, gamma_max, tau_h_max):
    """Return a bound on the Renyi divergence of a layer's whole update in one step, with noise added to every entry.

    The added noise, the floor, is independent and equal in all entries: `lam` is its variance per entry of the batch
    sum, over sigma^2. One record is replaced, and the bound covers the divergence of either data set from the other.
    Here tau_h_max bounds ||h||. With K = lam - (alpha - 1) U^2 and r = 1 + U^2/lam, it is infinite unless K > 0:

        2 alpha tau_B^2 U^2/(sigma^2 K) + n_out (g_alpha(r) + g_alpha(1/r))

    Proof. Let u_i = phi'_ij h_i for record i, so |u_i| <= U. Row j of the update is Gaussian with covariance Sigma =
    sigma^2 (S + lam I + u u^T), where u belongs to the replaced record and S sums u_i u_i^T over all others. The
    neighbour's covariance Sigma' has v in place of u.

    1. alpha Sigma' + (1 - alpha) Sigma >= sigma^2 (lam - (alpha - 1) U^2) I.
    2. The means differ by at most 2 tau_B U over all rows.
    3. Sigma'^(-1/2) Sigma Sigma'^(-1/2) has at most one eigenvalue above 1, at most r, and one below, at least 1/r.
    """
    U2 = (gamma_max * tau_h_max) ** 2
    K = lam - (alpha - 1) * U2
    if sigma == 0 or K <= 0:
        return math.inf
    r = 1 + U2 / lam
    return float(2 * alpha * (tau_B / sigma) ** 2 * U2 / K + n_out * (g_alpha(alpha, r) + g_alpha(alpha, 1 / r)))


def joint_column_counterexample(m, n_in, n_out, sigma, tau_B, alpha, h_others, h_I, phi_prime):
    """Return two Renyi divergences of one layer, a printed one and the exact one: columns do not compose.

    `a3_times_n_in` multiplies a bound for one column by the n_in columns; `true_joint` is exact for all together. The
    neighbours differ only in the label of one record I: its projected error turns from +tau_B to -tau_B along some
    direction of the n_out rows. Record I has activations h_I [n_in], and every other one h_others. All phi' are equal,
    as the bound assumes. Every row has covariance (sigma phi'/m)^2 H with H = sum_i h_i h_i^T, and the means differ by
    2 tau_B phi' h_I/m over all rows together, for any n_out.
    """
    changed, other = np.asarray(h_I, dtype=float), np.asarray(h_others, dtype=float)
    H = (m - 1) * np.outer(other, other) + np.outer(changed, changed)
    leverage = float(changed @ np.linalg.pinv(H, hermitian=True) @ changed)  # h_I^T H^+ h_I
    column_bound = a3_saturating(alpha, m, n_out, sigma, tau_B, gamma_min=phi_prime, gamma_max=phi_prime,
                                 tau_h_min=1.0, tau_h_max=1.0)  # the bounds of phi' and h cancel
    return {"a3_times_n_in": n_in * float(column_bound), "true_joint": 2 * alpha * (tau_B / sigma) ** 2 * leverage}


def single_column_eps_counterexample(n_out, delta, m, sigma, tau_B, gamma_min, gamma_max, tau_h_min, tau_h_max):
    """Return epsilon of one column and one step by four bounds, and exactly for one pair of neighbouring data sets.

    A bound below the exact value, `exact_lower_bound`, is wrong. In the pair, one record I differs. It has no error in
    either data set, so the means agree. Its phi' h is U in one data set and L in the other; all other records have L.
    The n_out rows are then Gaussians with variance ratio R = 1 + (rho^2 - 1)/m.
    """
    rho = rho_of(gamma_min, gamma_max, tau_h_min, tau_h_max)
    constants = dict(m=m, n_out=n_out, sigma=sigma, tau_B=tau_B, gamma_min=gamma_min, gamma_max=gamma_max,
                     tau_h_min=tau_h_min, tau_h_max=tau_h_max)
    bounds = (prop3_first, prop3_second, a1_alt, corrected_column_replace_one)
    return {**{bound.__name__: epsilon_of_column(bound, delta, **constants) for bound in bounds},
            "exact_lower_bound": epsilon_of_variance_ratio(1 + (rho**2 - 1) / m, n_out, delta)}


def epsilon_of_variance_ratio(R, n, delta):
    """Return the smallest epsilon at which the Gaussians N(0, R I_n) and N(0, I_n) are (epsilon, delta)-close; R > 1.

    Both directions count. The privacy loss is affine in |x|^2, a chi-square variable, so its tails are exact.
    """
    def excess(epsilon):  # of the larger hockey-stick divergence of order e^epsilon
        # Above |x|^2 = wide the wide density is more than e^epsilon times the narrow one; below |x|^2 = narrow the
        # narrow density is more than e^epsilon times the wide one.
        wide = 2 * (epsilon + n / 2 * math.log(R)) / (1 - 1 / R)
        narrow = 2 * (n / 2 * math.log(R) - epsilon) / (1 - 1 / R)
        wide_divergence = stats.chi2.sf(wide / R, n) - math.exp(epsilon) * stats.chi2.sf(wide, n)
        narrow_divergence = stats.chi2.cdf(narrow, n) - math.exp(epsilon) * stats.chi2.cdf(narrow / R, n)
        return max(wide_divergence, narrow_divergence) - delta

    return curves.smallest_epsilon(excess)


def two_point(fp, n0, fn, n1, delta, conf=0.95):
    """Return a lower bound on epsilon from the errors of a test between two neighbouring inputs (Nasr et al. 2023).

    The test assigns `fp` of `n0` outputs on the first input to the second, and `fn` of `n1` the other way. The bound
    holds with probability `conf`. It is max(log((1 - delta - b)/a), log((1 - delta - a)/b)), at least 0, with the
    upper limits a and b of the two rates.
    """
    a, b = upper_limit(fp, n0, conf, "fp"), upper_limit(fn, n1, conf, "fn")
    with np.errstate(divide="ignore"):
        first = np.log(np.maximum(1 - delta - b, 0) / a)
        second = np.log(np.maximum(1 - delta - a, 0) / b)
    return np.maximum(np.maximum(first, second), 0.0)[()]  # [()] makes a number of an array without dimensions
