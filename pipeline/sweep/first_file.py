"""`photonic init`: write a first experiment file from a few answers."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.experiment.experiment import Experiment, check_name, parse_experiment
from pipeline.experiment.preset import RECOMMENDED
from pipeline.experiment.yaml_text import as_yaml
from pipeline.learning.data.proposal import name_of, proposal
from pipeline.sweep.dry_run import preview
from pipeline.trials.datasets import DATASETS
from pipeline.trials.features import Features
from pipeline.trials.fields import ConfigError, refuse
from pipeline.trials.mechanism import Mechanism
from pipeline.trials.naming import counted, duration
from pipeline.trials.part import parts_of

SEEDS = 3
MOST_NAMED = 10  # columns that a proposal leaves out, on the screen
DEFAULT_EPSILONS = (1, 3, 8)
EPSILONS = (0.01, 1000)  # range of the targets
PRIVATE = {"records": "per_example", "labels": "photonic", "nothing": "none"}  # private part -> mechanism
# Sets of algorithms by private part, the most informative first. The first set that fits the time is used.
FOR_ALL = (("bp", "dfa", "tdfa", "pdfa"), ("bp", "dfa"), ("dfa",))
SETS = {"records": FOR_ALL, "labels": (("pdfa",),), "nothing": FOR_ALL}
MEANING = {
    "records": "features and label are private: contributions are clipped, their sum gets noise",
    "labels": "labels are private, features public: the noise of the optical projection hides labels",
    "nothing": "nothing is private",
}
WHO = {"bp": "back-propagation", "dfa": "direct feedback", "tdfa": "ternary", "pdfa": "optical"}
COMMENTS = {
    "target_epsilon": "certified epsilon of each trial at delta 1e-5; it sets the noise",
    "target_label_epsilon": "label epsilon of each trial at delta 1e-5; it sets the noise",
}

BETTER_FOR_LABELS = ("To protect labels rather than study the device, randomised response is more accurate "
                     "(docs/privacy.md, section 5).")
FOR_TABLE = """\
# Written by `{command}`: first confirm what {table} declares.
name: {name}
plugins: [{table}]
preset: recommended
base: {{dataset: {dataset}, mechanism: per_example, hidden: [32]}}
grid:
  algorithm: [bp, dfa]
  target_epsilon: [1, 3, 8]
  seed: {{range: [0, 3]}}
