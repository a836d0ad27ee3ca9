"""A table as a data set: a file declares its columns, classes and test records, and nothing is learnt from the records.

    dataset: patients                            # its public name; trials say `dataset: patients`
    data_file: patients.csv                      # CSV, also compressed, or Parquet; relative to the declaration
    label: outcome                               # column of the class
    classes: [well, ill]
    columns:
      age: {range: [0, 120]}                     # a number; smaller and larger ones are clamped
      income: {range: [1e3, 1e6], scale: log}
      ward: {values: [north, south]}             # a category; with `others: true` all others share an input
      grade: {values: [1, 2, 3]}                 # numbers match by value (1.0, 01), texts in quotes by text alone
    records: {train: 455, test: 114}
    test: {share: 0.2, seed: 0}                  # or {column: part, value: test}, or {file: test.csv}
    confirmed: true

All of it but files and number formats is part of a trial's identity, and must be public: no epsilon covers a range, a
category or a class that was read from private records. Path and digest of the records are in no key.
"""

from __future__ import annotations

import codecs
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.trials.condition import Trial
from pipeline.trials.datasets import DATASETS, Data, DatasetSpec
from pipeline.trials.fields import ConfigError, accepted, check_whole, digest, is_number, is_whole, refuse
from pipeline.trials.part import part, setting

THOUSANDS = (",", ".", "'", " ")  # marks between groups of three digits; a space also stands for narrow ones
OPEN = ("separator", "decimal", "thousands", "encoding")  # entries that may be left out
ENTRIES = ("dataset", "data_file", "label", "classes", "columns", "records", "test", "confirmed", *OPEN)
NOT_PUBLIC = ("data_file", "confirmed", *OPEN)  # entries that do not belong to a trial's identity
LEVELS = 255  # a column's range has steps of 1/255


@dataclass(frozen=True)
class Column:
    """A declared column: a number in a range, or a category."""

    name: str
    low: float = 0.0
    high: float = 1.0
    is_log: bool = False  # whether steps of a number are equal ratios
    values: tuple[str | int | float, ...] = ()  # of a category; empty for a number
    others: bool = False  # whether a cell may be none of `values`

    @property
    def width(self) -> int:
        """Return the number of inputs: one for a number; or one for each category, and one for all others."""
        return len(self.values) + 1 if self.values else 1


@dataclass(frozen=True)
class TableSpec(DatasetSpec):
    """Public facts about a table, and where it is."""

    columns: tuple[Column, ...] = ()
    label: str = ""
    target: Column = Column("")  # the label, whose values are the classes as they are declared
    file: Path = Path()
    test: tuple[str | int | float, ...] = ()  # `seed`, a seed; `column`, name, value; or `file`, path
    separator: str = ","
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"

    @property
    def inputs(self) -> dict[str, slice]:
        """Return where each column's inputs stand in a record; `Column.width` counts them."""
        ends = itertools.accumulate(column.width for column in self.columns)
        return {column.name: slice(end - column.width, end) for column, end in zip(self.columns, ends, strict=True)}


def table_inputs(dataset: str) -> dict[str, slice]:
    """Return where each column's inputs stand in a record of a declared table, as a network of your own needs them.

    A number has one input, a category one for each of its values and one more. In `x[:, inputs["ward"]]`, of shape
    [n, values + 1], the largest is at the category's place, so that `argmax(1)` is its number. Of a data set that is
    no table, or whose declaration is not loaded yet, a `ConfigError` says so.

    Example:
        >>> load_experiment("patients.yaml").name  # its plugins have the table's declaration
        'patients'
        >>> table_inputs("patients")
        {'age': slice(0, 1, None), 'ward': slice(1, 4, None)}
    """
    return declared_table(dataset).inputs


def declared_table(dataset: str) -> TableSpec:
    """Return what is declared of a table."""
    spec = DATASETS[dataset].spec if dataset in DATASETS else None
    if not isinstance(spec, TableSpec):
        raise ConfigError("dataset", "must be a table whose declaration is loaded", repr(dataset),
                          "an experiment file names it among its plugins")
    return spec


