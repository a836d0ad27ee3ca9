"""What the checks of a report say of the committed results: analysis/results/doubts.md.

    python docs/doubts.py

A check that fires is a false alarm where the doubt does not hold; `JUDGED` says which, and why. A firing without a
judgement is an error, and so is a judgement without a firing.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from analysis.exhibits.doubts.checks import examine
from analysis.exhibits.doubts.evidence import Evidence
from pipeline.tracking.artifacts import FIELDS
from pipeline.trials.experiment import load_experiment

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "analysis" / "results"
JUDGED: dict[tuple[str, str], tuple[bool, str]] = {}


def evidence_of(name: str) -> Evidence:
    """The committed runs of a sweep."""
    tuples = [field for field, kind in FIELDS.items() if kind is tuple]
    runs = pd.read_csv(RESULTS / name / "runs.csv", dtype={"setting": str})
    runs = runs.reindex(columns=[*runs, *(field for field in FIELDS if field not in runs)])  # added since
    for field in tuples:
        runs[field] = runs[field].map(lambda text: tuple(json.loads(text)) if isinstance(text, str) else None)
    return Evidence.of(runs, load_experiment(ROOT / "experiments" / f"{name}.yaml"))
if __name__ == "__main__":
    for p in sorted(RESULTS.glob("*/runs.csv")):
        e = evidence_of(p.parent.name)
        print("==", p.parent.name, dict(e.refused))
        for d in examine(e): print("  ", d.check, len(d.points), d.sentence)
