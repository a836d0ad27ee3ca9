"""Results that others trained, marked on a frontier beside certified points of their relation and delta.

They have no part in what is computed of the frontier: neither its Pareto front nor its areas, choices or prices.
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
MARKS = "dH8<>h"  # of methods, in their order
LOOK: dict[str, Any] = {"color": "black", "linestyle": "none", "markersize": 6.5,
                        "markeredgecolor": "white", "markeredgewidth": 0.5}
BY = ["imported", "method", "dataset", "relation", "delta", "epsilon"]  # what a point is of
NONE = pd.DataFrame(columns=[*BY, "algorithm", "reason"])


def load(store: Reader, names: Sequence[str]) -> pd.DataFrame:
    """Imported results, one row each: the fields of `pipeline.tracking.imports.Result`, and `imported`, their name.

    Raises:
        TrackingError: for a name under which nothing was imported.
    """
    results = pd.DataFrame([{"imported": name, **asdict(result)} for name in names for result in store.imported(name)])
    return results.astype({"seed": "Int64"})  # whole numbers, although some have none


def file_name(name: str) -> str:
    """Of the results of an import beside a report: as they were imported, and can be again."""
    return f"imported-{name}.csv"


def against(results: pd.DataFrame, points: Sequence[pd.DataFrame], dataset: str) -> pd.DataFrame:
    """The points of imported results, by method and epsilon, as tidy as those of `frontier`.

    Three columns are added: `imported`, `source` (all of a point's), and `reason`, why the point is not comparable with
    the certified ones among `points`; empty where it is.
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
    """Of the points of all kinds those that imported ones are compared with, if there are any."""
    return next((frame for frame in points if frame["kind"].iloc[0] in COMPOSABLE), None)


def _reason(point: Mapping[str, Any], certified: pd.Series, dataset: str) -> str:
    if point["dataset"] != dataset:
        return f"on {DATASET_LABELS[point['dataset']]}"
    if point["relation"] != certified["relation"]:
        return f"relation {point['relation']}"
    return "" if math.isclose(point["delta"], certified["delta"]) else f"δ = {point['delta']:g}"


def comparable(points: pd.DataFrame) -> pd.DataFrame:
    """Those points of `against` that a frontier marks."""
    return points[points["reason"] == ""]


def draw(points: pd.DataFrame, ax: Axes, shift: float) -> None:
    """A mark for each point, with its intervals over seeds; a method has one mark.

    Args:
        shift: to the right, in points (1/72 inch).
    """
    for (method, mark), own in _marked(points):
        style.curve(ax, own, "epsilon", "", shift, marker=mark, label=f"imported: {method}", **LOOK)


def handles(points: pd.DataFrame, width: int) -> list[Line2D]:
    """Entries of a legend, one per method, in lines of `width` characters."""
    return [Line2D([], [], marker=mark, **LOOK,
                   label="\n".join([fill(f"imported: {method}", width).replace("$", r"\$"), f"({_seeds(own)})"]))
            for (method, mark), own in _marked(points)]


def _marked(points: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    methods = points.groupby(["imported", "algorithm"], sort=False)
    return [((method, MARKS[place % len(MARKS)]), own) for place, ((_, method), own) in enumerate(methods)]


def _seeds(points: pd.DataFrame) -> str:
    """`n = 3 seeds`, `as published` of figures without seeds, or both."""
    own = points[points["seeds"]]
    return " or ".join(([n_seeds(own["n"])] if len(own) else []) + ["as published"] * (len(own) < len(points)))


def table(points: pd.DataFrame) -> list[str | Table]:
    """A caption and a table of the points that are marked; nothing where none is."""
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
    """Sentences on whose results are marked, and which are left out."""
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
