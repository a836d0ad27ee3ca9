"""A table as a value: what an exhibit writes as Markdown, and what a page sets and sorts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell of a table: its text, and what it is sorted by where that is not its text."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """Cells by row; `numeric` says which columns are numbers, and stand to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: tuple[bool, ...]

    @classmethod
    def of(cls, header: Sequence[str], rows: Iterable[Sequence[str]], texts: Collection[int] = (0,)) -> Table:
        """A table of cells that are their texts.

        Args:
            header: the name of every column, [n].
            rows: n texts each.
            texts: places of the columns that are no numbers; all others are.
        """
        numeric = tuple(place not in texts for place in range(len(header)))
        return cls(tuple(header), tuple(tuple(map(Cell, row)) for row in rows), numeric)


def markdown(*parts: str | Table) -> str:
    """Paragraphs and tables, in their order, with blank lines between and a line's end behind the last."""
    return "\n\n".join(part if isinstance(part, str) else _lines(part) for part in parts) + "\n"


def _lines(part: Table) -> str:
    rule = ["---:" if numeric else "---" for numeric in part.numeric]
    rows = [part.header, rule, *([cell.text for cell in row] for row in part.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
