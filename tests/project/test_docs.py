"""Pages of docs with programs: their python blocks run, print what the page says, and the
files that they name exist."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("privacy", "extending", "networks")
PAGES = {name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}
BLOCKS = {name: re.findall(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```$)?", page, re.DOTALL | re.MULTILINE)
          for name, page in PAGES.items()}


def printed(code):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "block", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize(("page", "least"), [("privacy", 6), ("extending", 6)])
def test_every_python_block_says_what_it_prints(page, least):
    assert len(BLOCKS[page]) == PAGES[page].count("```python") >= least
    assert all(expected for _, expected in BLOCKS[page])


@pytest.mark.slow
@pytest.mark.parametrize(("code", "expected"), [
    pytest.param(*block, id=f"{page}{i}") for page in PAGES for i, block in enumerate(BLOCKS[page], start=1)])
def test_python_blocks_print_what_the_page_says(code, expected, extensions):
    assert printed(code) == expected
