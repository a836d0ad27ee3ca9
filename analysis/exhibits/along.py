"""`by_tau_h`, `by_tau_h_and_batch_size`: accuracy and alignment along settings. `analysis.catalogue` calls `draw`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.envelope import cells, ordered
from analysis.exhibits.exhibit import ENVELOPE, Exhibit, Texts
from analysis.exhibits.frontier.points import tightest
from analysis.exhibits.metrics import METRICS, Metric, feedback_is_measured
from analysis.exhibits.needs import layout_by, with_axes, without_alignment
from analysis.exhibits.table import Table, crossed
from analysis.labels import NO_VALUE, axis_name, in_words, level_name, names_of
from analysis.layout import AMOUNT, NOISE
from analysis.runs import ReportError, common_value, relations, such, trials_of
from analysis.statistics import SUMMARY
from analysis.text import best_of, epsilon_text, fixed_text, means_text, with_levels
from pipeline.experiment.experiment import Experiment
from pipeline.trials.kinds import GUARANTEED

LOG_RATIO = 3  # of the largest to the smallest value, from which on an axis is logarithmic
COLOURS = "cividis"  # sequential, with even steps of lightness, and safe for colour-blind readers
EMPTY_GREY = 0.92  # of a cell without a value
MAX_DARK = 0.45  # largest luminance of a colour on which text is white
CELL, ROW, BESIDE = 0.31, 0.22, 0.7  # inches: least width and height of a cell, and of what stands beside the cells


def draw(runs: pd.DataFrame, name: str, axes: Sequence[str], experiment: Experiment) -> Exhibit:
    """Make the exhibit over one setting, or over two; errors as in `tabulate`."""
    shown = such(runs, lambda trial: bool(with_axes([trial], axes)))
    table = tabulate(shown, axes, experiment)
    figure, quantity = figure_of(table, axes)
    return Exhibit(name, f"{quantity} by {' and '.join(map(in_words, axes))}", texts(table, axes, shown),
                   table.round(dict.fromkeys(SUMMARY, 4)), figure)


def tabulate(runs: pd.DataFrame, axes: Sequence[str], experiment: Experiment) -> pd.DataFrame:
    """Return `cells` of accuracy and, if all trials measure it, of alignment, by algorithm, factors and axes.

    `runs` are those that use the axes. `attrs` have the `layout`, which tells lines and panels apart, and the names of
    these columns, `by`. Refused are no runs, and a layout with a fault (`ReportError`).
    """
    if runs.empty:
        raise ReportError(f"{' and '.join(axes)}: needs trials that have it, found none")
    trials = trials_of(runs)
    layout = layout_by(trials, axes, experiment)
    if layout.fault:
        raise ReportError(layout.fault)
    metrics = ["accuracy"]
    if not without_alignment(trials):
        metrics += ["alignment", "feedback_alignment"] if feedback_is_measured(runs) else ["alignment"]
    by = list(dict.fromkeys(["algorithm", *layout.factors, *axes]))
    shown = with_epsilon(with_levels(runs, by))
    shown = shown.assign(**{name: shown[name].where(shown[name].notna(), NO_VALUE) for name in layout.factors})
    carry = [name for name in ("relation", "sampler", "delta") if name not in by]
    table = pd.concat([ordered(cells(shown, by, metric, carry, ["epsilon"]), ["algorithm"]) for metric in metrics],
                      ignore_index=True)
    table.attrs |= {"layout": layout, "by": by}
    return table


def figure_of(table: pd.DataFrame, axes: Sequence[str]) -> tuple[Figure, str]:
    """Plot lines along one axis, or a heatmap over two; and name what is shown.

    A figure too tall for a page shows accuracy alone.
    """
    figure = plot(table, axes[0]) if len(axes) == 1 else heatmap(table, axes)
    if table["metric"].nunique() == 1:
        return figure, "Accuracy"
    if figure.get_figheight() <= style.TALLEST:
        return figure, "Accuracy and alignment"
    return figure_of(table[table["metric"] == "accuracy"], axes)


def with_epsilon(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with their guaranteed epsilon, empty without one, its relation and its delta."""
    certified, label = (tightest(runs, kind) for kind in GUARANTEED)
    of_labels = certified.isna() & label.notna()
    relation = runs.get("privacy.relation", pd.Series(NO_VALUE, runs.index))
    return runs.assign(epsilon=certified.fillna(label), relation=relation.mask(of_labels, relations(runs, "label")))


