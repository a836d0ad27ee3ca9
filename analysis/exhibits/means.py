"""Means over seeds of every setting of any grid, one row per setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.frontier.points import tightest
from analysis.exhibits.metrics import HEADINGS, METRICS
from analysis.exhibits.table import Table
from analysis.runs import (
    ALGORITHM_LABELS,
    DATASET_LABELS,
    NON_PRIVATE,
    ask,
    by_noise,
    noise_sources,
    setting_label,
    trials_of,
)
from analysis.text import NO_VALUE, epsilon_text, means_text, value_text
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.accounting.noise import standing
from pipeline.experiment.factors import find_factors
from pipeline.trials.kinds import GUARANTEED
from pipeline.trials.naming import setting_key

SHOWN = ("mean", "half_width", "low", "high")  # columns of a score


@exhibit("means")
def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of means, a table."""
    table = tabulate(runs)
    return Exhibit("means", title="Means over seeds of every setting", texts=texts(table, runs), rows=table.round(4))


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per setting: algorithm, `noise` (a run's `setting`), the varied fields, n seeds, and scores.

    Every logged accuracy has `<metric>/mean`, `/half_width`, `/low` and `/high` in percent (95% t interval).
    `epsilon/<kind>`, for kinds with a guarantee, is the tightest logged value, the largest over seeds.

    Rows are sorted by noise, then by falling validation accuracy (test accuracy if there is none).
    """
    first_levels, *_ = find_factors(trials_of(runs))  # every run has a level of every factor
    varied_fields = [name for name in first_levels if name not in ("algorithm", "noise")]
    runs = runs.assign(key=ask(runs, setting_key), **{f"epsilon/{kind}": tightest(runs, kind) for kind in GUARANTEED})
    kinds = [kind for kind in GUARANTEED if runs[f"epsilon/{kind}"].notna().any()]
    scores = [name for name in HEADINGS if name in runs and runs[name].notna().any()]
    rows = []
    for _, setting_runs in runs.groupby("key", sort=False):
        first = setting_runs.iloc[0]  # runs of a setting differ only in their seed
        row = {"algorithm": first["algorithm"], "noise": first["setting"],
               **{name: first[name] for name in varied_fields}, "n": len(setting_runs)}
        for score in scores:
            values = 100 * setting_runs[score].dropna()
            summary = METRICS["accuracy"].summarize(values) if len(values) else {}
            row |= {f"{score}/{statistic}": summary.get(statistic, float("nan")) for statistic in SHOWN}
        row |= {f"epsilon/{kind}": setting_runs[f"epsilon/{kind}"].max() for kind in kinds}
        rows.append(row)
    return _sorted(pd.DataFrame(rows), scores)


def _sorted(table: pd.DataFrame, scores: Sequence[str]) -> pd.DataFrame:
    """Return the table sorted by noise, then by falling mean validation accuracy, or the first score without it."""
    rank_column = "n"
    if scores:
        score = "validation/accuracy" if "validation/accuracy" in scores else scores[0]
        rank_column = f"{score}/mean"
    noise_ranks = {noise: rank for rank, noise in enumerate(by_noise(table["noise"]))}
    table = table.assign(noise_rank=table["noise"].map(noise_ranks))
    table = table.sort_values(["noise_rank", rank_column], ascending=[True, False], kind="stable")
    return table.drop(columns="noise_rank").reset_index(drop=True)


def texts(table: pd.DataFrame, runs: pd.DataFrame) -> Texts:
    """Return a caption and the table; accuracies are `mean ± half width of the 95% t interval`."""
    scores = [name for name in HEADINGS if f"{name}/mean" in table]
    kinds = [name.removeprefix("epsilon/") for name in table if name.startswith("epsilon/")]
    fields = list(table.columns[2:table.columns.get_loc("n")])  # varied fields, between algorithm, noise and n
    header = ["algorithm", "noise", *fields, "n", *(HEADINGS[name] for name in scores),
              *(f"ε {kind}" for kind in kinds)]
    rows = []
    for row in table.to_dict("records"):
        setting = [ALGORITHM_LABELS[row["algorithm"]], setting_label(row["noise"]), *_settings(row, fields)]
        accuracies = [_score(row, name) for name in scores]
        epsilons = [_epsilon(row[f"epsilon/{kind}"]) for kind in kinds]
        rows.append([*setting, str(row["n"]), *accuracies, *epsilons])
    means = Table.of(header, rows, text_columns=range(2 + len(fields)))
    notes = [assumptions(kind, runs) for kind in kinds]
    if not kinds and (table["noise"] != NON_PRIVATE).any():
        notes = ["No trial has an ε that guarantees anything: noise here is a level, not a privacy."]
    return Texts((caption(table), means), notes=tuple(notes))


def caption(table: pd.DataFrame) -> str:
    """Return the caption: quantity, n, interval and order."""
    first = ", of one noise the best by validation first" if "validation/accuracy/mean" in table else ""
    return f"All {len(table)} settings{first}: accuracies at the last epoch, {means_text(table['n'])}."


def assumptions(kind: str, runs: pd.DataFrame) -> str:
    """Return a note on a table's epsilons of one kind: relation, sampler, delta, and whether noise is simulated."""
    with_epsilon = runs[tightest(runs, kind).notna()]
    relations = [LABEL_RELATION] if kind == "label" else with_epsilon.get("privacy.relation", ["not tracked"])
    epsilon = epsilon_text(kind, relations, with_epsilon["sampler"], with_epsilon["delta"],
                           standing(noise_sources(with_epsilon)))
    return f"Largest over seeds: {epsilon}."


def _settings(row: Mapping[str, Any], fields: Sequence[str]) -> list[str]:
    return [DATASET_LABELS[row[name]] if name == "dataset" else value_text(row[name]) for name in fields]


def _score(row: Mapping[str, Any], name: str) -> str:
    mean = row[f"{name}/mean"]
    return NO_VALUE if pd.isna(mean) else METRICS["accuracy"].text(mean, row[f"{name}/half_width"])


def _epsilon(value: float) -> str:
    return NO_VALUE if pd.isna(value) else f"{value:.3g}"
