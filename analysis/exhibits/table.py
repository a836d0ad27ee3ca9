"""Tables of an exhibit, for Markdown and for a page that sorts them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


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
    def of(cls, header: Sequence[str], rows: Iterable[Sequence[str]], texts: Collection[int] = (0,)) -> Table:
        """Make a table of texts.

        Args:
            header: column names [n].
            rows: n texts per row.
            texts: indices of columns without numbers; all others are numeric.
        """
        numeric = tuple(place not in texts for place in range(len(header)))
        return cls(tuple(header), tuple(tuple(map(Cell, row)) for row in rows), numeric)


def markdown(*parts: str | Table) -> str:
    """Return paragraphs and tables as Markdown, in order, separated by blank lines."""
    return "\n\n".join(part if isinstance(part, str) else _lines(part) for part in parts) + "\n"


def _lines(part: Table) -> str:
    rule = ["---:" if numeric else "---" for numeric in part.numeric]
    rows = [part.header, rule, *([cell.text for cell in row] for row in part.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
