"""`label` epsilon: what the optical noise gives when features are public and only labels are private.

h and phi' are then fixed and an update is post-processing of scale(B e_i) + g_i: a Gaussian mechanism of sensitivity
2 tau_B and noise sigma for every layer in which the record takes part. Layers have independent noise and compose; the
output layer is one of them, and without noise of its own nothing is private. BP perturbs its error once for all layers.

Participations: at most one per epoch where an epoch is a partition; K ~ Bin(steps, m/N) where batches are drawn anew.
Batches are drawn without looking at the labels, so K may be revealed, and the loss averages over it,

    delta(epsilon) = E_K[delta of (mu sqrt(K))-GDP at epsilon],

with no amplification claimed. Putting the expected K in the place of K is not proved: delta is not concave in K.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from pipeline.accounting.curves import classic_conversion, gdp_delta, gdp_eps, smallest_epsilon
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.photonic import ALPHAS, Curve
from pipeline.config import TrialConfig

RELATION = "replace-one label"


def label_dp_photonic_layer(alpha: Curve, sigma: float, tau_B: float) -> Curve:
    """2 alpha tau_B^2/sigma^2: Renyi divergence of one layer and one participation; infinite without noise."""
    return 2 * alpha * (tau_B / sigma) ** 2 if sigma > 0 else alpha * math.inf


def label_mu(config: TrialConfig) -> float:
    """mu of the Gaussian-DP of one participation: 2 tau_B/sigma of every noisy release, composed over releases.

    Infinite where a layer's error is used without noise.

    Raises:
        ValueError: for a trial without the photonic mechanism.
    """
    if config.mechanism != "photonic":
        raise ValueError(f"mechanism: must be photonic, got {config.mechanism}")
    bare = config.sigma == 0 or not (config.output_noise or config.algorithm == "bp")
    releases = 1 if config.algorithm == "bp" else len(config.hidden) + 1
    return math.inf if bare else 2 * config.tau_f / config.sigma * math.sqrt(releases)


def label_epsilons(config: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Label epsilon of a trial: `gdp`, exact for these Gaussians, and `rdp`, their Renyi curve by classic conversion.

    Empty without the photonic mechanism.

    Raises:
        ValueError: unless epochs_done >= 1, or for a sampler whose participations are not known.
    """
    if epochs_done < 1:
        raise ValueError(f"epochs_done: must be >= 1, got {epochs_done}")
    if config.mechanism != "photonic":
        return []
    mu = label_mu(config)
    if config.sampler == "shuffled":
        draws, q, how = epochs_done, 1.0, "a record takes part once per epoch"
    elif config.sampler == "without_replacement":
        draws, q = epochs_done * config.steps_per_epoch, config.batch_size / config.split_sizes[0]
        how = f"participations are binomial ({draws} draws, q = {q:.4g})"
    else:
        raise ValueError(f"sampler: participations are known of shuffled and without_replacement, got {config.sampler}")
    note = f"features public, labels private; {how}"
    note += "; infinite: an error is used without noise" if math.isinf(mu) else ""
    return [Epsilon(value, "label", variant, RELATION, config.sampler, config.delta, conversion, note)
            for variant, value, conversion in (
                ("gdp", binomial_gdp_eps(mu, draws, q, config.delta), "exact"),
                ("rdp", binomial_rdp_eps(mu, draws, q, config.delta), "classic"))]


def binomial_gdp_eps(mu: float, draws: int, q: float, delta: float) -> float:
    """Epsilon of K ~ Bin(draws, q) mu-GDP releases, K public; exactly (mu sqrt(draws))-GDP at q = 1."""
    if math.isinf(mu):
        return math.inf
    if q == 1:
        return gdp_eps(mu * math.sqrt(draws), delta)
    last = int(stats.binom.isf(delta * 1e-6, draws, q))  # beyond it delta is counted as 1
    k = np.arange(1, last + 1)
    weights, beyond = stats.binom.pmf(k, draws, q), stats.binom.sf(last, draws, q)

    def excess(epsilon: float) -> float:
        return float(weights @ gdp_delta(mu * np.sqrt(k), epsilon)) + beyond - delta

    return smallest_epsilon(excess)


def binomial_rdp_eps(mu: float, draws: int, q: float, delta: float) -> float:
    """As `binomial_gdp_eps`, by classic conversion of draws log(1 - q + q e^((alpha-1) alpha mu^2/2))/(alpha - 1)."""
    if math.isinf(mu):
        return math.inf
    exponent = (ALPHAS - 1) * ALPHAS * mu**2 / 2
    absent = math.log1p(-q) if q < 1 else -math.inf
    curve = draws * np.logaddexp(absent, math.log(q) + exponent) / (ALPHAS - 1)
    return classic_conversion(ALPHAS, curve, delta)[0]
