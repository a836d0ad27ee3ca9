"""Find the experiment that a command names: an experiment file, or a sweep of the store."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.experiment.experiment import Experiment, load_experiment, parse_experiment
from pipeline.trials.config import ConfigError

if TYPE_CHECKING:
    from pipeline.tracking.reader import Reader


def find_experiment(target: str, changes: Mapping[str, Any], store: Reader | Path) -> Experiment:
    """Return the experiment of a file, or of the last sweep with this name, after changes of its settings.

    For a sweep, plugins are not imported, and relative paths start at the working directory.
    """
    if Path(target).exists() or Path(target).suffix in (".yaml", ".yml"):
        return load_experiment(target, changes)
    from pipeline.tracking.backend import NoStore, redacted  # slow to import, and not needed for a file
    from pipeline.tracking.reader import Reader

    try:
        reader = Reader(root=store) if isinstance(store, Path) else store
    except NoStore as error:
        raise ConfigError(f"{target}: must be an experiment file or the name of a sweep; {error}") from None
    if not reader.find(target):
        raise ConfigError(f"{target}: must be an experiment file or the name of a sweep in "
                          f"{redacted(reader.uri)}, which has {', '.join(reader.sweeps()) or 'none'}")
    experiment = parse_experiment(reader.experiment(), Path(f"{target}.yaml"), stored=True, changes=changes)
    if "name" not in changes:  # the sweep may have been renamed since
        experiment = dataclasses.replace(experiment, name=target)
    _check_feature_files(experiment, reader)
    return experiment


def with_past(experiment: Experiment, root: Path) -> Experiment:
    """Return an experiment with what the store at `root` has of its name beside its trials, if there is a store."""
    from pipeline.tracking.backend import NoStore  # slow to import
    from pipeline.tracking.reader import Reader

    with contextlib.suppress(NoStore):
        store = Reader(root=root)
        if store.find(experiment.name):
            return dataclasses.replace(experiment, past=store.past(experiment, store.runs()))
    return experiment


def _check_feature_files(experiment: Experiment, store: Reader) -> None:
    """Refuse an experiment from a store if a feature file now has other features than when it was swept."""
    trials = {trial.feature_sha256: trial for trial in experiment.possible if trial.feature_sha256}
    if not trials:
        return
    swept_digests = {digest for run in store.runs() if (digest := run.params.get("feature_sha256"))}
    if not swept_digests:
        return
    for digest, trial in trials.items():
        if digest not in swept_digests:
            raise ConfigError(f"feature_file: must be a file with which '{experiment.name}' was swept, got "
                              f"{trial.feature_file}, which has other features; relative paths are from the working "
                              "directory, so run this where the experiment file is, or name that")
