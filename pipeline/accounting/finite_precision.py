"""What finite precision costs a secure trial: noise (1 + eta) times as large, and a thousandth of its delta.

What is released is gamma (K + R), with integers K = round(S/gamma) of the sum S that was computed, and R, rounded
Gaussian noise of standard deviation sigma/gamma. K is a vector of integers, so rounding the noise is post-processing of
a Gaussian mechanism on gamma K, whose sensitivity in place of C is at most

    C' = C (1 + eta_1) + 2 N C eta_1 + 2 E + gamma sqrt(d),   sigma = z C',   gamma = sigma/2^40.

eta_1 is what rounding may add to a contribution that was shortened to C, 2 N C eta_1 by how much those of the N other
records may be rounded otherwise, E how far the computed sum may be from the sum of the contributions, and gamma sqrt(d)
what rounding S to the grid may add. docs/privacy.md, section 9, has the proof.
"""

from __future__ import annotations

import math

from pipeline.trials.config import TrialConfig
from pipeline.trials.mechanism import rounding_of_norms
from pipeline.trials.shapes import ConvShape, n_parameters

STEPS_PER_SIGMA = 2**40  # of `rounded_gaussian.draw`: its standard deviation
TOTAL_VARIATION = 2.0**-256  # of `rounded_gaussian.draw`: of one draw, from the rounded Gaussian
UNIT = 2.0**-53  # half a unit in the last place of float64
FORMED = 2.0**-19  # of the norm of a record's part in a convolution (`layers.Conv.squared_norms`, in float64)
COARSEST = 2.0**-10  # of gamma sqrt(d), over the sensitivity
DELTA_SHARE = 1e-3  # of delta, which the sampler of the noise may take


def enlargement(config: TrialConfig) -> float:
    """eta of a trial with a Gaussian mechanism: the sensitivity is C (1 + eta) under add/remove, twice that under
    replace-one, and the noise z C (1 + eta).

    Args:
        config: with its noise multiplier z > 0, as `certified.with_noise` gives it.

    Raises:
        ValueError: where z is so large that the grid of the noise is too coarse.
    """
    records = config.split_sizes[0]  # at least the rows of any batch
    widest = max(n_parameters([layer]) if isinstance(layer, ConvShape) else layer.n_in + layer.n_out
                 for layer in config.layers)
    rounding = config.parts.mechanism.rounding or rounding_of_norms  # of stored trials that stated none
    contribution = rounding(widest, len(config.layers))
    others = 2 * records * contribution
    if any(isinstance(layer, ConvShape) for layer in config.layers):
        contribution += FORMED
    total = 2 * records * (records + 4) * UNIT
    noise = config.noise_multiplier / config.parts.mechanism.excess(config)
    return _on_the_grid((1 + contribution + others) * (1 + total), noise, n_parameters(config.layers),
                        "noise_multiplier")


def optical_enlargement(config: TrialConfig) -> float:
    """As `enlargement`, of the photonic mechanism: the noise on every optical signal is sigma (1 + eta), in place of
    sigma on signals of norm tau_f.

    Args:
        config: with its sigma > 0, as `certified.with_noise` gives it.
    """
    width = sum(config.layer_sizes[1:])
    return _on_the_grid(1 + (width + 16) * UNIT, config.sigma / config.tau_f, width, "sigma/tau_f")


def count_enlargement(noise: float) -> float:
    """As `enlargement`, of one count to which noise of this standard deviation is added."""
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
