"""Figure 2 of Ohana et al. 2021: learning curves, and alignment, by noise; and accuracy against epsilon.

Functions from a DataFrame (`analysis.runs.load_history`, `analysis.frontier.frontier`) to a matplotlib Axes. Figures
are made without pyplot, so that neither the backend nor the style of a notebook changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from analysis.runs import ALGORITHM_LABELS, NON_PRIVATE, ReportError, by_noise

PALETTE = {a: sns.color_palette("colorblind")[i]
           for a, i in {"bp": 0, "dfa": 2, "tdfa": 4, "pdfa": 3, "hybrid": 1}.items()}
MARKERS = {"bp": "o", "dfa": "s", "tdfa": "D", "pdfa": "^", "hybrid": "v"}  # colour is never the only difference
LEFT_ALGORITHMS = ("bp", "dfa", "pdfa")
LAYER = 2  # of the right panel, as in the paper
ALIGNMENT = f"alignment/layer_{LAYER}"
FORMATS = ("svg", "pdf", "png")
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}  # equal runs give equal files


class MissingSeries(ReportError):
    """The runs lack what a figure shows."""


@contextmanager
def theme() -> Iterator[None]:
    """The look of all figures: ticks, paper-sized text that stays text in SVG and PDF."""
    text = {"svg.fonttype": "none", "svg.hashsalt": "photonic", "pdf.fonttype": 42, "savefig.dpi": 300}
    with rc_context({**sns.axes_style("ticks"), **sns.plotting_context("paper"), "legend.frameon": False, **text}):
        yield


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
            _curve(ax, cell, 100, color=PALETTE[algorithm], alpha=alphas[setting], linestyle=_dashes(setting),
                   marker=MARKERS[algorithm], label=f"{ALGORITHM_LABELS[algorithm]} {_name(setting)}")
    handles = [Line2D([], [], color=PALETTE[a], marker=MARKERS[a], markersize=4, label=ALGORITHM_LABELS[a])
               for a in algorithms]
    handles += [Line2D([], [], color="black", alpha=alphas[s], linestyle=_dashes(s), label=_name(s)) for s in settings]
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
        _curve(ax, history[history["setting"] == setting], 1, color=colors[setting], alpha=1.0,
               linestyle=_dashes(setting), marker=MARKERS["pdfa"], label=f"PDFA {_name(setting)}")
        handles.append(Line2D([], [], color=colors[setting], linestyle=_dashes(setting), label=_name(setting)))
    return _finish(ax, history, handles, f"Alignment of layer {LAYER} (cosine), PDFA")


def frontier_figure(points: Sequence[pd.DataFrame]) -> Figure:
    """One panel per kind of epsilon, 5.4 x 3.8 inches each; kinds never share an axis, since they guarantee different
    things.

    Args:
        points: from `analysis.frontier.frontiers`.
    """
    with theme():
        figure = Figure(figsize=(5.4 * len(points), 3.8), layout="constrained")
        for frame, ax in zip(points, figure.subplots(1, len(points), squeeze=False)[0], strict=True):
            frontier_axes(frame, ax)
    return figure


def frontier_axes(points: pd.DataFrame, ax: Axes) -> Axes:
    """Test accuracy (%) against epsilon (log axis): a curve per algorithm, 95% intervals over seeds as bars.

    Args:
        points: from `analysis.frontier.frontier`.

    Raises:
        ReportError: for no point, an epsilon of 0, or points of several kinds, relations or deltas.
    """
    if points.empty or not (points["epsilon"] > 0).all():
        raise ReportError(f"frontier: needs points with epsilon > 0, got {points['epsilon'].tolist()}")
    for name in ("kind", "relation", "delta"):
        if points[name].nunique() > 1:
            raise ReportError(f"{name}: must be one on an axis, got {', '.join(map(str, points[name].unique()))}")
    for algorithm in [a for a in ALGORITHM_LABELS if a in set(points["algorithm"])]:
        curve = points[points["algorithm"] == algorithm].sort_values("epsilon")
        look = {"color": PALETTE[algorithm], "marker": MARKERS[algorithm], "label": ALGORITHM_LABELS[algorithm]}
        ax.plot(curve["epsilon"], curve["accuracy_mean"], markersize=4.5, markeredgewidth=0, **look)
        known = curve[curve["n"] > 1]
        if len(known):
            ax.errorbar(known["epsilon"], known["accuracy_mean"], color=PALETTE[algorithm], linestyle="none",
                        yerr=[known["accuracy_mean"] - known["accuracy_low"],
                              known["accuracy_high"] - known["accuracy_mean"]], capsize=2, elinewidth=1, alpha=0.6)
    first, samplers = points.iloc[0], ", ".join(sorted(set(points["sampler"])))
    ax.set_title(f"{first['kind']} ε: {first['relation']}, {samplers} batches, δ = {first['delta']:g}")
    few, many = points["n"].min(), points["n"].max()
    n = f"n = {many}" if few == many else f"n = {few} to {many}"
    ax.legend(title=f"{n} seeds\nmean, 95% t interval" if many > 1 else "n = 1 seed",
              loc="center left", bbox_to_anchor=(1.01, 0.5), alignment="left")
    ax.set_xscale("log")
    ticks = _apart(points["epsilon"])
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 0), min(high, 100.5))  # an interval may reach beyond what an accuracy can be
    ax.set(xlabel=f"ε ({first['kind']}, {first['relation']})", ylabel="Test accuracy (%)")
    sns.despine(ax=ax)
    return ax


def _apart(epsilons: Sequence[float]) -> list[float]:
    """The epsilons, of two digits, that leave room for their labels on a log axis."""
    rounded = sorted({float(f"{epsilon:.2g}") for epsilon in epsilons})
    ticks = rounded[:1]
    for epsilon in rounded[1:]:
        if np.log(epsilon / ticks[-1]) >= 0.08 * np.log(rounded[-1] / rounded[0]):
            ticks.append(epsilon)
    return ticks


def save(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write `<stem>.svg`, `.pdf` and `.png` (300 dpi)."""
    paths = [folder / f"{stem}.{extension}" for extension in FORMATS]
    with theme():
        for path in paths:
            figure.savefig(path, metadata=_NO_DATE[path.suffix[1:]])
    return paths


