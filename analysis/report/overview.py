"""Compose the page of a report: runs, results, guarantees, and commands to repeat it. `report.write` calls it last."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.frontier import others
from analysis.exhibits.frontier.points import tightest
from analysis.exhibits.headline import Headline
from analysis.exhibits.metrics import HEADINGS, layer_name
from analysis.exhibits.selection import Choice
from analysis.exhibits.table import Cell
from analysis.labels import DATASETS, NO_VALUE, algorithm_labels, by_noise, setting_label, short, value_text
from analysis.report.page import Download, Page, TrialColumn
from analysis.report.statements import epsilons, guarantees, kinds_of, notes, of_others, state
from analysis.runs import NOISE, TRIAL, setting_names
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.prices import without_amplification
from pipeline.tracking.artifacts import TrackedRun
from pipeline.tracking.reader import Reader
from pipeline.tracking.ui import address, runs_address
from pipeline.trials.kinds import GUARANTEED, KINDS
from pipeline.trials.naming import counted, duration
from pipeline.trials.records import CLOCK

SECRET = ("Random stopping: only the best trial may be published. This page shows no other trial, and neither their "
          "number nor the experiment file, whose selection.seed tells it.")
TO_SEND = ("A reviewer needs the folder of this page, which `{report}` writes. A trained network goes with it as the "
           "folder that `{photonic} export KEY` writes; KEY stands in the table of trials.")
SECRET_TO_SEND = "A reviewer gets index.html alone; other files of this folder tell what must stay secret."


def compose(experiment: Experiment, runs: pd.DataFrame, tracked: Sequence[TrackedRun], *, store: Reader,
            choice: Choice | None, exhibits: Sequence[Exhibit], data: bytes, headline: Headline,
            left_out: Sequence[tuple[str, str]] = (), notice: str = "") -> Page:
    """Return the page of a report.

    `runs` are those that may be shown, `tracked` the same runs in the store, and `data` the content of `runs.csv`.
    """
    commits = ", ".join(map(abridged, _counted(tracked, "git_commit"))) or "not recorded"
    page = Page(title=experiment.name, what="Experiment report", notice=notice, headline=headline,
                description=experiment.description, facts=[("Commit", commits)], exhibits=exhibits, left_out=left_out,
                privacy=[*state(runs, choice), *of_others(experiment)], epsilons=epsilons(runs, choice),
                notes=[*notes(runs), *without_amplification(experiment.possible)], versions=versions(tracked))
    if not experiment.plan.publishes_all:
        return dataclasses.replace(page, notice=SECRET, to_send=SECRET_TO_SEND)
    links = [address(store, run_id) for run_id in runs["run_id"]]
    repeat = commands(experiment, tracked)
    source = [Download(file_name(experiment), experiment.text.encode())] if experiment.text else []
    return dataclasses.replace(
        page, facts=[*_facts(experiment, runs, tracked), *page.facts],
        settings=[(name, _values(runs[name].dropna())) for name in setting_names() if runs[name].notna().any()],
        trials=trials(experiment, runs, links), trials_note=_trials_note(runs, links), runs_link=runs_address(store),
        trials_data=Download("runs.csv", data), problems=_problems(experiment, runs, store),
        commands=repeat, source=source, to_send=TO_SEND.format(report=repeat[-1], photonic=repeat[-1].split()[0]))


def _facts(experiment: Experiment, runs: pd.DataFrame, tracked: Sequence[TrackedRun]) -> list[tuple[str, str]]:
    begin, end = _span(tracked)
    facts = [("Trials", ", ".join(f"{count} {status}" for status, count in Counter(runs["status"]).items())),
             ("Data", ", ".join(DATASETS[name].label for name in runs["dataset"].unique())),
             ("Algorithm", ", ".join(algorithm_labels()[name] for name in runs["algorithm"].unique())),
             ("Noise", ", ".join(map(setting_label, by_noise(runs["setting"])))),
             *((name, _values(runs[name])) for name in (*_varied(experiment, runs), "seed"))]
    return [*facts, *origin_of_settings(experiment, runs["seed"]), ("Began (UTC)", f"{begin:%Y-%m-%d %H:%M}"),
            ("First start to last end", duration((end - begin).total_seconds()))]


def origin_of_settings(experiment: Experiment, seeds: Iterable[int]) -> list[tuple[str, str]]:
    """Return the preset and the runs that chose the settings, and how many of their seeds are reported too."""
    facts = [("Preset", experiment.preset)] if experiment.preset else []
    if chosen := experiment.chosen:
        reused = set(chosen.seeds) & set(seeds) if isinstance(chosen.seeds, tuple) else set()
        remark = f" ({counted(len(reused), 'seed')} of these also reported here)" if reused else ""
        facts.append(("Settings chosen before", f"{chosen}{remark}"))
    return facts


def manifest(experiment: Experiment, runs: pd.DataFrame, tracked: Sequence[TrackedRun],
             files: Mapping[str, bytes], unfinished: Mapping[str, object]) -> str:
    """Return JSON on the origin of the numbers, with SHA-256 digests of the CSV files.

    With random stopping it has nothing that depends on the number of trials.
    """
    digested = {name for name in files if name.endswith(".csv")}
    content: dict[str, Any] = {"experiment": experiment.name}
    if not experiment.plan.publishes_all:
        digested.discard("runs.csv")
    else:
        begin, end = _span(tracked)
        content |= {"trials": dict(Counter(runs["status"])), "began": f"{begin:%Y-%m-%dT%H:%M:%SZ}",
                    "ended": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
    if unfinished:
        content["unfinished"] = unfinished
    content["commands"] = commands(experiment, tracked)
    for name, tag in (("commits", "git_commit"), ("software", "versions")):
        content[name] = dict(Counter(run.tags.get(tag, "unknown") for run in tracked))
    content["data"] = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(digested)}
    return json.dumps(content, indent=2) + "\n"


def trials(experiment: Experiment, runs: pd.DataFrame, links: Sequence[str] = ()) -> list[TrialColumn]:
    """Return the columns of the table of trials, one row per trial.

    They show the varied settings, accuracies and alignments at the last epoch, the smallest epsilon of each kind, and
    guarantees if any trial has an epsilon. Hidden columns have other settings, for filters. `links` are the addresses
    of the trials' runs, if they have any.
    """
    noise = by_noise(runs["setting"])  # the order by which the column sorts
    named = (*_varied(experiment, runs), "seed")
    columns = [TrialColumn("algorithm", [Cell(algorithm_labels().get(name, name)) for name in runs["algorithm"]]),
               TrialColumn("noise", [Cell(setting_label(level), noise.index(level)) for level in runs["setting"]]),
               *(_setting_column(name, runs[name]) for name in named), *_measured(runs), *_epsilon_columns(runs)]
    if (runs["status"] != "finished").any():
        columns.append(TrialColumn("status", list(map(Cell, runs["status"]))))
    columns.append(TrialColumn("trial", list(map(Cell, runs["trial_key"])), ("trial_key",), links=links))
    return [*columns, *_hidden(runs, named)]


def _measured(runs: pd.DataFrame) -> Iterator[TrialColumn]:
    for name, heading in HEADINGS.items():
        if name in runs.columns:
            filter_names = (heading.removesuffix(" %").replace(" ", "_"), name)
            yield _number_column(heading, 100 * runs[name], "{:.2f}".format, filter_names, True)
    for name in runs.columns:
        if name.startswith("alignment/") and runs[name].notna().any():
            layer = name.removeprefix("alignment/")
            measured = list(runs.loc[runs[name].notna(), TRIAL].dropna())
            of_feedback, _, number = layer.rpartition("layer_")
            heading = f"cos {of_feedback.replace('/', ' ')}{layer_name(int(number), measured)}"
            yield _number_column(heading, runs[name], "{:.3f}".format, (layer, name), True)


def _epsilon_columns(runs: pd.DataFrame) -> Iterator[TrialColumn]:
    """Yield a column for each kind of epsilon, and one of guarantees if there is any epsilon."""
    kinds = kinds_of(runs)
    for kind in kinds:
        # In filters, `epsilon` and `ε` stand for the kinds that guarantee something, or for all kinds if none does.
        short_forms = ("epsilon", "ε") if kind in GUARANTEED or not set(kinds) & set(GUARANTEED) else ()
        remark = "" if KINDS[kind].holds else " (no guarantee)"
        yield _number_column(f"ε {kind}{remark}", tightest(runs, kind), short,
                             (*short_forms, kind, f"epsilon/{kind}"))
    if kinds:
        yield TrialColumn("guarantee", list(map(Cell, guarantees(runs))))


def _hidden(runs: pd.DataFrame, shown_settings: Sequence[str]) -> Iterator[TrialColumn]:
    """Yield hidden columns of the other settings that differ, and of all settings of the noise, for filters."""
    for name in (name for name in setting_names() if name not in shown_settings):
        values = runs[name]
        if name in NOISE:  # a level of noise
            values = values.mask(runs[NOISE[name]] > 0)  # its target sets it
        elif name in NOISE.values():  # a target
            values = values.mask(values == 0)  # there is none
        is_noise = name in NOISE or name in NOISE.values()
        if (is_noise and values.notna().any()) or values.map(value_text).nunique() > 1:
            yield _setting_column(name, values, shown=False)


def _number_column(heading: str, values: pd.Series, text: Callable[[float], str], filter_names: tuple[str, ...],
                   largest_first: bool = False) -> TrialColumn:
    cells = [Cell(NO_VALUE) if math.isnan(value) else Cell(text(value), value) for value in values]
    return TrialColumn(heading, cells, filter_names, numeric=True, largest_first=largest_first)


def _setting_column(name: str, values: pd.Series, shown: bool = True) -> TrialColumn:
    filter_names = ("sigma", "σ") if name == "sigma" else ()
    is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values.dropna())
    cells = [Cell(value_text(value)) for value in values]
    return TrialColumn(name, cells, filter_names, numeric=is_numeric, shown=shown)


def commands(experiment: Experiment, tracked: Sequence[TrackedRun]) -> list[str]:
    """Return shell commands that train and report the experiment again, at its commit if there is only one.

    A relative path of the file is kept; an absolute one is shortened to its name. A wheel has no commit to check out.
    """
    commits = {run.tags.get("git_commit", "unknown").removesuffix("-dirty") for run in tracked} - {"unknown"}
    source = Path(experiment.source)
    file = source.name if source.is_absolute() else source.as_posix()
    *install, photonic = ["make install", ".venv/bin/photonic"] if commits else ["photonic"]
    checkouts = [f"git checkout {commit}" for commit in commits] if len(commits) == 1 else []
    with_file = "" if all(result.is_listed for result in experiment.references) else f" --with {others.FILE}"
    return [*checkouts, *install, f"{photonic} sweep {file}", f"{photonic} report {file}{with_file}"]


def versions(tracked: Sequence[TrackedRun]) -> list[str]:
    """Return sentences on the software that trained the trials, and on missing information."""
    software = _counted(tracked, "versions")
    sentences = [f"Trained with {'; '.join(software)}." if software
                 else "The versions of the software were not tracked."]
    commits = {run.tags.get("git_commit", "unknown") for run in tracked}
    if len(commits) > 1:
        sentences.append("Trials are of several commits, which no single checkout repeats.")
    if any(commit.endswith("-dirty") for commit in commits):
        sentences.append("`-dirty`: files differed from the commit when it ran, so it may not give the same numbers.")
    return sentences


def abridged(commit: str) -> str:
    """Return a commit's first ten digits, with `-dirty` if present."""
    return re.sub("([0-9a-f]{10})[0-9a-f]{30}", r"\1", commit)


