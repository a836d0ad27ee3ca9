"""Experiment files: a base, a grid and cases in YAML become the list of trials to train.

    name: quickstart
    base: {dataset: digits, epochs: 10}          # settings that all trials share
    grid: {algorithm: [bp, dfa], seed: {range: [0, 3]}}   # every combination is a trial
    cases:                                       # optional: a union of sub-grids, each on top of base and grid
      - base: {mechanism: none}
      - base: {mechanism: photonic}
        grid: {sigma: {logspace: [0.01, 0.1, 3]}}
    selection: {rule: random_stopping, mean: 9, shape: 1, seed: 0}   # optional: see `pipeline.trials.stopping`
    plugins: [my_feedback]                       # optional: modules of extensions, beside the file or installed

With random stopping the combinations are candidates, from which the trials are drawn, each under a seed of its own; the
file then has no seed among its settings.

Values of `grid` are lists or one of the ranges `range: [start, stop, step=1]` (stop excluded), `linspace: [low,
high, n]` and `logspace: [low, high, n]` (both ends included).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.exhibits import EXHIBITS, misfit, varied_fields
from pipeline.trials.fields import accepted
from pipeline.trials.plugins import LOADED, load_plugins
from pipeline.trials.stopping import Selection, check_candidates, draw
from pipeline.trials.unused import check_written, ignored, used

UNUSED = ("fields that its algorithm or mechanism does not use make no difference (sigma and tau need `mechanism: "
          "photonic`)")


@dataclass(frozen=True)
class Resources:
    """What one pack occupies while it trains, in Ray's units.

    Attributes:
        cpu, gpu: cores and (fractions of) GPUs of every pack.
        opu: optical processors of a pdfa pack; other packs take none.
        pack_size: most trials in one pack; 0 chooses it (see `pipeline.trials.packs.plan`).
        checkpoint_seconds: a pack is saved at the end of an epoch once so much time has passed since it was last.
        store_patience_seconds: how long a sweep waits for a tracking store that cannot be reached, or is locked.
    """

    cpu: float = 1.0
    gpu: float = 0.0
    opu: float = 1.0
    pack_size: int = 0
    checkpoint_seconds: float = 30.0
    store_patience_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("cpu", "gpu", "opu", "checkpoint_seconds", "store_patience_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ConfigError(f"resources.{name}: must be a number >= 0, got {value!r}")
        if not self.opu:
            raise ConfigError(f"resources.opu: must be > 0, got {self.opu!r}; packs without pdfa take none anyway")
        if self.cpu + self.gpu == 0:
            raise ConfigError(f"resources.cpu: must be > 0 where gpu is 0, got {self.cpu!r}")
        if not isinstance(self.pack_size, int) or isinstance(self.pack_size, bool) or self.pack_size < 0:
            raise ConfigError(f"resources.pack_size: must be a whole number >= 0, got {self.pack_size!r}")


@dataclass(frozen=True)
class Experiment:
    """One experiment file.

    Attributes:
        name: the MLflow experiment, and the folder under `reports/`.
        trials: all trials, in the order of the file, no two alike; of a file, what a trial does not use is as default.
        report: exhibits that `photonic report` draws.
        selection: by which rule the best trial is chosen and paid for.
        source: the file; where trials were listed in Python, whatever messages should name.
        candidates: what the trials were drawn from; empty for a fixed grid.
        text: the file's content.
        plugins: modules of extensions, which every worker imports (`pipeline.trials.plugins`).
        ignored: which trials make no use of which entries of the file, for people; empty where all use all.
    """

    name: str
    description: str
    trials: tuple[TrialConfig, ...]
    resources: Resources = Resources()
    report: tuple[str, ...] = ()
    source: Path = Path("FILE")
    selection: Selection = Selection()
    candidates: tuple[TrialConfig, ...] = ()
    text: str = ""
    plugins: tuple[str, ...] = ()
    ignored: str = ""

    @property
    def varied(self) -> tuple[str, ...]:
        """Fields, but the seed, in which trials of one algorithm and noise differ: they belong in a trial's name."""
        return varied_fields(self.candidates or self.trials)

    @property
    def public_text(self) -> str:
        """The file's content where it may be kept and shown: of random stopping it tells how many trials were drawn."""
        return "" if self.candidates else self.text