def _curve(ax: Axes, cell: pd.DataFrame, factor: float, *, color: object, alpha: float, linestyle: str,
           marker: str, label: str) -> None:
    """Mean over seeds with a band from the lowest to the highest seed; a cross where a trial diverged."""
    if cell.empty:
        return
    # A trial that diverged stays in the mean with its last value; without it the curve would recover.
    by_trial = cell.pivot(index="epoch", columns="trial_key", values="value").ffill() * factor
    by_epoch = by_trial.agg(["mean", "min", "max"], axis=1)
    ax.plot(by_epoch.index, by_epoch["mean"], color=color, alpha=alpha, linestyle=linestyle, label=label,
            marker=marker, markersize=3, markeredgewidth=0)
    if cell["seed"].nunique() > 1:
        ax.fill_between(by_epoch.index, by_epoch["min"], by_epoch["max"], color=color, alpha=0.12 * alpha, linewidth=0)
    ends = cell[cell["status"] == "diverged"].sort_values("epoch").groupby("trial_key").last()
    ax.plot(ends["epoch"], ends["value"] * factor, "x", color=color, label=f"{label} diverged")


def _finish(ax: Axes, history: pd.DataFrame, handles: list[Line2D], label: str) -> Axes:
    if (history["status"] == "diverged").any():
        handles = [*handles, Line2D([], [], color="black", marker="x", linestyle="none", label="diverged")]
    counts = history.groupby(["algorithm", "setting"])["seed"].nunique()
    n = f"n = {counts.max()}" if counts.min() == counts.max() else f"n = {counts.min()} to {counts.max()}"
    title = f"{n} seed{'s' if counts.max() > 1 else ''}" + ("\nmean, min–max" if counts.max() > 1 else "")
    # Beside the data, never on it.
    ax.legend(handles=handles, title=title, loc="center left", bbox_to_anchor=(1.01, 0.5), alignment="left")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="Epoch", ylabel=label)
    sns.despine(ax=ax)
    return ax


def _dashes(setting: str) -> str:
    return "--" if setting == NON_PRIVATE else "-"


def _name(setting: str) -> str:
    return setting if setting == NON_PRIVATE else f"σ = {setting}"
