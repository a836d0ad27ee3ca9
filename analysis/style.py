"""The style of all figures: theme, panels, looks of lines, legends, and files that fit their width."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import font_manager, rc_context
from matplotlib.artist import Artist, getp
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from matplotlib.transforms import ScaledTranslation

from analysis import svg
from analysis.labels import LABELS, algorithm_labels, names_of
from analysis.runs import ReportError
from analysis.text import n_seeds
from pipeline.trials.feedback import COLOURS
from pipeline.trials.fields import refuse


class _Looks(dict[str, Any]):  # Any: a matplotlib colour, marker or line
    """A property by algorithm; extensions get the spare values, in the order of their registration."""

    def __init__(self, built_in: Mapping[str, Any], spare: Sequence[Any]) -> None:
        super().__init__(built_in)
        self.spare = spare

    def __missing__(self, algorithm: str) -> Any:
        extension_number = list(algorithm_labels()).index(algorithm) - len(self)  # built-in algorithms come first
        return self.spare[extension_number % len(self.spare)]


COLORS = sns.color_palette("colorblind")
PALETTE = _Looks(COLOURS, [*COLORS[5:7], *COLORS[8:]])
# Colour is never the only difference. In learning curves, as in the papers, a dashed line is a trial without privacy.
MARKERS = _Looks({"softmax": "p", "bp": "o", "dfa": "s", "tdfa": "D", "pdfa": "^", "hybrid": "v"}, "PX<>h")
LINES = _Looks({"softmax": (0, (3, 1, 1, 1)), "bp": "-", "dfa": (0, (6, 1.5)), "tdfa": (0, (6, 1.5, 1, 1.5)),
                "pdfa": (0, (1.5, 1)), "hybrid": (0, (6, 1.5, 1, 1.5, 1, 1.5))}, ["-."])
VARIANTS = "osD^vPX<>h"  # markers of lines of one algorithm
FORMATS = ("svg", "pdf", "png", "eps")
PAGE, TALLEST = 6.75, 9.0  # inches: the widest figure by itself, unless its text needs more; the height of a page
WIDTHS = 1, 50  # inches: least and largest width of a figure
PANEL, HEIGHT = 2.1, 2.3  # inches: least width and height of a panel
SMALL, LOW, MANY = 1.55, 1.7, 4  # the same where there are more panels than `MANY`
LETTER = 0.066  # inches that a letter takes at most, on average
MOST_LABEL_LINES = 3  # of an entry of a legend
SHIFT, WIDEST = 3.0, 15.0  # points (1/72 inch) between two lines, as bars must not cover each other; and of all
MARKER = 3.0  # points that half a marker takes, with its edge
NEAR = 0.03  # relative difference of two values of x up to which bars would cover each other
LEAST_AXES, TOLERANCE, ROUND_UP = 0.5, 0.01, 0.05  # inches: of a figure that fits its width
LEAST_SPAN = 0.04  # of an axis, as a share of the quantity's range
LARGE_TICK = 1e5  # from here on, labels of ticks have powers of ten
# Without dates, equal runs give equal files.
_NO_DATE: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}, "eps": {}}


@dataclass(frozen=True)
class FigureFiles:
    """How figures are written."""

    formats: tuple[str, ...] = ("svg", "pdf", "png")  # of `FORMATS`
    width: float = 0.0  # of every figure in inches; 0 for its own, which its text may widen
    font: str = ""  # family; empty for that of matplotlib
    labels: Mapping[str, str] = field(default_factory=dict)  # names of algorithms in place of their own

    def __post_init__(self) -> None:
        refuse(unknown := [name for name in self.formats if name not in FORMATS], "--format",
               f"must be one of {', '.join(FORMATS)}", ", ".join(unknown))
        low, high = WIDTHS
        refuse(self.width != 0 and not low <= self.width <= high, "--width", f"must be {low} to {high} inches",
               f"{self.width:g}")
        if self.font:
            installed = sorted(font_manager.get_font_names())
            refuse(self.font not in installed, "--font", f"must be a font of this machine ({', '.join(installed)})",
                   f"'{self.font}'")


_files = FigureFiles()


@contextmanager
def written_as(files: FigureFiles) -> Iterator[None]:
    """Within the context, write figures so."""
    global _files
    _files = files
    LABELS.update(files.labels)
    try:
        yield
    finally:
        _files = FigureFiles()
        LABELS.clear()


@contextmanager
def theme() -> Iterator[None]:
    """Apply the style of all figures: no frame, and text of 7 to 8 points that stays text in SVG and PDF."""
    output: dict[Any, Any] = {
        "axes.spines.right": False, "axes.spines.top": False, "legend.frameon": False, "font.size": 8,
        "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
        "legend.title_fontsize": 7, "figure.titlesize": 8, "axes.linewidth": 0.8, "legend.handlelength": 2.6,
        "svg.fonttype": "none", "pdf.fonttype": 42,  # text, not outlines
        "svg.hashsalt": "photonic",  # equal figures get equal files
        "savefig.dpi": 300, **({"font.family": _files.font} if _files.font else {})}
    with rc_context({**sns.axes_style("ticks"), **sns.plotting_context("paper"), **output}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the SVG has it as text; PDF and PNG have a box
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # `_make_fit` widens or refuses the figure
        yield


def row_of(count: int, least: float = SMALL) -> int:
    """Return how many of `count` panels, of a least width in inches, stand in a row, if all rows have as many."""
    return max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * least <= (_files.width or PAGE)))


def panels(count: int, height: float = 0.0, least: float = 0.0, per_row: int = 4, **shared: Any
           ) -> tuple[Figure, list[Axes]]:
    """Return a new figure and its `count` axes, row by row, as many in a row as fit beside each other.

    Heights of a row and least widths of a panel are in inches, 0 for the usual ones. `shared` has arguments of
    `Figure.subplots`.
    """
    is_many = count > MANY
    height, least = height or (LOW if is_many else HEIGHT), least or (SMALL if is_many else PANEL)
    columns = max(1, min(count, per_row, int((_files.width or PAGE) / least)))
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)  # rows of equal length
    width = _files.width or min(PAGE, 3.4 * columns + 0.6)
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


def _inches(ax: Axes) -> tuple[float, float]:
    """Return about the width and height of a panel's axes, without its labels."""
    spec, figure = ax.get_subplotspec(), ax.get_figure(root=True)
    rows, columns = spec.get_gridspec().get_geometry() if spec else (1, 1)
    width, height = figure.get_size_inches() if figure else (PAGE, HEIGHT)
    return max(0.5, width / columns - 0.65), max(0.5, height / rows - 0.6)


