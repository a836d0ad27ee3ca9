"""What algorithms, settings, their values and noise are called, in figures and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.layout import AMOUNT
from pipeline.trials import feedback
from pipeline.trials.datasets import DATASETS as DATASETS

LABELS: dict[str, str] = {}  # of algorithms, as the report that is drawn names them
NON_PRIVATE = "non-private"
NO_VALUE = "–"  # text of a cell without a value
# By setting: its name at an axis, and its symbol before a value. Others are called as in the file.
NAMES = {"batch_size": ("Batch size m", "m"), "tau_h": ("Bound on activations τ_h", "τ_h"),
         "tau_f": ("Bound on the error τ_f", "τ_f"), "tau_e": ("Bound on the error τ_e", "τ_e"),
         "clipping_norm": ("Clipping norm C", "C"), "target_norm": ("Clipping norm C", "C"),
         "sigma": ("Noise level σ", "σ"), "noise_multiplier": ("Noise multiplier z", "z"),
         "learning_rate": ("Learning rate η", "η"), "target_epsilon": ("Certified ε", "ε"),
         "target_label_epsilon": ("Label ε", "label ε")}


def algorithm_labels() -> dict[str, str]:
    """Return names of algorithms for tables and figures; those of a report come before our own."""
    return {**feedback.algorithm_labels(), **LABELS}


def is_missing(value: object) -> bool:
    """Whether a setting does not apply to a run: None, or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def value_text(value: object) -> str:
    """Return a setting's value as text; a dash if it does not apply."""
    if isinstance(value, tuple | list):
        return " × ".join(map(str, value))
    if is_missing(value):
        return NO_VALUE
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_label(setting: str) -> str:
    """Return the label of a noise setting: `σ = 0.1`, `ε ≤ 3` (a target is met from below), `non-private`, ..."""
    if setting == NON_PRIVATE:
        return setting
    name, _, number = setting.rpartition("=")
    symbols = {"": "σ =", "epsilon": "ε ≤", "label_epsilon": "label ε ≤"}
    return f"{symbols.get(name, f'{name} =')} {number}"


def by_noise(settings: Sequence[str]) -> list[str]:
    """Return distinct noise settings, sorted: non-private, sigmas, targets (certified, label), noise multipliers."""
    def sort_key(setting: str) -> tuple[bool, str, float]:  # whether it has a value, its name (a sigma has none), value
        if setting in ("", NON_PRIVATE):
            return False, "", 0.0  # first
        name, _, number = setting.rpartition("=")
        return True, name, float(number)
    return sorted(set(settings), key=sort_key)


def axis_name(name: str) -> str:
    """Return the name of a setting at an axis."""
    return NAMES[name][0] if name in NAMES else name.replace("_", " ").capitalize()


def in_words(name: str) -> str:
    """Return the name of a setting within a sentence."""
    words = axis_name(name)
    return words[0].lower() + words[1:]


def level_name(name: str, value: Any, named: bool = False) -> str:
    """Return a factor's level as text: `DFA`, `ε ≤ 3`, `τ_h = 0.5`, `epochs = 20`; empty if it does not apply.

    Texts stand alone, or after the setting's name: `mlp`, `network mlp`.
    """
    if is_missing(value):
        return ""
    if name == "algorithm":
        return algorithm_labels()[value]
    if name in (AMOUNT, "dataset"):
        return DATASETS[value].label if name == "dataset" else setting_label(value)
    text = value_text(value)
    if isinstance(value, str):
        return f"{name} {text}" if named else text.replace("_", " ")
    return f"{NAMES[name][1] if name in NAMES else name.replace('_', ' ')} = {text}"


def names_of(row: Mapping[str, Any], factors: Sequence[str]) -> str:
    """Return the levels of a row as text: `DFA, τ_h = 0.5`."""
    return ", ".join(filter(None, (level_name(name, row[name]) for name in factors)))


def short(value: float) -> str:
    """Return an epsilon with three digits or, from a thousand on, as an integer: `0.523`, `1,204`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
