"""Write the report of a sweep: tables and figures in `reports/<name>`, and as artifacts of the sweep's parent run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pandas as pd

from analysis.exhibits import catalogue, headline, search, search_space, selection
from analysis.exhibits.exhibit import Exhibit, save, to_csv
from analysis.exhibits.frontier import others
from analysis.exhibits.selection import Choice
from analysis.report.overview import compose, file_name, manifest, shown
from analysis.report.page import render
from analysis.report.unfinished import NO_BEST, complete_part
from analysis.runs import MissingTrials, ReportError, csv_of, frame_of, searched
from pipeline.accounting.budget import require_unchanged
from pipeline.experiment.exhibits import undrawn
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.results import check_seeds, read_results
from pipeline.experiment.search import Search, nothing_fits
from pipeline.tracking.artifacts import ENDED
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.store import Store
from pipeline.trials.fields import UserError, refuse
from pipeline.trials.guard import OF_WHO_RUNS_IT, place_of
from pipeline.trials.kinds import certified_trials
from pipeline.trials.naming import counted

Made = TypeVar("Made")


class Report(NamedTuple):
    """The result of a report."""

    files: list[Path]  # in the order of writing
    exhibits: list[Exhibit]  # in the order of the page
    headline: list[str]  # from `analysis.exhibits.headline`; for random stopping on the best trial
    left_out: list[tuple[str, str]]  # (exhibit, reason) of those that do not fit, lack data or failed; none if secret
    lacking: list[str]  # those of them that fit, but lack data or failed
    notice: str = ""  # progress of an unfinished sweep; empty for a finished one
    not_logged: str = ""  # why the store of a finished sweep did not take the files; empty if it did
    raised: Sequence[str] = ()  # exhibits that are left out because drawing them raised an error: a fault of theirs


def write(experiment: Experiment, store: Store, out: Path | None = None, where: str = "",
          files: Sequence[Path] = ()) -> Report:
    """Draw the exhibits of the experiment file (by default all that fit its trials), and log them to the parent run.

    For an unfinished sweep it draws complete settings (`analysis.report.unfinished`), marks the exhibits, and writes
    nothing to the store. Of a finished one the store gets the files, the epsilon of the choice, and the headline as its
    description, if it can be written. The folder is `reports/<name>` by default. `where` is the name of a slice
    (`experiment.sliced`), in a folder of its own; it reports no best trial, because choosing it would use the other
    trials. `files` have further results of others.

    Refused are a sweep without a complete setting, a search or random stopping that is not complete (`MissingTrials`),
    files that no exhibit shows (`ReportError`) or that are no results, and another budget than the sweep began with
    (`ConfigError`).
    """
    refuse(experiment.unread and not files, "references", "are results in a CSV file, which the store does not keep",
           experiment.unread, "name the experiment file, or give them by --with")
    references = [*experiment.references, *(result for file in files for result in read_results(file))]
    experiment = dataclasses.replace(experiment, references=check_seeds(dict.fromkeys(references)))
    store.attach(experiment.name)
    require_unchanged(experiment.plan.budget, store.budget())
    stored = store.runs()
    if not where:
        experiment = searched(store, experiment, stored)
    if files and not (others.SHOWN_BY in experiment.report and certified_trials(experiment.trials)):
        raise ReportError(f"--with: results of others are shown in the exhibit {others.SHOWN_BY} of certified trials, "
                          f"and the report of {experiment.name} has none, got {', '.join(map(str, files))}")
    progress = None
    try:
        runs = frame_of(stored, experiment.trials, source=experiment.source)
    except MissingTrials as missing:
        ended = {run.trial_key for run in stored if run.status in ENDED}
        experiment, progress = complete_part(experiment, ended, missing)
        runs = frame_of(stored, experiment.trials, source=experiment.source)
    if runs.empty:
        why = _why_none(experiment, store, len(stored))
        raise MissingTrials(f"{experiment.name}: must have a trial to report; {why}")
    left_out = undrawn(experiment.trials, experiment.report) if experiment.plan.publishes_all else []
    lacking: list[str] = []
    raised: list[str] = []

    def attempt(name: str, function: Callable[..., Made], *arguments: object) -> Made | None:
        """Return what the function makes. If the runs lack data for it, or it fails, leave it out with the reason."""
        try:
            return function(*arguments)
        except OF_WHO_RUNS_IT:
            raise
        except BaseException as error:  # code of users may end the process
            if not experiment.plan.publishes_all:  # the reason may count the trials, which random stopping keeps secret
                raise
            reason = str(error).removeprefix(f"{name}: ")
            if not isinstance(error, UserError):
                reason = f"raised {type(error).__name__} in {place_of(error)}: {' '.join(str(error).split())}"
            if not isinstance(error, ReportError):
                raised.append(name)
            left_out.append((name, reason))
            lacking.append(name)
            return None

    def drawn(name: str) -> Exhibit:
        exhibit = catalogue.draw(name, experiment, runs, store)
        if progress:
            exhibit = exhibit.marked(progress.mark)
        exhibit.files  # noqa: B018 - made here, so that a figure that cannot be saved is one exhibit's failure
        return exhibit

    exhibits = [exhibit for name in experiment.report if (exhibit := attempt(name, drawn, name))]
    choice = None
    if progress:
        left_out.append(NO_BEST)
    elif not where:
        choice = attempt("selection", _choice, experiment, runs, store)
    if choice:
        exhibits.append(selection.draw(choice))
    if isinstance(experiment.plan, Search) and not where:
        of_search = (attempt("search", search.draw, experiment, runs, store),
                     attempt("search_space", search_space.draw, experiment.plan, runs))
        exhibits = [*filter(None, of_search), *exhibits]
    contents = {"runs.csv": to_csv(csv_of(runs)).encode()}
    for exhibit in exhibits:
        contents |= exhibit.files
    if text := others.as_csv(experiment.references):
        contents[others.FILE] = text.encode()
    if experiment.public_text and not where:
        contents[file_name(experiment)] = experiment.public_text.encode()
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
    return Report(paths, exhibits, sentences, left_out, lacking, notice, not_logged, raised)


def _why_none(experiment: Experiment, store: Store, n_stored: int) -> str:
    """Return why an experiment has no trial to report, though its sweep began."""
    suggestions = store.suggestions() if experiment.plan.asks else []
    if not suggestions:
        return "it has none"
    if any(suggestion.started for suggestion in suggestions):
        return (f"its {counted(n_stored, 'trial')} were asked for in another space or with another base (run `photonic "
                f"sweep {experiment.source}`)")
    return nothing_fits(len(suggestions), n_stored)


def _choice(experiment: Experiment, runs: pd.DataFrame, store: Store) -> Choice | None:
    """Return the best certified trial and the cost of choosing it; None without a public validation accuracy."""
    certified = certified_trials(experiment.trials)
    is_scored = all(trial.validation_fraction and trial.disclosure != "withheld" for trial in certified)
    if not certified or not is_scored:
        return None
    return selection.choose(experiment, runs, search.budget_epsilon(store) if experiment.plan.budget else None)


def _headline(experiment: Experiment, runs: pd.DataFrame, choice: Choice | None) -> list[str]:
    """Return the main results; with random stopping only on the best trial, as no other may be published."""
    if not experiment.plan.publishes_all:
        return [selection.summary_sentence(choice)] if choice else []
    if experiment.plan.budget and choice:
        sentences = headline.published(choice, runs, experiment)
    else:
        sentences = headline.compose(runs, experiment, choice)
    return [*sentences, *(f"{line}." for line in experiment.past.lines(experiment.trials))]
