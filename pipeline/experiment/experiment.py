"""Experiment files: a base, a grid and cases in YAML become the list of trials to train.

    name: quickstart
    preset: recommended                          # optional: see `pipeline.experiment.preset`
    base: {dataset: digits, epochs: 10}          # settings that all trials share
    grid: {algorithm: [bp, dfa], seed: {range: [0, 3]}}   # every combination is a trial
    zip: {clipping_norm: [0.5, 1], learning_rate: [4, 2]}   # optional: lists whose values move together
    cases:                                       # optional: a union of sub-grids, each on top of base, grid and zip
      - base: {mechanism: none}
      - base: {mechanism: photonic}
        grid: {sigma: {logspace: [0.01, 0.1, 3]}}
    selection: {rule: random_stopping, mean: 9, shape: 1, seed: 0}   # optional: see `pipeline.experiment.stopping`
    search: {algorithm: random, trials: 20, space: {...}}   # optional, instead of grid and cases, see
                                                 # `pipeline.experiment.search`
    budget: {epsilon: 8, delta: 1.0e-5}          # optional, for a search: see `pipeline.accounting.budget`
    plugins: [my_feedback]                       # optional: modules of extensions, beside the file or installed
    references:                                  # optional: published results, marked in the frontier, or a CSV file
      - {source: Tramer and Boneh 2021, epsilon: 3, delta: 1.0e-5, accuracy: 89.7}
    reuse: [other]                               # optional: take over trials that other sweeps have trained
    chosen: {runs: 45, by: validation accuracy, seeds: [0]}      # optional: how settings were found; `seeds: 3`, if
                                                 # nobody noted which; or `{runs: 0, by: the settings of a paper}`

The trials of a search are not known before it runs; `Experiment.possible` represents them.

With random stopping the combinations are candidates, and trials are drawn from them, each with its own seed. The file
then has no seed among its settings.

Values of `grid` and `zip` are lists or one of the ranges `range: [start, stop, step=1]` (stop excluded), `linspace:
[low, high, n]` and `logspace: [low, high, n]` (both ends included).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.experiment.factors import differing, varied_fields
from pipeline.experiment.grid import changed, check_distinct, combine, entries, read_as, read_mapping
from pipeline.experiment.past import Past
from pipeline.experiment.plan import Grid, Plan
from pipeline.experiment.plugins import read_plugins
from pipeline.experiment.preset import advice, read_preset
from pipeline.experiment.results import Cited, read_references
from pipeline.experiment.search import read_plan, read_search
from pipeline.experiment.sections import Chosen, Shown
from pipeline.experiment.yaml_text import Place, located, parse_yaml, placed
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import known_fields, plain, refuse
from pipeline.trials.naming import method
from pipeline.trials.packs import Resources
from pipeline.trials.promises import check_noise
from pipeline.trials.unused import Written, check_written, ignored

ENTRIES = ("name", "description", "preset", "base", "grid", "zip", "cases", "resources", "report", "selection",
           "search", "budget", "plugins", "references", "reuse", "chosen")
MAX_NAME = 120  # characters: the folder of a comparison has two names, and a file system takes 255 bytes


@dataclass(frozen=True)
class Experiment:
    """One experiment file.

    Attributes:
        name: the MLflow experiment, and the folder under `reports/`.
        plan: what is trained; a tuple of distinct trials becomes a grid. In trials from a file, unused settings have
            their defaults.
        report: what `photonic report` draws, and the names of algorithms there.
        source: the file; for trials listed in Python, the name used in messages.
        text: the file's content.
        plugins: modules of extensions, which every worker imports (`pipeline.experiment.plugins`).
        references: results of others, marked in a frontier.
        unread: a CSV file of such results that a stored sweep names; only the experiment file leads to it.
        reuse: names of other sweeps, whose trials are taken over in place of training them.
        ignored: which trials do not use which entries of the file, for people; empty if all entries are used.
        chosen: how settings were found, if the file states it.
        preset: name of the preset that sets the open settings; empty for none.
        advice: settings that the preset has set or, without a preset, would set; for people.
        by_preset: names of the settings that the preset has set in any trial.
        places: by trial_key of `possible`, the place of each setting that the file gives to the trial.
        past: what the store has of its name beside its trials; empty after a file was read.

    Example:
        >>> grid = [TrialConfig(dataset="digits", batch_size=m, seed=seed) for m in (64, 128) for seed in (0, 1)]
        >>> Experiment("batches", "Accuracy by batch size", tuple(grid)).varied
        ('batch_size',)
    """

    name: str
    description: str
    plan: Plan
    resources: Resources = Resources()
    report: Shown = Shown()
    source: Path = Path("FILE")
    text: str = ""
    plugins: tuple[str, ...] = ()
    references: tuple[Cited, ...] = ()
    unread: str = ""
    reuse: tuple[str, ...] = ()
    ignored: str = ""
    chosen: Chosen | None = None
    preset: str = ""
    advice: tuple[str, ...] = ()
    by_preset: frozenset[str] = frozenset()
    places: Mapping[str, Mapping[str, Place]] = field(default_factory=dict, compare=False, repr=False)
    past: Past = Past()

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            object.__setattr__(self, "plan", Grid(tuple(self.plan)))

    @property
    def trials(self) -> tuple[TrialConfig, ...]:
        """Return the trials to train; of a search its suggestions so far, none after a file was read."""
        return self.plan.trials

    @property
    def possible(self) -> tuple[TrialConfig, ...]:
        """Return all trials; for random stopping the candidates, for a search the corners of its space."""
        return self.plan.possible

    @property
    def planned(self) -> int:
        """Return the number of trials; for a search the maximum."""
        return self.plan.planned

    @property
    def folder(self) -> Path:
        """Return the folder of the file, where its plugins lie."""
        return self.source.absolute().parent

    @functools.cached_property
    def varied(self) -> tuple[str, ...]:
        """Return the fields, except the seed, that vary among trials of one algorithm and noise, for trial names."""
        return varied_fields(self.possible)

    def check(self, trials: Iterable[TrialConfig], check: Callable[[TrialConfig], object]) -> None:
        """Apply a check to each trial; what it refuses names the place in the file, if there is one."""
        for trial in trials:
            places = self.plan.places or self.places.get(trial.trial_key, {})  # of a search all trials share places
            in_file = located(self.source) if self.places else contextlib.nullcontext()
            with in_file, placed(places):
                check(trial)

    @property
    def public_text(self) -> str:
        """Return the file's content if it may be published; with random stopping it reveals the number of trials."""
        return self.text if self.plan.publishes_all else ""