def _span(tracked: Sequence[TrackedRun]) -> tuple[datetime, datetime]:
    """Return the first start and the last end of the runs (UTC)."""
    begin = min(run.start_ms for run in tracked)
    end = max(run.end_ms or run.start_ms for run in tracked)
    return datetime.fromtimestamp(begin / 1000, UTC), datetime.fromtimestamp(end / 1000, UTC)


def _varied(experiment: Experiment, runs: pd.DataFrame) -> list[str]:
    """Return the fields that tell trials apart, beside algorithm, noise and seed.

    Mechanism (`none` aside) and data set come first, if the runs have several, then those that the experiment varies.
    """
    mechanism = ["mechanism"] if len(set(runs["mechanism"]) - {"none"}) > 1 else []
    dataset = ["dataset"] if runs["dataset"].nunique() > 1 else []
    return [*mechanism, *dataset, *(name for name in experiment.varied if name not in ("mechanism", "dataset"))]


def _trials_note(runs: pd.DataFrame, links: Sequence[str]) -> str:
    """Return the note under the table of trials: units of its columns, and whether its keys are links."""
    note = "Accuracies in % at the last epoch; cos, the cosine between a layer's update and its true gradient"
    note += " (feedback: of its update before clipping and noise)." if "alignment/feedback" in " ".join(runs) else "."
    if kinds_of(runs):
        note += (" Of each kind of ε the smallest that an accountant gives, at the δ, relation and sampler of the "
                 "table of epsilons; different kinds guarantee different things and cannot be compared.")
    if any(links):
        local = ", while `photonic ui` runs on this machine" if links[0].startswith("http://127.0.0.1:") else ""
        note += f" A trial's key leads to its run in MLflow{local}."
    return note


