"""The trials of a file: its YAML, its ranges, and every combination of base, grid and cases."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.experiment.preset import by_preset, filled
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.feature_file import located
from pipeline.trials.fields import SYNONYMS, accepted, known_fields, renamed

PARTS = ("selection", "search", "stop", "budget")  # parts of a file with entries that --set can change


class ExperimentLoader(yaml.SafeLoader):
    """YAML's safe loader, except that 1e-5 is a number and a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a YAML mapping as a dict.

        Raises:
            ConstructorError: for a key that stands twice, of which plain YAML would keep the last.
        """
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if keys[number] in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"the key {keys[number]!r} stands twice",
                                                        key.start_mark)
        return super().construct_mapping(node, deep)


# In YAML 1.1, unlike YAML 1.2, a power of ten without a point or without a sign in its exponent is text.
ExperimentLoader.add_implicit_resolver("tag:yaml.org,2002:float",
                                       re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
                                       list("-+.0123456789"))


def parse_yaml(text: str, path: Path | str) -> Any:
    """Return the content of the YAML text.

    Raises:
        ConfigError: for text that is not valid YAML; the message names `path`.
    """
    try:
        return yaml.load(text, ExperimentLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ConfigError(f"{path}:{where} not valid YAML: {getattr(error, 'problem', error)}") from None


def by_names_in_keys(content: Any) -> Any:
    """Return a file's content with synonyms of settings replaced by the names that keys of trials have.

    Raises:
        ConfigError: for a setting that is given under both names.
    """
    if not isinstance(content, Mapping):
        return content
    found = {key: renamed(value) if key in ("base", "grid", "space") and isinstance(value, Mapping) else value
             for key, value in content.items()}
    if isinstance(cases := found.get("cases"), list):
        found["cases"] = [by_names_in_keys(case) for case in cases]
    return {**found, "search": by_names_in_keys(found["search"])} if "search" in found else found


def in_words_of(text: str, message: str) -> str:
    """Return a message that calls settings as the file's text does, where the file has a synonym (`SYNONYMS`)."""
    for name, known in SYNONYMS.items():
        if re.search(rf"\b{name}\b", text) and not re.search(rf"\b{known}\b", text):
            message = re.sub(rf"\b{known}\b", name, message)
    return message


def changed(content: Any, changes: Mapping[str, Any], path: Path) -> tuple[Any, str]:
    """Return (content, text) of an experiment file after `--set`: changed settings in its base, and the matching text.

    Args:
        changes: by field; `name` is the experiment's name, and `search.seed` or `budget.epsilon` an entry of these
            parts.

    Raises:
        ConfigError: for an unknown field, or one that a grid, a case or a space sets, because these override the base.
    """
    of_file = {field: value for field, value in changes.items() if field == "name" or "." in field}
    said = " ".join(f"--set {field}={value}" for field, value in changes.items())
    for field, value in of_file.items():
        keys = field.split(".")
        if keys[0] not in ("name", *PARTS) or (put := _placed(content, keys, value)) is None:
            lacks = keys[0] in PARTS and not (isinstance(content, Mapping) and keys[0] in content)
            raise ConfigError(f"--set {field}: must be an entry of its {', '.join(PARTS)}, got {value!r}"
                              + (f"; the file has no {keys[0]}, add it there" if lacks else ""))
        content = put
    changes, known = renamed({k: v for k, v in changes.items() if k not in of_file}), by_names_in_keys(content)
    base, grid, cases = _settings(known, "base"), _settings(known, "grid"), known.get("cases") or []
    parts = {"grid": grid} | {f"cases[{number}].{key}": case.get(key) for number, case in enumerate(cases)
                              if isinstance(case, Mapping) for key in ("base", "grid")}
    if isinstance(known.get("search"), Mapping):
        parts["search.space"] = known["search"].get("space")
    for place, part in parts.items():
        if both := [field for field in changes if isinstance(part, Mapping) and field in part]:
            raise ConfigError(f"--set {both[0]}: must be a field that no grid, case or space sets, got one of "
                              f"{place}; edit the file")
    names = [f.name for f in settings()]
    for field, value in changes.items():
        if field not in names and not content.get("plugins"):
            raise ConfigError(f"--set {field}: unknown field, got {value!r}; {known_fields(field, names)}")
    content = {**content, "base": {**base, **changes}}
    return content, f"# {path.name} with {said}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}"


