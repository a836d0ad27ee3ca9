"""The trials of an experiment file: its ranges, and every combination of base, grid and cases."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import yaml

from pipeline.experiment.preset import Recommendation, by_preset, recommend
from pipeline.experiment.yaml_text import is_number, replace_synonyms
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.feature_file import with_located_features
from pipeline.trials.fields import SYNONYMS, accepted, known_fields, plain, renamed
from pipeline.trials.unused import why_unused

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Section = TypeVar("Section", bound=DataclassInstance)

MOST_TRIALS = 100_000  # of an experiment; a trial takes 11 kB before it is trained
PARTS = ("selection", "search", "stop", "budget")  # parts of a file with entries that --set can change


def read_mapping(value: Any, place: str, names: Collection[str], needed: Collection[str] = ()) -> Mapping[str, Any]:
    """Return a part of a file, at `place`, after checking that it is a mapping with these keys and all needed ones."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}: must be a mapping with {', '.join(names)}, got {value!r}")
    for key in value:
        if key not in names:
            raise ConfigError(f"{place}: unknown entry {key!r}; {accepted(key, names, 'accepted')}")
    missing = [name for name in needed if name not in value]
    if missing:
        raise ConfigError(f"{place}: needs {', '.join(missing)}, got {dict(value)!r}")
    return value


def read_as(section: type[Section], value: Any, place: str) -> Section:
    """Return a part of a file as the class of its section. The file must give the fields that have no default."""
    fields = dataclasses.fields(section)
    needed = [f.name for f in fields if f.default is dataclasses.MISSING]
    return section(**read_mapping(value, place, [f.name for f in fields], needed))


def check_number(place: str, number: float, what: str) -> None:
    """Refuse more than `MOST_TRIALS` values, combinations or trials before any of them is made."""
    if number > MOST_TRIALS:
        raise ConfigError(f"{place}: must have at most {MOST_TRIALS} {what}, got {number:.15g}; split the "
                          "experiment")


def changed(content: Mapping[str, Any], changes: Mapping[str, Any], path: Path) -> tuple[Any, str]:
    """Return (content, text) of a file after the option `--set` has changed settings of its base.

    `name` among the changes is the experiment's name. A field with a dot, such as `search.seed` or `budget.epsilon`,
    is an entry of that part of the file. What a grid, a case or a space sets overrides the base, so it is refused.
    """
    entry_changes = {field: value for field, value in changes.items() if field == "name" or "." in field}
    for field, value in entry_changes.items():
        content = _with_entry(content, field, value)
    base_changes = renamed({field: value for field, value in changes.items() if field not in entry_changes})
    official = replace_synonyms(content)
    base = read_settings(official, "base")
    for place, part in _parts(official).items():
        for field in base_changes:
            if place != "base" and field in part:
                raise ConfigError(f"--set {field}: must be a field that no grid, case or space sets, got one of "
                                  f"{place}; edit the file")
    names = [f.name for f in settings()]
    for field, value in base_changes.items():
        if field not in names and not content.get("plugins"):  # a plugin may define further fields
            raise ConfigError(f"--set {field}: unknown field, got {value!r}; {known_fields(field, names)}")
    content = {**content, "base": {**base, **base_changes}}
    options = " ".join(f"--set {field}={value}" for field, value in changes.items())
    return content, f"# {path.name} with {options}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}"


