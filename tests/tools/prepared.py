"""Prepared sweeps for tests of what comes after that: of trials alone, with a stand-in for the store or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.experiment.experiment import Experiment
from pipeline.sweep.clock import Clock
from pipeline.sweep.prepare import Sweep
from pipeline.sweep.private import PrivateFolder
from pipeline.sweep.progress import SweepProgress, SweepResult
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Resources


def prepared(trials: Sequence[TrialConfig], root: Path, **given: Any) -> Sweep:
    """All trials are missing; `given` are attributes of the sweep."""
    experiment = Experiment("stub", "", tuple(trials), Resources(), (), Path("stub.yaml"))
    attributes = dict(
        experiment=experiment, store=None, lease=None, clock=Clock(), progress=SweepProgress(quiet=True),
        folder=PrivateFolder(root), rounds=None, missing=list(trials), possible=trials, done={},
        result=SweepResult(len(trials)), data_folder=None, commit="unknown")
    sweep = Sweep(**{**attributes, **given})
    if isinstance(sweep.progress, SweepProgress):
        sweep.progress.add(trials)
    return sweep
