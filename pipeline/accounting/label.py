"""`label` epsilon: the guarantee of optical noise when features are public and only labels are private.

h and phi' are then fixed, and an update is post-processing of scale(B e_i) + g_i. This is a Gaussian mechanism of
sensitivity 2 tau_B and noise sigma in every layer, the output layer included. BP perturbs its error once for all
layers, and `joint_release` all projections as one vector: one release. `denoise` is post-processing, as B is public.

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

from pipeline.accounting.calibration import AIMED_RATIO, kept
from pipeline.accounting.claimed import ALPHAS
from pipeline.accounting.curves import classic_conversion, gdp_delta, gdp_eps, smallest_epsilon
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.finite_precision import accounted_delta, with_sampler_error
from pipeline.trials.config import TrialConfig

RELATION = "replace-one label"


def label_mu(config: TrialConfig) -> float:
    """Return mu (Gaussian DP) of one participation in a photonic trial that has its calibrated sigma.

    It is infinite if an error is used without noise.
    """
    # BP (exact feedback) adds its noise to the output error itself, before it reaches any layer.
    if config.sigma == 0 or not (config.output_noise or config.parts.feedback.exact):
        return math.inf
    return _sensitivity(config) / config.sigma


def _sensitivity(config: TrialConfig) -> float:
    """Return the sensitivity of one participation of a record; the setting tau_f is tau_B."""
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
    aim = AIMED_RATIO * target

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

    There is an exact one and one by Renyi divergence. sigma is calibrated here if need be.
    """
    if not config.parts.mechanism.optical:
        return []
    # A record takes part in each of `draws` batches with probability q; `how` says so in words.
    draws, q, how = config.parts.sampler.participations(config, epochs_done)
    note = f"features public, labels private; {how}"
    mu, delta = label_mu(with_sigma(config)), accounted_delta(config)
    if math.isinf(mu):
        note += "; infinite: an error is used without noise"
    return [Epsilon(with_sampler_error(config, accountant(mu, draws, q, delta)), kind="label",
                    variant=variant, relation=RELATION, sampler=config.sampler, delta=config.delta,
                    conversion=conversion, note=note)
            for variant, accountant, conversion in (("gdp", binomial_gdp_eps, "exact"),
                                                    ("rdp", binomial_rdp_eps, "classic"))]


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


def binomial_rdp_eps(mu: float, draws: int, q: float, delta: float) -> float:
    """Return an upper bound on `binomial_gdp_eps`, by the Renyi divergence of K releases and the classic conversion."""
    exponent = (ALPHAS - 1) * ALPHAS * (mu * mu) / 2  # alpha - 1 times the divergence of one release
    log_1_minus_q = math.log1p(-q) if q < 1 else -math.inf
    of_all = draws * np.logaddexp(log_1_minus_q, math.log(q) + exponent)  # draws log(1 - q + q e^exponent)
    return classic_conversion(ALPHAS, of_all / (ALPHAS - 1), delta)[0]
