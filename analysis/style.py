"""The look of all figures, in one place: theme, colour, marker and line of every algorithm, intervals, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from weakref import WeakKeyDictionary
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Affine2D, ScaledTranslation

from analysis.runs import ALGORITHM_LABELS


class _Looks(dict):
    """By algorithm; those of extensions get the spare ones, in the order in which they were registered."""

    def __init__(self, own: Mapping[str, object], spare: Sequence[object]) -> None:
        super().__init__(own)
        self.spare = spare

    def __missing__(self, algorithm: str) -> object:
        return self.spare[(list(ALGORITHM_LABELS).index(algorithm) - len(self)) % len(self.spare)]


_COLORS = sns.color_palette("colorblind")
PALETTE = _Looks({"bp": _COLORS[0], "dfa": _COLORS[2], "tdfa": _COLORS[4], "pdfa": _COLORS[3], "hybrid": _COLORS[1]},
                 _COLORS[5:])
# Colour is never the only difference. In learning curves, as in the papers, a dashed line is a trial without privacy.
MARKERS = _Looks({"bp": "o", "dfa": "s", "tdfa": "D", "pdfa": "^", "hybrid": "v"}, "PX<>h")
LINES = _Looks({"bp": "-", "dfa": (0, (6, 1.5)), "tdfa": (0, (6, 1.5, 1, 1.5)), "pdfa": (0, (1.5, 1)),
                "hybrid": (0, (6, 1.5, 1, 1.5, 1, 1.5))}, ["-."])
FORMATS = ("svg", "pdf", "png")
SHIFT = 3.0  # points (1/72 inch) between the curves of two algorithms
INTERVALS = "mean, 95% intervals:\nthick bootstrap, thin t"
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)
_TAGS: WeakKeyDictionary[Artist, tuple[str, Sequence[str]]] = WeakKeyDictionary()  # of `tag`
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}  # equal runs give equal files


@contextmanager
def theme() -> Iterator[None]:
    """The look of all figures: ticks, paper-sized text that stays text in SVG and PDF."""
    text = {"svg.fonttype": "none", "svg.hashsalt": "photonic", "pdf.fonttype": 42, "savefig.dpi": 300}
    with rc_context({**sns.axes_style("ticks"), **sns.plotting_context("paper"), "legend.frameon": False, **text}):
        yield


def save(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write `<stem>.svg`, `.pdf` and `.png` (300 dpi); the SVG has what `tag` says of its artists, and the box of every
    column (`data-column`), so that a page can set them below each other."""
    paths = [folder / f"{stem}.{extension}" for extension in FORMATS]
    artists = {f"tag-{place}": artist for place, artist in enumerate(
        figure.findobj(lambda artist: artist in _TAGS or isinstance(artist, Axes | Legend)))}
    for name, artist in artists.items():
        artist.set_gid(name)
    with theme():
        for path in paths:
            figure.savefig(path, metadata=_NO_DATE[path.suffix[1:]])
        boxes = {artist: box for box, members in columns(figure) for artist in members}
    _annotate(paths[FORMATS.index("svg")], artists, boxes)
    return paths


def tag(artist: Artist, algorithm: str, texts: Sequence[str] = ()) -> None:
    """Have the SVG that `save` writes say to which algorithm an artist belongs (`data-algorithm`), so that a page can
    hide it, and what its markers stand for (`title`), which a browser shows at the pointer.

    Args:
        texts: one for each marker of a line, or none.
    """
    _TAGS[artist] = (algorithm, texts)


def columns(figure: Figure) -> list[tuple[tuple[float, float, float, float], list[Artist]]]:
    """Columns into which a drawn figure can be cut, from left to right: what each shows of the figure (x, y, width,
    height, in points from the top left corner), and the axes and legends of the figure in it.

    They are as wide as the figure together; axes are as high as it. None where there is one column alone, or columns
    share an axis or a text.
    """
    shared = any(len({ax.get_position().x0 for ax in axes.get_shared_y_axes().get_siblings(axes)}) > 1
                 for axes in figure.axes)
    if shared or figure.texts:
        return []
    found: list[tuple[float, float, list[Artist]]] = []
    extents = {artist: artist.get_tightbbox().transformed(Affine2D().scale(72 / figure.dpi))
               for artist in (*figure.axes, *figure.legends)}
    for artist, box in sorted(extents.items(), key=lambda item: item[1].x0):
        left, right, members = found.pop() if found and box.x0 < found[-1][1] else (box.x0, box.x1, [])
        found.append((left, max(right, box.x1), [*members, artist]))
    width, height = (72 * inches for inches in figure.get_size_inches())
    cuts = [0.0, *((before[1] + after[0]) / 2 for before, after in pairwise(found)), width]
    parts = []
    for (left, right), (_, _, members) in zip(pairwise(cuts), found, strict=True):
        boxes = [extents[artist] for artist in members]
        has_axes = any(isinstance(artist, Axes) for artist in members)
        top = 0.0 if has_axes else height - max(box.y1 for box in boxes)
        bottom = height if has_axes else height - min(box.y0 for box in boxes)
        parts.append(((left, top, right - left, bottom - top), members))
    return parts if len(parts) > 1 else []


def _annotate(path: Path, artists: Mapping[str, Artist], boxes: Mapping[Artist, Sequence[float]]) -> None:
    """Replace the group ids of an SVG that name artists by what is known of those."""
    tree = ElementTree.parse(path)
    for group in tree.iter(f"{{{SVG}}}g"):
        artist = artists.get(group.get("id"))
        if artist is not None:
            del group.attrib["id"]
        if artist in boxes:
            group.set("data-column", " ".join(f"{number:.2f}" for number in boxes[artist]))
        if artist in _TAGS:
            algorithm, texts = _TAGS[artist]
            group.set("data-algorithm", algorithm)
            for mark, text in zip(group.iter(f"{{{SVG}}}use"), texts, strict=True) if texts else ():
                ElementTree.SubElement(mark, f"{{{SVG}}}title").text = text
    tree.write(path, encoding="utf-8", xml_declaration=True)


