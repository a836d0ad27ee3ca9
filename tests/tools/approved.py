"""Texts that people read, as somebody approved of them: tests/data/approved has them whole."""

import difflib
import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "approved"


def approved(name: str, text: str) -> None:
    """The text is that of NAME.txt. `APPROVE=1 make test` writes new texts: read their diff before you commit it."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("APPROVE"):
        path.write_text(f"{text.rstrip()}\n", encoding="utf-8")
    before, now = path.read_text(encoding="utf-8").splitlines(), text.rstrip().splitlines()
    different = "\n".join(difflib.unified_diff(before, now, "approved", "now", n=0, lineterm=""))
    assert not different, f"{path}\n{different}"
