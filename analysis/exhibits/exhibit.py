"""An exhibit as a value: title, captions, tables, figure and the data behind it; as files, and for a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.table import Table, markdown
from analysis.statistics import SUMMARY

# Of what is drawn of every mean.
MEANS = "means over seeds with 95% bootstrap (thick) and Student t (thin) intervals"
ENVELOPE = ("Other settings vary as well: every mean is that of the best of up to {most} settings by mean validation "
            "accuracy; no ε covers that choice.")


@dataclass(frozen=True, eq=False)
class Exhibit:
    """What stands under one title.

    Attributes:
        name: of its files, before the suffix.
        body: captions and tables, in their order.
        rows: the tidy data, as precise as they are written.
        figure: what is drawn of them, if anything is.
        others: further text files by name.
    """

    name: str
    title: str
    body: tuple[str | Table, ...]
    rows: pd.DataFrame
    figure: Figure | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_means(cls, name: str, title: str, caption: str, rows: pd.DataFrame, figure: Figure) -> Exhibit:
        """A figure of means over seeds, to four digits; of an envelope (column `choices`) the caption says so."""
        most = rows["choices"].max() if "choices" in rows else 1
        body = caption if most == 1 else f"{caption} {ENVELOPE.format(most=most)}"
        return cls(name, title, (body,), rows.round(dict.fromkeys(SUMMARY, 4)), figure)

    @property
    def markdown(self) -> str:
        """Captions and tables under the title."""
        return f"## {self.title}\n\n{markdown(*self.body)}"

    @cached_property
    def files(self) -> dict[str, bytes]:
        """`<name>.csv`, `.md`, the others, and `.svg`, `.pdf`, `.png` of the figure: contents by name, drawn once."""
        texts = {f"{self.name}.csv": to_csv(self.rows), f"{self.name}.md": self.markdown, **self.others}
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
