"""Annotate SVG figures for the script of a page: the algorithm of a curve, and the values of its markers.

    <g data-algorithm="dfa">            curves and intervals of one algorithm, which a legend can hide
    <use ...><title>DFA, ...</title>    the values at a marker, which a browser shows at the pointer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary
from xml.etree import ElementTree

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)
_TAGS: WeakKeyDictionary[Artist, tuple[str, Sequence[str]]] = WeakKeyDictionary()  # arguments of `tag`


def tag(artist: Artist, algorithm: str, texts: Sequence[str] = ()) -> None:
    """Note the algorithm of an artist, and the texts of its markers.

    Without texts, the markers of a line get their values on the axes.
    """
    _TAGS[artist] = (algorithm, texts)


def name(figure: Figure) -> dict[str, Artist]:
    """Give an id to the SVG group of every artist that `annotate` handles, and return the artists by id."""
    with_markers = {line for ax in figure.axes for line in ax.lines
                    if line.get_marker() not in ("", " ", "None", None)}
    artists = figure.findobj(lambda artist: artist in _TAGS or artist in with_markers)
    names = {f"artist-{number}": artist for number, artist in enumerate(artists)}
    for group_id, artist in names.items():
        artist.set_gid(group_id)
    return names


def annotate(drawn: bytes, names: Mapping[str, Artist]) -> bytes:
    """Return a figure's SVG, marked up for the script of the page (see the module) in place of its group ids.

    `names` are its artists by group id, as `name` gave them before the figure was drawn.
    """
    root = ElementTree.fromstring(drawn)
    for group in root.iter(f"{{{SVG}}}g"):
        artist = names.get(group.get("id", ""))
        if artist is None:
            continue
        del group.attrib["id"]
        algorithm, texts = _TAGS.get(artist, ("", ()))  # as the exhibit gave them to `tag`
        if algorithm:
            group.set("data-algorithm", algorithm)
        markers = list(group.iter(f"{{{SVG}}}use"))  # matplotlib draws every marker as a `use` element
        if isinstance(artist, Line2D) and markers:
            for marker, text in zip(markers, texts or _marker_values(artist), strict=True):
                ElementTree.SubElement(marker, f"{{{SVG}}}title").text = text
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _marker_values(line: Line2D) -> list[str]:
    """Return the axis values of every drawn marker, as text: of every n-th point, if it lies within the figure."""
    points = np.asarray(line.get_xydata())
    marker_interval = line.get_markevery() or 1
    pixels = line.get_transform().transform(points)
    is_drawn = np.isfinite(pixels).all(axis=1)
    if not isinstance(marker_interval, int):
        raise TypeError(f"markevery: must be a whole number or None, got {marker_interval!r}")
    is_drawn[np.arange(len(points)) % marker_interval > 0] = False
    is_drawn[is_drawn] = [line.figure.bbox.contains(*pixel) for pixel in pixels[is_drawn]]
    label = str(line.get_label())
    labels = [] if label.startswith("_") else [label]  # matplotlib names lines without a label `_child0`
    ax = line.axes
    if not isinstance(ax, Axes):
        raise TypeError(f"axes: must be those of a figure, got {ax!r}")
    return ["\n".join([*labels, _reading(ax.xaxis, x), _reading(ax.yaxis, y)]) for x, y in points[is_drawn]]


def _reading(axis: Axis, value: float) -> str:
    """Return a value on an axis as text, `Epoch: 3`; without an axis label, the text of its tick or the value alone."""
    without_math = axis.get_label_text().translate(str.maketrans("", "", "$\\{}"))
    label = " ".join(without_math.split())  # on one line
    if label:
        return f"{label}: {value:.4g}"
    ticks = {tick.get_loc(): tick.label1.get_text() for tick in axis.get_major_ticks()}
    return ticks.get(value) or f"{value:.4g}"
