"""Results of others, marked on a frontier beside certified points with the same relation and delta.

The frontier's Pareto front, areas, choices and prices do not use them. A reference that an experiment file lists is
named with its numbers in legend and notes; results from a CSV file have a table, and a curve for each method.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis import style
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.table import Table
from analysis.labels import DATASETS, NO_VALUE
from analysis.runs import common_value
from analysis.text import n_seeds
from pipeline.experiment.results import CELLS, Cited

KIND = "imported"
SHOWN_BY = "frontier"  # the exhibit that marks them
INTERNAL = ("dataset", "is_listed", "has_seeds", "reason")  # columns of `points_of` that are in no file
FILE = "references.csv"  # in a report: the results that were read from files
METRIC = METRICS["accuracy"]
NONE = pd.DataFrame({"algorithm": [], "epsilon": [], "is_listed": [], "reason": []}).astype({"is_listed": bool})
BLACK: dict[str, Any] = {"color": "black", "linestyle": "none", "markeredgewidth": 0.5}  # arguments of `Line2D`
LISTED = {**BLACK, "markersize": 7, "markerfacecolor": "gold", "zorder": 6}
LISTED_MARKS = "*PXDv^"  # in order
FROM_FILE = {**BLACK, "markersize": 6.5, "markeredgecolor": "white"}
FILE_MARKS = "dH8<>h"


class Series(NamedTuple):
    """Points with one marker: a listed reference, or the results of one method from files."""

    name: str
    ending: str  # of its text in the legend: after the wrapped name, a line of numbers
    look: dict[str, Any]  # with the marker
    points: pd.DataFrame

    @property
    def legend_entry(self) -> Line2D:
        """Its entry in a legend."""
        return Line2D([], [], **self.look, label=f"{self.name}{self.ending}")

    def draw(self, ax: Axes, shift: float) -> None:
        """Draw a marker for each point, with its interval; those from files are shifted, in points (1/72 inch)."""
        style.curve(ax, self.points, x="epsilon", algorithm="", label=self.name, **self.look,
                    shift=0 if self.points["is_listed"].all() else shift)


def points_of(results: Iterable[Cited], frames: Sequence[pd.DataFrame], dataset: str) -> pd.DataFrame:
    """Return a row for each point of results of others, with the columns of a frontier's points and these:

        is_listed   whether an experiment file lists it
        has_seeds   whether its source states the seeds
        source      all its sources
        reason      why it cannot stand beside the certified points of `frames` (`_difference`); empty if it can

    Without certified points of test accuracy there are no rows.
    """
    certified = [frame for frame in frames if common_value(frame["kind"]) == "certified"
                 and common_value(frame["metric"]) == METRIC.name]
    by_point: dict[tuple[object, ...], list[Cited]] = {}  # results of one point differ in their seed
    for result in results:
        by_point.setdefault(result.point, []).append(result)
    if not certified or not by_point:
        return NONE
    relation, delta = common_value(certified[0]["relation"]), common_value(certified[0]["delta"])
    rows = []
    for of_point in by_point.values():
        first = of_point[0]
        sources = dict.fromkeys(result.source for result in of_point)  # each once
        rows.append({"algorithm": first.method, "metric": METRIC.name, "kind": KIND, "choices": 1, "chosen": "",
                     "epsilon": first.epsilon, "relation": first.relation, "delta": first.delta,
                     "dataset": first.dataset, **METRIC.summarize([100 * result.accuracy for result in of_point]),
                     "is_listed": first.is_listed, "has_seeds": first.seed is not None, "source": "; ".join(sources),
                     "reason": _difference(first, dataset, relation, delta)})
    return pd.DataFrame(rows)


def _difference(result: Cited, dataset: str, relation: str, delta: float) -> str:
    """Return in what a result differs from certified points, as far as its source states it; empty if in nothing."""
    if result.dataset not in ("", dataset):
        return f"on {DATASETS[result.dataset].label}"
    if result.relation not in ("", relation):
        return f"relation {result.relation}"
    return "" if math.isclose(result.delta, delta) else f"δ = {result.delta:g}"


def comparable(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of `points_of` that a frontier marks."""
    return points[points["reason"] == ""]


