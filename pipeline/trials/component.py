"""Component clipping, and the largest norm of a record's contribution under it (Lee & Kifer 2020, section 4.2).

    target_norm         the setting: C of Algorithm 1, of which each of L layers gets C/sqrt(L); 0 leaves C to tau_h
    stated_norm         target_norm, or else C from tau_h; noise on the sum has standard deviation z times this norm
    contribution_norm   the largest contribution of a record to the sum; epsilon follows from it

The last two are equal, except for readings of the paper that keep its noise but bound a contribution differently:

    error_clip: off         ||e|| <= sqrt 2, as for every softmax, instead of tau_e
    tau_h_rule: published   one tau_h for all layers, from gamma beta tau_e sqrt((1 + tau_h^2) L) = C; the output
                            layer, with delta = e, then contributes tau_e sqrt(1 + min(tau_h, sup|phi| sqrt(n_{L-1}))^2)
"""

from __future__ import annotations

import math

from pipeline.trials.condition import Trial, chosen, positive, zero
from pipeline.trials.fields import refuse
from pipeline.trials.mechanism import Gaussian
from pipeline.trials.network import ACTIVATION_SLOPES, ACTIVATION_SUPREMA
from pipeline.trials.part import again, part, setting

MAX_ERROR_NORM = math.sqrt(2)  # ||softmax(z) - onehot(y)||^2 = (1 - p_y)^2 + sum of the other p^2 <= 2
_CLIPS = chosen("bounding", "clip")


