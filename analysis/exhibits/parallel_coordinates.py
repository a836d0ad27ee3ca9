"""All settings of a grid in one figure: a line per setting through an axis per factor, coloured by test accuracy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.heatmaps import COLOURS
from analysis.exhibits.metrics import METRICS
from analysis.runs import trials_of
from analysis.text import level_order, level_text, means_text, without_formulas
from pipeline.experiment.factors import find_factors

SPREAD = 0.22  # spread of the lines through one level, relative to the distance between levels
CAPTION = ("Every setting as a line through an axis for each field that varies, coloured by test accuracy (last axis), "
           "{}; lines through one value lie in the order of their accuracy")


@exhibit("parallel_coordinates")
def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of all settings; errors as in `tabulate`."""
    table = tabulate(runs)
    caption = CAPTION.format(means_text(table["n"], "").strip())
    return Exhibit.of_means("parallel_coordinates", title="All settings at once", caption=caption, rows=table,
                            figure=plot(table))


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per setting: its factors (`experiment.factors`), `n` seeds and `mean` test accuracy in percent.

    The best setting is last, so it is drawn on top.
    """
    levels = pd.DataFrame(find_factors(trials_of(runs)), index=runs.index)  # a column per factor
    accuracy_by_setting = METRICS["accuracy"].of(runs).groupby([levels[name] for name in levels], sort=False)
    table = accuracy_by_setting.agg(n="size", mean="mean").reset_index()
    return table.sort_values("mean", kind="stable", ignore_index=True)


def plot(table: pd.DataFrame) -> Figure:
    """Plot axes side by side, one per factor, with evenly spaced levels, and mean test accuracy as the last axis.

    All axes have heights from 0 to 1.
    """
    names = [name for name in table if name not in ("n", "mean")]
    low, high = table["mean"].min(), table["mean"].max()
    span = max(high - low, 1e-9)  # equal means would give a range of 0
    heights = []  # of the lines at every axis
    with style.theme():
        figure = Figure(figsize=(1.5 * len(names) + 2.2, 3.6), layout="constrained")
        ax = figure.subplots()
        for x, name in enumerate(names):
            levels = sorted(table[name].unique(), key=level_order)  # evenly spaced, from 0 to 1
            level_heights = {level: index / max(len(levels) - 1, 1) for index, level in enumerate(levels)}
            heights.append(_line_heights(table, name, level_heights))
            ax.vlines(x, -0.1, 1.1, color="0.8", linewidth=0.8, zorder=0)
            for level, height in level_heights.items():
                ax.text(x - 0.04, height, without_formulas(level_text(name, level)), ha="right", va="center", zorder=4,
                        fontsize="small", bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8})
        heights.append((table["mean"] - low) / span)
        lines = [np.column_stack([np.arange(len(heights)), line]) for line in np.column_stack(heights)]
        ax.add_collection(LineCollection(lines, array=table["mean"], cmap=colormaps[COLOURS], linewidths=1.1,
                                         norm=Normalize(low, low + span), alpha=0.85, zorder=2))
        ax.set(xlim=(-0.5, len(names) + 0.05), ylim=(-0.15, 1.15), yticks=[])
        ax.set_xticks(range(len(heights)), [*names, "test accuracy (%)"])
        ax.tick_params(length=0)
        to_accuracy = (lambda height: low + height * span, lambda accuracy: (accuracy - low) / span)  # and its inverse
        accuracy_axis = ax.secondary_yaxis("right", functions=to_accuracy)
        accuracy_axis.spines["right"].set_bounds(low, low + span)
        accuracy_axis.tick_params(labelsize="small")
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.set_title(f"{len(table)} settings, mean over {style.seeds(table['n'], '').strip()}", fontsize="medium")
    return figure


def _line_heights(table: pd.DataFrame, name: str, level_heights: dict[object, float]) -> pd.Series:
    """Return the height of every line on the axis of one factor.

    Lines through one level are spread around its height, in the order of their accuracy, so that they stay apart.
    """
    rank = table.groupby(name)["mean"].rank(method="first") - 1
    count = table.groupby(name)["mean"].transform("size")
    offset = rank / (count - 1).clip(lower=1) - 0.5  # from -1/2 to 1/2
    level_distance = 1 / max(len(level_heights) - 1, 1)
    return table[name].map(level_heights) + offset * SPREAD * level_distance
