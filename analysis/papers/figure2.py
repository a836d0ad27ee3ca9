"""Figure 2 of Ohana et al. 2021: learning curves, and alignment, by noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.metrics import METRICS, layer_name
from analysis.labels import NON_PRIVATE, algorithm_labels, by_noise, setting_label
from analysis.runs import ReportError, common_value, load_history, require_replicates, such, trials_of
from analysis.statistics import SUMMARY
from analysis.text import means_text
from pipeline.tracking.reader import Reader

LAYER = 2  # layer of the shown alignment, as in the paper
ALIGNMENT = f"alignment/layer_{LAYER}"
ACCURACY, COSINE = METRICS["accuracy"], METRICS["alignment"]
CAPTION = ("Validation accuracy by epoch, a panel for each algorithm, dashed without privacy and brighter with more "
           "noise; last, alignment of PDFA's {} (Figure 2 of Ohana et al. 2021): {}")


def draw(runs: pd.DataFrame, store: Reader) -> Exhibit:
    """Make the exhibit of runs whose histories the store has; trials of one curve may differ only in their seed."""
    require_replicates(runs)
    optical_runs = such(runs, lambda trial: trial.parts.feedback.optical)  # of PDFA, as in the paper
    layer = layer_name(LAYER, trials_of(optical_runs))
    table = tabulate(load_history(runs, "validation/accuracy", store), load_history(optical_runs, ALIGNMENT, store))
    caption = CAPTION.format(layer, means_text(table["n"], "with 95% bootstrap bands"))
    return Exhibit.of_means("figure2", title="Learning curves and alignment", caption=caption, rows=table,
                            figure=plot(table, layer))


def tabulate(accuracy: pd.DataFrame, alignment: pd.DataFrame) -> pd.DataFrame:
    """Return the plotted data: panel (`accuracy` in percent, or `alignment`), algorithm, setting, epoch, `SUMMARY`."""
    if accuracy.empty:
        raise ReportError("figure2: needs validation/accuracy, found none")
    if alignment.empty:
        raise ReportError(f"figure2: needs {ALIGNMENT} of pdfa trials, found none (pdfa trials with "
                            "alignment_batches >= 1 measure it)")
    rows: list[dict[str, Any]] = []
    for metric, history in ((ACCURACY, accuracy), (COSINE, alignment)):
        for (algorithm, setting), cell in history.groupby(["algorithm", "setting"], sort=False):
            # A diverged trial stays in the mean with its last value; otherwise the curve would seem to recover.
            by_trial = cell.pivot(index="epoch", columns="trial_key", values="value").ffill() * metric.factor
            rows += [{"panel": metric.name, "algorithm": algorithm, "setting": setting, "epoch": epoch,
                      **metric.summarize(values.dropna())} for epoch, values in by_trial.iterrows()]
    return pd.DataFrame(rows)[["panel", "algorithm", "setting", "epoch", *SUMMARY]]


def plot(table: pd.DataFrame, layer: str = f"layer {LAYER}") -> Figure:
    """Plot accuracies, a panel for each algorithm on one scale, and the alignment of a layer of pdfa trials.

    Lines are black and dashed without privacy, and brighter with more noise.
    """
    accuracy, alignment = (table[table["panel"] == metric.name] for metric in (ACCURACY, COSINE))
    algorithms = style.present(accuracy)
    settings = by_noise(table["setting"])
    noisy = [setting for setting in settings if setting != NON_PRIVATE]
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(noisy)))  # up to 0.9: beyond, too pale on white
    colors = {NON_PRIVATE: "black", **dict(zip(noisy, shades, strict=True))}
    looks = {setting: {"color": colors[setting], "linestyle": "--" if setting == NON_PRIVATE else "-",
                       "label": setting_label(setting)} for setting in settings}
    with style.theme():
        figure, axes = style.panels(len(algorithms) + 1, per_row=3)
        for algorithm, ax in zip(algorithms, axes, strict=False):
            panel(accuracy[accuracy["algorithm"] == algorithm], ax, looks)
            style.name_axes(ax, "Epoch", "Validation accuracy (%)", algorithm_labels()[algorithm])
            ax.sharey(axes[0])
        panel(alignment, axes[-1], looks)
        style.name_axes(axes[-1], "Epoch", "Alignment (cosine)", f"PDFA, {layer}")
        style.name_once(axes)
        style.legend(figure, [Line2D([], [], **look) for look in looks.values()],
                     style.seeds(accuracy["n"], "95% bootstrap band"))
    return figure


def panel(table: pd.DataFrame, ax: Axes, looks: dict[str, dict[str, Any]]) -> None:
    """Plot the means of one algorithm by epoch, a curve with its band for each setting of `looks` that it has."""
    for setting, look in looks.items():
        cell = table[table["setting"] == setting]
        if cell.empty:
            continue
        ax.plot(cell["epoch"], cell["mean"], **look, linewidth=1.1, markersize=2.5, markeredgewidth=0,
                marker=style.MARKERS[common_value(cell["algorithm"])])
        if (cell["n"] > 1).any():
            ax.fill_between(cell["epoch"], cell["bootstrap_low"], cell["bootstrap_high"], color=look["color"],
                            alpha=0.12, linewidth=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
