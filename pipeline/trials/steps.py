"""Steps of integer arithmetic: the real value of an integer 1, in every layer of a trial (no torch).

"Step" means this value here, not a step of training.

    H = round(h/b)       input of a layer, at most 127 in size
    D = round(delta/s)   learning signal of a layer before it is bounded, at most 2^14
    K = trunc(c s D/a)   the learning signal, bounded by the mechanism's factor c, at most 2^13

b and s are powers of two. a is a power of two times the standard deviation of the noise, or times C without noise. All
steps follow from settings alone. A step that is too coarse or too fine for the records costs accuracy, not privacy:
numbers out of range are clamped, which makes no contribution longer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pipeline.trials.condition import Trial

LARGEST_FIRST, LARGEST_SECOND = 127, 64  # largest entries of the two factors of an 8-bit product
MAX_TERMS = (2**31 - 1) // (LARGEST_FIRST * LARGEST_SECOND)  # such products that fit into a 32-bit sum
BASE = 128  # two 8-bit digits make a 14-bit number
LARGEST = BASE * LARGEST_SECOND  # largest weight and contribution; both have two such digits
LARGEST_SIGNAL = BASE * LARGEST_FIRST  # largest D; a back-propagated D is a first factor
GRID_BITS = 40  # the noise is a multiple of its standard deviation over 2^40
ERROR_BITS = 12  # e is a multiple of 2^-12
EXPONENTIAL_BITS = 40  # of an exponential in the softmax
MOST_CLASSES = 2 ** (53 - EXPONENTIAL_BITS)  # their sum is exact in float64
BACK_STEP = 2.0**-13  # step of signals that W^T multiplies
HIDDEN_STEPS = {"tanh": 2.0**-7, "sigmoid": 2.0**-7, "relu": 2.0**-5}  # b for a hidden layer's outputs
TYPICAL_ACTIVATION = LARGEST_FIRST / 2 * 2.0**-7  # root mean square of a hidden layer's outputs
PEAK_OVER_RMS = 8  # a component of an n-vector of norm r is clamped at 8 r/sqrt(n)


class Steps(NamedTuple):
    """The steps of one layer; with `denoise`, `signal` is in coordinates of the feedback space."""

    input: float  # b
    signal: float  # s
    contribution: float  # a


def power_of_two(x: float) -> float:
    """Return the smallest power of two >= x > 0."""
    mantissa, exponent = math.frexp(x)  # x = mantissa 2^exponent, 0.5 <= mantissa < 1
    is_power = mantissa == 0.5
    return math.ldexp(1.0, exponent - 1 if is_power else exponent)


def input_step(trial: Trial) -> float:
    """Return b of the first layer: the real value of an integer 1 in its inputs, from `input_norm` or feature size."""
    largest = trial.parts.features.scale(trial)
    if trial.input_norm:
        largest = min(trial.input_norm, PEAK_OVER_RMS * trial.input_norm / math.sqrt(trial.layer_sizes[0]))
    return power_of_two(largest / LARGEST_FIRST)


def signal_steps(trial: Trial) -> tuple[float, ...]:
    """Return s by layer: the real value of an integer 1 in the learning signal, before `denoise` projects that."""
    output_step = 2.0 ** -(ERROR_BITS + 1)
    if trial.parts.feedback.exact:
        return (*[BACK_STEP] * len(trial.hidden), output_step)
    hidden_steps = []
    for width in trial.hidden:
        # typical size of one component of B e, with B the feedback matrix and e the error at the output
        size = trial.parts.mechanism.feedback_norm / math.sqrt(width) or trial.feedback_std
        if trial.sigma:  # B e is clipped to norm tau_f, here taken over all hidden layers together, then gets noise
            size = min(size, trial.tau_f / math.sqrt(sum(trial.hidden))) + trial.sigma
        hidden_steps.append(power_of_two(PEAK_OVER_RMS * size / LARGEST_SIGNAL))
    return (*hidden_steps, output_step)


def steps(trial: Trial, bound: float, deviation: float) -> list[Steps]:
    """Return b, s and a (see the module) of every layer, for contributions of norm <= `bound`.

    `deviation` is that of the noise on their sum, in the unit of `bound`, which a has too; 0 without noise.
    """
    sizes = trial.layer_sizes
    unit = deviation or bound  # a contribution's step is a power of two times the noise, so that noise lies on its grid
    input_steps = (input_step(trial), *[HIDDEN_STEPS[trial.activation]] * (len(sizes) - 2))
    input_norm = trial.input_norm or trial.parts.features.scale(trial) / 2 * math.sqrt(sizes[0])
    # typical norms of the inputs h of every layer
    typical_norms = (input_norm, *(TYPICAL_ACTIVATION * math.sqrt(n) for n in sizes[1:-1]))
    bounds = trial.parts.mechanism.factor_bounds(trial)
    steps_by_layer = []
    for layer, (input_step_, signal_step, norm) in enumerate(
            zip(input_steps, signal_steps(trial), typical_norms, strict=True), start=1):
        width, is_hidden = sizes[layer], layer < len(sizes) - 1
        if trial.denoise and is_hidden:  # the signal is in coordinates of the feedback space, one for each class
            signal_step *= power_of_two(math.sqrt(width / sizes[-1]))
            width = sizes[-1]
        # Bounds on the norms of a record's signal, over `bound`, and of its input h. Without separate bounds the whole
        # contribution is clipped to `bound`, and so the signal to that over ||(h, 1)||.
        signal_bound, input_bound = bounds[layer - 1] if bounds else (1 / math.hypot(norm, 1), math.inf)
        # H keeps its length: where ||h|| exceeds its bound, the signal is shortened in its place.
        largest_norm = bound * signal_bound * min(1.0, input_bound / norm)
        largest_component = largest_norm * min(1.0, PEAK_OVER_RMS / math.sqrt(width))
        contribution_step = unit * power_of_two(largest_component / (LARGEST * unit))
        steps_by_layer.append(Steps(input_step_, signal_step, contribution_step))
    return steps_by_layer


def grid_exponent(step: Steps, deviation: float) -> int:
    """Return j with a b = 2^j sigma/2^40: an integer 1 of a layer's weight contributions, in steps of the noise's grid.

    An integer 1 of bias contributions, a, is 2^j/b grid steps. `deviation` is sigma > 0, for which `steps` made the
    layer's steps.
    """
    # a/sigma and b are powers of two, so that only the logarithm's error is rounded
    return round(math.log2(step.contribution * step.input / deviation)) + GRID_BITS


def largest_noise(trial: Trial) -> float:
    """Return the largest noise, over a record's largest contribution, whose grid divides every layer's a b and a."""
    # the grid of noise 1 is 1/2^40; a larger noise has a grid as many times as coarse
    return 2.0 ** min(grid_exponent(step, 1.0) - max(0, round(math.log2(step.input)))
                      for step in steps(trial, 1.0, 1.0))