def name_axes(ax: Axes, x: str = "", y: str = "", title: str = "", beside: float = 0.0) -> None:
    """Set a panel's title and the names of its axes, in lines that fit it; `beside` inches are taken by its ticks."""
    width, height = _inches(ax)
    width -= beside
    for text, inches, put in ((x, width, ax.set_xlabel), (y, height, ax.set_ylabel), (title, width, ax.set_title)):
        if text:
            put(in_figure("\n".join(wrapped(line, max(8, int(inches / LETTER))) for line in text.splitlines())))


def share_x(axes: Sequence[Axes]) -> None:
    """Give panels one scale along the x axis."""
    ends = [ax.get_xlim() for ax in axes]
    for ax in axes:
        ax.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))


def name_once(axes: Sequence[Axes]) -> None:
    """Leave out names of axes that the panel below, or that to the left with the same scale, has as well."""
    at = {(spec.rowspan.start, spec.colspan.start): ax for ax in axes if (spec := ax.get_subplotspec())}
    for (row, column), ax in at.items():
        below = at.get((row + 1, column))
        if below and below.get_xlabel() == ax.get_xlabel():
            ax.set_xlabel("")
    for (row, column), ax in reversed(at.items()):
        left = at.get((row, column - 1))
        if left and left.get_ylabel() == ax.get_ylabel() and left.get_ylim() == ax.get_ylim():
            ax.set_ylabel("")


def wrapped(text: str, letters: int) -> str:
    """Return text in lines of so many letters; `ε = 3` is not parted."""
    return fill(re.sub(r" ([=≤]) ", "\u00a0\\1\u00a0", text), letters)


def in_figure(text: str) -> str:
    """Return text as matplotlib draws it: `τ_h` with an index, dollars as they are."""
    return re.sub(r"τ_(\w)", r"$\\tau_\1$", text.replace("$", r"\$"))


