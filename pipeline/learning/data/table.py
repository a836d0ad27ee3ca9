"""Records of a declared table (`pipeline.trials.table`): each row by itself, by rules that look at no other row."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from pipeline.learning.data.download import DataError
from pipeline.learning.data.readers import Arrays
from pipeline.trials.datasets import DATASETS, DatasetSpec
from pipeline.trials.table import LEVELS, Column, TableSpec

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # cells without a value, in small letters
PARQUET = (".parquet", ".pq")
HEADER_LINES = 1  # so that messages count lines as a text editor does
TEST_SHARE = 0.2  # of a proposal
MOST_CATEGORIES = 20  # of a column with values, in a proposal


def read(spec: DatasetSpec, folder: Path | None) -> tuple[Arrays, Arrays]:
    """Return training and test records: x uint8 [n, inputs], y uint8 or int64 [n]; the file is that of the spec."""
    if not isinstance(spec, TableSpec):
        raise TypeError(f"spec: must be a TableSpec, got {spec!r}")
    rows = _rows(spec.file, spec)
    kind, *rule = spec.test
    if kind == "file":
        parts = [rows, _rows(Path(rule[0]), spec)]
    elif kind == "column":
        name, value = rule
        _require(rows, [name], spec.file)
        is_test = rows[name] == value
        parts = [rows[~is_test], rows[is_test]]
    else:
        order = np.random.default_rng(int(rule[0])).permutation(len(rows))
        parts = [rows.iloc[np.sort(places)] for places in np.split(order, [min(spec.n_train, len(rows))])]
    files = (spec.file, Path(rule[0]) if kind == "file" else spec.file)
    for split, part, n, file in zip(("train", "test"), parts, (spec.n_train, spec.n_test), files, strict=True):
        if len(part) != n:
            raise DataError(f"{file}: must have {n} {split} records, as records.{split} declares, got {len(part)}")
    train, test = (_encoded(part, spec, file) for part, file in zip(parts, files, strict=True))
    for split, (_, labels) in (("training", train), ("test", test)):
        if absent := [name for number, name in enumerate(spec.classes) if number not in labels]:
            raise DataError(f"{spec.file}: every class must have {split} records, got none of {', '.join(absent)}",
                            of_record=True)
    return train, test


def _rows(file: Path, spec: TableSpec) -> pd.DataFrame:
    """Return a file's cells as text without spaces around them, by line; missing ones of a Parquet file are empty."""
    if not file.is_file():
        raise DataError(f"{file}: must be the file of the table, found none")
    try:
        if file.suffix in PARQUET:
            # By arrow's types: in pandas' own, one missing cell makes floats of all whole numbers in its column.
            rows = pd.read_parquet(file, dtype_backend="pyarrow").astype(object)
            rows = rows.where(rows.notna(), "").map(
                lambda value: f"{value:.15g}" if isinstance(value, float) else str(value))  # 1.0 is the category 1
        else:
            rows = pd.read_csv(file, header=None, sep=spec.separator, dtype=str, keep_default_na=False,
                               encoding="utf-8-sig", skip_blank_lines=False)
            rows = rows.set_axis(rows.iloc[0].str.strip(), axis=1).iloc[HEADER_LINES:]
    except (ValueError, OSError, ImportError) as error:  # pandas' errors of parsing are ValueErrors
        raise DataError(f"{file}: cannot be read as a table ({type(error).__name__}: {str(error).strip()})") from error
    names = list(rows.columns)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{file}: columns must have different names, got {', '.join(twice)} more than once")
    if len(names) == 1 and (found := next((mark for mark in ";\t|," if mark in names[0]), "")):
        raise DataError(f"{file}: cells must be separated by {spec.separator!r}, got {names[0]!r}; declare separator: "
                        f"{found!r}")
    _require(rows, [spec.label, *(column.name for column in spec.columns)], file)
    rows.index = pd.RangeIndex(HEADER_LINES + 1, HEADER_LINES + 1 + len(rows))
    return rows.map(str.strip)


def _require(rows: pd.DataFrame, names: list[str], file: Path) -> None:
    """Refuse a table without these columns."""
    for name in names:
        if name not in rows:
            raise DataError(f"{file}: must have the declared column {name!r}, its columns are {', '.join(rows)}")


