"""The release of a trial: the source of its noise, its logged metrics, and settings that every trial has."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pipeline.trials.condition import Need, Trial
from pipeline.trials.fields import ConfigError, listed_or, refuse
from pipeline.trials.part import Part, names_with, part, setting
from pipeline.trials.shapes import n_parameters

DISCLOSURES = ("plain", "noisy", "withheld")  # how private records are logged
LARGEST_BOUND = 1e15  # largest norm and noise in secure trials; the least is 1/LARGEST_BOUND
MIN_CANARIES = 30  # fewer give fewer than 6 guesses, and even 5 right guesses give no bound


class ReleaseSettings(Part):
    """The settings that every trial has besides its other parts, and the rules of its release."""

    secret: ClassVar[bool] = False  # whether noise and batches come from the operating system
    default_disclosure: ClassVar[str] = "plain"  # default of `private_metrics` for a mechanism with privacy

    delta: float = setting(
        1e-5, "delta of every (epsilon, delta)", low=0, high=1, open_low=True, open_high=True,
        needs=[Need("mechanism", "other than 'none', or canaries > 0",
                    lambda c: c.parts.mechanism.private or c.canaries > 0)])
    private_metrics: str = setting(
        "", "what is logged of private records: training loss, validation accuracy, and alignment on training batches "
        "(`plain`); validation accuracy alone, with noise that epsilon covers, and alignment on test batches "
        "(`noisy`); or alignment on test batches alone (`withheld`). By default `plain`, with noise `secure` `noisy`",
        choices=DISCLOSURES, applies=lambda c: c.disclosure != "plain")
    canaries: int = setting(
        0, "training records that get a wrong label and take part with probability 1/2, to audit the run; 0 audits "
        "nothing", low=0)
    alignment_batches: int = setting(
        4, "batches per epoch on which the update, and the feedback's alone, are compared with the true "
        "gradient; 0 measures none", low=0)
    seed: int = setting(0, "seed of split, initialisation and feedback and, in research, of sampling and noise",
                        low=0, high=2**63 - 1, per_trial=True)

    def settled(self, trial: Trial) -> dict[str, Any]:
        """Return an empty `private_metrics` if it has its default, so that it still follows the source of the noise."""
        return {"private_metrics": ""} if self.private_metrics == self.default_metrics(trial) else {}

    def default_metrics(self, trial: Trial) -> str:
        """Return the default of `private_metrics` for a trial: how private records are logged."""
        return self.default_disclosure if trial.parts.mechanism.private else "plain"

    def check(self, trial: Trial) -> None:
        """Refuse metrics that no epsilon covers, and canaries that bound nothing."""
        mechanism, sampler, n_train = trial.parts.mechanism, trial.parts.sampler, trial.split_sizes[0]
        refuse(0 < self.canaries < MIN_CANARIES or self.canaries > n_train, "canaries", f"must be 0, or at least "
               f"{MIN_CANARIES} (fewer bound nothing) and at most the {n_train} training records", self.canaries)
        refuse(self.canaries and not sampler.independent, "canaries", "need sampler 'poisson', which never draws a "
               "record that is left out and draws all others as before; with others another record would take its "
               "place", f"sampler '{trial.sampler}'")
        if trial.disclosure == "noisy" and not mechanism.kind(trial):
            name, value = ("noise", "secure") if trial.secure else ("private_metrics", "noisy")
            certified = listed_or(names_with("mechanism", "certified"))
            raise ConfigError(name, f"needs a guarantee that it can keep: mechanism {certified} with noise, or "
                              "'photonic' with noise on every layer", f"'{value}' with mechanism '{trial.mechanism}'")
        refuse(self.canaries and trial.disclosure != "plain", "canaries", "their audit is computed from private "
               f"records, and no epsilon covers it; must be 0 with private_metrics '{trial.disclosure}'",
               self.canaries, "use noise 'research' and private_metrics 'plain'")


@part("noise", "research")
class Research(ReleaseSettings):
    """Noise and batches are drawn by seed."""


@part("noise", "secure")
class Secure(ReleaseSettings):
    """Noise and batches come from the operating system."""

    secret, default_disclosure = True, "noisy"

    def check(self, trial: Trial) -> None:
        """Refuse what noise from the operating system cannot guarantee; a mechanism without noise needs none."""
        super().check(trial)
        mechanism = trial.parts.mechanism
        if not mechanism.private:
            return
        refuse(not mechanism.kind(trial), "noise", f"'secure' keeps a guarantee, and mechanism '{trial.mechanism}' has "
               "none with these settings", "'secure'", "use 'research', or settings with noise on every layer")
        refuse(trial.disclosure == "plain", "private_metrics", "must be 'noisy' or 'withheld' with noise 'secure', "
               "whose epsilon covers all that is logged", "'plain'")
        refuse(trial.parts.network.convolutional, "network", "the proof of noise 'secure' is of integers, which "
               "convolutions are not computed in", "'convnet'", "use 'mlp', or noise 'research'")
        instead = f" with mechanism 'per_example' ({mechanism.not_integer})" if mechanism.not_integer else ""
        rounded = mechanism.certified and not trial.exact and not trial.parts.network.own
        refuse(rounded, "arithmetic", f"must be 'integer' with noise 'secure' and mechanism '{trial.mechanism}', "
               "whose guarantee is of sums without rounding", f"'{trial.arithmetic}'",
               f"use that{instead}, or noise 'research'")
        self._check_grid(trial)

    def _check_grid(self, trial: Trial) -> None:
        for name in ("clipping_norm", "target_norm", "tau_e", "tau_h", "tau_f", "sigma"):
            value = getattr(trial, name)
            refuse(value and not 1 / LARGEST_BOUND <= value <= LARGEST_BOUND, name, f"must be at least "
                   f"{1 / LARGEST_BOUND:g} and at most {LARGEST_BOUND:g} with noise 'secure', so that its grid stays "
                   "far from where float64 ends", f"{value:g}")
        n_weights = n_parameters(trial.layers)
        # Over C, here the largest contribution of a record; the noise's grid then rounds a sum by less than C/1024.
        largest_noise = 2.0**30 / math.sqrt(n_weights)
        refuse(trial.noise_multiplier / trial.parts.mechanism.sensitivity_ratio(trial) > largest_noise,
               "noise_multiplier", f"must be at most {largest_noise:.3g} with noise 'secure', whose grid would be too "
               f"coarse for {n_weights} weights", trial.noise_multiplier)
