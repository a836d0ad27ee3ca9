"""Imported results, marked on a frontier beside certified points with the same relation and delta.

The frontier's Pareto front, areas, choices and prices do not use them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis import style
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.table import Table
from analysis.runs import DATASET_LABELS
from analysis.text import NO_VALUE, n_seeds
from pipeline.tracking.reader import Reader
from pipeline.trials.naming import COMPOSABLE

KIND = "imported"
SHOWN_BY = "frontier"  # the exhibit that marks them
MARKS = "dH8<>h"  # markers of methods, in order
LOOK: dict[str, Any] = {"color": "black", "linestyle": "none", "markersize": 6.5,
                        "markeredgecolor": "white", "markeredgewidth": 0.5}
BY = ["imported", "method", "dataset", "relation", "delta", "epsilon"]  # columns that identify a point
NONE = pd.DataFrame(columns=[*BY, "algorithm", "reason"])


def load(store: Reader, names: Sequence[str]) -> pd.DataFrame:
    """Load imported results, one row each: the fields of `pipeline.tracking.imports.Result`, and the name `imported`.

    Raises:
        TrackingError: if nothing was imported under a name.
    """
    results = pd.DataFrame([{"imported": name, **asdict(result)} for name in names for result in store.imported(name)])
    return results.astype({"seed": "Int64"})  # integers, with missing values


def file_name(name: str) -> str:
    """Return the file name of imported results in a report; the file can be imported again."""
    return f"imported-{name}.csv"


def against(results: pd.DataFrame, points: Sequence[pd.DataFrame], dataset: str) -> pd.DataFrame:
    """Return the points of imported results, by method and epsilon, with the columns of `frontier`.

    There are three more columns: `imported`, `source` (all sources of a point), and `reason`, why the point is not
    comparable with the certified points in `points`; empty if it is comparable.
    """
    frame = beside(points)
    if results.empty or frame is None:
        return NONE
    certified = frame.iloc[0]
    metric, rows = METRICS["accuracy"], []
    for key, cell in results.groupby(BY, sort=False):
        first = dict(zip(BY, key, strict=True))
        rows.append({"algorithm": first["method"], "metric": metric.name, "kind": KIND, "choices": 1, **first,
                     **metric.summarize(cell["accuracy"] * metric.factor), "seeds": cell["seed"].notna().all(),
                     "source": "; ".join(dict.fromkeys(cell["source"])), "reason": _reason(first, certified, dataset)})
    return pd.DataFrame(rows).sort_values(["imported", "algorithm", "epsilon"], ignore_index=True)


def beside(points: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the points that are compared with imported ones, if there are any."""
    return next((frame for frame in points if frame["kind"].iloc[0] in COMPOSABLE), None)


def _reason(point: Mapping[str, Any], certified: pd.Series, dataset: str) -> str:
    """Return why an imported point cannot be compared with the sweep's certified points; empty if it can.

    Data set, neighbouring relation and delta must be equal.

    Args:
        point: the imported result.
        certified: a certified point of the sweep: its relation and delta.
        dataset: the sweep's data set.
    """
    if point["dataset"] != dataset:
        return f"on {DATASET_LABELS[point['dataset']]}"
    if point["relation"] != certified["relation"]:
        return f"relation {point['relation']}"
    return "" if math.isclose(point["delta"], certified["delta"]) else f"δ = {point['delta']:g}"


def comparable(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of `against` that a frontier marks."""
    return points[points["reason"] == ""]


def draw(points: pd.DataFrame, ax: Axes, shift: float) -> None:
    """Draw a marker for each point, with its intervals over seeds; each method has one marker.

    Args:
        points: the points.
        ax: the axes.
        shift: shift to the right, in points (1/72 inch).
    """
    for (method, mark), own in _marked(points):
        style.curve(ax, own, "epsilon", "", shift, marker=mark, label=f"imported: {method}", **LOOK)


def handles(points: pd.DataFrame, width: int) -> list[Line2D]:
    """Return legend entries, one per method, in lines of `width` characters."""
    return [Line2D([], [], marker=mark, **LOOK,
                   label="\n".join([fill(f"imported: {method}", width).replace("$", r"\$"), f"({_seeds(own)})"]))
            for (method, mark), own in _marked(points)]


def _marked(points: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    methods = points.groupby(["imported", "algorithm"], sort=False)
    return [((method, MARKS[place % len(MARKS)]), own) for place, ((_, method), own) in enumerate(methods)]


def _seeds(points: pd.DataFrame) -> str:
    """Return `n = 3 seeds`, `as published` for results without seeds, or both."""
    own = points[points["seeds"]]
    return " or ".join(([n_seeds(own["n"])] if len(own) else []) + ["as published"] * (len(own) < len(points)))


def table(points: pd.DataFrame) -> list[str | Table]:
    """Return a caption and a table of the marked points; empty without marked points."""
    if points.empty:
        return []
    first, metric = points.iloc[0], METRICS["accuracy"]
    interval = ", mean ± 95% t interval" if points["n"].max() > 1 else ""
    caption = (f"Imported, {metric.phrase} on {DATASET_LABELS[first['dataset']]} against the ε that its source states "
               f"({first['relation']}, δ = {first['delta']:g}): {_seeds(points)}{interval}.")
    rows = [[row.algorithm, f"{row.epsilon:g}", metric.text(row.mean, row.half_width),
             str(row.n) if row.seeds else NO_VALUE, row.source] for row in points.itertuples()]
    return [caption, Table.of(["method", "ε", "test %", "seeds", "source"], rows, texts=(0, 4))]


def notes(points: pd.DataFrame) -> list[str]:
    """Return sentences on imported results that are marked, and on those left out."""
    shown, absent = comparable(points), points[points["reason"] != ""]
    found = []
    if len(shown):
        named = "; ".join(f"{row.algorithm} at ε = {row.epsilon:g} ({row.source})" for row in shown.itertuples())
        found.append(f"Imported, and marked in black: {named}. Others trained and accounted for these, and they have "
                     "no part in the Pareto front, the areas or any choice.")
    if len(absent):
        named = "; ".join(f"{row.algorithm} at ε = {row.epsilon:g} ({row.reason})" for row in absent.itertuples())
        found.append("Imported and left out, as data set, relation and δ must be those of the certified points: "
                     f"{named}.")
    return found