def _with_entry(content: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Return a file's content with a new value of `name`, or of an entry such as `search.seed`."""
    *path, last = field.split(".")
    part = result = dict(content)
    for key in path:
        if path[0] not in PARTS or not isinstance(part.get(key), Mapping):
            hint = f"; the file has no {path[0]}, add it there" if path[0] in {*PARTS} - content.keys() else ""
            raise ConfigError(f"--set {field}: must be an entry of its {', '.join(PARTS)}, got {value!r}{hint}")
        part[key] = dict(part[key])  # a copy, as an alias of YAML may stand for the same mapping elsewhere
        part = part[key]
    part[last] = value
    return result


def _parts(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return place -> settings of all that sets fields in a file: base, grid, those of every case, and space."""
    cases, search = content.get("cases"), content.get("search")
    numbered = enumerate(cases if isinstance(cases, list) else ())
    levels = {"": content, **{f"cases[{number}].": case for number, case in numbered}}
    parts = {f"{prefix}{key}": level.get(key)
             for prefix, level in levels.items() if isinstance(level, Mapping) for key in ("base", "grid")}
    parts["search.space"] = search.get("space") if isinstance(search, Mapping) else None
    return {place: part for place, part in parts.items() if isinstance(part, Mapping)}


def entries(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings in an experiment file's content, by place, for example `cases[0].base.sigma`."""
    return {f"{place}.{field}": value for place, part in _parts(content).items() for field, value in part.items()}


class Combination(NamedTuple):
    """A trial of an experiment file."""

    place: str  # in the file
    trial: TrialConfig  # as it is written, with settings that it does not use
    places: dict[str, str]  # of each setting that the file gives to it
    recommended: Recommendation | None  # by the file's preset, if it names one


def combine(top: Mapping[str, Any], folder: Path, preset: str) -> Iterator[Combination]:
    """Yield the trial of every combination of values in every case of a file.

    A case's settings replace those of the whole file. A fixed value of a case replaces a grid of the whole file.
    """
    base, grid = read_settings(top, "base"), _grid(top, "")
    for prefix, case in _cases(top):
        levels = (("", top), (prefix, case))
        for where, part in levels:
            for field in read_settings(part, "grid", where).keys() & read_settings(part, "base", where).keys():
                raise ConfigError(f"{where}grid.{field}: also stands in {where}base; give it once")
        case_base = read_settings(case, "base", prefix)
        case_grid = {field: values for field, values in {**grid, **_grid(case, prefix)}.items()
                     if field not in case_base}
        places = {field: f"{where}{key}.{field}"
                  for where, part in levels for key in ("base", "grid") for field in part.get(key, {})}
        check_number(f"{prefix}grid", math.prod(map(len, case_grid.values())), "combinations")
        for numbered in itertools.product(*map(enumerate, case_grid.values())):
            chosen = dict(zip(case_grid, numbered, strict=True))  # field -> (index, value)
            values = {field: value for field, (_, value) in chosen.items()}
            indexed = {field: f"{places[field]}[{index}]" for field, (index, _) in chosen.items()}
            assignments = ", ".join(f"{field}={value}" for field, value in values.items())
            given = with_located_features({**base, **case_base, **values}, folder)
            trial, recommended = compose(given, preset, {**places, **indexed})
            place = f"{prefix}grid[{assignments}]" if values else f"{prefix}base"
            yield Combination(place, trial, places, recommended)


def compose(given: Mapping[str, Any], preset: str, places: Mapping[str, str]
            ) -> tuple[TrialConfig, Recommendation | None]:
    """Return the trial of these settings, and of those that the preset has for all others, with the latter.

    An error names the place of its field in the file or, for a field of the preset, how to override that.
    """
    try:
        recommended = recommend(preset, given) if preset else None
        return TrialConfig(**{**(recommended.settings if recommended else {}), **given}), recommended
    except ConfigError as error:
        field = str(error).partition(":")[0]
        field = SYNONYMS.get(field, field)
        origin = f", at {places[field]}" if field in places else by_preset(preset, field)
        raise ConfigError(f"{error}{origin}") from None


def _cases(top: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (prefix of its places, content) of every case; a file without cases is one, without settings of its own."""
    if top.get("cases") is None:
        yield ("cases[0]." if "cases" in top else ""), {}
        return
    if not isinstance(top["cases"], list) or not top["cases"]:
        raise ConfigError(f"cases: must be a list of at least one case, got {top['cases']!r}")
    for number, case in enumerate(top["cases"]):
        yield f"cases[{number}].", read_mapping(case, f"cases[{number}]", ("base", "grid"))


def read_settings(part: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
    """Return `base` or `grid` of a file, or of its case at `prefix`: field -> value; empty if it is missing."""
    value = part.get(key, {})
    if value is None:
        raise ConfigError(f"{prefix}{key}: is blank; give it at least one field, or leave it out")
    if not isinstance(value, Mapping):
        raise ConfigError(f"{prefix}{key}: must be a mapping from field to value, got {value!r}")
    return dict(value)


def _grid(part: Mapping[str, Any], prefix: str) -> dict[str, list[Any]]:
    """Return the grid of a file, or of its case at `prefix`: field -> list of values; empty if it is missing."""
    grid = read_settings(part, "grid", prefix)
    if "grid" in part and not grid:
        raise ConfigError(f"{prefix}grid: is empty; give at least one field with a list of values, or leave it out")
    for field, values in grid.items():
        place = f"{prefix}grid.{field}"
        if isinstance(values, Mapping):
            grid[field] = values = _range(place, values)
        if not isinstance(values, list):
            raise ConfigError(f"{place}: must be a list of values or a range, got {values!r} (a single value goes to "
                              "base)")
        if not values:
            raise ConfigError(f"{place}: the list is empty; give at least one value")
    return grid


def _range(place: str, spec: Mapping[str, Any]) -> list[Any]:
    """Return the values of a range such as `{linspace: [0, 1, 5]}`, with 12 digits: they read as they were written."""
    if len(spec) != 1 or not spec.keys() <= {"range", "linspace", "logspace"}:
        raise ConfigError(f"{place}: a range is one of range, linspace, logspace, got {dict(spec)!r}")
    ((kind, arguments),) = spec.items()
    are_numbers = isinstance(arguments, list) and all(is_number(a) and math.isfinite(a) for a in arguments)
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


def check_distinct(combinations: Sequence[Combination]) -> None:
    """Refuse two combinations that make the same trial; name both places, and what differs without an effect."""
    first_by_key: dict[str, Combination] = {}
    for combination in combinations:
        trial = combination.trial
        first = first_by_key.setdefault(trial.trial_key, combination)
        if first is combination:
            continue
        defaults = {f.name: plain(f.default) for f in settings()}
        described = ", ".join(f"{name}={value}" for name, value in trial.canonical().items()
                              if name in ("algorithm", "seed") or value != defaults[name])
        reasons = "".join(f"; {_no_difference(f, first.trial, trial)}" for f in settings()
                          if getattr(first.trial, f.name) != getattr(trial, f.name))
        raise ConfigError(f"{combination.place}: the same trial as {first.place}: {described}{reasons}")


def _no_difference(field: dataclasses.Field[Any], one: TrialConfig, other: TrialConfig) -> str:
    """Return a clause for an error message: why two values of a setting make the same trial, and how to correct it."""
    name = field.name
    if name in one.used():  # for example two files with the same content
        return f"{name}: {getattr(one, name)!r} and {getattr(other, name)!r} make no difference; give one of them"
    not_default = [trial for trial in (one, other) if getattr(trial, name) != field.default]
    return f"{why_unused(name, not_default)}, or give it to some trials alone, by `cases`"