@part("mechanism", "component")
class Component(Gaussian):
    """Each factor of a record's contribution is clipped separately (Lee & Kifer 2020, Algorithm 1)."""

    not_integer = ""
    works = "pipeline.learning.mechanisms.gaussian:Component"
    instead = {"sigma": "noise_multiplier or target_epsilon", "clipping_norm": "target_norm", "tau_f": "tau_e"}

    tau_h: float = again("tau_h", zero("target_norm"))
    tau_e: float = setting(
        0.1, "component clipping: bound on ||e||", low=0, open_low=True, per_trial=True)
    feedback_norm: float = setting(
        0.9, "component clipping: beta, spectral norm of the feedback matrix of every layer", low=0, open_low=True)
    target_norm: float = setting(
        0.0, "component clipping: C, bound on the norm of a record's contribution, of which every layer gets "
        "C/sqrt(L); sets tau_h of every layer, and clips each record's part in a convolution. 0 leaves C to tau_h",
        low=0, per_trial=True, elide=True)
    bounding: str = setting(
        "clip", "component clipping with target_norm: a record's part in a layer is shortened where it exceeds "
        "C/sqrt(L) (`clip`), or made just as long as that, however short it was (`scale`)", choices=("clip", "scale"),
        needs=[positive("target_norm")], elide=True)
    error_clip: bool = setting(
        True, "component clipping: e is clipped to tau_e; `off` leaves e and the noise as they are, and epsilon is of "
        "||e|| <= sqrt 2", needs=[_CLIPS], elide=True)
    tau_h_rule: str = setting(
        "per_layer", "component clipping with target_norm: tau_h of every layer such that it gets C/sqrt(L), or one "
        "for all by the formula of Lee and Kifer, gamma beta tau_e sqrt((1 + tau_h^2) L) = C (`published`), which the "
        "output layer may exceed; epsilon is of what it comes to", choices=("per_layer", "published"),
        needs=[positive("target_norm")], elide=True)
    conv_error: str = setting(
        "clipped", "component clipping of hybrid: convolutions learn from the error that was clipped to tau_e, or from "
        "e itself (`raw`); what a record contributes to them is clipped either way", choices=("clipped", "raw"),
        needs=[chosen("algorithm", "hybrid"), _CLIPS, chosen("error_clip", True)], elide=True)
    conv_clip: str = setting(
        "together", "component clipping: weights and bias of a convolution are clipped to C/sqrt(L) together, or each "
        "to C/sqrt(2 L) (`apart`), which leaves C as it is", choices=("together", "apart"),
        needs=[chosen("network", "convnet"), _CLIPS], elide=True)

    @property
    def update_norm(self) -> float:
        """Return the setting `target_norm`; 0 where C is left to tau_h."""
        return self.target_norm

    def stated_norm(self, trial: Trial) -> float:  # the function below
        return stated_norm(trial)

    def sensitivity_ratio(self, trial: Trial) -> float:
        """Return `contribution_norm` over `stated_norm`: 1, but for readings that bound a contribution differently."""
        return sensitivity_ratio(trial)

    def factor_bounds(self, trial: Trial) -> list[tuple[float, float]]:
        """Return (bound on ||delta^l||/`contribution_norm`, bound on ||h^{l-1}||) of every fully connected layer l.

        With `bounding: scale`, ||delta^l|| sqrt(1 + ||h^{l-1}||^2) is `layer_bound`, so ||delta^l|| is at most that.
        """
        activations = activation_bounds(trial)
        deltas = delta_bounds(trial, error_bound(trial))
        if scales_to_bound(trial):
            deltas = (layer_bound(trial),) * len(activations)
        norm = contribution_norm(trial)
        return [(delta / norm, activation) for delta, activation in zip(deltas, activations, strict=True)]

    def check(self, trial: Trial) -> None:
        """Refuse a matrix of a device, whose norm cannot be set, and target norms and noise that are too small."""
        refuse(trial.parts.projector.hardware, "mechanism", "component clipping needs the norm of the feedback matrix, "
               "which is not known of a real OPU", "projector 'opu_hardware'", "use 'per_example'")
        self._check_target_norm(trial)
        # Accountants divide the noise multiplier by this ratio, and the result must reach the sampler's minimum. Zero
        # noise is accepted: such a trial has no epsilon.
        try:
            ratio, _ = sensitivity_ratio(trial), activation_bounds(trial)
        except ArithmeticError:  # a square is 0 or infinite
            ratio = math.nan
        refuse(math.isnan(ratio), "tau_e", "must give contributions whose squared norms are numbers", f"{self.tau_e!r} "
               f"with feedback_norm {self.feedback_norm!r}, tau_h {self.tau_h!r} and target_norm {self.target_norm!r}",
               "use norms between 1e-50 and 1e50")
        min_multiplier = trial.parts.sampler.min_noise * ratio
        refuse(ratio > 1 and 0 < self.noise_multiplier < min_multiplier, "noise_multiplier",
               f"must be at least {min_multiplier:.3g} with sampler '{trial.sampler}' where a record contributes up to "
               f"{ratio:.4g} times the norm that noise is measured by (error_clip, tau_h_rule), or nothing is "
               "accounted for", self.noise_multiplier)
        super().check(trial)

    def _check_target_norm(self, trial: Trial) -> None:
        """Refuse convolutions without a target norm, and a target norm too small for any tau_h > 0."""
        if not self.target_norm:
            refuse(trial.parts.network.convolutional, "target_norm", "must be > 0 with mechanism 'component' and "
                   "network 'convnet', as the part of a record in a convolution is clipped to target_norm/sqrt(L)", 0.0)
            return
        bounds, n_layers = delta_bounds(trial, trial.tau_e), len(trial.layers)
        deciding = max(bounds) if trial.tau_h_rule == "per_layer" else bounds[0]
        infimum = deciding * math.sqrt(n_layers)  # a layer's tau_h solves delta sqrt(1 + tau_h^2) = C/sqrt(L)
        refuse(self.target_norm <= infimum, "target_norm", f"must be > {infimum:.4g}, which ||delta|| <= "
               f"{infimum / n_layers**0.5:.4g} in each of {n_layers} layers takes without any activation (lower tau_e "
               "or feedback_norm to lower it)", self.target_norm)


