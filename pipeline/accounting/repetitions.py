"""K, the number of trials that random stopping draws: its distribution, of which `selected` has the cost.

With shape eta >= 0 and gamma in (0, 1], for k = 1, 2, ... (Papernot & Steinke 2022, Definition 1):

    P[K = k] = (1 - gamma)^k/(gamma^-eta - 1) prod_{l < k} (l + eta)/(l + 1)       truncated negative binomial
             = (1 - gamma)^k/(k log(1/gamma)) at eta = 0, logarithmic;  gamma (1 - gamma)^(k - 1) at eta = 1, geometric
    E[K]     = eta (1/gamma - 1)/(1 - gamma^eta);  (1/gamma - 1)/log(1/gamma) at eta = 0

eta = infinity means the Poisson distribution, which may draw K = 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

LOGARITHMIC, GEOMETRIC, POISSON = 0.0, 1.0, math.inf  # shapes


def draw_number(generator: np.random.Generator, mean: float, shape: float) -> int:
    """Return a draw of K, the number of trials, from the distribution with this mean and shape; 0 only if Poisson."""
    if shape == POISSON:
        return int(generator.poisson(mean))
    gamma = gamma_of(mean, shape)
    if gamma == 1:
        return 1
    if shape == LOGARITHMIC:
        return int(generator.logseries(1 - gamma))
    k = 0
    while not k:  # rejecting 0 truncates the distribution
        k = int(generator.negative_binomial(shape, gamma))
    return k


def gamma_of(mean: float, shape: float) -> float:
    """Return the gamma in (0, 1] at which E[K] is `mean` >= 1, for a finite shape eta."""
    if shape == GEOMETRIC or mean == 1:
        return 1 / mean
    from scipy import optimize  # imported here: it takes half a second

    def log_ratio(log_gamma: float) -> float:
        """Return log(E[K]/mean), which decreases with log gamma, to log(1/mean) at 0."""
        truncation = -math.expm1(shape * log_gamma) / shape if shape else -log_gamma
        return math.log(math.expm1(-log_gamma) / truncation / mean)

    low, high = -1.0, -1e-12  # of log gamma; the root lies between them
    if log_ratio(high) >= 0:
        return 1.0
    while log_ratio(low) < 0:
        low *= 2
    return math.exp(optimize.brentq(log_ratio, low, high, xtol=1e-14))
