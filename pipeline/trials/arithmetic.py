"""Arithmetics: float32, bfloat16, or integers with exact sums."""

from __future__ import annotations

from typing import ClassVar

from pipeline.trials import steps
from pipeline.trials.condition import Trial
from pipeline.trials.fields import ConfigError, listed_or, refuse
from pipeline.trials.part import PARTS, SLOTS, Part, part

LEAST_CLIPPING_NORM = 1e-290  # float64 ends at 5e-324
CLAMPED = "arithmetic.clamped"  # tag with the share of public test records' components that are clamped, by layer
LARGEST_NORM = 1e6  # largest norm of inputs; the least is 1/LARGEST_NORM


class Arithmetic(Part):
    """The numbers that a trial is computed in."""

    exact: ClassVar[bool] = False  # whether contributions are vectors of integers, whose sum has no rounding error
    factors: ClassVar[str] = "float32"  # torch's type to which factors of floating-point products are rounded

@part("arithmetic", "float32")
class Float32(Arithmetic):
    """Everything in float32."""


@part("arithmetic", "bfloat16")
class BFloat16(Arithmetic):
    """The factors of products are rounded to bfloat16."""

    factors = "bfloat16"


@part("arithmetic", "integer")
class Integer(Arithmetic):
    """Inputs, weights and contributions are small integers times public powers of two (docs/privacy.md, section 9)."""

    exact = True

    def check(self, trial: Trial) -> None:
        """Refuse parts without an integer version, and sizes or noise for which sums or grid are out of range."""
        for slot in ("mechanism", "network", "algorithm", "projector", "loss"):
            chosen = getattr(trial.parts, SLOTS[slot])
            if chosen.not_integer:
                supported = [name for name, cls in PARTS[slot].items() if not cls.not_integer and name != "none"]
                only_research = trial.secure and not trial.parts.network.own
                floating = "arithmetic 'float32'" + (" with noise 'research'" if only_research else "")
                raise ConfigError(f"arithmetic: 'integer' does not go with {slot} '{chosen.name}': "
                                  f"{chosen.not_integer}; use {slot} {listed_or(supported)}, or {floating}")
        norm = trial.input_norm
        refuse(norm and not 1 / LARGEST_NORM <= norm <= LARGEST_NORM, "input_norm", "must be 0, or at least "
               f"{1 / LARGEST_NORM:g} and at most {LARGEST_NORM:g} with arithmetic 'integer'", f"{norm:g}")
        refuse(not norm and not trial.parts.features.scale(trial), "input_norm", "must be > 0 with arithmetic "
               f"'integer' and features '{trial.features}' of unknown size, whose step follows from it", 0.0)
        for name in ("clipping_norm", "target_norm"):
            refuse(0 < getattr(trial, name) < LEAST_CLIPPING_NORM, name, f"must be at least {LEAST_CLIPPING_NORM:g} "
                   "with arithmetic 'integer', whose steps are fractions of it", f"{getattr(trial, name):g}")
        self._check_sums(trial)
        largest = steps.largest_noise(trial)
        refuse(trial.noise_multiplier / trial.parts.mechanism.sensitivity_ratio(trial) > largest,
               "noise_multiplier", f"must be at most {largest:.3g} with arithmetic 'integer', or the grid of the "
               "noise is coarser than the contributions", trial.noise_multiplier)

    def _check_sums(self, trial: Trial) -> None:
        sizes, max_terms = trial.layer_sizes, steps.MAX_TERMS
        refuse(trial.batch_size > max_terms // 2, "batch_size", f"must be at most {max_terms // 2} with arithmetic "
               "'integer', whose sums have 32 bits", trial.batch_size)
        refuse(max(sizes) > max_terms, "hidden", f"layers must have at most {max_terms} inputs with arithmetic "
               "'integer', whose sums have 32 bits", max(sizes))
        refuse(sizes[-1] > steps.MOST_CLASSES, "dataset", f"must have at most {steps.MOST_CLASSES} classes with "
               "arithmetic 'integer', as its softmax has sums of 53 bits", f"{sizes[-1]} in {trial.dataset}")