class TableData(Data):
    """A trial's records from a table."""

    table: str = setting("", "digest of what a table's file declares; by default that of the file that is loaded")
    declared: ClassVar[str] = ""  # digest of the declaration that is loaded

    def settled(self, trial: Trial) -> dict[str, Any]:
        """Return the digest of the declaration, if it was left open."""
        return {} if self.table else {"table": self.declared}

    def check(self, trial: Trial) -> None:
        """Refuse trials of another declaration, beside what `Data` refuses."""
        refuse(self.table not in ("", self.declared), "table", f"must be {self.declared}, which {self.source} declares",
               self.table, "the file was another when the trial was tracked: restore it, or give the table a new name")
        super().check(trial)


def enter(content: Any, path: Path) -> str:
    """Register the data set that a file declares, under its name; return the digest of what is public of it."""
    refuse(not isinstance(content, Mapping), "table", f"must be a mapping with {', '.join(ENTRIES)}", repr(content))
    for entry in content:
        refuse(entry not in ENTRIES, entry, "must be no entry of a table", repr(content[entry]),
               accepted(entry, ENTRIES, "entries"))
    for entry in ENTRIES:
        refuse(entry not in content and entry not in OPEN, entry, "must be declared", "nothing")
    refuse(content["confirmed"] is not True, "confirmed", "must be true", repr(content["confirmed"]),
           "what was read from the records is a leak: put in ranges, values and classes that are public without them")
    name = str(content["dataset"])
    spec = _spec(content, path.absolute().parent)
    refuse(name in DATASETS and DATASETS[name].spec != spec, "dataset",
           "must be a name that no other data set has in this process", repr(name),
           "after an edit of the file start again, as what was declared before may be at work")
    public = {entry: value for entry, value in content.items() if entry not in NOT_PUBLIC}
    public["columns"] = list(content["columns"].items())  # in their order, which is that of the inputs
    if "file" in public["test"]:
        public["test"] = "file"  # its path belongs to no identity
    declared = digest(public)
    part("dataset", name)(type(name, (TableData,), {"spec": spec, "source": path.name, "declared": declared}))
    return declared


def _spec(content: Mapping[str, Any], folder: Path) -> TableSpec:
    columns, records = _columns(content["columns"]), content["records"]
    classes = _values("classes", content["classes"])
    refuse(len(classes) < 2, "classes", "must be at least two", ", ".join(map(str, classes)))
    for entry in ("data_file", "label", *(entry for entry in OPEN if entry in content)):
        refuse(not isinstance(content[entry], str), entry, "must be text", repr(content[entry]), "in quotes it is text")
    refuse(content["label"] in [column.name for column in columns], "label", "must be no column of `columns`",
           content["label"])
    refuse(not isinstance(records, Mapping) or records.keys() != {"train", "test"}, "records",
           "must be {train: N, test: N}", repr(records))
    for split in ("train", "test"):
        check_whole(f"records.{split}", records[split], 1)
    _check_marks(content)
    return TableSpec(
        records["train"], records["test"], (1, 1, sum(column.width for column in columns)), len(classes), mean=(0.5,),
        std=(0.5,), scale=float(LEVELS), published=True, columns=columns, label=content["label"],
        target=Column(content["label"], values=classes), classes=tuple(map(str, classes)),
        file=folder / content["data_file"], test=_test(content["test"], folder, records),
        **{entry: content[entry] for entry in OPEN[:-1] if entry in content},
        encoding=codecs.lookup(content.get("encoding", "utf-8")).name)


def _check_marks(content: Mapping[str, Any]) -> None:
    """Refuse an unknown format of cells, and a mark that would mean two things."""
    separator, decimal = content.get("separator", ""), content.get("decimal", ".")
    thousands, encoding = content.get("thousands", ""), content.get("encoding", "utf-8")
    refuse(len(separator) != 1 and "separator" in content, "separator", "must be one character", repr(separator))
    refuse(decimal not in (".", ","), "decimal", "must be '.' or ','", repr(decimal))
    refuse(thousands not in THOUSANDS and "thousands" in content, "thousands",
           "must be ',', '.', ' ' or an apostrophe", repr(thousands))
    refuse(thousands == decimal, "thousands", "must be another mark than that of decimals", repr(thousands),
           "12,345 is twelve thousand with decimal: '.', and 12.345 with decimal: ','")
    refuse(separator in (decimal, thousands) and "separator" in content, "separator", "must be no mark within numbers",
           repr(separator), "left out, it is a comma, and a cell with one is in quotes")
    try:
        "".encode(encoding)
    except (LookupError, ValueError):
        refuse(True, "encoding", "must be utf-8, utf-16, cp1252 or another one of Python's", repr(encoding))


