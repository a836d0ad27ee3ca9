r"""Tables of an exhibit: for a page that sorts them, as Markdown, and as LaTeX for \input with the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analysis.labels import NO_VALUE

PACKAGE = r"% \usepackage{booktabs}"
# Characters with a special meaning in LaTeX, or without a glyph in pdflatex; all others are unchanged.
CHARACTERS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "“": "``",
              "”": "''", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\u00a0": "~",
              **{character: f"\\{character}" for character in "&%$#_{}"},
              **{symbol: f"${name}$" for symbol, name in {
                  "σ": r"\sigma", "ε": r"\varepsilon", "δ": r"\delta", "τ": r"\tau", "±": r"\pm", "≤": r"\leq",
                  "≥": r"\geq", "×": r"\times", "→": r"\to", "−": "-", "∞": r"\infty"}.items()}}
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"


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
    def of(cls, header: Sequence[str], rows: Iterable[Sequence[str]],
           text_columns: Collection[int] = (0,)) -> Table:
        """Make a table of texts. `text_columns` are the indices of columns without numbers."""
        numeric = tuple(index not in text_columns for index in range(len(header)))
        return cls(tuple(header), tuple(tuple(map(Cell, row)) for row in rows), numeric)

    @property
    def markdown(self) -> str:
        """The table in Markdown: header, a rule that aligns numbers to the right, and rows."""
        rule = ["---:" if is_numeric else "---" for is_numeric in self.numeric]
        rows = [self.header, rule, *([cell.text for cell in row] for row in self.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def crossed(names: Iterable[str], columns: Iterable[str], cells: Mapping[tuple[str, str], str]) -> Table:
    """Return the table of cells by (name of a row, column), with a dash for each that is missing."""
    columns = list(columns)
    rows = [[name, *(cells.get((name, column), NO_VALUE) for column in columns)] for name in dict.fromkeys(names)]
    return Table.of(["", *columns], rows)


def markdown(*parts: str | Table) -> str:
    """Return paragraphs and tables as Markdown, in order, separated by blank lines."""
    return "\n\n".join(part if isinstance(part, str) else part.markdown for part in parts) + "\n"


def to_latex(parts: Iterable[str | Table], name: str) -> dict[str, str]:
    """Return a file for every table: `<name>.tex`, `<name>-2.tex`, ..., each a `tabular` for a float of the user.

    The preceding text, as a caption, stands in a comment.
    """
    files: dict[str, str] = {}
    caption = ""
    for part in parts:
        if isinstance(part, str):
            caption = part
            continue
        columns = "".join("r" if numeric else "l" for numeric in part.numeric)
        text_rows = [part.header, *([cell.text for cell in row] for row in part.rows)]
        header, *rows = (" & ".join(map(escape, row)) + r" \\" for row in text_rows)
        number = f"-{len(files) + 1}" if files else ""
        files[f"{name}{number}.tex"] = "\n".join([
            PACKAGE, rf"% \caption{{{escape(caption)}}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header,
            r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""])
    return files


def escape(text: str) -> str:
    r"""Return text for LaTeX: escaped characters, `code` in typewriter, intervals and signed numbers in math mode."""
    escaped = []
    for index, part in enumerate(text.split("`")):
        plain = "".join(CHARACTERS.get(character, character) for character in part)
        is_code = index % 2 == 1  # between two backquotes
        escaped.append(rf"\texttt{{{plain}}}" if is_code else _numbers(plain))
    return "".join(escaped)


def _numbers(text: str) -> str:
    r"""Return escaped LaTeX text with `84.20 ± 0.31` and `σ = 0.05` as one formula each, and signs in math mode."""
    text = text.replace("$-$", "-")  # minus signs, which `escape` wrote: one form of the sign is enough below
    text = re.sub(rf"(-?{NUMBER}) \$\\pm\$ ({NUMBER})", r"$\1 \\pm \2$", text)  # mean and half width
    text = re.sub(r"\$\\tau\$\\_([a-z])", r"$\\tau_\1$", text)  # an index
    text = re.sub(rf"\$(\\[a-z]+(?:_[a-z])?)\$ (?:(=)|\$(\\leq)\$) ({NUMBER})(?![\w.])",
                  lambda match: f"${match[1]} {match[2] or match[3]} {match[4]}$", text)  # symbol = number
    return re.sub(rf"(?<![\w.,$-])([-+])(?={NUMBER}(?!\w))", r"$\1$", text)  # signs of other numbers
