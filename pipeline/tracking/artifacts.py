"""The form of a trial in the tracking store: params, tags, status and files."""

from __future__ import annotations

import contextlib
import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pipeline.experiment.plugins import LOADED, source_digest
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.naming import counted
from pipeline.trials.part import PARTS, SETTINGS
from pipeline.trials.records import CLOCK, Outcome, Release

STATUSES = ("running", "finished", "diverged", "lost", "failed", "interrupted")
DONE = ("finished", "diverged")  # statuses of trials with a result
ENDED = (*DONE, "lost")  # statuses of trials that are trained no more; a lost one was released and has no result
FORMAT = "format"  # tag of a sweep's experiment: what keys and tags of its runs mean
PRESENT_FORMAT = "1"
EXPERIMENT = "experiment.yaml"  # artifact of a sweep's parent run: the experiment file of its last run
BUDGET = "budget"  # tag of a sweep's experiment: the initial state of its privacy budget, as JSON
BY_SCORES = "chosen_by_scores"  # tag of a sweep's experiment that has ever had random stopping: its rule, or `several`
ASKED_BY_SCORES = "asked_by_scores"  # tag of a sweep's experiment that has ever had a search by scores, or a budget
WEIGHTS = "weights.safetensors"  # artifact of a trial
CONFIG = "config.json"  # artifact of a trial: its canonical configuration
RELEASED = "released.json"  # artifact of a trial with secret noise: its epochs, from which its metrics are derived
SUGGESTIONS = "search.json"  # artifact of a sweep's parent run: the suggestions of its search
CALIBRATED = "calibrated."  # prefix of tags and params with calibrated noise: `noise_multiplier` or `sigma`
MAX_EXACT_INTEGER = 1e15  # below this, an integer in a float is exact without a decimal point
AS_JOB = " as job "  # before the id of a job of Ray in a driver's name
NAMED = "released."  # prefix of the tag with the name of a trial's sealed result: its epochs, and where it was sealed
NOT_RECORDED = "not recorded"  # replaces a plugin's digest, which may tell of records, if metrics are not plain
# Tags of a run that only points to the trial's run in another sweep (`reuse` of an experiment file).
REUSED = "reused.run"  # MLflow's id of that run, which has the history and the files
REUSED_FROM = "reused.sweep"  # the name of its sweep then


@dataclass
class TrackedRun:
    """One trial in the store.

    `metrics` has the latest values, times are milliseconds since 1970, and `epoch` is the trial's last epoch in the
    store, 0 for none.
    """

    run_id: str
    trial_key: str
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    status: str
    start_ms: int
    end_ms: int | None
    epoch: int = 0

    @cached_property
    def trial(self) -> TrialConfig | None:
        """The trial, with the calibrated noise that the run records; None where `config_of` refuses it."""
        with contextlib.suppress(ConfigError):
            return _composed(self)
        return None


def tracked(run: Any) -> TrackedRun:
    """Return MLflow's run of a trial as plain data.

    The tag `status` counts from when MLflow's own status says that the run has ended: that is written last.
    """
    tags = dict(run.data.tags)
    status = "running" if run.info.status == "RUNNING" else tags.get("status", "running")
    # A run has the latest point of each metric. Every epoch logs CLOCK; the public API does not have its step.
    last_epoch = next((metric.step for metric in run.data._metric_objs if metric.key == CLOCK), 0)
    return TrackedRun(run_id=run.info.run_id, trial_key=tags["trial_key"], params=dict(run.data.params),
                      metrics=dict(run.data.metrics), tags=tags, status=status,
                      start_ms=run.info.start_time, end_ms=run.info.end_time, epoch=last_epoch)


@dataclass(frozen=True)
class Suggestion:
    """A suggestion of a search: a trial, and whether it was allowed to start; otherwise it did not fit the budget."""

    trial: TrialConfig
    started: bool


def suggestions_text(suggestions: Sequence[Suggestion]) -> str:
    """Return the suggestions of a search as JSON, in order."""
    entries = [{"trial_key": suggestion.trial.trial_key, "started": suggestion.started,
                "settings": suggestion.trial.used()} for suggestion in suggestions]
    return json.dumps(entries, indent=1) + "\n"


