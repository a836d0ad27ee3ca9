"""Small multiples of a frontier: a panel for every value of one or two settings, with the envelope over the others."""

from __future__ import annotations

from itertools import product

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.frontier.figure import draw_curves, front, legend_entries
from analysis.exhibits.frontier.points import compared_epsilon, frontier, short_title, tightest
from analysis.exhibits.metrics import METRICS
from analysis.runs import DATASET_LABELS, ReportError, common_value, trials_of
from analysis.text import NO_VALUE, epsilon_text, level_order, level_text, means_text, without_formulas
from pipeline.experiment.exhibits import panel_fields
from pipeline.trials.kinds import GUARANTEED

PER_ROW = 4
MARGIN = 1.25  # factor by which the epsilon axis is extended at both ends


@exhibit("frontier_slices")
def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of small multiples; errors as in `tabulate`."""
    points = tabulate(runs)
    kind = common_value(points["kind"])
    epsilon = epsilon_text(kind, runs[tightest(runs, kind).notna()], points)
    caption = (f"Test accuracy (%) against {epsilon}, a panel for every value of one or two more settings: "
               f"{means_text(points['n'])}")
    return Exhibit.of_means("frontier_slices", title="Accuracy against ε by further settings", caption=caption,
                            rows=points.round({"epsilon": 4}), figure=plot(points),
                            notes=["Grey is what the Pareto front of all algorithms of a panel dominates."])


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the frontiers of all panels in one table, with the columns of `frontier` after those of `panel_fields`.

    Epsilon is of the first guaranteed kind that the runs have. There must be a guaranteed epsilon and a varied field;
    other errors as in `frontier`.
    """
    kind = next((kind for kind in GUARANTEED if tightest(runs, kind).notna().any()), None)
    if kind is None:
        raise ReportError("frontier_slices: needs trials with a finite epsilon/certified or epsilon/label, found none")
    runs = runs[tightest(runs, kind).notna()]
    fields = panel_fields(trials_of(runs))
    if not fields:
        raise ReportError("frontier_slices: needs a setting besides algorithm, noise and seed that varies, found none")
    frames = []
    # A dash where a setting does not apply
    levels = {name: runs[name].astype(object).where(runs[name].notna(), NO_VALUE) for name in fields}
    for values, panel in runs.groupby([levels[name] for name in fields]):
        frames.append(frontier(panel, kind).assign(**dict(zip(fields, values, strict=True))))
    points = pd.concat(frames, ignore_index=True)
    return points[[*fields, *(name for name in points if name not in fields)]]


def plot(points: pd.DataFrame) -> Figure:
    """Plot small multiples of a frontier, a panel per value of the first field.

    If there are two fields that apply to all points, values of the second are the rows. The columns before `algorithm`
    are the fields.
    """
    fields = list(points.columns[:points.columns.get_loc("algorithm")])
    levels = [sorted(points[name].unique(), key=level_order) for name in fields]
    per_row = len(levels[0]) if len(fields) > 1 else PER_ROW
    panels = [values[::-1] for values in product(*reversed(levels))]  # row by row: the first field changes fastest
    if any(NO_VALUE in values for values in panels):
        with_points = set(points[fields].itertuples(index=False, name=None))
        panels, per_row = [values for values in panels if values in with_points], PER_ROW
    metric = METRICS["accuracy"]
    with style.theme():
        figure, axes = style.panels(len(panels), per_row, width=2.6, height=2.3, beside=(2.2, 0.5), sharex=True,
                                    sharey=True)
        drawn = []  # (points, axes) of every panel with points
        for values, ax in zip(panels, axes, strict=True):
            panel_points = points[(points[fields] == list(values)).all(axis=1)]
            title = ", ".join(DATASET_LABELS[value] if name == "dataset" else f"{name} {level_text(name, value)}"
                              for name, value in zip(fields, values, strict=True) if value != NO_VALUE)
            ax.set_title(without_formulas(title), fontsize="medium")
            if not panel_points.empty:
                draw_curves(panel_points, ax, {})
                drawn.append((panel_points, ax))
        style.log_axis(axes[0], compared_epsilon(points))
        axes[0].set_xlim(points["epsilon"].min() / MARGIN, points["epsilon"].max() * MARGIN)
        style.within(axes[0], metric.low, metric.high)
        for panel_points, ax in drawn:  # panels share their limits, which are known only now
            front(panel_points, ax)
        kind, relation, delta = (common_value(points[name]) for name in ("kind", "relation", "delta"))
        figure.supxlabel(f"ε ({kind}, {relation}, δ = {delta:g})", fontsize="medium")
        figure.supylabel(metric.label, fontsize="medium")
        style.legend(figure, legend_entries(points, {}), f"{short_title(points)}\n{style.seeds(points['n'])}")
    return figure