def _placed(content: Any, keys: Sequence[str], value: Any) -> dict[str, Any] | None:
    """Return a mapping with a new value at these keys; None if a key other than the last is missing."""
    first, *rest = keys
    if not isinstance(content, Mapping) or (rest and (value := _placed(content.get(first), rest, value)) is None):
        return None
    return {**content, first: value}


def line_of(text: str, message: str) -> str:
    """Return `, line 3`: the line of a valid YAML file that a message refers to; empty if it refers to none."""
    lines: dict[str, int] = {}

    def walk(node: yaml.Node | None, place: str) -> None:
        """Enter the line of every key and list item below `node`, whose place in the file is `place`, into `lines`."""
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = SYNONYMS.get(key.value, str(key.value))
                inner = f"{place}.{name}" if place else name
                lines[inner] = key.start_mark.line + 1
                walk(value, inner)
        elif isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                lines[f"{place}[{number}]"] = value.start_mark.line + 1
                walk(value, f"{place}[{number}]")

    walk(yaml.compose(text, ExperimentLoader), "")
    first = message.partition(":")[0].removeprefix("the file")
    first = SYNONYMS.get(first, first)
    unknown = re.search(r"unknown entry '(\w+)'", message)
    named = [f"{first}.{unknown[1]}".lstrip(".")] if unknown else []
    named += [*re.findall(r", at ([\w.\[\]]+)", message), first]
    return next((f", line {lines[place]}" for place in named if place in lines), "")


