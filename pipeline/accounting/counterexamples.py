"""A counterexample to the bounds of `claimed` on one column, with their arguments; for tests and `account --check`."""

from __future__ import annotations

import math

from scipy import stats

from pipeline.accounting.claimed import a1_alt, prop3_first, prop3_second
from pipeline.accounting.column import corrected_column_replace_one, epsilon_of_column, rho_of
from pipeline.accounting.curves import smallest_epsilon


def single_column_eps_counterexample(n_out: int, delta: float, m: int, sigma: float, tau_B: float, gamma_min: float,
                                     gamma_max: float, tau_h_min: float, tau_h_max: float) -> dict[str, float]:
    """Return epsilon of one column and one step by four bounds, and exactly for one pair of neighbouring data sets.

    A bound below the exact value, `exact_lower_bound`, is wrong. In the pair, one record I differs. It has no error in
    either data set, so the means agree. Its phi' h is U in one data set and L in the other; all other records have L.
    The n_out rows are then Gaussians with variance ratio R = 1 + (rho^2 - 1)/m.
    """
    rho = rho_of(gamma_min, gamma_max, tau_h_min, tau_h_max)
    if math.isinf(rho):
        raise ValueError(f"gamma_min, tau_h_min: must be > 0, got {gamma_min}, {tau_h_min}")
    constants = dict(m=m, n_out=n_out, sigma=sigma, tau_B=tau_B, gamma_min=gamma_min, gamma_max=gamma_max,
                     tau_h_min=tau_h_min, tau_h_max=tau_h_max)
    bounds = (prop3_first, prop3_second, a1_alt, corrected_column_replace_one)
    return {
        **{bound.__name__: epsilon_of_column(bound, delta, **constants) for bound in bounds},
        "exact_lower_bound": _epsilon_of_variance_ratio(1 + (rho**2 - 1) / m, n_out, delta),
    }


def _epsilon_of_variance_ratio(R: float, n: int, delta: float) -> float:
    """Return the smallest epsilon at which the Gaussians N(0, R I_n) and N(0, I_n) are (epsilon, delta)-close; R > 1.

    Both directions count. The privacy loss is affine in |x|^2, a chi-square variable, so its tails are exact.
    """
    def excess(epsilon: float) -> float:
        """Return the larger of the two hockey-stick divergences of order e^epsilon, minus delta."""
        # Above |x|^2 = wide the wide density is more than e^epsilon times the narrow one; below |x|^2 = narrow the
        # narrow density is more than e^epsilon times the wide one.
        wide = 2 * (epsilon + n / 2 * math.log(R)) / (1 - 1 / R)
        narrow = 2 * (n / 2 * math.log(R) - epsilon) / (1 - 1 / R)
        wide_divergence = stats.chi2.sf(wide / R, n) - math.exp(epsilon) * stats.chi2.sf(wide, n)
        narrow_divergence = stats.chi2.cdf(narrow, n) - math.exp(epsilon) * stats.chi2.cdf(narrow / R, n)
        return max(wide_divergence, narrow_divergence) - delta

    return smallest_epsilon(excess)
