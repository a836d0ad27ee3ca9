"""Records of a table (`pipeline.trials.declared_table`): each row by itself, by rules that look at no other row."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import torch

from pipeline.learning.data.download import DataError
from pipeline.learning.data.numbers import Style, style_of
from pipeline.learning.data.readers import READERS, Arrays
from pipeline.learning.data.table_rows import TableRows, read_rows
from pipeline.trials.datasets import DatasetSpec
from pipeline.trials.declared_table import LEVELS, Column, TableData, TableSpec, declared_table
from pipeline.trials.fields import refuse

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "#n/a", "<na>")  # cells without a value, in small letters
PLAIN = Style()  # of numbers that a Parquet file has as such
MOST_NAMED = 20  # declared values in a message


@READERS.of(TableData)
def read(spec: DatasetSpec, folder: Path | None) -> tuple[Arrays, Arrays]:
    """Return training and test records: x uint8 [n, inputs], y int64 [n]; the file is that of the spec."""
    if not isinstance(spec, TableSpec):
        raise TypeError(f"spec: must be a TableSpec, got {spec!r}")
    kind, *rule = spec.test
    files = (spec.file, Path(str(rule[0])) if kind == "file" else spec.file)
    rows = _rows(spec.file, spec)
    x, y = _encoded(rows, spec)
    if kind == "seed" and len(y) != (n := spec.n_train + spec.n_test):
        raise DataError(f"{spec.file}: must have {n} records, the sum that records declares, got {len(y)}")
    parts = [(x, y), _encoded(_rows(files[1], spec), spec)] if kind == "file" else [
        (x[places], y[places]) for places in _places(rows, spec)]
    for split, (_, labels), n, file in zip(("train", "test"), parts, (spec.n_train, spec.n_test), files, strict=True):
        if len(labels) != n:
            raise DataError(f"{file}: must have {n} {split} records, as records.{split} declares, got {len(labels)}")
    for split, (_, labels) in zip(("training", "test"), parts, strict=True):
        if absent := [name for number, name in enumerate(spec.classes) if number not in labels]:
            raise DataError(f"{spec.file}: every class must have {split} records, got none of {', '.join(absent)}",
                            of_record=True)
    return parts[0], parts[1]


def table_records(dataset: str, file: str | os.PathLike[str]) -> torch.Tensor:
    """Return the records of another file with the columns of a declared table, uint8 [n, inputs], as models take them.

    Every row becomes a record by the declaration alone, as in training. The file needs no label, and is written as the
    table is (separator, decimal, encoding). Errors are `DataError`, with line and column, and `table_inputs`'.

    Example:
        >>> load_experiment("patients.yaml").name  # its plugins have the table's declaration
        'patients'
        >>> table_records("patients", "new_patients.csv")  # age, then one input each for north, south, none
        tensor([[ 64, 255,   0,   0],
                [255,   0, 255,   0]], dtype=torch.uint8)
    """
    spec = declared_table(dataset)
    refuse(not isinstance(file, str | os.PathLike), "file", "must be the path of a file", f"a {type(file).__name__}")
    rows = read_rows(Path(file), spec.separator, spec.encoding)
    rows.require(list(spec.inputs))
    return torch.from_numpy(_inputs(rows, spec))


def _rows(file: Path, spec: TableSpec) -> TableRows:
    """Return the rows of a file, which must have all declared columns."""
    rows = read_rows(file, spec.separator, spec.encoding)
    split = [str(spec.test[1])] if spec.test[0] == "column" else []
    rows.require([spec.label, *spec.inputs, *split])
    return rows


def _places(rows: TableRows, spec: TableSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the training and of the test records in a table that has both."""
    kind, *rule = spec.test
    if kind == "column":
        name, value = rule
        is_test = _chosen(rows, Column(str(name), values=(value,)), spec) == 0
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)
    order = np.random.default_rng(int(rule[0])).permutation(len(rows.lines))
    train, test = np.split(order, [spec.n_train])
    return np.sort(train), np.sort(test)


def _encoded(rows: TableRows, spec: TableSpec) -> Arrays:
    """Return x uint8 [n, inputs] and y [n] of rows: every input and label depends on its own row and on `spec`."""
    y = _chosen(rows, spec.target, spec)
    if (wrong := y < 0).any():
        raise _unmatched(rows, spec.target, spec, int(wrong.argmax()))
    return _inputs(rows, spec), y


def _inputs(rows: TableRows, spec: TableSpec) -> np.ndarray:
    """Return x uint8 [n, inputs] of rows."""
    x = [(_category if column.values else _number)(rows, column, spec) for column in spec.columns]
    return np.concatenate(x, axis=1)


def is_missing(cell: str) -> bool:
    """Whether a cell has no value, unless its column declares this text."""
    return cell.lower() in MISSING


