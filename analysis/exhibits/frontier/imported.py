"""Imported results, marked on a frontier beside certified points with the same relation and delta.

The frontier's Pareto front, areas, choices and prices do not use them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis import style
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.table import Table
from analysis.runs import DATASET_LABELS, common_value
from analysis.text import NO_VALUE, n_seeds, without_formulas
from pipeline.tracking.reader import Reader

KIND = "imported"
SHOWN_BY = "frontier"  # the exhibit that marks them
MARKS = "dH8<>h"  # markers of methods, in order
LOOK: dict[str, Any] = {"color": "black", "linestyle": "none", "markersize": 6.5,
                        "markeredgecolor": "white", "markeredgewidth": 0.5}
BY = ["imported", "method", "dataset", "relation", "delta", "epsilon"]  # columns that identify a point
NONE = pd.DataFrame(columns=[*BY, "algorithm", "reason"])


def load(store: Reader, names: Sequence[str]) -> pd.DataFrame:
    """Return imported results, one row each.

    Columns: the fields of `pipeline.tracking.imports.Result`, and `imported`, the name under which it was imported.
    Errors as in `Reader.imported`.
    """
    rows = [{"imported": name, **asdict(result)} for name in names for result in store.imported(name)]
    return pd.DataFrame(rows).astype({"seed": "Int64"})  # integers, with missing values


def file_name(name: str) -> str:
    """Return the file name of imported results in a report; the file can be imported again."""
    return f"imported-{name}.csv"


def against(results: pd.DataFrame, points: Sequence[pd.DataFrame], dataset: str) -> pd.DataFrame:
    """Return the points of imported results, by method and epsilon, with the columns of `frontier` and four more.

    These are `imported`, `has_seeds` (whether its source states the seeds), `source` (all sources of a point), and
    `reason`, why it is not comparable with the certified points of the sweep; empty if data set, relation and delta are
    equal.
    """
    certified = certified_points(points)
    if results.empty or certified is None:
        return NONE
    relation, delta = common_value(certified["relation"]), common_value(certified["delta"])  # of all certified points
    metric = METRICS["accuracy"]
    rows = []
    for values, cell in results.groupby(BY, sort=False):
        identity = dict(zip(BY, values, strict=True))
        reason = ""
        if identity["dataset"] != dataset:
            reason = f"on {DATASET_LABELS[identity['dataset']]}"
        elif identity["relation"] != relation:
            reason = f"relation {identity['relation']}"
        elif not math.isclose(identity["delta"], delta):
            reason = f"δ = {identity['delta']:g}"
        sources = dict.fromkeys(cell["source"])  # each once
        rows.append({"algorithm": identity["method"], "metric": metric.name, "kind": KIND, "choices": 1, **identity,
                     **metric.summarize(cell["accuracy"] * metric.factor), "has_seeds": cell["seed"].notna().all(),
                     "source": "; ".join(sources), "reason": reason})
    return pd.DataFrame(rows).sort_values(["imported", "algorithm", "epsilon"], ignore_index=True)


def certified_points(points: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the frame with certified points, which imported results are compared with; None if there is none."""
    return next((frame for frame in points if common_value(frame["kind"]) == "certified"), None)


def comparable(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of `against` that a frontier marks."""
    return points[points["reason"] == ""]


def draw(points: pd.DataFrame, ax: Axes, shift: float) -> None:
    """Draw a marker for each point, with its intervals over seeds; each method has one marker.

    The shift is to the right, in points (1/72 inch).
    """
    for method, marker, group in _by_method(points):
        style.curve(ax, group, x="epsilon", algorithm="", shift=shift, marker=marker, label=f"imported: {method}",
                    **LOOK)


def legend_entries(points: pd.DataFrame, width: int) -> list[Line2D]:
    """Return legend entries for imported results, one per method, in lines of `width` characters."""
    entries = []
    for method, marker, group in _by_method(points):
        name = without_formulas(fill(f"imported: {method}", width))
        entries.append(Line2D([], [], marker=marker, **LOOK, label=f"{name}\n({_seeds_text(group)})"))
    return entries


def _by_method(points: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Return (method, its marker in figures, its points) for every method of imported results."""
    methods: list[tuple[str, str, pd.DataFrame]] = []
    for (_, method), group in points.groupby(["imported", "algorithm"], sort=False):
        marker = MARKS[len(methods) % len(MARKS)]
        methods.append((method, marker, group))
    return methods


def _seeds_text(points: pd.DataFrame) -> str:
    """Return the number of seeds of imported points: `n = 3 seeds`, `as published` for points without, or both."""
    with_seeds = points[points["has_seeds"]]
    counts = [n_seeds(with_seeds["n"])] if len(with_seeds) else []
    return " or ".join([*counts, "as published"] if len(with_seeds) < len(points) else counts)


def table(points: pd.DataFrame) -> list[str | Table]:
    """Return a caption and a table of the marked points; empty without marked points."""
    if points.empty:
        return []
    first, metric = points.iloc[0], METRICS["accuracy"]  # marked points have one data set, relation and delta
    interval = ", mean ± 95% t interval" if points["n"].max() > 1 else ""
    caption = (f"Imported, {metric.phrase} on {DATASET_LABELS[first['dataset']]} against the ε that its source states "
               f"({first['relation']}, δ = {first['delta']:g}): {_seeds_text(points)}{interval}.")
    rows = [[row.algorithm, f"{row.epsilon:g}", metric.text(row.mean, row.half_width),
             str(row.n) if row.has_seeds else NO_VALUE, row.source] for row in points.itertuples()]
    return [caption, Table.of(["method", "ε", "test %", "seeds", "source"], rows, text_columns=(0, 4))]


def notes(points: pd.DataFrame) -> list[str]:
    """Return sentences on imported results that are marked, and on imported results that are left out."""
    marked = comparable(points)
    left_out = points[points["reason"] != ""]
    sentences = []
    if len(marked):
        names = "; ".join(f"{row.algorithm} at ε = {row.epsilon:g} ({row.source})" for row in marked.itertuples())
        sentences.append(f"Imported, and marked in black: {names}. Others trained and accounted for these, and they "
                         "have no part in the Pareto front, the areas or any choice.")
    if len(left_out):
        names = "; ".join(f"{row.algorithm} at ε = {row.epsilon:g} ({row.reason})" for row in left_out.itertuples())
        sentences.append("Imported and left out, as data set, relation and δ must be those of the certified points: "
                         f"{names}.")
    return sentences
