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

    Args:
        parts: captions and tables, in order.
        name: name of the exhibit: labels are `tab:<name>`, `tab:<name>-2` and so on.
    """
    found: list[str] = []
    caption = ""
    for part in parts:
        if isinstance(part, str):
            caption = part
        else:
            found.append(_float(part, caption, f"tab:{name}" if not found else f"tab:{name}-{len(found) + 1}"))
    return "\n".join([NEEDS, *found]) + "\n" if found else ""


def escape(text: str) -> str:
    r"""Return text for LaTeX: escaped characters, `code` in typewriter, intervals and signed numbers in math mode."""
    parts = text.split("`")
    return "".join(rf"\texttt{{{_plain(part)}}}" if odd % 2 else _numbers(_plain(part))
                   for odd, part in enumerate(parts))


def _plain(text: str) -> str:
    return "".join(CHARACTERS.get(character, character) for character in text)


def _numbers(text: str) -> str:
    r"""Make one formula of `$84.20 \pm 0.31$` and of `$\sigma = 0.05$`, and a minus of a number's hyphen."""
    text = text.replace("$-$", "-")
    text = re.sub(rf"(-?{NUMBER}) \$\\pm\$ ({NUMBER})", r"$\1 \\pm \2$", text)
    text = re.sub(rf"\$(\\[a-z]+)\$ (?:(=)|\$(\\leq)\$) ({NUMBER})(?![\w.])", _relation, text)
    return re.sub(rf"(?<![\w.,$-])([-+])(?={NUMBER}(?!\w))", r"$\1$", text)


def _relation(match: re.Match[str]) -> str:
    r"""Return symbol, sign and number as one formula: `$\sigma = 0.05$`."""
    symbol, equal, leq, number = match.groups()
    return f"${symbol} {equal or leq} {number}$"


def _float(table: Table, caption: str, label: str) -> str:
    """Return a LaTeX `table` environment: centred caption and label, then the cells between booktabs rules."""
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    header, *rows = (" & ".join(map(escape, row)) + r" \\"
                     for row in (table.header, *([cell.text for cell in row] for row in table.rows)))
    return "\n".join([r"\begin{table}", r"\centering", rf"\caption{{{escape(caption)}}}", rf"\label{{{label}}}",
                      rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows, r"\bottomrule",
                      r"\end{tabular}", r"\end{table}"])
