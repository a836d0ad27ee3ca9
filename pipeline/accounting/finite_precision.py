"""What finite precision costs a secure trial: a thousandth of its delta and, on signals and counts, a little noise.

What is released is gamma (K + R), with integers K, and R, rounded Gaussian noise of standard deviation sigma/gamma. K
is a vector of integers, so rounding the noise is post-processing of a Gaussian mechanism on gamma K. With arithmetic
`integer` gamma K is the sum of the contributions, whose sensitivity is C. Optical signals and counts are rounded to the
grid, K = round(S/gamma), so that their sensitivity is at most

    C' = C (1 + eta) = C (1 + eta_1) + gamma sqrt(d),   sigma = z C',   gamma = sigma/2^40

eta_1 is what float64 adds to a signal that was shortened to C. docs/privacy.md, section 9, has the proof.
"""

from __future__ import annotations

import math

from pipeline.trials.config import TrialConfig
from pipeline.trials.shapes import n_parameters
from pipeline.trials.steps import GRID_BITS

STEPS_PER_SIGMA = 2**GRID_BITS  # of `rounded_gaussian.draw`: its standard deviation
TOTAL_VARIATION = 2.0**-256  # of `rounded_gaussian.draw`: of one draw, from the rounded Gaussian
UNIT = 2.0**-53  # half a unit in the last place of float64
COARSEST = 2.0**-10  # of gamma sqrt(d), over the sensitivity
DELTA_SHARE = 1e-3  # of delta, which the sampler of the noise may take


def optical_enlargement(config: TrialConfig) -> float:
    """eta of the photonic mechanism: the noise on every optical signal is sigma (1 + eta), in place of
    sigma on signals of norm tau_f.

    Args:
        config: with its sigma > 0, as `certified.with_noise` gives it.
    """
    width = sum(config.layer_sizes[1:])
    return _on_the_grid(1 + (width + 16) * UNIT, config.sigma / config.tau_f, width, "sigma/tau_f")


def count_enlargement(noise: float) -> float:
    """eta of one count to which noise of this standard deviation is added."""
    return _on_the_grid(1.0, noise, 1, "the noise of a count")


def _on_the_grid(exact: float, noise: float, d: int, name: str) -> float:
    """eta, where `exact` (1 + eta of all that is not the grid) C is the sensitivity before rounding d numbers to it."""
    rounding = noise * math.sqrt(d) / STEPS_PER_SIGMA
    if rounding > COARSEST:
        most = COARSEST * STEPS_PER_SIGMA / math.sqrt(d)
        raise ValueError(f"{name}: must be at most {most:.3g} with noise 'secure', whose grid of {d} numbers would be "
                         f"too coarse, got {noise:g}")
    return exact / (1 - rounding) * (1 + 2.0**-40) - 1  # the last factor is for rounding in here and in gamma


def draws(config: TrialConfig) -> int:
    """Most draws of noise of a whole run."""
    batches = config.epochs * config.steps_per_epoch
    optical = config.batch_size * sum(config.layer_sizes[1:]) if config.parts.mechanism.optical else 0
    return batches * (n_parameters(config.layers) + optical) + config.epochs


def accounted_delta(config: TrialConfig) -> float:
    """The delta that accountants may use; the rest of a secure trial's delta is for the sampler of its noise."""
    return config.delta * (1 - DELTA_SHARE) if config.secure else config.delta


def within_delta(config: TrialConfig, epsilon: float, runs: float = 1) -> bool:
    """Whether the sampler's share of delta covers its total variation tau: (1 + e^epsilon) tau, over all draws of as
    many runs."""
    if not config.secure:
        return True
    log_cost = math.log(runs * draws(config) * TOTAL_VARIATION) + math.log1p(math.exp(-epsilon)) + epsilon
    return log_cost <= math.log(DELTA_SHARE * config.delta)