def delta_bounds(trial: Trial, error: float) -> tuple[float, ...]:
    """Return the bound on the learning signal's norm ||delta^l|| in each fully connected layer, if ||e|| <= `error`."""
    hidden = trial.feedback_norm * error * ACTIVATION_SLOPES[trial.activation]  # beta ||e|| sup|phi'|
    return (*[hidden] * len(trial.hidden), error)


def error_bound(trial: Trial) -> float:
    """Return the bound on ||e||: tau_e, or max(tau_e, sqrt 2) if e is not clipped."""
    return trial.tau_e if trial.error_clip else max(trial.tau_e, MAX_ERROR_NORM)


def layer_bound(trial: Trial) -> float:
    """Return each layer's share of a target norm, `target_norm`/sqrt(L), with convolutions among the L layers."""
    return trial.target_norm / math.sqrt(len(trial.layers))


def conv_bounds(trial: Trial) -> tuple[float, ...]:
    """Return `layer_bound` for each convolution: the bound on a record's part in it, weights and bias together."""
    n_dense = len(trial.hidden) + 1  # fully connected layers: hidden ones and the output layer
    return (layer_bound(trial),) * (len(trial.layers) - n_dense)


def activation_bounds(trial: Trial) -> tuple[float, ...]:
    """Return the bound tau_h on the norm of the activations that enter each fully connected layer.

    It is the setting `tau_h`; with a target norm it solves ||delta^l|| sqrt(1 + tau_h^2) = `layer_bound`, with delta^l
    the learning signal at ||e|| = tau_e, for every layer or (`published`) for the first alone.
    """
    bounds_on_delta = delta_bounds(trial, trial.tau_e)
    if not trial.target_norm:
        return (trial.tau_h,) * len(bounds_on_delta)
    share = layer_bound(trial)
    if trial.tau_h_rule == "per_layer":
        return tuple(math.sqrt((share / bound) ** 2 - 1) for bound in bounds_on_delta)
    tau_h = math.sqrt((share / bounds_on_delta[0]) ** 2 - 1)
    # Bounded activations may keep the output layer's inputs shorter; features have no such bound.
    largest_norm = ACTIVATION_SUPREMA[trial.activation] * math.sqrt(trial.hidden[-1]) if trial.hidden else math.inf
    return (*[tau_h] * len(trial.hidden), min(tau_h, largest_norm))


def scales_to_bound(trial: Trial) -> bool:
    """Whether a record's part in each layer is scaled to exactly `layer_bound` (`bounding: scale`)."""
    return trial.bounding == "scale" and trial.target_norm > 0


def stated_norm(trial: Trial) -> float:
    """Return the norm to which noise is scaled: `target_norm`, or else the largest contribution at ||e|| <= tau_e."""
    if trial.target_norm:
        return trial.target_norm
    sum_of_squares = sum(bound**2 for bound in delta_bounds(trial, trial.tau_e))
    return math.sqrt(sum_of_squares * (1 + trial.tau_h**2))


def contribution_norm(trial: Trial) -> float:
    """Return the bound on the norm of a record's contribution: the root of the summed squared bounds on its layers."""
    equals_stated = trial.error_clip and (trial.tau_h_rule == "per_layer" or not trial.target_norm)
    if equals_stated or scales_to_bound(trial):
        return stated_norm(trial)
    of_convolutions = sum(bound**2 for bound in conv_bounds(trial))
    bounds = zip(delta_bounds(trial, error_bound(trial)), activation_bounds(trial), strict=True)
    of_dense_layers = sum(delta**2 * (1 + tau_h**2) for delta, tau_h in bounds)  # 1 is for the bias
    return math.sqrt(of_convolutions + of_dense_layers)


def sensitivity_ratio(trial: Trial) -> float:
    """Return the largest contribution of a record over the norm to which its noise is scaled."""
    return contribution_norm(trial) / stated_norm(trial)
