"""The trials of an experiment file: its ranges, and every combination of base, grid, zip and cases."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import yaml

from pipeline.experiment.preset import Recommendation, recommend
from pipeline.experiment.yaml_text import PRESET, Place, placed
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.feature_file import with_located_features
from pipeline.trials.fields import accepted, is_number, known_fields, plain, refuse
from pipeline.trials.part import SETTINGS
from pipeline.trials.unused import why_unused

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Section = TypeVar("Section", bound=DataclassInstance)

MOST_TRIALS = 100_000  # of an experiment; a trial takes 11 kB before it is trained
OF_CASE = ("base", "grid", "zip")  # entries with settings, of a file and of its cases
PARTS = ("selection", "search", "budget")  # parts of a file with entries that --set can change


def read_mapping(value: Any, place: str, names: Collection[str], needed: Collection[str] = ()) -> Mapping[str, Any]:
    """Return `value`, the part of a file at `place` ("" for the whole); refuse other keys, and a missing `needed`."""
    refuse(not isinstance(value, Mapping), place or "the file", f"must be a mapping with {', '.join(names)}",
           repr(value))
    for key in value:
        if key not in names:
            where = f"{place}." if place else ""
            raise ConfigError(f"{where}{key}: unknown entry; {accepted(key, names, 'accepted')}")
    missing = [name for name in needed if name not in value]
    if missing:
        raise ConfigError(f"{place}: needs {', '.join(missing)}, got {dict(value)!r}")
    return value


def read_as(section: type[Section], value: Any, place: str) -> Section:
    """Return `value`, the part of a file at `place`, as an instance of its section's class.

    Its keys are the class's fields, of which those without a default must be given.
    """
    fields = dataclasses.fields(section)
    needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    return section(**read_mapping(value, place, [f.name for f in fields], needed))


def check_number(place: str, number: float, what: str) -> None:
    """Refuse more than `MOST_TRIALS` of `what` (values, combinations, trials) before any of them is made."""
    refuse(number > MOST_TRIALS, place, f"must have at most {MOST_TRIALS} {what}", f"{number:.15g}",
           "split the experiment")


def changed(content: Mapping[str, Any], changes: Mapping[str, Any], path: Path) -> tuple[Any, str]:
    """Return (content, text) of a file after the option `--set` has changed settings of its base.

    `name` among the changes is the experiment's name. A field with a dot, such as `search.seed` or `budget.epsilon`,
    is an entry of that part of the file. What a grid, a case or a space sets overrides the base, so it is refused.
    """
    entry_changes = {field: value for field, value in changes.items() if field == "name" or "." in field}
    for field, value in entry_changes.items():
        content = _with_entry(content, field, value)
    base_changes = {field: value for field, value in changes.items() if field not in entry_changes}
    for field, place, _ in entries(content):
        refuse(field in base_changes and not place.startswith("base."), f"--set {field}",
               "must be a field that no grid, zip, case or space sets", f"one of {place.rpartition('.')[0]}",
               "edit the file")
    names = [f.name for f in settings()]
    for field, value in base_changes.items():
        if field not in names and not content.get("plugins"):  # a plugin may define further fields
            raise ConfigError(f"--set {field}: unknown field, got {value!r}; {known_fields(field, names)}")
    base = {key: value for key, value in content.get("base", {}).items() if key not in base_changes}
    content = {**content, "base": {**base, **base_changes}}
    options = " ".join(f"--set {field}={value}" for field, value in changes.items())
    plain_content = json.loads(json.dumps(content))  # texts and lists without lines, which YAML could not write
    dumped = yaml.safe_dump(plain_content, sort_keys=False, allow_unicode=True)
    return content, f"# {path.name} with {options}\n{dumped}"


def _with_entry(content: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    *path, last = field.split(".")
    result = dict(content)
    part = result
    for key in path:
        if path[0] not in PARTS or not isinstance(part.get(key), Mapping):
            is_missing = path[0] in PARTS and path[0] not in content
            hint = (f"; the file has no {path[0]}, add it there" if is_missing else
                    "; give a setting of base by its name alone, and change one of a grid in the file")
            raise ConfigError(f"--set {field}: must be an entry of its {', '.join(PARTS)}, got {value!r}{hint}")
        part[key] = dict(part[key])  # a copy, as an alias of YAML may stand for the same mapping elsewhere
        part = part[key]
    part.pop(last, None)  # the key as well, which knows the line of the old value
    part[last] = value
    return result


def entries(content: Mapping[str, Any]) -> Iterator[tuple[str, Place, Any]]:
    """Yield (field, place, value) of each setting in a file: in base, grid, zip, in those of cases, and in space."""
    parts = [(part, key, where) for where, part in (("", content), *_cases(content)) for key in OF_CASE]
    if isinstance(content.get("search"), Mapping):
        parts.append((content["search"], "space", "search."))
    for part, key, where in parts:
        values, places = read_settings(part, key, where)
        for field, value in values.items():
            yield field, places[field], value


class Combination(NamedTuple):
    """A trial of an experiment file."""

    place: str  # in the file
    trial: TrialConfig  # as it is written, with settings that it does not use
    places: dict[str, Place]  # of each setting that the file gives to it
    recommended: Recommendation | None  # by the file's preset, if it names one

    @property
    def by_preset(self) -> set[str]:
        return set(self.recommended.settings) - set(self.places) if self.recommended else set()


class Level(NamedTuple):
    """The settings of a whole file, or of one of its cases."""

    base: dict[str, Any]
    grid: dict[str, list[Any]]
    zip: dict[str, list[Any]]  # all of one length: their values move together
    places: dict[str, Place]

    @classmethod
    def read(cls, part: Mapping[str, Any], where: str) -> Level:
        """Return the settings of a file, or of its case at `where`; each may stand in one of base, grid and zip."""
        base, places = read_settings(part, "base", where)
        grid, grid_places = _lists(part, "grid", where)
        zipped, zip_places = _lists(part, "zip", where)
        for field, place in (*grid_places.items(), *zip_places.items()):
            if field in places:
                raise ConfigError(f"{place}: also stands in {places[field].removesuffix(f'.{field}')}; give it once")
            places[field] = place
        lengths = {field: len(values) for field, values in zipped.items()}
        refuse(len(set(lengths.values())) > 1, f"{where}zip", "must have lists of one length, as their values move "
               "together", ", ".join(f"{field} {length}" for field, length in lengths.items()),
               "what is combined with all others goes to grid")
        return cls(base, grid, zipped, places)


def combine(top: Mapping[str, Any], folder: Path, preset: str) -> Iterator[Combination]:
    """Yield the trial of every combination of values in every case, whose settings replace those of the whole file."""
    file = Level.read(top, "")
    for where, part in _cases(top):
        case = Level.read(part, where)
        # The lists of one axis move together. A case's settings replace the file's.
        replaced = case.base | case.zip
        grid = {field: values for field, values in (file.grid | case.grid).items() if field not in replaced}
        of_file = {field: values for field, values in file.zip.items() if field not in case.places}
        axes = [*({field: values} for field, values in grid.items()), *filter(None, (of_file, case.zip))]
        places, base = file.places | case.places, file.base | case.base
        key = "grid" if file.grid or case.grid else "zip"
        check_number(f"{where}{key}", math.prod(map(_length, axes)), "combinations")
        for indices in itertools.product(*(range(_length(axis)) for axis in axes)):
            chosen = [(field, index, lists) for axis, index in zip(axes, indices, strict=True)
                      for field, lists in axis.items()]
            values = {field: lists[index] for field, index, lists in chosen}
            indexed = {field: places[field].item(index, lists) for field, index, lists in chosen}
            assignments = ", ".join(f"{field}={value}" for field, value in values.items())
            place = f"{where}{key}[{assignments}]" if values else f"{where}base"
            yield compose(place, with_located_features(base | values, folder), preset, places | indexed)


def _length(axis: Mapping[str, Sequence[Any]]) -> int:
    return len(next(iter(axis.values())))


def compose(place: str, given: Mapping[str, Any], preset: str, places: dict[str, Place]) -> Combination:
    """Return the trial of `given` settings and of those that the preset, if any, has for all others."""
    with placed(places):
        recommended = recommend(given) if preset else None
    by_preset = recommended.settings if recommended else {}
    with placed({**dict.fromkeys(by_preset, PRESET), **places}):
        return Combination(place, TrialConfig(**{**by_preset, **given}), places, recommended)


def _cases(top: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (prefix of its places, content) of every case; a file without cases has one empty case."""
    if top.get("cases") is None:
        yield ("cases[0]." if "cases" in top else ""), {}
        return
    refuse(not isinstance(top["cases"], list) or not top["cases"], "cases", "must be a list of at least one case",
           repr(top["cases"]))
    for number, case in enumerate(top["cases"]):
        yield f"cases[{number}].", read_mapping(case, f"cases[{number}]", OF_CASE)


