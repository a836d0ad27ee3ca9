"""A proposed declaration of a table (`pipeline.trials.table`), read from its records: each guess is marked as one.

`RULES` has the reasons to leave a column out; the first that holds is said where the column would stand.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path

import numpy as np

from pipeline.learning.data.download import DataError
from pipeline.learning.data.numbers import STYLES, Style
from pipeline.learning.data.recognised import Recognised, recognise
from pipeline.learning.data.rows import Rows
from pipeline.learning.data.table import PLAIN, is_missing

TEST_SHARE = 0.2
MOST_CATEGORIES = 20  # of a column with values
MOST_CODES = 10  # whole numbers that count up from 0 or 1, and so may be codes
FEW = 10  # records, from which on it says something that all cells differ
NEARLY_ALL = 0.9
NAMED = ("none", "na")  # texts that mean a missing cell, or a category
ANSWERS = {Decimal(text) for text in ("-99", "-9", "-8", "-1", "7", "8", "9", "77", "88", "98", "99", "999")}  # of none
READ = "# read from the records"
ROWS = re.compile(r"x|id|index|idx|nr|no|#|obs|level_\d+|row.*|lfd.*", re.IGNORECASE)
UNNAMED = re.compile(r"(unnamed: ?\d+.*)?", re.IGNORECASE)
IDENTIFIER = {"id", "ids", "key", "uuid", "guid", "mrn", "ssn", "nr", "no", "number", "identifier", "account",
              *(f"{what}{kind}" for what in ("u", "p", "s", "pat", "patient", "user", "person", "case", "customer",
                                             "subject", "record", "client", "member") for kind in ("id", "nr", "no"))}
POSTCODE = {"zip", "zipcode", "postcode", "postal", "postleitzahl", "plz", "cap", "cp", "cep", "pincode", "postnummer"}
CODE = {"code", "type", "kind", "class", "category", "group", "grade", "level", "status", "site", "region", "id", "typ"}
SIGNS = re.compile(r"^([^\w\s+.,-]{1,2}|[A-Z]{3}(?=\W)) ?| ?[^\d.,]{1,6}$")  # before and behind a number
DATES = re.compile(
    r"(\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d\d)|\d{1,2}[-. ]?[^\W\d]{3,9}[-., ]+\d{2,4}"
    r"|[^\W\d]{3,9}\.? \d{1,2},? \d{4}|(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01]))([T ]\d{1,2}:\d\d.*)?"
    r"|\d{1,2}:\d\d(:\d\d.*)?")


@dataclass(frozen=True)
class Proposal:
    """A declaration, and the columns that it leaves out, with the reason."""

    text: str
    left_out: dict[str, str]


@dataclass(frozen=True)
class Column:
    """What the rules see of a column."""

    name: str
    cells: Sequence[str]
    style: Style
    rows: Rows

    @cached_property
    def there(self) -> list[str]:
        """Return the cells that are not missing; None and NA are categories in a column of texts."""
        there = [cell for cell in self.cells if not is_missing(cell)]
        if not there or all(self.style.read(cell) is not None for cell in set(there)):
            return there
        return [cell for cell in self.cells if not is_missing(cell) or cell.lower() in NAMED]

    @cached_property
    def numbers(self) -> list[Decimal]:
        """Return the cells that are there as numbers; none if one of them is a text, or a code with zeros before it."""
        found = {text: self.style.read(text) for text in set(self.there)}
        is_text = None in found.values() or self.has_zeros
        return [] if is_text else [number for text in self.there if (number := found[text]) is not None]

    @cached_property
    def has_zeros(self) -> bool:
        """Whether cells are codes of digits, with zeros at the beginning."""
        texts = set(self.there)
        return all(re.fullmatch("[0-9]+", text) for text in texts) and any(re.match("0[0-9]", text) for text in texts)

    @cached_property
    def values(self) -> list[Decimal] | list[str]:
        """Return the different cells that are there, sorted."""
        return sorted(set(self.numbers)) or sorted(set(self.there))

    @cached_property
    def words(self) -> set[str]:
        """Return the words of the name, in small letters."""
        return {word.lower() for word in re.findall("[A-Z]?[^\\W\\d_A-Z]+|[A-Z]+|#", self.name)}

    @property
    def is_whole(self) -> bool:
        """Whether all cells are whole numbers."""
        return bool(self.numbers) and all(number == number.to_integral_value() for number in set(self.numbers))

    @property
    def is_code(self) -> bool:
        """Whether whole numbers look like codes: by the name, or few that count up from 0 or 1."""
        if not self.is_whole or len(self.values) > MOST_CATEGORIES:
            return False
        core = sorted(set(self.numbers) - ANSWERS) or self.values
        counts_up = core[0] in (0, 1) and len(self.values) <= MOST_CODES and core[-1] - core[0] < len(self.values) + 1
        return bool(self.words & (CODE | POSTCODE)) or len(self.values) == 2 or counts_up


def _missing(column: Column) -> str:
    n = len(column.cells) - len(column.there)
    return f"{n} of {len(column.cells)} cells are missing" if 2 * n > len(column.cells) else ""


def _constant(column: Column) -> str:
    return "it has one value alone" if len(column.values) == 1 else ""


def _row_number(column: Column) -> str:
    if not column.is_whole:
        return ""
    numbers, differ = column.numbers, len(column.values) == len(column.numbers) > 1
    steps = {later > number for number, later in itertools.pairwise(numbers)}
    is_dense = max(numbers) - min(numbers) < 2 * len(numbers)
    looks = differ and len(numbers) >= FEW and (len(steps) == 1 or is_dense)
    if UNNAMED.fullmatch(column.name) or looks or (differ and ROWS.fullmatch(column.name)):
        return "row numbers or an identifier, which may tell the class of every record in a table that is sorted"
    return ""


def _date(column: Column) -> str:
    is_date = sum(bool(DATES.fullmatch(text)) for text in column.there) >= NEARLY_ALL * len(column.there)
    return "dates or times; a number, such as years since a public day, can be declared" if is_date else ""


def _postcode(column: Column) -> str:
    if len(column.values) <= MOST_CATEGORIES or not (column.has_zeros or column.words & POSTCODE):
        return ""
    return "postcodes or other codes, no amounts; a column of their first digits can be declared by its values"


def _identifier(column: Column) -> str:
    n, n_there = len(column.values), len(column.there)
    is_named, differ = bool(column.words & IDENTIFIER), n_there >= FEW and n > NEARLY_ALL * n_there
    if (column.numbers and not column.is_whole) or _mixed(column):
        return ""
    is_long = len({number.adjusted() for number in column.numbers if number > 10**6}) == 1
    is_like_one = not column.numbers or is_named or (is_long and min(column.numbers) > 10**6)
    if (differ and is_like_one) or (is_named and n > max(MOST_CATEGORIES, 0.3 * n_there)):
        what = "an identifier" if column.numbers else "an identifier or free text"
        return f"{what}: {n} different cells in {n_there} records"
    return ""


def _mixed(column: Column) -> str:
    if column.numbers or len(column.values) <= MOST_CATEGORIES:
        return ""
    stripped = [SIGNS.sub("", text) for text in column.there]
    if 2 * max(sum(style.read(text) is not None for text in stripped) for style in STYLES) < len(stripped):
        return ""
    texts = {text for text in column.there if column.style.read(text) is None}
    wrong = [place for place, text in enumerate(column.cells) if text in texts]
    return (f"{len(wrong)} of {len(column.cells)} cells are no plain numbers, the first in "
            f"{column.rows.where(wrong[0])}; without words, signs and units a range can be declared")


def _texts(column: Column) -> str:
    if column.numbers or len(column.values) <= MOST_CATEGORIES:
        return ""
    kind = "free text: " if np.mean([len(str(text).split()) for text in column.values]) > 2 else ""
    return f"{kind}it has {len(column.values)} different texts, more than {MOST_CATEGORIES}"


RULES: tuple[Callable[[Column], str], ...] = (
    _missing, _constant, _date, _row_number, _postcode, _identifier, _mixed, _texts)


def name_of(file: Path) -> str:
    """Return the name of a data set for a file: `my_patients` for `My patients.csv`."""
    name = re.sub("[^a-z0-9]+", "_", file.name.partition(".")[0].lower()).strip("_")
    return name if name[:1].isalpha() else f"table_{name}".rstrip("_")


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
    columns = [Column(name, list(cells), found.style_in(name), rows) for name, cells in rows.cells.items()]
    target = next(column for column in columns if column.name == label)
    _check_label(found, target)
    n, n_test = len(rows.lines), round(TEST_SHARE * len(rows.lines))
    lines = [f"# By `{command}`: ranges, values and classes were READ FROM THE RECORDS, and no epsilon covers them.",
             "# Put in what is public without the records; then say `confirmed: true`, before which no sweep begins.",
             f"dataset: {name_of(file)}", f"data_file: {_yaml(os.path.relpath(file, folder))}", *_format(found),
             f"label: {_yaml(label)}", f"classes: {_listed(target)}  {READ}", "columns:"]
    left_out = {}
    for column in columns:
        if column is target:
            continue
        if reason := next((reason for rule in RULES if (reason := rule(column))), ""):
            left_out[column.name] = reason
            lines.append(f"  # {_yaml(column.name)} is left out (guessed): {reason}")
        else:
            lines.append(f"  {_yaml(column.name)}: {_declared(column, target)}")
    return Proposal("\n".join([*lines, f"records: {{train: {n - n_test}, test: {n_test}}}",
                               f"test: {{share: {TEST_SHARE}, seed: 0}}  # drawn by a public seed", "confirmed: false",
                               ""]), left_out)


def _check_label(found: Recognised, target: Column) -> None:
    """Refuse a column that is no class: a cell without one, a single class, an amount, an identifier."""
    where = f"{found.rows.file}, column {target.name!r}"
    for place, cell in enumerate(target.cells):
        if is_missing(cell):
            at = f"{found.rows.file}, {found.rows.where(place)}, column {target.name!r}"
            raise DataError(f"{at}: must have a class, got {cell or 'none'}; give it one, or remove the record; if "
                            "this is the name of a class, declare the table by hand (docs/own_data.md)")
    n = len(target.values)
    if n < 2:
        raise DataError(f"{where}: must have at least two classes, has {n}")
    counts_up = (target.is_whole and max(target.numbers) - min(target.numbers) == n - 1
                 and n * FEW <= len(target.cells))
    if (reason := _date(target) or _row_number(target) or _identifier(target)) and not counts_up:
        raise DataError(f"{where}: must be a class, looks like {reason}")
    is_amount = n > MOST_CATEGORIES or (not target.is_whole and 2 * n > max(FEW, len(target.cells)))
    if target.numbers and is_amount and not counts_up:
        raise DataError(f"{where}: must be a class, has {n} different numbers; put them into bins, such as low and "
                        "high, by public bounds, in a column of its own")


def _format(found: Recognised) -> list[str]:
    """Return the lines that say how the file is written, where it is otherwise than by default."""
    style, lines = found.style, []
    if found.separator != ",":
        lines.append(f"separator: {_yaml(found.separator)}  # guessed: it cuts all rows into as many cells")
    if style.decimal != ".":
        lines.append(f"decimal: {_yaml(style.decimal)}  # guessed: numbers look like 1,5")
    if style.thousands:
        other = Style("." if style.decimal == "," else ",", style.decimal)
        if style.thousands in ",.":
            other = Style(style.thousands, style.decimal)
        lines.append(f"thousands: {_yaml(style.thousands)}  # guessed: 12{style.thousands}345 is 12345" + (
            f"; if it is 12.345, declare {other}" if style.thousands in ",." else ""))
    if found.encoding != "utf-8":
        lines.append(f"encoding: {found.encoding}  # guessed: the file is not in utf-8")
    return lines


def _declared(column: Column, target: Column) -> str:
    """Return a column's rules, and in a comment what they were read from and what is guessed."""
    guesses: list[str] = []
    if column.numbers and len(column.values) > 2 and not column.is_code:
        low, high = (_yaml(number) for number in (column.values[0], column.values[-1]))
        rules = f"{{range: [{low}, {high}]}}"
        if column.is_whole and len(column.values) <= MOST_CATEGORIES:
            guesses.append("an amount; if these are codes, declare values: [...]")
        if other := column.style.other(set(column.there)):
            guesses.append(f"{column.style.decimal!r} marks decimals; if it marks thousands, declare {other}")
        if list(column.numbers) in (sorted(column.numbers), sorted(column.numbers, reverse=True)):
            guesses.append("an amount; it is sorted in the table, as numbers of rows or groups are")
    else:
        rules = f"{{values: {_listed(column)}}}"
        if column.numbers and len(column.values) > 2:
            guesses.append("codes; if they count or measure something, declare a range: [low, high]")
        if marks := [text for text in column.values if str(text).lower() in NAMED]:
            guesses.append(f"{' and '.join(map(str, marks))} may mean missing: remove what does")
    if 2 * len(column.values) < len(column.cells) and _tells(column.cells, target.cells):
        guesses.append("it tells the class of every record alone: is it known before the class is?")
    return f"{rules}  {READ}" + "".join(f"; guessed: {guess}" for guess in guesses)


def _tells(cells: Collection[str], labels: Collection[str]) -> bool:
    """Whether records with equal cells have equal labels."""
    return len(set(zip(cells, labels, strict=True))) == len(set(cells))


def _listed(column: Column) -> str:
    """Return the values of a column as one line of YAML."""
    return f"[{', '.join(map(_yaml, column.values))}]"


def _yaml(value: str | Decimal) -> str:
    """Return a number as it is, and a text in quotes on one line."""
    if isinstance(value, Decimal):
        if value == value.to_integral_value() and value.adjusted() < 40:
            return str(int(value))
        return f"{value.normalize():f}" if abs(value.adjusted()) < 15 else repr(float(value))
    text = json.dumps(value, ensure_ascii=False)
    return "".join(mark if mark.isprintable() else mark.encode("ascii", "backslashreplace").decode() for mark in text)
