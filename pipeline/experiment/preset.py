"""Settings that train: what `preset: recommended` puts where an experiment file leaves a setting open.

They depend on the data set, features, mechanism, method (`naming.method`) and epsilon of each trial, and become
settings of the trial as if they were written in the file. `recommended-1.yaml` beside this module has them, with their
origin. A version never changes, as trials are named by their settings: better settings are a new version, whose file
has only new rows, and the store keeps the version with which a sweep was run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.datasets import DATASETS
from pipeline.trials.fields import check, coerce, listed_or, plain, renamed
from pipeline.trials.mechanism import Mechanism
from pipeline.trials.naming import method
from pipeline.trials.network import Network
from pipeline.trials.part import SETTINGS, parts_of

OWN = SETTINGS["trainer"].default
VERSIONS = ("recommended-1", "recommended-2")  # append only: trials are named by what a version says
NEWEST = "recommended"  # in a file: the last of them
ANY = "any"  # data set or features of rows for what has no row of its own
# Settings on which it depends what is recommended, beside the target epsilon.
DEPENDS = ("dataset", "features", "mechanism", "algorithm", "hidden", "network", "validation_fraction", "train_records")
DIGITS = 2  # of a number that is computed from others


class Recommendation(NamedTuple):
    """Settings of one trial, by name, and where they come from."""

    settings: dict[str, Any]
    source: str


def read_preset(top: Mapping[str, Any]) -> str:
    """Return the version that the entry `preset` of an experiment file names; empty without the entry.

    Raises:
        ConfigError: for a preset that does not exist.
    """
    name = top.get("preset", "")
    if "preset" in top and name not in (NEWEST, *VERSIONS):
        raise ConfigError(f"preset: must be {listed_or((NEWEST, *VERSIONS))}, got {name!r}")
    return VERSIONS[-1] if name == NEWEST else name


def pinned(text: str, version: str) -> str:
    """Return an experiment file's text with `preset: recommended` replaced by the version that it means today.

    So the stored text has the same meaning when newer versions exist. An empty version changes nothing.
    """
    top = yaml.compose(text, yaml.SafeLoader) if version else None
    for key, value in top.value if top else ():
        if key.value == "preset":
            return text[:value.start_mark.index] + version + text[value.end_mark.index:]
    return text


def recommended(**settings: Any) -> TrialConfig:
    """Return a trial with these settings and, for settings that are left open, those of `preset: recommended`.

    Raises:
        ConfigError: as `recommend`, and for settings that cannot be run.

    Example:
        >>> trial = recommended(dataset="digits", algorithm="dfa", mechanism="per_example", target_epsilon=3)
        >>> trial.sampler, trial.hidden
        ('poisson', (64,))
    """
    return TrialConfig.from_mapping(filled(VERSIONS[-1], renamed(settings)))


def filled(version: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings and, for settings that are left open, those of a preset version.

    The given settings alone are returned for an empty version, for a user's trainer, and if a name is no setting;
    whoever makes the trial refuses such a name.

    Raises:
        ConfigError: as `recommend`.
    """
    if not version or given.keys() - SETTINGS.keys() or given.get("trainer", OWN) != OWN:
        return dict(given)
    return {**recommend(version, given).settings, **given}


def recommend(version: str, given: Mapping[str, Any]) -> Recommendation:
    """Return the settings that a preset version recommends for a trial, whatever else is given.

    Settings were tuned at some epsilons. Between two of them, numbers are interpolated on logarithmic scales; other
    values, and those beyond the ends, are taken from the nearest epsilon. A row for any data set was tuned for a number
    of records: the batch size scales with the square root of this number, learning rate and number of steps with the
    fourth root.

    Args:
        given: settings of the trial; those of `DEPENDS` and the target epsilon decide.

    Raises:
        ConfigError: if nothing is recommended, naming the available rows; for a value of `DEPENDS` that is not
            accepted.
    """
    of_rows = [SETTINGS[name] for name in DEPENDS]
    trial = {f.name: coerce(f, given.get(f.name, f.default)) for f in of_rows}
    for f in (f for f in of_rows if f.name in given):
        check(f, trial[f.name])
    name = method(trial)
    rows = [row for row in _rows(version) if row["mechanism"] == trial["mechanism"] and name in row["methods"]
            and all(row[field] in (ANY, trial[field]) for field in ("dataset", "features"))]
    if not rows or parts_of("network", Network)[trial["network"]].convolutional:
        raise ConfigError(_nothing_for(version, name, trial))
    row, target = rows[0], parts_of("mechanism", Mechanism)[trial["mechanism"]].target
    epsilon = given.get(target) if target else None
    if target and (isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not epsilon > 0):
        raise ConfigError(f"{target}: must be > 0 with a preset, which chooses settings by it, got {epsilon!r}")
    values = {field: _at(value, epsilon) for field, value in {**row["shared"], **row["methods"][name]}.items()}
    if "records" in row:
        records, _ = DATASETS[trial["dataset"]].split_sizes(trial["validation_fraction"], trial["train_records"])
        tuned_steps = values["epochs"] * row["records"] / values["batch_size"]
        scale = (records / row["records"]) ** 0.25
        exponent = round(math.log2(max(1.0, values["batch_size"] * scale**2)))
        largest_exponent = math.floor(math.log2(max(1, records)))  # a batch has at most all records
        values["batch_size"] = 2 ** min(exponent, largest_exponent)
        values["epochs"] = max(1, round(tuned_steps * scale * values["batch_size"] / max(1, records)))
        values["learning_rate"] = _rounded(values["learning_rate"] * scale)
    return Recommendation(values, row["source"])