"""


def computed() -> list[str]:
    """Return the names of features that are computed from records."""
    return [name for name, cls in parts_of("features", Features).items() if not (cls.raw or cls.of_file)]


@dataclass(frozen=True)
class Answers:
    """The answers for a first sweep."""

    dataset: str = "fashion_mnist"  # as in an experiment file
    features: str = "pixels"  # as in an experiment file
    private: str = "records"  # one of `PRIVATE`
    epsilons: tuple[float, ...] = DEFAULT_EPSILONS  # targets, one for every point of a curve, if anything is private
    minutes: float = 10  # longest training time on this machine

    def __post_init__(self) -> None:
        for name, value, known in (("dataset", self.dataset, DATASETS),
                                   ("features", self.features, parts_of("features", Features)),
                                   ("private", self.private, PRIVATE)):
            refuse(value not in known, f"--{name}", f"must be one of {', '.join(known)}", repr(value))
        refuse(self.private == "nothing" and self.epsilons != DEFAULT_EPSILONS, "--epsilon",
               "must be left out where nothing is private", as_option(self.epsilons))
        low, high = EPSILONS
        refuse(not self.epsilons or any(not low <= epsilon <= high for epsilon in self.epsilons), "--epsilon",
               f"must be numbers from {low:g} to {high:g}", list(self.epsilons))
        refuse(len(set(self.epsilons)) < len(self.epsilons), "--epsilon", "must be different numbers",
               list(self.epsilons))
        refuse(not self.minutes > 0, "--minutes", "must be > 0", f"{self.minutes:g}")


def read_answers(given: Mapping[str, Any], ask: Callable[[str], str]) -> Answers:
    """Return the answers from options, and for each missing option from the user; an empty answer is the default."""
    default = Answers()
    found: dict[str, Any] = {}
    questions = {"dataset": f"Data set ({', '.join(DATASETS)})", "features": "Features (pixels, or a public map: "
                 f"{', '.join(computed())})",
                 "private": f"What is private ({', '.join(PRIVATE)})", "epsilons": "Epsilons",
                 "minutes": "Minutes of training at most"}
    for name, question in questions.items():
        value = given.get(name)
        default_text = as_option(getattr(default, name))
        is_needed = name != "epsilons" or found["private"] != "nothing"
        if value is None and is_needed:
            value = ask(f"{question} [{default_text}]: ").strip() or default_text
        found[name] = _read(name, default_text if value is None else value)
    return Answers(**found)


def _read(name: str, value: Any) -> Any:
    if name not in ("epsilons", "minutes") or not isinstance(value, str):
        return value
    try:
        numbers = tuple(float(part) for part in value.replace(",", " ").split())
        return numbers if name == "epsilons" else numbers[0]
    except (ValueError, IndexError):
        form = "numbers" if name == "epsilons" else "a number"
        raise ConfigError(f"{_option(name)}: must be {form}, got {value!r}") from None


def _option(name: str) -> str:
    return "--epsilon" if name == "epsilons" else f"--{name}"


def as_option(value: Any) -> str:
    """Return an answer as the value of a command line option: `1,3,8` for several numbers."""
    if isinstance(value, tuple):
        return ",".join(f"{number:.12g}" for number in value)
    return value if isinstance(value, str) else f"{value:g}"


def check_new(path: Path) -> None:
    """Refuse an experiment file that is there, or cannot be written."""
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: must end in .yaml")
    check_name(f"{path}: its name without {path.suffix}", path.stem)
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: must be in a folder that is there")
    if path.exists():
        raise ConfigError(f"{path}: is there already; name another file, or remove it")


def write_for_table(path: Path, csv: Path, label: str) -> Iterator[str]:
    """Write the file and, beside it, a declaration of the table that is to be confirmed; yield lines for people."""
    check_new(path)
    declaration = path.with_name(f"{name_of(csv)}_table.yaml")
    refuse(declaration.exists(), str(declaration), "must not be there already", "a file",
           "it may be confirmed: name another folder, or remove it")
    command = _command(["photonic", "init", str(path), "--csv", str(csv), "--label", label])
    proposed = proposal(csv, label, path.parent, command)
    declaration.write_text(proposed.text, encoding="utf-8")
    path.write_text(FOR_TABLE.format(command=command, table=as_yaml(declaration.name), name=as_yaml(path.stem),
                                     dataset=as_yaml(name_of(csv))), encoding="utf-8")
    yield f"{declaration}: ranges, values and classes as the records have them, which is a leak"
    for name, reason in [*proposed.left_out.items()][:MOST_NAMED]:
        yield f"left out: {name!r}: {reason}"
    if (more := len(proposed.left_out) - MOST_NAMED) > 0:
        yield f"left out: {more} more, each with its reason in the declaration"
    yield "confirm:  put in what is public without the records, and `confirmed: true`; no sweep begins before"
    quoted = shlex.quote(str(path))
    yield f"train:    `photonic sweep {quoted} --dry-run`, then `photonic sweep {quoted}`"


def _command(words: Sequence[str]) -> str:
    """Return a command for a comment of a file, which has one line whatever its words are."""
    return "".join(letter if letter.isprintable() else "?" for letter in shlex.join(words))


def write(path: Path, answers: Answers) -> Iterator[str]:
    """Write the file, and yield lines for people: its trials, the estimated time, and the next commands."""
    check_new(path)
    experiment, seconds = fitting(path, answers)
    path.write_text(experiment.text, encoding="utf-8")
    yield (f"{path}: {counted(len(experiment.trials), 'trial')}, {duration(seconds)} on this machine (an estimate; "
           f"{answers.minutes:g} min at most were asked for)")
    compared = {trial.algorithm for trial in experiment.trials}
    left_out = [name for name in SETS[answers.private][0] if name not in compared]
    if left_out:
        yield f"left out for time: {', '.join(left_out)}; with more `--minutes` they are compared too"
    if seconds > 60 * answers.minutes:
        yield "longer than asked for: remove epsilons, or sweep with `--workers N` on more cores"
    if answers.features in computed():
        yield f"features: {answers.features} are computed once, before training, and not in the estimate"
    if answers.private == "labels":
        yield BETTER_FOR_LABELS
    if answers.dataset != "digits":  # which is bundled
        yield (f"data:     {DATASETS[answers.dataset].label}, downloaded unless the folder in PHOTONIC_DATA has it "
               "(`--dataset` names another)")
    quoted = shlex.quote(str(path))
    yield f"settings: `photonic sweep {quoted} --dry-run` lists each with its origin"
    yield f"train:    `photonic sweep {quoted}`, then `photonic report {quoted}`"



def fitting(path: Path, answers: Answers) -> tuple[Experiment, float]:
    """Return the experiment with the most algorithms that fits the time, else the fewest, and its estimated seconds."""
    def estimated(algorithms: Sequence[str]) -> tuple[Experiment, float]:
        try:
            experiment = parse_experiment(text(path, answers, algorithms), path)
        except ConfigError as error:  # the message's place is in a file that does not exist
            raise ConfigError(f"{str(error).rpartition(' (')[0]}; nothing was written, other answers may do") from None
        return experiment, preview(experiment, None, root=None).seconds

    *more, fewest = SETS[answers.private]
    for algorithms in more:
        experiment, seconds = estimated(algorithms)
        if seconds <= 60 * answers.minutes:
            return experiment, seconds
    return estimated(fewest)


def text(path: Path, answers: Answers, algorithms: Sequence[str]) -> str:
    """Return the text of an experiment file with comments."""
    default = Answers()
    words = ["photonic", "init", str(path)]
    for name, value in dataclasses.asdict(answers).items():
        if value != getattr(default, name):
            words += [_option(name), as_option(value)]
    private, target = PRIVATE[answers.private], parts_of("mechanism", Mechanism)[PRIVATE[answers.private]].target
    lines = [  # each with a comment
        (f"# Written by `{_command(words)}`.", ""),
        *([(f"# {BETTER_FOR_LABELS}", "")] if answers.private == "labels" else []),
        (f"name: {as_yaml(path.stem)}", ""),
        (f"description: {DATASETS[answers.dataset].label}, a first sweep of {', '.join(algorithms)}.", ""),
        (f"preset: {RECOMMENDED}", "sets what is left open below: batch, step size, clipping norm, ..."),
        ("base:", ""),
        (f"  dataset: {answers.dataset}", ""),
        *([(f"  features: {answers.features}", "")] if answers.features != default.features else []),
        (f"  mechanism: {private}", MEANING[answers.private]),
        ("grid:", ""),
        (f"  algorithm: [{', '.join(algorithms)}]", "; ".join(f"{name}: {WHO[name]}" for name in algorithms)),
        *([(f"  {target}: [{as_option(answers.epsilons).replace(',', ', ')}]", COMMENTS[target])] if target else []),
        (f"  seed: {{range: [0, {SEEDS}]}}", "three seeds, so that every mean has an interval"),
    ]
    width = max(len(line) for line, comment in lines if comment) + 2  # comments begin in one column
    return "".join(f"{line:<{width}}# {comment}\n" if comment else f"{line}\n" for line, comment in lines)
