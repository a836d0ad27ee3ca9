"""One self-contained HTML page from `template/`, whose content reports and comparisons compose.

A page loads nothing: it contains styles, script, figures and data, and its content security policy forbids the rest.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.colors import to_hex

from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.headline import Headline
from analysis.exhibits.table import Cell, Table
from analysis.labels import algorithm_labels
from analysis.style import PALETTE
from analysis.svg import SVG, XLINK

TEMPLATE = Path(__file__).parent / "template"
DATA = {"svg": "image/svg+xml", "pdf": "application/pdf", "csv": "text/csv;charset=utf-8",
        "tex": "text/plain;charset=utf-8", "yaml": "text/plain;charset=utf-8"}  # downloads, in this order


@dataclass(frozen=True)
class Download:
    """A file to download."""

    name: str
    content: bytes

    @property
    def text(self) -> str:
        """The content of a text file."""
        return self.content.decode()

    @property
    def kind(self) -> str:
        """The label of the download button, the type of the file: `SVG`, `PDF`, `CSV`."""
        return self.name.rpartition(".")[2].upper()

    @property
    def href(self) -> str:
        """The file as a `data:` link, which contains it."""
        return f"data:{DATA[self.kind.lower()]};base64,{base64.b64encode(self.content).decode()}"


class TrialColumn(NamedTuple):
    """A column of the table of trials."""

    heading: str
    cells: Sequence[Cell]  # one per trial
    names: Sequence[str] = ()  # further names for filters, the usual one first; several columns may share a name
    numeric: bool = False
    largest_first: bool = False  # the first click on its heading sorts the largest value first
    shown: bool = True  # otherwise it is only for filters
    links: Sequence[str] = ()  # address of each cell's link; empty for none


class Guarantee(NamedTuple):
    """The guarantee of one kind of epsilon in words, and its standing.

    `standing` is from `runs.standing_of`; empty without a guarantee.
    """

    kind: str
    text: str
    guarantees: bool
    standing: str = ""


@dataclass(frozen=True)
class Page:
    """The content of a page; empty parts are left out."""

    title: str
    what: str  # kind of page, shown above the title
    notice: str = ""  # a sentence that a reader must not miss, above all others
    headline: Headline = Headline()  # its verdict comes first, with the lead
    description: str = ""  # the question of the experiment
    facts: Sequence[tuple[str, str]] = ()  # (name, value) on the runs, and of the varied settings
    settings: Sequence[tuple[str, str]] = ()  # (field, values) of all settings
    exhibits: Sequence[Exhibit] = ()  # in order
    left_out: Sequence[tuple[str, str]] = ()  # (exhibit, reason) of exhibits that are not drawn
    privacy: Sequence[Guarantee] = ()  # kinds of epsilon in words
    epsilons: Table | None = None  # their numbers
    notes: Sequence[str] = ()  # their assumptions
    trials: Sequence[TrialColumn] = ()  # the table to sort and filter
    trials_note: str = ""
    runs_link: str = ""  # to the runs in MLflow
    trials_data: Download | None = None  # the file of the table
    problems: Sequence[str] = ()  # sentences on diverged or failed trials
    commands: Sequence[str] = ()  # for the shell, which repeat everything
    to_send: str = ""  # which files a reviewer needs, and the command that makes them
    versions: Sequence[str] = ()  # of the software
    source: Sequence[Download] = ()  # the experiment file

    @property
    def lead(self) -> list[Exhibit]:
        """What a page shows unfolded: the first exhibit with a figure and, if it has no table, one that has."""
        with_figure = [exhibit for exhibit in self.exhibits if exhibit.figure]
        with_table = [exhibit for exhibit in self.exhibits
                      if any(isinstance(part, Table) for part in exhibit.texts.body)]
        if not with_figure or with_figure[0] in with_table:
            return (with_figure or with_table)[:1]
        return [with_figure[0], *with_table[:1]]


def render(page: Page) -> str:
    """Return the page as HTML; all texts are escaped."""
    styles, script = ((TEMPLATE / f"page.{suffix}").read_text(encoding="utf-8") for suffix in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(loader=FileSystemLoader(TEMPLATE), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters.update(
        inline=_inline, marked=_marked, downloads=downloads, drawing=drawing,
        # The algorithms with curves that can be hidden in an SVG, in drawing order.
        algorithms=lambda figure: list(dict.fromkeys(re.findall(r'data-algorithm="([^"]+)"', figure))),
        breaking=lambda text: Markup("_<wbr>").join(text.split("_")))  # lines may break after underscores
    palette = {name: to_hex(PALETTE[name]) for name in algorithm_labels()}
    # The usual name of each column of the table of trials, once.
    filter_names = list(dict.fromkeys(column.names[0] if column.names else column.heading for column in page.trials))
    return environment.get_template("page.html").render(
        page=page, styles=Markup(styles), script=Markup(script), script_digest=digest, palette=palette,
        labels=algorithm_labels(), is_table=lambda part: isinstance(part, Table), filter_names=filter_names)


def downloads(exhibit: Exhibit) -> list[Download]:
    """Return the downloads of an exhibit: files with its name and a type in `DATA`."""
    names = (f"{exhibit.name}.{suffix}" for suffix in DATA)
    return [Download(name, exhibit.files[name]) for name in names if name in exhibit.files]


def drawing(exhibit: Exhibit) -> Markup:
    """Return the figure of an exhibit as inline SVG; empty if there is none."""
    svg = exhibit.drawn.get("svg")
    return inline_svg(svg.decode(), f"figure-{exhibit.name}", exhibit.title) if svg else Markup()


def inline_svg(text: str, prefix: str, label: str) -> Markup:
    """Return a stand-alone SVG for use inside HTML, where several SVGs must not share ids or styles.

    Its ids, and the references to them, get a prefix; its style sheet applies only to itself. `label` is for screen
    readers.
    """
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        if element.tag == f"{{{SVG}}}style":  # each rule `selector {` becomes `#prefix selector {`
            element.text = re.sub(r"(^|})\s*([^{}]+){", rf"\1#{prefix} \2{{", element.text or "")
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{prefix}-{value}")
            elif name in ("href", f"{{{XLINK}}}href") and value.startswith("#"):
                element.set(name, f"#{prefix}-{value[1:]}")
            else:
                element.set(name, re.sub(r"url\(#", f"url(#{prefix}-", value))
    del root.attrib["width"], root.attrib["height"]
    root.set("style", f"--drawn: {root.attrib['viewBox'].split()[2]}pt")
    return Markup('<div class="drawing" id="{}" role="img" aria-label="{}">{}</div>').format(
        prefix, label, Markup(ElementTree.tostring(root, encoding="unicode")))


def _inline(text: str) -> Markup:
    """Return a text as HTML, with `code` between backquotes marked as code.

    A symbol and its value (`ε = 3`), and a mean and its interval (`85 ± 1`), stay on one line: their spaces become
    no-break spaces.
    """
    text = re.sub(r"(?<=[σεδzn]) ([=≤]) (?=[\d.])", "\u00a0\\1\u00a0", text)
    text = re.sub(r"(?<=\d) ± (?=\d)", "\u00a0±\u00a0", text)
    parts = []
    for index, part in enumerate(text.split("`")):
        is_code = index % 2 == 1
        parts.append(Markup("<code>{}</code>").format(part) if is_code else escape(part))
    return Markup("").join(parts)


def _marked(text: str) -> Markup:
    """Return a table cell as HTML; the name of an algorithm gets a mark in its colour of the figures."""
    for algorithm, label in algorithm_labels().items():
        if text in (label, algorithm):
            mark = Markup('<i class="mark" style="--mark: var(--{})"></i>').format(algorithm)
            return mark + _inline(text)
    return _inline(text)
