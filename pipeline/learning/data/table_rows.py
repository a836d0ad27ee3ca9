"""The rows of a table's file as text, by column, each with the line where it begins: CSV, also compressed, or Parquet.

A message here may show bytes of a record, so every one of them is `of_record`.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.learning.data.download import DataError
from pipeline.trials.fields import suggestion
from pipeline.trials.naming import abridged

PARQUET = (".parquet", ".pq")
DECOMPRESS = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}  # that begin a file
NUMERIC = ("int", "uint", "half", "float", "double", "decimal")  # beginnings of arrow's types of numbers
SEPARATORS = ",;\t|"  # that a message advises
FOR_EXCEL = re.compile('"?sep=.?"? *[\r\n]', re.IGNORECASE)  # a first line that tells Excel the separator
MOST_NAMED = 30  # columns in a message
csv.field_size_limit(2**31 - 1)  # characters of a cell; by default 2^17, and a longer one is an error
Record = tuple[int, list[str]]  # the line where it begins, as an editor counts, and its cells


@dataclass(frozen=True)
class TableRows:
    """A table's cells as text without spaces around them; a missing one of a Parquet file is empty."""

    file: Path
    lines: np.ndarray  # [n], where each record begins; in a Parquet file the number of the row, from 1
    cells: Mapping[str, np.ndarray]  # [n] of each column, of texts
    numeric: frozenset[str] = frozenset()  # columns that a Parquet file has as numbers: written with a point

    def error(self, place: int, name: str, must: str) -> DataError:
        """Return the error for the cell of one record, which `must` describes without the cell."""
        return DataError(f"{self.file}, {self.where(place)}, column {name!r}: {must}, got {self.cells[name][place]!r}",
                         of_record=True)

    def where(self, place: int) -> str:
        """Return where a record stands: its line, or its row in a Parquet file."""
        return f"{'row' if self.file.suffix in PARQUET else 'line'} {self.lines[place]}"

    def require(self, names: Sequence[str]) -> None:
        """Refuse a table without these columns."""
        for name in names:
            if name not in self.cells:
                there = [name for name in self.cells if name]
                must = f"must have the declared column {name!r}"
                raise DataError(f"{self.file}: {must}, {suggestion(name, there)}its columns are "
                                f"{abridged(there, MOST_NAMED)}", f"the table {must}", of_record=True)


def refused(file: Path, must: str, line: int = 0) -> DataError:
    """Return the error for a file, or for a record of it by the line where it begins."""
    return DataError(f"{file}, line {line}: {must}" if line else f"{file}: {must}", of_record=True)


def read_rows(file: Path, separator: str = ",", encoding: str = "utf-8") -> TableRows:
    """Return a file's rows; `DataError` says in which line, and how, a file is no table."""
    if not file.is_file():
        raise DataError(f"{file}: must be the file of the table, found none")
    if file.suffix in PARQUET:
        return _of_parquet(file)
    return table_of(file, list(records(file, decoded(file, content(file), encoding), separator)), separator)


def content(file: Path) -> bytes:
    """Return the bytes of a file, decompressed by what ends its name."""
    try:
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                (member,) = archive.namelist()
                return archive.read(member)
        return DECOMPRESS.get(file.suffix, bytes)(file.read_bytes())
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise refused(file, f"cannot be read ({type(error).__name__}); it must be text, or one such file as its name "
                            f"ends: {', '.join([*DECOMPRESS, '.zip'])}") from None


def decoded(file: Path, data: bytes, encoding: str) -> str:
    """Return the text of a file."""
    mark = next((name for start, name in MARKS.items() if data.startswith(start)), "")
    if not encoding.startswith(mark):
        raise refused(file, f"must be in {encoding}, begins as {mark} does; declare encoding: {mark}")
    if data[1:2] == b"\0" and encoding == "utf-8":
        raise refused(file, "must be in utf-8, has zero bytes; declare encoding: utf-16-le")
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeError as error:  # its text has the byte
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = re.sub("\r\n?", "\n", data[:start].decode(encoding, errors="replace")).count("\n") + 1
        use = "; declare encoding: cp1252 for what Windows calls ANSI" if encoding == "utf-8" else ""
        raise refused(file, f"must be text in {encoding}, has a byte that is none{use}", line) from None


