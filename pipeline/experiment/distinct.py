"""Check that no two combinations of an experiment file make the same trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipeline.experiment.grid import Combination
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.fields import plain
from pipeline.trials.unused import why_unused


def check_distinct(combinations: Sequence[Combination]) -> None:
    """Check that no two combinations of an experiment file make the same trial.

    Raises:
        ConfigError: naming both places in the file, and the settings that differ without an effect.
    """
    first_by_key: dict[str, Combination] = {}
    for combination in combinations:
        trial = combination.trial
        first = first_by_key.setdefault(trial.trial_key, combination)
        if first is combination:
            continue
        different = [f for f in settings() if getattr(first.trial, f.name) != getattr(trial, f.name)]
        reasons = "".join(f"; {_no_difference(f, first.trial, trial)}" for f in different)
        raise ConfigError(f"{combination.place}: the same trial as {first.place}: {_described(trial)}{reasons}")


def _no_difference(field: dataclasses.Field[Any], one: TrialConfig, other: TrialConfig) -> str:
    """Return a clause for an error message: why two values of a setting make the same trial, and how to correct it."""
    name = field.name
    if name in one.used():  # for example two files with the same content
        return f"{name}: {getattr(one, name)!r} and {getattr(other, name)!r} make no difference; give one of them"
    not_default = [trial for trial in (one, other) if getattr(trial, name) != field.default]
    return f"{why_unused(name, not_default)}, or give it to some trials alone, by `cases`"


def _described(trial: TrialConfig) -> str:
    """Return a trial's algorithm, seed and changed settings as text: `algorithm=bp, epochs=5, seed=0`."""
    defaults = {f.name: plain(f.default) for f in settings()}
    return ", ".join(f"{name}={value}" for name, value in trial.canonical().items()
                     if name in ("algorithm", "seed") or value != defaults[name])