def load_experiment(path: str | Path) -> Experiment:
    """Read and validate an experiment file.

    Raises:
        ConfigError: one line that names the file, the place in it, the value and what would be accepted.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such experiment file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    return parse_experiment(text, path)


def parse_experiment(text: str, path: Path, stored: bool = False) -> Experiment:
    """As `load_experiment`, of the text of a file that need not be there.

    Args:
        stored: the text comes from a tracking store, and no plugin that it names is imported.
    """
    try:
        content = yaml.load(text, UniqueKeyLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ConfigError(f"{path}:{where} not valid YAML: {getattr(error, 'problem', error)}") from None
    try:
        return dataclasses.replace(_experiment(content, path, stored), text=text)
    except ConfigError as error:
        raise ConfigError(f"{error} ({path})") from None


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader, which refuses a key that a mapping has twice instead of keeping the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if keys[number] in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"the key {keys[number]!r} stands twice",
                                                        key.start_mark)
        return super().construct_mapping(node, deep)


def _experiment(content: Any, path: Path, stored: bool) -> Experiment:
    top = _mapping(content, "the file", ("name", "description", "base", "grid", "cases", "resources", "report",
                                         "selection", "plugins"))
    name = top.get("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ConfigError(f"name: must be letters, digits, '_', '-' and '.', and begin with a letter or digit, "
                          f"got {name!r}")
    plugins = _plugins(top)
    if stored and (absent := set(plugins) - set(LOADED)):
        raise ConfigError(f"plugins: must be none, as nothing that a store names is imported, got "
                          f"{', '.join(sorted(absent))}; name the experiment file itself")
    load_plugins(plugins, path.parent)
    resources = _mapping(top.get("resources") or {}, "resources", [f.name for f in dataclasses.fields(Resources)])
    trials = list(_trials(top))
    configs, written = [used(config) for _, config, _ in trials], [(config, places) for _, config, places in trials]
    given = Resources(**resources)
    if given.opu < 1 and any(c.projector == "opu_hardware" for c in configs):
        raise ConfigError(f"resources.opu: must be at least 1 with projector 'opu_hardware', which one process holds, "
                          f"got {given.opu}")
    selection = _selection(top, configs)
    if not stored:  # what a store has was swept
        check_written(_entries(top), written)
    _check_distinct(trials)
    drawn = draw(configs, selection) if selection.is_random else ()
    return Experiment(name, str(top.get("description", "")).strip(), drawn or tuple(configs), given,
                      _report(top, configs, selection), path, selection, tuple(configs) if drawn else (),
                      plugins=plugins, ignored=ignored(written))


def _check_distinct(trials: Sequence[tuple[str, TrialConfig, Mapping[str, str]]]) -> None:
    places: dict[str, str] = {}
    for place, config, _ in trials:
        if (first := places.setdefault(config.trial_key, place)) is not place:
            raise ConfigError(f"{place}: the same trial as {first}: {_describe(config)}"
                              f"{'' if place == first else '; ' + UNUSED}")


def _plugins(top: Mapping[str, Any]) -> tuple[str, ...]:
    names = top.get("plugins", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"plugins: must be a list of names of modules, got {names!r}")
    return tuple(names)


def _selection(top: Mapping[str, Any], configs: Sequence[TrialConfig]) -> Selection:
    """How the best trial is chosen; where the file is silent, from a fixed grid."""
    if "selection" not in top:
        return Selection()
    selection = Selection(**_mapping(top["selection"], "selection", [f.name for f in dataclasses.fields(Selection)]))
    for number, part in enumerate((top, *top.get("cases", ())) if selection.is_random else ()):
        for key in ("base", "grid"):
            if "seed" in part.get(key, {}):
                raise ConfigError(f"{f'cases[{number - 1}].' if number else ''}{key}.seed: every trial of random "
                                  f"stopping gets a seed of its own, got {part[key]['seed']!r}; leave it out "
                                  "(selection.seed fixes them all)")
    check_candidates(configs, selection)
    return selection


def _report(top: Mapping[str, Any], configs: Sequence[TrialConfig], selection: Selection) -> tuple[str, ...]:
    """The exhibits that the file lists or, where it is silent, those that its trials fit."""
    if "report" not in top:
        return () if selection.is_random else tuple(exhibit for exhibit in EXHIBITS if not misfit(exhibit, configs))
    report = top["report"]
    if not isinstance(report, list) or any(exhibit not in EXHIBITS for exhibit in report):
        raise ConfigError(f"report: must be a list of {', '.join(EXHIBITS)}, got {report!r}")
    for exhibit in report:
        if selection.is_random:
            raise ConfigError(f"report: {exhibit} shows every trial, but of random stopping only the best may be "
                              f"published, got {report!r}; leave it out (selection.md shows the best)")
        if reason := misfit(exhibit, configs):
            raise ConfigError(f"report: {exhibit} {reason}; leave it out (`report: []` writes runs.csv alone)")
    return tuple(report)


def _entries(top: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of the file, by their place."""
    parts = [("", top), *((f"cases[{number}].", case) for number, case in enumerate(top.get("cases") or ()))]
    return {f"{prefix}{key}.{field}": value for prefix, part in parts for key in ("base", "grid")
            for field, value in part.get(key, {}).items()}


