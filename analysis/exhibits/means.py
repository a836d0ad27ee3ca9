"""The exhibit `means`: means over seeds of every setting of any grid, a row each."""

from __future__ import annotations

import pandas as pd

from analysis.exhibits.envelope import ordered
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.frontier.points import tightest
from analysis.exhibits.metrics import HEADINGS, METRICS
from analysis.exhibits.table import Table
from analysis.labels import DATASETS, NO_VALUE, NON_PRIVATE, algorithm_labels, setting_label, value_text
from analysis.runs import ask, trials_of
from analysis.text import epsilon_text, means_text
from pipeline.experiment.factors import find_factors
from pipeline.trials.kinds import GUARANTEED
from pipeline.trials.naming import setting_key

SHOWN = ("mean", "half_width", "low", "high")  # columns of a score


def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of means, a table."""
    table = tabulate(runs)
    return Exhibit("means", title="Means over seeds of every setting", texts=texts(table, runs), rows=table.round(4))


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per setting: algorithm, `noise` (a run's `setting`), the varied fields, n seeds, and scores.

    Every logged accuracy has `<metric>/mean`, `/half_width`, `/low` and `/high` in percent (95% t interval).
    `epsilon/<kind>`, for kinds with a guarantee, is the tightest logged value, the largest over seeds. Rows are sorted
    by noise, then by falling validation accuracy (test accuracy if there is none).
    """
    first_levels, *_ = find_factors(trials_of(runs))  # every run has a level of every factor
    varied_fields = [name for name in first_levels if name not in ("algorithm", "noise")]
    epsilons = {f"epsilon/{kind}": tightest(runs, kind) for kind in GUARANTEED}
    logged = [name for name, values in epsilons.items() if values.notna().any()]
    runs = runs.assign(key=ask(runs, setting_key), **epsilons)
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
        rows.append(row | {name: setting_runs[name].max() for name in logged})
    rank_by = next((f"{name}/mean" for name in ("validation/accuracy", *scores) if name in scores), "n")
    table = pd.DataFrame(rows).sort_values(rank_by, ascending=False, kind="stable")
    return ordered(table.rename(columns={"noise": "setting"}), ["setting"]).rename(columns={"setting": "noise"})


def texts(table: pd.DataFrame, runs: pd.DataFrame) -> Texts:
    """Return a caption and the table; accuracies are `mean ± half width of the 95% t interval`."""
    scores = [name for name in HEADINGS if f"{name}/mean" in table]
    kinds = [name.removeprefix("epsilon/") for name in table if name.startswith("epsilon/")]
    fields = list(table.columns[2:table.columns.get_loc("n")])  # varied fields, between algorithm, noise and n
    header = ["algorithm", "noise", *fields, "n", *(HEADINGS[name] for name in scores),
              *(f"ε {kind}" for kind in kinds)]
    rows = []
    for row in table.to_dict("records"):
        cells = [algorithm_labels()[row["algorithm"]], setting_label(row["noise"])]
        cells += [DATASETS[row[name]].label if name == "dataset" else value_text(row[name]) for name in fields]
        cells.append(str(row["n"]))
        for name in scores:
            mean, half_width = row[f"{name}/mean"], row[f"{name}/half_width"]
            cells.append(NO_VALUE if pd.isna(mean) else METRICS["accuracy"].text(mean, half_width))
        for kind in kinds:
            epsilon = row[f"epsilon/{kind}"]
            cells.append(NO_VALUE if pd.isna(epsilon) else f"{epsilon:.3g}")
        rows.append(cells)
    notes = [f"Largest over seeds: {epsilon_text(kind, runs[tightest(runs, kind).notna()])}." for kind in kinds]
    if not kinds and (table["noise"] != NON_PRIVATE).any():
        notes = ["No trial has an ε that guarantees anything: noise here is a level, not a privacy."]
    first = ", of one noise the best by validation first" if "validation/accuracy/mean" in table else ""
    caption = f"All {len(table)} settings{first}: accuracies at the last epoch, {means_text(table['n'])}."
    return Texts((caption, Table.of(header, rows, text_columns=range(2 + len(fields)))), notes=tuple(notes))
