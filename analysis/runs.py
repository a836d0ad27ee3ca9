"""The tracked trials of a sweep as pandas DataFrames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipeline.experiment.experiment import Experiment
from pipeline.tracking.artifacts import DONE, DRAWS, EARLIER, TrackedRun, param_value
from pipeline.tracking.artifacts import FIELDS as FIELDS
from pipeline.tracking.reader import Reader
from pipeline.trials.config import TrialConfig
from pipeline.trials.datasets import DATASET_LABELS as DATASET_LABELS
from pipeline.trials.feedback import LABELS
from pipeline.trials.fields import UserError
from pipeline.trials.naming import noise_setting, run_name
from pipeline.trials.part import PARTS

ALGORITHM_LABELS = LABELS
NON_PRIVATE = "non-private"
STATED = "stated"  # a trainer states the epsilon, and no setting determines it
DEFAULT_NOISE = TrialConfig().noise


class ReportError(UserError, ValueError):
    """The runs lack data that a table or figure needs; the message names it."""


class MissingTrials(ReportError):
    """The sweep is not complete."""


class DuplicateTrials(ReportError):
    """A trial has more than one run in the store."""


class MixedTrials(ReportError):
    """Trials of one mean differ in more than their seed."""


def load_runs(store: Reader, trials: Sequence[TrialConfig] | None = None, source: object = "FILE") -> pd.DataFrame:
    """Load the open sweep of `store`, one row per trial.

    Columns: trial_key, status, run_id, every field of `TrialConfig` (empty if it does not apply to the trial),
    `setting` ('non-private', sigma as text, 'label_epsilon=3', 'epsilon=3' or 'z=1.1'), the latest value of every
    metric by its MLflow name, the tags `privacy.*`, `optics.*` and git_commit. Accuracies are fractions.

    Args:
        store: the store with the sweep open.
        trials: the trials to return, in this order; all must have ended. By default every run, with any status.
        source: the experiment file, for the error message.

    Raises:
        MissingTrials: if any of `trials` has not ended.
        DuplicateTrials: if a trial has two runs.
        ReportError: if a trial needs an extension that is not imported.
    """
    runs = store.runs() if trials is None else _runs_of(store, trials, source)
    _require_known_parts(runs)
    duplicates = [key for key, count in Counter(run.trial_key for run in runs).items() if count > 1]
    if duplicates:
        ids = ", ".join(run.run_id for run in runs if run.trial_key in duplicates)
        raise DuplicateTrials(f"trial_key: must be unique, got more than one run of {', '.join(duplicates)} (runs "
                              f"{ids}); delete all but one")
    first_columns = ["trial_key", "status", "run_id", *FIELDS, "setting"]
    frame = pd.DataFrame([_row(run) for run in runs])
    other_columns = [name for name in sorted(frame.columns) if name not in first_columns]
    return frame.reindex(columns=first_columns + other_columns)


def _runs_of(store: Reader, trials: Sequence[TrialConfig], source: object) -> list[TrackedRun]:
    """Return the runs of these trials in the open sweep, in their order; arguments and errors as in `load_runs`."""
    configs = {config.trial_key: config for config in trials}
    runs = [run for run in store.runs() if run.trial_key in configs]
    ended = {run.trial_key for run in runs if run.status in DONE}
    missing = [config for key, config in configs.items() if key not in ended]
    if missing:
        names = ", ".join(f"{run_name(config)} ({config.trial_key})" for config in missing[:5])
        names += f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise MissingTrials(f"{len(ended)} of {len(configs)} trials are finished; missing: {names} "
                            f"(run `photonic sweep {source}`)")
    ranks = {key: rank for rank, key in enumerate(configs)}
    return sorted(runs, key=lambda run: ranks[run.trial_key])


def searched(store: Reader, experiment: Experiment) -> Experiment:
    """Return the experiment of the open sweep of `store`; a search gets its suggested trials.

    Raises:
        MissingTrials: if the search has not suggested all of its trials yet.
    """
    if experiment.search:
        n_missing = experiment.planned - len(store.suggestions())
        if n_missing:
            raise MissingTrials(f"{n_missing} of {experiment.planned} suggestions of the search are not asked for yet "
                                f"(run `photonic sweep {experiment.source}`)")
    return store.as_swept(experiment)


def load_history(store: Reader, runs: pd.DataFrame, key: str) -> pd.DataFrame:
    """Load the metric `key` by epoch: columns trial_key, epoch, value, algorithm, setting, seed, status.

    Trials without the metric have no rows.

    Args:
        store: the store with the sweep open.
        runs: trials, from `load_runs`.
        key: MLflow's name of the metric, such as `validation/accuracy`.
    """
    columns = ["trial_key", "epoch", "value", "algorithm", "setting", "seed", "status"]
    rows = []
    for run in runs.itertuples():
        rows += [(run.trial_key, epoch, value, run.algorithm, run.setting, run.seed, run.status)
                 for epoch, value in store.history(run.run_id, key)]
    return pd.DataFrame(rows, columns=columns)


def part_property(runs: pd.DataFrame, slot: str, attribute: str) -> pd.Series:
    """Return for each run whether a part of its trial has a property: `part_property(runs, "mechanism", "private")`.

    Args:
        runs: the runs, from `load_runs`.
        slot: the setting that chooses the part, for example the mechanism.
        attribute: name of a boolean attribute of such parts.
    """
    return runs[slot].map(lambda name: getattr(PARTS[slot][name], attribute)).astype(bool)


def common_value(column: pd.Series) -> Any:
    """Return the value of a column whose rows all have the same, such as the data set of a table's trials."""
    return column.iloc[0]


