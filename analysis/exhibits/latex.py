r"""Tables as LaTeX, for \input with the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from analysis.exhibits.table import Table

NEEDS = r"% \usepackage{booktabs}"
# Characters with a special meaning in LaTeX, or without a glyph in pdflatex; all others are unchanged.
CHARACTERS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "“": "``",
              "”": "''", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\u00a0": "~",
              **{character: f"\\{character}" for character in "&%$#_{}"},
              **{symbol: f"${name}$" for symbol, name in {
                  "σ": r"\sigma", "ε": r"\varepsilon", "δ": r"\delta", "τ": r"\tau", "±": r"\pm", "≤": r"\leq",
                  "≥": r"\geq", "×": r"\times", "→": r"\to", "−": "-", "∞": r"\infty"}.items()}}
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"


def to_latex(parts: Iterable[str | Table], name: str) -> str:
    """Return a `table` environment for every table, with the preceding text as its caption; empty without tables.

    Labels are `tab:<name>`, `tab:<name>-2` and so on.
    """
    environments: list[str] = []
    caption = ""
    for part in parts:
        if isinstance(part, str):
            caption = part
            continue
        label = f"tab:{name}-{len(environments) + 1}" if environments else f"tab:{name}"
        environments.append(_float(part, caption, label))
    if not environments:
        return ""
    return "\n".join([NEEDS, *environments]) + "\n"


def escape(text: str) -> str:
    r"""Return text for LaTeX: escaped characters, `code` in typewriter, intervals and signed numbers in math mode."""
    escaped = []
    for index, part in enumerate(text.split("`")):
        is_code = index % 2 == 1  # between two backquotes
        escaped.append(rf"\texttt{{{_plain(part)}}}" if is_code else _numbers(_plain(part)))
    return "".join(escaped)


def _plain(text: str) -> str:
    """Return text with every special character escaped."""
    return "".join(CHARACTERS.get(character, character) for character in text)


def _numbers(text: str) -> str:
    r"""Return escaped LaTeX text with `84.20 ± 0.31` and `σ = 0.05` as one formula each, and signs in math mode."""
    text = text.replace("$-$", "-")  # minus signs, which `_plain` escaped: one form of the sign is enough below
    text = re.sub(rf"(-?{NUMBER}) \$\\pm\$ ({NUMBER})", r"$\1 \\pm \2$", text)  # mean and half width
    text = re.sub(rf"\$(\\[a-z]+)\$ (?:(=)|\$(\\leq)\$) ({NUMBER})(?![\w.])", _relation, text)  # symbol = number
    return re.sub(rf"(?<![\w.,$-])([-+])(?={NUMBER}(?!\w))", r"$\1$", text)  # signs of other numbers


def _relation(match: re.Match[str]) -> str:
    r"""Return symbol, sign and number as one formula: `$\sigma = 0.05$`."""
    symbol, equal, leq, number = match.groups()
    return f"${symbol} {equal or leq} {number}$"


def _float(table: Table, caption: str, label: str) -> str:
    """Return a LaTeX `table` environment: centred caption and label, then the cells between booktabs rules."""
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    text_rows = [table.header, *([cell.text for cell in row] for row in table.rows)]
    header, *rows = (" & ".join(map(escape, row)) + r" \\" for row in text_rows)
    return "\n".join([r"\begin{table}", r"\centering", rf"\caption{{{escape(caption)}}}", rf"\label{{{label}}}",
                      rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows, r"\bottomrule",
                      r"\end{tabular}", r"\end{table}"])
