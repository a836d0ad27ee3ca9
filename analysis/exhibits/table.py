"""Tables of an exhibit, for Markdown and for a page that sorts them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analysis.runs import NO_VALUE


class Cell(NamedTuple):
    """A cell of a table: its text, and a value to sort by; without a value, the text is used."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """Cells by row; `numeric` marks the columns of numbers, which are right-aligned."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: tuple[bool, ...]

    @classmethod
    def of(cls, header: Sequence[str], rows: Iterable[Sequence[str]],
           text_columns: Collection[int] = (0,)) -> Table:
        """Make a table of texts. `text_columns` are the indices of columns without numbers."""
        numeric = tuple(index not in text_columns for index in range(len(header)))
        return cls(tuple(header), tuple(tuple(map(Cell, row)) for row in rows), numeric)

    @property
    def markdown(self) -> str:
        """The table in Markdown: header, a rule that aligns numbers to the right, and rows."""
        rule = ["---:" if is_numeric else "---" for is_numeric in self.numeric]
        rows = [self.header, rule, *([cell.text for cell in row] for row in self.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def crossed(names: Iterable[str], columns: Iterable[str], cells: Mapping[tuple[str, str], str], corner: str = ""
            ) -> Table:
    """Return the table of cells by (name of a row, column), with a dash for each that is missing."""
    columns = list(columns)
    rows = [[name, *(cells.get((name, column), NO_VALUE) for column in columns)] for name in dict.fromkeys(names)]
    return Table.of([corner, *columns], rows)


def markdown(*parts: str | Table) -> str:
    """Return paragraphs and tables as Markdown, in order, separated by blank lines."""
    return "\n\n".join(part if isinstance(part, str) else part.markdown for part in parts) + "\n"
