"""`label` epsilon: the guarantee of optical noise when features are public and only labels are private.

h and phi' are then fixed, and an update is post-processing of scale(B e_i) + g_i. This is a Gaussian mechanism of
sensitivity 2 tau_B and noise sigma in every layer, the output layer included. BP perturbs its error once for all
layers, and `joint_release` all projections as one vector: one release. `denoise` is post-processing, as B is public.
Projector `opu_physical` has photons in place of Gaussian noise (`photon`), and the rest is the same.

A record participates at most once per epoch if an epoch is a partition. With fresh batches in every step, K ~
Bin(steps, m/N). Batches are drawn without looking at the labels, so K may be revealed, and the loss averages over it:

    delta(epsilon) = E_K[delta of (mu sqrt(K))-GDP at epsilon],

without amplification. Replacing K by its expectation is not proved: delta is not concave in K.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import optimize, stats

from pipeline.accounting.calibration import kept
from pipeline.accounting.claimed import ALPHAS, Curve
from pipeline.accounting.curves import classic_conversion, gdp_delta, gdp_eps, improved_conversion, smallest_epsilon
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.finite_precision import accounted_delta, with_sampler_error
from pipeline.accounting.photon import label_divergence
from pipeline.trials.config import TrialConfig

RELATION = "replace-one label"
LEAST_STEP, MOST_STEP = -20, 14  # range of k; the photon curve is evaluated at orders 1 + 2^(k/2)


def label_mu(config: TrialConfig) -> float:
    """Return mu (Gaussian DP) of one participation in a photonic trial; infinite if an error is used without noise.

    The trial has its calibrated sigma, and no `physical` processor, whose noise is no Gaussian of that sigma.
    """
    # BP (exact feedback) adds its noise to the output error itself, before it reaches any layer.
    if config.sigma == 0 or not (config.output_noise or config.parts.feedback.exact):
        return math.inf
    return _sensitivity(config) / config.sigma


def _sensitivity(config: TrialConfig) -> float:
    """Return the sensitivity of one participation of a record: 2 tau_B (the setting tau_f) times sqrt(releases)."""
    releases = 1 if config.parts.feedback.exact or config.joint_release else len(config.hidden) + 1
    return 2 * config.tau_f * math.sqrt(releases)


@lru_cache(maxsize=1024)
def with_sigma(config: TrialConfig) -> TrialConfig:
    """Return the trial with the sigma that its `target_label_epsilon` needs, in that target's place, if it has one."""
    target = config.target_label_epsilon
    if not target:
        return config
    # A record takes part in each of `draws` batches with probability q.
    draws, q, _ = config.parts.sampler.participations(config, config.epochs)
    delta = accounted_delta(config)
    aim = 0.995 * target  # in the range of calibration

    def epsilon_of(mu: float) -> float:
        return binomial_gdp_eps(mu, draws, q, delta)

    def search() -> float:
        low = high = 0.0  # log mu below and above the solution; epsilon grows with mu from 0 without bound
        while epsilon_of(math.exp(low)) > aim:
            low -= 1.0
        while epsilon_of(math.exp(high)) < aim:
            high += 1.0
        return math.exp(optimize.brentq(lambda log_mu: epsilon_of(math.exp(log_mu)) - aim, low, high, xtol=1e-9))

    mu = kept(("mu of a label", draws, q, delta), target, epsilon_of, 0.0, search)
    return TrialConfig(config.given, sigma=_sensitivity(config) / mu, target_label_epsilon=0.0)