def from_files(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points that were read from files."""
    return points[~points["is_listed"]]


def series_of(points: pd.DataFrame) -> list[Series]:
    """Return the series of a figure, listed references first."""
    listed = points[points["is_listed"]]
    series = []
    for place, point in enumerate(listed.itertuples()):
        look = {**LISTED, "marker": LISTED_MARKS[place % len(LISTED_MARKS)]}
        ending = f": {point.mean:g}% at ε = {point.epsilon:g}"
        series.append(Series(point.source, ending, look, listed.iloc[place:place + 1]))
    for place, (method, group) in enumerate(from_files(points).groupby("algorithm", sort=False)):
        look = {**FROM_FILE, "marker": FILE_MARKS[place % len(FILE_MARKS)]}
        series.append(Series(f"imported: {method}", f" ({_seeds_text(group)})", look, group))
    return series


def dots(points: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return, for every point in order, a key of its own with its look, for a plot with a row for each."""
    found = {}
    for series in series_of(points):
        name = series.name.removeprefix("imported: ")
        for place, point in series.points.iterrows():
            found[place] = {**series.look, "markersize": 5, "label": f"{name} (ε = {point['epsilon']:g})"}
    return {("", place): found[place] for place in points.index}


def _seeds_text(points: pd.DataFrame) -> str:
    """Return the number of seeds of points from files: `n = 3 seeds`, `as published` for points without, or both."""
    with_seeds = points[points["has_seeds"]]
    parts = [n_seeds(with_seeds["n"])] if len(with_seeds) else []
    if len(with_seeds) < len(points):
        parts.append("as published")
    return " or ".join(parts)


def table(points: pd.DataFrame) -> list[str | Table]:
    """Return a caption and a table of the marked points from files; empty without any."""
    if points.empty:
        return []
    first = points.iloc[0]  # marked points have one data set, relation and delta
    interval = ", mean ± 95% t interval" if points["n"].max() > 1 else ""
    caption = (f"Imported, {METRIC.phrase} on {DATASETS[first['dataset']].label} against the ε that its source states "
               f"({first['relation']}, δ = {first['delta']:g}): {_seeds_text(points)}{interval}.")
    rows = [[row.algorithm, f"{row.epsilon:g}", METRIC.text(row.mean, row.half_width),
             str(row.n) if row.has_seeds else NO_VALUE, row.source] for row in points.itertuples()]
    return [caption, Table.of(["method", "ε", "test %", "seeds", "source"], rows, text_columns=(0, 4))]


def notes(points: pd.DataFrame) -> list[str]:
    """Return sentences on the results of others that are marked, and on those that are left out."""
    marked, sentences = comparable(points), []
    listed, of_files = marked[marked["is_listed"]], from_files(marked)
    left_out = points[points["reason"] != ""]
    if len(listed):
        names = "; ".join(f"{row.source}, {row.mean:g}% at ε = {row.epsilon:g}, δ = {row.delta:g}"
                          for row in listed.itertuples())
        sentences.append(f"Published by others, and marked: {names}.")
    if len(of_files):
        names = "; ".join(f"{row.algorithm} at ε = {row.epsilon:g} ({row.source})" for row in of_files.itertuples())
        sentences.append(f"Imported, and marked in black: {names}. Others trained and accounted for these, and they "
                         "have no part in the Pareto front, the areas or any choice.")
    if len(left_out):
        names = "; ".join(f"{row.algorithm} at ε = {row.epsilon:g} ({row.reason})" for row in left_out.itertuples())
        sentences.append("Of others and left out, as data set, relation and δ must be those of the certified points: "
                         f"{names}.")
    return sentences


def as_csv(results: Sequence[Cited]) -> str:
    """Return the results from files as the text of one such file; empty for none."""
    rows = [[getattr(result, name) for name in CELLS] for result in results if not result.is_listed]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([list(CELLS), *rows])
    return text.getvalue() if rows else ""
