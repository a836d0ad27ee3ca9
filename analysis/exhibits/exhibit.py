"""An exhibit as a value: title, captions, tables, figure and the data behind it; as files, and for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.latex import to_latex
from analysis.exhibits.table import Table, markdown
from analysis.statistics import SUMMARY
from analysis.text import best_of

MOST_WORDS = 40  # of a caption
ENVELOPE = "No ε covers the choice of settings, which was made by mean validation accuracy over seeds."


class Texts(NamedTuple):
    """What an exhibit says.

    Attributes:
        body: captions and tables, in their order. A caption says what is plotted, n and interval, in `MOST_WORDS`.
        more: further captions and tables, which a page folds.
        notes: sentences on single trials and on how to read the exhibit, folded as well.
    """

    body: tuple[str | Table, ...]
    more: tuple[str | Table, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def markdown(self) -> str:
        """All of it, the notes as a list."""
        listed = ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return markdown(*self.body, *self.more, *listed)


@dataclass(frozen=True, eq=False)
class Exhibit:
    """What stands under one title.

    Attributes:
        name: of its files, before the suffix.
        texts: captions, tables and notes.
        rows: the tidy data, as precise as they are written.
        figure: what is drawn of them, if anything is.
        others: further text files by name.
    """

    name: str
    title: str
    texts: Texts
    rows: pd.DataFrame
    figure: Figure | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_means(cls, name: str, title: str, caption: str, rows: pd.DataFrame, figure: Figure,
                 notes: Sequence[str] = ()) -> Exhibit:
        """A figure of means over seeds, to four digits; of an envelope (column `choices`) the caption says so."""
        most = rows["choices"].max() if "choices" in rows else 1
        said = [ENVELOPE] if most > 1 else []
        return cls(name, title, Texts((f"{caption}{best_of(most)}.",), notes=(*said, *notes)),
                   rows.round(dict.fromkeys(SUMMARY, 4)), figure)

    @property
    def markdown(self) -> str:
        """Captions, tables and notes under the title."""
        return f"## {self.title}\n\n{self.texts.markdown}"

    def marked(self, mark: str) -> Exhibit:
        """The exhibit with a mark behind its title and above the first panel of its figure."""
        if self.figure:
            title = self.figure.axes[0].title
            title.set_text(f"{mark}\n{title.get_text()}".strip())
        return replace(self, title=f"{self.title} ({mark})")

    @cached_property
    def files(self) -> dict[str, bytes]:
        """`<name>.csv`, `.md`, `.tex` of its tables, the others, and `.svg`, `.pdf`, `.png` of the figure: contents by
        name, drawn once."""
        latex = to_latex((*self.texts.body, *self.texts.more), self.name)
        tables = {f"{self.name}.tex": latex} if latex else {}
        texts = {f"{self.name}.csv": to_csv(self.rows), f"{self.name}.md": self.markdown, **tables, **self.others}
        drawn = style.draw(self.figure) if self.figure else {}
        return {**{name: text.encode() for name, text in texts.items()},
                **{f"{self.name}.{suffix}": content for suffix, content in drawn.items()}}


def to_csv(rows: pd.DataFrame) -> str:
    """Tidy rows as CSV, with the ends of lines of every system."""
    return rows.to_csv(index=False, lineterminator="\n")


def save(contents: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write files, by name, into a folder, which is created if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]