def _encoded(rows: pd.DataFrame, spec: TableSpec, file: Path) -> Arrays:
    """Return x uint8 [n, inputs] and y [n] of rows: every input and label depends on its own row and on `spec`."""
    numbers = {name: number for number, name in enumerate(spec.classes)}
    y = rows[spec.label].map(numbers)
    if y.isna().any():
        line = y.isna().idxmax()
        raise DataError(f"{file}, line {line}, column {spec.label!r}: must be one of {', '.join(spec.classes)}, got "
                        f"{rows[spec.label][line]!r}", of_record=True)
    x = [_inputs(rows[column.name], column, spec, file) for column in spec.columns]
    return np.concatenate(x, axis=1), y.to_numpy(np.int64)


def _inputs(cells: pd.Series, column: Column, spec: TableSpec, file: Path) -> np.ndarray:
    """Return a column's inputs, uint8 [n, width]: a number's place in its range, or one category of all as `LEVELS`.

    A missing number is in the middle of the range; a category that is not declared, or missing, is one of all others.
    """
    if column.values:
        places = {value: place for place, value in enumerate(column.values)}
        chosen = cells.map(places).fillna(len(places)).to_numpy(np.int64)
        return (LEVELS * np.eye(column.width)[chosen]).astype(np.uint8)
    texts, missing = cells, cells.str.lower().isin(MISSING)
    if spec.decimal != "." and file.suffix not in PARQUET:
        texts = cells.str.replace(".", "x").str.replace(spec.decimal, ".")
    values = pd.to_numeric(texts.mask(missing, "nan"), errors="coerce")
    if (wrong := values.isna() & ~missing).any():
        line = wrong.idxmax()
        raise DataError(f"{file}, line {line}, column {column.name!r}: must be a number, got {cells[line]!r}; declare "
                        "decimal: ',' for decimal commas, and values: [...] for a category", of_record=True)
    low, high = column.low, column.high
    values = values.clip(low, high)
    if column.is_log:
        low, high, values = np.log(low), np.log(high), np.log(values)
    share = ((values - low) / (high - low)).fillna(0.5)
    return (LEVELS * share).round().to_numpy(np.uint8)[:, None]


def name_of(file: Path) -> str:
    """Return the name of a data set for a file: `my_patients` for `My patients.csv`.

    What is no name, no text in YAML, or another data set's name gets `table_` before it: `7`, `on`, `mnist`.
    """
    name = re.sub("[^a-z0-9]+", "_", file.name.partition(".")[0].lower()).strip("_")
    while (not name[:1].isalpha() or yaml.safe_load(name) != name
           or not isinstance(DATASETS.get(name), TableSpec | None)):
        name = f"table_{name}".rstrip("_")
    return name


def proposal(file: Path, label: str, folder: Path, command: str) -> str:
    """Return a declaration of a table (`pipeline.trials.table`) for a folder, to be confirmed: it is read from records.

    Columns of numbers get the range of their records, columns of few different texts these as values. `command` stands
    in its first line.
    """
    rows = _rows(file, TableSpec(1, 1, (1, 1, 1), 2, (0.5,), (0.5,), label=label))
    if (empty := rows[label] == "").any():
        raise DataError(f"{file}, line {empty.idxmax()}, column {label!r}: must have a class, got none; give it "
                        "one, or remove the record")
    n, n_test = len(rows), round(TEST_SHARE * len(rows))
    lines = [f"# By `{command}`: ranges, values and classes were READ FROM THE RECORDS, and no epsilon covers them.",
             "# Put in what is public without the records; then say `confirmed: true`, before which no sweep begins.",
             f"dataset: {name_of(file)}", f"data_file: {_yaml(os.path.relpath(file, folder))}",
             f"label: {_yaml(label)}",
             f"classes: {_yaml(sorted(set(rows[label])))}  # read from the records", "columns:"]
    for name in rows.columns.drop(label):
        there = rows[name][~rows[name].str.lower().isin(MISSING)]
        values, numbers = sorted(set(there)), pd.to_numeric(there, errors="coerce")
        finite = numbers[np.isfinite(numbers)]
        if numbers.notna().all() and finite.nunique() > 2:
            lines.append(f"  {_yaml(name)}: {{range: [{float(finite.min())!r}, {float(finite.max())!r}]}}"
                         "  # read from the records")
        elif 1 < len(values) <= MOST_CATEGORIES:
            lines.append(f"  {_yaml(name)}: {{values: {_yaml(values)}}}  # read from the records")
        else:
            lines.append(f"  # {_yaml(name)} is left out: it has {len(values)} different texts")
    return "\n".join([*lines, f"records: {{train: {n - n_test}, test: {n_test}}}",
                      f"test: {{share: {TEST_SHARE}, seed: 0}}  # drawn by a public seed", "confirmed: false", ""])


def _yaml(value: object) -> str:
    """Return a text, or a list of texts, as one line of YAML, in quotes."""
    return json.dumps(value, ensure_ascii=False)
