"""Pages of docs with programs: their python blocks run, print what the page says, and the
files that they name exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("privacy", "extending", "optics", "trainers")
PAGES = {name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}
GENERATED = ("settings.md", "commands.md", "reference.md")  # by docs/generated.py, on the site
BLOCKS = {name: re.findall(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```$)?", page, re.DOTALL | re.MULTILINE)
          for name, page in PAGES.items()}
# Extensions as this page has shown them: programs of users look so.
SHOWN = (Path(__file__).parents[1] / "data" / "extending.md").read_text(encoding="utf-8")
EARLIER = [block for block in re.findall(r"^```python\n(.*?)^```\n```text\n(.*?)^```$", SHOWN, re.DOTALL | re.MULTILINE)
           if block not in BLOCKS["extending"]]


def printed(code):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "block", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize(("page", "least"), [("privacy", 6), ("extending", 6), ("optics", 1)])
def test_every_python_block_says_what_it_prints(page, least):
    assert len(BLOCKS[page]) == PAGES[page].count("```python") >= least
    assert all(expected for _, expected in BLOCKS[page])


@pytest.mark.parametrize(("code", "expected"), [
    pytest.param(*block, id=f"{page}{i}") for page in PAGES for i, block in enumerate(BLOCKS[page], start=1)])
def test_python_blocks_print_what_the_page_says(code, expected, extensions):
    assert printed(code) == expected


@pytest.mark.parametrize(("code", "expected"), EARLIER)
def test_extensions_as_they_were_shown_go_on_working(code, expected, extensions):
    assert printed(code) == expected


def test_an_extension_takes_about_thirty_lines():
    for code, _ in BLOCKS["extending"]:
        assert len(code.partition("\nif __name__")[0].strip().splitlines()) <= 30


def test_local_files_that_the_pages_name_exist():
    text = "\n".join(PAGES.values())
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    paths = re.findall(r"`?((?:pipeline|tests|docs)/[\w/]+\.py)", text)
    assert "row_space.svg" in links and "docs/row_space.py" in paths
    links = [link for link in links if link not in GENERATED]
    for path in [DOCS / link for link in links] + [DOCS.parent / path for path in paths]:
        assert path.is_file(), path


def test_the_figure_is_small_and_its_text_is_text():
    figure = DOCS / "row_space.svg"
    assert figure.stat().st_size < 200 * 1024
    text = figure.read_text(encoding="utf-8")
    assert "<text" in text and "AUC" in text and "n = 256" in text