def label_epsilons(config: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Return the label epsilons of a trial's first `epochs_done` epochs; none without the photonic mechanism.

    There is one of counted photons, else an exact one and one by Renyi divergence. sigma is calibrated here if need be.
    """
    if not config.parts.mechanism.optical:
        return []
    # A record takes part in each of `draws` batches with probability q; `how` says so in words.
    draws, q, how = config.parts.sampler.participations(config, epochs_done)
    note = f"features public, labels private; {how}"
    if config.physical:
        value = photon_eps(config, draws, q, config.delta) if config.joint_release else math.inf
        note += ("; of the device's matrix of this seed" if config.joint_release else
                 "; infinite: the output layer's error is used without noise")
        values = [("photon", value, "improved")]
    else:
        mu, delta = label_mu(with_sigma(config)), accounted_delta(config)
        if math.isinf(mu):
            note += "; infinite: an error is used without noise"
        values = [(variant, with_sampler_error(config, accountant(mu, draws, q, delta), epochs_done), conversion)
                  for variant, accountant, conversion in (("gdp", binomial_gdp_eps, "exact"),
                                                          ("rdp", binomial_rdp_eps, "classic"))]
    return [Epsilon(value, kind="label", variant=variant, relation=RELATION, sampler=config.sampler, delta=config.delta,
                    conversion=conversion, note=note) for variant, value, conversion in values]


def photon_eps(config: TrialConfig, draws: int, q: float, delta: float) -> float:
    """Return the label epsilon of K ~ Bin(draws, q) participations of a record whose noise is counted photons alone."""
    def epsilon_at(k: int) -> float:
        """Return epsilon by the Renyi divergence of order alpha = 1 + 2^(k/2); infinite if that is."""
        alpha = 1 + 2.0 ** (k / 2)
        curve = np.array([_participating((alpha - 1) * label_divergence(alpha, config), draws, q) / (alpha - 1)])
        if not np.isfinite(curve).all():
            return math.inf
        # The improved conversion is unstable near order 1, where it is infinite; the classic one is not.
        classic, _ = classic_conversion([alpha], curve, delta)
        improved, _ = improved_conversion([alpha], curve, delta)
        return min(classic, improved)

    # Every order gives a valid epsilon, and takes a second: go downhill from the best order of a Gaussian. With
    # divergence c alpha it is near alpha - 1 = sqrt(log(1/delta)/c).
    c = draws * q * label_divergence(2.0, config) / 2
    start = round(math.log2(math.log(1 / delta) / c)) if 0 < c < math.inf else LEAST_STEP
    k = min(max(start, LEAST_STEP), MOST_STEP)
    best = epsilon_at(k)
    for direction in (1, -1):
        while LEAST_STEP <= k + direction <= MOST_STEP:
            next_epsilon = epsilon_at(k + direction)
            if next_epsilon >= best:
                break
            k, best = k + direction, next_epsilon
    return best


def binomial_gdp_eps(mu: float, draws: int, q: float, delta: float) -> float:
    """Return epsilon of K releases that are mu-Gaussian DP each, for K ~ Bin(draws, q), which may be public."""
    if math.isinf(mu):
        return math.inf
    if q == 1:
        return gdp_eps(mu * math.sqrt(draws), delta)
    max_k = int(stats.binom.isf(delta * 1e-6, draws, q))  # a larger K is charged with delta(epsilon) = 1
    k = np.arange(1, max_k + 1)
    probabilities, tail_probability = stats.binom.pmf(k, draws, q), stats.binom.sf(max_k, draws, q)
    return smallest_epsilon(
        lambda epsilon: float(probabilities @ gdp_delta(mu * np.sqrt(k), epsilon)) + tail_probability - delta)


def _participating(exponent: Curve, draws: int, q: float) -> Curve:
    """Return (alpha - 1) D of K ~ Bin(draws, q) participations of a record, from (alpha - 1) D of one, `exponent`."""
    log_1_minus_q = math.log1p(-q) if q < 1 else -math.inf
    return draws * np.logaddexp(log_1_minus_q, math.log(q) + exponent)  # draws log(1 - q + q e^exponent)


def binomial_rdp_eps(mu: float, draws: int, q: float, delta: float) -> float:
    """Return an upper bound on `binomial_gdp_eps`, by the Renyi divergence of K releases and the classic conversion."""
    # a release has divergence alpha mu^2/2
    curve = _participating((ALPHAS - 1) * ALPHAS * (mu * mu) / 2, draws, q) / (ALPHAS - 1)
    return classic_conversion(ALPHAS, curve, delta)[0]