def entries(top: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings that the file gives, by place, for example `cases[0].base.sigma`."""
    parts = [("", top), *((f"cases[{number}].", case) for number, case in enumerate(top.get("cases") or ()))]
    found = {f"{prefix}{key}.{field}": value for prefix, part in parts for key in ("base", "grid")
             for field, value in part.get(key, {}).items()}
    return found | {f"search.space.{field}": value for field, value in top.get("search", {}).get("space", {}).items()}


def combine(top: Mapping[str, Any], folder: Path, preset: str) -> Iterator[tuple[str, TrialConfig, dict[str, str]]]:
    """Yield (place in the file, trial, place of each given field) for every combination of every case.

    A case's settings replace those of the whole file. A fixed value of a case replaces a grid of the whole file.

    Args:
        folder: base of relative paths in settings.
        preset: the version that sets a trial's open settings; empty for none.

    Raises:
        ConfigError: naming the place in the file.
    """
    base, grid = _settings(top, "base"), _grid(top, "grid")
    cases = top.get("cases")
    if cases is None:
        cases = [{}]
    if not isinstance(cases, list) or not cases:
        raise ConfigError(f"cases: must be a list of at least one case, got {cases!r}")
    for number, case in enumerate(cases):
        prefix = f"cases[{number}]." if "cases" in top else ""
        case = read_mapping(case, f"cases[{number}]", ("base", "grid"))
        for part, where in ((top, ""), (case, prefix)):
            for field in _settings(part, "grid", where).keys() & _settings(part, "base", where).keys():
                raise ConfigError(f"{where}grid.{field}: also stands in {where}base; give it once")
        case_base = {**base, **_settings(case, "base", prefix)}
        case_grid = {**grid, **_grid(case, "grid", prefix)}
        for fixed in _settings(case, "base", prefix):
            case_grid.pop(fixed, None)
        places = {field: f"{where}{key}.{field}" for where, part in (("", top), (prefix, case))
                  for key in ("base", "grid") for field in part.get(key, {})}
        for choice in itertools.product(*(list(enumerate(values)) for values in case_grid.values())):
            values = dict(zip(case_grid, (value for _, value in choice), strict=True))
            indices = dict(zip(case_grid, (index for index, _ in choice), strict=True))
            place = prefix + "grid[" + ", ".join(f"{k}={v}" for k, v in values.items()) + "]"
            try:
                config = TrialConfig.from_mapping(located(filled(preset, {**case_base, **values}), folder))
            except ConfigError as error:
                raise ConfigError(_locate(str(error), prefix, case, top, indices)) from None
            yield place if values else prefix + "base", config, places


def _locate(message: str, prefix: str, case: Mapping[str, Any], top: Mapping[str, Any],
            indices: Mapping[str, int]) -> str:
    """Return an error message with the place in the file, or the preset, that set the named field.

    Args:
        message: begins with the field.
        prefix: place of the case, for example `cases[0].`.
        indices: by grid field, the index of the combination's value.
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
    """Return `value` if it is a mapping with only these names, and with all needed ones.

    Raises:
        ConfigError: otherwise; `place` is its place in the file.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}: must be a mapping with {', '.join(names)}, got {value!r}")
    for key in value:
        if key not in names:
            raise ConfigError(f"{place}: unknown entry {key!r}; {accepted(key, names, 'accepted')}")
    if missing := [name for name in needed if name not in value]:
        raise ConfigError(f"{place}: needs {', '.join(missing)}, got {dict(value)!r}")
    return value


def _settings(part: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
    """Return a mapping from settings to values, the entry `key` of a part of the file; empty if the entry is missing.

    Args:
        prefix: place of the part, for messages.

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
    """Return the lists of values of a `grid`, by setting; empty if the entry is missing."""
    grid = _settings(part, key, prefix)
    if key in part and not grid:
        raise ConfigError(f"{prefix}{key}: is empty; give at least one field with a list of values, or leave it out")
    return {name: _values(f"{prefix}{key}.{name}", values) for name, values in grid.items()}


def _values(place: str, values: Any) -> list[Any]:
    """Return the list of values of one grid field."""
    if isinstance(values, Mapping):
        values = _range(place, values)
    if not isinstance(values, list):
        raise ConfigError(f"{place}: must be a list of values or a range, got {values!r} (a single value goes to base)")
    if not values:
        raise ConfigError(f"{place}: the list is empty; give at least one value")
    return values


def _range(place: str, spec: Mapping[str, Any]) -> list[Any]:
    """Return the values of a range `{range|linspace|logspace: [...]}` of an experiment file.

    `range` has whole numbers, without the stop. `linspace` and `logspace` have n numbers from low to high, rounded to
    12 digits so that they read as they were written.

    Args:
        place: in the file, for messages.

    Raises:
        ConfigError: for an unknown kind, or arguments that it does not take.
    """
    if len(spec) != 1 or not spec.keys() <= {"range", "linspace", "logspace"}:
        raise ConfigError(f"{place}: a range is one of range, linspace, logspace, got {dict(spec)!r}")
    ((kind, arguments),) = spec.items()
    numbers = isinstance(arguments, list) and all(
        isinstance(a, int | float) and not isinstance(a, bool) and math.isfinite(a) for a in arguments)
    if kind == "range":
        if not numbers or len(arguments) not in (2, 3) or any(int(a) != a for a in arguments) or 0 in arguments[2:]:
            raise ConfigError(f"{place}.range: must be [start, stop] or [start, stop, step], whole, got {arguments!r}")
        return list(range(*(int(a) for a in arguments)))
    if not numbers or len(arguments) != 3 or int(arguments[2]) != arguments[2] or arguments[2] < 1:
        raise ConfigError(f"{place}.{kind}: must be [low, high, n] with n >= 1, got {arguments!r}")
    low, high, n = arguments
    if kind == "logspace" and min(low, high) <= 0:
        raise ConfigError(f"{place}.logspace: needs low, high > 0, got {arguments!r}")
    import numpy as np  # imported here: it takes longer than the rest of the command line's imports for most files

    points = np.linspace(low, high, int(n)) if kind == "linspace" else np.geomspace(low, high, int(n))
    return [float(f"{point:.12g}") for point in points]
