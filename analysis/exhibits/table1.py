"""Table 1 of Ohana et al. 2021: test accuracy by algorithm and noise, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import math

import pandas as pd

from analysis.exhibits import paper
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.table import Table
from analysis.runs import (
    ALGORITHM_LABELS,
    DATASET_LABELS,
    NON_PRIVATE,
    ReportError,
    by_noise,
    require_accuracy,
    require_replicates,
    setting_label,
)
from analysis.statistics import plus_minus
from analysis.style import present
from analysis.text import NO_VALUE, ONE_SEED, n_seeds
from pipeline.trials.naming import counted

COLUMNS = ["algorithm", "setting", "accuracy_mean", "accuracy_half_width", "accuracy_low", "accuracy_high", "n",
           "paper", "difference"]


def draw(runs: pd.DataFrame) -> Exhibit:
    """The table, in LaTeX too; errors as `tabulate`."""
    table = tabulate(runs)
    text = caption(runs, table)
    return Exhibit("table1", "Test accuracy by noise level", body(table, text), table.round(4),
                   others={"table1.tex": to_latex(table, text)})


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy at the last epoch, in percent: mean and 95% interval over the seeds of every (algorithm, setting).

    A diverged trial counts with the test accuracy of the weights it ended with, where a record without a finite
    output counts as wrong (leaving the trial out would flatter its setting); `caption` names it.
    `paper` and `difference`, ours less the paper's, are empty where the paper has no such cell, or where trials differ
    from the paper's in dataset, network, batch size or epochs.

    Raises:
        ReportError: for no trial at all, or one without `test/accuracy`.
        MixedTrials: if trials of one cell differ in more than their seed.
    """
    if runs.empty:
        raise ReportError("table1: needs at least one trial, got none")
    require_replicates(runs)
    require_accuracy(runs)
    is_papers_setting = paper.is_setting(runs)
    rows = []
    for algorithm in ALGORITHM_LABELS:
        for setting in by_noise(runs.loc[runs["algorithm"] == algorithm, "setting"]):
            cell = runs.loc[(runs["algorithm"] == algorithm) & (runs["setting"] == setting), "test/accuracy"]
            published = paper.TABLE1.get((algorithm, setting), math.nan) if is_papers_setting else math.nan
            found = METRICS["accuracy"].summarize(cell * 100)
            interval = [found[name] for name in ("mean", "half_width", "low", "high", "n")]
            rows.append((algorithm, setting, *interval, published, found["mean"] - published))
    return pd.DataFrame(rows, columns=COLUMNS)


def caption(runs: pd.DataFrame, table: pd.DataFrame) -> str:
    """What a reader must know of `table`: n, interval, dataset, learning rates, what diverged, what sigma is not."""
    compared = table["paper"].notna().any()
    sentences = [f"Test accuracy (%) on {DATASET_LABELS[runs['dataset'].iloc[0]]} after "
                 f"{counted(_listed(runs['epochs']), 'epoch')}"
                 f"{f', in parentheses that of {paper.SOURCE}' if compared else ''}.",
                 _uncertainty(table), *_divergence(runs), f"Learning rates: {_learning_rates(runs)}."]
    if compared:
        sentences.append(f"The paper states {paper.LEARNING_RATE:g}, and {paper.LEARNING_RATE_BP_PRIVATE:g} for BP "
                         "with noise.")
    projectors = set(runs.loc[runs["algorithm"] == "pdfa", "projector"])
    if projectors:
        kind = "a simulated OPU" if projectors == {"opu_simulated"} else f"{_listed(projectors)}"
        sentences.append(f"PDFA used {kind}{'; the paper, an optical one' if compared else ''}.")
    sentences.append("σ is a noise level, not a privacy level: the ε that Ohana et al. 2021 claim for it (kind "
                     "“claimed”) is no guarantee.")
    return " ".join(sentences)


def body(table: pd.DataFrame, text: str) -> tuple[str, Table, Table]:
    """Two tables below their caption: algorithms as rows, settings as columns and cells `ours (paper)`; and a row for
    each cell with its interval, n and difference from the paper."""
    settings, rows = _grid(table)
    header = ["", "noise", "mean", "95% interval", "n", "paper", "difference"]
    return (text, Table.of(["", *map(setting_label, settings)], rows),
            Table.of(header, map(_long_row, table.itertuples()), texts=(0, 1)))


