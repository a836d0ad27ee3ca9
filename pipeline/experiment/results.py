"""Results that others trained, which a report marks on its frontier.

An experiment file lists published ones under `references`, or names a CSV file there; `photonic report --with` names
further files. Their epsilon is what the source says: nothing was trained or accounted for here.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pipeline.experiment.grid import read_as
from pipeline.experiment.yaml_text import placed
from pipeline.trials.datasets import DATASETS
from pipeline.trials.fields import ConfigError, accepted, is_number, refuse
from pipeline.trials.sampler import RELATIONS

NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Cited:
    """One result of others, as it is cited: a row of a CSV file, or a reference that an experiment file lists.

    Attributes:
        dataset, method: data set and training method, in the source's words. A listed reference has no data set, as it
            is of the experiment's, and its method is its source.
        epsilon, delta, relation: the source's (epsilon, delta)-differential privacy; a listed one has no relation.
        accuracy: accuracy on the test set, a fraction.
        seed: None for a published figure without a seed.
        source: author or publication.
        place: where it stands, for messages.
    """

    dataset: str
    method: str
    epsilon: float
    delta: float
    relation: str
    seed: int | None
    accuracy: float
    source: str
    place: str = field(default="", compare=False)

    @property
    def point(self) -> tuple[object, ...]:
        """The fields that results share if they are averaged over seeds; listed ones are averaged with no other."""
        return (self.dataset, self.method, self.epsilon, self.delta, self.relation,
                self.accuracy if self.is_listed else None)

    @property
    def is_listed(self) -> bool:
        """Whether an experiment file lists it, without data set, relation and seed."""
        return not self.dataset


@dataclass(frozen=True)
class Reference:
    """One published result as an experiment file lists it."""

    source: str  # authors, and the model if needed
    epsilon: float  # of the certified (epsilon, delta)-differential privacy
    delta: float
    accuracy: float  # on the test records, in percent

    def __post_init__(self) -> None:
        refuse(not isinstance(self.source, str) or not self.source.strip() or not self.source.isprintable(),
               "references.source", "must say who published the result, in one line", repr(self.source))
        for name, high, limit in (("epsilon", math.inf, ""), ("delta", 1, " and at most 1"),
                                  ("accuracy", 100, " and at most 100 percent")):
            value = getattr(self, name)
            refuse(not is_number(value) or not 0 < value <= high, f"references.{name}", f"must be > 0{limit}",
                   repr(value))


def read_references(top: Mapping[str, Any], folder: Path) -> tuple[Cited, ...]:
    """Return the results that a file lists under `references`, or those of the CSV file in `folder` that it names."""
    entries = top.get("references", [])
    if isinstance(entries, str) and entries:
        return read_results(folder / Path(entries).expanduser())
    if not isinstance(entries, list):
        raise ConfigError(f"references: must be a list of published results, or a CSV file with results, got "
                          f"{entries!r}")
    results = []
    names = [field.name for field in fields(Reference)]
    for index, entry in enumerate(entries):
        place = f"references[{index}]"
        with placed({f"references.{name}": f"{place}.{name}" for name in names}):  # of errors: references[2].delta
            listed = read_as(Reference, entry, place)
        results.append(Cited(dataset="", method=listed.source, epsilon=listed.epsilon, delta=listed.delta, relation="",
                              seed=None, accuracy=listed.accuracy / 100, source=listed.source, place=place))
    return tuple(dict.fromkeys(results))


def read_results(path: Path) -> tuple[Cited, ...]:
    """Return the results of a CSV file with a column for each of `CELLS`, in any order.

    A file that is no table of results is refused (`ConfigError`). Rows count from 1, as in a spreadsheet.
    """
    try:
        lines = csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""), strict=True)
        rows = [(number, row) for number, row in enumerate(lines, start=1) if any(row)]  # without blank lines
    except (OSError, ValueError, csv.Error) as error:  # a path or a byte that cannot be, too
        raise ConfigError(f"{path}: cannot be read as CSV ({error})") from None
    if len(rows) < 2:
        found = "one row" if rows else "nothing"
        raise ConfigError(f"{path}: must have a row with the names of its columns and one for each result, has {found}")
    (header_number, header), *rows = rows
    names = [name.strip() for name in header]
    for name in names:
        if name not in CELLS:
            raise ConfigError(f"{path}, row {header_number}: unknown column {name!r}; "
                              f"{accepted(name, CELLS, 'columns')}")
    if wrong := [name for name in CELLS if names.count(name) != 1]:
        raise ConfigError(f"{path}, row {header_number}: must have every column once, but not so {', '.join(wrong)}")
    return check_seeds(_result(f"{path}, row {number}", names, row) for number, row in rows)


def _result(place: str, names: Sequence[str], row: Sequence[str]) -> Cited:
    if len(row) != len(names):
        raise ConfigError(f"{place}: must have {len(names)} cells, one for each column, has {len(row)}")
    values = {}
    for name, cell in zip(names, row, strict=True):
        text = " ".join(cell.split())
        try:
            values[name] = CELLS[name](text)
        except ValueError as error:
            raise ConfigError(f"{place}, column {name}: {error}, got {text!r}") from None
    return Cited(**values, place=place)


def check_seeds(results: Iterable[Cited]) -> tuple[Cited, ...]:
    """Return the results; refuse a seed that a point has twice, and a result without a seed beside others."""
    results = tuple(results)
    by_point: dict[tuple[object, ...], dict[int | None, Cited]] = {}  # by seed
    for result in results:
        by_seed = by_point.setdefault(result.point, {})
        seed_text = "none" if result.seed is None else str(result.seed)
        if result.seed in by_seed:
            raise ConfigError(f"{result.place}, column seed: must differ from that of {by_seed[result.seed].place}, as "
                              f"data set, method, epsilon, delta and relation are the same, got {seed_text} twice")
        if by_seed and None in (result.seed, *by_seed):
            first = next(iter(by_seed.values()))
            raise ConfigError(f"{result.place}, column seed: must be there for all rows of one data set, method, "
                              "epsilon, delta and relation or for a single one without, got "
                              f"{seed_text} beside {first.place}")
        by_seed[result.seed] = result
    return results


def _text(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError("must be a text of printable characters")
    return text


def _one_of(names: Collection[str], what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be a known one; {accepted(text, names, what)}")
        return text
    return read


def _number(what: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text) if NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(value) or not fits(value):
            raise ValueError(f"must be {what}")
        return value
    return read


def _seed(text: str) -> int | None:
    if text and not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("must be a whole number >= 0, or empty for a single published figure")
    return int(text) if text else None


CELLS: dict[str, Callable[[str], Any]] = {
    "dataset": _one_of(DATASETS, "data sets"),
    "method": _text,
    "epsilon": _number("a finite number > 0", lambda value: value > 0),
    "delta": _number("a number > 0 and < 1 (a pure epsilon holds at any: give that of the frontier)",
                     lambda value: 0 < value < 1),
    "relation": _one_of(RELATIONS, "relations"),
    "seed": _seed,
    "accuracy": _number("a fraction of the test set, from 0 to 1 and not in percent", lambda value: 0 <= value <= 1),
    "source": _text,
}
