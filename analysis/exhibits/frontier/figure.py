"""Plot frontiers: lines along epsilon, a panel for each kind of epsilon and each level of further settings.

Where all points have one epsilon there is nothing to join: a dot for each, the best at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.frontier import others
from analysis.exhibits.frontier.points import compared_epsilon
from analysis.exhibits.metrics import METRICS
from analysis.labels import algorithm_labels, names_of
from analysis.runs import ReportError, common_value
from pipeline.trials.kinds import KINDS

ROW, LINE = 0.26, 0.12  # inches of a row of dots, and of each further line of its name


class Panel(NamedTuple):
    """The points of a panel, and what stands above it."""

    points: pd.DataFrame
    title: str
    marked: pd.DataFrame  # results of others


def plot(frames: Sequence[pd.DataFrame], marked: pd.DataFrame = others.NONE) -> Figure | None:
    """Plot the points of `frontiers`, with one legend; results of others stand in the panels of certified points.

    Kinds of epsilon never share a panel, since they guarantee different things. A single point has no figure.
    """
    panels = [panel for frame in frames for panel in panels_of(frame, frames, marked)]
    lines = frames[0].attrs["layout"].lines
    together = pd.concat([panel.points for panel in panels], ignore_index=True)
    found = style.looks(together, lines)
    is_single = all(compared_epsilon(panel.points).nunique() == 1 for panel in panels)
    with style.theme():
        if is_single:
            return _dots(panels, lines, found)
        figure, axes = style.panels(len(panels))
        for panel, ax in zip(panels, axes, strict=True):
            draw_panel(panel, ax, found, lines)
        for kind in dict.fromkeys(common_value(panel.points["kind"]) for panel in panels):
            style.share_x([ax for panel, ax in zip(panels, axes, strict=True)
                           if common_value(panel.points["kind"]) == kind])
        style.name_once(axes)
        entries = [*style.handles(found), *(series.legend_entry for series in others.series_of(marked))]
        style.legend(figure, entries, style.seeds(together["n"]))
    return figure


def panels_of(frame: pd.DataFrame, frames: Sequence[pd.DataFrame], marked: pd.DataFrame) -> list[Panel]:
    """Return the panels of one kind of epsilon and one metric."""
    names = frame.attrs["layout"].panels
    kind, formula, metric = (common_value(frame[name]) for name in ("kind", "formula", "metric"))
    formula_name, _, count = formula.partition("/")
    title = {"kind": f"{kind} ε", "metric": METRICS[metric].short,
             "formula": f"{formula_name.replace('_', ' ')} formula, T = {count}"}
    of_frame = [text for name, text in title.items() if len({common_value(other[name]) for other in frames}) > 1]
    groups = frame.groupby(list(names), sort=False, dropna=False) if names else [((), frame)]
    shown = marked if kind == "certified" and metric == others.METRIC.name else others.NONE
    return [Panel(group, "\n".join(filter(None, [*of_frame, names_of(group.iloc[0], names)])), shown)
            for _, group in groups]


def _dots(panels: Sequence[Panel], lines: Sequence[str], found: dict[Any, Any]) -> Figure | None:
    """Plot a row for each line at its only epsilon, results of others among them; none for a single row."""
    looks = []
    for panel in panels:
        sign = "≤" if panel.points["setting"].str.contains("epsilon=").all() else "="  # a target is met from below
        epsilon = f"ε {sign} {compared_epsilon(panel.points).iloc[0]:.3g}"
        own = {key: {**look, "label": f"{look['label']} ({epsilon})"} for key, look in found.items()}
        looks.append(own | others.dots(panel.marked))
    rows = max(len(panel.points) + len(panel.marked) for panel in panels)
    if rows == 1:
        return None
    tallest = max(style.row_name(look).count("\n") for of_panel in looks for look in of_panel.values())
    figure, axes = style.panels(len(panels), height=1.15 + (ROW + LINE * tallest) * rows, least=3.2, per_row=2)
    for panel, look, ax in zip(panels, looks, axes, strict=True):
        _check(panel.points)
        keys = [*panel.points[["algorithm", *lines]].itertuples(index=False, name=None),
                *(key for key in look if key not in found)]
        style.dots(pd.concat([panel.points, panel.marked]), look, keys, ax)
        style.name_axes(ax, METRICS[common_value(panel.points["metric"])].label, "", panel.title, beside=1.2)
    return figure


def frontier_axes(points: pd.DataFrame, ax: Axes) -> Axes:
    """Plot a metric against epsilon (log axis): a line per algorithm with 95% t intervals as bars, and a legend.

    Lines that have points at one epsilon are shifted, `style.SHIFT` points or less apart, so that bars do not overlap.

    Args:
        points: from `analysis.exhibits.frontier.points.frontier`.
        ax: the axes.

    Raises:
        ReportError: for no point, an epsilon of 0, an unknown algorithm, or points with several kinds, formulas,
            relations, deltas or metrics.

    Example:
        >>> from matplotlib.figure import Figure
        >>> frontier_axes(frontier(load_runs("example")), Figure().subplots()).get_ylabel()
        'Test accuracy (%)'
    """
    _check(points)
    found = style.looks(points)
    draw_panel(Panel(points, "", others.NONE), ax, found)
    ax.spines[["top", "right"]].set_visible(False)  # of axes that a user made, too
    ax.legend(handles=style.handles(found), title=style.seeds(points["n"]), frameon=False, alignment="left")
    return ax


def draw_panel(panel: Panel, ax: Axes, found: dict[Any, Any], lines: Sequence[str] = ()) -> None:
    """Plot the lines of one panel, on a log axis; results from files of others that meet a line stand to the right."""
    _check(panel.points)
    points, marked = panel.points, panel.marked
    metric = METRICS[common_value(points["metric"])]
    style.curves(ax, points, "epsilon", found, lines)
    for series in others.series_of(marked):
        is_beside = style.meet(series.points, points, "epsilon")
        series.draw(ax, shift=style.SHIFT * (len(found) + 1) / 2 if is_beside else 0)
    epsilons = compared_epsilon(points)
    outside = ~marked["epsilon"].between(epsilons.min(), epsilons.max())
    kind = common_value(points["kind"])
    axis = f"{kind.capitalize()} ε{'' if KINDS[kind].holds else ' (no guarantee)'}"
    style.name_axes(ax, axis, metric.label, panel.title)
    style.log_axis(ax, [*epsilons, *marked["epsilon"][outside | marked["is_listed"]]])
    style.within(ax, metric.low, metric.high)


def _check(points: pd.DataFrame) -> None:
    """Refuse points that one axis cannot have: several kinds of epsilon, none above 0, unknown algorithms."""
    if points.empty or not (points["epsilon"] > 0).all():
        raise ReportError(f"frontier: needs points with epsilon > 0, got {points['epsilon'].tolist()}")
    unknown = [name for name in points["algorithm"].unique() if name not in algorithm_labels()]
    if unknown:
        raise ReportError(f"algorithm: must be one of {', '.join(algorithm_labels())}, got {', '.join(unknown)}; "
                          "import the module that registers an extension's")
    for name in ("kind", "formula", "relation", "delta", "metric"):
        if points[name].nunique() > 1:
            raise ReportError(f"{name}: must be one on an axis, got {', '.join(map(str, points[name].unique()))}")
