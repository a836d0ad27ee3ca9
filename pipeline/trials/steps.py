"""Steps of integer arithmetic: the real value of an integer 1, in every layer of a trial (no torch).

"Step" means this value here, not a step of training.

    H = round(h/b)       input of a layer, at most 127 in size
    D = round(delta/s)   learning signal of a layer before it is bounded, at most 2^14
    K = trunc(c s D/a)   the learning signal, bounded by the mechanism's factor c, at most 2^13

b and s are powers of two. a is a power of two times the standard deviation of the noise, or times C without noise. All
steps follow from settings alone. A step that is too coarse or too fine for the records costs accuracy, not privacy:
numbers out of range are clamped, which makes no contribution longer.

A mechanism that bounds each factor (`is_fine`) has one digit more: |H| <= 2^14, |D| <= 2^17 and |K| <= 2^20. Its a
follows from the bound on delta, which no K exceeds, so that none is clamped. Outputs of a relu have no bound: a
record's are divided by a power of two, by which its K is multiplied.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pipeline.trials.condition import Trial
from pipeline.trials.feedback import width_factor
from pipeline.trials.network import ACTIVATION_SLOPES

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
FINE_HIDDEN_STEP = 2.0**-13  # b for fine outputs of all functions
TYPICAL_ACTIVATION = LARGEST_FIRST / 2 * 2.0**-7  # root mean square of a hidden layer's outputs
PEAK_OVER_RMS = 8  # a component of an n-vector of norm r is clamped at 8 r/sqrt(n)
LARGEST_ERROR = math.sqrt(2)  # largest ||e||, e = p - q with distributions p and q
BACK_OVER_BOUND = 8  # a component of a back-propagated signal is clamped at 8 times the bound on the signal's norm


class Largest(NamedTuple):
    """The largest sizes of the integers of a trial."""

    input: int  # of H
    signal: int  # of D, whose sums of squares over MAX_TERMS numbers are exact in float64
    contribution: int  # of K


ONE_BOUND = Largest(LARGEST_FIRST, LARGEST_SIGNAL, LARGEST)
OF_FACTORS = Largest(LARGEST_SIGNAL, 2**17, BASE * LARGEST)


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


def is_fine(trial: Trial) -> bool:
    """Whether integers have one digit more, as the mechanism bounds each factor of a contribution by itself."""
    return trial.parts.mechanism.factor_bounds(trial) is not None


def largest_integers(trial: Trial) -> Largest:
    """Return the largest sizes of H, D and K."""
    return OF_FACTORS if is_fine(trial) else ONE_BOUND


def input_step(trial: Trial) -> float:
    """Return b of the first layer: the real value of an integer 1 in its inputs, from `input_norm` or feature size."""
    largest = trial.parts.features.scale(trial)
    if trial.input_norm:
        largest = min(trial.input_norm, PEAK_OVER_RMS * trial.input_norm / math.sqrt(trial.layer_sizes[0]))
    return power_of_two(largest / largest_integers(trial).input)


def hidden_step(trial: Trial) -> float:
    """Return b of the layers above the first: the real value of an integer 1 in a hidden layer's outputs."""
    return FINE_HIDDEN_STEP if is_fine(trial) else HIDDEN_STEPS[trial.activation]


def input_steps(trial: Trial) -> tuple[float, ...]:
    """Return b by layer."""
    return (input_step(trial), *[hidden_step(trial)] * len(trial.hidden))


def signal_steps(trial: Trial) -> tuple[float, ...]:
    """Return s by layer: the real value of an integer 1 in the learning signal, before `denoise` projects that."""
    output_step = 2.0 ** -(ERROR_BITS + 1)
    if is_fine(trial):
        return (*[power_of_two(_signal_reach(trial) / OF_FACTORS.signal)] * len(trial.hidden), output_step)
    if trial.parts.feedback.exact:
        return (*[BACK_STEP] * len(trial.hidden), output_step)
    hidden_steps = []
    for width in trial.hidden:
        # typical size of one component of B e, with B the feedback matrix and e the error at the output
        entry = trial.feedback_std * width_factor(trial, width)
        size = trial.parts.mechanism.feedback_norm / math.sqrt(width) or entry
        if trial.sigma:  # B e is clipped to norm tau_f, here taken over all hidden layers together, then gets noise
            size = min(size, trial.tau_f / math.sqrt(sum(trial.hidden))) + trial.sigma
        hidden_steps.append(power_of_two(PEAK_OVER_RMS * size / LARGEST_SIGNAL))
    return (*hidden_steps, output_step)


