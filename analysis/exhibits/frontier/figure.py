"""Frontiers as figures: one panel per kind of epsilon, a curve per algorithm, and the Pareto front of all."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import style
from analysis.exhibits.frontier.points import title
from analysis.exhibits.metrics import METRICS
from analysis.runs import ReportError

FRONT = {"facecolor": "0.93", "edgecolor": "0.6", "linewidth": 0.8, "linestyle": ":"}


def frontier_figure(points: Sequence[pd.DataFrame]) -> Figure:
    """One panel per kind of epsilon, 5.4 x 3.8 inches each, up to two in a row; kinds never share an axis, since they
    guarantee different things.

    Args:
        points: from `analysis.exhibits.frontier.points.frontiers`.
    """
    columns = min(2, len(points))
    rows = -(-len(points) // columns)
    with style.theme():
        figure = Figure(figsize=(5.4 * columns, 3.8 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for frame, ax in zip(points, axes, strict=False):
            frontier_axes(frame, ax)
        for ax in list(axes)[len(points):]:
            ax.remove()
    return figure


def frontier_axes(points: pd.DataFrame, ax: Axes) -> Axes:
    """A metric against epsilon (log axis): a curve per algorithm with intervals over seeds as bars.

    Points that are beaten by another of their algorithm, at no more epsilon, are hollow; the grey area is
    what the Pareto front of all dominates. Curves stand side by side, up to `style.SHIFT` points apart, so that bars do
    not cover each other.

    Args:
        points: from `analysis.exhibits.frontier.points.frontier`.

    Raises:
        ReportError: for no point, an epsilon of 0, or points of several kinds, formulas, relations, deltas or metrics.
    """
    if points.empty or not (points["epsilon"] > 0).all():
        raise ReportError(f"frontier: needs points with epsilon > 0, got {points['epsilon'].tolist()}")
    for name in ("kind", "formula", "relation", "delta", "metric"):
        if points[name].nunique() > 1:
            raise ReportError(f"{name}: must be one on an axis, got {', '.join(map(str, points[name].unique()))}")
    metric = METRICS[points["metric"].iloc[0]]
    for algorithm, shift in style.shifts(points).items():
        own = points[points["algorithm"] == algorithm]
        style.curve(ax, own, "epsilon", algorithm, shift, hollow=~own["on_front"])
    style.log_axis(ax, points["epsilon"])
    style.within(ax, metric.low, metric.high)
    front = points[points["on_overall_front"]].sort_values("epsilon")
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    ax.fill_between([*front["epsilon"], right], [*front["mean"], front["mean"].iloc[-1]], bottom, step="post", zorder=0,
                    **FRONT)
    ax.set(xlim=(left, right), ylim=(bottom, top))
    ax.set_title(title(points))
    handles = [*style.handles(points), Patch(label="below the Pareto\nfront of all", **FRONT)]
    if not points["on_front"].all():
        handles.append(Line2D([], [], color="black", linestyle="none", marker="o", markersize=4.5,
                              markerfacecolor="white", label="beaten by its own\nat a smaller ε"))
    ax.legend(handles=handles, title=f"{title(points).partition(',')[0].splitlines()[0]}\n{style.seeds(points['n'])}",
              loc="center left", bbox_to_anchor=(1.01, 0.5), alignment="left")
    ax.set(xlabel=f"ε ({points['kind'].iloc[0]}, {points['relation'].iloc[0]})", ylabel=metric.label)
    sns.despine(ax=ax)
    return ax
