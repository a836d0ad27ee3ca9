"""The command `photonic report` of two experiments: a table, a figure and a page in `reports/<A>-and-<B>`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.exhibit import Exhibit, save
from analysis.exhibits.headline import Headline
from analysis.labels import value_text
from analysis.report import match
from analysis.report.match import Comparison, Side, accuracies, names_of
from analysis.report.overview import abridged
from analysis.report.page import Page, render
from analysis.report.report import Report
from analysis.report.statements import epsilons, notes, state
from analysis.runs import ReportError, frame_of
from pipeline.experiment.experiment import Experiment
from pipeline.tracking.reader import Reader
from pipeline.trials.naming import counted


def write(a: Experiment, b: Experiment, store_a: Reader, store_b: Reader, out: Path | None = None) -> Report:
    """Write `comparison.csv`, `.md` and figure, and `index.html`.

    The folder is `reports/<A>-and-<B>` by default. Refused are one sweep twice, one that is not complete, and two
    without a match.
    """
    if a.name == b.name and store_a.uri == store_b.uri:
        raise ReportError(f"{a.name}: must be two sweeps, got one twice (`--mlruns-b DIR` names another store for B)")
    runs = []
    for experiment, store in ((a, store_a), (b, store_b)):
        if not experiment.plan.publishes_all:
            raise ReportError(f"{experiment.name}: only the best trial of random stopping may be published, so its "
                              "trials cannot be compared")
        store.attach(experiment.name)
        runs.append(frame_of(store.runs(), experiment.trials, source=experiment.source))
    label_a, label_b = _labels(a, b, runs)
    comparison = match.compare(Side(label_a, a, runs[0]), Side(label_b, b, runs[1]))
    exhibit = Exhibit("comparison", "Difference in test accuracy", match.texts(comparison),
                      comparison.table.round(6), plot(comparison))  # the data have all metrics
    differs, verdict = match.headline(comparison)
    said = Headline(verdict, details={"What differs": [differs]})
    contents = {**exhibit.files, "index.html": render(_page(comparison, exhibit, said)).encode()}
    folder = Path("reports", f"{a.name}-and-{b.name}") if out is None else out
    return Report(save(contents, folder), [exhibit], said)


def plot(comparison: Comparison) -> Figure:
    """Return a figure of the differences in test accuracy with their intervals, a row per setting.

    Colours are those of A's algorithms.
    """
    rows = accuracies(comparison).to_dict("records")
    with style.theme():
        figure, (ax,) = style.panels(1, height=1.1 + 0.24 * len(rows))
        for y, row in enumerate(rows):
            look = style.look(row["algorithm_a"])
            ax.plot(row["difference"], y, markersize=5, markeredgewidth=0, color=look["color"], marker=look["marker"])
            if not math.isnan(row["low"]):
                ax.plot([row["low"], row["high"]], [y, y], color=look["color"], linewidth=1.2, alpha=0.7)
        ax.axvline(0, color="0.5", linewidth=0.8, zorder=0)
        names = []
        for row in rows:
            settings = [f"{name} = {value_text(row[name])}" for name in comparison.shown]
            names.append(", ".join([*names_of(row), *settings]))
        ax.set_yticks(range(len(rows)), names)
        ax.set_ylim(len(rows) - 0.4, -0.6)  # the first row is at the top
        ax.set_xlabel(f"Test accuracy, {comparison.b.label} less {comparison.a.label} (points)")
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
    return figure


def _page(comparison: Comparison, exhibit: Exhibit, headline: Headline) -> Page:
    runs = pd.concat([comparison.a.runs, comparison.b.runs])
    facts = []
    for side in (comparison.a, comparison.b):
        commits = ", ".join(_commits(side.runs)) or "not recorded"
        facts.append((side.label, f"{counted(len(side.runs), 'trial')}, commit {commits}"))
    return Page(title=f"{comparison.a.label} and {comparison.b.label}", what="Comparison", headline=headline,
                facts=facts, exhibits=[exhibit], privacy=state(runs), epsilons=epsilons(runs), notes=notes(runs))


def _labels(a: Experiment, b: Experiment, runs: Sequence[pd.DataFrame]) -> tuple[str, str]:
    """Return names of the two sides: experiment names; if equal, with commits; if these are equal too, with A and B."""
    if a.name != b.name:
        return a.name, b.name
    commits_a, commits_b = (_commits(frame) for frame in runs)
    if commits_a != commits_b and len(commits_a) == len(commits_b) == 1:
        return f"{a.name} at {commits_a[0]}", f"{b.name} at {commits_b[0]}"
    return f"{a.name} (A)", f"{b.name} (B)"


def _commits(runs: pd.DataFrame) -> list[str]:
    commits = runs["git_commit"].dropna().unique() if "git_commit" in runs else ()
    return [abridged(commit) for commit in commits]