def _trials(top: Mapping[str, Any]) -> Iterator[tuple[str, TrialConfig, dict[str, str]]]:
    """(place in the file, trial, place of every field that was given) for every combination of every case."""
    base, grid = _settings(top, "base"), _grid(top, "grid")
    cases = top.get("cases")
    if cases is None:
        cases = [{}]
    if not isinstance(cases, list) or not cases:
        raise ConfigError(f"cases: must be a list of at least one case, got {cases!r}")
    for number, case in enumerate(cases):
        prefix = f"cases[{number}]." if "cases" in top else ""
        case = _mapping(case, f"cases[{number}]", ("base", "grid"))
        for mapping, where in ((top, ""), (case, prefix)):
            for field in _settings(mapping, "grid", where).keys() & _settings(mapping, "base", where).keys():
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
                config = TrialConfig.from_mapping({**case_base, **values})
            except ConfigError as error:
                raise ConfigError(_locate(str(error), prefix, case, top, indices)) from None
            yield place if values else prefix + "base", config, places


def _locate(message: str, prefix: str, case: Mapping, top: Mapping, indices: Mapping[str, int]) -> str:
    """The error, with the place in the file that set the field it names."""
    field = message.split(":", 1)[0]
    for mapping, where in ((case, prefix), (top, "")):
        if field in (mapping.get("grid") or {}):
            return f"{message}, at {where}grid.{field}[{indices.get(field, 0)}]"
        if field in (mapping.get("base") or {}):
            return f"{message}, at {where}base.{field}"
    return message


def _mapping(value: Any, place: str, names: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}: must be a mapping with {', '.join(names)}, got {value!r}")
    for key in value:
        if key not in names:
            raise ConfigError(f"{place}: unknown entry {key!r}; {accepted(key, names, 'accepted')}")
    return value


def _settings(mapping: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
    value = mapping.get(key, {})
    if key in mapping and value is None:
        raise ConfigError(f"{prefix}{key}: is blank; give it at least one field, or leave it out")
    if not isinstance(value, Mapping):
        raise ConfigError(f"{prefix}{key}: must be a mapping from field to value, got {value!r}")
    return dict(value)


def _grid(mapping: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, list[Any]]:
    grid = _settings(mapping, key, prefix)
    if key in mapping and not grid:
        raise ConfigError(f"{prefix}{key}: is empty; give at least one field with a list of values, or leave it out")
    return {name: _values(f"{prefix}{key}.{name}", values) for name, values in grid.items()}


def _values(place: str, values: Any) -> list[Any]:
    """The values of one grid field, written out."""
    if isinstance(values, Mapping):
        values = _range(place, values)
    if not isinstance(values, list):
        raise ConfigError(f"{place}: must be a list of values or a range, got {values!r} (a single value goes to base)")
    if not values:
        raise ConfigError(f"{place}: the list is empty; give at least one value")
    return values


def _range(place: str, spec: Mapping[str, Any]) -> list[Any]:
    kind, arguments = next(iter(spec.items()), (None, None))
    if len(spec) != 1 or kind not in ("range", "linspace", "logspace"):
        raise ConfigError(f"{place}: a range is one of range, linspace, logspace, got {dict(spec)!r}")
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
    points = np.linspace(low, high, int(n)) if kind == "linspace" else np.geomspace(low, high, int(n))
    return [float(f"{point:.12g}") for point in points]


def _describe(config: TrialConfig) -> str:
    defaults = {f.name: f.default for f in dataclasses.fields(config)}
    changed = {k: v for k, v in config.canonical().items()
               if k in ("algorithm", "seed") or v != defaults[k] and v != list(np.atleast_1d(defaults[k]))}
    return ", ".join(f"{k}={v}" for k, v in changed.items())