def records(file: Path, text: str, separator: str) -> Iterator[Record]:
    """Yield the cells of each record, without spaces around them, from the header on; lines without any are skipped."""
    reader = csv.reader(io.StringIO(text, newline=None), delimiter=separator, strict=True,
                        skipinitialspace=separator != " ")
    line = 1
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if any(cells) and not (line == 1 and FOR_EXCEL.match(text)):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error:  # its text has no byte of the file, and speaks of the reader
        raise refused(file, "has a quotation mark that is not closed, or text behind a closed one; inside a cell in "
                            "quotes it is written twice", line) from None


def table_of(file: Path, found: Sequence[Record], separator: str) -> TableRows:
    """Return records as rows: the first has the names of the columns, and all must have as many cells."""
    if not found:
        raise refused(file, "must have a header and a row per record, is empty")
    (_, names), *rows = found
    if not rows:
        raise refused(file, "must have a row per record below the header, has none")
    if len(names) == 1 and (mark := next((mark for mark in SEPARATORS if mark in names[0]), "")):
        raise refused(file, f"cells must be separated by {separator!r}, got {names[0]!r}; declare separator: {mark!r}")
    if all(len(cells) == len(names) + 1 and not cells[-1] for _, cells in rows):  # a separator ends every row
        rows = [(line, cells[:-1]) for line, cells in rows]
    if len(names) == 1 and all(len(cells) > 1 for _, cells in rows):
        raise refused(file, "its first line with text must name the columns, has one cell; remove what stands above")
    if all(len(cells) == len(names) + 1 for _, cells in rows):
        raise refused(file, f"its header must name every column, has {len(names)} names, and every row one cell more; "
                            "if R wrote it, row.names = FALSE leaves out the first cells; else put a name before them")
    for line, cells in rows:
        if len(cells) != len(names):
            raise refused(file, f"must have {len(names)} cells separated by {separator!r}, as the header has, got "
                                f"{len(cells)}; a cell with {separator!r} in it must be in quotes", line)
    columns = zip(*(cells for _, cells in rows), strict=True)
    return _named(file, names, np.array([line for line, _ in rows]), [np.array(cells, object) for cells in columns])


def _named(file: Path, names: Sequence[str], lines: np.ndarray, columns: Sequence[np.ndarray],
           numeric: frozenset[str] = frozenset()) -> TableRows:
    """Return columns by name; names must differ. Of columns without a name only the last is kept."""
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise refused(file, f"columns must have different names, got {', '.join(twice)} more than once")
    return TableRows(file, lines, dict(zip(names, columns, strict=True)), numeric)


def _of_parquet(file: Path) -> TableRows:
    """Return the rows of a Parquet file, whose types are arrow's: pandas' own make 1.0 of 1 beside a missing cell."""
    from pandas import read_parquet  # slow to import, and only Parquet needs it

    try:
        frame = read_parquet(file, dtype_backend="pyarrow")
    except (ValueError, OSError, ImportError) as error:
        raise refused(file, f"cannot be read as Parquet ({type(error).__name__})") from None
    if frame.empty:
        raise refused(file, "must have a row per record, has none")
    names, types = [str(name).strip() for name in frame.columns], [str(dtype) for dtype in frame.dtypes]
    cells = frame.astype(object).where(frame.notna(), None)
    columns = [np.array([_text(cell, type_) for cell in cells.iloc[:, place]], object)
               for place, type_ in enumerate(types)]
    numeric = frozenset(name for name, type_ in zip(names, types, strict=True) if type_.startswith(NUMERIC))
    return _named(file, names, np.arange(1, len(frame) + 1), columns, numeric)


def _text(cell: Any, type_: str) -> str:
    """Return a cell of a Parquet file as text, a float as short as its type allows: 1.0 is 1."""
    if not isinstance(cell, float):
        return "" if cell is None else str(cell).strip()
    if math.isnan(cell):
        return ""
    if cell.is_integer():
        return str(int(cell))
    return f"{cell:.15g}" if type_.startswith("double") else str(np.float32(cell))
