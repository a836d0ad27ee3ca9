"""The page for whoever changes the code: every function and file that it names exists, and it is short."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`((?:pipeline|analysis)\.[\w.]+\.\w+)`", PAGE)))
FILES = sorted(set(re.findall(r"`((?:pipeline|analysis|docs|tests)/[\w/]*(?:\.\w+)?)`", PAGE)))


@pytest.mark.parametrize("name", NAMES)
def test_what_it_names_exists(name):
    assert resolve_name(name) is not None


def test_its_files_exist_its_steps_are_twelve_and_a_part_and_its_work_are_as_it_says():
    assert len(NAMES) > 15 and len(FILES) > 20
    assert [file for file in FILES if not (ROOT / file).exists()] == []
    assert len(re.findall(r"^\| \d+ \| `", PAGE, re.MULTILINE)) == 12
    assert len(PAGE.split()) <= 900
    for line in re.findall(r"^@.*?(?=  +#)", PAGE, re.MULTILINE):
        assert any(line.strip() in path.read_text(encoding="utf-8") for path in (ROOT / "pipeline").rglob("*.py")), line
