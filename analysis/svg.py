"""Annotate SVG figures for a page: the algorithm of a curve, the values of its markers, and columns for cutting.

    <g data-algorithm="dfa">            curves and intervals of one algorithm, which a legend can hide
    <use ...><title>DFA, ...</title>    the values at a marker, which a browser shows at the pointer
    <g data-column="0 0 260 274">       axes or a legend, with the box of their column
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from weakref import WeakKeyDictionary
from xml.etree import ElementTree

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.transforms import Affine2D

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)
_TAGS: WeakKeyDictionary[Artist, tuple[str, Sequence[str]]] = WeakKeyDictionary()  # arguments of `tag`


def tag(artist: Artist, algorithm: str, texts: Sequence[str] = ()) -> None:
    """Note the algorithm of an artist, and the texts of its markers.

    Args:
        artist: the artist.
        algorithm: its algorithm.
        texts: one text per marker of a line; without texts, markers get their values on the axes.
    """
    _TAGS[artist] = (algorithm, texts)


def name(figure: Figure) -> dict[str, Artist]:
    """Give a group id to all artists that `annotate` handles, and return the artists by id."""
    lines = {line for ax in figure.axes for line in ax.lines if line.get_marker() not in ("", " ", "None", None)}
    found = figure.findobj(lambda a: a in _TAGS or a in lines or isinstance(a, Axes | Legend))
    names = {f"artist-{place}": artist for place, artist in enumerate(found)}
    for text, artist in names.items():
        artist.set_gid(text)
    return names


def annotate(drawn: bytes, figure: Figure, names: Mapping[str, Artist]) -> bytes:
    """Return a figure's SVG with annotations in place of the group ids.

    Args:
        drawn: the SVG.
        figure: the figure.
        names: result of `name`, from before the figure was drawn.
    """
    boxes = {artist: box for box, members in columns(figure) for artist in members}
    root = ElementTree.fromstring(drawn)
    for group in root.iter(f"{{{SVG}}}g"):
        artist = names.get(group.get("id", ""))
        if artist is None:
            continue
        del group.attrib["id"]
        if artist in boxes:
            group.set("data-column", " ".join(f"{number:.2f}" for number in boxes[artist]))
        algorithm, texts = _TAGS.get(artist, ("", ()))
        if algorithm:
            group.set("data-algorithm", algorithm)
        if isinstance(artist, Line2D):
            marks = list(group.iter(f"{{{SVG}}}use"))
            for mark, text in zip(marks, texts or _readings(artist), strict=True) if marks else ():
                ElementTree.SubElement(mark, f"{{{SVG}}}title").text = text
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _readings(line: Line2D) -> list[str]:
    """Return the axis values of every drawn marker, as text."""
    points, every = np.asarray(line.get_xydata()), line.get_markevery() or 1
    places = line.get_transform().transform(points)
    drawn = np.isfinite(places).all(axis=1)
    if not isinstance(every, int):
        raise TypeError(f"markevery: must be a whole number or None, got {every!r}")
    drawn[np.arange(len(points)) % every > 0] = False
    drawn[drawn] = [line.figure.bbox.contains(*place) for place in places[drawn]]
    label = str(line.get_label())
    labels = [] if label.startswith("_") else [label]
    ax = line.axes
    if not isinstance(ax, Axes):
        raise TypeError(f"axes: must be those of a figure, got {ax!r}")
    return ["\n".join([*labels, *map(_reading, (ax.xaxis, ax.yaxis), point)]) for point in points[drawn]]


def _reading(axis: Axis, value: float) -> str:
    """Return `Epoch: 3`; for an axis without a label, the text of the tick at the value, or the value."""
    label = " ".join(axis.get_label_text().translate({ord(c): None for c in "$\\{}"}).split())
    ticks = {tick.get_loc(): tick.label1.get_text() for tick in axis.get_major_ticks()}
    return f"{label}: {value:.4g}" if label else ticks.get(value) or f"{value:.4g}"


def columns(figure: Figure) -> list[tuple[tuple[float, float, float, float], list[Artist]]]:
    """Return the columns into which a drawn figure can be cut, from left to right.

    A column has a box (x, y, width, height, in points from the top left corner), and the axes and legends in the box.
    Together the boxes have the figure's width; a box with axes has its height. The list is empty if there is only one
    column, or if columns share an axis's tick labels or a text.
    """
    numbered = (axes.yaxis.get_tick_params() for axes in figure.axes)
    if figure.texts or not all(shown["labelleft"] or shown["labelright"] for shown in numbered):
        return []
    found: list[tuple[float, float, list[Artist]]] = []
    to_points = Affine2D().scale(72 / figure.dpi)
    extents = {artist: box.transformed(to_points) for artist in (*figure.axes, *figure.legends)
               if (box := artist.get_tightbbox())}
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