def _style(rows: TableRows, name: str, spec: TableSpec) -> Style:
    return PLAIN if name in rows.numeric else Style(spec.decimal, spec.thousands)


def _chosen(rows: TableRows, column: Column, spec: TableSpec) -> np.ndarray:
    """Return the place of each cell's value among those declared, int64 [n]; -1 where it is none of them.

    A declared text is a cell by its text alone, a declared number by value: 1 is 1.0, 01 and 1e0.
    """
    style = _style(rows, column.name, spec)
    texts = {value: place for place, value in enumerate(column.values) if isinstance(value, str)}
    numbers = {Decimal(repr(value)): place for place, value in enumerate(column.values) if not isinstance(value, str)}
    places = {text: texts.get(text, -1) for text in set(rows.cells[column.name])}
    if numbers:
        for text in [text for text, place in places.items() if place < 0]:
            number = style.read(text)
            places[text] = -1 if number is None else numbers.get(number, -1)
    return np.array([places[text] for text in rows.cells[column.name]], np.int64)


def _category(rows: TableRows, column: Column, spec: TableSpec) -> np.ndarray:
    """Return a category's inputs, uint8 [n, width]: `LEVELS` at its place, the last one for a missing or other cell."""
    chosen = _chosen(rows, column, spec)
    if not column.others:
        for place in np.flatnonzero(chosen < 0):
            if not is_missing(rows.cells[column.name][place]):
                raise _unmatched(rows, column, spec, int(place))
    chosen[chosen < 0] = len(column.values)
    return (LEVELS * np.eye(column.width)[chosen]).astype(np.uint8)


def _unmatched(rows: TableRows, column: Column, spec: TableSpec, place: int) -> DataError:
    """Return the error for a cell that is none of the declared values."""
    declared, read = column.values, _style(rows, column.name, spec).read
    number = read(rows.cells[column.name][place])
    named = ", ".join(map(str, declared[:MOST_NAMED])) + (" ..." if len(declared) > MOST_NAMED else "")
    error = rows.error(place, column.name, f"must be one of {named}")
    if number is not None and any(isinstance(value, str) and read(value) == number for value in declared):
        use = "a text in quotes is a cell by its text alone: declare numbers without quotes"
    elif column is spec.target:
        return error
    else:
        use = "add it to values, or declare others: true for a category of all others"
    return DataError(f"{error}; {use}", of_record=True)


def _number(rows: TableRows, column: Column, spec: TableSpec) -> np.ndarray:
    """Return a number's input, uint8 [n, 1]: its place in the range; the middle where it is missing."""
    cells, style = rows.cells[column.name], _style(rows, column.name, spec)
    missing = {text for text in set(cells) if is_missing(text)}
    values = {text: style.read(text) for text in set(cells) - missing}
    for place, text in enumerate(cells):
        if text not in missing and values[text] is None:
            raise _no_number(rows, column.name, place, style_of(values))
    if column.name not in rows.numeric:
        _check_marks(rows, column, style, list(values))
    floats = {**{text: float(value) for text, value in values.items() if value is not None},
              **dict.fromkeys(missing, np.nan)}
    found, low, high = np.clip([floats[text] for text in cells], column.low, column.high), column.low, column.high
    if column.is_log:
        low, high, found = np.log(low), np.log(high), np.log(found)
    share = np.nan_to_num((found - low) / (high - low), nan=0.5)
    return (LEVELS * share).round().astype(np.uint8)[:, None]


def _no_number(rows: TableRows, name: str, place: int, style: Style | None) -> DataError:
    """Return the error for a cell that is no number, and how the whole column can be read, if it can."""
    error = rows.error(place, name, "must be a number")
    reading = style and style.read(rows.cells[name][place])
    use = f"declare {style}, by which it is {reading}" if reading is not None else (
        "a number has no unit and no other sign; declare values: [...] for a category")
    return DataError(f"{error}; {use}", of_record=True)


def _check_marks(rows: TableRows, column: Column, style: Style, texts: list[str]) -> None:
    """Refuse a column whose numbers fit its range with their mark as one of decimals and as one of thousands."""
    other = style.other(texts)
    readings = [float(value) for text in texts if other and (value := other.read(text)) is not None]
    if not other or 2 * sum(column.low <= value <= column.high for value in readings) < len(readings):
        return
    place = next(place for place, text in enumerate(rows.cells[column.name]) if style.decimal in text)
    cell = rows.cells[column.name][place]
    one = Style(style.decimal, "." if style.decimal == "," else ",")
    error = rows.error(place, column.name, f"must say whether {style.decimal!r} marks decimals or thousands")
    raise DataError(f"{error}; declare {one} if it is {one.read(cell)}, {other} if it is {other.read(cell)}",
                    of_record=True)
