"""The knobs of privacy: what each bounds or sets, and what epsilon follows; in `photonic fields` and docs/knobs.md.

Which mechanisms have a knob is what their settings say (`mechanisms_with`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.trials.part import PARTS, owners


class Knob(NamedTuple):
    """A setting by which noise, bounds or epsilon of a mechanism are set."""

    setting: str
    symbol: str  # in the papers
    does: str
    epsilon: str  # what follows for it; `unchanged` if nothing does


_RATIO = "label, follows from sigma/tau_f"
_SCALE = "unchanged, as the noise is z C"
KNOBS = (
    Knob("sigma", "sigma", "standard deviation of the optical noise on every projection B e", _RATIO),
    Knob("tau_f", "tau_f", "bounds ||B e||, in the output layer ||e||", _RATIO),
    Knob("tau_h", "tau_h_max", "bounds each activation by tau_h/sqrt(n) (photonic), or ||h||, which sets C (component)",
         "unchanged"),
    Knob("tau_h_min", "tau_h_min", "offset tau_h_min/sqrt(n) of the activations", "unchanged"),
    Knob("tau_e", "tau_e", "bounds ||e||, sets C", _SCALE),
    Knob("clipping_norm", "C", "bounds a record's whole contribution", _SCALE),
    Knob("target_norm", "C", "bounds a record's whole contribution; sets tau_h", _SCALE),
    Knob("noise_multiplier", "z", "standard deviation of the noise on the sum of contributions, over C",
         "certified, smaller with larger z"),
    Knob("target_epsilon", "epsilon", "sets z", "certified, at most this"),
    Knob("target_label_epsilon", "epsilon", "sets sigma", "label, at most this"),
    Knob("batch_size", "m", "records of a step, whose noisy sum is divided by m",
         "larger per step, in fewer steps; unchanged with shuffled batches"),
)


def mechanisms_with(setting: str) -> list[str]:
    """Return the names of the mechanisms that have a knob: those that declare it, or all if it is of no mechanism."""
    return owners(setting).get("mechanism") or list(PARTS["mechanism"])


def lines() -> Iterator[str]:
    """Yield the table for a terminal: a line for each knob."""
    for knob in KNOBS:
        yield f"{knob.setting} ({knob.symbol}; {_of(knob)}): {knob.does}; epsilon: {knob.epsilon}"


def markdown() -> str:
    """Return the table in Markdown."""
    rows = [(f"`{knob.setting}`", knob.symbol, _of(knob), knob.does.replace("|", r"\|"), knob.epsilon)
            for knob in KNOBS]
    return "\n".join(f"| {' | '.join(row)} |" for row in [
        ("setting", "paper", "mechanism", "bounds or sets", "epsilon"), ("---",) * 5, *rows])


def _of(knob: Knob) -> str:
    names = mechanisms_with(knob.setting)
    return "all" if len(names) == len(PARTS["mechanism"]) else ", ".join(names)