def texts(table: pd.DataFrame, axes: Sequence[str], runs: pd.DataFrame) -> Texts:
    """Return captions and tables: the means of each metric, then ε and the chosen settings; and notes."""
    by, layout = table.attrs["by"], table.attrs["layout"]
    common = [level_name(name, runs[name].iloc[0]) for name in ("dataset", AMOUNT) if runs[name].nunique() == 1]
    where = f" on {', '.join(common)}" if "dataset" not in layout.factors else ""
    over = " and ".join(map(in_words, axes))
    body: list[str | Table] = []
    for name, part in table.groupby("metric", sort=False):
        metric = METRICS[str(name)]
        means = [metric.text(row.mean, row.half_width) for row in part.itertuples()]
        body += [f"{metric.heading}{where} by {over}: {means_text(part['n'])}{best_of(part['choices'].max())}.",
                 crossing(part.assign(text=means), axes, by)]

    accuracies = table[table["metric"] == "accuracy"]
    if accuracies["epsilon"].nunique() > 1:
        body += ["ε of every point; it is that of its targets where a file gives them.",
                 crossing(accuracies.assign(text=accuracies["epsilon"].map("{:.3g}".format)), axes, by)]
    if (table["choices"] > 1).any():
        rows = [[names_of(row, by), row["chosen"] or NO_VALUE, str(row["choices"])]
                for row in accuracies.to_dict("records")]
        body += ["What was chosen at every point, by mean validation accuracy over seeds.",
                 Table.of(["point", "chosen", "of settings"], rows, text_columns=(0, 1))]
    return Texts(tuple(body[:2]), tuple(body[2:]), tuple(_notes(table, axes, runs)))


def _notes(table: pd.DataFrame, axes: Sequence[str], runs: pd.DataFrame) -> Iterator[str]:
    layout = table.attrs["layout"]
    yield from filter(None, (METRICS[name].meaning for name in table["metric"].unique()))
    noise = NOISE if AMOUNT in layout.factors else ()
    if fixed := fixed_text(runs, (*axes, *layout.factors, *noise)):
        yield fixed
    if layout.bound:
        yield f"With it, as the file says: {', '.join(map(in_words, layout.bound))}."
    for kind in GUARANTEED:
        of_kind = runs[tightest(runs, kind).notna()]
        if len(of_kind):
            yield f"Each ε is a {epsilon_text(kind, of_kind)}."
    if (table["choices"] > 1).any():
        yield ENVELOPE


def crossing(part: pd.DataFrame, axes: Sequence[str], by: Sequence[str]) -> Table:
    """Return the column `text`, with a column per value of the first axis and a row per value of the others of `by`."""
    names = [name for name in by if name != axes[0]]
    records = part.sort_values(axes[0], kind="stable").to_dict("records")
    values = {(names_of(row, names), level_name(axes[0], row[axes[0]])): row["text"] for row in records}
    rows = [names_of(row, names) for row in part.to_dict("records")]
    return crossed(rows, dict.fromkeys(column for _, column in values), values)


