"""Small multiples of a frontier: a panel for every value of one or two settings, with the envelope over the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.envelope import fields_of
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.frontier.figure import draw_curves, front, legend
from analysis.exhibits.frontier.fit import panel_fields
from analysis.exhibits.frontier.points import GUARANTEED, compared_epsilon, frontier, on_axis, title
from analysis.exhibits.metrics import METRICS
from analysis.runs import DATASET_LABELS, ReportError, noise_sources
from analysis.text import epsilon_text, level_order, level_text, means_text
from pipeline.accounting.noise import standing

PER_ROW = 4
MARGIN = 1.25  # factor by which the epsilon axis is extended at both ends


def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of small multiples; errors as in `tabulate`."""
    points = tabulate(runs)
    first = points.iloc[0]
    epsilon = epsilon_text(first["kind"], points["relation"], points["sampler"], points["delta"],
                           standing(noise_sources(runs[on_axis(runs, first["kind"]).notna()])))
    caption = (f"Test accuracy (%) against {epsilon}, a panel for every value of one or two more settings: "
               f"{means_text(points['n'])}")
    return Exhibit.of_means("frontier_slices", "Accuracy against ε by further settings", caption,
                            points.round({"epsilon": 4}), plot(points),
                            ["Grey is what the Pareto front of all algorithms of a panel dominates."])


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the frontiers of all panels: the panel fields (`fit.panel_fields`), then the columns of `frontier`.

    Epsilon is of the first guaranteed kind that the runs have.

    Raises:
        ReportError: without a guaranteed epsilon, without a varied field, or as `frontier`.
    """
    kind = next((kind for kind in GUARANTEED if on_axis(runs, kind).notna().any()), None)
    if kind is None:
        raise ReportError("frontier_slices: needs trials with a finite epsilon/certified or epsilon/label, found none")
    runs = runs[on_axis(runs, kind).notna()]
    fields = panel_fields(fields_of(runs))
    if not fields:
        raise ReportError("frontier_slices: needs a setting besides algorithm, noise and seed that varies, found none")
    frames = []
    for values, panel in runs.groupby(list(fields), dropna=False):
        frames.append(frontier(panel, kind).assign(**dict(zip(fields, values, strict=True))))
    points = pd.concat(frames, ignore_index=True)
    return points[[*fields, *(name for name in points if name not in fields)]]


def plot(points: pd.DataFrame) -> Figure:
    """Plot small multiples of a frontier, a panel per value of the first field.

    If there are two fields, values of the second are the rows.

    Args:
        points: from `tabulate`; the columns before `algorithm` are the fields.
    """
    fields = list(points.columns[:points.columns.get_loc("algorithm")])
    levels = [sorted(points[name].unique(), key=level_order) for name in fields]
    if len(fields) == 2:
        columns = len(levels[0])
        panels = [{fields[0]: a, fields[1]: b} for b in levels[1] for a in levels[0]]
    else:
        columns = PER_ROW
        panels = [{fields[0]: a} for a in levels[0]]
    metric = METRICS["accuracy"]
    with style.theme():
        figure, axes = style.panels(len(panels), columns, 2.6, 2.3, beside=(2.2, 0.5), sharex=True, sharey=True)
        drawn = []
        for values, ax in zip(panels, axes, strict=True):
            own = points[(points[list(values)] == list(values.values())).all(axis=1)]
            ax.set_title(panel_title(values), fontsize="medium")
            sns.despine(ax=ax)
            if not own.empty:
                draw_curves(own, ax)
                drawn.append((own, ax))
        style.log_axis(axes[0], compared_epsilon(points))
        axes[0].set_xlim(points["epsilon"].min() / MARGIN, points["epsilon"].max() * MARGIN)
        style.within(axes[0], metric.low, metric.high)
        for own, ax in drawn:  # panels share their limits, which are known only now
            front(own, ax)
        first = points.iloc[0]
        figure.supxlabel(f"ε ({first['kind']}, {first['relation']}, δ = {first['delta']:g})", fontsize="medium")
        figure.supylabel(metric.label, fontsize="medium")
        legend(figure, points, f"{title(points).partition(',')[0].splitlines()[0]}")
    return figure


def panel_title(values: Mapping[str, Any]) -> str:
    """Return a panel's title, as `batch_size 256, clipping_norm 1`; data sets have their label."""
    return ", ".join(DATASET_LABELS[value] if name == "dataset" else f"{name} {level_text(name, value)}"
                     for name, value in values.items())
