"""One self-contained HTML page: exhibits with their captions, figures and data, and tables, from `template/`.

A page loads nothing: styles, script, figures and data stand in it, and its content security policy forbids the rest.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.colors import to_hex

from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.table import Cell, Table
from analysis.runs import ALGORITHM_LABELS
from analysis.style import PALETTE
from analysis.svg import SVG, XLINK

MOST_WORDS_ABOVE = 75  # the first figure, on a phone, the notice among them
TEMPLATE = Path(__file__).parent / "template"
DATA = {"svg": "image/svg+xml", "pdf": "application/pdf", "csv": "text/csv;charset=utf-8",
        "tex": "text/plain;charset=utf-8", "yaml": "text/plain;charset=utf-8"}  # offered as downloads, in this order


@dataclass(frozen=True)
class Download:
    """A file to take away."""

    name: str
    content: bytes

    @property
    def text(self) -> str:
        """The content of a text file."""
        return self.content.decode()

    @property
    def kind(self) -> str:
        """`SVG`, `PDF`, `CSV`: how its button is named beside others of one stem."""
        return self.name.rpartition(".")[2].upper()

    @property
    def href(self) -> str:
        """The file as a data: link."""
        return f"data:{DATA[self.kind.lower()]};base64,{base64.b64encode(self.content).decode()}"


class Column(NamedTuple):
    """A column of the trials.

    Attributes:
        heading: above it.
        cells: one for every trial.
        names: by which a filter knows it besides its heading, the common one first; several columns may share one.
        numeric: whether it is of numbers.
        largest_first: what the first click on its heading puts first.
        shown: or only there to filter by.
        links: where each cell leads, an address; empty for none.
    """

    heading: str
    cells: Sequence[Cell]
    names: Sequence[str] = ()
    numeric: bool = False
    largest_first: bool = False
    shown: bool = True
    links: Sequence[str] = ()


class Statement(NamedTuple):
    """What one kind of epsilon guarantees, in words, and how that stands with the trials: `certified`, `simulated`
    (noise from recorded seeds), `partly simulated`; empty of what guarantees nothing."""

    kind: str
    text: str
    guarantees: bool
    standing: str = ""


@dataclass(frozen=True)
class Page:
    """The content of a page; what is empty is left out.

    Attributes:
        what: what the page is, above its title.
        notice: a sentence that a reader must not miss, above all others.
        headline: sentences that answer what was asked; they stand first.
        description, facts: what was asked, and (name, value) of what was run.
        grid, settings: (field, values): what varies, and everything.
        left_out: (exhibit, reason): what the trials did not fit.
        privacy: kinds of epsilon in words; `epsilons` lists the numbers, `notes` what they rest on.
        trials: the columns of the table to sort and filter; `trials_note` says how to read it, and `runs_link`
            leads to all of them in MLflow.
        problems: sentences on what diverged or failed.
        commands: shell commands that repeat all of it; `versions` the software it ran on.
        source: the experiment file.
    """

    title: str
    what: str
    notice: str = ""
    headline: Sequence[str] = ()
    description: str = ""
    facts: Sequence[tuple[str, str]] = ()
    grid: Sequence[tuple[str, str]] = ()
    settings: Sequence[tuple[str, str]] = ()
    exhibits: Sequence[Exhibit] = ()
    left_out: Sequence[tuple[str, str]] = ()
    privacy: Sequence[Statement] = ()
    epsilons: Table | None = None
    notes: Sequence[str] = ()
    trials: Sequence[Column] = ()
    trials_note: str = ""
    runs_link: str = ""
    trials_data: Download | None = None
    problems: Sequence[str] = ()
    commands: Sequence[str] = ()
    versions: Sequence[str] = ()
    source: Sequence[Download] = field(default=())

    @property
    def lead(self) -> list[Exhibit]:
        """The exhibits that are not folded: the first with a figure and, where it has no table, the first with one."""
        def has_table(exhibit: Exhibit) -> bool:
            return any(isinstance(part, Table) for part in exhibit.texts.body)

        figure = next((e for e in self.exhibits if e.figure), None)
        table = figure if figure and has_table(figure) else next(filter(has_table, self.exhibits), None)
        return [e for e in dict.fromkeys((figure, table)) if e]

    @property
    def answer(self) -> tuple[Sequence[str], Sequence[str]]:
        """The headline in two parts: what stands above the first figure on a phone, and what below."""
        words = accumulate((len(sentence.split()) for sentence in self.headline), initial=len(self.notice.split()))
        first = max(1, sum(count <= MOST_WORDS_ABOVE for count in words) - 1)
        return self.headline[:first], self.headline[first:]


def render(page: Page) -> str:
    """The page as HTML; all its texts are escaped."""
    styles, script = ((TEMPLATE / f"page.{suffix}").read_text(encoding="utf-8") for suffix in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(loader=FileSystemLoader(TEMPLATE), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters.update(inline=_inline, marked=_marked, breaking=_breaking, downloads=downloads,
                               drawing=drawing, algorithms=algorithms)
    palette = {name: to_hex(PALETTE[name]) for name in ALGORITHM_LABELS}
    return environment.get_template("page.html").render(
        page=page, styles=Markup(styles), script=Markup(script), script_digest=digest, palette=palette,
        labels=ALGORITHM_LABELS, is_table=lambda part: isinstance(part, Table), filter_names=_filter_names)


def _filter_names(columns: Sequence[Column]) -> list[str]:
    """One name of every column by which a filter knows it."""
    return list(dict.fromkeys(column.names[0] if column.names else column.heading for column in columns))


def downloads(exhibit: Exhibit) -> list[Download]:
    """The files of an exhibit that bear its name, apart from what the page shows itself."""
    names = (f"{exhibit.name}.{suffix}" for suffix in DATA)
    return [Download(name, exhibit.files[name]) for name in names if name in exhibit.files]


def drawing(exhibit: Exhibit) -> Markup:
    """The figure of an exhibit; empty for none."""
    svg = exhibit.files.get(f"{exhibit.name}.svg")
    return inline_svg(svg.decode(), f"figure-{exhibit.name}", exhibit.title) if svg else Markup()


def algorithms(figure: str) -> list[str]:
    """Those whose curves can be hidden in an SVG, in the order in which they are drawn."""
    return list(dict.fromkeys(re.findall(r'data-algorithm="([^"]+)"', figure)))


def inline_svg(text: str, prefix: str, label: str) -> Markup:
    """A stand-alone SVG as one that can stand beside others in HTML, as wide as there is room, at most as drawn; its
    columns (`analysis.svg.columns`) stand below each other where there is no room for them side by side.

    Its ids, and what refers to them, begin with `prefix`, and its style sheet applies to itself alone.
    """
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        if element.tag == f"{{{SVG}}}style":
            element.text = re.sub(r"(^|})\s*([^{}]+){", rf"\1#{prefix} \2{{", element.text or "")
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{prefix}-{value}")
            elif name in ("href", f"{{{XLINK}}}href") and value.startswith("#"):
                element.set(name, f"#{prefix}-{value[1:]}")
            else:
                element.set(name, re.sub(r"url\(#", f"url(#{prefix}-", value))
    del root.attrib["width"], root.attrib["height"]
    parts = Markup("").join(Markup(ElementTree.tostring(part, encoding="unicode")) for part in _columns(root))
    return Markup('<div class="drawing" id="{}" role="img" aria-label="{}">{}</div>').format(prefix, label, parts)


def _columns(root: ElementTree.Element) -> list[ElementTree.Element]:
    """An SVG for every column of a figure, the first with all that is in none; a figure without columns is one."""
    parts: dict[str, ElementTree.Element] = {}
    for parent in list(root.iter()):
        for group in parent.findall(f"{{{SVG}}}g[@data-column]"):
            box = group.attrib.pop("data-column")
            if not parts:
                parts[box] = root
            elif box not in parts:
                parts[box] = ElementTree.Element(root.tag)
            if parts[box] is not root:
                parent.remove(group)
                parts[box].append(group)
    for box, part in parts.items() or [(root.attrib["viewBox"], root)]:
        part.set("viewBox", box)
        part.set("style", f"--drawn: {box.split()[2]}pt")
    return sorted(parts.values(), key=lambda part: float(part.attrib["viewBox"].split()[0])) or [root]


def _inline(text: str) -> Markup:
    """Text with `code`; a symbol stays on the line of its value, and an interval on that of its mean."""
    text = re.sub(r"(?<=[σεδzn]) ([=≤]) (?=[\d.])", "\u00a0\\1\u00a0", text)
    text = re.sub(r"(?<=\d) ± (?=\d)", "\u00a0±\u00a0", text)
    parts = (Markup("<code>{}</code>").format(part) if odd % 2 else escape(part)
             for odd, part in enumerate(text.split("`")))
    return Markup("").join(parts)


def _breaking(text: Markup) -> Markup:
    """A text whose lines may break behind an underscore."""
    return Markup("_<wbr>").join(text.split("_"))


def _marked(text: str) -> Markup:
    """A cell's text; the name of an algorithm gets its colour in the figures."""
    algorithm = next((a for a, label in ALGORITHM_LABELS.items() if text in (label, a)), None)
    mark = Markup('<i class="mark" style="--mark: var(--{})"></i>').format(algorithm) if algorithm else ""
    return mark + _inline(text)
