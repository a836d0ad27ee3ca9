"""Figure 2 of Ohana et al. 2021: learning curves, and alignment, by noise.

Functions map a DataFrame (`analysis.runs.load_history`) to a matplotlib Axes. Figures do not use pyplot, so backend and
style of a notebook do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import LineStyleType

from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.metrics import METRICS, Metric, layer_name
from analysis.runs import (
    ALGORITHM_LABELS,
    NON_PRIVATE,
    ReportError,
    by_noise,
    load_history,
    require_replicates,
    setting_label,
    such,
    trials_of,
)
from analysis.statistics import SUMMARY
from analysis.style import MARKERS, panels, present, seeds, theme
from analysis.text import means_text
from pipeline.tracking.reader import Reader

LAYER = 2  # layer of the shown alignment, as in the paper
ALIGNMENT = f"alignment/layer_{LAYER}"
ACCURACY, COSINE = METRICS["accuracy"], METRICS["alignment"]
INTERVAL = "mean, 95% bootstrap band"
PER_ROW = 3
CAPTION = ("Validation accuracy by epoch, a panel for each algorithm, dashed without privacy and brighter with more "
           "noise; last, alignment of PDFA's {} (Figure 2 of Ohana et al. 2021): {}")


class MissingSeries(ReportError):
    """The runs lack data for a figure."""


@exhibit("figure2")
def draw(runs: pd.DataFrame, store: Reader) -> Exhibit:
    """Make the exhibit of runs with histories in the store.

    Trials of one curve may differ only in their seed (`MixedTrials`).
    """
    require_replicates(runs)
    accuracy = load_history(store, runs, "validation/accuracy")
    optical_runs = such(runs, lambda trial: trial.parts.feedback.optical)
    alignment, layer = load_history(store, optical_runs, ALIGNMENT), layer_name(LAYER, trials_of(optical_runs))
    table = tabulate(accuracy, alignment)
    caption = CAPTION.format(layer, means_text(table["n"], "with 95% bootstrap bands"))
    return Exhibit.of_means("figure2", title="Learning curves and alignment", caption=caption, rows=table,
                            figure=plot(accuracy, alignment, layer))


def plot(accuracy: pd.DataFrame, alignment: pd.DataFrame, layer: str = f"layer {LAYER}") -> Figure:
    """Plot a panel of validation accuracy for each algorithm on one scale, a panel of PDFA's alignment, and a legend.

    The alignment is of a layer of pdfa trials. Without either history there is nothing to show (`MissingSeries`).
    """
    if accuracy.empty:
        raise MissingSeries("figure2: needs validation/accuracy, found none")
    algorithms = present(accuracy)
    settings = by_noise([*accuracy["setting"], *alignment["setting"]])
    with theme():
        figure, axes = panels(len(algorithms) + 1, PER_ROW, width=2.7, height=2.6, beside=(1.9, 0.0))
        for algorithm, ax in zip(algorithms, axes, strict=False):
            accuracy_axes(accuracy, algorithm, ax, settings)
            ax.sharey(axes[0])
        alignment_axes(alignment, axes[-1], settings, layer)
        colors = noise_colors(settings)
        handles = [Line2D([], [], color=colors[setting], linestyle=_dashes(setting), label=setting_label(setting))
                   for setting in settings]
        if (accuracy["status"] == "diverged").any() or (alignment["status"] == "diverged").any():
            handles.append(Line2D([], [], color="black", marker="x", linestyle="none", label="diverged"))
        title = seeds(accuracy.groupby(["algorithm", "setting"])["seed"].nunique(), INTERVAL)
        figure.legend(handles=handles, title=title, loc="outside right center", alignment="left")
    return figure


def accuracy_axes(history: pd.DataFrame, algorithm: str, ax: Axes, settings: Sequence[str]) -> Axes:
    """Plot validation accuracy of one algorithm by epoch: dashed without privacy, colour by noise.

    `settings` are those of the whole figure, as its panels must agree on colours.
    """
    history = history[history["algorithm"] == algorithm]
    for setting in settings:
        _curve(ax, history[history["setting"] == setting], ACCURACY, color=noise_colors(settings)[setting],
               linestyle=_dashes(setting), marker=MARKERS[algorithm], label=setting_label(setting))
    ax.set_title(ALGORITHM_LABELS[algorithm])
    return _finish(ax, "Validation accuracy (%)")


def alignment_axes(history: pd.DataFrame, ax: Axes, settings: Sequence[str], layer: str) -> Axes:
    """Plot alignment of a layer of pdfa trials by epoch: cosine of its update with the true gradient; colour by noise.

    There must be pdfa trials (`MissingSeries`).
    """
    if history.empty:
        raise MissingSeries(f"figure2: needs {ALIGNMENT} of pdfa trials, found none (pdfa trials with "
                            "alignment_batches >= 1 measure it)")
    for setting in settings:
        _curve(ax, history[history["setting"] == setting], COSINE, color=noise_colors(settings)[setting],
               linestyle=_dashes(setting), marker=MARKERS["pdfa"], label=setting_label(setting))
    ax.set_title(f"PDFA, {layer}")
    return _finish(ax, "Alignment (cosine)")


def noise_colors(settings: Sequence[str]) -> dict[str, Any]:
    """Return a colour per setting: black without privacy, brighter with more noise."""
    noisy_settings = [setting for setting in settings if setting != NON_PRIVATE]
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(noisy_settings)))  # up to 0.9: beyond, too pale on white
    colors = dict(zip(noisy_settings, shades, strict=True))
    return {NON_PRIVATE: "black", **colors}


def tabulate(accuracy: pd.DataFrame, alignment: pd.DataFrame) -> pd.DataFrame:
    """Return the plotted data: panel (`accuracy` in percent, or `alignment`), algorithm, setting, epoch, `SUMMARY`."""
    tables = []
    panel_data = (("accuracy", accuracy, ACCURACY), ("alignment", alignment, COSINE))
    for panel, history, metric in panel_data:
        for (algorithm, setting), cell in history.groupby(["algorithm", "setting"], sort=False):
            tables.append(by_epoch(cell, metric).assign(panel=panel, algorithm=algorithm, setting=setting))
    return pd.concat(tables)[["panel", "algorithm", "setting", "epoch", *SUMMARY]]


def by_epoch(cell: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return a row per epoch with the mean of a metric over trials and its intervals: columns epoch and `SUMMARY`.

    The cell has a row per trial and epoch: epoch, trial_key and value.
    """
    # A diverged trial stays in the mean with its last value; otherwise the curve would seem to recover.
    by_trial = cell.pivot(index="epoch", columns="trial_key", values="value").ffill() * metric.factor
    return pd.DataFrame([{"epoch": epoch, **metric.summarize(values.dropna())}
                         for epoch, values in by_trial.iterrows()])


