"""Mechanisms for a private update: their settings, their needs from other parts, and their guarantees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pipeline.trials.feedback  # noqa: F401  its settings must be declared first
from pipeline.trials.condition import Trial, not_chosen, positive
from pipeline.trials.fields import ConfigError, listed_or, refuse
from pipeline.trials.part import Part, again, names_with, part, setting

MIN_NOISE_OVER_C = 0.2  # least noise_multiplier above 0
# Least delta per composed step of a privacy-loss distribution: ten times what `accounting.event.pld_epsilon` takes
# off for rounding, which is about ten times the rounding error that was measured.
MIN_DELTA_PER_STEP = 1e-14
# By settings of other mechanisms: what a Gaussian one has in their place, for messages.
NOISE_OF_SUM = {"sigma": "noise_multiplier (z: noise on the sum of contributions, over C) or target_epsilon, which "
                         "sets it",
                "target_label_epsilon": "target_epsilon, which protects features, too"}
LARGEST_NUMBER = 1e100  # largest noise multiplier: float64 has no squares of much larger numbers
MIN_LABEL_EPSILON = 1e-3  # least target_label_epsilon above 0


class Mechanism(Part):
    """A mechanism's settings, its needs from other parts, and what its guarantee rests on."""

    private: ClassVar[bool] = True  # whether it changes the update at all
    certified: ClassVar[bool] = False  # whether it is Gaussian noise on a sum of bounded contributions
    flat: ClassVar[bool] = False  # whether it can bound contributions without layers
    guarantee: ClassVar[str] = ""  # an extension's reason why no record contributes more than its bound
    optical: ClassVar[bool] = False  # whether it is noise on optical signals, which gives a label or column epsilon
    target: ClassVar[str] = ""  # the setting for the epsilon of a run; empty for none
    not_integer = "contributions in integers need Gaussian noise and a stated bound on their norm (guarantee)"
    feedback_norm = 0.0  # spectral norm to which feedback matrices are scaled; 0 does not scale

    def check(self, trial: Trial) -> None:
        """Refuse a target epsilon if the mechanism states no guarantee: no epsilon can be computed then."""
        refuse(self.private and not self.certified and trial.target_epsilon, "target_epsilon", f"mechanism "
               f"'{self.name}' states no guarantee (guarantee of register_mechanism), so nothing can be accounted for",
               trial.target_epsilon)

    def kind(self, trial: Trial) -> str:
        """Return the kind of a trial's finite epsilon: `certified` or `label`; empty for none."""
        return ""

    def sensitivity_ratio(self, trial: Trial) -> float:
        """Return the largest contribution of a record over the norm to which its noise is scaled."""
        return 1.0

    def stated_norm(self, trial: Trial) -> float:
        """Return the norm to which noise is scaled: z times this is its standard deviation on the sum; 0 for no z."""
        return self.update_norm

    def factor_bounds(self, trial: Trial) -> Sequence[tuple[float, float]] | None:
        """Return (bound on ||delta^l||/C, bound on ||h^{l-1}||) of every layer l; None if factors have no own bounds.

        delta^l is a record's learning signal, h^{l-1} its activations, and C the bound on its whole contribution, by
        which epsilon is accounted for.
        """
        return None

    @classmethod
    def noise_setting(cls, fields: Mapping[str, Any]) -> str:
        """Return the noise of a trial with these `canonical` settings, for names: here `<mechanism>=<noise>`."""
        noise = max(fields.get("sigma") or 0.0, fields.get("noise_multiplier") or 0.0)
        return f"{fields['mechanism']}={noise:g}"

    @property
    def update_norm(self) -> float:
        """Return the setting with C, the bound on a record's contribution; 0 if the mechanism has or is given none."""
        return 0.0


def check_denoise(trial: Trial) -> None:
    """Refuse `denoise` for trials whose learning signals are not in the column space of a known feedback matrix B."""
    feedback, network = trial.parts.feedback, trial.parts.network
    # `check_matrix` below refuses back-propagation, which is exact.
    refuse(not (feedback.exact or feedback.matrix), "denoise", "needs the feedback matrix B of "
           f"{listed_or(names_with('algorithm', 'matrix'))}", f"true with algorithm '{trial.algorithm}'")
    refuse(network.convolutional and not feedback.convolutional, "denoise", "puts signals of fully connected layers on "
           "the column space of B; a filter sums over positions",
           f"true with network 'convnet' and algorithm '{trial.algorithm}'", "use algorithm 'hybrid'")
    check_matrix("denoise", trial)


def check_matrix(name: str, trial: Trial) -> None:
    """Refuse that the setting `name`, which needs a known matrix B, is true with back-propagation or a real OPU."""
    refuse(trial.parts.feedback.exact, name, "must be false with bp, whose error is released once and never projected",
           "true")
    refuse(trial.parts.projector.hardware, name, "needs the feedback matrix B, which is not known of a real OPU",
           "projector 'opu_hardware'", "use 'opu_simulated'")


