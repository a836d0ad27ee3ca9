"""How a trial looks in the tracking store: its name, its params, its status, and the files it leaves behind."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pipeline.config import TrialConfig
from pipeline.exhibits import noise_setting
from pipeline.records import Outcome

STATUSES = ("running", "finished", "diverged", "failed", "interrupted")
DONE = ("finished", "diverged")  # need no more training


@dataclass
class TrackedRun:
    """One trial as the store holds it: `metrics` are the latest values, times are milliseconds since 1970."""

    run_id: str
    trial_key: str
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    status: str
    start_ms: int
    end_ms: int | None


def run_name(config: TrialConfig, also: Sequence[str] = ()) -> str:
    """A trial's name for people: `pdfa sigma=0.1 seed=0`, `bp non-private seed=0`, `dfa sigma=0 tau_h=2 seed=1`; with a
    Gaussian mechanism `pdfa epsilon=3 seed=0` or `dfa z=1.1 seed=0`.

    Args:
        also: further fields to name, where the trial has them.
    """
    own = config.canonical()
    return " ".join([config.algorithm, noise_setting(own), *(f"{name}={own[name]}" for name in also if name in own),
                     f"seed={config.seed}"])


def param_text(value: Any) -> str:
    """A param as MLflow stores it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def write_artifacts(folder: Path, config: TrialConfig, outcome: Outcome) -> None:
    """Write `weights.safetensors`, `per_class.csv` and `config.json` (the canonical configuration) into `folder`."""
    weights = {name: np.ascontiguousarray(array) for name, array in outcome.weights.items()}
    save_file(weights, folder / "weights.safetensors")
    with open(folder / "per_class.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["split", "label", "count", "correct", "accuracy"])
        for row in outcome.per_class:
            accuracy = row.correct / row.count if row.count else ""  # no record of the class, no accuracy
            table.writerow([row.split, row.label, row.count, row.correct, accuracy])
    (folder / "config.json").write_text(json.dumps(config.canonical(), indent=2) + "\n")
