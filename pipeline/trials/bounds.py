"""How long one record's contribution is under component clipping (Lee & Kifer 2020, section 4.2), from settings alone.

    stated_norm         C as Algorithm 1 with a tau_h for every layer has it; noise on the sum has standard deviation
                        z times this
    contribution_norm   the most that a record contributes to the sum; epsilon is of this

They are one number, but where a reading of the paper keeps its noise and bounds a contribution by more, or by less:

    error_clip: off         ||e|| <= sqrt 2, as of every softmax, in place of tau_e
    tau_h_rule: published   one tau_h, from gamma beta tau_e sqrt((1 + tau_h^2) L) = C, in all layers; the output layer,
                            whose delta is e, then takes tau_e sqrt(1 + min(tau_h, sup|phi| sqrt(n_{L-1}))^2)
"""

from __future__ import annotations

import math
from typing import Any

from pipeline.trials.choices import ACTIVATION_SLOPES, ACTIVATION_SUPREMA

LONGEST_ERROR = math.sqrt(2)  # of softmax(z) - onehot(y): (1 - p_y)^2 + sum of the others' p^2 <= 2


def delta_bounds(c: Any, error: float) -> tuple[float, ...]:
    """Bound on ||delta^l|| of the fully connected layers where ||e|| <= error: beta error sup|phi'|, in the output
    layer that of the error."""
    hidden = c.feedback_norm * error * ACTIVATION_SLOPES[c.activation]
    return (*[hidden] * len(c.hidden), error)


def error_bound(c: Any) -> float:
    """Bound on ||e||: tau_e or, where e is not clipped, the larger of it and sqrt 2."""
    return c.tau_e if c.error_clip else max(c.tau_e, LONGEST_ERROR)


def part_norm(c: Any) -> float:
    """C/sqrt(L): what a target C leaves to every layer."""
    return c.target_norm / math.sqrt(len(c.layers))


def conv_bounds(c: Any) -> tuple[float, ...]:
    """Bound on a record's part in each convolution, weights and bias together: C/sqrt(L)."""
    return (part_norm(c),) * (len(c.layers) - len(c.hidden) - 1)


def activation_bounds(c: Any) -> tuple[float, ...]:
    """tau_h of each fully connected layer; with a target C, from ||delta^l|| sqrt(1 + tau_h^2) <= C/sqrt(L) at ||e|| =
    tau_e: of every layer (`per_layer`), or of the hidden ones, for all (`published`)."""
    of_delta = delta_bounds(c, c.tau_e)
    if not c.target_norm:
        return (c.tau_h,) * len(of_delta)
    if c.tau_h_rule == "per_layer":
        return tuple(_longest_activation(c, bound) for bound in of_delta)
    tau_h = _longest_activation(c, of_delta[0])
    widest = ACTIVATION_SUPREMA[c.activation] * math.sqrt(c.hidden[-1]) if c.hidden else math.inf
    return (*[tau_h] * len(c.hidden), min(tau_h, widest))


def _longest_activation(c: Any, of_delta: float) -> float:
    return math.sqrt((part_norm(c) / of_delta) ** 2 - 1)


def least_target_norm(c: Any) -> float:
    """What C/sqrt(L) must exceed in the layer whose delta is longest, times sqrt(L), so that it has a tau_h > 0."""
    of_delta = delta_bounds(c, c.tau_e)
    return (max(of_delta) if c.tau_h_rule == "per_layer" else of_delta[0]) * math.sqrt(len(c.layers))


def fills_parts(c: Any) -> bool:
    """Whether a record's part in each layer is scaled to exactly C/sqrt(L) (`bounding: scale`)."""
    return c.bounding == "scale" and c.target_norm > 0


def stated_norm(c: Any) -> float:
    """The target C, or sqrt(sum_l ||delta^l||^2 (1 + tau_h^2)) at ||e|| = tau_e."""
    return c.target_norm or math.sqrt(sum(bound**2 for bound in delta_bounds(c, c.tau_e)) * (1 + c.tau_h**2))


def contribution_norm(c: Any) -> float:
    """sqrt(sum of the squared bounds on a record's parts): (C/sqrt(L))^2 of a convolution, ||delta^l||^2 (1 +
    tau_h^2) of a fully connected layer."""
    as_stated = c.error_clip and (c.tau_h_rule == "per_layer" or not c.target_norm)
    if as_stated or fills_parts(c):
        return stated_norm(c)
    dense = zip(delta_bounds(c, error_bound(c)), activation_bounds(c), strict=True)
    return math.sqrt(sum(part**2 for part in conv_bounds(c)) + sum(d**2 * (1 + h**2) for d, h in dense))


def excess(c: Any) -> float:
    """The most that a record contributes, over the norm by which its noise is measured: 1 but for readings of Lee &
    Kifer that keep their noise and another bound."""
    return contribution_norm(c) / stated_norm(c) if c.mechanism == "component" else 1.0
