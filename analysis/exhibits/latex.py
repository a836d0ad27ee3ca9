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
            NEEDS, rf"% \caption{{{escape(caption)}}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header,
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