@part("mechanism", "none")
class NoMechanism(Mechanism):
    """The plain mean over the batch."""

    private = False

    @classmethod
    def noise_setting(cls, fields: Mapping[str, Any]) -> str:
        return "non-private"


_NO_BP = not_chosen("algorithm", "bp")


@part("mechanism", "photonic")
class Photonic(Mechanism):
    """Scaled signals with optical noise, clipped activations (Ohana et al. 2021, Eqs. 8 to 10)."""

    optical = True
    target = "target_label_epsilon"
    instead = {"target_epsilon": "target_label_epsilon, which protects labels alone",
               "noise_multiplier": "sigma (noise on every projection) or target_label_epsilon, which sets it",
               **dict.fromkeys(("clipping_norm", "target_norm"), "tau_f (bounds ||B e||) and tau_h (bounds h)"),
               "tau_e": "tau_f (bounds ||B e||, in the output layer ||e||)", "feedback_norm": "feedback_std"}

    sigma: float = again("sigma")
    tau_f: float = again("tau_f")
    tau_h: float = setting(
        1.0, "tau_h^max: activations are clipped at c = tau_h/sqrt(n) (Eq. 9); under component clipping, bound on "
        "||h||", low=0, open_low=True, per_trial=True)
    tau_h_min: float = setting(
        0.0, "tau_h^min: offset nu = tau_h_min/sqrt(n) of the activations (Eq. 9)", low=0, per_trial=True)
    gamma_min: float = setting(
        0.0, "enforced variant: phi' is clamped to at least gamma_min in the update; 0 leaves it", low=0,
        per_trial=True)
    activation_floor: bool = setting(
        False, "enforced variant: h <- sign(h) clip(|h|, nu, c) in place of offset and clip",
        needs=[positive("tau_h_min")])
    output_noise: bool = setting(
        True, "scale and noise for the output layer's error as well; without it nothing at all is claimed",
        needs=[_NO_BP])
    joint_release: bool = setting(
        False, "the projections of all layers are scaled and get noise as one vector, of norm tau_f at most, and the "
        "output layer's error is decoded from it", needs=[_NO_BP])
    denoise: bool = setting(
        False, "what was projected or, with a Gaussian mechanism, every contribution and the noise on their sum is put "
        "on the column space of B, which takes away the noise outside it", needs=[_NO_BP])
    target_label_epsilon: float = setting(
        0.0, "label epsilon that the whole run may cost; sets sigma of the photonic mechanism. 0 leaves that to sigma",
        low=0, high=1e6, per_trial=True)

    def kind(self, trial: Trial) -> str:
        """Return `label` if every layer's error gets noise, so that the label epsilon is finite; else an empty text."""
        has_noise = bool(self.target_label_epsilon or self.sigma)
        # In back-propagation noise enters once, at the output's error, from which every layer's error follows.
        on_every_layer = self.output_noise or trial.parts.feedback.exact
        return "label" if has_noise and on_every_layer else ""

    @classmethod
    def noise_setting(cls, fields: Mapping[str, Any]) -> str:
        """Return `label_epsilon=3` for a target, else `sigma=0.1`."""
        target = fields.get("target_label_epsilon") or 0.0  # absent unless it sets the noise
        return f"label_epsilon={target:g}" if target > 0 else f"sigma={fields['sigma']:g}"

    def check(self, trial: Trial) -> None:
        """Refuse trials that Ohana et al. 2021 do not describe, and targets that cannot be met."""
        certified = listed_or(names_with("mechanism", "certified"))
        refuse(not trial.parts.feedback.described, "mechanism", "'photonic' is described for "
               f"{listed_or(names_with('algorithm', 'described'))}, and nothing is known of it with algorithm "
               f"'{trial.algorithm}'", "'photonic'", f"use 'none' or {certified}")
        refuse(trial.parts.network.convolutional, "mechanism", "Eq. 8 clips every component of h by the width of its "
               "layer, and nothing is claimed of weights that convolutions share", "'photonic' with network 'convnet'",
               f"use {certified}")
        if not trial.parts.sampler.counted:
            raise ConfigError(f"sampler: nothing is claimed or proved of the photonic mechanism with {trial.sampler} "
                              "batches; use 'shuffled' or 'without_replacement', or mechanism 'per_example'")
        refuse(self.tau_h_min > self.tau_h, "tau_h_min", f"must be at most tau_h = {self.tau_h}", self.tau_h_min)
        if self.denoise:
            check_denoise(trial)
        if self.joint_release:
            check_matrix("joint_release", trial)
            refuse(not self.output_noise, "output_noise", "must be true with joint_release, which decodes the output "
                   "layer's error from the noisy projection", "false")
            n_classes = trial.layer_sizes[-1]
            refuse(sum(trial.hidden) < n_classes, "hidden", f"must sum to at least the {n_classes} classes with "
                   "joint_release, or their error cannot be decoded from the projection", list(trial.hidden))
        if self.target_label_epsilon:
            self._check_target(trial)

    def _check_target(self, trial: Trial) -> None:
        name, target = "target_label_epsilon", self.target_label_epsilon
        refuse(target < MIN_LABEL_EPSILON, name, f"must be 0 (sigma is given) or at least {MIN_LABEL_EPSILON}, below "
               "which nothing can be learnt", target)
        refuse(self.sigma, name, "sets sigma; give one of the two", f"{name} {target} and sigma {self.sigma}")
        refuse(not self.output_noise and not trial.parts.feedback.exact, name, "cannot be met with output_noise false, "
               "which leaves the output layer's error bare and label epsilon infinite", target)