def _signal_reach(trial: Trial) -> float:
    """Return the largest size of a hidden layer's learning signals, component by component, where factors are bounded.

    It is (min(||B|| ||e||, tau_f) + 8 sigma) sup|phi'|, with tau_f and sigma of an OPU's light: noise is taken to be
    below 8 sigma. A back-propagated signal has no bound; it is taken to be at most 8 ||B|| ||e|| long.
    """
    slope, feedback = ACTIVATION_SLOPES[trial.activation], trial.parts.feedback
    # A ternary error has entries of size 1 at most, one for each class.
    error = math.sqrt(trial.layer_sizes[-1]) if feedback.ternary else LARGEST_ERROR
    reach = trial.parts.mechanism.feedback_norm * error
    if feedback.exact:
        reach *= BACK_OVER_BOUND
    if trial.sigma:
        reach = min(reach, trial.tau_f) + PEAK_OVER_RMS * trial.sigma
    return reach * slope


def steps(trial: Trial, bound: float, deviation: float) -> list[Steps]:
    """Return b, s and a (see the module) of every layer, for contributions of norm <= `bound`.

    `deviation` is that of the noise on their sum, in the unit of `bound`, which a has too; 0 without noise.
    """
    unit = deviation or bound  # a contribution's step is a power of two times the noise, so that noise lies on its grid
    *hidden_steps, output_step = signal_steps(trial)
    if trial.denoise and not is_fine(trial):  # a fine s is one for all that the signal's norm admits
        # Hidden signals are in coordinates of the feedback space, one for each class.
        n_classes = trial.layer_sizes[-1]
        hidden_steps = [s * power_of_two(math.sqrt(width / n_classes))
                        for s, width in zip(hidden_steps, trial.hidden, strict=True)]
    found = []
    for b, s, reach in zip(input_steps(trial), [*hidden_steps, output_step], _reaches(trial), strict=True):
        a = unit * power_of_two(bound * reach / (largest_integers(trial).contribution * unit))
        if is_fine(trial):  # no finer than the noise's grid, at which rounding is lost in noise
            a = max(a, unit * 2.0**-GRID_BITS / min(b, 1.0))
        found.append(Steps(b, s, a))
    return found


def _reaches(trial: Trial) -> list[float]:
    """Return the largest a K of every layer that is not clamped, over C: the size of a bounded signal's component."""
    if bounds := trial.parts.mechanism.factor_bounds(trial):
        # H keeps its length, so that the signal is shortened in its place, by tau_h/||h||. The signal is multiplied by
        # 2^k where outputs of a relu are divided by it; ||h|| is then at least 2^(k-1) times the largest H that fits.
        least_norm = FINE_HIDDEN_STEP * OF_FACTORS.input / 2 if trial.activation == "relu" else math.inf
        (first, _), *above = bounds
        return [first, *(signal * max(1.0, tau_h / least_norm) for signal, tau_h in above)]
    # The whole contribution is clipped to C, and so the signal to C/||(h, 1)||, h being the typical input of a layer.
    sizes = trial.layer_sizes
    input_norm = trial.input_norm or trial.parts.features.scale(trial) / 2 * math.sqrt(sizes[0])
    norms = (input_norm, *(TYPICAL_ACTIVATION * math.sqrt(n) for n in sizes[1:-1]))
    widths = [sizes[-1]] * len(norms) if trial.denoise else sizes[1:]
    return [1 / math.hypot(norm, 1) * min(1.0, PEAK_OVER_RMS / math.sqrt(width))
            for norm, width in zip(norms, widths, strict=True)]


def grid_exponent(step: Steps, deviation: float) -> int:
    """Return j with a b = 2^j sigma/2^40: an integer 1 of a layer's weight contributions, in steps of the noise's grid.

    An integer 1 of bias contributions, a, is 2^j/b grid steps. `deviation` is sigma > 0, for which `steps` made the
    layer's steps.
    """
    # a/sigma and b are powers of two, so that only the logarithm's error is rounded
    return round(math.log2(step.contribution * step.input / deviation)) + GRID_BITS


def largest_noise(trial: Trial) -> float:
    """Return the largest noise, over a record's largest contribution, whose grid divides every layer's a b and a.

    The grid of noise z is z/2^40. Fine contributions become as coarse as it, down to one digit.
    """
    least = largest_integers(trial).contribution // BASE**2 if is_fine(trial) else LARGEST  # largest K
    return min(power_of_two(reach / least) * min(b, 1.0) * 2.0**GRID_BITS
               for b, reach in zip(input_steps(trial), _reaches(trial), strict=True))
