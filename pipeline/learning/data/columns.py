"""What a column of a table looks like, guessed from its cells, and why it may be no input: the rules of a proposal."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np

from pipeline.learning.data.numbers import STYLES, Style
from pipeline.learning.data.table_reader import is_missing
from pipeline.learning.data.table_rows import TableRows

MOST_CATEGORIES = 20  # of a column with values
MOST_CODES = 10  # whole numbers that count up from 0 or 1, and so may be codes
FEW = 10  # records, from which on it says something that all cells differ
NEARLY_ALL = 0.9
NAMED = ("none", "na")  # texts that mean a missing cell, or a category
ANSWERS = {Decimal(text) for text in ("-99", "-9", "-8", "-1", "7", "8", "9", "77", "88", "98", "99", "999")}  # of none
ROWS = re.compile(r"x|id|index|idx|nr|no|#|obs|level_\d+|row.*|lfd.*", re.IGNORECASE)
UNNAMED = re.compile(r"(unnamed: ?\d+.*)?", re.IGNORECASE)
IDENTIFIER = {"id", "ids", "key", "uuid", "guid", "mrn", "ssn", "nr", "no", "number", "identifier", "account",
              *(f"{what}{kind}" for what in ("u", "p", "s", "pat", "patient", "user", "person", "case", "customer",
                                             "subject", "record", "client", "member") for kind in ("id", "nr", "no"))}
POSTCODE = {"zip", "zipcode", "postcode", "postal", "postleitzahl", "plz", "cap", "cp", "cep", "pincode", "postnummer"}
CODE = {"code", "type", "kind", "class", "category", "group", "grade", "level", "status", "site", "region", "id", "typ"}
SEVERAL = "; epsilon protects one record: who has several is protected less, and may be in both parts of the split"
SIGNS = re.compile(r"^([^\w\s+.,-]{1,2}|[A-Z]{3}(?=\W)) ?| ?[^\d.,]{1,6}$")  # before and behind a number
DATES = re.compile(
    r"(\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d\d)|\d{1,2}[-. ]?[^\W\d]{3,9}[-., ]+\d{2,4}"
    r"|[^\W\d]{3,9}\.? \d{1,2},? \d{4}|(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01]))([T ]\d{1,2}:\d\d.*)?"
    r"|\d{1,2}:\d\d(:\d\d.*)?")


@dataclass(frozen=True)
class SeenColumn:
    """What the rules see of a column."""

    name: str
    cells: Sequence[str]
    style: Style
    rows: TableRows

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


def _missing(column: SeenColumn) -> str:
    n = len(column.cells) - len(column.there)
    return f"{n} of {len(column.cells)} cells are missing" if 2 * n > len(column.cells) else ""


def _constant(column: SeenColumn) -> str:
    return "it has one value alone" if len(column.values) == 1 else ""


def _row_number(column: SeenColumn) -> str:
    if not column.is_whole:
        return ""
    numbers, differ = column.numbers, len(column.values) == len(column.numbers) > 1
    steps = {later > number for number, later in itertools.pairwise(numbers)}
    is_dense = max(numbers) - min(numbers) < 2 * len(numbers)
    looks = differ and len(numbers) >= FEW and (len(steps) == 1 or is_dense)
    if UNNAMED.fullmatch(column.name) or looks or (differ and ROWS.fullmatch(column.name)):
        return "row numbers or an identifier, which may tell the class of every record in a table that is sorted"
    return ""


def _date(column: SeenColumn) -> str:
    is_date = sum(bool(DATES.fullmatch(text)) for text in column.there) >= NEARLY_ALL * len(column.there)
    return "dates or times; a number, such as years since a public day, can be declared" if is_date else ""


def _postcode(column: SeenColumn) -> str:
    if len(column.values) <= MOST_CATEGORIES or not (column.has_zeros or column.words & POSTCODE):
        return ""
    return "postcodes or other codes, no amounts; a column of their first digits can be declared by its values"


def _identifier(column: SeenColumn) -> str:
    n, n_there = len(column.values), len(column.there)
    is_named, differ = bool(column.words & IDENTIFIER), n_there >= FEW and n > NEARLY_ALL * n_there
    if (column.numbers and not column.is_whole) or _mixed(column):
        return ""
    is_long = len({number.adjusted() for number in column.numbers if number > 10**6}) == 1
    is_like_one = not column.numbers or is_named or (is_long and min(column.numbers) > 10**6)
    if (differ and is_like_one) or (is_named and n > max(MOST_CATEGORIES, 0.3 * n_there)):
        what = "an identifier" if column.numbers else "an identifier or free text"
        several = SEVERAL if is_named and n < n_there else ""
        return f"{what}: {n} different cells in {n_there} records{several}"
    return ""


def _mixed(column: SeenColumn) -> str:
    if column.numbers or len(column.values) <= MOST_CATEGORIES:
        return ""
    stripped = [SIGNS.sub("", text) for text in column.there]
    if 2 * max(sum(style.read(text) is not None for text in stripped) for style in STYLES) < len(stripped):
        return ""
    texts = {text for text in column.there if column.style.read(text) is None}
    wrong = [place for place, text in enumerate(column.cells) if text in texts]
    return (f"{len(wrong)} of {len(column.cells)} cells are no plain numbers, the first in "
            f"{column.rows.where(wrong[0])}; without words, signs and units a range can be declared")


def _texts(column: SeenColumn) -> str:
    if column.numbers or len(column.values) <= MOST_CATEGORIES:
        return ""
    kind = "free text: " if np.mean([len(str(text).split()) for text in column.values]) > 2 else ""
    return f"{kind}it has {len(column.values)} different texts, more than {MOST_CATEGORIES}"


RULES: tuple[Callable[[SeenColumn], str], ...] = (
    _missing, _constant, _date, _row_number, _postcode, _identifier, _mixed, _texts)


def no_input(column: SeenColumn) -> str:
    """Return why a column is left out: the first rule that holds; empty if it is an input."""
    return next((reason for rule in RULES if (reason := rule(column))), "")


def no_class(column: SeenColumn) -> str:
    """Return why a column is no label; empty if its values are classes."""
    n, n_records = len(column.values), len(column.cells)
    if n < 2:
        return f"must have at least two classes, has {n}"
    if column.is_whole and max(column.numbers) - min(column.numbers) == n - 1 and n * FEW <= n_records:
        return ""  # numbers of classes, each of many records
    if reason := _date(column) or _row_number(column) or _identifier(column):
        return f"must be a class, looks like {reason}"
    if column.numbers and (n > MOST_CATEGORIES or (not column.is_whole and 2 * n > max(FEW, n_records))):
        return (f"must be a class, has {n} different numbers; put them into bins, such as low and high, by public "
                "bounds, in a column of its own")
    return ""