def look(algorithm: str) -> dict[str, object]:
    """Colour, marker, line and label of an algorithm, as `Axes.plot` takes them."""
    return {"color": PALETTE[algorithm], "marker": MARKERS[algorithm], "linestyle": LINES[algorithm],
            "label": ALGORITHM_LABELS[algorithm], "markersize": 4.5, "linewidth": 1.3}


def present(table: pd.DataFrame) -> list[str]:
    """The algorithms of a table, in the order of all figures."""
    return [algorithm for algorithm in ALGORITHM_LABELS if algorithm in set(table["algorithm"])]


def curve(ax: Axes, points: pd.DataFrame, x: str, algorithm: str, shift: float, *,
          hollow: pd.Series | None = None, **own: object) -> None:
    """Means over column `x`, and where n > 1 both intervals of `analysis.statistics.summarize` as bars.

    Args:
        shift: of the curve to the right, in points (1/72 inch), so that bars at one x do not cover each other.
        hollow: bool by row of `points`: which markers are not filled.
        own: properties of the line in which it differs from the algorithm's look.
    """
    points = points.sort_values(x)
    at = ax.transData + ScaledTranslation(shift / 72, 0, ax.figure.dpi_scale_trans)
    (line,) = ax.plot(points[x], points["mean"], zorder=3, transform=at, **{**look(algorithm), **own})
    texts = pd.Series([_text(row, x, line.get_label()) for row in points.to_dict("records")], points.index, dtype=str)
    tag(line, algorithm, list(texts))
    if hollow is not None:
        beaten = points[hollow.reindex(points.index)]
        (open_markers,) = ax.plot(
            beaten[x], beaten["mean"], zorder=4, transform=at,
            **{**look(algorithm), "linestyle": "none", "label": None, "markerfacecolor": "white"})
        tag(open_markers, algorithm, list(texts[beaten.index]))
    known = points[points["n"] > 1]
    for low, high, width in (("low", "high", 0.9), ("bootstrap_low", "bootstrap_high", 2.8)):
        bars = np.stack([known[[x, low]], known[[x, high]]], axis=1)
        drawn = LineCollection(bars, colors=[PALETTE[algorithm]], linewidths=width, alpha=0.5, zorder=2, transform=at)
        tag(ax.add_collection(drawn), algorithm)
        ax.update_datalim(bars.reshape(-1, 2))
    ax.update_datalim(points[[x, "mean"]].to_numpy())
    ax.autoscale_view()


def _text(point: Mapping[str, float], x: str, label: str) -> str:
    """What a marker stands for, in three lines."""
    interval = f" ± {point['half_width']:.2g} (95% t interval, n = {point['n']})" if point["n"] > 1 else " (n = 1)"
    return f"{label}\n{'ε' if x == 'epsilon' else x} = {point[x]:.4g}\n{point['mean']:.4g}{interval}"


def shifts(table: pd.DataFrame) -> dict[str, float]:
    """The place of every algorithm's curve, in points to the right of the x that they share."""
    algorithms = present(table)
    return {a: SHIFT * (place - (len(algorithms) - 1) / 2) for place, a in enumerate(algorithms)}


def handles(table: pd.DataFrame) -> list[Line2D]:
    """Entries of a legend, one per algorithm of a table."""
    return [Line2D([], [], **look(algorithm)) for algorithm in present(table)]


def seeds(counts: pd.Series, intervals: str = INTERVALS) -> str:
    """`n = 3 seeds` and what is drawn of them, from the seeds of every mean."""
    few, many = counts.min(), counts.max()
    if many == 1:
        return "n = 1 seed"
    return f"n = {many if few == many else f'{few} to {many}'} seeds\n{intervals}"


def log_axis(ax: Axes, values: Sequence[float]) -> None:
    """A logarithmic x axis with ticks at the values."""
    ax.set_xscale("log")
    ticks = _apart(values)
    ax.set_xticks(ticks, [_tick(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())


def within(ax: Axes, low: float, high: float) -> None:
    """Cut the y axis where an interval reaches beyond what the quantity can be, with a margin for markers there; give
    equal values an axis on which they look equal."""
    bottom, top = ax.get_ylim()
    margin = 0.02 * (high - low)
    if top - bottom < 2 * margin:
        bottom, top = bottom - margin, top + margin
    ax.set_ylim(max(bottom, low - margin), min(top, high + margin))


def _tick(value: float) -> str:
    """`0.5`, `1024`, or `$2 \\times 10^{6}$` where digits would not fit."""
    if value < 1e5:
        return f"{value:g}"
    digits, exponent = f"{value:.1e}".split("e")
    return rf"${float(digits):g} \times 10^{{{int(exponent)}}}$"


def _apart(values: Sequence[float]) -> list[float]:
    """The values, of two digits unless they are whole and small, that leave room for their labels on a log axis."""
    rounded = sorted({float(v) if float(v).is_integer() and v < 1e5 else float(f"{v:.2g}") for v in values})
    ticks = rounded[:1]
    least = 0.08 if rounded[-1] < 1e5 else 0.2
    for value in rounded[1:]:
        if np.log(value / ticks[-1]) >= least * np.log(rounded[-1] / rounded[0]):
            ticks.append(value)
    return ticks
