"""Where this repository keeps its own sweeps: each is known by its name, whichever study it is of.

A sweep of `experiments/STUDY/SWEEP.yaml` has its results in `analysis/results/STUDY`: its runs in `SWEEP.csv`, its
figures in `SWEEP-EXHIBIT.svg`, data that do not follow from the runs in `SWEEP-EXHIBIT.csv`, an entry in
`manifest.json`, and its notes, captions and tables under its name in `README.md`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXPERIMENTS, RESULTS = ROOT / "experiments", ROOT / "analysis" / "results"
# What is written from the data stands between two comments of Markdown; all else is written by hand.
WRITTEN = re.compile(r"<!-- (\w+): written by tests/tools/results_text\.py -->\n(.*?)<!-- end -->\n", re.DOTALL)


def file_of(sweep: str) -> Path:
    """The experiment file of a sweep."""
    return next(EXPERIMENTS.rglob(f"{sweep}.yaml"))


def folder_of(sweep: str) -> Path:
    """The folder with the results of a sweep's study; a file at the top of `experiments` is a study of its own."""
    study = file_of(sweep).parent
    return RESULTS / (sweep if study == EXPERIMENTS else study.name)


def runs_of(sweep: str) -> Path:
    """The committed runs of a sweep."""
    return folder_of(sweep) / f"{sweep}.csv"


def manifests() -> dict[str, dict[str, Any]]:
    """The manifest of every sweep that has committed results, by its name."""
    entries = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*/manifest.json")]
    return dict(sorted((sweep, manifest) for study in entries for sweep, manifest in study.items()))


def written(sweep: str) -> str:
    """The captions and tables of a sweep, as its study's page has them."""
    page = (folder_of(sweep) / "README.md").read_text(encoding="utf-8")
    return dict(WRITTEN.findall(page))[sweep]
