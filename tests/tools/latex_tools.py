"""A strict reader of the LaTeX that exhibits write: what pdflatex would refuse, and tables whose rows do not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping

KNOWN = {r"\texttt", r"\textbackslash", r"\textasciitilde", r"\textasciicircum", r"\textless", r"\textgreater",
         r"\textbar"}
MATH = {r"\sigma", r"\varepsilon", r"\delta", r"\tau", r"\pm", r"\leq", r"\geq", r"\times", r"\to", r"\infty"}


def check(text: str) -> None:
    """A file is one well-formed `tabular`, after its caption in a comment.

    Raises:
        AssertionError: for environments, braces or formulas that are not closed, special characters that are not
            escaped, commands that need another package, characters beyond ASCII, or rows with a cell too many or few.
    """
    assert text.isascii(), sorted(set(re.findall(r"[^\x00-\x7f]", text)))
    caption, columns, body = re.fullmatch(
        r"% \\usepackage\{booktabs\}\n% \\caption(\{.+\})\n\\begin\{tabular\}\{([lr]+)\}\n(.*)\\end\{tabular\}\n",
        text, re.DOTALL).groups()
    top, header, mid, *rows, bottom = body.splitlines()
    assert (top, mid, bottom) == (r"\toprule", r"\midrule", r"\bottomrule") and rows
    for row in (header, *rows):
        assert row.endswith(r" \\"), row
        cells = re.split(r"(?<!\\)&", row.removesuffix(r" \\"))
        assert len(cells) == len(columns), row
        for cell in cells:
            check_text(cell)
    check_text(caption)


def check_all(files: Mapping[str, bytes]) -> int:
    """How many tables the files of an exhibit have, after each was found to be well formed."""
    tables = [content.decode() for name, content in files.items() if name.endswith(".tex")]
    for table in tables:
        check(table)
    return len(tables)


def check_text(text: str) -> None:
    """Text is set as it is meant: braces and formulas closed, nothing unescaped."""
    bare = re.sub(r"\\[&%$#_{}]", "", text)  # without what is escaped
    depth = 0
    for brace in re.findall(r"[{}]", bare):
        depth += 1 if brace == "{" else -1
        assert depth >= 0, text
    assert depth == 0, text
    outside, inside = bare.split("$")[::2], bare.split("$")[1::2]
    assert len(outside) == len(inside) + 1, text
    assert not any(re.search(r"[&%#_^~<>|\"]", part.replace("~", "")) for part in outside), text
    assert all(set(re.findall(r"\\[A-Za-z]+", part)) <= KNOWN for part in outside), text
    assert all(part.strip() and set(re.findall(r"\\[A-Za-z]+", part)) <= MATH for part in inside), text
