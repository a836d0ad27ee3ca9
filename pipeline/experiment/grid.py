"""The trials of an experiment file: its ranges, and every combination of base, grid and cases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pipeline.experiment.preset import by_preset, filled
from pipeline.experiment.yaml_text import replace_synonyms
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.feature_file import with_located_features
from pipeline.trials.fields import SYNONYMS, accepted, known_fields, renamed

MOST_TRIALS = 100_000  # of an experiment; a trial takes 11 kB before it is trained
PARTS = ("selection", "search", "stop", "budget")  # parts of a file with entries that --set can change


def changed(content: Any, changes: Mapping[str, Any], path: Path) -> tuple[Any, str]:
    """Return (content, text) of an experiment file after the option `--set` has changed settings of its base.

    Args:
        content: the parsed file.
        changes: new values by field. `name` is the experiment's name. A field with a dot, such as `search.seed` or
            `budget.epsilon`, is an entry of that part of the file.
        path: path of the file; the new text names it.

    Raises:
        ConfigError: for an unknown field, or one that a grid, a case or a space sets, because these override the base.
    """
    entry_changes = {field: value for field, value in changes.items() if field == "name" or "." in field}
    for field, value in entry_changes.items():
        content = _set_entry(content, field, value)
    base_changes = renamed({field: value for field, value in changes.items() if field not in entry_changes})
    official = replace_synonyms(content)
    base = _settings(official, "base")
    for place, part in _overriding_parts(official).items():
        for field in base_changes:
            if isinstance(part, Mapping) and field in part:
                raise ConfigError(f"--set {field}: must be a field that no grid, case or space sets, got one of "
                                  f"{place}; edit the file")
    names = [f.name for f in settings()]
    for field, value in base_changes.items():
        if field not in names and not content.get("plugins"):  # a plugin may define further fields
            raise ConfigError(f"--set {field}: unknown field, got {value!r}; {known_fields(field, names)}")
    content = {**content, "base": {**base, **base_changes}}
    options = " ".join(f"--set {field}={value}" for field, value in changes.items())
    return content, f"# {path.name} with {options}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}"


def _set_entry(content: Any, field: str, value: Any) -> dict[str, Any]:
    """Return an experiment file's content with a new value of `name`, or of an entry such as `search.seed`.

    Raises:
        ConfigError: if the field is no such entry, or the file lacks the part.
    """
    keys = field.split(".")
    part = keys[0]
    replaced = _replaced(content, keys, value) if part in ("name", *PARTS) else None
    if replaced is None:
        hint = ""
        is_missing = not isinstance(content, Mapping) or part not in content
        if part in PARTS and is_missing:
            hint = f"; the file has no {part}, add it there"
        raise ConfigError(f"--set {field}: must be an entry of its {', '.join(PARTS)}, got {value!r}{hint}")
    return replaced


def _replaced(content: Any, keys: Sequence[str], value: Any) -> dict[str, Any] | None:
    """Return a nested mapping with a new value at the path `keys`; None if a key other than the last is missing."""
    if not isinstance(content, Mapping):
        return None
    first, *rest = keys
    if rest:
        value = _replaced(content.get(first), rest, value)
        if value is None:
            return None
    return {**content, first: value}


def _overriding_parts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return place -> settings of the parts of an experiment file that override its base: grid, cases and space."""
    parts: dict[str, Any] = {"grid": _settings(content, "grid")}
    for number, case in enumerate(content.get("cases") or []):
        if isinstance(case, Mapping):
            parts[f"cases[{number}].base"] = case.get("base")
            parts[f"cases[{number}].grid"] = case.get("grid")
    if isinstance(content.get("search"), Mapping):
        parts["search.space"] = content["search"].get("space")
    return parts


