"""How a table's file is written, guessed for proposals: encoding, separator, and the marks in its numbers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pipeline.learning.data.download import DataError
from pipeline.learning.data.numbers import STYLES, Style
from pipeline.learning.data.table_reader import is_missing
from pipeline.learning.data.table_rows import (
    MARKS,
    PARQUET,
    SEPARATORS,
    TableRows,
    content,
    decoded,
    read_rows,
    records,
    table_of,
)

LOOKED_AT = 1000  # records, for the separator


@dataclass(frozen=True)
class Recognised:
    """A table, and how it is written."""

    rows: TableRows
    style: Style = STYLES[0]
    separator: str = ","
    encoding: str = "utf-8"

    def style_in(self, name: str) -> Style:
        """Return how a column writes its numbers."""
        return STYLES[0] if name in self.rows.numeric else self.style


def recognise(file: Path) -> Recognised:
    """Return the rows of a file that says nothing of how it is written."""
    if file.suffix in PARQUET or not file.is_file():
        rows = read_rows(file)
        return Recognised(rows, _style(rows, ","))
    data = content(file)
    usual = "utf-16-le" if data[1:2] == b"\0" else "utf-8"  # UTF-16 without a mark: a zero behind each letter
    encoding = next((name for mark, name in MARKS.items() if data.startswith(mark)), usual)
    try:
        text = decoded(file, data, encoding)
    except DataError:
        encoding = "cp1252"
        text = decoded(file, data, encoding)
    separator = max(SEPARATORS + " ", key=lambda mark: _fit(file, text, mark))
    rows = table_of(file, list(records(file, text, separator)), separator)
    return Recognised(rows, _style(rows, separator), separator, encoding)


def _fit(file: Path, text: str, separator: str) -> tuple[bool, float, int]:
    """Return how well a separator fits, to be compared: the best cuts the header and most rows into as many cells."""
    try:
        found = [len(cells) for _, cells in itertools.islice(records(file, text, separator), LOOKED_AT)]
    except DataError:
        return False, 0.0, 0
    header, *rows = found or [0]
    ((width, n),) = Counter(rows or [header]).most_common(1)
    return (header == width, n / max(1, len(rows)), width) if width > 1 else (False, 0.0, width)


def _style(rows: TableRows, separator: str) -> Style:
    """Return the style in which most different cells are numbers; of equal ones the plainest that semicolons allow."""
    columns = [texts for name, cells in rows.cells.items() if name not in rows.numeric
               and (texts := {cell for cell in cells if not is_missing(cell)})]
    scores = {style: sum(_n_numbers(style, texts) for texts in columns) for style in STYLES}
    best = [style for style in STYLES if scores[style] == max(scores.values())]
    is_open = any(_n_numbers(best[0], texts) == len(texts) and (best[0].thousands or best[0].other(texts))
                  for texts in columns)
    if separator == ";" and is_open:  # what writes semicolons writes decimal commas
        best.sort(key=lambda style: style.decimal != ",")
    return best[0]


def _n_numbers(style: Style, texts: Collection[str]) -> int:
    return sum(style.read(text) is not None for text in texts)
