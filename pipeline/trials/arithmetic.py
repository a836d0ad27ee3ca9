"""Arithmetics: float32, bfloat16, or integers with exact sums.

The setting is called `arithmetic` in files. Keys and params of trials use its older name, `matmul_precision`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pipeline.trials import steps
from pipeline.trials.fields import ConfigError, listed_or
from pipeline.trials.part import PARTS, SLOTS, Part, part

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig


LARGEST_NORM = 1e6  # largest norm of inputs; the least is 1/LARGEST_NORM


class Arithmetic(Part):
    """The configuration's view of an arithmetic.

    Attributes:
        exact: whether contributions are vectors of integers, so that their sum has no rounding error.
        factors: torch's type to which factors of floating-point products are rounded.
    """

    exact: ClassVar[bool] = False
    factors: ClassVar[str] = "float32"
    works = "pipeline.learning.training:Training"


@part("matmul_precision", "float32")
class Float32(Arithmetic):
    """Everything in float32."""


@part("matmul_precision", "bfloat16")
class BFloat16(Arithmetic):
    """The factors of products are rounded to bfloat16."""

    factors = "bfloat16"


@part("matmul_precision", "integer")
class Integer(Arithmetic):
    """Inputs, weights and contributions are small integers times public powers of two (docs/privacy.md, section 9)."""

    exact = True
    works = "pipeline.learning.integer_training:IntegerTraining"

    def check(self, trial: TrialConfig) -> None:
        """Refuse parts without an integer version, and sizes with sums above 32 bits."""
        if not trial.parts.trainer.built_in:
            return
        self._check_parts(trial)
        self._check_inputs(trial)
        self._check_sizes(trial)

    def _check_parts(self, trial: TrialConfig) -> None:
        """Refuse integer arithmetic with a part that has no integer form, naming the parts that have one."""
        for slot in ("mechanism", "network", "algorithm", "projector", "loss"):
            chosen = getattr(trial.parts, SLOTS[slot])
            reason = chosen.not_integer
            if reason:
                supported = [name for name, cls in PARTS[slot].items() if not cls.not_integer and name != "none"]
                floating = "arithmetic 'float32'" + (" with noise 'research'" if trial.secure else "")
                raise ConfigError(f"arithmetic: 'integer' does not go with {slot} '{chosen.name}': {reason}; use "
                                  f"{slot} {listed_or(supported)}, or {floating}")

    def _check_inputs(self, trial: TrialConfig) -> None:
        """Refuse inputs of unknown or extreme norm: the step of the integers follows from it."""
        if trial.input_norm and not 1 / LARGEST_NORM <= trial.input_norm <= LARGEST_NORM:
            raise ConfigError(f"input_norm: must be 0, or at least {1 / LARGEST_NORM:g} and at most {LARGEST_NORM:g} "
                              f"with arithmetic 'integer', got {trial.input_norm:g}")
        if not trial.input_norm and not trial.parts.features.scale(trial):
            raise ConfigError("input_norm: must be > 0 with arithmetic 'integer' and features "
                              f"'{trial.features}' of unknown size, whose step follows from it, got 0.0")

    def _check_sizes(self, trial: TrialConfig) -> None:
        """Refuse batches or layers whose sums exceed 32 bits, and noise whose grid is coarser than contributions."""
        max_terms = steps.max_terms()  # of a 32-bit sum
        if trial.batch_size > max_terms // 2:
            raise ConfigError(f"batch_size: must be at most {max_terms // 2} with arithmetic 'integer', whose sums "
                              f"have 32 bits, got {trial.batch_size}")
        if max(trial.layer_sizes) > max_terms:
            raise ConfigError(f"hidden: layers must have at most {max_terms} inputs with arithmetic 'integer', whose "
                              f"sums have 32 bits, got {max(trial.layer_sizes)}")
        if trial.layer_sizes[-1] > steps.MOST_CLASSES:
            raise ConfigError(f"dataset: must have at most {steps.MOST_CLASSES} classes with arithmetic 'integer', as "
                              f"its softmax has sums of 53 bits, got {trial.layer_sizes[-1]} in {trial.dataset}")
        largest = steps.largest_noise(trial)
        if trial.noise_multiplier / trial.parts.mechanism.sensitivity_ratio(trial) > largest:
            raise ConfigError(f"noise_multiplier: must be at most {largest:.3g} with arithmetic 'integer', or the grid "
                              f"of the noise is coarser than the contributions, got {trial.noise_multiplier}")
