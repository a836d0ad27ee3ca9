"""docs/privacy.md: its python blocks run, print what the page says, and its other references exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "privacy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```$)?", PAGE, re.DOTALL | re.MULTILINE)


def printed(code):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/privacy.md", "exec"), {})
    return out.getvalue()


def test_every_python_block_says_what_it_prints():
    assert len(BLOCKS) == PAGE.count("```python") >= 6
    assert all(expected for _, expected in BLOCKS)


@pytest.mark.parametrize(("code", "expected"), BLOCKS, ids=[f"block{i}" for i in range(1, len(BLOCKS) + 1)])
def test_python_blocks_print_what_the_page_says(code, expected):
    assert printed(code) == expected


def test_a_changed_number_is_noticed():
    code, expected = BLOCKS[0]
    assert "16.81" in expected and printed(code.replace("sigma=10.0", "sigma=9.0")) != expected


def test_local_files_that_the_page_names_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", PAGE)
    paths = re.findall(r"`?((?:pipeline|tests|docs)/[\w/]+\.py)", PAGE)
    assert "row_space.svg" in links and "docs/row_space.py" in paths
    for path in [DOCS / link for link in links] + [DOCS.parent / path for path in paths]:
        assert path.is_file(), path


def test_the_figure_is_small_and_its_text_is_text():
    figure = DOCS / "row_space.svg"
    assert figure.stat().st_size < 200 * 1024
    text = figure.read_text(encoding="utf-8")
    assert "<text" in text and "AUC" in text and "n = 256" in text
