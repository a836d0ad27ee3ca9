"""For notebooks and scripts: train one or a few trials in this process, without Ray and without a tracking store."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.accounting import Epsilon
from pipeline.accounting import account as account_after
from pipeline.accounting.evaluations import check_evaluations
from pipeline.learning.data.dataset import Dataset, load_for
from pipeline.learning.export import read as read_export
from pipeline.learning.model import TrainedModel, model_of
from pipeline.learning.train import train as train_pack
from pipeline.tracking.artifacts import code_remarks, config_of
from pipeline.tracking.reader import Reader
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.datasets import DATASETS
from pipeline.trials.packs import Resources, plan
from pipeline.trials.promises import check_promises
from pipeline.trials.records import EpochRecord
from pipeline.trials.unused import check_used


def train(trials: TrialConfig | Sequence[TrialConfig], data: Dataset | str | os.PathLike[str] | None = None,
          device: torch.device | str = "cpu") -> Iterator[EpochRecord]:
    """Train trials, and yield the record of every epoch of every trial as soon as it is available.

    `pd.DataFrame(record.metrics for record in train(config))` is one trial's history by epoch. Results equal a sweep's.
    Trials with the same tensor shapes train together, one group after the other; `record.trial_key` names the trial of
    a record.

    Args:
        trials: one configuration, or several.
        data: the data set of all trials on `device`, from `load_dataset`; or the folder of the data sets. None uses
            PHOTONIC_DATA or downloads, as `load_dataset` does.
        device: for training.

    Yields:
        `EpochRecord`: metrics by name (`validation/accuracy`, `alignment/layer_1`, `epsilon/certified/pld`, ...), tags
        with the first epoch, the outcome (status, final weights, accuracy by class) with the last.

    Raises:
        ConfigError: at once, for no trial, a duplicate trial, a data set other than a trial's, or a setting that no
            trial uses (`pipeline.trials.unused`).
        DataError: at once, for an unavailable data set.

    Example:
        >>> records = list(train(TrialConfig(dataset="digits", hidden=(16,), batch_size=64, epochs=2)))
        >>> [record.epoch for record in records], records[-1].outcome.status
        ([1, 2], 'finished')
    """
    trials = [trials] if isinstance(trials, TrialConfig) else list(trials)
    keys = [trial.trial_key for trial in trials]
    if not trials or len(set(keys)) < len(keys):
        raise ConfigError(f"trials: must be at least one, each once, got {', '.join(keys) or 'none'}")
    check_used(trials)
    check_promises(trials, stored=False)
    check_evaluations(trials)
    if isinstance(data, Dataset):
        datasets = dict.fromkeys((trial.dataset for trial in trials), data)
    else:
        datasets = load_for(trials, data, device)
    for name, dataset in datasets.items():
        if dataset.spec != DATASETS[name].spec:
            raise ConfigError(f"data: must be the data set of every trial, '{name}', got one with {dataset.spec}")
    gpus = 1.0 if torch.device(device).type == "cuda" else 0.0
    packs = plan(trials, Resources(gpu=gpus), workers=1)  # a pack: trials with equal tensor shapes

    def records_of_packs() -> Iterator[EpochRecord]:
        for pack in packs:
            for epoch_records in train_pack(pack, datasets[pack.shared.dataset], device):
                yield from epoch_records

    return records_of_packs()  # not a generator itself: the checks above raise at once


def account(trial: TrialConfig, epochs: int | None = None) -> list[Epsilon]:
    """Return every epsilon that can be stated for a trial, infinite ones included; nothing is trained.

    Each epsilon prints with its kind, relation, sampler and delta; `pd.DataFrame(account(trial))` is the table. If the
    list is empty, `privacy_tags(trial)["privacy.notes"]` says why.

    Args:
        trial: its configuration.
        epochs: after this many epochs; None takes all.

    Raises:
        ConfigError: unless 1 <= epochs <= trial.epochs, and for a setting that the trial does not use.

    Example:
        >>> trial = TrialConfig(dataset="digits", mechanism="per_example", sampler="poisson", noise_multiplier=2)
        >>> print(*account(trial, epochs=1))
        epsilon = 1.198 (certified pld; delta = 1e-05, relation add/remove, sampler poisson, pld conversion)
    """
    n_epochs = trial.epochs if epochs is None else epochs
    if not 1 <= n_epochs <= trial.epochs:
        raise ConfigError(f"epochs: must be at least 1 and at most the {trial.epochs} of the trial, got {epochs}")
    check_used([trial])
    check_promises([trial], stored=False)
    return account_after(trial, n_epochs)


def load_model(run: str | os.PathLike[str] | Mapping[str, Any], store: Reader | str | os.PathLike[str] = "mlruns"
               ) -> TrainedModel:
    """Return the trained network of a tracked trial, a `torch.nn.Module` from records to logits (`TrainedModel`).

    Args:
        run: a row of `load_runs` (for example from `best`), a trial's trial_key or MLflow run id, or a folder that
            `photonic export` wrote, which needs no store.
        store: folder of the tracking store (MLFLOW_TRACKING_URI overrides it), its URI, or a reader of it.

    Warns:
        UserWarning: for a network of your own that was trained with another version or file, or an unrecorded one.

    Raises:
        TrackingError: for a trial that does not exist or has not ended.
        ConfigError: for a trial of an extension that is not imported, a network whose shapes have changed since, or a
            folder that is no export.

    Example:
        >>> from analysis import best, load_runs
        >>> model = load_model(best(load_runs("example"), epsilon=3))
        >>> model(load_dataset("digits").test_x).shape
        torch.Size([360, 10])
    """
    if isinstance(run, os.PathLike) or (isinstance(run, str) and os.path.isdir(run)):
        trial, weights = read_export(Path(run))
        tracked = None
    else:
        reader = Reader.of(store)
        tracked = reader.trial(run if isinstance(run, str) else run["run_id"])
        trial, weights = config_of(tracked), reader.weights(tracked)
    for line in code_remarks(trial, tracked):
        warnings.warn(line, stacklevel=2)
    return model_of(trial, weights)
