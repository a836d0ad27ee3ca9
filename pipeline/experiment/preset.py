"""Settings that train: what `preset: recommended` puts where an experiment file leaves a setting open.

They depend on the data set, features, mechanism, method (`naming.method`) and epsilon of each trial, and become
settings of the trial as if they were written in the file. `recommended.yaml` beside this module has them, with their
origin. They never change, as trials are named by their settings: better ones make a preset of another name.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.datasets import DATASETS
from pipeline.trials.declared_table import TableSpec
from pipeline.trials.fields import check, coerce, is_number, plain, refuse
from pipeline.trials.mechanism import Mechanism
from pipeline.trials.naming import method, method_of
from pipeline.trials.network import Network
from pipeline.trials.part import SETTINGS, parts_of

RECOMMENDED = "recommended"
ANY = "any"  # data set or features of rows for what has no row of its own
TABLE = "table"  # data set of rows for every table that a file declares
# Settings on which it depends what is recommended, beside the target epsilon.
DEPENDS = ("dataset", "features", "mechanism", "algorithm", "hidden", "network", "validation_fraction", "train_records")
OF_ANY_NETWORK = ("sampler", "batch_size", "epochs", "clipping_norm")  # what is recommended for a user's network, too
WITHOUT_TARGET = 3.0  # epsilon whose values are recommended beside `noise_multiplier`, which gives the noise itself
DIGITS = 2  # of a number that is computed from others
MOST_NAMED = 3  # rows in a message


class Recommendation(NamedTuple):
    """Settings of one trial, by name, and where they come from."""

    settings: dict[str, Any]
    source: str


# A trial, its settings in the file by name, and what the file's preset recommends for it, if it names one.
Advised = tuple[TrialConfig, Mapping[str, Any], Recommendation | None]


def read_preset(top: Mapping[str, Any]) -> str:
    """Return the entry `preset` of an experiment file; empty without the entry."""
    name: str = top.get("preset", "")
    refuse("preset" in top and name != RECOMMENDED, "preset", f"must be '{RECOMMENDED}'", repr(name))
    return name


def recommended(**settings: Any) -> TrialConfig:
    """Return a trial with these settings; `preset: recommended` sets all others.

    Raises:
        ConfigError: if the preset has nothing for the trial, naming what it has; for settings that cannot be run.

    Example:
        >>> trial = recommended(dataset="digits", algorithm="dfa", mechanism="per_example", target_epsilon=3)
        >>> trial.sampler, trial.hidden
        ('poisson', (64,))
    """
    return TrialConfig(**{**recommend(settings).settings, **settings})


def recommend(given: Mapping[str, Any]) -> Recommendation:
    """Return the settings that the preset recommends for a trial, also those that are given.

    The given settings of `DEPENDS` and the target epsilon decide. Settings were tuned at some epsilons, and between
    these they are interpolated. With `noise_multiplier` in place of a target they are those of `WITHOUT_TARGET`,
    whatever the noise. A row for any data set was tuned for one number of records, and is scaled to the trial's number.
    An unknown name is not refused here (the result is empty): making the trial refuses it.
    """
    if given.keys() - SETTINGS.keys():
        return Recommendation({}, "")
    trial = {}
    for name in DEPENDS:
        trial[name] = coerce(SETTINGS[name], given.get(name, SETTINGS[name].default))
        if name in given:
            check(SETTINGS[name], trial[name])
    method_name = method_of(trial["algorithm"], trial["network"], trial["hidden"])
    mechanism = parts_of("mechanism", Mechanism)[trial["mechanism"]]
    epsilon = _epsilon(mechanism, given)
    row = next((row for row in _rows() if _is_for(row, trial, method_name)
                and not (row.get("without_target") and epsilon)), None)
    if row is None or parts_of("network", Network)[trial["network"]].convolutional:
        settings = ", ".join(f"{name} {trial[name]}" for name in ("dataset", "features", "mechanism", "network"))
        raise ConfigError(f"preset: {RECOMMENDED} has no settings for {method_name} with {settings}; the nearest that "
                          f"it has are for {'; '.join(_nearest(trial, method_name))}")
    if mechanism.target and not row.get("without_target") and not (is_number(epsilon) and epsilon > 0):
        hint = "or give noise_multiplier" if mechanism.certified else ""
        if others := [f"in place of {name} write {text}" for name, text in mechanism.instead.items() if name in given]:
            hint = "; ".join(others)
        raise ConfigError(mechanism.target, "must be > 0 with a preset, which chooses settings by it", repr(epsilon),
                          hint)
    return Recommendation(_settings(row, trial, method_name, epsilon), row["source"])


def _epsilon(mechanism: type[Mechanism], given: Mapping[str, Any]) -> Any:
    target = given.get(mechanism.target) if mechanism.target else None
    if mechanism.certified and not target and "noise_multiplier" in given:
        return WITHOUT_TARGET
    return target


def _is_for(row: Mapping[str, Any], trial: Mapping[str, Any], method_name: str) -> bool:
    datasets = [ANY, trial["dataset"]]
    if isinstance(DATASETS[trial["dataset"]].spec, TableSpec):
        datasets.append(TABLE)
    return (row["mechanism"] == trial["mechanism"] and method_name in row["methods"] and row["dataset"] in datasets
            and row["features"] in (ANY, trial["features"]))


def _settings(row: Mapping[str, Any], trial: Mapping[str, Any], method_name: str, epsilon: Any) -> dict[str, Any]:
    """Return a row's settings, interpolated to a trial's epsilon and scaled to its number of records."""
    tuned = {**row["shared"], **row["methods"][method_name]}
    values = {name: _interpolated(value, epsilon) for name, value in tuned.items()}
    spec = DATASETS[trial["dataset"]].spec
    records, _ = spec.split_sizes(trial["validation_fraction"], trial["train_records"])
    if "records" in row:
        values |= _scaled(values, row["records"], records)
    elif "batch_share" in row:
        values["batch_size"] = 2 ** round(math.log2(max(1.0, row["batch_share"] * records)))
    if parts_of("network", Network)[trial["network"]].own:
        return {name: value for name, value in values.items() if name in OF_ANY_NETWORK}
    return values


def _nearest(trial: Mapping[str, Any], method_name: str) -> list[str]:
    """Return in words what the `MOST_NAMED` rows most like a trial are for, the nearest first."""
    def likeness(row: Mapping[str, Any]) -> int:  # the mechanism counts most, as it decides what is private
        return (4 * (row["mechanism"] == trial["mechanism"]) + (method_name in row["methods"])
                + sum(row[name] in (ANY, trial[name]) for name in ("dataset", "features")))

    ranked = sorted(_rows(), key=likeness, reverse=True)
    texts = dict.fromkeys(f"{row['mechanism']} on {row['features']} of {row['dataset']} ({', '.join(row['methods'])})"
                          for row in ranked)  # each once
    return list(texts)[:MOST_NAMED]


def _scaled(values: Mapping[str, Any], tuned_records: int, records: int) -> dict[str, Any]:
    """Return {setting: value} of batch size, epochs and learning rate, scaled from `tuned_records` to `records`.

    The batch size, a power of 2, scales with the square root of the number of records; learning rate and number of
    steps scale with the fourth root.
    """
    tuned_steps = values["epochs"] * tuned_records / values["batch_size"]
    scale = (records / tuned_records) ** 0.25
    exponent = round(math.log2(max(1.0, values["batch_size"] * scale**2)))
    largest_exponent = math.floor(math.log2(max(1, records)))  # a batch has at most all records
    batch_size = 2 ** min(exponent, largest_exponent)
    epochs = max(1, round(tuned_steps * scale * batch_size / max(1, records)))
    return {"batch_size": batch_size, "epochs": epochs, "learning_rate": _rounded(values["learning_rate"] * scale)}


def _interpolated(value: Any, epsilon: float | None) -> Any:
    """Return a setting's recommended value at an epsilon: interpolated between two tuned epsilons, else the nearest's.

    `value` maps tuned epsilons to values, or is the value at any epsilon. Only floats are interpolated.
    """
    if not isinstance(value, Mapping):
        return value
    tuned = sorted(value)
    nearest = min(tuned, key=lambda tuned_epsilon: abs(math.log(tuned_epsilon / epsilon)))
    if nearest == epsilon or not tuned[0] <= epsilon <= tuned[-1] or not isinstance(value[nearest], float):
        return value[nearest]
    low = max(tuned_epsilon for tuned_epsilon in tuned if tuned_epsilon <= epsilon)
    high = min(tuned_epsilon for tuned_epsilon in tuned if tuned_epsilon >= epsilon)
    fraction = math.log(epsilon / low) / math.log(high / low)  # of the way from low to high
    return _rounded(value[low] * (value[high] / value[low]) ** fraction)


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


@functools.cache
def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = yaml.safe_load(
        Path(__file__).with_name(f"{RECOMMENDED}.yaml").read_text(encoding="utf-8"))
    return rows


class _Compared(NamedTuple):  # settings, (name, value), of the trials of one method on one data set
    of_preset: list[tuple[str, Any]]  # which it sets or, without a preset in the file, would set
    of_trials: list[tuple[str, Any]]  # which differ from those that are recommended


def advice(preset: str, trials: Iterable[Advised]) -> tuple[str, ...]:
    """Return lines for people on what a file's preset has set, and what the file has in place of its recommendations.

    Without a preset (empty `preset`), the lines name settings at general defaults that it would change. No preset sets
    the step of a user's network, which a line says unless the file does.
    """
    trials = list(trials)
    methods: dict[tuple[str, ...], list[str]] = {}  # all methods with the same advice
    for (name, where, source), compared in _compare(preset, trials).items():
        texts = where, _listed(compared.of_preset), _listed(compared.of_trials), source
        methods.setdefault(texts, []).append(name)
    lines = []
    for (where, of_preset, of_trials, source), names in methods.items():
        who = f"{', '.join(names)} on {where}"
        if preset:
            lines.append(f"{preset} sets, for {who}: {of_preset} ({source})")
            if of_trials:
                lines.append(f"  the file has, in place of what is recommended: {of_trials}")
        elif of_trials:
            lines.append(f"left at general defaults, by {who}: {of_trials}")
            lines.append(f"  `preset: {RECOMMENDED}` in the file would set: {of_preset} ({source})")
    without_step = {(trial.network, trial.learning_rate): None for trial, written, _ in trials
                    if trial.parts.network.own and "learning_rate" not in written}
    lines += [f"network {name} trains with the general default, learning_rate={step:g}, which no preset replaces: try "
              "several larger ones (docs/choosing.md)" for name, step in without_step]
    return tuple(lines)


def _compare(preset: str, trials: Iterable[Advised]) -> dict[tuple[str, str, str], _Compared]:
    """Return settings by method, place of use in words, and source of what is recommended there."""
    found: dict[tuple[str, str, str], _Compared] = {}
    for trial, written, recommended in trials:
        try:
            recommendation = recommended or recommend({name: getattr(trial, name) for name in written})
        except ConfigError:  # nothing is recommended for it
            continue
        if not recommendation.settings:
            continue
        features = "" if trial.parts.features.raw else f"{trial.features} of "
        where = f"{features}{trial.dataset}, mechanism {trial.mechanism}"
        compared = found.setdefault((method(trial), where, recommendation.source), _Compared([], []))
        for field, value in recommendation.settings.items():
            differs = plain(getattr(trial, field)) != value
            if field not in written and (preset or differs):
                compared.of_preset.append((field, value))
            is_shown = field in written if preset else field not in written  # the file's own, else general defaults
            if differs and is_shown:
                compared.of_trials.append((field, getattr(trial, field)))
    return found


def _listed(settings: Iterable[tuple[str, Any]]) -> str:
    """Return all values of each setting as text, sorted by name: `epochs=20 learning_rate=1.2,2.5`."""
    values: dict[str, dict[str, None]] = {}  # name -> its distinct values in order, as keys
    for name, value in settings:
        as_json = json.dumps(plain(value)).strip('"').replace(" ", "")
        text = f"{value:g}" if isinstance(value, float) else as_json
        values.setdefault(name, {})[text] = None
    return " ".join(f"{name}={','.join(values[name])}" for name in sorted(values))
