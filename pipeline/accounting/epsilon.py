"""The only type for a privacy loss: it keeps the number together with its meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Guarantee(NamedTuple):
    """What a kind of epsilon guarantees (proofs: docs/privacy.md)."""

    holds: bool  # whether it guarantees anything about a model
    meaning: str  # the guarantee in words, or why there is none


GUARANTEES = {
    "certified": Guarantee(True, "Features and labels of every record are protected: whoever sees the weights after "
                           "every step tells two neighbouring training sets apart no better than (ε, δ)-differential "
                           "privacy permits. It covers one trial, not the choice among trials."),
    "selected": Guarantee(True, "As certified, and it also covers having picked the best trial of the sweep. It does "
                          "not cover the validation scores by which that trial was picked."),
    "stated": Guarantee(False, "Accounted for here, of a mechanism that its trainer states and nobody here checked. "
                        "If what is stated holds, features and labels are protected as by certified; if not, nothing "
                        "is guaranteed."),
    "label": Guarantee(True, "Labels alone are protected; features count as public, and of them, or of whether a "
                       "record took part, nothing is guaranteed. It covers one trial, not the choice among trials."),
    "audited": Guarantee(False, "A lower bound, measured by attack with 95% confidence, and no guarantee: the true ε "
                         "is at least this. A low value proves nothing; one above certified would prove an error."),
    "column": Guarantee(False, "Holds for one column of one layer in one step (the corrected Proposition 3 of Ohana "
                        "et al. 2021). Nothing about the model follows."),
    "claimed": Guarantee(False, "No guarantee: the value of the formula printed in Ohana et al. 2021. The photonic "
                         "mechanism has no finite ε for features at any σ, as one observed update tells who was in "
                         "its batch."),
    "imported": Guarantee(False, "Said by its source; nothing was trained or accounted for here."),
}


def check_delta(delta: float) -> None:
    """Refuse a delta of which no epsilon is."""
    if not 0 < delta < 1:
        raise ValueError(f"delta: must be > 0 and < 1, got {delta}")


@dataclass(frozen=True)
class Epsilon:
    """The epsilon of an (epsilon, delta) statement, with everything needed to read it."""

    value: float  # >= 0, or infinite
    kind: str  # a key of `GUARANTEES`
    variant: str  # the formula or accountant, for example `second/iterations`; may be empty
    relation: str  # of neighbours, for example `replace-one`
    sampler: str  # how batches were drawn
    delta: float  # in (0, 1)
    conversion: str  # how a Renyi or privacy-loss curve became (epsilon, delta), for example `classic`
    note: str = ""  # one line on the assumptions of the value

    def __post_init__(self) -> None:
        """Refuse a value, kind or delta out of range, and an empty relation, sampler or conversion."""
        if not self.value >= 0:
            raise ValueError(f"value: must be >= 0 or infinity, got {self.value}")
        if self.kind not in GUARANTEES:
            raise ValueError(f"kind: must be one of {', '.join(GUARANTEES)}, got {self.kind!r}")
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