def noise_sources(runs: pd.DataFrame) -> pd.Series:
    """Return each run's setting `noise`, `research` or `secure`; empty for runs without a mechanism.

    If the setting was not tracked, it is the default.
    """
    tracked = runs.reindex(columns=["noise"])["noise"].astype(object)
    return tracked.where(tracked.notna(), DEFAULT_NOISE).where(part_property(runs, "mechanism", "private"))


def by_noise(settings: Sequence[str]) -> list[str]:
    """Return distinct noise settings, sorted: non-private, sigmas, targets (certified, label), noise multipliers."""
    def sort_key(setting: str) -> tuple[bool, str, float]:
        """Return (whether it has a value, its name, its value); a sigma has no name."""
        if setting in (NON_PRIVATE, STATED):
            return False, "", 0.0  # first
        name, _, number = setting.rpartition("=")
        return True, name, float(number)
    return sorted(set(settings), key=sort_key)


def require_accuracy(runs: pd.DataFrame, name: str = "test/accuracy") -> None:
    """Check that every trial has this accuracy.

    Args:
        runs: the trials, from `load_runs`.
        name: name of the accuracy's column.

    Raises:
        ReportError: with the first trial that has none.
    """
    accuracy = runs.reindex(columns=[name])[name]  # all empty if no trial has it
    missing = runs[accuracy.isna()]
    if len(missing):
        row = missing.iloc[0]  # an example for the message
        first = f"{row['algorithm']} {row['setting']} seed={row['seed']} ({row['trial_key']}, {row['status']})"
        raise ReportError(f"{name}: missing for {len(missing)} of {len(runs)} trials, the first is {first}")


def setting_label(setting: str) -> str:
    """Return the label of a noise setting: `σ = 0.1`, `ε ≤ 3` (a target is met from below), `non-private`, ..."""
    if setting in (NON_PRIVATE, STATED):
        return setting
    name, _, number = setting.rpartition("=")
    symbols = {"": "σ =", "epsilon": "ε ≤", "label_epsilon": "label ε ≤"}
    return f"{symbols.get(name, f'{name} =')} {number}"


def require_replicates(runs: pd.DataFrame, along: Sequence[str] = ()) -> None:
    """Check that each (algorithm, setting) has trials of one configuration with different seeds, on one data set.

    Args:
        runs: the runs.
        along: further columns that separate the groups of trials to average.

    Raises:
        MixedTrials: with the fields that differ; a mean over such trials would hide the cause of a difference.
    """
    datasets = sorted(runs["dataset"].unique())
    if len(datasets) > 1:
        raise MixedTrials(f"dataset: must be the same in one table or figure, got {', '.join(datasets)}")
    for (algorithm, setting, *_), group in runs.groupby(["algorithm", "setting", *along]):
        differ = [name for name in FIELDS if name != "seed" and group[name].nunique(dropna=False) > 1]
        if differ:
            values = "; ".join(f"{name}: {', '.join(map(str, group[name].unique()))}" for name in differ)
            raise MixedTrials(f"{algorithm} {setting}: only the seed may differ between trials that are averaged, "
                              f"got {values}")


def _require_known_parts(runs: Sequence[TrackedRun]) -> None:
    """Refuse names that are not registered: tables iterate over registered names, and would omit others silently.

    An extension is registered when its module is imported.
    """
    for field in ("algorithm", "mechanism", "dataset", "features"):
        for run in runs:
            if field in run.params and run.params[field] not in PARTS[field]:
                raise ReportError(f"{field}: '{run.params[field]}' of trial {run.trial_key} is an extension's; import "
                                  "the module that registers it, or name that in `plugins` of the experiment file")


def _noise_in_place_of_targets(run: TrackedRun) -> dict[str, float]:
    """Return noise settings that replace a trial's target epsilon, if it cost more because noise was drawn repeatedly.

    They are the calibrated noise, and 0 for the target. For a trial with one draw, nothing is replaced.
    """
    if int(run.tags.get(DRAWS, 1)) == 1:
        return {}
    replaced: dict[str, float] = {}
    for noise, target in (("noise_multiplier", "target_epsilon"), ("sigma", "target_label_epsilon")):
        if f"calibrated.{noise}" in run.tags:
            replaced |= {noise: float(run.tags[f"calibrated.{noise}"]), target: 0.0}
    return replaced


def earlier_epochs(runs: pd.DataFrame) -> dict[str, int]:
    """Return trial_key -> epochs released by earlier draws of its secret noise, for trials with such draws."""
    if EARLIER not in runs:
        return {}
    known = runs.dropna(subset=EARLIER)
    return dict(zip(known["trial_key"], known[EARLIER].astype(int), strict=True))


def _row(run: TrackedRun) -> dict[str, Any]:
    """Return one row of `load_runs` from a tracked run: identity, fields, noise setting, latest metrics and tags.

    A field that does not apply is None, or NaN if it is a number.
    """
    fields: dict[str, Any] = {}
    for name in FIELDS:
        if name in run.params:
            fields[name] = param_value(name, run.params[name])
        elif FIELDS[name] in (int, float):
            fields[name] = float("nan")
        else:
            fields[name] = None
    setting = noise_setting(fields | _noise_in_place_of_targets(run)).removeprefix("sigma=")
    tags = {name: text for name, text in run.tags.items()
            if name.startswith(("privacy.", "optics.")) or name == "git_commit"}
    identity = {"trial_key": run.trial_key, "status": run.status, "run_id": run.run_id}
    return {**identity, **fields, "setting": setting, **run.metrics, **tags}
