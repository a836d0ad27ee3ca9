"""Heatmaps of a metric over sigma and tau_h, the two settings of the photonic mechanism: one panel per algorithm."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from analysis import style
from analysis.exhibits.envelope import best_cells
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.metrics import METRICS
from analysis.runs import ALGORITHM_LABELS, ReportError, common_value, such
from analysis.text import NO_VALUE, means_text
from pipeline.experiment.exhibits import HEATMAPS, in_heatmap

COLOURS = "cividis"  # sequential, with even steps of lightness, and safe for colour-blind readers
EMPTY_GREY = 0.92  # of a cell without a value
MAX_DARK = 0.45  # largest luminance of a colour on which text is white
TITLES = {"alignment_heatmap": "Alignment by noise and activation bound",
          "accuracy_heatmap": "Accuracy by noise and activation bound"}
CAPTIONS = {
    "alignment_heatmap": "Alignment of the applied update with the true gradient in the hidden layers",
    "accuracy_heatmap": "Test accuracy (%)",
}


def draw(runs: pd.DataFrame, *, name: str) -> Exhibit:
    """Make one of the exhibits in `TITLES`; errors as in `tabulate`."""
    table = tabulate(runs, HEATMAPS[name])
    caption = (f"{CAPTIONS[name]} by noise level σ and bound τ_h on the activations, one panel for each algorithm: "
               f"{means_text(table['n'], '(95% intervals in the CSV)')}")
    return Exhibit.of_means(name, title=TITLES[name], caption=caption, rows=table, figure=plot(table))


def tabulate(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a metric at the last epoch by algorithm, sigma and tau_h, over seeds, from `best_cells`.

    Trials of other mechanisms are left out, and trials without a measured alignment (see `Metric.of`). There must be
    photonic trials; other errors as in `best_cells`.
    """
    grid_runs = such(runs, in_heatmap)
    if grid_runs.empty:
        raise ReportError(f"{metric}_heatmap: needs trials with mechanism photonic and a sigma, found none")
    table = best_cells(grid_runs, ["algorithm", "sigma", "tau_h"], metric)
    # algorithms in the order of all figures
    return pd.concat([table[table["algorithm"] == algorithm] for algorithm in style.present(table)], ignore_index=True)


def plot(table: pd.DataFrame) -> Figure:
    """Plot a row of panels, one per algorithm, on one colour scale: sigma upwards, tau_h to the right."""
    algorithms = style.present(table)
    n_columns, n_rows = table["tau_h"].nunique(), table["sigma"].nunique()
    width = (0.45 * n_columns + 0.3) * len(algorithms) + 1.6  # inches; 1.6 for labels and the colour bar
    height = 0.36 * n_rows + 1.1
    with style.theme():
        figure = Figure(figsize=(width, height), layout="constrained")
        (axes,) = figure.subplots(1, len(algorithms), squeeze=False, sharey=True)
        for algorithm, ax in zip(algorithms, axes, strict=True):
            panel(table, algorithm, ax)
            ax.set_title(ALGORITHM_LABELS[algorithm])
        for ax in axes[1:]:
            ax.tick_params(labelleft=False)
        axes[0].set_ylabel("σ (noise level)")
        metric = METRICS[common_value(table["metric"])]
        image = axes[-1].images[0]  # all panels have one colour scale
        bar = figure.colorbar(image, ax=axes, aspect=16, pad=0.01)
        bar.set_label(metric.label)
        bar.outline.set_visible(False)
        figure.supxlabel(f"$\\tau_h$ (bound on activations);  mean over {style.seeds(table['n'], '').strip()}",
                         fontsize="medium")
    return figure


def panel(table: pd.DataFrame, algorithm: str, ax: Axes) -> AxesImage:
    """Plot the cells of one algorithm, coloured on the scale of the whole table; return the image."""
    grid = table[table["algorithm"] == algorithm].pivot(index="sigma", columns="tau_h", values="mean")
    # All panels have the same rows and columns; the algorithm may lack some cells.
    grid = grid.reindex(index=sorted(table["sigma"].unique()), columns=sorted(table["tau_h"].unique()))
    low, high = table["mean"].min(), table["mean"].max()
    colours = colormaps[COLOURS].with_extremes(bad=str(EMPTY_GREY))
    image = ax.imshow(np.ma.masked_invalid(grid), cmap=colours, vmin=low, vmax=high, origin="lower", aspect="auto")
    digits = 1 if METRICS[common_value(table["metric"])].key else 2  # percent, or a cosine
    for (row, column), value in np.ndenumerate(grid.to_numpy()):
        text, luminance = NO_VALUE, EMPTY_GREY
        if not np.isnan(value):
            text = f"{value:z.{digits}f}".replace("-", "−")
            red, green, blue, _ = image.cmap(image.norm(value))
            luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue  # weights of sRGB
        color = "white" if luminance < MAX_DARK else "black"
        ax.text(column, row, text, ha="center", va="center", color=color, fontsize="small")
    ax.set_xticks(range(grid.shape[1]), [f"{value:g}" for value in grid.columns])
    ax.set_yticks(range(grid.shape[0]), [f"{value:g}" for value in grid.index])
    ax.tick_params(length=0)
    sns.despine(ax=ax, left=True, bottom=True)
    return image
