"""The only types for a privacy loss and for a bound on it: they keep the number together with its meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.trials.fields import is_number, refuse
from pipeline.trials.kinds import KINDS


def check_delta(delta: float) -> None:
    """Refuse a delta that is not in (0, 1)."""
    if not 0 < delta < 1:
        raise ValueError(f"delta: must be > 0 and < 1, got {delta}")


@dataclass(frozen=True)
class Epsilon:
    """The epsilon of an (epsilon, delta) statement, with everything needed to read it."""

    value: float  # >= 0, or infinite
    kind: str  # a key of `KINDS`
    variant: str  # the formula or accountant, for example `second/iterations`; may be empty
    relation: str  # of neighbours, for example `replace-one`
    sampler: str  # how batches were drawn
    delta: float  # in (0, 1)
    conversion: str  # how a Renyi or privacy-loss curve became (epsilon, delta), for example `classic`
    note: str = ""  # one line on the assumptions of the value

    def __post_init__(self) -> None:
        if not self.value >= 0:
            raise ValueError(f"value: must be >= 0 or infinity, got {self.value}")
        if self.kind not in KINDS:
            raise ValueError(f"kind: must be one of {', '.join(KINDS)}, got {self.kind!r}")
        check_delta(self.delta)
        for name in ("relation", "sampler", "conversion"):
            if not getattr(self, name):
                raise ValueError(f"{name}: must name one, got {getattr(self, name)!r}")

    @property
    def metric_name(self) -> str:
        """Return `epsilon/<kind>/<variant>`, or `epsilon/<kind>` without a variant."""
        return f"epsilon/{self.kind}/{self.variant}" if self.variant else f"epsilon/{self.kind}"

    @property
    def is_finite(self) -> bool:
        """Whether the value may be logged as a number; a tracking store would turn infinity into 1.8e308."""
        return math.isfinite(self.value)

    def __str__(self) -> str:
        kind = f"{self.kind} {self.variant}" if self.variant else self.kind
        return (f"epsilon = {self.value:.4g} ({kind}; delta = {self.delta:g}, relation {self.relation}, "
                f"sampler {self.sampler}, {self.conversion} conversion)")


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) of all trials of a search together, however each trial was chosen."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name, high, limit in (("epsilon", math.inf, "finite"), ("delta", 1, "< 1")):
            value = getattr(self, name)
            refuse(not is_number(value) or not 0 < value < high, f"budget.{name}",
                   f"must be a number > 0 and {limit}", repr(value))
            object.__setattr__(self, name, float(value))

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"
