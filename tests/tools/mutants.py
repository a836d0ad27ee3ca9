"""Mistakes that tests must notice: `make mutants`, or `python tests/tools/mutants.py [TEXT]` for those about a text.

tests/data/mutants.json has for each mistake a `file`, a text `old` that stands in it once, the text `new` in its place,
and a `test` that then fails. Mistakes are made in temporary copies. All tests must pass there before the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "mutants.json"
COPIED = ("pipeline", "analysis", "experiments", "docs", "tests", "photonic.py", "pyproject.toml", "README.md")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*")
AT_ONCE = 2
PASSED, FAILED = 0, 1  # exit codes of pytest; with all others a test says nothing


class Mutant(NamedTuple):
    """One mistake: `old`, which stands once in `file`, becomes `new`, and `test` fails."""

    file: str
    old: str
    new: str
    test: str

    def applied(self, text: str) -> str:
        """The content of the file with the mistake.

        Raises:
            ValueError: unless the text stands in it exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file}: must have the text {self.old!r} once, has it {count} times")
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.old.split())} -> {' '.join(self.new.split()) or 'nothing'}"


def read(file: Path = FILE) -> list[Mutant]:
    """All mistakes."""
    return [Mutant(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]


class Copy:
    """The tree in another folder, where mistakes are made and tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._changes = folder, 0
        folder.mkdir()
        for name in COPIED:
            source, target = ROOT / name, folder / name
            shutil.copytree(source, target, ignore=LEFT_OUT) if source.is_dir() else shutil.copy(source, target)

    def run(self, *tests: str) -> int:
        """The exit code of pytest."""
        return subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
                              cwd=self.folder, env={**os.environ, "PYTHONPATH": str(self.folder)},
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode

    @contextlib.contextmanager
    def mistaken(self, mutant: Mutant) -> Iterator[None]:
        """The mistake is there within."""
        path = self.folder / mutant.file
        right = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied(right))
        try:
            yield
        finally:
            self._write(path, right)

    def _write(self, path: Path, text: str) -> None:
        """No two contents have the same time: Python would take compiled code of the one for that of the other."""
        path.write_text(text, encoding="utf-8")
        self._changes += 1
        os.utime(path, (self._changes, self._changes))


def survivors(mutants: Sequence[Mutant]) -> list[Mutant]:
    """The mistakes that their tests do not notice, or that leave them unable to run; one line is printed for each.

    Raises:
        RuntimeError: if a test fails without any mistake.
    """
    copies: Queue[Copy] = Queue()  # a mistake takes one, and gives it back

    def is_noticed(mutant: Mutant) -> bool:
        copy, began = copies.get(), time.monotonic()
        try:
            with copy.mistaken(mutant):
                code = copy.run(mutant.test)
        finally:
            copies.put(copy)
        said = {FAILED: "killed", PASSED: "SURVIVED"}.get(code, f"BROKEN (pytest ends with {code})")
        print(f"{said:<9} {time.monotonic() - began:5.1f} s  {mutant}", flush=True)
        return code == FAILED

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        for number in range(AT_ONCE):
            copies.put(Copy(Path(folder, str(number))))
        if copies.queue[0].run("-n", str(AT_ONCE), *dict.fromkeys(mutant.test for mutant in mutants)) != PASSED:
            raise RuntimeError("a test fails without a mistake: run the tests first")
        return [mutant for mutant, noticed in zip(mutants, pool.map(is_noticed, mutants), strict=True) if not noticed]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", nargs="?", default="", help="only mistakes whose file or test has this in its name")
    text = parser.parse_args().text
    chosen = [mutant for mutant in read() if text in mutant.file or text in mutant.test]
    if not chosen:
        sys.exit(f"TEXT: must be in the name of a file or test of {FILE.name}, got {text!r}")
    left = survivors(chosen)
    print(f"{len(chosen) - len(left)} of {len(chosen)} killed")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
