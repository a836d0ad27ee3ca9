"""Plot frontiers: one panel per kind of epsilon, a curve per algorithm, and the Pareto front of all algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from analysis import style, svg
from analysis.exhibits.frontier import choice, others
from analysis.exhibits.frontier.points import compared_epsilon, short_title, title
from analysis.exhibits.metrics import METRICS
from analysis.runs import ALGORITHM_LABELS, ReportError, common_value
from analysis.text import without_formulas

LEGEND_WIDTH = 22  # characters per line
MOST_LETTERS = 8  # largest number of letters that a legend explains
FRONT: dict[str, Any] = {"facecolor": "0.965", "edgecolor": "0.75", "linewidth": 0.7, "linestyle": ":"}


def plot(points: Sequence[pd.DataFrame], marked: pd.DataFrame = others.NONE) -> Figure:
    """Plot one panel per kind of epsilon, 4.2 x 3.8 inches each, up to two in a row, with one legend.

    Kinds never share an axis, since they guarantee different things. Results of others (`marked`) stand in the panel
    of certified points.
    """
    together = pd.concat(points, ignore_index=True)
    letters = choice.letters(together)
    certified = others.certified_points(points)
    with style.theme():
        figure, axes = style.panels(len(points), per_row=2, width=4.2, height=3.8, beside=(1.8, 0.0), between=0.1)
        for frame, ax in zip(points, axes, strict=True):
            _panel(frame, ax, letters, marked if frame is certified else others.NONE)
        entries = [*legend_entries(together, letters), *others.legend_entries(marked, LEGEND_WIDTH)]
        style.legend(figure, entries, style.seeds(together["n"]))
    return figure


def frontier_axes(points: pd.DataFrame, ax: Axes) -> Axes:
    """Plot a metric against epsilon (log axis): a curve per algorithm with intervals over seeds as bars, and a legend.

    A point is hollow if another point of its algorithm is better at no larger epsilon. The grey area is dominated by
    the Pareto front of all algorithms. Curves are shifted by up to `style.SHIFT` points, so that bars do not overlap.
    In an envelope a letter beside a point refers to the chosen settings.

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
    letters = choice.letters(points)
    _panel(points, ax, letters)
    legend_title = f"{short_title(points)}\n{style.seeds(points['n'])}"
    ax.legend(handles=legend_entries(points, letters), title=legend_title, loc="center left",
              bbox_to_anchor=(1.01, 0.5), alignment="left")
    return ax


def draw_curves(points: pd.DataFrame, ax: Axes, letters: Mapping[str, str]) -> None:
    """Draw curves and intervals of the points of one kind; the axis gets its ticks later.

    `letters` has the letter beside the points of chosen settings, by their text.
    """
    style.curves(ax, points, "epsilon", hollow=~points["on_front"])
    for algorithm, shift in style.shifts(points).items():
        above = ax.transData + ScaledTranslation(shift / 72, 4 / 72, ax.figure.dpi_scale_trans)  # 4 points higher
        curve = points[points["algorithm"] == algorithm]
        for point in curve[curve["chosen"].isin(letters)].itertuples():
            letter = ax.text(point.epsilon, point.mean, letters[point.chosen], color=style.PALETTE[algorithm],
                             fontsize="x-small", ha="center", va="bottom", zorder=5, transform=above)
            svg.tag(letter, algorithm)


def _panel(points: pd.DataFrame, ax: Axes, letters: Mapping[str, str], marked: pd.DataFrame = others.NONE) -> None:
    """Plot the frontier of one kind of epsilon on its axes: accuracy or alignment against epsilon, on a log axis.

    The points must have one kind, formula, relation, delta and metric, positive epsilons and known algorithms
    (`ReportError`). Results from files of others stand to the right of all curves.
    """
    if points.empty or not (points["epsilon"] > 0).all():
        raise ReportError(f"frontier: needs points with epsilon > 0, got {points['epsilon'].tolist()}")
    unknown = [name for name in points["algorithm"].unique() if name not in ALGORITHM_LABELS]
    if unknown:
        raise ReportError(f"algorithm: must be one of {', '.join(ALGORITHM_LABELS)}, got {', '.join(unknown)}; import "
                          "the module that registers an extension's")
    for name in ("kind", "formula", "relation", "delta", "metric"):
        if points[name].nunique() > 1:
            raise ReportError(f"{name}: must be one on an axis, got {', '.join(map(str, points[name].unique()))}")
    metric = METRICS[common_value(points["metric"])]
    draw_curves(points, ax, letters)
    others.draw(marked, ax, shift=max(style.shifts(points).values()) + style.SHIFT)
    epsilons = compared_epsilon(points)
    outside = ~marked["epsilon"].between(epsilons.min(), epsilons.max())
    style.log_axis(ax, [*epsilons, *marked["epsilon"][outside | marked["is_listed"]]])
    style.within(ax, metric.low, metric.high)
    front(points, ax)
    ax.set_title(title(points))
    kind, relation = common_value(points["kind"]), common_value(points["relation"])
    ax.set(xlabel=f"ε ({kind}, {relation})", ylabel=metric.label)
    ax.spines[["top", "right"]].set_visible(False)  # of axes that a user made, too


def front(points: pd.DataFrame, ax: Axes) -> None:
    """Fill the area below the Pareto front of all algorithms, within the present limits of the axes."""
    best = points[points["on_overall_front"]].sort_values("epsilon")
    left, right = ax.get_xlim()
    bottom, top = ax.get_ylim()
    # Steps: each mean holds up to the next epsilon, the last one up to the right end of the axis.
    epsilons, means = [*best["epsilon"], right], [*best["mean"], best["mean"].iloc[-1]]
    ax.fill_between(epsilons, means, bottom, step="post", zorder=0, **FRONT)
    ax.set(xlim=(left, right), ylim=(bottom, top))  # filling would have changed them


def legend_entries(points: pd.DataFrame, letters: Mapping[str, str]) -> list[Artist]:
    """Return a frontier's legend entries: algorithms, Pareto front, beaten points, and letters of chosen settings.

    Many letters get one entry that refers to the table.
    """
    entries: list[Artist] = [*style.handles(points), Patch(label="below the Pareto\nfront of all", **FRONT)]
    if not points["on_front"].all():
        entries.append(Line2D([], [], color="black", linestyle="none", marker="o", markersize=4.5,
                              markerfacecolor="white", label="beaten by its own\nat a smaller ε"))
    if len(letters) > MOST_LETTERS:
        return [*entries, Patch(alpha=0, label="letters: settings,\nsee the table")]
    for settings, letter in letters.items():
        entries.append(Line2D([], [], color="black", linestyle="none", marker=rf"$\mathrm{{{letter}}}$",
                              markersize=4.5, markeredgewidth=0, label=without_formulas(settings.replace(", ", ",\n"))))
    return entries