def _problems(experiment: Experiment, runs: pd.DataFrame, store: Reader) -> list[str]:
    """Return a sentence per diverged trial, with its last epoch; or one sentence that none diverged."""
    diverged = runs[runs["status"] == "diverged"]
    if diverged.empty:
        return ["None: the trial finished." if len(runs) == 1 else f"None: all {len(runs)} trials finished."]
    sentences = []
    for row in diverged.to_dict("records"):
        last_epoch = max((epoch for epoch, _ in store.history(row["run_id"], CLOCK)), default=0)
        varied = [f"{field} = {value_text(row[field])}" for field in _varied(experiment, runs)]
        name = " ".join([algorithm_labels()[row["algorithm"]], setting_label(row["setting"]), *varied,
                         f"seed {row['seed']}"])
        sentences.append(f"{name} (`{row['trial_key']}`) diverged after epoch {last_epoch} of {row['epochs']}: a "
                         "weight stopped being finite. It counts with the weights it ended with.")
    return sentences


def _counted(tracked: Sequence[TrackedRun], tag: str) -> list[str]:
    """Return the values of a tag; if there are several, each with its number of trials."""
    counts = Counter(run.tags[tag] for run in tracked if tag in run.tags)
    if len(counts) == 1:
        return list(counts)
    return [f"{value} ({counted(count, 'trial')})" for value, count in counts.items()]


def file_name(experiment: Experiment) -> str:
    """Return the name of the experiment file, without its folder."""
    return Path(experiment.source).name


def _values(column: pd.Series) -> str:
    return ", ".join(value_text(value) for value in column.unique())
