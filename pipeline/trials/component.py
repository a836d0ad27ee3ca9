"""Component clipping, and the largest norm of a record's contribution under it (Lee & Kifer 2020, section 4.2).

The setting `target_norm` is C of Algorithm 1; each of L layers gets C/sqrt(L). If it is 0, C follows from tau_h and
tau_e. Noise on the sum has standard deviation z C.
"""

from __future__ import annotations

import math

from pipeline.trials.condition import Trial, zero
from pipeline.trials.fields import refuse
from pipeline.trials.mechanism import NOISE_OF_SUM, Gaussian
from pipeline.trials.network import ACTIVATION_SLOPES
from pipeline.trials.part import again, part, setting


@part("mechanism", "component")
class Component(Gaussian):
    """Each factor of a record's contribution is clipped separately (Lee & Kifer 2020, Algorithm 1).

    A plugin may subclass it, together with the class that does the work (`experiments/leekifer2020/readings.py`).
    """

    not_integer = ""
    instead = NOISE_OF_SUM | {"clipping_norm": "target_norm (C), or tau_h and tau_e, from which C follows",
                              "tau_f": "tau_e (bounds ||e||)", "tau_h_min": "tau_h (bounds ||h|| from above alone)"}

    tau_h: float = again("tau_h", zero("target_norm"))
    tau_e: float = setting(
        0.1, "component clipping: bound on ||e||", low=0, open_low=True, per_trial=True)
    feedback_norm: float = setting(
        0.9, "component clipping: beta, spectral norm of the feedback matrix of every layer", low=0, open_low=True)
    target_norm: float = setting(
        0.0, "component clipping: C, bound on the norm of a record's contribution, of which every layer gets "
        "C/sqrt(L); sets tau_h of every layer, and clips each record's part in a convolution. 0 leaves C to tau_h",
        low=0, per_trial=True)

    @property
    def update_norm(self) -> float:
        """Return the setting `target_norm`; 0 where C is left to tau_h."""
        return self.target_norm

    def stated_norm(self, trial: Trial) -> float:
        """Return C: `target_norm`, or else the root of the layers' summed squared bounds ||delta||^2 (1 + tau_h^2)."""
        if self.target_norm:
            return self.target_norm
        sum_of_squares = sum(bound**2 for bound in self.delta_bounds(trial, self.tau_e))
        return math.sqrt(sum_of_squares * (1 + self.tau_h**2))

    def factor_bounds(self, trial: Trial) -> list[tuple[float, float]]:
        """Return (bound on ||delta^l||/C, bound on ||h^{l-1}||) of every fully connected layer l."""
        norm = self.stated_norm(trial)
        return [(delta / norm, activation) for delta, activation in
                zip(self.delta_bounds(trial, self.tau_e), self.activation_bounds(trial), strict=True)]

    def delta_bounds(self, trial: Trial, error: float) -> tuple[float, ...]:
        """Return the bound on ||delta^l||, the learning signal, in each fully connected layer, if ||e|| <= `error`."""
        hidden = self.feedback_norm * error * ACTIVATION_SLOPES[trial.activation]  # beta ||e|| sup|phi'|
        return (*[hidden] * len(trial.hidden), error)

    def activation_bounds(self, trial: Trial) -> tuple[float, ...]:
        """Return the bound tau_h on the norm of the activations that enter each fully connected layer.

        It is the setting `tau_h`; with a target norm it solves ||delta^l|| sqrt(1 + tau_h^2) = C/sqrt(L), with delta^l
        the learning signal at ||e|| = tau_e.
        """
        bounds = self.delta_bounds(trial, self.tau_e)
        if not self.target_norm:
            return (self.tau_h,) * len(bounds)
        share = self.layer_bound(trial)
        return tuple(math.sqrt((share / bound) ** 2 - 1) for bound in bounds)

    def layer_bound(self, trial: Trial) -> float:
        """Return each layer's share of a target norm, `target_norm`/sqrt(L), with convolutions among the L layers."""
        return self.target_norm / math.sqrt(len(trial.layers))

    def conv_bounds(self, trial: Trial) -> tuple[float, ...]:
        """Return `layer_bound` for each convolution: the bound on a record's part in it, weights and bias together."""
        n_dense = len(trial.hidden) + 1  # fully connected layers: hidden ones and the output layer
        return (self.layer_bound(trial),) * (len(trial.layers) - n_dense)

    def check(self, trial: Trial) -> None:
        """Refuse a matrix of a device, whose norm cannot be set, and norms that are too small or too large."""
        refuse(trial.parts.projector.hardware, "mechanism", "component clipping needs the norm of the feedback matrix, "
               "which is not known of a real OPU", "projector 'opu_hardware'", "use 'per_example'")
        if self.target_norm:
            n_layers = len(trial.layers)
            # A layer's tau_h solves delta sqrt(1 + tau_h^2) = C/sqrt(L).
            infimum = max(self.delta_bounds(trial, self.tau_e)) * math.sqrt(n_layers)
            refuse(self.target_norm <= infimum, "target_norm", f"must be > {infimum:.4g}, as each of {n_layers} layers "
                   f"gets target_norm/sqrt({n_layers}), and ||delta|| alone may be {infimum / n_layers**0.5:.4g} in "
                   "one (lower tau_e or feedback_norm to lower it)", self.target_norm)
        else:
            refuse(trial.parts.network.convolutional, "target_norm", f"must be > 0 with mechanism '{self.name}' and "
                   "network 'convnet', as the part of a record in a convolution is clipped to target_norm/sqrt(L)", 0.0)
        try:
            norm = self.stated_norm(trial) * self.sensitivity_ratio(trial)
            self.activation_bounds(trial)
        except ArithmeticError:  # a square is infinite
            norm = math.inf
        refuse(not 0 < norm < math.inf, "tau_e", "must give contributions whose squared norms are numbers",
               f"{self.tau_e!r} with feedback_norm {self.feedback_norm!r}, tau_h {self.tau_h!r} and target_norm "
               f"{self.target_norm!r}", "use norms between 1e-50 and 1e50")
        super().check(trial)
