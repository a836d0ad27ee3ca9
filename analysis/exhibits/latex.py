r"""Tables as LaTeX: what a paper sets with \input and the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from analysis.exhibits.table import Table

NEEDS = r"% \usepackage{booktabs}"
# Characters that LaTeX reads otherwise, or that pdflatex has no glyph for; all others stay as they are.
CHARACTERS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "“": "``",
              "”": "''", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\u00a0": "~",
              **{character: f"\\{character}" for character in "&%$#_{}"},
              **{symbol: f"${name}$" for symbol, name in {
                  "σ": r"\sigma", "ε": r"\varepsilon", "δ": r"\delta", "τ": r"\tau", "±": r"\pm", "≤": r"\leq",
                  "≥": r"\geq", "×": r"\times", "→": r"\to", "−": "-", "∞": r"\infty"}.items()}}
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"


def to_latex(parts: Iterable[str | Table], name: str) -> str:
    """A `table` for every table of an exhibit, captioned by the text before it; empty without one.

    Args:
        parts: captions and tables, in their order.
        name: of the exhibit: labels are `tab:<name>`, `tab:<name>-2` and so on.
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
    r"""Text for LaTeX: special characters escaped, `code` in typewriter, intervals and signed numbers in math mode."""
    parts = text.split("`")
    return "".join(rf"\texttt{{{_plain(part)}}}" if odd % 2 else _numbers(_plain(part))
                   for odd, part in enumerate(parts))


def _plain(text: str) -> str:
    return "".join(CHARACTERS.get(character, character) for character in text)


def _numbers(text: str) -> str:
    r"""`$84.20 \pm 0.31$` and `$\sigma = 0.05$` as one formula, and the sign of a number as a minus, not a hyphen."""
    text = text.replace("$-$", "-")
    text = re.sub(rf"(-?{NUMBER}) \$\\pm\$ ({NUMBER})", r"$\1 \\pm \2$", text)
    text = re.sub(rf"\$(\\[a-z]+)\$ (?:(=)|\$(\\leq)\$) ({NUMBER})(?![\w.])", _relation, text)
    return re.sub(rf"(?<![\w.,$-])([-+])(?={NUMBER}(?!\w))", r"$\1$", text)


def _relation(match: re.Match[str]) -> str:
    r"""`$\sigma = 0.05$`: symbol, sign and number as one formula."""
    symbol, equal, leq, number = match.groups()
    return f"${symbol} {equal or leq} {number}$"


def _float(table: Table, caption: str, label: str) -> str:
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    header, *rows = (" & ".join(map(escape, row)) + r" \\"
                     for row in (table.header, *([cell.text for cell in row] for row in table.rows)))
    return "\n".join([r"\begin{table}", r"\centering", rf"\caption{{{escape(caption)}}}", rf"\label{{{label}}}",
                      rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows, r"\bottomrule",
                      r"\end{tabular}", r"\end{table}"])
