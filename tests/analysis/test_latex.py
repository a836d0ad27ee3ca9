"""Tables as LaTeX: what is escaped, what is set as a formula, and that the files are what pdflatex takes."""

import shutil
import subprocess

import pytest
import results_text
from latex_tools import check_text

from analysis.exhibits.table import escape


@pytest.mark.parametrize(("text", "written"), [
    ("85.69 ± 0.26", r"$85.69 \pm 0.26$"), ("-0.024 ± 0.096", r"$-0.024 \pm 0.096$"), ("−0.34", "$-$0.34"),
    ("+7.17", "$+$7.17"), ("44.15 to 56.85", "44.15 to 56.85"), ("1.33 [0.00, 6.86]", "1.33 [0.00, 6.86]"),
    ("σ = 0.05", r"$\sigma = 0.05$"), ("ε ≤ 3", r"$\varepsilon \leq 3$"), ("δ = 1e-05", r"$\delta$ = 1e-05"),
    ("ε ≤ 3, ε ≤ 5", r"$\varepsilon \leq 3$, $\varepsilon \leq 5$"), ("test %", r"test \%"), ("–", "--"),
    ("5% of a_b & c", r"5\% of a\_b \& c"), ("bounding `a × b`", r"bounding \texttt{a $\times$ b}"),
    (r"a\b{c}~^$#", r"a\textbackslash{}b\{c\}\textasciitilde{}\textasciicircum{}\$\#"),
    ("BP → DFA", r"BP $\to$ DFA"), ("a<b>c|d", r"a\textless{}b\textgreater{}c\textbar{}d"),
    ("“claimed”", "``claimed''"), ("without-replacement 2021-22", "without-replacement 2021-22")])
def test_text_is_set_as_it_was_meant(text, written):
    assert escape(text) == written
    check_text(written)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_pdflatex_sets_a_table_of_every_exhibit_in_floats_of_the_user(tmp_path, extensions):
    floats = []
    for name, sweep in {name: sweep for sweep, name in results_text.everything()}.items():  # one of every kind
        for file, content in results_text.exhibit(sweep, name).files.items():
            if file.endswith(".tex"):
                (tmp_path / f"{sweep}-{file}").write_bytes(content)
                floats.append(rf"\begin{{table}}\caption{{A.}}\input{{{sweep}-{file}}}\end{{table}}\clearpage")
    (tmp_path / "a.tex").write_text("\n".join([r"\documentclass{article}", r"\usepackage{booktabs}",
                                               r"\begin{document}", *floats, r"\end{document}", ""]))
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
