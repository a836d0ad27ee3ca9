"""Sentences and parts of sentences on runs and points, for captions and notes: n, interval, epsilon, what is fixed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pandas as pd

from analysis.labels import algorithm_labels, level_name, value_text
from analysis.layout import AMOUNT, level
from analysis.runs import ask, relations, standing_of, trials_of
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import GUARANTEED
from pipeline.trials.naming import counted

PROTECTED = {"label": "labels only", "claimed": "no guarantee"}  # kinds that do not protect whole records
# What a note names as fixed, if all trials have one value.
TOLD = ("dataset", "features", "network", "mechanism", AMOUNT, "tau_h", "clipping_norm", "batch_size",
        "epochs", "learning_rate", "optimizer")


def with_levels(runs: pd.DataFrame, factors: Sequence[str]) -> pd.DataFrame:
    """Return runs whose columns of these factors have what figures compare: the method in place of the algorithm."""
    return runs.assign(**{name: ask(runs, partial(level, factor=name)) for name in factors})


def fixed_text(runs: pd.DataFrame, varied: Sequence[str]) -> str:
    """Return sentences on what all runs share, and what those of an algorithm do.

    Such as `Fixed: Fashion-MNIST, η = 0.1. By algorithm: BP epochs = 40; DFA epochs = 20.`
    """
    names = [name for name in TOLD if name not in varied]
    shared = _shared(runs, names)
    of_algorithms = {algorithm_labels()[algorithm]: _shared(group, [name for name in names if name not in shared])
                     for algorithm, group in runs.groupby("algorithm", sort=False)}
    follows = set.intersection(*map(set, of_algorithms.values()))  # names of settings that follow the algorithm
    told = [f"Fixed: {', '.join(filter(None, shared.values()))}."] if any(shared.values()) else []
    if follows:
        own = (f"{label} {', '.join(text for name, text in found.items() if name in follows and text)}"
               for label, found in of_algorithms.items())
        told.append(f"By algorithm: {'; '.join(own)}.")
    return " ".join(told)


def _shared(runs: pd.DataFrame, names: Sequence[str]) -> dict[str, str]:
    """Return those of the settings that are the same in all runs, in words; empty where one does not apply."""
    values = {name: {level(trial, name) for trial in trials_of(runs)} for name in names}
    return {name: level_name(name, found.pop(), named=True) for name, found in values.items() if len(found) == 1}


def settings_text(trial: TrialConfig, fields: Sequence[str]) -> str:
    """Return a trial's values of these fields, as `clipping_norm 2, batch_size 256`; omit fields that do not apply."""
    settings = trial.canonical()
    return ", ".join(f"{name} {value_text(settings[name])}" for name in fields if name in settings)


def n_seeds(counts: pd.Series) -> str:
    """Return `n = 3 seeds` or `n = 1 to 3 seeds`, from the number of seeds of every mean."""
    fewest, most = counts.min(), counts.max()
    number = most if fewest == most else f"{fewest} to {most}"
    return f"n = {counted(number, 'seed')}"


def means_text(counts: pd.Series, interval: str = "± 95% t interval") -> str:
    """Return `mean over n = 3 seeds ± 95% t interval`, from the seed count of every mean; n = 1 has no interval."""
    return "one seed each (n = 1)" if counts.max() == 1 else f"mean over {n_seeds(counts)} {interval}"


def best_of(max_choices: int) -> str:
    """Return `, best of up to 4 settings by validation`; empty if there was no choice."""
    return "" if max_choices == 1 else f", best of up to {max_choices} settings by validation"


def epsilon_text(kind: str, runs: pd.DataFrame, points: pd.DataFrame | None = None) -> str:
    """Return an epsilon with the assumptions of the runs that have it (`under_assumptions`).

    Relation, sampler and delta are those of the points, if points are shown in place of the runs.
    """
    if points is None:
        points = runs.assign(relation=relations(runs, kind))
    guarantee_standing = standing_of(runs) if kind in GUARANTEED else ""
    return under_assumptions(kind, points["relation"], points["sampler"], points["delta"], guarantee_standing)


def under_assumptions(kind: str, relations: Iterable[str], samplers: Iterable[str], deltas: Iterable[float],
                      guarantee_standing: str) -> str:
    """Return an epsilon with its assumptions, as `certified ε (simulated; add/remove, poisson, δ = 1e-05)`.

    The standing is from `kinds.standing`, and empty for a kind that guarantees nothing.
    """
    limits = [PROTECTED[kind]] if kind in PROTECTED else []
    if guarantee_standing not in ("", "certified"):
        limits.append(guarantee_standing)
    relation, sampler = (" or ".join(sorted(set(names))) for names in (relations, samplers))
    delta = " or ".join(f"{delta:g}" for delta in sorted(set(deltas)))
    before = f"{', '.join(limits)}; " if limits else ""
    return f"{kind} ε ({before}{relation}, {sampler}, δ = {delta})"
