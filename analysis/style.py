"""The style of all figures: theme, colour, marker and line of every algorithm, intervals, files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import font_manager, rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from matplotlib.transforms import ScaledTranslation

from analysis import svg
from analysis.runs import ALGORITHM_LABELS
from analysis.text import n_seeds
from pipeline.trials.feedback import COLOURS
from pipeline.trials.fields import refuse


class _Looks(dict[str, Any]):  # Any: a matplotlib colour, marker or line
    """A property by algorithm; extensions get the spare values, in the order of their registration."""

    def __init__(self, built_in: Mapping[str, Any], spare: Sequence[Any]) -> None:
        super().__init__(built_in)
        self.spare = spare

    def __missing__(self, algorithm: str) -> Any:
        extension_number = list(ALGORITHM_LABELS).index(algorithm) - len(self)  # built-in algorithms come first
        return self.spare[extension_number % len(self.spare)]


COLORS = sns.color_palette("colorblind")
PALETTE = _Looks(COLOURS, [*COLORS[5:7], *COLORS[8:]])
# Colour is never the only difference. In learning curves, as in the papers, a dashed line is a trial without privacy.
MARKERS = _Looks({"softmax": "p", "bp": "o", "dfa": "s", "tdfa": "D", "pdfa": "^", "hybrid": "v"}, "PX<>h")
LINES = _Looks({"softmax": (0, (3, 1, 1, 1)), "bp": "-", "dfa": (0, (6, 1.5)), "tdfa": (0, (6, 1.5, 1, 1.5)),
                "pdfa": (0, (1.5, 1)), "hybrid": (0, (6, 1.5, 1, 1.5, 1, 1.5))}, ["-."])
FORMATS = ("svg", "pdf", "png", "eps")
LINE, PANEL = 0.17, 2.4  # inches: height of a line of a legend, least width of a panel
SHIFT = 3.0  # points (1/72 inch) between the curves of two algorithms
LARGE_TICK = 1e5  # from here on, labels of ticks have powers of ten
INTERVALS = "mean, 95% intervals:\nthick bootstrap, thin t"
# Without dates, equal runs give equal files.
_NO_DATE: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}, "eps": {}}


@dataclass(frozen=True)
class Files:
    """How figures are written."""

    formats: tuple[str, ...] = ("svg", "pdf", "png")  # of `FORMATS`; the SVG, which a page has, is always written
    width: float = 0.0  # of every figure in inches, with legends below; 0 for its own width, with legends beside
    font: str = ""  # family; empty for that of matplotlib
    labels: Mapping[str, str] = field(default_factory=dict)  # names of algorithms in place of their own

    def __post_init__(self) -> None:
        refuse(unknown := [name for name in self.formats if name not in FORMATS], "--format",
               f"must be one of {', '.join(FORMATS)}", ", ".join(unknown))
        refuse(not (self.width == 0 or 1 <= self.width <= 50), "--width", "must be 1 to 50 inches", f"{self.width:g}")
        if self.font:
            installed = sorted(font_manager.get_font_names())
            refuse(self.font not in installed, "--font", f"must be a font of this machine ({', '.join(installed)})",
                   f"'{self.font}'")


_files = Files()


@contextmanager
def written_as(files: Files) -> Iterator[None]:
    """Within the context, write figures so."""
    global _files
    _files = files
    ALGORITHM_LABELS.maps[0].update(files.labels)
    try:
        yield
    finally:
        _files = Files()
        ALGORITHM_LABELS.maps[0].clear()


@contextmanager
def theme() -> Iterator[None]:
    """Apply the style of all figures: no frame, and paper-sized text that stays text in SVG and PDF."""
    output: dict[Any, Any] = {
        "axes.spines.right": False, "axes.spines.top": False, "legend.frameon": False,
        "svg.fonttype": "none", "pdf.fonttype": 42,  # text, not outlines
        "svg.hashsalt": "photonic",  # equal figures get equal files
        "savefig.dpi": 300, **({"font.family": _files.font} if _files.font else {})}
    with rc_context({**sns.axes_style("ticks"), **sns.plotting_context("paper"), **output}):
        yield


def panels(count: int, per_row: int, width: float, height: float, beside: tuple[float, float] = (0.0, 0.0),
           between: float | None = None, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Return a new figure and its `count` axes, row by row.

    Sizes are in inches; `beside` is what legends and labels add to the figure's width and height, and `between` the
    margin of a column, if not matplotlib's. `shared` has arguments of `Figure.subplots`.
    """
    columns = min(per_row, count)
    rows = math.ceil(count / columns)
    extra_width, extra_height = beside
    figure = Figure(figsize=(width * columns + extra_width, height * rows + extra_height), layout="constrained")
    if between is not None:
        figure.set_layout_engine("constrained", w_pad=between)
    axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


