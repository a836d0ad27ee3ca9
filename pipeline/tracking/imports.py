"""Results that others trained: read their CSV file, and store them in the tracking store.

An import is an MLflow experiment of its own, tagged `imported`, with a parent run and one nested run per result. Its
runs have no `trial_key` and its parent run has no tag `sweep`, so code that looks for trials or sweeps ignores them.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.tracking.artifacts import IMPORTED, param_text
from pipeline.tracking.backend import Client, TrackingError
from pipeline.trials.datasets import DATASETS
from pipeline.trials.fields import UserError, accepted, digest
from pipeline.trials.sampler import RELATIONS

ACCURACY, EPSILON = "test/accuracy", "epsilon/imported"  # metrics of a result
NOTE_TEXT = "imported: said by its source; nothing was trained or accounted for here"
MAX_TEXT_LENGTH = 500  # longest text: every MLflow server accepts a param of this length
MAX_NAME_LENGTH = 250  # longest name of a run in a database
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"


@dataclass(frozen=True)
class Result:
    """One row of a file of results.

    Attributes:
        dataset, method: data set and training method, in the source's words.
        epsilon, delta, relation: the source's (epsilon, delta)-differential privacy.
        accuracy: accuracy on the test set, a fraction.
        seed: None for a published figure without a seed.
        source: author or publication.
    """

    dataset: str
    method: str
    epsilon: float
    delta: float
    relation: str
    seed: int | None
    accuracy: float
    source: str

    @property
    def point(self) -> tuple[object, ...]:
        """The fields that results share if they are averaged over seeds."""
        return self.dataset, self.method, self.epsilon, self.delta, self.relation


def read_results(path: Path) -> tuple[list[Result], str]:
    """Return the results of a CSV file with a column for each field of `Result`, in any order, and the file's text.

    A file that is no table of results is refused (`UserError`). Rows count from 1, as in a spreadsheet.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(number, row) for number, row in enumerate(lines, start=1) if any(row)]  # without blank lines
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV ({error})") from None
    if len(rows) < 2:
        found = "one row" if rows else "nothing"
        raise UserError(f"{path}: must have a row with the names of its columns and one for each result, has {found}")
    (header_number, header), *rows = rows
    names = [name.strip() for name in header]
    for name in names:
        if name not in CELLS:
            raise UserError(f"{path}, row {header_number}: unknown column {name!r}; "
                            f"{accepted(name, CELLS, 'columns')}")
    if wrong := [name for name in CELLS if names.count(name) != 1]:
        raise UserError(f"{path}, row {header_number}: must have every column once, but not so {', '.join(wrong)}")
    results = []
    row_by_seed: dict[tuple[object, ...], dict[int | None, int]] = {}  # of earlier rows, by point
    for number, row in rows:
        place = f"{path}, row {number}"
        result = _result(place, names, row)
        _check_seed(place, result.seed, row_by_seed.setdefault(result.point, {}))
        row_by_seed[result.point][result.seed] = number
        results.append(result)
    return results, text


def _result(place: str, names: Sequence[str], row: Sequence[str]) -> Result:
    """Return the result in one row of a CSV file. `place` is file and row, for messages."""
    if len(row) != len(names):
        raise UserError(f"{place}: must have {len(names)} cells, one for each column, has {len(row)}")
    values = {}
    for name, cell in zip(names, row, strict=True):
        text = " ".join(cell.split())
        try:
            values[name] = CELLS[name](text)
        except ValueError as error:
            raise UserError(f"{place}, column {name}: {error}, got {text!r}") from None
    return Result(**values)


def _check_seed(place: str, seed: int | None, row_by_seed: Mapping[int | None, int]) -> None:
    """Refuse a seed that one of the earlier rows of the same point has, and a row without a seed beside others."""
    seed_text = "none" if seed is None else str(seed)
    if seed in row_by_seed:
        raise UserError(f"{place}, column seed: must differ from that of row {row_by_seed[seed]}, as data set, method, "
                        f"epsilon, delta and relation are the same, got {seed_text} twice")
    some_without_seed = None in (seed, *row_by_seed)
    if row_by_seed and some_without_seed:
        first_row = next(iter(row_by_seed.values()))
        raise UserError(f"{place}, column seed: must be there for all rows of one data set, method, epsilon, delta and "
                        f"relation or for a single one without, got {seed_text} beside row {first_row}")


def _text(text: str) -> str:
    """Return a text cell unchanged; refuse an empty one and a long one."""
    if not 1 <= len(text) <= MAX_TEXT_LENGTH:
        raise ValueError(f"must be a text of at most {MAX_TEXT_LENGTH} characters")
    return text


def _one_of(names: Collection[str], what: str) -> Callable[[str], str]:
    """Return a function that returns its text if it is one of the names, and raises ValueError otherwise."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be a known one; {accepted(text, names, what)}")
        return text
    return read


def _number(what: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a function that reads a number from text, and raises ValueError if it is not finite or does not fit."""

    def read(text: str) -> float:
        value = float(text) if NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(value) or not fits(value):
            raise ValueError(f"must be {what}")
        return value
    return read