def plot(table: pd.DataFrame, axis: str) -> Figure:
    """Plot a panel for each metric and each level of the panels' factors, with one legend."""
    layout, least = table.attrs["layout"], table[axis].min()
    is_log = least > 0 and table[axis].max() >= LOG_RATIO * least
    x_name = " with ".join([axis_name(axis), *map(in_words, layout.bound[:1])])
    groups = list(table.groupby(["metric", *layout.panels], sort=False, dropna=False))
    n_metrics = table["metric"].nunique()
    per_row = n_metrics if len(groups) == n_metrics else style.row_of(len(groups) // n_metrics)
    with style.theme():
        figure, axes = style.panels(len(groups), per_row=per_row)
        found = style.looks(table, layout.lines)
        axes_of: dict[str, list[Axes]] = {}  # by metric
        for (_, points), ax in zip(groups, axes, strict=True):
            metric = METRICS[common_value(points["metric"])]
            axes_of.setdefault(metric.name, []).append(ax)
            style.curves(ax, points, axis, found, layout.lines)
            style.name_axes(ax, x_name, metric.label, names_of(points.iloc[0], layout.panels))
            (style.log_axis if is_log else style.ticks_at)(ax, table[axis])
        for name, (first, *others) in axes_of.items():  # all with one scale
            for ax in others:
                ax.sharey(first)
            first.autoscale_view()
            style.within(first, METRICS[name].low, METRICS[name].high)
        style.name_once(axes)
        style.legend(figure, style.handles(found), style.seeds(table["n"]))
    return figure


def heatmap(table: pd.DataFrame, axes: Sequence[str]) -> Figure:
    """Plot a panel for each metric, algorithm and level of further factors, on one colour scale for each metric."""
    names = [name for name in table.attrs["layout"].panels if table[name].nunique() > 1]
    columns, rows = (sorted(table[axis].unique()) for axis in axes)
    groups = list(table.groupby(["metric", *names], sort=False, dropna=False))
    per_metric = len(groups) // table["metric"].nunique()
    least = CELL * len(columns) + BESIDE
    per_row = style.row_of(per_metric, least)  # no row has panels of two metrics
    height = max(1.7 if per_row > 1 else 1.4, ROW * len(rows) + BESIDE)
    with style.theme():
        figure, drawn = style.panels(len(groups), height, least, per_row)
        style.make_wide(figure, least)
        axes_of: dict[str, list[Axes]] = {}  # by metric
        for (_, points), ax in zip(groups, drawn, strict=True):
            metric = METRICS[common_value(points["metric"])]
            axes_of.setdefault(metric.name, []).append(ax)
            means = table.loc[table["metric"] == metric.name, "mean"]
            grid = points.pivot(index=axes[1], columns=axes[0], values="mean").reindex(index=rows, columns=columns)
            heatmap_panel(grid, ax, metric, (means.min(), means.max()))
            style.name_axes(ax, axis_name(axes[0]), axis_name(axes[1]), names_of(points.iloc[0], names))
        style.name_once(drawn)
        for name, of_metric in axes_of.items():
            bar = figure.colorbar(of_metric[0].images[0], ax=of_metric, aspect=18, pad=0.02)
            bar.outline.set_visible(False)
            bar.set_label(style.wrapped(METRICS[name].label, 20))
    return figure


def heatmap_panel(grid: pd.DataFrame, ax: Axes, metric: Metric, scale: tuple[float, float]) -> None:
    """Plot the cells of one panel, coloured on the scale of all panels, each with its value."""
    colours = colormaps[COLOURS].with_extremes(bad=str(EMPTY_GREY))
    image = ax.imshow(np.ma.masked_invalid(grid), cmap=colours, vmin=scale[0], vmax=scale[1], origin="lower",
                      aspect="auto")
    digits = 1 if metric.key else 2 if scale[1] >= 0.1 else 3  # percent, or a cosine
    for (row, column), value in np.ndenumerate(grid.to_numpy()):
        text, luminance = NO_VALUE, EMPTY_GREY
        if not np.isnan(value):
            text = f"{value:z.{digits}f}".replace("-", "−")
            red, green, blue, _ = image.cmap(image.norm(value))
            luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue  # weights of sRGB
        color = "white" if luminance < MAX_DARK else "black"
        ax.text(column, row, text, ha="center", va="center", color=color, fontsize=6.5)
    ax.set_xticks(range(grid.shape[1]), [f"{value:g}" for value in grid.columns])
    ax.set_yticks(range(grid.shape[0]), [f"{value:g}" for value in grid.index])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
