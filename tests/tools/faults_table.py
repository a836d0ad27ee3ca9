"""`make faults`: inject every fault of the tests, and put what was measured into the table of
analysis/results/faults/README.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fault_tools import ROOT, ROWS

TESTS = ("test_faults.py", "test_chaos.py")
HEAD = ("fault", "injected as", "trials", "lost", "duplicated", "final metrics differ by",
        "histories or weights that differ")


def table(rows: list[dict]) -> str:
    """Markdown, a line per fault."""
    lines = ["| " + " | ".join(HEAD) + " |", "| --- | --- |" + " ---: |" * (len(HEAD) - 2)]
    for row in rows:
        cells = [row["fault"], row["how"], row["trials"], row["lost"], row["duplicated"], f"{row['difference']:g}",
                 row["unequal"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    page = ROOT / "analysis" / "results" / "faults" / "README.md"
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.jsonl")
        tests = [str(ROOT / "tests" / "sweep" / name) for name in TESTS]
        code = subprocess.run([sys.executable, "-m", "pytest", "--durations=0", *tests], cwd=ROOT,
                              env={**os.environ, ROWS: str(rows)}).returncode
        measured = table([json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()])
    print(measured)
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"^\| fault \|.*\n(\|.*\n)*", lambda _: measured, text, flags=re.M), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
