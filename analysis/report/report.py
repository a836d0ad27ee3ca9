"""Write the report of a sweep: tables and figures in `reports/<name>`, and as artifacts of the sweep's parent run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pandas as pd

from analysis.exhibits import catalogue, headline, search, selection
from analysis.exhibits.exhibit import Exhibit, save, to_csv
from analysis.exhibits.frontier.imported import SHOWN_BY, load
from analysis.exhibits.frontier.imported import file_name as file_of_import
from analysis.exhibits.selection import Choice
from analysis.report.overview import compose, file_name, manifest, shown
from analysis.report.page import render
from analysis.report.unfinished import NO_BEST, complete_part
from analysis.runs import MissingTrials, ReportError, csv_of, frame_of, searched
from pipeline.accounting.budget import require_unchanged
from pipeline.experiment.exhibits import undrawn
from pipeline.experiment.experiment import Experiment
from pipeline.tracking.artifacts import DONE
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.store import Store
from pipeline.trials.naming import composable

Result = TypeVar("Result")


class Report(NamedTuple):
    """The result of a report.

    Attributes:
        files: in the order of writing.
        exhibits: in the order of the page.
        headline: the best algorithm at each epsilon (`analysis.exhibits.headline`); for random stopping the best trial.
        left_out: (exhibit, reason) of exhibits that do not fit or lack data; empty for random stopping.
        notice: progress of an unfinished sweep; empty for a finished one.
        not_logged: why the store of a finished sweep did not take the files; empty if it did.
    """

    files: list[Path]
    exhibits: list[Exhibit]
    headline: list[str]
    left_out: list[tuple[str, str]]
    notice: str = ""
    not_logged: str = ""


def write(experiment: Experiment, store: Store, out: Path | None = None, where: str = "") -> Report:
    """Draw the exhibits of the experiment file (by default all that fit its trials), and log them to the parent run.

    For an unfinished sweep it draws complete settings (`analysis.report.unfinished`), marks the exhibits, and writes
    nothing to the store. Of a finished one the store gets the files, the epsilon of the choice, and the headline as its
    description, if it can be written. The folder is `reports/<name>` by default. `where` is the name of a slice
    (`experiment.sliced`), in a folder of its own; it reports no best trial, because choosing it would use the other
    trials.

    Files: `runs.csv` (one row per trial), those of the exhibits, a copy of the experiment file, `manifest.json`
    (commit, versions, commands and digests of the data), and `index.html`, one page with everything. `selection.csv`
    and `.md` have the best trial and the privacy cost of choosing it, if trials are certified and have validation
    accuracy.

    Refused are a sweep without a complete setting, a search or random stopping that is not complete (`MissingTrials`),
    imported results that no exhibit shows (`ReportError`), and another budget than the sweep began with
    (`ConfigError`).
    """
    store.attach(experiment.name)
    require_unchanged(experiment.plan.budget, store.budget())
    if not where:
        experiment = searched(store, experiment)
    if experiment.imports and not (SHOWN_BY in experiment.report and composable(experiment.trials)):
        raise ReportError(f"--with: imported results are shown in the exhibit {SHOWN_BY} of certified trials, and the "
                          f"report of {experiment.name} has none, got {', '.join(experiment.imports)}")
    results = load(store, experiment.imports) if experiment.imports else None
    progress, stored = None, store.runs()
    try:
        runs = frame_of(stored, experiment.trials, source=experiment.source)
    except MissingTrials as missing:
        ended = {run.trial_key for run in stored if run.status in DONE}
        experiment, progress = complete_part(experiment, ended, missing)
        runs = frame_of(stored, experiment.trials, source=experiment.source)
    left_out = undrawn(experiment.trials, experiment.report) if experiment.plan.publishes_all else []

    def attempt(name: str, function: Callable[..., Result], *arguments: object) -> Result | None:
        """Return what the function makes; if the runs lack data for it, leave it out with the reason."""
        try:
            return function(*arguments)
        except ReportError as error:
            if not experiment.plan.publishes_all:  # the reason counts the trials, which random stopping keeps secret
                raise
            left_out.append((name, str(error).removeprefix(f"{name}: ")))
            return None

    drawn = [attempt(name, catalogue.draw, name, experiment, runs, store, results) for name in experiment.report]
    exhibits = [exhibit.marked(progress.mark) if progress else exhibit for exhibit in drawn if exhibit]
    choice = None
    if progress:
        left_out.append(NO_BEST)
    elif not where:
        choice = attempt("selection", _choice, experiment, runs, store)
    if choice:
        exhibits.append(selection.draw(choice))
    if experiment.plan.asks and not where:
        exhibits.insert(0, search.draw(experiment, runs, store))
    contents = _files(experiment, runs, exhibits, results, is_slice=bool(where))
    public_runs = shown(experiment, runs, choice)
    public_keys = set(public_runs["trial_key"])
    tracked = [run for run in stored if run.trial_key in public_keys]
    sentences = attempt("headline", _headline, experiment, runs, choice) or []
    notice = progress.notice if progress else ""
    page = compose(experiment, public_runs, tracked, store=store, choice=choice, exhibits=exhibits,
                   data=contents["runs.csv"], headline=sentences, left_out=left_out, notice=notice)
    contents |= {"manifest.json": manifest(experiment, public_runs, tracked, contents, progress).encode(),
                 "index.html": render(page).encode()}
    paths = save(contents, Path("reports", experiment.name, where) if out is None else out)
    not_logged = ""
    if not progress:
        try:
            if choice:
                store.log_sweep(choice.metrics, choice.tags)  # the epsilon of the choice
            store.log_report(paths, where)
            if sentences and not where:
                store.describe(experiment.description, "\n".join(f"- {sentence}" for sentence in sentences))
        except TrackingError as error:  # a store that can be read and not written
            not_logged = str(error)
    return Report(paths, exhibits, sentences, left_out, notice, not_logged)


def _choice(experiment: Experiment, runs: pd.DataFrame, store: Store) -> Choice | None:
    """Return the best certified trial and the cost of choosing it; None without a public validation accuracy."""
    certified = composable(experiment.trials)
    is_scored = all(trial.validation_fraction and trial.disclosure != "withheld" for trial in certified)
    if not certified or not is_scored:
        return None
    return selection.choose(experiment, runs, search.budget_epsilon(store) if experiment.plan.budget else None)


def _headline(experiment: Experiment, runs: pd.DataFrame, choice: Choice | None) -> list[str]:
    """Return sentences with the main results.

    With random stopping they are only on the best trial: no other may be published.
    """
    if experiment.plan.budget and choice:
        return headline.published(choice, runs, experiment)
    if not experiment.plan.publishes_all:
        return [selection.summary_sentence(choice)] if choice else []
    return headline.compose(runs, experiment, choice)


def _files(experiment: Experiment, runs: pd.DataFrame, exhibits: Sequence[Exhibit], results: pd.DataFrame | None,
           is_slice: bool) -> dict[str, bytes]:
    """Return the contents of a report's files by name, except the manifest and the page.

    They are the trials, the exhibits, imported results and, except for a slice, the experiment file if it may be
    published.
    """
    contents = {"runs.csv": to_csv(csv_of(runs)).encode()}
    for exhibit in exhibits:
        contents |= exhibit.files
    if results is not None:
        for name, imported in results.groupby("imported", sort=False):
            contents[file_of_import(name)] = to_csv(imported.drop(columns="imported")).encode()
    if experiment.public_text and not is_slice:
        contents[file_name(experiment)] = experiment.public_text.encode()
    return contents