def by_preset(preset: str | None, field: str) -> str:
    """Return the end of a message on a faulty setting that a preset may have set: how to override it; else empty.

    Args:
        preset: version of the file's preset, if it has one.
        field: the setting, which is not in the file.
    """
    sets = preset and field in SETTINGS.keys() - {cls.target for cls in parts_of("mechanism", Mechanism).values()}
    return f"; give {field} in the file, in place of what the preset has" if sets else ""


def _nothing_for(version: str, name: str, trial: Mapping[str, Any]) -> str:
    """Return a message that a preset version has no settings for a trial, with those it has.

    Args:
        name: of the trial's method.
        trial: its values of `DEPENDS`.
    """
    asked = ", ".join(f"{field} {trial[field]}" for field in ("dataset", "features", "mechanism", "network"))
    known = "; ".join(f"{row['mechanism']} on {row['features']} of {row['dataset']} ({', '.join(row['methods'])})"
                      for row in _rows(version))
    return f"preset: {version} has no settings for {name} with {asked}; it has settings for {known}"


def _at(value: Any, epsilon: float | None) -> Any:
    """Return a setting's value at an epsilon.

    Numbers between two tuned epsilons are interpolated on logarithmic scales; other values are those of the nearest.

    Args:
        value: the same at every epsilon, or a mapping from tuned epsilons to values.
    """
    if not isinstance(value, Mapping):
        return value
    tuned = sorted(value)
    nearest = min(tuned, key=lambda other: abs(math.log(other / epsilon)))
    below = [other for other in tuned if other <= epsilon]
    above = [other for other in tuned if other >= epsilon]
    if nearest == epsilon or not below or not above or not isinstance(value[nearest], float):
        return value[nearest]
    low, high = below[-1], above[0]  # the tuned epsilons on either side
    share = math.log(epsilon / low) / math.log(high / low)
    return _rounded(value[low] * (value[high] / value[low]) ** share)


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


@functools.cache
def _rows(version: str) -> list[dict[str, Any]]:
    """Return the rows of a version's file, followed by those of all earlier versions."""
    own = yaml.safe_load(Path(__file__).with_name(f"{version}.yaml").read_text(encoding="utf-8"))
    place = VERSIONS.index(version)
    return own + _rows(VERSIONS[place - 1]) if place else own


def advice(version: str, trials: Sequence[tuple[TrialConfig, Mapping[str, Any]]]) -> tuple[str, ...]:
    """Return lines for people on what a preset has set, and what the file has in place of its recommendations.

    Without a preset (empty `version`), the lines name settings at general defaults that the newest preset would change.

    Args:
        trials: each with its written settings, by name.
    """
    groups: dict[tuple[str, ...], list[tuple[TrialConfig, Mapping[str, Any], Recommendation]]] = {}
    for trial, written in ((trial, written) for trial, written in trials if trial.parts.trainer.own):
        with contextlib.suppress(ConfigError):  # nothing is recommended for it
            found = recommend(version or VERSIONS[-1], {name: getattr(trial, name) for name in written})
            own = method({"network": trial.network, "hidden": trial.hidden, "algorithm": trial.algorithm})
            where = f"{trial.features} of {trial.dataset}, mechanism {trial.mechanism}"
            groups.setdefault((own, where, found.source), []).append((trial, written, found))
    alike: dict[tuple[str, ...], list[str]] = {}  # methods by what is said of them
    for (own, where, source), group in groups.items():
        open_ones = [(trial, name, value) for trial, written, found in group for name, value in found.settings.items()
                     if name not in written]
        given = [(trial, name, value) for trial, written, found in group for name, value in found.settings.items()
                 if name in written]
        sets = _listed((name, value) for trial, name, value in open_ones if version or _differs(trial, name, value))
        kept = _listed((name, getattr(trial, name)) for trial, name, value in (given if version else open_ones)
                       if _differs(trial, name, value))
        alike.setdefault((where, sets, kept, source), []).append(own)
    lines = []
    for (where, sets, kept, source), names in alike.items():
        who = f"{', '.join(names)} on {where}"
        if version:
            lines.append(f"{version} sets, for {who}: {sets} ({source})")
            lines += [f"  the file has, in place of what is recommended: {kept}"] if kept else []
        elif kept:
            lines.append(f"left at general defaults, by {who}: {kept}")
            lines.append(f"  `preset: {NEWEST}` in the file would set: {sets} ({source})")
    return tuple(lines)


def _differs(trial: TrialConfig, name: str, value: Any) -> bool:
    """Whether a trial's value differs from the recommended one."""
    return plain(getattr(trial, name)) != value


def _listed(settings: Iterable[tuple[str, Any]]) -> str:
    """Return `epochs=20 learning_rate=1.2,2.5`: all values of each setting, sorted by name."""
    values: dict[str, dict[str, None]] = {}
    for name, value in settings:
        text = f"{value:g}" if isinstance(value, float) else json.dumps(plain(value)).strip('"').replace(" ", "")
        values.setdefault(name, {})[text] = None
    return " ".join(f"{name}={','.join(values[name])}" for name in sorted(values))