def _columns(content: Any) -> tuple[Column, ...]:
    refuse(not isinstance(content, Mapping) or not content, "columns", "must be a mapping of columns",
           repr(content), "such as {age: {range: [0, 120]}, ward: {values: [north, south]}}")
    columns = []
    for name, rules in content.items():
        place = f"columns.{name}"
        kinds = rules.keys() if isinstance(rules, Mapping) else set()
        refuse(kinds not in ({"range"}, {"range", "scale"}, {"values"}, {"values", "others"}), place,
               "must be {range: [low, high]}, {range: [low, high], scale: log} or {values: [...]}", repr(rules),
               "with `others: true` beside `values` a cell may be another one")
        if "values" in kinds:
            refuse(rules.get("others", True) is not True, f"{place}.others", "must be true", repr(rules.get("others")),
                   "left out, a cell must be one of `values`, or missing")
            columns.append(Column(name, values=_values(f"{place}.values", rules["values"]), others="others" in kinds))
            continue
        ends, scale = rules["range"], rules.get("scale", "linear")
        refuse(scale not in ("linear", "log"), f"{place}.scale", "must be linear or log", repr(scale))
        is_range = (isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends))
                    and -math.inf < ends[0] < ends[1] < math.inf)
        refuse(not is_range, f"{place}.range", "must be two numbers, the smaller first", repr(ends))
        refuse(scale == "log" and ends[0] <= 0, f"{place}.range", "must be > 0 with scale log", repr(ends))
        columns.append(Column(name, float(ends[0]), float(ends[1]), scale == "log"))
    return tuple(columns)


def _values(place: str, values: Any) -> tuple[str | int | float, ...]:
    """Return a list of categories: numbers, and texts as the table has them; no cell may be two of them."""
    refuse(not isinstance(values, list) or not values, place, "must be a list of texts or numbers", repr(values))
    for value in values:
        refuse(not isinstance(value, str) and not (is_number(value) and math.isfinite(value)), place,
               "must be texts or numbers", repr(value),
               "YAML reads yes, no, on and off as true and false: put them in quotes")
    found = tuple(value.strip() if isinstance(value, str) else value for value in values)
    names = tuple(map(str, found))
    refuse(len(set(found)) < len(found) or len(set(names)) < len(found), place, "must differ from each other",
           ", ".join(names), "1 and 1.0 are one number; in quotes they are two texts")
    return found


def _test(content: Any, folder: Path, records: Mapping[str, int]) -> tuple[str | int | float, ...]:
    """Return how test records are told from training records: the field `TableSpec.test`."""
    entries = content if isinstance(content, Mapping) else {}
    if entries.keys() == {"share", "seed"}:
        share, n = entries["share"], records["train"] + records["test"]
        refuse(not is_number(share) or not 0 < share < 1, "test.share", "must be between 0 and 1", repr(share))
        refuse(not is_whole(entries["seed"], 0), "test.seed", "must be a whole number >= 0", repr(entries["seed"]))
        refuse(round(share * n) != records["test"], "records.test", f"must be {round(share * n)}, {share} of {n}",
               records["test"])
        return "seed", str(entries["seed"])
    if entries.keys() == {"column", "value"}:
        refuse(not isinstance(entries["column"], str), "test.column", "must be text", repr(entries["column"]))
        return "column", entries["column"], *_values("test.value", [entries["value"]])
    refuse(entries.keys() != {"file"}, "test", "must be {share: 0.2, seed: 0}, {column: NAME, value: VALUE} or {file: "
           "PATH}", repr(content))
    return "file", str(folder / str(entries["file"]))

