"""Write the report of a comparison: table, figures and a page under `reports/<A>-and-<B>`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.comparison import match
from analysis.comparison.match import Comparison, Side, accuracies, names_of, overlay
from analysis.exhibits.exhibit import Exhibit, Texts, save
from analysis.exhibits.frontier.exhibit import tidy
from analysis.exhibits.frontier.points import on_axis
from analysis.report.overview import abridged
from analysis.report.page import Page, render
from analysis.report.report import Report
from analysis.report.statements import epsilons, notes, state
from analysis.runs import ALGORITHM_LABELS, ReportError, load_runs, noise_sources
from analysis.text import BARS, epsilon_text, means_text, value_text
from pipeline.accounting.noise import standing
from pipeline.experiment.experiment import Experiment
from pipeline.tracking.reader import Reader
from pipeline.trials.naming import counted


def write(a: Experiment, b: Experiment, store_a: Reader, store_b: Reader, out: Path | None = None) -> Report:
    """Write `comparison.csv`, `.md` and figure, `index.html` and, if both have a frontier, `frontiers.*`.

    Args:
        a, b: the experiments.
        store_a, store_b: their tracking stores; may be the same.
        out: the folder, created if missing; by default `reports/<A>-and-<B>`.

    Raises:
        ReportError: if A and B are one sweep, one is not complete, or no trials match.
        TrackingError: if a store has no such sweep.
    """
    if a.name == b.name and store_a.uri == store_b.uri:
        raise ReportError(f"{a.name}: must be two sweeps, got one twice (`--mlruns-b DIR` names another store for B)")
    runs = []
    for experiment, store in ((a, store_a), (b, store_b)):
        if experiment.candidates:
            raise ReportError(f"{experiment.name}: only the best trial of random stopping may be published, so its "
                              "trials cannot be compared")
        store.attach(experiment.name)
        runs.append(load_runs(store, experiment.trials, source=experiment.source))
    found = match.compare(*(Side(*side) for side in zip(_labels(a, b, runs), (a, b), runs, strict=True)))
    pairs = overlay(found)
    exhibits = [draw(found), *([draw_overlay(found, pairs)] if pairs else [])]
    contents = {name: content for exhibit in exhibits for name, content in exhibit.files.items()}
    said = match.headline(found)
    contents["index.html"] = render(_page(found, exhibits, said)).encode()
    folder = Path("reports", f"{a.name}-and-{b.name}") if out is None else out
    return Report(save(contents, folder), exhibits, said, [])


def draw(found: Comparison) -> Exhibit:
    """Make the exhibit of differences in test accuracy; its data have all metrics."""
    return Exhibit("comparison", "Difference in test accuracy", match.texts(found), found.table.round(6), plot(found))


def plot(found: Comparison) -> Figure:
    """Plot differences in test accuracy with their intervals, a row per setting, 7.2 inches wide.

    Colours are those of A's algorithms.
    """
    shown = accuracies(found)
    with style.theme():
        figure = Figure(figsize=(7.2, 1.1 + 0.24 * len(shown)), layout="constrained")
        ax = figure.subplots()
        for place, row in enumerate(shown.to_dict("records")):
            look = {name: style.look(row["algorithm_a"])[name] for name in ("color", "marker")}
            ax.plot(row["difference"], place, markersize=5, markeredgewidth=0, **look)
            if not math.isnan(row["low"]):
                ax.plot([row["low"], row["high"]], [place, place], color=look["color"], linewidth=1.2, alpha=0.7)
        ax.axvline(0, color="0.5", linewidth=0.8, zorder=0)
        names = [", ".join([*names_of(row), *(f"{name} = {value_text(row[name])}" for name in found.shown)])
                 for row in shown.to_dict("records")]
        ax.set_yticks(range(len(shown)), names)
        ax.set_ylim(len(shown) - 0.4, -0.6)
        ax.set_xlabel(f"Test accuracy, {found.b.label} less {found.a.label} (points)")
        sns.despine(ax=ax, left=True)
        ax.tick_params(axis="y", length=0)
    return figure


def plot_overlay(found: Comparison, pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> Figure:
    """Plot both frontiers, a panel per kind of epsilon, 6 x 3.8 inches each: A solid, B dashed with open markers.

    Args:
        found: the comparison, for the names of both sides.
        pairs: points of A's and B's frontier per kind of epsilon, from `match.overlay`.
    """
    with style.theme():
        figure = Figure(figsize=(6 * len(pairs), 3.8), layout="constrained")
        for (a, b), ax in zip(pairs, figure.subplots(1, len(pairs), squeeze=False)[0], strict=True):
            _draw(a, ax, found.a.label, linestyle="-")
            _draw(b, ax, found.b.label, linestyle="--", markerfacecolor="white")
            ax.set_title(f"{a['kind'].iloc[0]} ε: {a['relation'].iloc[0]}, δ = {a['delta'].iloc[0]:g}")
            ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
            style.log_axis(ax, pd.concat([a, b])["epsilon"])
            style.within(ax, 0, 100)
            ax.set(xlabel=f"ε ({a['kind'].iloc[0]}, {a['relation'].iloc[0]})", ylabel="Test accuracy (%)")
            sns.despine(ax=ax)
    return figure


def _draw(points: pd.DataFrame, ax: Axes, label: str, **own: Any) -> None:
    """Plot a curve per algorithm, named by algorithm and label, with these line properties."""
    for algorithm, shift in style.shifts(points).items():
        style.curve(ax, points[points["algorithm"] == algorithm], "epsilon", algorithm, shift,
                    label=f"{ALGORITHM_LABELS[algorithm]}, {label}", **own)


def draw_overlay(found: Comparison, pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> Exhibit:
    """Make the exhibit of both frontiers, from the result of `match.overlay`."""
    table = pd.concat([frame.assign(experiment=side.label) for pair in pairs
                       for frame, side in zip(pair, (found.a, found.b), strict=True)])
    parts = []
    for a, b in pairs:
        noise = pd.concat([_sources(side.runs, a) for side in (found.a, found.b)])
        epsilon = epsilon_text(a["kind"].iloc[0], a["relation"], [*a["sampler"], *b["sampler"]], a["delta"],
                               standing(noise))
        parts.append(f"Test accuracy (%) against {epsilon}: {found.a.label} solid, {found.b.label} dashed and open; "
                     f"{means_text(pd.concat([a['n'], b['n']]), BARS)}.")
    return Exhibit("frontiers", "Accuracy against ε, overlaid", Texts(tuple(parts)), tidy([table], ["experiment"]),
                   plot_overlay(found, pairs))


def _sources(runs: pd.DataFrame, points: pd.DataFrame) -> pd.Series:
    """Return the noise sources of runs with the epsilon of these points."""
    first = points.iloc[0]
    return noise_sources(runs[on_axis(runs, first["kind"], first["formula"]).notna()]).dropna()


def _page(found: Comparison, exhibits: Sequence[Exhibit], headline: Sequence[str] = ()) -> Page:
    """Return the content of the comparison's page, with the privacy statements of both experiments' trials.

    Args:
        found: the comparison, with both experiments' trials.
        exhibits: tables and figures to show.
        headline: sentences at the top.
    """
    both = pd.concat([found.a.runs, found.b.runs])
    facts = [(side.label, f"{counted(len(side.runs), 'trial')}, commit "
                          f"{', '.join(_commits(side.runs)) or 'not recorded'}") for side in (found.a, found.b)]
    return Page(title=f"{found.a.label} and {found.b.label}", what="Comparison", headline=headline,
                facts=facts, exhibits=exhibits, privacy=state(both), epsilons=epsilons(both), notes=notes(both))


def _labels(a: Experiment, b: Experiment, runs: Sequence[pd.DataFrame]) -> tuple[str, str]:
    """Return names of the two sides: experiment names; if equal, with commits; if these are equal too, with A and B.

    Args:
        a, b: the experiments.
        runs: their trials, with the tag git_commit.
    """
    if a.name != b.name:
        return a.name, b.name
    commits = [_commits(frame) for frame in runs]
    if commits[0] != commits[1] and all(len(found) == 1 for found in commits):
        first, second = (f"{a.name} at {found[0]}" for found in commits)
        return first, second
    return f"{a.name} (A)", f"{b.name} (B)"


def _commits(runs: pd.DataFrame) -> list[str]:
    found = runs["git_commit"].dropna().unique() if "git_commit" in runs else []
    return [abridged(commit) for commit in found]