def _curve(ax: Axes, cell: pd.DataFrame, metric: Metric, *, color: Any, linestyle: LineStyleType, marker: str,
           label: str) -> None:
    """Plot the mean over seeds with the band of its bootstrap interval; a cross marks the end of a diverged trial."""
    if cell.empty:
        return
    table = by_epoch(cell, metric)
    ax.plot(table["epoch"], table["mean"], color=color, linestyle=linestyle, label=label, linewidth=1.1,
            marker=marker, markersize=2.5, markeredgewidth=0)
    if (table["n"] > 1).any():
        ax.fill_between(table["epoch"], table["bootstrap_low"], table["bootstrap_high"], color=color, alpha=0.12,
                        linewidth=0)
    last_points = cell[cell["status"] == "diverged"].sort_values("epoch").groupby("trial_key").last()
    ax.plot(last_points["epoch"], last_points["value"] * metric.factor, "x", color=color, label=f"{label} diverged")


def _finish(ax: Axes, ylabel: str) -> Axes:
    """Label the axes: epochs, with whole numbers as ticks, against the quantity `ylabel`; return the axes."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="Epoch", ylabel=ylabel)
    sns.despine(ax=ax)
    return ax


def _dashes(setting: str) -> LineStyleType:
    return "--" if setting == NON_PRIVATE else "-"