def _long_row(row: tuple) -> list[str]:
    interval = NO_VALUE if math.isnan(row.accuracy_low) else f"{row.accuracy_low:.2f} to {row.accuracy_high:.2f}"
    against = [NO_VALUE] * 2 if math.isnan(row.paper) else [f"{row.paper:.2f}", f"{row.difference:+.2f}"]
    return [ALGORITHM_LABELS[row.algorithm], setting_label(row.setting), f"{row.accuracy_mean:.2f}", interval,
            f"{row.n}", *against]


def to_latex(table: pd.DataFrame, text: str, label: str = "tab:table1") -> str:
    r"""A LaTeX `table` to \input; needs the package booktabs only."""
    settings, rows = _grid(table)
    header = ["", *(s if s == NON_PRIVATE else rf"$\sigma = {s}$" for s in settings)]
    body = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in rows]
    return "\n".join([r"\begin{table}", r"\centering", rf"\caption{{{_latex(text)}}}", rf"\label{{{label}}}",
                      rf"\begin{{tabular}}{{l{'r' * len(settings)}}}", r"\toprule", " & ".join(header) + r" \\",
                      r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _grid(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Settings, and a row of label and cells per algorithm."""
    settings = by_noise(table["setting"])
    cells = {(row.algorithm, row.setting): _cell(row) for row in table.itertuples()}
    return settings, [[ALGORITHM_LABELS[a], *(cells.get((a, s), NO_VALUE) for s in settings)] for a in present(table)]


def _cell(row: tuple) -> str:
    ours = plus_minus(row.accuracy_mean, half_width=row.accuracy_half_width)
    return ours if math.isnan(row.paper) else f"{ours} ({row.paper:.2f})"


def _uncertainty(table: pd.DataFrame) -> str:
    if table["n"].max() == 1:
        return ONE_SEED
    return (f"Mean over {n_seeds(table['n'])}; ± is the 95% t interval over seeds, at most "
            f"±{table['accuracy_half_width'].max():.2f} points{'' if table['n'].min() > 1 else ', none where n = 1'}.")


def _divergence(runs: pd.DataFrame) -> list[str]:
    diverged = runs[runs["status"] == "diverged"]
    if diverged.empty:
        return []
    counts = diverged.groupby(["algorithm", "setting"], sort=False).size()
    names = ", ".join(f"{ALGORITHM_LABELS[a]} {setting_label(s)} ({count})"
                      for (a, s), count in counts.items())
    return [f"Diverged trials: {names}; they count with the weights they ended with, records without a finite output "
            "as wrong."]


def _learning_rates(runs: pd.DataFrame) -> str:
    """`BP: 0.01; DFA, PDFA: 0.01 non-private, 1 with noise`, read from the runs."""
    texts: dict[str, list[str]] = {}
    for algorithm, label in ALGORITHM_LABELS.items():
        own = runs[runs["algorithm"] == algorithm]
        plain = own.loc[own["setting"] == NON_PRIVATE, "learning_rate"]
        noisy = own.loc[own["setting"] != NON_PRIVATE, "learning_rate"]
        if own.empty:
            continue
        parts = [f"{_listed(rates)} {name}" for rates, name in ((plain, NON_PRIVATE), (noisy, "with the mechanism"))
                 if len(rates)]
        text = _listed(own["learning_rate"]) if own["learning_rate"].nunique() == 1 else ", ".join(parts)
        texts.setdefault(text, []).append(label)
    return "; ".join(f"{', '.join(labels)}: {text}" for text, labels in texts.items())


def _listed(values: object) -> str:
    """Distinct values, `a`, or `a or b`."""
    distinct = sorted(set(values))
    return " or ".join(v if isinstance(v, str) else f"{v:g}" for v in distinct)


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "σ": r"$\sigma$",
          "ε": r"$\varepsilon$", "±": r"$\pm$", "–": "--", "“": "``", "”": "''", **{c: f"\\{c}" for c in "&%$#_{}"}}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
