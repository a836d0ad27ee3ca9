"""For notebooks and scripts: the tracked trials of a sweep by its name or file, from a store by its folder or URI."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis import runs as tracked
from pipeline.tracking.reader import Reader
from pipeline.trials.experiment import Experiment, load_experiment


def load_runs(experiment: str | Path | Experiment, store: Reader | str | Path = "mlruns") -> pd.DataFrame:
    """The trials of a sweep, one row each.

    Columns, in this order:
        trial_key, status (`finished`, `diverged`; by name also `running`, `failed`, `interrupted`), run_id (MLflow's);
        every setting of a trial, as `photonic fields` lists them, empty where it does not apply;
        setting: how much noise, as text: `non-private`, sigma, `label_epsilon=3`, `epsilon=3` or `z=1.1`;
        then by name every metric at its last epoch (`test/accuracy`, `validation/accuracy`,
        `test/worst_class_accuracy` as fractions, `train/loss`, `alignment/layer_<k>`,
        `epsilon/<kind>/<variant>`, `time/epoch_seconds`) and the tags `privacy.*` and git_commit.

    Args:
        experiment: name of the sweep: every trial that was tracked, whatever its status; or an experiment, or its file
            (a path, or text that ends in .yaml or .yml): its trials, in their order, all of which must have ended.
        store: folder of the tracking store (MLFLOW_TRACKING_URI overrides it), its URI, or a reader of it.

    Raises:
        TrackingError: for a store or a sweep that is not there.
        ConfigError: for a file that is not there or cannot be run.
        ReportError: if trials of the file have not ended, a trial was tracked twice, or an extension is not imported.

    Example:
        >>> load_runs("example")[["algorithm", "setting", "test/accuracy"]]
          algorithm    setting  test/accuracy
        0        bp  epsilon=1            0.8
        1        bp  epsilon=8            0.9
        2       dfa  epsilon=1            0.7
        3       dfa  epsilon=8            0.8
    """
    store = _open(store)
    if isinstance(experiment, Path) or isinstance(experiment, str) and experiment.endswith((".yaml", ".yml")):
        experiment = load_experiment(experiment)
    if isinstance(experiment, str):
        store.attach(experiment)
        return tracked.load_runs(store)
    store.attach(experiment.name)
    return tracked.load_runs(store, tracked.searched(store, experiment).trials, experiment.source)


def load_history(runs: pd.DataFrame, metric: str, store: Reader | str | Path = "mlruns") -> pd.DataFrame:
    """One metric by epoch: columns trial_key, epoch, value, algorithm, setting, seed, status; a row per epoch.

    Args:
        runs: from `load_runs`; trials without the metric have no rows.
        metric: its name, `validation/accuracy` or `alignment/layer_2` for example.
        store: as in `load_runs`.

    Example:
        >>> load_history(load_runs("example")[:1], "validation/accuracy")[["epoch", "value"]]
           epoch  value
        0      1    0.4
        1      2    0.8
    """
    return tracked.load_history(_open(store), runs, metric)


def _open(store: Reader | str | Path) -> Reader:
    if isinstance(store, Reader):
        return store
    if isinstance(store, str) and "://" in store:
        return Reader(store)
    return Reader(root=Path(store))