def _seed(text: str) -> int | None:
    """Return the seed in a cell; None if the cell is empty."""
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


def import_tag(results: Sequence[Result]) -> str:
    """Return the tag `imported` of an experiment: a digest of its results, in any order, and their number."""
    return f"{digest({'results': sorted(map(repr, results))})} {len(results)}"


def save(client: Client, experiment_id: str, results: Sequence[Result], replace: bool,
         keep_file: Callable[[str], None]) -> tuple[int, int]:
    """Write results to an experiment; return the numbers of added and of deleted results.

    Existing results stay, so this completes an interrupted import. A run that was not closed has no result. Results
    that are not in the file are deleted with `replace`, and refused without, as is an experiment that is no import
    (`TrackingError`). `keep_file` stores the file as an artifact of the parent run, whose id it takes.
    """
    experiment, tag = client.get_experiment(experiment_id), import_tag(results)
    if IMPORTED not in experiment.tags:
        raise TrackingError(f"--as: must be a name that no sweep has, got '{experiment.name}'")
    if experiment.tags[IMPORTED] != tag:
        if not replace:
            raise TrackingError(f"--as: must be a new name or that of the same results, got '{experiment.name}', which "
                                "has others; --replace puts these in their place")
        client.set_experiment_tag(experiment_id, IMPORTED, tag)
    expected = set(results)
    parent_ids, stored, surplus_ids = [], set(), []
    for run in client.search([experiment_id]):
        is_parent = PARENT not in run.data.tags
        if is_parent:
            parent_ids.append(run.info.run_id)
            continue
        result = _stored(run)
        if result in expected and result not in stored:
            stored.add(result)
        else:  # not closed, not in the file, or twice in the store
            surplus_ids.append(run.info.run_id)
    is_complete = len(stored) == len(results) and not surplus_ids and parent_ids
    if not is_complete:
        if not parent_ids:
            tags = {IMPORTED: experiment.name, NOTE: f"{NOTE_TEXT}."}
            parent_ids = [client.create_run(experiment_id, run_name=experiment.name, tags=tags).info.run_id]
        parent_id = parent_ids[0]
        keep_file(parent_id)
        for run_id in surplus_ids:
            client.delete_run(run_id)
        for result in results:
            if result not in stored:
                _write(client, experiment_id, parent_id, experiment.name, result)
        client.set_terminated(parent_id, "FINISHED")
    return len(results) - len(stored), len(surplus_ids)


def _write(client: Client, experiment_id: str, parent_id: str, name: str, result: Result) -> None:
    """Write a nested run; it counts once it is closed."""
    params = asdict(result)
    metrics = [(ACCURACY, params.pop("accuracy"), 0), (EPSILON, params.pop("epsilon"), 0)]
    seed = "" if result.seed is None else f" s{result.seed}"
    tags = {IMPORTED: name, PARENT: parent_id, "privacy.certified": "false", "privacy.relation": result.relation,
            "privacy.delta": f"{result.delta:g}", "privacy.notes": f"{NOTE_TEXT} ({result.source})"}
    run_name = f"{result.method[:MAX_NAME_LENGTH - 50]} eps{result.epsilon:g}{seed}"  # the end takes less than 50
    run = client.create_run(experiment_id, run_name=run_name, tags=tags)
    client.write(run.info.run_id, metrics,
          params={key: param_text(value) for key, value in params.items() if value is not None})
    client.set_terminated(run.info.run_id, "FINISHED")


def _stored(run: Any) -> Result | None:
    """Return the result of a nested run; None if the run was not closed."""
    if run.info.status != "FINISHED":
        return None
    params, metrics = dict(run.data.params), run.data.metrics
    seed = int(params["seed"]) if "seed" in params else None
    return Result(dataset=params["dataset"], method=params["method"], epsilon=metrics[EPSILON],
                  delta=float(params["delta"]), relation=params["relation"], seed=seed, accuracy=metrics[ACCURACY],
                  source=params["source"])


def results_of(client: Client, name: str) -> list[Result]:
    """Return the results imported under a name, oldest first; all of their file must be there (`TrackingError`)."""
    experiment_id = client.find_experiment(name, imports=True)
    tags = client.get_experiment(experiment_id).tags if experiment_id else {}
    if experiment_id is None or IMPORTED not in tags:
        names = ", ".join(experiment.name for experiment in client.search_experiments() if IMPORTED in experiment.tags)
        raise client.refusal(f"no imported results named '{name}' (`photonic import FILE --as {name}`); it has "
                             f"{names or 'none'}")
    stored = [_stored(run) for run in client.search([experiment_id]) if PARENT in run.data.tags]
    results = [result for result in stored if result]  # without runs that were not closed
    _, planned_text = tags[IMPORTED].split()  # digest and number, as `import_tag` wrote them
    planned = int(planned_text)
    if len(results) != planned:
        raise client.refusal(f"'{name}' has {len(results)} of the {planned} results of its file; import it again")
    return results