def entries(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings in an experiment file's content, by place, for example `cases[0].base.sigma`."""
    parts = [("", content)]
    parts += [(f"cases[{number}].", case) for number, case in enumerate(content.get("cases") or ())]
    values = {}
    for prefix, part in parts:
        for key in ("base", "grid"):
            for field, value in part.get(key, {}).items():
                values[f"{prefix}{key}.{field}"] = value
    for field, value in content.get("search", {}).get("space", {}).items():
        values[f"search.space.{field}"] = value
    return values


class Combination(NamedTuple):
    """A trial of an experiment file, its place in the file, and the place of each setting that the file gives to it."""

    place: str
    trial: TrialConfig
    places: dict[str, str]


def combine(top: Mapping[str, Any], folder: Path, preset: str) -> Iterator[Combination]:
    """Yield the trial of every combination of values in every case of an experiment file.

    A case's settings replace those of the whole file. A fixed value of a case replaces a grid of the whole file.

    Args:
        top: content of the experiment file.
        folder: base of relative paths in settings.
        preset: the preset version that sets a trial's open settings; empty for none.

    Raises:
        ConfigError: naming the place in the file.
    """
    base, grid = _settings(top, "base"), _grid(top, "grid")
    for prefix, case in _cases(top):
        for where, part in (("", top), (prefix, case)):
            for field in _settings(part, "grid", where).keys() & _settings(part, "base", where).keys():
                raise ConfigError(f"{where}grid.{field}: also stands in {where}base; give it once")
        case_base = {**base, **_settings(case, "base", prefix)}
        case_grid = {**grid, **_grid(case, "grid", prefix)}
        for fixed in _settings(case, "base", prefix):
            case_grid.pop(fixed, None)
        places: dict[str, str] = {}
        for where, part in (("", top), (prefix, case)):  # the place in the case replaces that in the whole file
            for key in ("base", "grid"):
                places |= {field: f"{where}{key}.{field}" for field in part.get(key, {})}
        check_number(f"{prefix}grid", math.prod(map(len, case_grid.values())), "combinations")
        for indices in itertools.product(*(range(len(values)) for values in case_grid.values())):
            index_by_field = dict(zip(case_grid, indices, strict=True))
            values = {field: case_grid[field][index] for field, index in index_by_field.items()}
            assignments = ", ".join(f"{field}={value}" for field, value in values.items())
            place = f"{prefix}grid[{assignments}]" if values else f"{prefix}base"
            try:
                settings = with_located_features(filled(preset, {**case_base, **values}), folder)
                trial = TrialConfig.from_mapping(settings)
            except ConfigError as error:
                raise ConfigError(_locate(str(error), prefix, case, top, index_by_field)) from None
            yield Combination(place, trial, places)


def check_number(place: str, number: float, what: str) -> None:
    """Refuse more than `MOST_TRIALS` values, combinations or trials before any of them is made.

    Raises:
        ConfigError: naming the place in the file.
    """
    if number > MOST_TRIALS:
        raise ConfigError(f"{place}: must have at most {MOST_TRIALS} {what}, got {number:.15g}; split the "
                          "experiment")


def _cases(top: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (prefix of its places, content) of every case of an experiment file.

    A file without cases is one case, which has no settings of its own and an empty prefix.

    Raises:
        ConfigError: for a malformed case.
    """
    if top.get("cases") is None:
        yield ("cases[0]." if "cases" in top else ""), {}
        return
    if not isinstance(top["cases"], list) or not top["cases"]:
        raise ConfigError(f"cases: must be a list of at least one case, got {top['cases']!r}")
    for number, case in enumerate(top["cases"]):
        yield f"cases[{number}].", read_mapping(case, f"cases[{number}]", ("base", "grid"))


def _locate(message: str, prefix: str, case: Mapping[str, Any], top: Mapping[str, Any],
            indices: Mapping[str, int]) -> str:
    """Return an error message on a setting with the place in the experiment file, or the preset, that set it.

    Args:
        message: an error message that begins with the field's name and a colon.
        prefix: place of the case in the file, for example `cases[0].`.
        case: content of the case; its settings replace those of the whole file.
        top: content of the whole file.
        indices: grid field -> index of the value in its list.
    """
    field = message.split(":", 1)[0]
    field = SYNONYMS.get(field, field)
    for part, where in ((case, prefix), (top, "")):
        if field in (part.get("grid") or {}):
            return f"{message}, at {where}grid.{field}[{indices.get(field, 0)}]"
        if field in (part.get("base") or {}):
            return f"{message}, at {where}base.{field}"
    return f"{message}{by_preset(top.get('preset'), field)}"


def read_mapping(value: Any, place: str, names: Collection[str], needed: Collection[str] = ()) -> Mapping[str, Any]:
    """Return `value` after checking that it is a mapping with accepted keys only, and with all needed keys.

    Args:
        value: part of an experiment file.
        place: its place in the file, for messages.
        names: the accepted keys.
        needed: keys that must be present.

    Raises:
        ConfigError: if a check fails.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}: must be a mapping with {', '.join(names)}, got {value!r}")
    for key in value:
        if key not in names:
            raise ConfigError(f"{place}: unknown entry {key!r}; {accepted(key, names, 'accepted')}")
    missing = [name for name in needed if name not in value]
    if missing:
        raise ConfigError(f"{place}: needs {', '.join(missing)}, got {dict(value)!r}")
    return value


def _settings(part: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
    """Return the settings (field -> value) under `key`, `base` or `grid`, of an experiment file; empty if missing.

    Args:
        part: content of the file, or of one of its cases.
        key: the entry.
        prefix: place of the part in the file, for messages.

    Raises:
        ConfigError: for an entry that is blank or no mapping.
    """
    value = part.get(key, {})
    if key in part and value is None:
        raise ConfigError(f"{prefix}{key}: is blank; give it at least one field, or leave it out")
    if not isinstance(value, Mapping):
        raise ConfigError(f"{prefix}{key}: must be a mapping from field to value, got {value!r}")
    return dict(value)


def _grid(part: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, list[Any]]:
    """Return the lists of values of an experiment file's grid, by setting; empty if the entry is missing.

    Args:
        part: content of the file, or of one of its cases.
        key: the entry with the grid.
        prefix: place of the part in the file, for messages.
    """
    grid = _settings(part, key, prefix)
    if key in part and not grid:
        raise ConfigError(f"{prefix}{key}: is empty; give at least one field with a list of values, or leave it out")
    return {name: _values(f"{prefix}{key}.{name}", values) for name, values in grid.items()}


def _values(place: str, values: Any) -> list[Any]:
    """Return the list of values of one grid field, which the file gives as a list or as a range (a mapping)."""
    if isinstance(values, Mapping):
        values = _range(place, values)
    if not isinstance(values, list):
        raise ConfigError(f"{place}: must be a list of values or a range, got {values!r} (a single value goes to base)")
    if not values:
        raise ConfigError(f"{place}: the list is empty; give at least one value")
    return values


def _range(place: str, spec: Mapping[str, Any]) -> list[Any]:
    """Return the values of a range in an experiment file, such as `{linspace: [0, 1, 5]}`.

    `range` has whole numbers, without the stop. `linspace` and `logspace` have n numbers from low to high, rounded to
    12 digits so that they read as they were written.

    Args:
        place: place of the range in the file, for messages.
        spec: the range: its kind -> its arguments.

    Raises:
        ConfigError: for an unknown kind, or arguments that it does not take.
    """
    if len(spec) != 1 or not spec.keys() <= {"range", "linspace", "logspace"}:
        raise ConfigError(f"{place}: a range is one of range, linspace, logspace, got {dict(spec)!r}")
    ((kind, arguments),) = spec.items()
    are_numbers = isinstance(arguments, list) and all(map(_is_finite_number, arguments))
    if kind == "range":
        are_whole = are_numbers and all(int(number) == number for number in arguments)
        if not are_whole or len(arguments) not in (2, 3) or 0 in arguments[2:]:  # a step of 0
            raise ConfigError(f"{place}.range: must be [start, stop] or [start, stop, step], whole, got {arguments!r}")
        step = arguments[2] if len(arguments) == 3 else 1
        check_number(f"{place}.range", (arguments[1] - arguments[0]) / step, "values")
        return list(range(*(int(a) for a in arguments)))
    if not are_numbers or len(arguments) != 3 or int(arguments[2]) != arguments[2] or arguments[2] < 1:
        raise ConfigError(f"{place}.{kind}: must be [low, high, n] with n >= 1, got {arguments!r}")
    low, high, n = map(float, arguments)
    check_number(f"{place}.{kind}", n, "values")
    if kind == "logspace" and min(low, high) <= 0:
        raise ConfigError(f"{place}.logspace: needs low, high > 0, got {arguments!r}")
    import numpy as np  # imported here: it takes longer than the rest of the command line's imports for most files

    points = np.linspace(low, high, int(n)) if kind == "linspace" else np.geomspace(low, high, int(n))
    return [float(f"{point:.12g}") for point in points]


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
