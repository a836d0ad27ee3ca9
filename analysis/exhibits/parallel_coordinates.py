"""All settings of a grid in one figure: a line per setting through an axis per factor, coloured by test accuracy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.envelope import fields_of
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.heatmaps import COLOURS
from analysis.exhibits.metrics import METRICS
from analysis.text import level_order, level_text, means_text
from pipeline.experiment.factors import find_factors

SPREAD = 0.22  # spread of the lines through one level, relative to the distance between levels
CAPTION = ("Every setting as a line through an axis for each field that varies, coloured by test accuracy (last axis), "
           "{}; lines through one value lie in the order of their accuracy")


def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of all settings; errors as in `tabulate`."""
    table = tabulate(runs)
    caption = CAPTION.format(means_text(table["n"], "").strip())
    return Exhibit.of_means("parallel_coordinates", "All settings at once", caption, table, plot(table))


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per setting: its factors (`experiment.factors`), `n` seeds and `mean` test accuracy in percent.

    The best setting is last, so it is drawn on top.

    Raises:
        ReportError: if a trial lacks test accuracy.
    """
    levels = pd.DataFrame(find_factors(fields_of(runs)), index=runs.index)
    values = METRICS["accuracy"].of(runs).groupby([levels[name] for name in levels], sort=False)
    table = values.agg(n="size", mean="mean").reset_index()
    return table.sort_values("mean", kind="stable", ignore_index=True)


def plot(table: pd.DataFrame) -> Figure:
    """Plot axes side by side, one per factor, with evenly spaced levels, and mean test accuracy as the last axis."""
    names = [name for name in table if name not in ("n", "mean")]
    low, high = table["mean"].min(), table["mean"].max()
    span = max(high - low, 1e-9)
    places = []
    with style.theme():
        figure = Figure(figsize=(1.5 * len(names) + 2.2, 3.6), layout="constrained")
        ax = figure.subplots()
        for x, name in enumerate(names):
            levels = sorted(table[name].unique(), key=level_order)
            step = 1 / max(len(levels) - 1, 1)
            heights = table[name].map({level: place * step for place, level in enumerate(levels)})
            # Lines through one level are spread around its height, in the order of accuracy.
            rank = table.groupby(name)["mean"].rank(method="first") - 1
            count = table.groupby(name)["mean"].transform("size")
            places.append(heights + (rank / (count - 1).clip(lower=1) - 0.5) * SPREAD * step)
            ax.vlines(x, -0.1, 1.1, color="0.8", linewidth=0.8, zorder=0)
            for place, level in enumerate(levels):
                ax.text(x - 0.04, place * step, level_text(name, level), ha="right", va="center", zorder=4,
                        fontsize="small", bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8})
        places.append((table["mean"] - low) / span)
        lines = np.stack([np.column_stack([np.arange(len(places)), row]) for row in np.column_stack(places)])
        ax.add_collection(LineCollection(list(lines), array=table["mean"], cmap=colormaps[COLOURS], linewidths=1.1,
                                         norm=Normalize(low, low + span), alpha=0.85, zorder=2))
        ax.set(xlim=(-0.5, len(names) + 0.05), ylim=(-0.15, 1.15), yticks=[])
        ax.set_xticks(range(len(places)), [*names, "test accuracy (%)"])
        ax.tick_params(length=0)
        right = ax.secondary_yaxis("right", functions=(lambda y: low + y * span, lambda a: (a - low) / span))
        right.spines["right"].set_bounds(low, low + span)
        right.tick_params(labelsize="small")
        for side in ax.spines.values():
            side.set_visible(False)
        ax.set_title(f"{len(table)} settings, mean over {style.seeds(table['n'], '').strip()}", fontsize="medium")
    return figure