def legend(figure: Figure, entries: Sequence[Artist], title: str = "") -> None:
    """Add the legend of a figure below its panels, in as many columns as fit, and make room for it."""
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    names = [str(artist.get_label()) for artist in entries]
    letters = int(figure.get_figwidth() / LETTER)
    for columns in range(min(len(entries), 4), 0, -1):
        labels = [wrapped(name, max(12, letters // columns - 6)) for name in names]
        added = figure.legend(entries, list(map(in_figure, labels)), title=title, loc="outside lower center",
                              ncols=columns, borderpad=0.2)
        box = added.get_window_extent(renderer)
        is_flat = max(label.count("\n") for label in labels) < MOST_LABEL_LINES
        if columns == 1 or (is_flat and box.width <= figure.bbox.width):
            grid = figure.axes[0].get_gridspec()
            rows = grid.nrows if grid else 1
            height = box.height / figure.dpi + 0.05
            figure.set_figheight(max(figure.get_figheight(), height + 1.2 * rows) + height)  # axes keep their half
            return
        added.remove()


def draw(figure: Figure) -> dict[str, bytes]:
    """Return the figure in the wanted formats (300 dpi), and as the SVG of a page (`analysis.svg`).

    It is widened to what its text needs. If its text does not fit a width that was given: `ReportError`.
    """
    names, files = svg.name(figure), {}
    with theme():
        _make_fit(figure)
        for extension in sorted({"svg", *_files.formats}, key=FORMATS.index):  # EPS last
            if extension == "eps":
                _make_opaque(figure)
            file = BytesIO()
            figure.savefig(file, format=extension, metadata=_NO_DATE[extension])
            files[extension] = file.getvalue()
    return files | {"svg": svg.annotate(files["svg"], names)}


def _make_opaque(figure: Figure) -> None:
    """Give all that is partly transparent the colour that it has on white, as EPS knows no transparency."""
    for artist in figure.findobj(lambda artist: artist.get_alpha() not in (None, 1)):
        names = [name for name in ("color", "facecolor", "edgecolor") if hasattr(artist, f"get_{name}")]
        own = None if "facecolor" in names else artist.get_alpha()  # colours of surfaces have it
        seen = {name: to_rgba_array(getp(artist, name), own) for name in names}
        artist.set_alpha(None)
        for name, colours in seen.items():
            opacity = colours[:, 3:]
            on_white = np.hstack([1 - opacity * (1 - colours[:, :3]), opacity > 0])  # what is invisible stays so
            artist.set(**{name: on_white[0] if len(on_white) == 1 else on_white})


def wanted(extension: str) -> bool:
    """Whether figures are written in this format."""
    return extension in _files.formats


def _make_fit(figure: Figure) -> None:
    """Make a figure so wide that nothing leaves the canvas and all axes have room; errors as in `make_wide`."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    width, box = figure.get_figwidth(), figure.get_tightbbox(canvas.get_renderer())  # type: ignore[no-untyped-call]
    outside = max(-box.x0, box.x1 - width)  # inches, as all here
    panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    lacking = LEAST_AXES - min(ax.get_window_extent().width for ax in panels) / figure.dpi
    if max(outside, lacking) > TOLERANCE:
        make_wide(figure, width + 2 * max(outside, 0.0) + max(lacking, 0.0) + ROUND_UP)
        _make_fit(figure)  # as the wider figure has another layout


def make_wide(figure: Figure, inches: float) -> None:
    """Widen a figure that is narrower; if its width was given, or is to be more than `WIDTHS`, `ReportError`."""
    if inches <= figure.get_figwidth():
        return
    if _files.width or inches > WIDTHS[1]:
        remedy = f"give --width {inches:.1f} or more" if inches <= WIDTHS[1] else f"at most {WIDTHS[1]} can be had"
        raise ReportError(f"figure: needs a width of {inches:.1f} inches for its text, got "
                          f"{figure.get_figwidth():g}; {remedy}")
    figure.set_figwidth(inches)


def look(algorithm: str) -> dict[str, Any]:
    """Return colour, marker, line and label of an algorithm, as arguments of `Axes.plot`."""
    return {"color": PALETTE[algorithm], "marker": MARKERS[algorithm], "linestyle": LINES[algorithm],
            "label": algorithm_labels()[algorithm], "markersize": 4, "linewidth": 1.2}


def looks(table: pd.DataFrame, lines: Sequence[str] = ()) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the look of every line, by the values of `algorithm` and of the settings `lines` that tell them apart.

    Lines of one algorithm are darker or brighter, with a marker each.
    """
    rows = table[["algorithm", *lines]].drop_duplicates().astype(object)
    named = lines if rows["algorithm"].nunique() == 1 and lines else ["algorithm", *lines]
    found = {}
    for algorithm in present(rows):
        variants = rows[rows["algorithm"] == algorithm].to_dict("records")
        for place, (row, shade) in enumerate(zip(variants, np.linspace(-0.4, 0.5, len(variants)), strict=True)):
            own = look(algorithm)
            if len(variants) > 1:
                end = 1.0 if shade > 0 else 0.0  # mixed with white, or with black
                own |= {"color": tuple(value + abs(shade) * (end - value) for value in to_rgb(own["color"])),
                        "marker": VARIANTS[place % len(VARIANTS)]}
            found[tuple(row.values())] = own | {"label": names_of(row, named) or algorithm_labels()[algorithm]}
    return found


def markers(table: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the look of every algorithm's points, which no line joins."""
    return {key: {**own, "linestyle": "none"} for key, own in looks(table).items()}


def present(table: pd.DataFrame) -> list[str]:
    """Return the algorithms of a table, in the order of all figures."""
    return [algorithm for algorithm in algorithm_labels() if algorithm in set(table["algorithm"])]


def curve(ax: Axes, points: pd.DataFrame, x: str, algorithm: str, shift: float, **line_properties: Any) -> None:
    """Plot means over column `x`, with 95% t intervals as bars if n > 1.

    The curve is shifted to the right, by points of 1/72 inch. Results of others have no algorithm.
    """
    points = points.sort_values(x)
    shifted = ax.transData + ScaledTranslation(shift / 72, 0, ax.figure.dpi_scale_trans)
    (line,) = ax.plot(points[x], points["mean"], transform=shifted, **{"zorder": 3, **line_properties})
    label = str(line.get_label())
    svg.tag(line, algorithm, [_marker_text(row, x, label) for row in points.to_dict("records")])
    with_interval = points[points["n"] > 1]
    bars = np.stack([with_interval[[x, "low"]], with_interval[[x, "high"]]], axis=1)  # [points, 2 ends, x and y]
    collection = LineCollection(list(bars), colors=[line.get_color()], linewidths=1, alpha=0.6, zorder=2,
                                transform=shifted)
    svg.tag(ax.add_collection(collection), algorithm)
    ax.update_datalim(bars.reshape(-1, 2))
    ax.update_datalim(points[[x, "mean"]].to_numpy())
    room = (abs(shift) + MARKER) / 72 / _inches(ax)[0]  # as a share of the axis
    ax.margins(x=max(0.1, ax.get_xmargin(), 1.5 * room))  # 1.5, as margins are shares of an axis without them
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


def curves(ax: Axes, points: pd.DataFrame, x: str, found: Mapping[tuple[Any, ...], Mapping[str, Any]],
           lines: Sequence[str] = ()) -> None:
    """Plot a `curve` for each line of `looks` that has points; those that `meet` another stand beside each other."""
    groups = dict(list(points.groupby(["algorithm", *lines], sort=False, dropna=False)))
    shown = [key for key in found if key in groups]
    shifts = dict.fromkeys(shown, 0.0)
    beside = [key for key in shown if any(meet(groups[key], groups[other], x) for other in shown if other != key)]
    for place, key in enumerate(beside):
        shifts[key] = min(SHIFT, WIDEST / len(beside)) * (place - (len(beside) - 1) / 2)
    for key, shift in shifts.items():
        curve(ax, groups[key], x, key[0], shift, **found[key])


def meet(points: pd.DataFrame, others: pd.DataFrame, x: str) -> bool:
    """Whether two lines have points at the same x, or almost, where the bar of one would be covered."""
    is_near = np.isclose(points[[x]].to_numpy(float), others[x].to_numpy(float), rtol=NEAR, atol=0)  # [points, others]
    has_bar = np.maximum(points[["n"]].to_numpy(), others["n"].to_numpy()) > 1
    return bool((is_near & has_bar).any())


def handles(found: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> list[Artist]:
    """Return legend entries, one per line."""
    return [Line2D([], [], **own) for own in found.values()]


def seeds(counts: pd.Series, interval: str = "95% t interval") -> str:
    """Return `mean over n = 3 seeds, 95% t interval`, from the seeds of every mean."""
    number = n_seeds(counts)
    return f"mean over {number}, {interval}" if counts.max() > 1 else number


def log_axis(ax: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with ticks at the values whose labels have room."""
    ax.set_xscale("log")
    rounded = {value if value.is_integer() and value < LARGE_TICK else float(f"{value:.2g}")
               for value in map(float, values)}
    ticks = _spaced_ticks(rounded, _inches(ax)[0], np.log)
    ax.set_xticks(ticks, [_tick_text(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())


def ticks_at(ax: Axes, values: Sequence[float]) -> None:
    """Put the ticks of a linear x axis at the values if the labels of all have room."""
    distinct = {*map(float, values)}
    if len(_spaced_ticks(distinct, _inches(ax)[0], float)) == len(distinct):
        ax.set_xticks(sorted(distinct), [_tick_text(tick) for tick in sorted(distinct)])


def _tick_text(tick: float) -> str:  # `2 × 10^6` in place of `2e+06`
    if tick < LARGE_TICK:
        return f"{tick:g}"
    digits, exponent = f"{tick:.1e}".split("e")
    return rf"${float(digits):g} \times 10^{{{int(exponent)}}}$"


def _spaced_ticks(values: Collection[float], inches: float, scale: Callable[[float], float]) -> list[float]:
    """Return the values whose labels have room on an axis of so many inches and this scale; others are left out."""
    ordered = sorted(values)
    span = scale(ordered[-1]) - scale(ordered[0]) or 1.0

    def room(a: float, b: float) -> bool:
        letters = sum(9 if value >= LARGE_TICK else len(f"{value:g}") for value in (a, b)) / 2
        return (scale(b) - scale(a)) / span * inches >= LETTER * (letters + 1.5)

    ticks = ordered[:1]
    for value in ordered[1:]:
        if room(ticks[-1], value):
            ticks.append(value)
        elif value == ordered[-1] and len(ticks) > 1:  # the largest stands in place of the one before
            ticks[-1] = value
    return ticks


def within(ax: Axes, low: float, high: float) -> None:
    """Limit the y axis to the quantity's range `low` to `high`, with a margin for markers.

    If the values are almost equal, widen the axis so that they look equal.
    """
    bottom, top = ax.get_ylim()
    widen = max(0.0, LEAST_SPAN * (high - low) - (top - bottom)) / 2
    bottom, top = bottom - widen, top + widen
    margin = MARKER / 72 / _inches(ax)[1] * (top - bottom)  # less than a tick: none is named beyond the range
    ax.set_ylim(max(bottom, low - margin), min(top, high + margin))


def row_name(own: Mapping[str, Any]) -> str:
    """Return the name of a row of `dots`, in lines of a fixed length."""
    return wrapped(str(own["label"]), 28)


def dots(rows: pd.DataFrame, found: Mapping[tuple[Any, ...], Mapping[str, Any]], keys: Sequence[tuple[Any, ...]],
         ax: Axes) -> None:
    """Plot a row per point, the best at the top, with its interval: `keys` has the line of every row."""
    ranked = sorted(zip(rows.to_dict("records"), keys, strict=True), key=lambda pair: -pair[0]["mean"])
    for place, (row, key) in enumerate(ranked):
        own = dict(found[key])
        (marker,) = ax.plot(row["mean"], place, **{**own, "linestyle": "none"})
        svg.tag(marker, key[0], [_marker_text(row, "epsilon", str(own["label"]))])
        if row["n"] > 1:
            (bar,) = ax.plot([row["low"], row["high"]], [place, place], color=own["color"], linewidth=1, alpha=0.7)
            svg.tag(bar, key[0])
    ax.set_yticks(range(len(ranked)), [in_figure(row_name(found[key])) for _, key in ranked])
    ax.set_ylim(len(ranked) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
