"""Figure 2 of Ohana et al. 2021: learning curves, and alignment, by noise.

Functions from a DataFrame (`analysis.runs.load_history`) to a matplotlib Axes. Figures are made without pyplot, so that
neither the backend nor the style of a notebook changes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.exhibits.metrics import METRICS, Metric
from analysis.runs import ALGORITHM_LABELS, NON_PRIVATE, ReportError, by_noise, setting_label
from analysis.statistics import SUMMARY
from analysis.style import MARKERS, PALETTE, seeds, theme

LEFT_ALGORITHMS = ("bp", "dfa", "pdfa")
LAYER = 2  # of the right panel, as in the paper
ALIGNMENT = f"alignment/layer_{LAYER}"
ACCURACY, COSINE = METRICS["accuracy"], METRICS["alignment"]
INTERVAL = "mean, 95% bootstrap band"


class MissingSeries(ReportError):
    """The runs lack what a figure shows."""


def figure2(accuracy: pd.DataFrame, alignment: pd.DataFrame) -> Figure:
    """Both panels, 10 x 3.8 inches, from the histories of `validation/accuracy` and `alignment/layer_2`."""
    with theme():
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        figure2_left(accuracy, left)
        figure2_right(alignment, right)
    return figure


def figure2_left(history: pd.DataFrame, ax: Axes) -> Axes:
    """Validation accuracy by epoch of bp, dfa and pdfa: dashed without privacy, fainter with more noise.

    Args:
        history: of `validation/accuracy`, fractions; other algorithms are left out.

    Raises:
        MissingSeries: if it has none of the three algorithms.
    """
    history = history[history["algorithm"].isin(LEFT_ALGORITHMS)]
    if history.empty:
        raise MissingSeries("figure2, left: needs validation/accuracy of bp, dfa or pdfa trials, found none")
    settings = by_noise(history["setting"])
    noise = [s for s in settings if s != NON_PRIVATE]
    alphas = {NON_PRIVATE: 1.0, **dict(zip(noise, np.linspace(1, 0.25, len(noise)), strict=True))}
    algorithms = [a for a in LEFT_ALGORITHMS if a in set(history["algorithm"])]
    for algorithm in algorithms:
        for setting in settings:
            cell = history[(history["algorithm"] == algorithm) & (history["setting"] == setting)]
            _curve(ax, cell, ACCURACY, color=PALETTE[algorithm], alpha=alphas[setting], linestyle=_dashes(setting),
                   marker=MARKERS[algorithm], label=f"{ALGORITHM_LABELS[algorithm]} {setting_label(setting)}")
    handles = [Line2D([], [], color=PALETTE[a], marker=MARKERS[a], markersize=4, label=ALGORITHM_LABELS[a])
               for a in algorithms]
    handles += [Line2D([], [], color="black", alpha=alphas[s], linestyle=_dashes(s), label=setting_label(s))
                for s in settings]
    return _finish(ax, history, handles, "Validation accuracy (%)")


def figure2_right(history: pd.DataFrame, ax: Axes) -> Axes:
    """Alignment of layer 2 by epoch of pdfa: cosine of its update with the true gradient; colour is the noise.

    Args:
        history: of `alignment/layer_2`; other algorithms than pdfa are left out.

    Raises:
        MissingSeries: if it has no pdfa trial.
    """
    history = history[history["algorithm"] == "pdfa"]
    if history.empty:
        raise MissingSeries(f"figure2, right: needs {ALIGNMENT} of pdfa trials, found none (pdfa trials with "
                            "alignment_batches >= 1 measure it)")
    settings = by_noise(history["setting"])
    noise = [s for s in settings if s != NON_PRIVATE]
    colors = dict(zip(noise, colormaps["viridis"](np.linspace(0, 0.9, len(noise))), strict=True))
    colors[NON_PRIVATE] = "black"
    handles = []
    for setting in settings:
        _curve(ax, history[history["setting"] == setting], COSINE, color=colors[setting], alpha=1.0,
               linestyle=_dashes(setting), marker=MARKERS["pdfa"], label=f"PDFA {setting_label(setting)}")
        handles.append(Line2D([], [], color=colors[setting], linestyle=_dashes(setting), label=setting_label(setting)))
    return _finish(ax, history, handles, f"Alignment of layer {LAYER} (cosine), PDFA")


def figure2_table(accuracy: pd.DataFrame, alignment: pd.DataFrame) -> pd.DataFrame:
    """What both panels draw: columns panel, algorithm, setting, epoch and `SUMMARY`; accuracy in percent."""
    parts = [("left", accuracy[accuracy["algorithm"].isin(LEFT_ALGORITHMS)], ACCURACY),
             ("right", alignment[alignment["algorithm"] == "pdfa"], COSINE)]
    rows = [by_epoch(cell, metric).assign(panel=panel, algorithm=algorithm, setting=setting)
            for panel, history, metric in parts
            for (algorithm, setting), cell in history.groupby(["algorithm", "setting"], sort=False)]
    return pd.concat(rows)[["panel", "algorithm", "setting", "epoch", *SUMMARY]]


def by_epoch(cell: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Mean and intervals over trials by epoch: columns epoch and `SUMMARY`."""
    # A trial that diverged stays in the mean with its last value; without it the curve would recover.
    by_trial = cell.pivot(index="epoch", columns="trial_key", values="value").ffill() * metric.factor
    return pd.DataFrame([{"epoch": epoch, **metric.summarize(values.dropna())}
                         for epoch, values in by_trial.iterrows()])


def _curve(ax: Axes, cell: pd.DataFrame, metric: Metric, *, color: object, alpha: float, linestyle: str,
           marker: str, label: str) -> None:
    """Mean over seeds with the band of its bootstrap interval; a cross where a trial diverged."""
    if cell.empty:
        return
    table = by_epoch(cell, metric)
    ax.plot(table["epoch"], table["mean"], color=color, alpha=alpha, linestyle=linestyle, label=label,
            marker=marker, markersize=3, markeredgewidth=0)
    if (table["n"] > 1).any():
        ax.fill_between(table["epoch"], table["bootstrap_low"], table["bootstrap_high"], color=color,
                        alpha=0.12 * alpha, linewidth=0)
    ends = cell[cell["status"] == "diverged"].sort_values("epoch").groupby("trial_key").last()
    ax.plot(ends["epoch"], ends["value"] * metric.factor, "x", color=color, label=f"{label} diverged")


def _finish(ax: Axes, history: pd.DataFrame, handles: list[Line2D], label: str) -> Axes:
    if (history["status"] == "diverged").any():
        handles = [*handles, Line2D([], [], color="black", marker="x", linestyle="none", label="diverged")]
    title = seeds(history.groupby(["algorithm", "setting"])["seed"].nunique(), INTERVAL)
    # Beside the data, never on it.
    ax.legend(handles=handles, title=title, loc="center left", bbox_to_anchor=(1.01, 0.5), alignment="left")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="Epoch", ylabel=label)
    sns.despine(ax=ax)
    return ax


def _dashes(setting: str) -> str:
    return "--" if setting == NON_PRIVATE else "-"
