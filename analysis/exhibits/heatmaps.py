"""Heatmaps of a metric over sigma and tau_h, the two settings of the photonic mechanism: one panel per algorithm."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.envelope import cells, ordered
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.metrics import METRICS
from analysis.runs import ALGORITHM_LABELS, ReportError, common_value, such
from analysis.text import NO_VALUE, means_text
from pipeline.experiment.exhibits import HEATMAPS, in_heatmap

COLOURS = "cividis"  # sequential, with even steps of lightness, and safe for colour-blind readers
EMPTY_GREY = 0.92  # of a cell without a value
MAX_DARK = 0.45  # largest luminance of a colour on which text is white
TEXTS = {  # title, beginning of the caption
    "alignment_heatmap": ("Alignment by noise and activation bound",
                          "Alignment of the applied update with the true gradient in the hidden layers"),
    "accuracy_heatmap": ("Accuracy by noise and activation bound", "Test accuracy (%)")}


@exhibit(*HEATMAPS)
def draw(runs: pd.DataFrame, *, name: str) -> Exhibit:
    """Make one of the exhibits in `HEATMAPS`; errors as in `tabulate`."""
    table = tabulate(runs, HEATMAPS[name])
    title, quantity = TEXTS[name]
    caption = (f"{quantity} by noise level σ and bound τ_h on the activations, one panel for each algorithm: "
               f"{means_text(table['n'], '(95% intervals in the CSV)')}")
    return Exhibit.of_means(name, title=title, caption=caption, rows=table, figure=plot(table))


def tabulate(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return `cells` of a metric by algorithm, sigma and tau_h, of photonic trials; there must be some."""
    grid_runs = such(runs, in_heatmap)
    if grid_runs.empty:
        raise ReportError(f"{metric}_heatmap: needs trials with mechanism photonic and a sigma, found none")
    return ordered(cells(grid_runs, ["algorithm", "sigma", "tau_h"], metric), ["algorithm"])


def plot(table: pd.DataFrame) -> Figure:
    """Plot a row of panels, one per algorithm, on one colour scale: sigma upwards, tau_h to the right."""
    algorithms = style.present(table)
    width = 0.45 * table["tau_h"].nunique() + 0.3  # inches
    height = 0.36 * table["sigma"].nunique() + 1.1
    with style.theme():
        # beside the panels 1.6 inches for labels and the colour bar
        figure, axes = style.panels(len(algorithms), len(algorithms), width, height, beside=(1.6, 0.0), sharey=True)
        for algorithm, ax in zip(algorithms, axes, strict=True):
            panel(table, algorithm, ax)
            ax.set_title(ALGORITHM_LABELS[algorithm])
        for ax in axes[1:]:
            ax.tick_params(labelleft=False)
        axes[0].set_ylabel("σ (noise level)")
        image = axes[-1].images[0]  # all panels have one colour scale
        bar = figure.colorbar(image, ax=axes, aspect=16, pad=0.01)
        bar.set_label(METRICS[common_value(table["metric"])].label)
        bar.outline.set_visible(False)
        figure.supxlabel(f"$\\tau_h$ (bound on activations);  mean over {style.seeds(table['n'], '').strip()}",
                         fontsize="medium")
    return figure


def panel(table: pd.DataFrame, algorithm: str, ax: Axes) -> None:
    """Plot the cells of one algorithm, coloured on the scale of the whole table."""
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
    ax.spines[:].set_visible(False)
