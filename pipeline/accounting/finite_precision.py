"""The cost of finite precision for a secure trial: a thousandth of its delta and a little noise on signals and counts.

The release is gamma (K + R): K is a vector of integers, and R is rounded Gaussian noise of standard deviation
sigma/gamma. K is an integer vector, so rounding the noise is post-processing of a Gaussian mechanism on gamma K. With
arithmetic `integer`, gamma K is the sum of the contributions, with sensitivity C. Optical signals and counts are
rounded to the grid, K = round(S/gamma), so their sensitivity is at most

    C' = C (1 + eta) = C (1 + eta_1) + gamma sqrt(d),   sigma = z C',   gamma = sigma/2^40

eta_1 is the float64 error of a signal that was clipped to C. docs/privacy.md, section 9, has the proof.
"""

from __future__ import annotations

import math

from pipeline.trials.config import TrialConfig
from pipeline.trials.shapes import n_parameters
from pipeline.trials.steps import GRID_BITS

STEPS_PER_SIGMA = 2**GRID_BITS  # standard deviation of `rounded_gaussian.draw`
TOTAL_VARIATION = 2.0**-256  # of one `rounded_gaussian.draw` from the rounded Gaussian
UNIT = 2.0**-53  # half a unit in the last place of float64
COARSEST = 2.0**-10  # largest gamma sqrt(d) over the sensitivity
DELTA_SHARE = 1e-3  # the noise sampler's share of delta


def optical_enlargement(config: TrialConfig) -> float:
    """Return eta of a calibrated photonic trial: optical signals get noise sigma (1 + eta) instead of sigma > 0."""
    width = sum(config.layer_sizes[1:])  # numbers in a signal
    clipped_sensitivity = 1 + (width + 16) * UNIT  # in units of tau_f: float64's error when a signal is clipped to it
    return _enlargement(clipped_sensitivity, config.sigma / config.tau_f, width, name="sigma/tau_f")


def count_enlargement(noise: float) -> float:
    """Return eta of one count: noise of standard deviation `noise` must be 1 + eta times as large on the grid."""
    return _enlargement(1.0, noise, d=1, name="the noise of a count")


def _enlargement(sensitivity: float, noise: float, d: int, name: str) -> float:  # both over C, the numbers' bound
    """Return eta: rounding d numbers to the noise's grid makes their sensitivity C (1 + eta)."""
    rounding = noise * math.sqrt(d) / STEPS_PER_SIGMA
    if rounding > COARSEST:
        max_noise = COARSEST * STEPS_PER_SIGMA / math.sqrt(d)
        raise ValueError(f"{name}: must be at most {max_noise:.3g} with noise 'secure', whose grid of {d} numbers "
                         f"would be too coarse, got {noise:g}")
    return sensitivity / (1 - rounding) * (1 + 2.0**-40) - 1  # the last factor covers rounding here and in gamma


def accounted_delta(config: TrialConfig) -> float:
    """Return the accountants' part of delta; the noise sampler of a secure trial has the rest."""
    return config.delta * (1 - DELTA_SHARE) if config.secure else config.delta


def within_delta(config: TrialConfig, epsilon: float, runs: float = 1) -> bool:
    """Whether the noise sampler's error over all draws of `runs` runs is within its share of delta, `DELTA_SHARE`."""
    if not config.secure:
        return True
    draws_per_step = n_parameters(config.layers)  # of noise on the update
    if config.parts.mechanism.optical:
        draws_per_step += config.batch_size * sum(config.layer_sizes[1:])  # on signals, at most
    draws = config.epochs * (config.steps_per_epoch * draws_per_step + 1)  # and on a validation count per epoch
    # log of (1 + e^epsilon) times the total variation from exact noise; e^epsilon may overflow
    log_cost = math.log(runs * draws * TOTAL_VARIATION) + math.log1p(math.exp(-epsilon)) + epsilon
    return log_cost <= math.log(DELTA_SHARE * config.delta)


def with_sampler_error(config: TrialConfig, epsilon: float) -> float:
    """Return `epsilon` of a run, or of its first epochs; infinity if the noise sampler exceeds its share of delta."""
    return epsilon if within_delta(config, epsilon) else math.inf