def read_settings(part: Mapping[str, Any], key: str, where: str = "") -> tuple[dict[str, Any], dict[str, Place]]:
    """Return value and place of each field of `base`, `grid` or `space` in a file's part."""
    value = part.get(key, {})
    if value is None:
        raise ConfigError(f"{where}{key}: is blank; give it at least one field, or leave it out")
    refuse(not isinstance(value, Mapping), f"{where}{key}", "must be a mapping from field to value", repr(value))
    places = {str(field): Place(f"{where}{key}").of(field) for field in value}
    return {str(field): value for field, value in value.items()}, places


def _lists(part: Mapping[str, Any], key: str, where: str) -> tuple[dict[str, list[Any]], dict[str, Place]]:
    """Return values and place of each field of `key`, grid or zip, in the part of a file at `where`."""
    lists, places = read_settings(part, key, where)
    if key in part and not lists:
        raise ConfigError(f"{where}{key}: is empty; give at least one field with a list of values, or leave it out")
    for field, values in lists.items():
        place = places[field]
        if field not in SETTINGS:
            hint = f"write it beside {key}, not in it" if field in OF_CASE else known_fields(field, SETTINGS)
            raise ConfigError(f"{place}: unknown field, got {values!r}; {hint}")
        if isinstance(values, Mapping):
            lists[field] = values = _range(place, values)
        refuse(not isinstance(values, list), place, "must be a list of values or a range",
               f"{values!r} (a single value goes to base)")
        if not values:
            raise ConfigError(f"{place}: the list is empty; give at least one value")
    return lists, places


