"""A proposed declaration of a table, read from its records: each guess is marked as one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import yaml

from pipeline.experiment.yaml_text import quoted
from pipeline.learning.data.columns import MOST_CATEGORIES, NAMED, POSTCODE, SeenColumn, no_class, no_input
from pipeline.learning.data.download import DataError
from pipeline.learning.data.numbers import Style
from pipeline.learning.data.recognised import Recognised, recognise
from pipeline.learning.data.table_reader import PLAIN, is_missing
from pipeline.trials.datasets import DATASETS
from pipeline.trials.declared_table import TableSpec

TEST_SHARE = 0.2
READ = "# read from the records"


@dataclass(frozen=True)
class Proposal:
    """A declaration, and the columns that it leaves out, with the reason."""

    text: str
    left_out: dict[str, str]


def name_of(file: Path) -> str:
    """Return the name of a data set for a file: `my_patients` for `My patients.csv`.

    What is no name, no text in YAML, or another data set's name gets `table_` before it: `7`, `on`, `mnist`.
    """
    name = re.sub("[^a-z0-9]+", "_", file.name.partition(".")[0].lower()).strip("_")
    while (not name[:1].isalpha() or yaml.safe_load(name) != name
           or (name in DATASETS and not isinstance(DATASETS[name].spec, TableSpec))):
        name = f"table_{name}".rstrip("_")
    return name


def proposal(file: Path, label: str, folder: Path, command: str) -> Proposal:
    """Return a declaration of a table for a folder, to be confirmed; `command` stands in its first line.

    Raises:
        DataError: for a file that is no table, or a label that is no class.
    """
    found = recognise(file)
    rows = found.rows
    if all(PLAIN.read(name) is not None for name in rows.cells):
        raise DataError(f"{file}: must have a header with the names of the columns, its first row has numbers")
    rows.require([label])
    n, n_test = len(rows.lines), round(TEST_SHARE * len(rows.lines))
    if not n_test:
        raise DataError(f"{file}: must have three records or more, as a fifth of them are test records, has {n}")
    columns = [SeenColumn(name, list(cells), found.style_in(name), rows) for name, cells in rows.cells.items()]
    target = next(column for column in columns if column.name == label)
    _check_label(target)
    inputs = [column for column in columns if column is not target]
    left_out = {column.name: reason for column in inputs if (reason := no_input(column))}
    if len(left_out) == len(inputs):
        reasons = ", ".join(f"{name!r} ({reason})" for name, reason in left_out.items()) or "none"
        raise DataError(f"{file}: must have a column that can be an input, beside {label!r}; left out are {reasons}")
    lines = [f"# By `{command}`: ranges, values and classes were READ FROM THE RECORDS, and no epsilon covers them.",
             "# Put in what is public without the records; then say `confirmed: true`, before which no sweep begins.",
             f"dataset: {name_of(file)}", f"data_file: {_yaml(os.path.relpath(file, folder))}", *_format(found),
             f"label: {_yaml(label)}", f"classes: {_listed(target)}  {READ}", "columns:",
             *(f"  # {_yaml(column.name)} is left out (guessed): {left_out[column.name]}" if column.name in left_out
               else f"  {_yaml(column.name)}: {_declared(column, target)}" for column in inputs),
             f"records: {{train: {n - n_test}, test: {n_test}}}",
             f"test: {{share: {TEST_SHARE}, seed: 0}}  # drawn by a public seed", "confirmed: false", ""]
    return Proposal("\n".join(lines), left_out)


def _check_label(target: SeenColumn) -> None:
    """Refuse a record without a class, and a column that is no class."""
    file = target.rows.file
    for place, cell in enumerate(target.cells):
        if is_missing(cell):
            raise DataError(f"{file}, {target.rows.where(place)}, column {target.name!r}: must have a class, got "
                            f"{cell or 'none'}; give it one, or remove the record; if this is the name of a class, "
                            "declare the table by hand (docs/own_data.md)")
    if reason := no_class(target):
        raise DataError(f"{file}, column {target.name!r}: {reason}")


def _format(found: Recognised) -> list[str]:
    """Return the lines that say how the file is written, where it is otherwise than by default."""
    style, lines = found.style, []
    if found.separator != ",":
        lines.append(f"separator: {_yaml(found.separator)}  # guessed: it cuts all rows into as many cells")
    if style.decimal != ".":
        lines.append(f"decimal: {_yaml(style.decimal)}  # guessed: numbers look like 1,5")
    if style.thousands:
        use = f"; if it is 12.345, declare {Style(style.thousands, style.decimal)}" if style.thousands in ",." else ""
        lines.append(f"thousands: {_yaml(style.thousands)}  # guessed: 12{style.thousands}345 is 12345{use}")
    if found.encoding != "utf-8":
        lines.append(f"encoding: {found.encoding}  # guessed: the file is not in utf-8")
    return lines


def _declared(column: SeenColumn, target: SeenColumn) -> str:
    """Return a column's rules, and in a comment what they were read from and what is guessed."""
    is_amount = len(column.values) > 2 and bool(column.numbers) and not column.is_code
    if is_amount:
        low, high = (_yaml(number) for number in (column.values[0], column.values[-1]))
        rules, guesses = f"{{range: [{low}, {high}]}}", list(_amount(column))
    else:
        rules, guesses = f"{{values: {_listed(column)}}}", list(_category(column))
    tells_class = len(set(zip(column.cells, target.cells, strict=True))) == len(set(column.cells))
    if tells_class and 2 * len(column.values) < len(column.cells):
        guesses.append("it tells the class of every record alone: is it known before the class is?")
    return f"{rules}  {READ}" + "".join(f"; guessed: {guess}" for guess in guesses)


def _amount(column: SeenColumn) -> Iterator[str]:
    """Yield what is guessed of a column with a range."""
    if PLAIN.read(column.name) is not None:
        yield "its name is a number: has the table a first line with names?"
    if column.is_whole and len(column.values) <= MOST_CATEGORIES:
        yield "an amount; if these are codes, declare values: [...]"
    if other := column.style.other(set(column.there)):
        yield f"{column.style.decimal!r} marks decimals; if it marks thousands, declare {other}"
    if column.numbers in (sorted(column.numbers), sorted(column.numbers, reverse=True)):
        yield "an amount; it is sorted in the table, as numbers of rows or groups are"


def _category(column: SeenColumn) -> Iterator[str]:
    """Yield what is guessed of a column with values."""
    if column.words & POSTCODE:
        yield "postcodes, which tell where a person lives: leave them out, unless they are meant as an input"
    if column.numbers and len(column.values) > 2:
        yield "codes; if they count or measure something, declare a range: [low, high]"
    if len({str(value).casefold() for value in column.values}) < len(column.values):
        yield "texts that differ in upper and lower case alone are different categories"
    if marks := [str(text) for text in column.values if str(text).lower() in NAMED]:
        yield f"{' and '.join(marks)} may mean missing: remove what does"


def _listed(column: SeenColumn) -> str:
    """Return the values of a column as one line of YAML."""
    return f"[{', '.join(map(_yaml, column.values))}]"


def _yaml(value: str | Decimal) -> str:
    """Return a number as it is, and a text in quotes on one line."""
    if isinstance(value, str):
        return quoted(value)
    if value == value.to_integral_value() and value.adjusted() < 40:
        return str(int(value))
    return f"{value.normalize():f}" if abs(value.adjusted()) < 15 else repr(float(value))