def load_experiment(path: str | Path, changes: Mapping[str, Any] = MappingProxyType({})) -> Experiment:
    """Return the experiment of a file, read and validated. Its plugins are imported, which runs their code.

    Args:
        path: of the YAML file; relative paths in it are from its folder.
        changes: new values of fields of `base`, of `name`, or of entries such as `search.seed`. A field that a grid,
            zip, case or space sets is refused. `Experiment.text` is rewritten to match.

    Raises:
        ConfigError: one line that names the file, the place in it, the value and what would be accepted.

    Example:
        >>> experiment = load_experiment("example.yaml", {"epochs": 9})
        >>> len(experiment.trials), experiment.trials[0].epochs
        (4, 9)
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such experiment file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    return parse_experiment(text, path, changes=changes)


def parse_experiment(text: str, path: Path, stored: bool = False,
                     changes: Mapping[str, Any] = MappingProxyType({})) -> Experiment:
    """Return the experiment that a file's text describes; the file at `path` need not exist.

    Of a text `stored` in a tracking store no plugin is imported, and trials were checked when they were swept.
    """
    content = parse_yaml(text, path)
    with located(path, content):
        top = read_mapping(content, "", ENTRIES)
        if changes:
            top, text = changed(top, changes, path)
    with located(path, top):
        return dataclasses.replace(_experiment(top, path, stored), text=text)


def sliced(experiment: Experiment, where: Mapping[str, Any]) -> Experiment:
    """Return an experiment with the trials that match `where` (field -> value, or list of accepted values).

    A report leaves out the file's exhibits that do not fit them. Refused: random stopping, a field or a value that no
    trial has, and conditions that no trial meets.
    """
    refuse(not experiment.plan.publishes_all, "where", "a slice shows several trials, but of random stopping only the "
           "best may be published", ", ".join(where))
    trials = experiment.trials
    for name, condition in where.items():
        values = [plain(value) for value in (condition if isinstance(condition, list) else [condition])]
        all_fields = [trial.canonical() for trial in trials]
        known = {str(fields[name]): fields[name] for fields in all_fields if name in fields}  # text -> value
        if not known:
            names = {field for fields in all_fields for field in fields}
            raise ConfigError(f"where: must be a field that its trials have, got '{name}'; {known_fields(name, names)}")
        for value in values:
            if value not in known.values():
                raise ConfigError(f"where: {name} must be one of {', '.join(known)}, got {value!r}")
        trials = tuple(trial for trial, fields in zip(trials, all_fields, strict=True) if fields.get(name) in values)
    if not trials:
        conditions = ", ".join(f"{name} {value}" for name, value in where.items())
        raise ConfigError(f"where: must leave a trial, but none has all of {conditions}")
    return dataclasses.replace(experiment, plan=experiment.plan.with_trials(trials))


def with_trials(experiment: Experiment, trials: Sequence[TrialConfig]) -> Experiment:
    """Return an experiment with these trials, and every exhibit that fits them; a search gets its trials so far."""
    report = dataclasses.replace(experiment.report, exhibits=None)
    return dataclasses.replace(experiment, plan=experiment.plan.with_trials(trials), report=report)


def _experiment(top: Mapping[str, Any], path: Path, stored: bool) -> Experiment:
    """Return the experiment that a parsed file describes, checked; a `stored` text was checked when it was swept."""
    folder, name = path.parent, top.get("name", path.stem)
    check_name("name", name)
    plugins = read_plugins(top, folder, stored)
    resources = read_as(Resources, top.get("resources") or {}, "resources")
    preset = read_preset(top)
    search = read_search(top, folder, preset)
    combinations = list(search.combinations() if search else combine(top, folder, preset))

    written = [(combination.trial, combination.places) for combination in combinations]
    places_of: dict[TrialConfig, Mapping[str, Place]] = {}  # distinct trials in the file's order -> place by field
    for trial, places in written:
        places_of.setdefault(trial.pruned(), places)
    refuse(resources.opu < 1 and any(trial.parts.projector.hardware for trial in places_of), "resources.opu",
           "must be at least 1 for trials on a real OPU, which one process holds", resources.opu)
    plan = read_plan(top, search, written, tuple(places_of))
    if not stored:
        _check_settings(top, written)
    if not plan.asks:  # corners of a search may be alike
        check_distinct(combinations)

    entry = top.get("report", {})
    report = read_as(Shown, entry if isinstance(entry, Mapping) else {"exhibits": entry}, "report")
    if report.best_of and not stored:
        _check_best_of(report.best_of, tuple(places_of))
    references, unread = _references(top, folder, stored)
    return Experiment(
        name=name, description=str(top.get("description", "")).strip(), plan=plan, source=path, plugins=plugins,
        resources=resources, report=report, references=references, unread=unread, reuse=_reuse(top, name, plan),
        ignored=ignored(written), places={trial.trial_key: places for trial, places in places_of.items()},
        preset=preset, advice=advice(preset, (combination[1:] for combination in combinations)),
        by_preset=frozenset(name for combination in combinations for name in combination.by_preset),
        chosen=read_as(Chosen, top["chosen"], "chosen") if "chosen" in top else None)


def _check_settings(top: Mapping[str, Any], written: Sequence[Written]) -> None:
    check_written(entries(top), written)
    for trial, places in written:
        # a missing noise_multiplier has no place of its own
        with placed({"noise_multiplier": places.get("mechanism", ""), **places}):
            check_noise(trial)


def _check_best_of(settings: Sequence[str], trials: Sequence[TrialConfig]) -> None:
    differ = [name for name in differing(trials, method) if name != "algorithm"]
    idle = [name for name in settings if name not in differ]
    refuse(idle, "report.best_of", "must be settings in which trials of one algorithm differ, here "
           f"{', '.join(differ) or 'none'}", ", ".join(map(repr, idle)))


def _references(top: Mapping[str, Any], folder: Path, stored: bool) -> tuple[tuple[Cited, ...], str]:
    """Return the results that a file cites, or the path of their CSV file if it is not read."""
    entry = top.get("references")
    if stored and isinstance(entry, str) and entry:
        return (), entry  # another file may lie there than when the sweep was stored
    return read_references(top, folder), ""


def _reuse(top: Mapping[str, Any], own: str, plan: Plan) -> tuple[str, ...]:
    names = top.get("reuse", [])
    refuse(not isinstance(names, list) or not all(isinstance(name, str) for name in names), "reuse",
           "must be a list of names of other sweeps", repr(names))
    refuse(own in names, "reuse", "must name other sweeps, as no trial of its own is trained twice", repr(own),
           "leave it out")
    refuse(names and not plan.publishes_all, "reuse", "must not stand beside random stopping, whose price needs a "
           "fresh draw of every trial", repr(names), "leave one of them out")
    return tuple(dict.fromkeys(names))


def check_name(place: str, name: Any) -> None:
    """Refuse a name, at `place`, that cannot name an experiment and its folder."""
    refuse(not isinstance(name, str), place, "must be text", repr(name), "in quotes it is text")
    refuse(not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name), place,
           "must be letters, digits, '_', '-' and '.', and begin with a letter or digit", repr(name))
    refuse(len(name) > MAX_NAME, place, f"must have at most {MAX_NAME} characters, as files are named by it",
           f"{len(name)}: {name!r}")
