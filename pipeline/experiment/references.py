"""Published results of others, which a frontier shows beside the experiment's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.experiment.grid import read_mapping
from pipeline.trials.fields import ConfigError


@dataclass(frozen=True)
class Reference:
    """One published result, as printed.

    Attributes:
        source: authors, and the model if needed.
        epsilon, delta: of the certified (epsilon, delta)-differential privacy.
        accuracy: on the test records, in percent.
    """

    source: str
    epsilon: float
    delta: float
    accuracy: float

    def __post_init__(self) -> None:
        """Refuse an empty source, and an epsilon, delta or accuracy out of range."""
        if not isinstance(self.source, str) or not self.source.strip():
            raise ConfigError(f"references.source: must say who published the result, got {self.source!r}")
        for name, high in (("epsilon", float("inf")), ("delta", 1), ("accuracy", 100)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= high:
                limits = "> 0" if name == "epsilon" else f"> 0 and at most {high}"
                unit = " percent" if name == "accuracy" else ""
                raise ConfigError(f"references.{name}: must be {limits}{unit}, got {value!r}")


def read_references(top: Mapping[str, Any]) -> tuple[Reference, ...]:
    """Return the published results that an experiment file lists under `references`.

    Raises:
        ConfigError: unless the entry is a list of references; the message names the faulty one.
    """
    entries = top.get("references", [])
    if not isinstance(entries, list):
        raise ConfigError(f"references: must be a list of published results, got {entries!r}")
    names = [f.name for f in dataclasses.fields(Reference)]
    references = []
    for number, entry in enumerate(entries):
        references.append(Reference(**read_mapping(entry, f"references[{number}]", names, needed=names)))
    return tuple(references)