def legend(figure: Figure, entries: Sequence[Artist], title: str = "") -> None:
    """Add the legend of a figure, to the right of its panels."""
    figure.legend(handles=entries, title=title, loc="outside right center", alignment="left")


def draw(figure: Figure) -> dict[str, bytes]:
    """Return the figure in all formats (300 dpi); the SVG has annotations for a page (`analysis.svg`)."""
    names, files = svg.name(figure), {}
    with theme(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the SVG has it as text; PDF and PNG have a box
        if _files.width:
            _fit(figure, _files.width)
        for extension in dict.fromkeys(("svg", *_files.formats)):
            file = BytesIO()
            figure.savefig(file, format=extension, metadata=_NO_DATE[extension])
            files[extension] = file.getvalue()
        return files | {"svg": svg.annotate(files["svg"], names)}


def _fit(figure: Figure, width: float) -> None:
    """Give a figure a width in inches, with its legends below, and only as many panels in a row as fit."""
    height = figure.get_figheight()
    grids = {spec.get_gridspec() for ax in figure.axes if (spec := ax.get_subplotspec())}
    if len(grids) == 1 and (columns := max(1, int(width / PANEL))) < (grid := grids.pop()).ncols:
        rows = math.ceil(len(figure.axes) / columns)
        height *= rows / grid.nrows
        grid = GridSpec(rows, columns, figure)
        for number, ax in enumerate(figure.axes):
            ax.set_subplotspec(grid[number])
    for ax in figure.axes:
        ax.title.set_fontsize("small")
    for legend in figure.legends:
        legend.set_loc("outside lower center")
        height += LINE * (2 + len(legend.get_texts()) + legend.get_title().get_text().count("\n"))
    figure.set_size_inches(width, height)


def look(algorithm: str) -> dict[str, Any]:
    """Return colour, marker, line and label of an algorithm, as arguments of `Axes.plot`."""
    return {"color": PALETTE[algorithm], "marker": MARKERS[algorithm], "linestyle": LINES[algorithm],
            "label": ALGORITHM_LABELS[algorithm], "markersize": 4.5, "linewidth": 1.3}


def present(table: pd.DataFrame) -> list[str]:
    """Return the algorithms of a table, in the order of all figures."""
    return [algorithm for algorithm in ALGORITHM_LABELS if algorithm in set(table["algorithm"])]


def curve(ax: Axes, points: pd.DataFrame, x: str, algorithm: str, shift: float, *, side: str = "",
          hollow: pd.Series | None = None, **line_properties: Any) -> None:
    """Plot means over column `x`, with both intervals of `analysis.statistics.summarize` as bars if n > 1.

    The curve is shifted to the right, by points of 1/72 inch, as bars at one x must not cover each other. `hollow`
    tells for every row whether its marker is hollow. Results of others have no algorithm, and their whole look
    in `line_properties`. Of two experiments in one figure, `side` names that of the curve.
    """
    points = points.sort_values(x)
    shifted = ax.transData + ScaledTranslation(shift / 72, 0, ax.figure.dpi_scale_trans)
    algorithm_look = look(algorithm) if algorithm else {}
    if side:
        algorithm_look["label"] = f"{algorithm_look['label']}, {side}"
    (line,) = ax.plot(points[x], points["mean"], transform=shifted,
                      **{"zorder": 3, **algorithm_look, **line_properties})
    label = str(line.get_label())
    marker_texts = pd.Series([_marker_text(row, x, label) for row in points.to_dict("records")], points.index,
                             dtype=str)
    svg.tag(line, algorithm, list(marker_texts))
    if hollow is not None:
        hollow_points = points[hollow.reindex(points.index)]
        hollow_look = {**algorithm_look, "linestyle": "none", "label": None, "markerfacecolor": "white"}
        (open_markers,) = ax.plot(hollow_points[x], hollow_points["mean"], zorder=4, transform=shifted, **hollow_look)
        svg.tag(open_markers, algorithm, list(marker_texts[hollow_points.index]))
    with_interval = points[points["n"] > 1]
    for low, high, width in (("low", "high", 0.9), ("bootstrap_low", "bootstrap_high", 2.8)):
        bars = np.stack([with_interval[[x, low]], with_interval[[x, high]]], axis=1)  # [points, 2 ends, x and y]
        collection = LineCollection(list(bars), colors=[line.get_color()], linewidths=width, alpha=0.5, zorder=2,
                                    transform=shifted)
        svg.tag(ax.add_collection(collection), algorithm)
        ax.update_datalim(bars.reshape(-1, 2))
    ax.update_datalim(points[[x, "mean"]].to_numpy())
    ax.autoscale_view()


def _marker_text(point: Mapping[str, Any], x: str, label: str) -> str:
    """Return a marker's lines: label, value of column `x`, mean and interval, and the setting chosen among several."""
    alone = " (n = 1)" if point.get("has_seeds", True) else " (as published)"
    interval = f" ± {point['half_width']:.3g} (95% t interval, n = {point['n']})" if point["n"] > 1 else alone
    symbol = "ε" if x == "epsilon" else x
    lines = [label, f"{symbol} = {point[x]:.4g}", f"{point['mean']:.4g}{interval}"]
    if point.get("chosen"):
        lines.append(point["chosen"])
    return "\n".join(lines)


def shifts(table: pd.DataFrame) -> dict[str, float]:
    """Return the shift of every algorithm's curve to the right, in points; shifts are equally spaced around 0."""
    algorithms = present(table)
    middle = (len(algorithms) - 1) / 2
    return {algorithm: SHIFT * (index - middle) for index, algorithm in enumerate(algorithms)}


def curves(ax: Axes, points: pd.DataFrame, x: str, **line_properties: Any) -> None:
    """Plot a `curve` for each algorithm, shifted by up to `SHIFT` points, so that bars do not overlap."""
    for algorithm, shift in shifts(points).items():
        curve(ax, points[points["algorithm"] == algorithm], x, algorithm, shift, **line_properties)


def handles(table: pd.DataFrame) -> list[Line2D]:
    """Return legend entries, one per algorithm of a table."""
    return [Line2D([], [], **look(algorithm)) for algorithm in present(table)]


def seeds(counts: pd.Series, intervals: str = INTERVALS) -> str:
    """Return `n = 3 seeds` and, for several seeds, the meaning of the intervals, from the seeds of every mean."""
    number = n_seeds(counts)
    return f"{number}\n{intervals}" if counts.max() > 1 else number


def log_axis(ax: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with ticks at the values."""
    ax.set_xscale("log")
    ticks = _spaced_ticks(values)
    labels = [f"{tick:g}" for tick in ticks]
    for place, tick in enumerate(ticks):
        if tick >= LARGE_TICK:  # `2 × 10^6` in place of `2e+06`
            digits, exponent = f"{tick:.1e}".split("e")
            labels[place] = rf"${float(digits):g} \times 10^{{{int(exponent)}}}$"
    ax.set_xticks(ticks, labels)
    ax.xaxis.set_minor_locator(NullLocator())


def within(ax: Axes, low: float, high: float) -> None:
    """Limit the y axis to the quantity's range `low` to `high`, with a margin for markers.

    If the values are almost equal, widen the axis so that they look equal.
    """
    bottom, top = ax.get_ylim()
    margin = 0.02 * (high - low)  # about the size of a marker
    if top - bottom < 2 * margin:
        bottom, top = bottom - margin, top + margin
    ax.set_ylim(max(bottom, low - margin), min(top, high + margin))


def _spaced_ticks(values: Sequence[float]) -> list[float]:
    """Return rounded values with enough space for their labels on a log axis, as ticks; leave out the others."""
    rounded = set()
    for value in map(float, values):
        is_small_integer = value.is_integer() and value < LARGE_TICK
        rounded.add(value if is_small_integer else float(f"{value:.2g}"))
    low, *others = sorted(rounded)
    high = max(rounded)
    min_distance = 0.08 if high < LARGE_TICK else 0.2  # as a share of the axis; labels of large values are longer
    ticks = [low]
    for value in others:
        if np.log(value / ticks[-1]) >= min_distance * np.log(high / low):
            ticks.append(value)
    return ticks
