"""The figure of `by_tau_h_and_batch_size`, which `analysis.exhibits.along` makes: a heatmap over two settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.metrics import METRICS, Metric
from analysis.labels import axis_name, names_of
from analysis.runs import common_value
from analysis.text import NO_VALUE

COLOURS = "cividis"  # sequential, with even steps of lightness, and safe for colour-blind readers
EMPTY_GREY = 0.92  # of a cell without a value
MAX_DARK = 0.45  # largest luminance of a colour on which text is white
CELL, ROW, BESIDE = 0.31, 0.22, 0.7  # inches: least width and height of a cell, and of what stands beside the cells


def plot(table: pd.DataFrame, axes: Sequence[str]) -> Figure:
    """Plot a panel for each metric, algorithm and level of further factors, on one colour scale for each metric."""
    names = [name for name in table.attrs["layout"].panels if table[name].nunique() > 1]
    columns, rows = (sorted(table[axis].unique()) for axis in axes)
    groups = list(table.groupby(["metric", *names], sort=False, dropna=False))
    per_metric = len(groups) // table["metric"].nunique()
    least = CELL * len(columns) + BESIDE
    per_row = style.row_of(per_metric, least)  # no row has panels of two metrics
    with style.theme():
        height = max(1.7 if per_row > 1 else 1.4, ROW * len(rows) + BESIDE)
        figure, drawn = style.panels(len(groups), height, least, per_row)
        style.require_width(figure, least)
        for (_, points), ax in zip(groups, drawn, strict=True):
            metric = METRICS[common_value(points["metric"])]
            scale = table.loc[table["metric"] == metric.name, "mean"]
            panel(points.pivot(index=axes[1], columns=axes[0], values="mean").reindex(index=rows, columns=columns),
                  ax, metric, (scale.min(), scale.max()))
            style.name_axes(ax, axis_name(axes[0]), axis_name(axes[1]), names_of(points.iloc[0], names))
        style.name_once(drawn)
        for name in table["metric"].unique():
            of_metric = [ax for (_, points), ax in zip(groups, drawn, strict=True)
                         if common_value(points["metric"]) == name]
            bar = figure.colorbar(of_metric[0].images[0], ax=of_metric, aspect=18, pad=0.02)
            bar.outline.set_visible(False)
            bar.set_label(style.wrapped(METRICS[name].label, 20))
    return figure


def panel(grid: pd.DataFrame, ax: Axes, metric: Metric, scale: tuple[float, float]) -> None:
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
