"""The tracked trials of a sweep as pandas DataFrames, with which every report and notebook begins."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from analysis.labels import is_missing, value_text
from pipeline.accounting.certified import with_noise
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.experiment.experiment import Experiment, load_experiment
from pipeline.experiment.factors import differing
from pipeline.tracking.artifacts import DONE, ENDED, TrackedRun, is_setting, missing_extension, param_value
from pipeline.tracking.reader import Reader
from pipeline.trials.arithmetic import CLAMPED
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.fields import UserError
from pipeline.trials.kinds import UP_TO_ROUNDING, standing
from pipeline.trials.mechanism import Mechanism
from pipeline.trials.naming import abridged, run_name
from pipeline.trials.part import SETTINGS, parts_of

TRIAL = "trial"  # column of a run's `TrialConfig`
Sweep: TypeAlias = str | Path | Experiment | pd.DataFrame  # a sweep by name, by file, as an experiment, or as its runs
NOISE = {"sigma": "target_label_epsilon", "noise_multiplier": "target_epsilon"}  # level -> target that sets it


class ReportError(UserError, ValueError):
    """The runs lack data that a table or figure needs; the message names it."""


class MissingTrials(ReportError):
    """The sweep is not complete."""


class DuplicateTrials(ReportError):
    """A trial has more than one run in the store."""


class MixedTrials(ReportError):
    """Trials of one mean differ in more than their seed."""


def load_runs(experiment: Sweep, store: Reader | str | Path = "mlruns") -> pd.DataFrame:
    """Load the trials of a sweep, one row each.

    Columns, in this order:
        trial_key, status (`finished`, `diverged`; by name also `running`, `failed`, `interrupted`), run_id (MLflow's);
        every setting of a trial, as `photonic fields` lists them, empty if it does not apply;
        setting: the noise as text: `non-private`, sigma, `label_epsilon=3`, `epsilon=3` or `z=1.1`;
        trial: its `TrialConfig`, None if its extension is not imported;
        then, sorted by name, every metric at its last epoch (`test/accuracy`, `validation/accuracy`,
        `test/worst_class_accuracy` as fractions, `train/loss`, `alignment/layer_<k>` of the applied update,
        `alignment/feedback/layer_<k>` of the feedback's, `epsilon/<kind>/<variant>`, `time/epoch_seconds`) and the tags
        `privacy.*` and git_commit.

    Args:
        experiment: name of the sweep, for all tracked trials of any status. Or an experiment, or its file (a path, or
            text that ends in .yaml or .yml), for its trials in order; all of them must have ended. Runs as this
            returns them are returned unchanged.
        store: folder of the tracking store (MLFLOW_TRACKING_URI overrides it), its URI, or a reader of it.

    Raises:
        TrackingError: if the store or the sweep is missing.
        ConfigError: if the file is missing or cannot be run.
        ReportError: if trials of the file have not ended, or a trial was tracked twice.

    Example:
        >>> load_runs("example")[["algorithm", "setting", "test/accuracy"]]
          algorithm    setting  test/accuracy
        0        bp  epsilon=1            0.8
        1        bp  epsilon=8            0.9
        2       dfa  epsilon=1            0.7
        3       dfa  epsilon=8            0.8
    """
    if isinstance(experiment, pd.DataFrame):
        return experiment
    store = Reader.of(store)
    if isinstance(experiment, Path) or (isinstance(experiment, str) and experiment.endswith((".yaml", ".yml"))):
        experiment = load_experiment(experiment)
    if isinstance(experiment, str):
        store.attach(experiment)
        stored = store.runs()
        runs, past = frame_of(stored), store.past(None, stored)
    else:
        store.attach(experiment.name)
        stored = store.runs()
        swept = searched(store, experiment, stored)
        runs, past = frame_of(stored, swept.trials, swept.source), swept.past
    runs.attrs["past"] = past  # what else was looked at, for the price of a choice
    runs.attrs["searched"] = bool(store.decisions())  # composition is then no price of a choice
    runs.attrs["paid"] = _paid(store)
    return runs


def _paid(store: Reader) -> float:
    """Return a sweep's budget, which covers its choice, inf if exceeded; NaN without one or its extension."""
    state = store.budget()
    if state is None:
        return math.nan
    from pipeline.accounting.budget import restored_filter  # imported here: few sweeps need it, and it takes a second

    privacy_filter = restored_filter(state)
    try:
        return privacy_filter.budget.epsilon if privacy_filter.admits(store.released()) else math.inf
    except ConfigError:  # of the extension
        return math.nan


def frame_of(runs: Sequence[TrackedRun], trials: Sequence[TrialConfig] | None = None, source: object = "FILE"
             ) -> pd.DataFrame:
    """Return a sweep's runs, one row per trial, with the columns of `load_runs`.

    `trial` is the `TrialConfig` with its recorded noise; None if it cannot be composed here, see `trials_of`. With
    `trials`, only these are returned, in this order; all must have ended (`MissingTrials`), and a lost one has no row.
    A trial must not have two runs (`DuplicateTrials`). `source` is the experiment file, for the message.
    """
    if trials is not None:
        ranks = {trial.trial_key: rank for rank, trial in enumerate(trials)}
        ended = {run.trial_key for run in runs if run.status in ENDED} & ranks.keys()
        missing = [trial for trial in trials if trial.trial_key not in ended]
        if missing:
            names = abridged([f"{run_name(trial)} ({trial.trial_key})" for trial in missing], 5)
            raise MissingTrials(f"{len(ended)} of {len(ranks)} trials are finished; missing: {names} "
                                f"(`photonic sweep {source}` trains them)")
        done = [run for run in runs if run.status in DONE and run.trial_key in ranks]
        runs = sorted(done, key=lambda run: ranks[run.trial_key])
    duplicates = [key for key, count in Counter(run.trial_key for run in runs).items() if count > 1]
    if duplicates:
        ids = ", ".join(run.run_id for run in runs if run.trial_key in duplicates)
        raise DuplicateTrials(f"trial_key: must be unique, got more than one run of {', '.join(duplicates)} (runs "
                              f"{ids}); delete all but one")
    first_columns = ["trial_key", "status", "run_id", *setting_names(), "setting", TRIAL]
    frame = pd.DataFrame([row_of(run) for run in runs])
    other_columns = [name for name in sorted(frame.columns) if name not in first_columns]
    return frame.reindex(columns=first_columns + other_columns)


def setting_names() -> list[str]:
    """Return the names of all settings of trials, which are columns of runs, in the order of `photonic fields`."""
    return [field.name for field in settings()]


def read_runs(path: Path) -> pd.DataFrame:
    """Return the runs in the `runs.csv` of a report, as `frame_of` gives them; errors as in `trials_of`."""
    runs = pd.read_csv(path, dtype={"setting": str})
    runs = runs.reindex(columns=[*runs, *(name for name in setting_names() if name not in runs)])  # added since
    lists = {name: runs[name].map(_tuple, na_action="ignore") for name in _tuples()}
    runs = with_trials(runs.assign(**lists).copy())  # the copy has its columns in one piece, as pandas asks for
    for name in setting_names():  # where the file has no value, the one that the trial uses
        values = [trial.used().get(name) if is_missing(value) else value
                  for value, trial in zip(runs[name], runs[TRIAL], strict=True)]
        runs[name] = pd.Series([tuple(value) if isinstance(value, list) else value for value in values], runs.index)
    return runs


def csv_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs as `runs.csv` has them: lists as JSON, no column `trial`, and calibrated noise beside its target.

    Settings have 0 for such noise. A run that records none gets it from the accountant.
    """
    columns = {name: runs[name].map(lambda value: json.dumps(list(value)) if isinstance(value, tuple) else None)
               for name in _tuples()}
    for name, target in NOISE.items():
        columns[name] = runs[name].copy()
        for index, trial in runs.loc[runs[target] > 0, TRIAL].dropna().items():
            columns[name][index] = getattr(with_noise(trial), name)
    return runs.drop(columns=TRIAL).assign(**columns)


def _tuples() -> list[str]:
    """Return the settings that are lists of numbers."""
    return [field.name for field in settings() if isinstance(field.default, tuple)]


def _tuple(value: Any) -> tuple[Any, ...]:  # `runs.csv` has it as JSON
    return tuple(json.loads(value) if isinstance(value, str) else value)


def with_trials(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the column `trial`, for a frame that has only the settings; errors as in `trials_of`."""
    return runs.assign(**{TRIAL: pd.Series(trials_of(runs), runs.index, dtype=object)})


def trials_of(runs: pd.DataFrame) -> list[TrialConfig]:
    """Return the trials of runs, with the noise that they were trained with: the column `trial`, else their settings.

    A run whose trial cannot be composed here is refused (`ReportError`); nothing may leave it out in silence.
    """
    if TRIAL not in runs:
        return [_trial_of(row) for row in runs.to_dict("records")]
    for place, trial in enumerate(runs[TRIAL]):
        if not isinstance(trial, TrialConfig):
            raise _not_composed(runs.iloc[place])
    return list(runs[TRIAL])


def ask(runs: pd.DataFrame, question: Callable[[TrialConfig], Any]) -> pd.Series:
    """Return what each run's trial answers: `ask(runs, lambda trial: trial.parts.mechanism.private)`."""
    return pd.Series([question(trial) for trial in trials_of(runs)], runs.index, dtype=object)


def such(runs: pd.DataFrame, question: Callable[[TrialConfig], Any]) -> pd.DataFrame:
    """Return the runs whose trial answers yes."""
    return runs[ask(runs, question).astype(bool)]


def _trial_of(row: Mapping[str, Any]) -> TrialConfig:
    # A data frame has other number types, for example floats for integers.
    kinds: dict[str, Any] = {name: type(SETTINGS[name].default) for name in setting_names()}
    kinds |= dict.fromkeys(_tuples(), _tuple)
    values = {name: kind(row[name]) for name, kind in kinds.items() if not is_missing(row.get(name))}
    # Beside a target epsilon, `runs.csv` has the calibrated noise.
    noise = {level: values.pop(level) for level, target in NOISE.items() if values.get(target) and values.get(level)}
    try:
        trial = TrialConfig(**values)
    except ValueError as error:
        raise _not_composed(row, f" ({error})") from None
    if row.get("trial_key", trial.trial_key) != trial.trial_key:
        raise _not_composed(row)
    return trial.with_recorded_noise(noise)


def _not_composed(row: Mapping[str, Any], reason: str = "") -> ReportError:
    """Return the error on a run whose trial cannot be composed; an extension is registered when it is imported."""
    key = row.get("trial_key")
    if extension := missing_extension(row):
        return ReportError(f"trial {key}: {extension}, and load the runs again")
    return ReportError(f"trial_key: must be that of the settings of the run, got {key}{reason}; another version of "
                       "this software tracked it")


def searched(store: Reader, experiment: Experiment, runs: Sequence[TrackedRun] | None = None) -> Experiment:
    """Return the experiment of the open sweep of `store` as `Reader.as_swept`: a search gets its suggested trials.

    It must have suggested all of its trials (`MissingTrials`).
    """
    if experiment.plan.asks:
        n_missing = experiment.planned - len(store.suggestions())
        if n_missing:
            raise MissingTrials(f"{n_missing} of {experiment.planned} suggestions of the search are not asked for yet "
                                f"(`photonic sweep {experiment.source}` goes on)")
    return store.as_swept(experiment, runs)


def load_history(runs: Sweep, metric: str, store: Reader | str | Path = "mlruns") -> pd.DataFrame:
    """Load one metric by epoch: columns trial_key, epoch, value, algorithm, setting, seed, status; a row per epoch.

    Args:
        runs: from `load_runs`, or what it takes; trials without the metric have no rows.
        metric: its name, for example `validation/accuracy` or `alignment/layer_2`.
        store: as in `load_runs`.

    Example:
        >>> load_history(load_runs("example")[:1], "validation/accuracy")[["epoch", "value"]]
           epoch  value
        0      1    0.4
        1      2    0.8
    """
    store, rows = Reader.of(store), []
    for run in load_runs(runs, store).itertuples():
        rows += [(run.trial_key, epoch, value, run.algorithm, run.setting, run.seed, run.status)
                 for epoch, value in store.history(run.run_id, metric)]
    return pd.DataFrame(rows, columns=["trial_key", "epoch", "value", "algorithm", "setting", "seed", "status"])


def common_value(column: pd.Series) -> Any:
    """Return the value of a column whose rows all have the same, such as the data set of a table's trials."""
    return column.iloc[0]


def noise_sources(runs: pd.DataFrame) -> pd.Series:
    """Return each run's setting `noise`, of its trial or as tracked: `research`, `secure`; none without a mechanism."""
    tracked = (runs if TRIAL in runs else with_trials(runs)).reindex(columns=[TRIAL, "noise"])
    sources = [trial.canonical().get("noise") if trial else noise for trial, noise in tracked.itertuples(index=False)]
    return pd.Series(sources, runs.index, dtype=object)


def is_up_to_rounding(runs: pd.DataFrame) -> pd.Series:
    """Whether last bits of a run's contributions are not covered: operators were not reviewed where it was trained."""
    return runs.get("privacy.certified", pd.Series("", runs.index)) == UP_TO_ROUNDING


def standing_of(runs: pd.DataFrame, sources: Sequence[str] | None = None) -> str:
    """Return the standing of guarantees by the noise of runs, or by these sources: `kinds.standing`, `up to rounding`.
    """
    found = standing(noise_sources(runs).dropna() if sources is None else sources)
    return UP_TO_ROUNDING if found == "certified" and is_up_to_rounding(runs).any() else found


def relations(runs: pd.DataFrame, kind: str) -> pd.Series:
    """Return the neighbouring relation of each run's epsilon of a kind."""
    if kind == "label":
        return pd.Series(LABEL_RELATION, runs.index)
    return runs.get("privacy.relation", pd.Series("not tracked", runs.index))


def require_accuracy(runs: pd.DataFrame, name: str = "test/accuracy") -> None:
    """Check that every trial has this accuracy. `ReportError` names the first trial that has none."""
    accuracy = runs.reindex(columns=[name])[name]  # all empty if no trial has it
    missing = runs[accuracy.isna()]
    if len(missing):
        row = missing.iloc[0]  # an example for the message
        first = f"{row['algorithm']} {row['setting']} seed={row['seed']} ({row['trial_key']}, {row['status']})"
        raise ReportError(f"{name}: missing for {len(missing)} of {len(runs)} trials, the first is {first}")


def require_one(runs: pd.DataFrame, names: Sequence[str], where: str) -> None:
    """Check that all runs have the same values in these columns, which there need one, as `in one table or figure`."""
    for name in names:
        values = sorted(set(runs[name].map(str)))
        if len(values) > 1:
            raise MixedTrials(f"{name}: must be the same {where}, got {', '.join(values)}")


def require_replicates(runs: pd.DataFrame, along: Sequence[str] = ()) -> None:
    """Check that each (algorithm, setting) has trials of one configuration with different seeds, on one data set.

    `along` are further columns that separate groups.
    """
    require_one(runs, ["dataset"], "in one table or figure")
    for (algorithm, setting, *_), group in runs.groupby(["algorithm", "setting", *along]):
        require_seeds_alone(group, f"{algorithm} {setting}", "are averaged")


def require_seeds_alone(runs: pd.DataFrame, place: str, which: str) -> None:
    """Check that trials which, for example, `are averaged` differ only in their seed: others would hide a cause."""
    if differ := differing(trials_of(runs), lambda _: None):
        values = "; ".join(f"{name}: {', '.join(map(value_text, runs[name].unique()))}" for name in differ)
        raise MixedTrials(f"{place}: only the seed may differ between trials that {which}, got {values}")


def row_of(run: TrackedRun) -> dict[str, Any]:
    """Return one row of `frame_of` from a tracked run; a setting that does not apply is None, or NaN for a number."""
    numbers = {field.name for field in settings() if type(field.default) in (int, float)}
    params = {name: param_value(name, text) for name, text in run.params.items() if is_setting(name)}
    fields = {name: float("nan") if name in numbers else None for name in setting_names()} | params
    known = run.trial.canonical() if run.trial else {name: 0 if name in numbers else None for name in fields} | params
    mechanism = parts_of("mechanism", Mechanism).get(known["mechanism"], Mechanism)  # it may not be imported
    setting = mechanism.noise_setting(known).removeprefix("sigma=")
    tags = {name: text for name, text in run.tags.items()
            if name.startswith("privacy.") or name in ("git_commit", CLAMPED)}
    identity = {"trial_key": run.trial_key, "status": run.status, "run_id": run.run_id}
    return {**identity, **fields, "setting": setting, TRIAL: run.trial, **run.metrics, **tags}
