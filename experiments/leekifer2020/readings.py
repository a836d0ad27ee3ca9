"""Other readings of component clipping (Lee & Kifer 2020, Algorithm 1), as a mechanism of its own: `lee_kifer`.

    bounding scale    A record's part in each layer is scaled to exactly C/sqrt(L), zeros excepted. C stays.
    error_clip off    e is not clipped, so ||e|| <= sqrt 2, as for every softmax. tau_h and the noise z C stay. A record
                      may contribute up to C' > C, and epsilon is of noise z C at the sensitivity C'.
    conv_error raw    Convolutions of hybrid learn from e before its clip (Eq. 5); their part is clipped. C stays.

With the defaults it is `component`.
"""

import math

import torch

from pipeline.learning.mechanisms import gaussian
from pipeline.learning.mechanisms.base import MECHANISMS
from pipeline.learning.mechanisms.gaussian import clip_factor
from pipeline.learning.mechanisms.optics import scale_factor
from pipeline.trials import component
from pipeline.trials.condition import chosen, positive
from pipeline.trials.fields import refuse, setting
from pipeline.trials.part import part

MAX_ERROR_NORM = math.sqrt(2)  # ||softmax(z) - onehot(y)||^2 = (1 - p_y)^2 + sum of the other p^2 <= 2
LEAST_NOISE = {"poisson": 0.1}  # over the largest contribution, of a privacy-loss distribution; 0.01 with others
CLIPS = chosen("bounding", "clip")


@part("mechanism", "lee_kifer")
class LeeKifer(component.Component):
    """Component clipping as Lee & Kifer 2020 may be read."""

    guarantee = ("every layer's part is scaled to C/sqrt(L), or its factors are clipped, and an error that is not "
                 "clipped has a norm of at most sqrt 2")
    bounding: str = setting(
        "clip", "lee_kifer with target_norm: a record's part in a layer is shortened where it exceeds C/sqrt(L) "
        "(`clip`), or made just as long as that, however short it was (`scale`)", choices=("clip", "scale"),
        needs=[positive("target_norm")])
    error_clip: bool = setting(
        True, "lee_kifer: e is clipped to tau_e; `off` leaves e and the noise as they are, and epsilon is of "
        "||e|| <= sqrt 2", needs=[CLIPS])
    conv_error: str = setting(
        "clipped", "lee_kifer with algorithm hybrid: convolutions learn from the error that was clipped to tau_e, or "
        "from e itself (`raw`); what a record contributes to them is clipped either way", choices=("clipped", "raw"),
        needs=[chosen("algorithm", "hybrid"), CLIPS, chosen("error_clip", True)])

    @property
    def scales(self):
        """Whether a record's part in each layer is scaled to exactly C/sqrt(L)."""
        return self.bounding == "scale" and self.target_norm > 0

    @property
    def error_bound(self):
        """The bound on ||e||."""
        return self.tau_e if self.error_clip else max(self.tau_e, MAX_ERROR_NORM)

    def contribution_norm(self, trial):
        """Return C', the bound on a record's contribution: the root of the summed squared bounds on its layers."""
        if self.error_clip or self.scales:
            return self.stated_norm(trial)
        bounds = zip(self.delta_bounds(trial, self.error_bound), self.activation_bounds(trial), strict=True)
        of_convolutions = sum(bound**2 for bound in self.conv_bounds(trial))
        return math.sqrt(of_convolutions + sum(delta**2 * (1 + tau_h**2) for delta, tau_h in bounds))  # 1: the bias

    def sensitivity_ratio(self, trial):
        return self.contribution_norm(trial) / self.stated_norm(trial)

    def factor_bounds(self, trial):
        activations, norm = self.activation_bounds(trial), self.contribution_norm(trial)
        deltas = self.delta_bounds(trial, self.error_bound)
        if self.scales:  # ||delta|| sqrt(1 + ||h||^2) is C/sqrt(L), so ||delta|| is at most that
            deltas = (self.layer_bound(trial),) * len(activations)
        return [(delta / norm, activation) for delta, activation in zip(deltas, activations, strict=True)]

    def check(self, trial):
        """Refuse noise that is too small for the sampler after accountants have divided it by C'/C."""
        super().check(trial)
        ratio = self.sensitivity_ratio(trial)
        least = LEAST_NOISE.get(trial.sampler, 0.01) * ratio
        refuse(ratio > 1 and 0 < self.noise_multiplier < least, "noise_multiplier", f"must be at least {least:.3g} "
               f"with sampler '{trial.sampler}' where a record contributes up to {ratio:.4g} times the norm that noise "
               "is measured by (error_clip), or nothing is accounted for", self.noise_multiplier)


@MECHANISMS.of(LeeKifer)
class LeeKiferClipping(gaussian.ComponentStep):
    """Clips or scales what each record contributes, as the settings of `LeeKifer` say."""

    def __init__(self, trials, net, device, matrices=None):
        super().__init__(trials, net, device, matrices)
        shared = trials[0]
        self.scales, self.clips_error = shared.parts.mechanism.scales, shared.error_clip
        self.conv_error_is_raw = (shared.conv_error == "raw" and shared.parts.feedback.convolutional
                                  and shared.error_clip)
        parts = [(trial, trial.parts.mechanism) for trial in trials]
        self.delta_bounds = self.by_layer([part.delta_bounds(trial, part.error_bound) for trial, part in parts])
        self.layer_bound, = self.by_layer([[part.layer_bound(trial)] for trial, part in parts])  # C/sqrt(L)

    @staticmethod
    def bound(trial):
        return trial.parts.mechanism.contribution_norm(trial)

    def error(self, error):
        """Return e as it is if `bounded_factors` clips it later or nothing does, else clipped, as in `component`."""
        return error if self.conv_error_is_raw or not self.clips_error else super().error(error)

    def bounded(self, deltas, activations):
        if not self.scales:
            return super().bounded(deltas, activations)
        n_conv = len(self.conv_bounds)
        dense_deltas, dense_inputs = self.bounded_factors(deltas[n_conv:], activations[n_conv:])
        deltas, activations = [*deltas[:n_conv], *dense_deltas], [*activations[:n_conv], *dense_inputs]
        return [d * (self.layer_bound / layer.squared_norms(d, h).sqrt_())  # norm C/sqrt(L); zeros stay zeros
                for layer, d, h in zip(self.net.layers, deltas, activations, strict=True)], activations

    def bounded_factors(self, deltas, inputs):
        if self.conv_error_is_raw:  # feedback is linear in e = delta^L, so this clips e for the fully connected layers
            error_factor = scale_factor(deltas[-1], self.tau_e)
            deltas = [d * error_factor for d in deltas]
        return super().bounded_factors(deltas, inputs)

    def layer_factors(self, lengths, squares):  # with arithmetic `integer`
        if not self.scales:
            return super().layer_factors(lengths, squares)
        factors = []
        for delta_norm, h_squared, tau_h in zip(lengths, squares, self.activation_bounds, strict=True):
            h_factor = clip_factor(h_squared, tau_h)
            norm = delta_norm * (1 + h_squared * h_factor.square()).sqrt()  # of weights and bias together
            delta_factor = torch.where(delta_norm > 0, self.layer_bound / norm, 0.0)
            factors.append((delta_factor * h_factor, delta_factor))
        return factors

    def error_factor(self, error_norm):
        return super().error_factor(error_norm) if self.clips_error else torch.ones_like(error_norm)
