"""What every exhibit returns: title, captions, tables, figure and data; as files, and for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.table import Table, markdown, to_latex
from analysis.statistics import SUMMARY
from analysis.text import best_of

MAX_WORDS = 40  # words in a caption
ENVELOPE = "No ε covers the choice of settings, which was made by mean validation accuracy over seeds."


class Texts(NamedTuple):
    """The texts and tables of an exhibit.

    Attributes:
        body: captions and tables, in order. A caption states the quantity, n and interval, in at most `MAX_WORDS`.
        more: further captions and tables, which a page folds.
        notes: sentences on single trials and on reading the exhibit, also folded.
    """

    body: tuple[str | Table, ...]
    more: tuple[str | Table, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def markdown(self) -> str:
        """Everything in Markdown, the notes as a list."""
        listed = ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return markdown(*self.body, *self.more, *listed)


@dataclass(frozen=True, eq=False)
class Exhibit:
    """An exhibit.

    Attributes:
        name: name of its files, without suffix.
        title: its title.
        texts: captions, tables and notes.
        rows: the tidy data, rounded as in the file.
        figure: the figure, if there is one.

    Example:
        >>> runs = load_runs("example")
        >>> Exhibit.of_means("tests", "Test accuracy", "Of every trial", runs[["algorithm", "test/accuracy"]]).title
        'Test accuracy'
    """

    name: str
    title: str
    texts: Texts
    rows: pd.DataFrame
    figure: Figure | None = None

    @classmethod
    def of_means(cls, name: str, title: str, caption: str, rows: pd.DataFrame, figure: Figure | None = None,
                 notes: Sequence[str] = ()) -> Exhibit:
        """Make an exhibit of means over seeds, rounded to four digits.

        The caption has no full stop. A column `choices` has the number of settings from which the best was chosen;
        above 1, the caption and a note say so.
        """
        max_choices = rows["choices"].max() if "choices" in rows else 1
        choice_notes = [ENVELOPE] if max_choices > 1 else []
        texts = Texts((f"{caption}{best_of(max_choices)}.",), notes=(*choice_notes, *notes))
        return cls(name, title, texts, rows.round(dict.fromkeys(SUMMARY, 4)), figure)

    @property
    def markdown(self) -> str:
        """Title, captions, tables and notes in Markdown."""
        return f"## {self.title}\n\n{self.texts.markdown}"

    def marked(self, mark: str) -> Exhibit:
        """Return the exhibit with a mark after its title and above the first panel of its figure."""
        if self.figure:
            title = self.figure.axes[0].title
            title.set_text(f"{mark}\n{title.get_text()}".strip())
        return replace(self, title=f"{self.title} ({mark})")

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Contents by file name: `.csv`, `.md`, a `.tex` a table; the wanted formats of a figure."""
        text_files = {f"{self.name}.csv": to_csv(self.rows), f"{self.name}.md": self.markdown}
        text_files |= to_latex((*self.texts.body, *self.texts.more), self.name)
        files = {name: text.encode() for name, text in text_files.items()}
        return files | {f"{self.name}.{suffix}": self.drawn[suffix] for suffix in self.drawn if style.wanted(suffix)}

    @cached_property
    def drawn(self) -> dict[str, bytes]:
        """The figure by format, with the SVG of a page among them; empty without a figure."""
        return style.draw(self.figure) if self.figure else {}


def to_csv(rows: pd.DataFrame) -> str:
    """Return tidy rows as CSV, with the same line ends on every system."""
    return rows.to_csv(index=False, lineterminator="\n")


def save(contents: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write files, by name, to a folder, which is created if missing; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]
