"""Format settings, levels and captions for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.runs import NO_VALUE as NO_VALUE
from analysis.runs import noise_sources
from analysis.runs import value_text as value_text
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.accounting.noise import standing
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import GUARANTEED
from pipeline.trials.naming import counted

PROTECTED = {"label": "labels only", "claimed": "no guarantee"}  # kinds that do not protect whole records


def settings_text(trial: TrialConfig, fields: Sequence[str]) -> str:
    """Return a trial's values of these fields, as `clipping_norm 2, batch_size 256`; omit fields that do not apply."""
    settings = trial.canonical()
    return ", ".join(f"{name} {value_text(settings[name])}" for name in fields if name in settings)


def short(value: float) -> str:
    """Return an epsilon with three digits or, from a thousand on, as an integer: `0.523`, `1,204`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


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
        relation = LABEL_RELATION if kind == "label" else runs.get("privacy.relation", "not tracked")
        points = runs.assign(relation=relation)
    guarantee_standing = standing(noise_sources(runs).dropna()) if kind in GUARANTEED else ""
    return under_assumptions(kind, points["relation"], points["sampler"], points["delta"], guarantee_standing)


def under_assumptions(kind: str, relations: Iterable[str], samplers: Iterable[str], deltas: Iterable[float],
                      guarantee_standing: str) -> str:
    """Return an epsilon with its assumptions, as `certified ε (simulated; add/remove, poisson, δ = 1e-05)`.

    The standing is from `accounting.noise.standing`, and empty for a kind that guarantees nothing.
    """
    limits = [PROTECTED[kind]] if kind in PROTECTED else []
    if guarantee_standing not in ("", "certified"):
        limits.append(guarantee_standing)
    relation, sampler = (" or ".join(sorted(set(names))) for names in (relations, samplers))
    delta = " or ".join(f"{delta:g}" for delta in sorted(set(deltas)))
    before = f"{', '.join(limits)}; " if limits else ""
    return f"{kind} ε ({before}{relation}, {sampler}, δ = {delta})"
