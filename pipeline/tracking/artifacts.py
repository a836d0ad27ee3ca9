"""How a trial looks in the tracking store: its name, its params and back, its status, and the files it leaves."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.part import PARTS
from pipeline.trials.records import Outcome

STATUSES = ("running", "finished", "diverged", "stopped", "failed", "interrupted")
DONE = ("finished", "diverged", "stopped")  # need no more training
EXPERIMENT = "experiment.yaml"  # of a sweep's parent run: the experiment file as it was swept last
IMPORTED = "imported"  # tag of what others trained: of its experiment, its parent run and its runs
BUDGET = "budget"  # its tag with what a privacy budget began with, as JSON
WEIGHTS = "weights.safetensors"  # of a trial
CONFIG = "config.json"  # its canonical configuration
SUGGESTIONS = "search.json"  # of a sweep's parent run: what its search has asked for
CALIBRATED = "calibrated."  # tags and params of what a target came to: `noise_multiplier` or `sigma`
MOST_DIGITS = 1e15  # whole numbers up to here are as exact without a point
# Tags of a trial with secret noise, of which every draw is a release of its own.
DRAW = "draw"  # random name of the draw that a run's epochs are of
DRAWS = "privacy.draws"  # how many there were until this one, those of deleted runs included
EARLIER = "privacy.earlier_epochs"  # that the draws before this one have released, all together
LOST = "privacy.lost_epochs"  # that count as released beside those that were published: of attempts that failed
REFUSED = "privacy.refused"  # why a budget did not admit another draw


class Kinds(Mapping[str, type]):
    """The type of every setting of a trial, by name; those of extensions are there once they are registered."""

    def __getitem__(self, name: str) -> type:
        for f in settings():
            if f.name == name:
                return type(f.default)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(f.name for f in settings())

    def __len__(self) -> int:
        return len(settings())


FIELDS = Kinds()


@dataclass
class TrackedRun:
    """One trial as the store holds it: `metrics` are the latest values, times are milliseconds since 1970, `epoch` is
    the last one that it has of the trial, 0 for none."""

    run_id: str
    trial_key: str
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    status: str
    start_ms: int
    end_ms: int | None
    epoch: int = 0


@dataclass(frozen=True)
class Suggestion:
    """What a search has asked for: a trial, and whether it was let start, or its cost did not fit the budget."""

    trial: TrialConfig
    started: bool


def suggestions_text(suggestions: Sequence[Suggestion]) -> str:
    """Suggestions in their order, as JSON."""
    return json.dumps([{"trial_key": s.trial.trial_key, "started": s.started, "settings": s.trial.used()}
                       for s in suggestions], indent=1) + "\n"


def decisions_of(text: str) -> list[tuple[str, bool]]:
    """(trial_key, whether it was let start) of suggestions as JSON, whatever their settings; of a text that is cut off
    or damaged none."""
    try:
        return [(entry["trial_key"], entry["started"]) for entry in json.loads(text)]
    except (ValueError, TypeError, KeyError):
        return []


def started(suggestions: Iterable[Suggestion]) -> tuple[TrialConfig, ...]:
    """The trials that were let start, each once."""
    return tuple({s.trial.trial_key: s.trial for s in suggestions if s.started}.values())


def suggestions_of(text: str) -> list[Suggestion]:
    """The inverse of `suggestions_text`.

    Raises:
        ConfigError: for settings that are not, or no longer, those of a trial.
    """
    return [Suggestion(TrialConfig.from_mapping(entry["settings"]), entry["started"]) for entry in json.loads(text)]


def param_text(value: Any) -> str:
    """A param as MLflow stores it, and people write it: text as it is, a whole number without a point, all else as
    JSON. Earlier versions wrote `3.0`, which their runs keep."""
    if isinstance(value, float) and value.is_integer() and abs(value) < MOST_DIGITS:
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


def is_setting(name: str) -> bool:
    """Whether a param is a setting of its trial, and not what a setting came to."""
    return not name.startswith(CALIBRATED)


def param_value(name: str, text: str) -> Any:
    """A param in the type of its field: the inverse of `param_text`."""
    kind = FIELDS.get(name, str)
    return text if kind is str else kind(json.loads(text))


def config_of(run: TrackedRun) -> TrialConfig:
    """The configuration of a tracked trial, from its params.

    Raises:
        ConfigError: for params that are not, or no longer, those of its trial_key, or a trainer that nobody entered.
    """
    if (trainer := run.params.get("trainer", "built_in")) not in PARTS["trainer"]:
        raise ConfigError(f"run {run.run_id}: must be of a trainer that is entered, got '{trainer}'; a plugin of its "
                          "experiment file enters it")
    try:
        config = TrialConfig.from_mapping({name: param_value(name, text) for name, text in run.params.items()
                                           if is_setting(name)})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"run {run.run_id}: its params cannot be read ({error})") from None
    if config.trial_key != run.trial_key:
        raise ConfigError(f"run {run.run_id}: its params must be those of trial {run.trial_key}, got those of "
                          f"{config.trial_key}; another version of this software tracked it")
    return config


def added_up(runs: Iterable[TrackedRun]) -> tuple[float, float]:
    """Epsilon and delta of certified runs together: of each the least epsilon that was logged, of runs of one trial
    with recorded noise the largest, as they are one release."""
    costs: dict[str, tuple[float, float]] = {}
    for run in runs:
        logged = [value for metric, value in run.metrics.items()
                  if metric.startswith(("epsilon/certified/", "epsilon/stated/"))]
        if logged:
            redrawn = run.params.get("noise") == "secure" or "trainer" in run.params
            release = run.run_id if redrawn else run.trial_key
            cost = min(logged), float(run.tags["privacy.delta"])
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