class Gaussian(Mechanism):
    """Gaussian noise on the sum of the records' contributions, each bounded by C."""

    not_integer = "it does not state by which factor contributions of a norm are multiplied (a method `factor`)"

    certified = True
    target = "target_epsilon"
    noise_multiplier: float = setting(
        0.0, "z: standard deviation of the noise on the sum of the contributions, over C", low=0, per_trial=True)
    target_epsilon: float = setting(
        0.0, "certified epsilon that the whole run may cost; sets the noise multiplier. 0 leaves that to "
        "noise_multiplier", low=0, per_trial=True)
    denoise: bool = again("denoise", _NO_BP)

    def kind(self, trial: Trial) -> str:
        """Return `certified` for a trial with noise, else an empty text."""
        return "certified" if self.target_epsilon or self.noise_multiplier else ""

    @classmethod
    def noise_setting(cls, fields: Mapping[str, Any]) -> str:
        """Return `epsilon=3` for a target, else `z=1.1`."""
        if fields["target_epsilon"]:
            return f"epsilon={fields['target_epsilon']:g}"
        return f"z={fields['noise_multiplier']:g}"

    def check(self, trial: Trial) -> None:
        """Refuse trials that break the assumptions of certified epsilon, or that no accountant supports."""
        sampler, z = trial.parts.sampler, self.noise_multiplier
        bounds = f"'{self.name}' bounds what each record contributes, if"
        refuse(trial.parts.feedback.per_record is None, "mechanism", f"{bounds} its learning signals depend on no "
               f"other record, which algorithm '{trial.algorithm}' does not state (per_record of register_feedback)",
               f"'{self.name}'", "use 'none'")
        refuse(trial.parts.loss.per_record is None, "mechanism", f"{bounds} its error depends on no other record, "
               f"which loss '{trial.loss}' does not state (per_record)", f"'{self.name}'", "use 'none'")
        refuse(not sampler.accountants, "sampler", f"'{trial.sampler}' states no accountant (accountants), "
               "so nothing can be accounted for", f"it with mechanism '{self.name}'", "use one that does, or mechanism "
               "'none'")
        if self.denoise:
            check_denoise(trial)
        refuse(self.target_epsilon and z, "target_epsilon", "sets the noise multiplier; give one of the two",
               f"target_epsilon {self.target_epsilon} and noise_multiplier {z}")
        refuse(0 < max(z, z / self.sensitivity_ratio(trial)) < MIN_NOISE_OVER_C, "noise_multiplier", "must be 0 (no "
               f"noise, no guarantee) or at least {MIN_NOISE_OVER_C}, below which nothing useful can be accounted for",
               z)
        steps = trial.epochs * trial.steps_per_epoch
        min_delta = steps * MIN_DELTA_PER_STEP
        has_losses = sampler.amplified and (z or self.target_epsilon)  # privacy-loss distributions are composed
        refuse(has_losses and trial.delta < min_delta, "delta", f"must be at least {min_delta:.3g} with sampler "
               f"'{trial.sampler}' and {steps} steps, below which rounding errors of the privacy-loss distribution "
               "count", f"{trial.delta:g}", "use a larger one, or sampler 'shuffled', whose epsilon is exact")
        refuse(trial.parts.arithmetic.factors != "float32", "arithmetic", f"must be 'float32' with mechanism "
               f"'{self.name}', whose bound on contributions does not cover rounding", f"'{trial.arithmetic}'",
               "'integer' is faster, too")


@part("mechanism", "per_example")
class PerExample(Gaussian):
    """DP-SGD: each record's contribution is clipped to norm C (Abadi et al. 2016)."""

    flat, not_integer = True, ""
    instead = NOISE_OF_SUM | dict.fromkeys(("tau_f", "tau_h", "tau_h_min", "tau_e", "target_norm"),
                                           "clipping_norm (C: bounds a record's whole contribution)")
    clipping_norm: float = setting(
        1.0, "per-example clipping: C, bound on the norm of a record's contribution to the update", low=0,
        open_low=True, per_trial=True)

    @property
    def update_norm(self) -> float:
        return self.clipping_norm


@part("mechanism", "automatic")
class Automatic(PerExample):
    """Automatic clipping: each record's contribution is normalised to less than C, however short (Bu et al. 2023)."""

    label = "automatic"
    clipping_gamma: float = setting(
        0.01, "automatic clipping: gamma, added to the norm by which a record's contribution is divided", low=1e-6,
        high=1e6, per_trial=True)
