"""Write the report of a sweep: tables and figures in `reports/<name>`, and as artifacts of the sweep's parent run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.exhibits import catalogue, headline, search, selection
from analysis.exhibits.exhibit import Exhibit, save, to_csv
from analysis.exhibits.frontier.imported import SHOWN_BY, load
from analysis.exhibits.frontier.imported import file_name as file_of_import
from analysis.report.overview import NOISE, compose, file_name, manifest, shown, tracked_runs
from analysis.report.page import render
from analysis.report.unfinished import NO_BEST, Progress, part_of
from analysis.runs import FIELDS, MissingTrials, ReportError, load_runs, searched
from pipeline.accounting.budget import require_unchanged
from pipeline.accounting.certified import with_noise
from pipeline.experiment.experiment import Experiment
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.naming import composable


class Report(NamedTuple):
    """The result of a report.

    Attributes:
        files: in the order of writing.
        exhibits: in the order of the page.
        headline: the best algorithm at each epsilon (`analysis.exhibits.headline`); for random stopping the best trial.
        left_out: (exhibit, reason) of exhibits that are not drawn; empty for random stopping.
        notice: progress of an unfinished sweep; empty for a finished one.
    """

    files: list[Path]
    exhibits: list[Exhibit]
    headline: list[str]
    left_out: list[tuple[str, str]]
    notice: str = ""


def write(experiment: Experiment, store: Store, out: Path | None = None, where: str = "") -> Report:
    """Draw the exhibits of the experiment file (by default all that fit its trials), and log them to the parent run.

    For an unfinished sweep it draws complete settings (`analysis.report.unfinished`), marks the exhibits, and writes
    nothing to the store.

    Args:
        experiment: the experiment.
        store: its tracking store. The report opens the experiment's sweep there, and writes the files, the epsilon of
            the choice, and the headline as its description.
        out: folder of the report, created if missing; by default `reports/<name>`, for a slice a folder in it.
        where: name of the slice (`pipeline.experiment.experiment.sliced`); empty for all trials. A slice reports no
            best trial, because choosing it would use the other trials.

    Returns:
        The headline, and the written files: `runs.csv` (one row per trial), the files of the exhibits, a copy of the
        experiment file, `manifest.json` (commit, versions, commands and digests of the data), and `index.html`, one
        page with everything. If trials are certified and have validation accuracy, also `selection.csv` and
        `selection.md`: the best trial, and the privacy cost of choosing it.

    Raises:
        MissingTrials: if no setting of the sweep is complete, or a search or random stopping is not.
        ReportError: if an exhibit lacks data; the message names the exhibit.
        ConfigError: if the sweep began with another budget.
        TrackingError: if the store lacks the sweep, or imported results that the experiment names.
    """
    store.attach(experiment.name)
    require_unchanged(experiment.budget, store.budget())
    if not where:
        experiment = searched(store, experiment)
    if experiment.imports and not (SHOWN_BY in experiment.report and composable(experiment.trials)):
        raise ReportError(f"--with: imported results are shown in the exhibit {SHOWN_BY} of certified trials, and the "
                          f"report of {experiment.name} has none, got {', '.join(experiment.imports)}")
    progress = None
    try:
        runs = load_runs(store, experiment.trials, source=experiment.source)
    except MissingTrials as missing:
        experiment, progress = part_of(experiment, store.done(), missing)
        runs = load_runs(store, experiment.trials, source=experiment.source)
    exhibits, absent = _exhibits(experiment, runs, store, progress)
    choice, certified = None, composable(experiment.trials)
    scored = all(trial.validation_fraction and trial.disclosure != "withheld" for trial in certified)
    if certified and scored and not where and not progress:
        choice = selection.choose(experiment, runs, search.budget_epsilon(store) if experiment.budget else None)
        store.log_sweep(choice.metrics, choice.tags)  # the epsilon of the choice
        exhibits.append(selection.draw(choice))
    if experiment.search and not where:
        exhibits.insert(0, search.draw(experiment, runs, store))
    lists = {name: runs[name].map(_json) for name, kind in FIELDS.items() if kind is tuple}
    contents = {"runs.csv": to_csv(runs.assign(**lists, **_noise(runs, experiment, store))).encode()}
    for exhibit in exhibits:
        contents |= exhibit.files
    for name in experiment.imports:
        contents[file_of_import(name)] = to_csv(load(store, [name]).drop(columns="imported")).encode()
    if experiment.public_text and not where:
        contents[file_name(experiment)] = experiment.public_text.encode()
    public = shown(experiment, runs, choice)
    tracked = tracked_runs(public, store)
    if experiment.budget and choice:
        said = headline.published(choice, runs, experiment)
    elif experiment.candidates:
        said = [selection.summary_sentence(choice)] if choice else []
    else:
        said = headline.compose(runs, experiment, choice)
    notice = progress.notice if progress else ""
    page = compose(experiment, public, tracked, store=store, choice=choice, exhibits=exhibits,
                   data=contents["runs.csv"], headline=said, left_out=absent, notice=notice)
    contents |= {"manifest.json": manifest(experiment, public, tracked, contents, progress).encode(),
                 "index.html": render(page).encode()}
    files = save(contents, Path("reports", experiment.name, where) if out is None else out)
    if not progress:
        store.log_report(files, where)
        if said and not where:
            store.describe(experiment.description, "\n".join(f"- {sentence}" for sentence in said))
    return Report(files, exhibits, said, absent, notice)


def _exhibits(experiment: Experiment, runs: pd.DataFrame, store: Reader,
              progress: Progress | None) -> tuple[list[Exhibit], list[tuple[str, str]]]:
    """Return the exhibits, and (exhibit, reason) of those that are not drawn.

    Args:
        experiment, runs, store: the experiment, its trials and their store.
        progress: progress of an unfinished sweep; None for a finished one.

    Raises:
        ReportError: if an exhibit lacks data; in an unfinished sweep the exhibit is left out instead.
    """
    exhibits = []
    absent = [] if experiment.candidates else catalogue.left_out(experiment.trials, experiment.report)
    for name in experiment.report:
        try:
            exhibit = catalogue.draw(name, experiment, runs, store)
        except ReportError as error:
            if not progress:
                raise
            absent.append((name, str(error)))
        else:
            exhibits.append(exhibit.marked(progress.mark) if progress else exhibit)
    return exhibits, absent + [NO_BEST] * bool(progress)


def _noise(runs: pd.DataFrame, experiment: Experiment, store: Reader) -> dict[str, pd.Series]:
    """Return columns `sigma` and `noise_multiplier` with calibrated values for trials with a target.

    Their settings have 0 there. The values are tracked ones; if missing, the accountant computes them.
    """
    trials, columns = {trial.trial_key: trial for trial in experiment.trials}, {}
    tags = {run.trial_key: run.tags for run in store.runs()}
    for name, target in NOISE.items():
        columns[name] = runs[name].copy()
        for index, key in runs.loc[runs[target].fillna(0) > 0, "trial_key"].items():
            tracked = tags[key].get(f"calibrated.{name}")
            columns[name][index] = float(tracked) if tracked else getattr(with_noise(trials[key]), name)
    return columns


def _json(value: object) -> str | None:
    """Return a tuple as JSON; None if the field does not apply."""
    return json.dumps(list(value)) if isinstance(value, tuple) else None
