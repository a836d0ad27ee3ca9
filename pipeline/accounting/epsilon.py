"""The one type in which a privacy loss is stated: a number that cannot be parted from what it means."""

from __future__ import annotations

import math
from dataclasses import dataclass

# What a value guarantees differs by kind: `claimed` guarantees nothing, `column` only one column of one layer in one
# step, `label` the labels alone, `certified` every released iterate, `selected` the sweep as well; `audited` is a
# lower bound measured by attack.
KINDS = ("claimed", "column", "label", "certified", "selected", "audited")


@dataclass(frozen=True)
class Epsilon:
    """The epsilon of an (epsilon, delta) statement, with everything needed to read it.

    Attributes:
        value: >= 0; may be infinite, and then it is no metric (a tracking store would turn it into 1.8e308) but a tag.
        kind: one of `KINDS`.
        variant: which formula or accountant, `second/iterations` for example; may be empty.
        relation: neighbouring relation, `replace-one` for example.
        sampler: how batches were drawn.
        delta: in (0, 1).
        conversion: how a Renyi or privacy-loss curve became (epsilon, delta), `classic` for example.
        note: one line on what the value rests on.

    Raises:
        ValueError: for a value, kind or delta out of range, or a missing relation, sampler or conversion.
    """

    value: float
    kind: str
    variant: str
    relation: str
    sampler: str
    delta: float
    conversion: str
    note: str = ""

    def __post_init__(self) -> None:
        if not self.value >= 0:
            raise ValueError(f"value: must be >= 0 or infinity, got {self.value}")
        if self.kind not in KINDS:
            raise ValueError(f"kind: must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta: must be > 0 and < 1, got {self.delta}")
        for name in ("relation", "sampler", "conversion"):
            if not getattr(self, name):
                raise ValueError(f"{name}: must name one, got {getattr(self, name)!r}")

    @property
    def metric_name(self) -> str:
        """`epsilon/<kind>/<variant>`, or `epsilon/<kind>` where there is only one variant."""
        return f"epsilon/{self.kind}/{self.variant}" if self.variant else f"epsilon/{self.kind}"

    @property
    def is_metric(self) -> bool:
        """Whether the value may be logged as a number."""
        return math.isfinite(self.value)

    def __str__(self) -> str:
        kind = f"{self.kind} {self.variant}" if self.variant else self.kind
        return (f"epsilon = {self.value:.4g} ({kind}; delta = {self.delta:g}, relation {self.relation}, "
                f"sampler {self.sampler}, {self.conversion} conversion)")
