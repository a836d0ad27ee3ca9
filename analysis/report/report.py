"""The command `photonic report`: tables, figures and a page in `reports/<name>`, and as artifacts of the sweep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import pandas as pd

from analysis import catalogue
from analysis.exhibits import headline, selection, suggestions
from analysis.exhibits.exhibit import Exhibit, save, to_csv
from analysis.exhibits.frontier import others
from analysis.exhibits.headline import Headline
from analysis.exhibits.needs import log_scores
from analysis.exhibits.selection import Choice
from analysis.report.overview import compose, file_name, manifest
from analysis.report.page import render
from analysis.runs import MissingTrials, ReportError, csv_of, frame_of, searched
from pipeline.accounting.budget import require_unchanged
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.results import check_seeds, read_results
from pipeline.experiment.search import Search, nothing_fits
from pipeline.tracking.artifacts import ENDED, TrackedRun
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.store import Store
from pipeline.trials.fields import UserError, refuse
from pipeline.trials.guard import OF_WHO_RUNS_IT, place_of
from pipeline.trials.kinds import certified_trials
from pipeline.trials.naming import counted, setting_key

Made = TypeVar("Made")
NO_BEST = "selection", "the best trial is chosen, and the choice paid for, once all trials have ended"


class Progress(NamedTuple):
    """Numbers of trials of an unfinished sweep that have ended, that its report shows, and that are planned."""

    ended: int
    shown: int
    planned: int
    which: str  # are shown

    @property
    def notice(self) -> str:
        """Return sentences for the head of a page."""
        return (f"Unfinished: {self.ended} of {self.planned} trials have ended. Shown are {self.shown}, {self.which}; "
                "no best trial is chosen.")


class Report(NamedTuple):
    """The result of a report."""

    files: list[Path]  # in the order of writing
    exhibits: list[Exhibit]  # in the order of the page
    headline: Headline  # for random stopping on the best trial
    left_out: Sequence[tuple[str, str]] = ()  # (exhibit, reason): does not fit, lacks data or failed; none if secret
    lacking: Sequence[str] = ()  # those of them that fit, but lack data or failed
    notice: str = ""  # progress of an unfinished sweep; empty for a finished one
    not_logged: str = ""  # why the store of a finished sweep did not take the files; empty if it did
    raised: Sequence[str] = ()  # exhibits that are left out because drawing them raised an error: a fault of theirs


def write(experiment: Experiment, store: Store, out: Path | None = None, where: str = "",
          files: Sequence[Path] = ()) -> Report:
    """Draw the exhibits of the experiment file (by default all that fit its trials), and log them to the parent run.

    For an unfinished sweep it draws complete settings (`complete_part`), marks the exhibits, and writes nothing to the
    store. A store that can be written gets the files of a finished sweep, the epsilon of the choice, and the headline
    as description. The folder is `reports/<name>` by default. `where` is the name of a slice (`experiment.sliced`), in
    a folder of its own; it reports no best trial, because choosing it would use the other trials. `files` have further
    results of others.

    Refused are a sweep in which no trial has ended, a search or random stopping that is not complete (`MissingTrials`),
    files that no exhibit shows (`ReportError`) or that are no results, and another budget than the sweep began with
    (`ConfigError`).
    """
    store.attach(experiment.name)
    require_unchanged(experiment.plan.budget, store.budget())
    stored = store.runs()
    if not where:
        experiment = searched(store, experiment, stored)
    experiment, runs, progress = _ended(_with_references(experiment, files), store, stored)
    drawing = _Drawing(experiment, runs, store)
    exhibits, choice = drawing.exhibits(progress, where), drawing.choice(progress, where)
    if choice:
        exhibits.append(selection.draw(choice))
    said = drawing.attempt("headline", _headline, experiment, runs, choice) or Headline()
    best_alone = runs[runs["trial_key"] == (choice.trial_key if choice else None)]
    public_runs = runs if experiment.plan.publishes_all else best_alone
    public_keys = set(public_runs["trial_key"])
    tracked = [run for run in stored if run.trial_key in public_keys]
    contents = _contents(experiment, runs, exhibits, where)
    notice = progress.notice if progress else ""
    page = compose(experiment, public_runs, tracked, store=store, choice=choice, exhibits=exhibits,
                   data=contents["runs.csv"], headline=said, left_out=drawing.left_out, notice=notice)
    unfinished = progress._asdict() if progress else {}
    contents |= {"manifest.json": manifest(experiment, public_runs, tracked, contents, unfinished).encode(),
                 "index.html": render(page).encode()}
    paths = save(contents, Path("reports", experiment.name, where) if out is None else out)
    not_logged = "" if progress else _log(store, experiment, paths, choice, said, where)
    return Report(paths, exhibits, said, drawing.left_out, drawing.lacking, notice, not_logged, drawing.raised)


def _with_references(experiment: Experiment, files: Sequence[Path]) -> Experiment:
    """Return the experiment with the results of others of its own file and of these, which an exhibit must show."""
    refuse(experiment.unread and not files, "references", "are results in a CSV file, which the store does not keep",
           experiment.unread, "name the experiment file, or give them by --with")
    if files and not (others.SHOWN_BY in catalogue.listed(experiment) and certified_trials(experiment.trials)):
        raise ReportError(f"--with: results of others are shown in the exhibit {others.SHOWN_BY} of certified trials, "
                          f"and the report of {experiment.name} has none, got {', '.join(map(str, files))}")
    references = [*experiment.references, *(result for file in files for result in read_results(file))]
    return replace(experiment, references=check_seeds(dict.fromkeys(references)))


def complete_part(experiment: Experiment, ended: Collection[str],
                  missing: MissingTrials) -> tuple[Experiment, Progress]:
    """Return an unfinished experiment with the trials that can be compared and exhibits that fit them; its progress.

    These are the trials of settings of which all seeds have ended. If no setting has, as after a seed was added to all,
    they are all trials that have ended. Refused, as `missing`, are an experiment in which none has ended, and a search
    and random stopping, which publish only their best trial.
    """
    if rule := experiment.plan.ends_with_best:
        raise MissingTrials(f"{missing}; {rule} publishes its best trial, which is not known before all have ended")
    have_ended = [trial for trial in experiment.trials if trial.trial_key in ended]
    if not have_ended:
        raise missing
    incomplete = {setting_key(trial) for trial in experiment.trials if trial.trial_key not in ended}
    shown = [trial for trial in have_ended if setting_key(trial) not in incomplete]
    which = "of settings that have all of their seeds"
    if not shown:
        shown, which = have_ended, "with the seeds that each setting has, as none has all"
    part = replace(experiment, plan=experiment.plan.with_trials(shown))
    fitting = tuple(name for name in catalogue.listed(experiment) if not catalogue.refusal(name, part))
    part = replace(part, report=replace(part.report, exhibits=fitting))
    return part, Progress(len(have_ended), len(shown), len(experiment.trials), which)


def _ended(experiment: Experiment, store: Store,
           stored: Sequence[TrackedRun]) -> tuple[Experiment, pd.DataFrame, Progress | None]:
    """Return the experiment, or its part that can be compared already, with its runs and the progress of a part."""
    progress = None
    try:
        runs = frame_of(stored, experiment.trials, source=experiment.source)
    except MissingTrials as missing:
        ended = {run.trial_key for run in stored if run.status in ENDED}
        experiment, progress = complete_part(experiment, ended, missing)
        runs = frame_of(stored, experiment.trials, source=experiment.source)
    if not runs.empty:
        return experiment, runs, progress
    suggestions, why = store.suggestions() if experiment.plan.asks else [], "it has none"
    if any(suggestion.started for suggestion in suggestions):
        why = (f"its {counted(len(stored), 'trial')} were asked for in another space or with another base (run "
               f"`photonic sweep {experiment.source}`)")
    elif suggestions:
        why = nothing_fits(len(suggestions), len(stored))
    raise MissingTrials(f"{experiment.name}: must have a trial to report; {why}")


@dataclass
class _Drawing:
    """Draws what a report shows, and notes what it leaves out, for the fields of `Report` with these names."""

    experiment: Experiment
    runs: pd.DataFrame
    store: Store
    left_out: list[tuple[str, str]] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)

    def exhibits(self, progress: Progress | None, where: str) -> list[Exhibit]:
        """Draw the exhibits of the experiment, those of a search first."""
        def draw(name: str) -> Exhibit:
            exhibit = catalogue.draw(name, experiment, self.runs, self.store)
            if progress:
                exhibit = exhibit.marked(f"unfinished: {progress.shown} of {progress.planned} trials")
            exhibit.files  # noqa: B018 - made here, so that a figure that cannot be saved is one exhibit's failure
            return exhibit

        experiment = self.experiment
        self.left_out += catalogue.undrawn(experiment) if experiment.plan.publishes_all else []
        drawn = [self.attempt(name, draw, name) for name in catalogue.listed(experiment)]
        if isinstance(experiment.plan, Search) and not where:
            drawn = [self.attempt("search", suggestions.draw, experiment, self.runs, self.store),
                     self.attempt("search_space", suggestions.draw_space, experiment.plan, self.runs), *drawn]
        return [exhibit for exhibit in drawn if exhibit]

    def choice(self, progress: Progress | None, where: str) -> Choice | None:
        """Choose the best trial, and compute what it costs: of all trials, once they have ended."""
        if progress:
            self.left_out.append(NO_BEST)
        if progress or where:
            return None
        return self.attempt("selection", _choice, self.experiment, self.runs, self.store)

    def attempt(self, name: str, function: Callable[..., Made], *arguments: object) -> Made | None:
        """Return what the function makes. If the runs lack data for it, or it fails, leave it out with the reason."""
        try:
            return function(*arguments)
        except OF_WHO_RUNS_IT:
            raise
        except BaseException as error:  # code of users may end the process
            if not self.experiment.plan.publishes_all:  # the reason may count the trials, which must stay secret
                raise
            reason = str(error).removeprefix(f"{name}: ")
            if not isinstance(error, UserError):
                reason = f"raised {type(error).__name__} in {place_of(error)}: {' '.join(str(error).split())}"
            if not isinstance(error, ReportError):
                self.raised.append(name)
            self.left_out.append((name, reason))
            self.lacking.append(name)
            return None


def _contents(experiment: Experiment, runs: pd.DataFrame, exhibits: Sequence[Exhibit], where: str) -> dict[str, bytes]:
    contents = {"runs.csv": to_csv(csv_of(runs)).encode()}
    contents |= {name: content for exhibit in exhibits for name, content in exhibit.files.items()}
    if text := others.as_csv(experiment.references):
        contents[others.FILE] = text.encode()
    if experiment.public_text and not where:
        contents[file_name(experiment)] = experiment.public_text.encode()
    return contents


def _log(store: Store, experiment: Experiment, paths: Sequence[Path], choice: Choice | None, said: Headline,
         where: str) -> str:
    """Log a report to its sweep; return why a store that can only be read did not take it, else nothing."""
    try:
        if choice:
            store.log_sweep(*choice.findings)  # the epsilon of the choice
        store.log_report(paths, where)
        if said.verdict and not where:
            verdict, *more = said.brief
            store.describe(experiment.description, "\n".join([verdict, "", *(f"- {sentence}" for sentence in more)]))
    except TrackingError as error:
        return str(error)
    return ""


def _choice(experiment: Experiment, runs: pd.DataFrame, store: Store) -> Choice | None:
    """Return the best certified trial and the cost of choosing it; None without a public validation accuracy."""
    certified = certified_trials(experiment.trials)
    if not certified or not log_scores(certified):
        return None
    return selection.choose(experiment, runs, suggestions.budget_epsilon(store) if experiment.plan.budget else None)


def _headline(experiment: Experiment, runs: pd.DataFrame, choice: Choice | None) -> Headline:
    """Return the main results; with random stopping only on the best trial, as no other may be published."""
    if not experiment.plan.publishes_all:
        return Headline(selection.summary_sentence(choice) if choice else "")
    if experiment.plan.budget and choice:
        return headline.published(choice, runs, experiment)
    return headline.compose(runs, experiment, choice)
