"""Numbers as a table writes them: with a mark for decimals, and perhaps one between groups of three digits."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

SPACES, APOSTROPHES = "\u00a0\u202f\u2009", "\u2019"  # what spreadsheets write for a space, and for an apostrophe
ALIKE = str.maketrans(SPACES + APOSTROPHES, " " * len(SPACES) + "'" * len(APOSTROPHES))
GROUPS = "[1-9][0-9]{{0,2}}(?:{}[0-9]{{3}})+"


@dataclass(frozen=True)
class Style:
    """The marks in a table's numbers: of decimals, and between groups of three digits (empty for none)."""

    decimal: str = "."
    thousands: str = ""

    @cached_property
    def _form(self) -> re.Pattern[str]:
        mark, whole = re.escape(self.decimal), "[0-9]+"
        if self.thousands:
            whole = f"(?:{GROUPS.format(re.escape(self.thousands))}|{whole})"
        return re.compile(f"[-+]?(?:{whole}(?:{mark}[0-9]*)?|{mark}[0-9]+)(?:[eE][-+]?[0-9]{{1,3}})?")

    def read(self, text: str) -> Decimal | None:
        """Return the number that a text is, exactly; None for any other text, as for inf, 1e999 or 1,23,456."""
        text = text.replace("\u2212", "-")  # the minus that typesetters write
        if self.thousands:
            text = text.translate(ALIKE)
        if not self._form.fullmatch(text):
            return None
        number = Decimal(text.replace(self.thousands, "").replace(self.decimal, "."))
        return number if math.isfinite(float(number)) else None

    def other(self, texts: Collection[str]) -> Style | None:
        """Return the style in which the mark of decimals is one of thousands, if all of these texts allow that too."""
        if self.thousands or any(re.fullmatch("[-+]?[0-9]{4,}", text) for text in texts):
            return None
        marked = [text for text in texts if self.decimal in text]
        groups = re.compile("[-+]?" + GROUPS.format(re.escape(self.decimal)))
        is_open = marked and all(groups.fullmatch(text) for text in marked)
        return Style("." if self.decimal == "," else ",", self.decimal) if is_open else None

    def __str__(self) -> str:
        """Return the entries of a declaration that name this style."""
        marks = {"decimal": self.decimal, "thousands": self.thousands}
        return " and ".join(f"{entry}: {mark!r}" for entry, mark in marks.items() if mark)


# A style stands before another that reads the same texts, if tables are more often meant so.
STYLES = (Style("."), Style(".", ","), Style(","), Style(",", "."), Style(".", " "), Style(",", " "), Style(".", "'"),
          Style(",", "'"))


def style_of(texts: Collection[str]) -> Style | None:
    """Return the first style that reads all of these texts as numbers; None if there is none."""
    return next((style for style in STYLES if all(style.read(text) is not None for text in texts)), None)