def decisions_of(text: str) -> list[tuple[str, bool]]:
    """Return (trial_key, whether it was allowed to start) of suggestions in JSON; none of a damaged text."""
    try:
        return [(entry["trial_key"], entry["started"]) for entry in json.loads(text)]
    except (ValueError, TypeError, KeyError):
        return []


def started(suggestions: Iterable[Suggestion]) -> tuple[TrialConfig, ...]:
    """Return the trials that were allowed to start, each once."""
    trials = {suggestion.trial.trial_key: suggestion.trial for suggestion in suggestions if suggestion.started}
    return tuple(trials.values())


def suggestions_of(text: str) -> list[Suggestion]:
    """Return the suggestions in a text from `suggestions_text`; settings that are no longer valid: `ConfigError`."""
    return [Suggestion(TrialConfig(**entry["settings"]), entry["started"]) for entry in json.loads(text)]


def param_text(value: Any) -> str:
    """Return a param's text in MLflow: a text unchanged, an integral number without a point, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_EXACT_INTEGER:
        value = int(value)
    return json.dumps(value)


def is_setting(name: str) -> bool:
    """Whether a param is a setting of its trial, and not a calibrated value."""
    return not name.startswith(CALIBRATED)


def param_value(name: str, text: str) -> Any:
    """Return a param's value in the type of its setting, the inverse of `param_text`; text for an unknown setting."""
    kind: Any = type(SETTINGS[name].default) if name in SETTINGS else str
    return text if kind is str else kind(json.loads(text))


def config_of(run: TrackedRun) -> TrialConfig:
    """Return the trial of a tracked run; `ConfigError` says why there is none.

    The params do not, or no longer, fit the trial_key, or an extension is not imported.
    """
    return run.trial or _composed(run)


def names_of(tags: Mapping[str, str]) -> list[str]:
    """Return the names of the sealed results that a run has, from its tags; one, unless two drivers ran its sweep."""
    return [tag.removeprefix(NAMED) for tag in tags if tag.startswith(NAMED)]


def has_released(run: TrackedRun) -> bool:
    """Whether a run has published an epoch, or has the name of a sealed result, of which something may be published."""
    return bool(run.epoch or names_of(run.tags))


def releases_of(run: TrackedRun, deleted: bool = False) -> list[Release]:
    """Return what a run has released, one for each name of secret noise; errors as in `config_of`."""
    if not has_released(run):
        return []
    trial = config_of(run)
    if not trial.secure:
        return [Release(trial, run.epoch, deleted)]
    return [Release(trial, trial.epochs, deleted, name) for name in names_of(run.tags)]


def waiting(runs: Iterable[TrackedRun]) -> list[TrackedRun]:
    """Return the runs with a name of secret noise that have not ended."""
    return [run for run in runs if names_of(run.tags) and run.status not in ENDED]


def _composed(run: TrackedRun) -> TrialConfig:
    """Return the trial of a run's params, with its recorded noise; errors as in `config_of`."""
    if extension := missing_extension(run.params):
        raise ConfigError(f"run {run.run_id}: {extension}")
    try:
        values = {name: param_value(name, text) for name, text in run.params.items() if is_setting(name)}
        config = TrialConfig(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"run {run.run_id}: its params cannot be read ({error})") from None
    if config.trial_key != run.trial_key:
        raise ConfigError(f"run {run.run_id}: its params must be those of trial {run.trial_key}, got those of "
                          f"{config.trial_key}; another version of this software tracked it")
    return config.with_recorded_noise(recorded_noise(run))


def missing_extension(settings: Mapping[str, Any]) -> str:
    """Return the end of a message on settings that name a part of an extension that is not imported; else empty."""
    for slot, parts in PARTS.items():
        if isinstance(name := settings.get(slot), str) and name not in parts:
            return (f"{slot} '{name}' is an extension's; import the module that registers it, or give the command the "
                    "experiment file whose `plugins` name it")
    return ""