def _range(place: str, spec: Mapping[str, Any]) -> list[Any]:
    """Return the values of a range such as `{linspace: [0, 1, 5]}`, with 12 digits: they read as they were written."""
    if len(spec) != 1 or not spec.keys() <= {"range", "linspace", "logspace"}:
        raise ConfigError(f"{place}: a range is one of range, linspace, logspace, got {dict(spec)!r}")
    ((kind, arguments),) = spec.items()
    are_numbers = isinstance(arguments, list) and all(is_number(a) and math.isfinite(a) for a in arguments)
    if kind == "range":
        are_whole = are_numbers and all(int(number) == number for number in arguments)
        refuse(not are_whole or len(arguments) not in (2, 3) or 0 in arguments[2:],  # a step of 0
               f"{place}.range", "must be [start, stop] or [start, stop, step], whole", repr(arguments))
        step = arguments[2] if len(arguments) == 3 else 1
        check_number(f"{place}.range", (arguments[1] - arguments[0]) / step, "values")
        return list(range(*(int(a) for a in arguments)))
    refuse(not are_numbers or len(arguments) != 3 or int(arguments[2]) != arguments[2] or arguments[2] < 1,
           f"{place}.{kind}", "must be [low, high, n] with n >= 1", repr(arguments))
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
    """Return a clause on two trials of one key: why a setting's two values make no difference, and the remedy."""
    name = field.name
    if name in one.used():  # a path: for example two files with the same content
        return (f"{name}: {getattr(one, name)!r} and {getattr(other, name)!r} make no difference; give one "
                "of them")
    # Not empty, as the two values differ. A default has no effect to explain, so the message quotes only others.
    not_default = [trial for trial in (one, other) if getattr(trial, name) != field.default]
    return f"{why_unused(name, not_default)}, or give it to some trials alone, by `cases`"
