"""Table 1 of Ohana et al. 2021: test accuracy by algorithm and noise, beside the published one.

R. Ohana et al., "Photonic Differential Privacy with Direct Feedback Alignment", NeurIPS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from analysis.exhibits.envelope import averaged, ordered
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.table import Table, crossed
from analysis.labels import DATASETS, NO_VALUE, NON_PRIVATE, algorithm_labels, by_noise, setting_label
from analysis.runs import ReportError, common_value, require_replicates, trials_of
from analysis.statistics import plus_minus
from analysis.text import means_text
from pipeline.trials.naming import counted

SOURCE = "Ohana et al. 2021, Table 1"
# The paper's setting; its numbers are compared only with trials of this setting.
SETTING = {"dataset": "fashion_mnist", "network": "mlp", "hidden": (512, 512), "activation": "tanh", "batch_size": 256,
           "epochs": 15}
_SETTINGS = ("non-private", "0", "0.01", "0.03", "0.05", "0.1", "0.2")
# Test accuracy in percent. One run each, as far as the paper says; pdfa ran on an OPU.
_ROWS = {
    "bp": (88.33, 75.22, 70.71, 71.47, 71.27, 70.28, 66.78),
    "dfa": (86.80, 84.20, 84.04, 84.15, 83.70, 83.06, 81.66),
    "tdfa": (86.63, 84.20, 84.38, 84.04, 83.94, 82.98, 80.80),
    "pdfa": (85.85, 84.00, 83.79, 83.69, 83.36, 82.63, 80.94),
}
LEARNING_RATE, LEARNING_RATE_BP_PRIVATE = 0.01, 1e-4  # Section 4, "Setting" and "BP baseline"
COLUMNS = ["algorithm", "setting", "accuracy_mean", "accuracy_half_width", "accuracy_low", "accuracy_high", "n",
           "paper", "difference"]


def published(runs: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return (algorithm, setting) -> the paper's accuracy; empty unless all runs have the paper's setting."""
    if not all(value == of_paper for field, of_paper in SETTING.items() for value in runs[field]):
        return {}
    return {(algorithm, setting): accuracy for algorithm, row in _ROWS.items()
            for setting, accuracy in zip(_SETTINGS, row, strict=True)}


def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of the table; errors as in `tabulate`."""
    table = tabulate(runs)
    return Exhibit("table1", title="Test accuracy by noise level", texts=texts(runs, table), rows=table.round(4))


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return mean test accuracy in percent, per (algorithm, setting), and its difference from the paper's.

    A diverged trial counts with its final weights: leaving it out would flatter its setting. `paper` and `difference`
    are empty without a comparable cell. Trials of one cell may differ only in their seed (`MixedTrials`).
    """
    if runs.empty:
        raise ReportError("table1: needs at least one trial, got none")
    require_replicates(runs)
    by = ["algorithm", "setting"]
    table = ordered(averaged(runs, by, "accuracy"), by)
    table = table.rename(columns={name: f"accuracy_{name}" for name in ("mean", "half_width", "low", "high")})
    paper = published(runs)
    table["paper"] = [paper.get((row.algorithm, row.setting), math.nan) for row in table.itertuples()]
    return table.assign(difference=table["accuracy_mean"] - table["paper"])[COLUMNS]


def texts(runs: pd.DataFrame, table: pd.DataFrame) -> Texts:
    """Return a captioned table with cells `ours (paper)`, one with a row per cell and more detail, and notes."""
    cells, details = {}, []
    for row in table.itertuples():
        algorithm, noise = algorithm_labels()[row.algorithm], setting_label(row.setting)
        paper = "" if math.isnan(row.paper) else f"{row.paper:.2f}"
        ours = plus_minus(row.accuracy_mean, half_width=row.accuracy_half_width)
        cells[algorithm, noise] = f"{ours} ({paper})" if paper else ours
        interval = NO_VALUE if math.isnan(row.accuracy_low) else f"{row.accuracy_low:.2f} to {row.accuracy_high:.2f}"
        details.append([algorithm, noise, f"{row.accuracy_mean:.2f}", interval, f"{row.n}", paper or NO_VALUE,
                        f"{row.difference:+.2f}" if paper else NO_VALUE])
    grid = crossed((name for name, _ in cells), map(setting_label, by_noise(table["setting"])), cells)
    header = ["", "noise", "mean", "95% interval", "n", "paper", "difference"]
    return Texts((caption(runs, table), grid),
                 more=("By cell: mean over n seeds, 95% t interval, and difference from the paper, in points.",
                       Table.of(header, details, text_columns=(0, 1))),
                 notes=tuple(_notes(runs, table)))


def caption(runs: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return the caption: data, n, interval, and a remark on sigma."""
    beside = f", in parentheses that of {SOURCE}" if table["paper"].notna().any() else ""
    return (f"Test accuracy (%) on {DATASETS[common_value(runs['dataset'])].label} after "
            f"{counted(_listed(runs['epochs']), 'epoch')}{beside}: {means_text(table['n'])}. σ is a noise level, "
            "not a privacy level.")


def _notes(runs: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    sentences = []
    if table["n"].max() > 1:
        some_without = "" if table["n"].min() > 1 else ", and none where n = 1"
        sentences.append(f"Intervals are at most ±{table['accuracy_half_width'].max():.2f} points{some_without}.")
    diverged = runs[runs["status"] == "diverged"].groupby(["algorithm", "setting"], sort=False).size()
    if len(diverged):
        names = ", ".join(f"{algorithm_labels()[algorithm]} {setting_label(setting)} ({count})"
                          for (algorithm, setting), count in diverged.items())
        sentences.append(f"Diverged trials: {names}; they count with the weights they ended with, records without a "
                         "finite output as wrong.")
    sentences.append(f"Learning rates: {_learning_rates(runs)}.")
    has_published = table["paper"].notna().any()
    if has_published:
        sentences.append(f"The paper states {LEARNING_RATE:g}, and {LEARNING_RATE_BP_PRIVATE:g} for BP with noise.")
    projectors = {trial.projector for trial in trials_of(runs) if trial.parts.feedback.optical}
    if projectors:
        projector = "a simulated OPU" if projectors == {"opu_simulated"} else _listed(projectors)
        papers_projector = "; the paper, an optical one" if has_published else ""
        sentences.append(f"PDFA used {projector}{papers_projector}.")
    return sentences


def _learning_rates(runs: pd.DataFrame) -> str:
    """Return the runs' learning rates as text: `BP: 0.01; DFA, PDFA: 0.01 non-private, 1 with the mechanism`.

    Algorithms with the same rates share an entry. Trials with and without the mechanism are told apart only if an
    algorithm has several rates.
    """
    labels_by_rates: dict[str, list[str]] = {}  # rates as text -> labels of the algorithms with these rates
    for algorithm, label in algorithm_labels().items():
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