def changed_networks(runs: Iterable[TrackedRun], trials: Iterable[TrialConfig]) -> list[str]:
    """Return remarks on users' networks whose file has changed since these runs, under the same version."""
    own: dict[str, Any] = {trial.network: trial.parts.network for trial in trials if trial.parts.network.own}
    remarks: dict[str, str] = {}
    for run in runs:
        network = own.get(run.params.get("network", ""))
        if network is None or run.params.get("network_version") != str(network.version):
            continue
        module = network.build.__module__
        then = run.tags.get(f"plugin.{module}", NOT_RECORDED)
        if then != NOT_RECORDED and then != (now := LOADED.get(module) or source_digest(network.source)):
            remarks.setdefault(network.name, (
                f"network '{network.name}': its file was another when it was trained with version {network.version} "
                f"({then}, and now {now}); raise the version if results change"))
    return list(remarks.values())


def code_remarks(trial: TrialConfig, run: TrackedRun | None = None) -> list[str]:
    """Return what to know before a trial's weights meet the loaded code of a user's network; of its run, if known."""
    network: Any = trial.parts.network
    if not network.own:
        return []
    said = f"network '{network.name}': trained under version {trial.network_version}"
    if trial.network_version != network.version:
        return [f"{said}, loaded now is version {network.version}, whose code its weights go through"]
    if run and run.tags.get(f"plugin.{network.build.__module__}", NOT_RECORDED) == NOT_RECORDED:
        return [f"{said}; nothing can tell whether its file has changed, as its code was not recorded"]
    return changed_networks([run], [trial]) if run else []


def done_of(runs: Iterable[TrackedRun]) -> dict[str, str]:
    """Return trial_key -> status of the runs that are trained no more."""
    return {run.trial_key: run.status for run in runs if run.status in ENDED}


def reused_text(runs: Iterable[TrackedRun]) -> str:
    """Return how many of these runs are taken over, and from where: `3 trials of first, 1 trial of second`."""
    numbers = Counter(run.tags[REUSED_FROM] for run in runs if REUSED in run.tags)
    return ", ".join(f"{counted(number, 'trial')} of {name}" for name, number in numbers.items())


def recorded_noise(run: TrackedRun) -> dict[str, float]:
    """Return the calibrated noise of a run by setting; empty without a target, and before the first epoch."""
    return {name.removeprefix(CALIBRATED): float(text) for name, text in run.tags.items() if not is_setting(name)}


def total_costs(runs: Iterable[TrackedRun]) -> tuple[float, float]:
    """Return (sum of epsilons, sum of deltas) over runs with a certified epsilon.

    A run counts with its smallest logged epsilon, and with secret noise as often as it has names. Runs of one trial
    draw the same noise if it comes from a recorded seed: they are one release, which counts with its largest cost.
    """
    costs: dict[str, tuple[float, float]] = {}  # release -> (epsilon, delta)
    for run in runs:
        epsilons = [value for metric, value in run.metrics.items() if metric.startswith("epsilon/certified/")]
        for name in names_of(run.tags) or [""] if epsilons else ():
            cost = min(epsilons), float(run.tags["privacy.delta"])
            release = f"{run.trial_key} {name}"
            costs[release] = max(costs.get(release, cost), cost)
    return sum(epsilon for epsilon, _ in costs.values()), sum(delta for _, delta in costs.values())


def write_artifacts(folder: Path, config: TrialConfig, outcome: Outcome) -> None:
    """Write `weights.safetensors`, `per_class.csv` and `config.json` (the canonical configuration) into `folder`."""
    weights = {name: np.ascontiguousarray(array) for name, array in outcome.weights.items()}
    save_file(weights, folder / WEIGHTS)
    with open(folder / "per_class.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["split", "label", "count", "correct", "accuracy"])
        for row in outcome.per_class:
            accuracy = row.correct / row.count if row.count else ""  # no record of the class, no accuracy
            table.writerow([row.split, row.label, row.count, row.correct, accuracy])
    (folder / CONFIG).write_text(json.dumps(config.canonical(), indent=2) + "\n")
