"""Names of settings and of their values at axes, lines and panels, in figures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from analysis.layout import AMOUNT, level
from analysis.runs import ALGORITHM_LABELS, DATASET_LABELS, ask, is_missing, setting_label, trials_of, value_text

# By setting: its name at an axis, and its symbol before a value. Others are called as in the file.
NAMES = {"batch_size": ("Batch size m", "m"), "tau_h": ("Bound on activations τ_h", "τ_h"),
         "tau_f": ("Bound on the error τ_f", "τ_f"), "tau_e": ("Bound on the error τ_e", "τ_e"),
         "clipping_norm": ("Clipping norm C", "C"), "target_norm": ("Clipping norm C", "C"),
         "sigma": ("Noise level σ", "σ"), "noise_multiplier": ("Noise multiplier z", "z"),
         "learning_rate": ("Learning rate η", "η"), "target_epsilon": ("Certified ε", "ε"),
         "target_label_epsilon": ("Label ε", "label ε")}
# What a note names as fixed, if all trials have one value.
TOLD = ("dataset", "features", "network", "mechanism", AMOUNT, "tau_h", "clipping_norm", "batch_size",
        "epochs", "learning_rate", "optimizer")


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
    if name in ("algorithm", AMOUNT, "dataset"):
        words = {"algorithm": ALGORITHM_LABELS, "dataset": DATASET_LABELS}.get(name)
        return words[value] if words else setting_label(value)
    text = value_text(value)
    if isinstance(value, str):
        return f"{name} {text}" if named else text.replace("_", " ")
    return f"{NAMES[name][1] if name in NAMES else name.replace('_', ' ')} = {text}"


def names_of(row: Mapping[str, Any], factors: Sequence[str]) -> str:
    """Return the levels of a row as text: `DFA, τ_h = 0.5`."""
    return ", ".join(filter(None, (level_name(name, row[name]) for name in factors)))


def with_levels(runs: pd.DataFrame, factors: Sequence[str]) -> pd.DataFrame:
    """Return runs whose columns of these factors have what figures compare: the method in place of the algorithm."""
    return runs.assign(**{name: ask(runs, partial(level, factor=name)) for name in factors})


def fixed_text(runs: pd.DataFrame, varied: Sequence[str]) -> str:
    """Return a sentence on the settings that all runs share: `Fixed: Fashion-MNIST, per example, epochs = 20.`"""
    shared = {}
    for name in TOLD:
        found = {level(trial, name) for trial in trials_of(runs)}
        if name not in varied and len(found) == 1:
            shared[name] = found.pop()
    told = ", ".join(filter(None, (level_name(name, value, named=True) for name, value in shared.items())))
    return f"Fixed: {told}." if told else ""
