"""Factors that vary in a set of trials: algorithm, noise, and the fields that distinguish the remaining trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import is_number
from pipeline.trials.naming import noise_setting


def differing(trials: Iterable[TrialConfig], cell: Callable[[TrialConfig], Any]) -> tuple[str, ...]:
    """Return the sorted names of used settings, except the seed, in which trials with an equal `cell(trial)` differ."""
    first_of_cell: dict[Any, dict[str, Any]] = {}
    names: set[str] = set()
    for trial in trials:
        fields = trial.canonical()
        first = first_of_cell.setdefault(cell(trial), fields)  # two that differ cannot both equal the first
        names |= {name for name in fields.keys() | first.keys() if fields.get(name) != first.get(name)}
    return tuple(sorted(names - {"seed"}))


def varied_fields(trials: Sequence[TrialConfig]) -> tuple[str, ...]:
    """Return the sorted fields, except the seed, in which trials of one algorithm, mechanism and noise differ."""
    return differing(trials, lambda trial: (trial.algorithm, trial.mechanism, noise_setting(trial)))


def find_factors(trials: Sequence[TrialConfig]) -> list[dict[str, str | float]]:
    """Return {factor: level} of each trial, with the factors that vary, seeds excluded; `-`: it does not apply."""
    names = set(varied_fields(trials))
    for name, absent in (("mechanism", "none"), ("dataset", "")):  # trials without a mechanism differ by their noise
        if len({getattr(trial, name) for trial in trials} - {absent}) > 1:
            names.add(name)
    rows = []
    for trial in trials:
        fields = trial.canonical()
        rows.append({"algorithm": trial.algorithm, "noise": noise_setting(trial),
                     **{name: _level(fields.get(name)) for name in sorted(names)}})
    varied = [name for name in ("algorithm", "noise", *sorted(names)) if len({row[name] for row in rows}) > 1]
    return [{name: row[name] for name in varied} for row in rows]


def _level(value: Any) -> str | float:
    """Return a level from a JSON value: a number, or text; `256×128` for a list, `none` for [], and `-` for None."""
    if value is None:
        return "-"  # the trial does not use the setting
    if isinstance(value, list):
        return "×".join(map(str, value)) if value else "none"
    return value if is_number(value) else str(value)
