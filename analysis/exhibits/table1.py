"""Table 1 of Ohana et al. 2021: test accuracy by algorithm and noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from analysis.exhibits import paper
from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.envelope import averaged
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.table import Table
from analysis.runs import (
    ALGORITHM_LABELS,
    DATASET_LABELS,
    NON_PRIVATE,
    ReportError,
    by_noise,
    common_value,
    require_replicates,
    setting_label,
    trials_of,
)
from analysis.statistics import plus_minus
from analysis.style import present
from analysis.text import NO_VALUE, means_text
from pipeline.trials.naming import counted

COLUMNS = ["algorithm", "setting", "accuracy_mean", "accuracy_half_width", "accuracy_low", "accuracy_high", "n",
           "paper", "difference"]


@exhibit("table1")
def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of the table; errors as in `tabulate`."""
    table = tabulate(runs)
    return Exhibit("table1", title="Test accuracy by noise level", texts=texts(runs, table), rows=table.round(4))


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return test accuracy at the last epoch in percent: mean and 95% interval over seeds, per (algorithm, setting).

    A diverged trial counts with its final weights, and a record without a finite output counts as wrong: leaving the
    trial out would flatter its setting. A note names it. `paper` and `difference` (ours minus the paper's) are empty if
    the paper has no such cell. They are also empty if trials have another data set, network, batch size or number of
    epochs than the paper's. Trials of one cell may differ only in their seed (`MixedTrials`).
    """
    if runs.empty:
        raise ReportError("table1: needs at least one trial, got none")
    require_replicates(runs)
    by = ["algorithm", "setting"]
    table = averaged(runs, by, "accuracy").set_index(by)
    table = table.rename(columns={name: f"accuracy_{name}" for name in ("mean", "half_width", "low", "high")})
    order = pd.MultiIndex.from_product([ALGORITHM_LABELS, by_noise(runs["setting"])], names=by)
    table = table.reindex(order.intersection(table.index, sort=False))
    published = paper.TABLE1 if paper.is_setting(runs) else {}
    table["paper"] = [published.get(cell, math.nan) for cell in table.index]
    return table.assign(difference=table["accuracy_mean"] - table["paper"]).reset_index()[COLUMNS]


def texts(runs: pd.DataFrame, table: pd.DataFrame) -> Texts:
    """Return the texts of the exhibit: a captioned table, a captioned table with more detail, and notes.

    The first table has algorithms as rows, noise settings as columns and cells `ours (paper)`. The second has a row per
    cell: interval, number of seeds n, and difference from the paper. Accuracies are in percent, and their differences
    in percentage points.
    """
    settings, grid_rows = _grid(table)
    grid = Table.of(["", *map(setting_label, settings)], grid_rows)
    detail_header = ["", "noise", "mean", "95% interval", "n", "paper", "difference"]
    detail = Table.of(detail_header, map(_detail_row, table.itertuples()), text_columns=(0, 1))
    detail_caption = "By cell: mean over n seeds, 95% t interval, and difference from the paper, in points."
    return Texts(body=(caption(runs, table), grid), more=(detail_caption, detail), notes=tuple(_notes(runs, table)))


def caption(runs: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return the caption: data, n, interval, and a remark on sigma."""
    published = f", in parentheses that of {paper.SOURCE}" if table["paper"].notna().any() else ""
    return (f"Test accuracy (%) on {DATASET_LABELS[common_value(runs['dataset'])]} after "
            f"{counted(_listed(runs['epochs']), 'epoch')}{published}: {means_text(table['n'])}. σ is a noise level, "
            "not a privacy level.")


def _notes(runs: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Return notes on intervals, learning rates, diverged trials and differences from the paper."""
    has_published = table["paper"].notna().any()
    sentences = []
    if table["n"].max() > 1:
        some_without = "" if table["n"].min() > 1 else ", and none where n = 1"
        sentences.append(f"Intervals are at most ±{table['accuracy_half_width'].max():.2f} points{some_without}.")
    sentences += [*_divergence(runs), f"Learning rates: {_learning_rates(runs)}."]
    if has_published:
        sentences.append(f"The paper states {paper.LEARNING_RATE:g}, and {paper.LEARNING_RATE_BP_PRIVATE:g} for BP "
                         "with noise.")
    projectors = {trial.projector for trial in trials_of(runs) if trial.parts.feedback.optical}
    if projectors:
        projector = "a simulated OPU" if projectors == {"opu_simulated"} else _listed(projectors)
        papers_projector = "; the paper, an optical one" if has_published else ""
        sentences.append(f"PDFA used {projector}{papers_projector}.")
    return sentences


def _detail_row(row: Any) -> list[str]:  # Any: a row of `DataFrame.itertuples`
    """Return the cells of one (algorithm, noise setting): names, mean in percent, interval, n, paper, difference."""
    interval = NO_VALUE if math.isnan(row.accuracy_low) else f"{row.accuracy_low:.2f} to {row.accuracy_high:.2f}"
    published, difference = f"{row.paper:.2f}", f"{row.difference:+.2f}"
    if math.isnan(row.paper):
        published = difference = NO_VALUE
    return [ALGORITHM_LABELS[row.algorithm], setting_label(row.setting), f"{row.accuracy_mean:.2f}", interval,
            f"{row.n}", published, difference]


def _grid(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the noise settings (columns), and for each algorithm its label and the text of its cells."""
    settings = by_noise(table["setting"])
    cells = {(row.algorithm, row.setting): _cell(row) for row in table.itertuples()}
    rows = []
    for algorithm in present(table):
        accuracies = [cells.get((algorithm, setting), NO_VALUE) for setting in settings]
        rows.append([ALGORITHM_LABELS[algorithm], *accuracies])
    return settings, rows


def _cell(row: Any) -> str:
    """Return the text of a cell, in percent: `ours ± half width (paper)`, without the paper if it has no such cell."""
    ours = plus_minus(row.accuracy_mean, half_width=row.accuracy_half_width)
    return ours if math.isnan(row.paper) else f"{ours} ({row.paper:.2f})"


def _divergence(runs: pd.DataFrame) -> list[str]:
    """Return a sentence that counts diverged trials by algorithm and noise setting; empty without such trials."""
    diverged = runs[runs["status"] == "diverged"]
    if diverged.empty:
        return []
    counts = diverged.groupby(["algorithm", "setting"], sort=False).size()
    names = ", ".join(f"{ALGORITHM_LABELS[algorithm]} {setting_label(setting)} ({count})"
                      for (algorithm, setting), count in counts.items())
    return [f"Diverged trials: {names}; they count with the weights they ended with, records without a finite output "
            "as wrong."]


def _learning_rates(runs: pd.DataFrame) -> str:
    """Return the runs' learning rates as text: `BP: 0.01; DFA, PDFA: 0.01 non-private, 1 with the mechanism`.

    Algorithms with the same rates share an entry. Trials with and without the mechanism are told apart only if an
    algorithm has several rates.
    """
    labels_by_rates: dict[str, list[str]] = {}  # rates as text -> labels of the algorithms with these rates
    for algorithm, label in ALGORITHM_LABELS.items():
        trials = runs[runs["algorithm"] == algorithm]
        if trials.empty:
            continue
        rates = trials["learning_rate"]
        rates_text = _listed(rates)
        if rates.nunique() > 1:
            is_non_private = trials["setting"] == NON_PRIVATE
            groups = {NON_PRIVATE: rates[is_non_private], "with the mechanism": rates[~is_non_private]}
            rates_text = ", ".join(f"{_listed(group)} {name}" for name, group in groups.items() if len(group))
        labels_by_rates.setdefault(rates_text, []).append(label)
    return "; ".join(f"{', '.join(labels)}: {rates_text}" for rates_text, labels in labels_by_rates.items())


def _listed(values: Iterable[Any]) -> str:
    """Return distinct values as text: `a`, or `a or b`."""
    distinct = sorted(set(values))
    return " or ".join(v if isinstance(v, str) else f"{v:g}" for v in distinct)
