"""Sweeps that nobody trained: their trials in a store with metrics that a test makes up, or as `load_runs` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from mlflow.entities import RunData

from analysis.runs import row_of
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.sections import Shown
from pipeline.tracking.artifacts import TrackedRun, param_text
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import EpochRecord, Outcome

Metrics = Mapping[str, float]


def records(trial: TrialConfig, metrics: Sequence[Metrics], tags: Mapping[str, str] | None = None,
            status: str = "finished") -> list[EpochRecord]:
    """Of a trial with these metrics by epoch: the tags go with its first epoch, the status with its last."""
    return [EpochRecord(trial.trial_key, epoch, of_epoch, (tags or {}) if epoch == 1 else {},
                        Outcome(status, {}, ()) if epoch == len(metrics) else None)
            for epoch, of_epoch in enumerate(metrics, start=1)]


def stored(root: Path, sweep: str, trials: Sequence[TrialConfig],
           records_of: Callable[[TrialConfig], list[EpochRecord]], tags: Mapping[str, str] | None = None) -> Store:
    """A store with this sweep open, in which all trials have their records."""
    store = Store(root=root)
    store.open_sweep(sweep)
    for trial in trials:
        store.start(trial, tags)
    store.log(record for trial in trials for record in records_of(trial))
    return store


def attached(sweep: str, root: Path, uri: str | None = None) -> Reader:
    """A reader of a sweep."""
    reader = Reader(uri, root)
    reader.attach(sweep)
    return reader


def parent(store: Reader) -> RunData:
    """Metrics and tags of the sweep's own run."""
    return store._client.get_run(store._parent()).data


def changed(runs: pd.DataFrame, **settings: object) -> pd.DataFrame:
    """The runs as if their trials had these settings: each the value of all, or a value for each."""
    columns = {name: value if isinstance(value, pd.Series) else pd.Series([value] * len(runs), runs.index)
               for name, value in settings.items()}
    trials = [TrialConfig(trial.given, **{name: column[index] for name, column in columns.items()})
              for index, trial in runs["trial"].items()]
    return runs.assign(**columns, trial=trials)


def with_secret_noise(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs as if their noise were secret, which takes sums of integers with `per_example`."""
    exact = runs["mechanism"].map({"per_example": "integer"}).fillna("float32")
    return changed(runs, noise="secure", arithmetic=exact)


def run_of(trial: TrialConfig, metrics: Metrics, tags: Mapping[str, str] | None = None) -> dict[str, object]:
    """The row of a finished trial in what `load_runs` gives."""
    params = {name: param_text(value) for name, value in trial.canonical().items()}
    return row_of(TrackedRun(trial.trial_key, trial.trial_key, params, metrics, tags or {}, "finished", 0, 1))


def sweep_of(trials, **report):
    """An experiment of these trials, with what its file says of the report."""
    return Experiment("grid", "", tuple(trials), report=Shown(**report))
