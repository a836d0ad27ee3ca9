"""The report of a sweep: tables and figures under `reports/<name>`, and as artifacts of the sweep's parent run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits import (
    figure2,
    headline,
    heatmaps,
    leekifer,
    main_effects,
    means,
    parallel_coordinates,
    selection,
    sweeps,
    table1,
)
from analysis.exhibits.captions import CAPTIONS, ENVELOPE, TITLES, titled
from analysis.exhibits.frontier import figure as frontier_figure
from analysis.exhibits.frontier import points as frontiers
from analysis.exhibits.frontier import slices
from analysis.exhibits.table import markdown
from analysis.report.overview import NOISE, file_name, manifest, overview, shown, tracked_runs
from analysis.report.page import render
from analysis.runs import FIELDS, load_history, load_runs, require_replicates
from analysis.statistics import SUMMARY
from pipeline.accounting.certified import with_noise
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.exhibits import FRONTIERS, HEATMAPS, SWEPT, certified_trials, left_out
from pipeline.trials.experiment import Experiment


class Report(NamedTuple):
    """What a report wrote and found.

    Attributes:
        files: in the order in which they were written.
        headline: who is best at which epsilon (`analysis.exhibits.headline`); empty of random stopping.
        left_out: (exhibit, reason) of those that it does not draw; empty of random stopping.
    """

    files: list[Path]
    headline: list[str]
    left_out: list[tuple[str, str]]


def report(experiment: Experiment, store: Store, out: Path | None = None, where: str = "") -> Report:
    """Draw the exhibits that the experiment file lists or, where it is silent, all that its trials fit, and log them to
    the parent run.

    Args:
        store: where the experiment was tracked; it is attached to the experiment's sweep, read, and given the files,
            the epsilon of the choice and, as its description, the headline.
        out: folder of the report, created if need be; by default `reports/<name>`, and of a slice a folder in that.
        where: of which slice (`pipeline.trials.experiment.sliced`) the experiment is; empty for all trials. A slice
            says nothing of the best trial: choosing it took looking at the others.

    Returns:
        Who is best, and the files written: `runs.csv`, one row per trial, those of the exhibits, where trials are
        certified and have validation accuracy `selection.csv` and `selection.md` (the best trial, and what it costs to
        have chosen it), a copy of the experiment file, `manifest.json` (commit, versions, commands and digests of the
        data), and last `index.html`, a page of its own that shows all of it.

    Raises:
        MissingTrials: if the sweep is not complete.
        ReportError: if an exhibit lacks what it shows; the message names it.
        TrackingError: if the store has no such sweep.
    """
    store.attach(experiment.name)
    runs = load_runs(store, experiment.trials, source=experiment.source)
    folder = Path("reports", experiment.name, where) if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "runs.csv"]
    lists = {name: runs[name].map(_json) for name, kind in FIELDS.items() if kind is tuple}
    runs.assign(**lists, **_noise(runs, experiment, store)).to_csv(files[0], index=False, lineterminator="\n")
    for name in experiment.report:
        files += EXHIBITS[name](runs, store, folder)
    choice, certified = None, certified_trials(experiment.trials)
    scored = all(trial.validation_fraction and trial.disclosure != "withheld" for trial in certified)
    if certified and scored and not where:
        choice = selection.choose(experiment, runs)
        store.log_sweep(choice.metrics, choice.tags)  # the epsilon of the choice
        files += write_selection(choice, folder)
    if experiment.public_text and not where:
        files += write({file_name(experiment): experiment.public_text}, folder)
    public = shown(experiment, runs, choice)
    tracked = tracked_runs(public, store)
    said = [] if experiment.candidates else headline.headline(runs)
    absent = [] if experiment.candidates else left_out(experiment.trials, experiment.report)
    page = overview(experiment, public, tracked, store=store, choice=choice, files=files, headline=said,
                    left_out=absent)
    files += write({"manifest.json": manifest(experiment, public, tracked, files), "index.html": render(page)}, folder)
    store.log_report(files, where)
    if said and not where:
        store.describe(experiment.description, "\n".join(f"- {sentence}" for sentence in said))
    return Report(files, said, absent)


def write_selection(choice: selection.Choice, folder: Path) -> list[Path]:
    """`selection.csv` and `selection.md`."""
    return write({"selection.csv": selection.to_csv(choice),
                   "selection.md": titled(TITLES["selection"], selection.to_markdown(choice))}, folder)


def write_table1(runs: pd.DataFrame, store: Reader, folder: Path) -> list[Path]:
    """`table1.csv`, `table1.md` and `table1.tex`."""
    require_replicates(runs)
    table = table1.table1(runs)
    caption = table1.caption(runs, table)
    contents = {"table1.csv": table1.to_csv(table),
                "table1.md": titled(TITLES["table1"], table1.to_markdown(table, caption)),
                "table1.tex": table1.to_latex(table, caption)}
    return write(contents, folder)


def write_figure2(runs: pd.DataFrame, store: Reader, folder: Path) -> list[Path]:
    """`figure2.csv`, `.md`, `.svg`, `.pdf` and `.png`."""
    require_replicates(runs)
    accuracy = load_history(store, runs, "validation/accuracy")
    alignment = load_history(store, runs[runs["algorithm"] == "pdfa"], figure2.ALIGNMENT)
    figure = figure2.figure2(accuracy, alignment)
    return _figure("figure2", figure2.figure2_table(accuracy, alignment), figure, folder)


def write_frontier(runs: pd.DataFrame, store: Reader, folder: Path, *, name: str, metric: str,
                   kinds: Sequence[str] = frontiers.GUARANTEED) -> list[Path]:
    """`<name>.csv`, `.md`, `.svg`, `.pdf` and `.png`, and `<name>_hypervolume.csv`."""
    points = frontiers.frontiers(runs, metric, kinds)
    volumes = frontiers.hypervolumes(points, runs).round({"hypervolume": 4}).to_csv(index=False, lineterminator="\n")
    contents = {f"{name}.csv": frontiers.to_csv(points),
                f"{name}.md": titled(TITLES[name], frontiers.to_markdown(points, runs)),
                f"{name}_hypervolume.csv": volumes}
    return write(contents, folder) + style.save(frontier_figure.frontier_figure(points), folder, name)


def write_heatmap(runs: pd.DataFrame, store: Reader, folder: Path, *, name: str, metric: str) -> list[Path]:
    """`<name>.csv`, `.md`, `.svg`, `.pdf` and `.png`."""
    table = heatmaps.heatmap_table(runs, metric)
    return _figure(name, table, heatmaps.heatmap_figure(table), folder)


def write_sweep(runs: pd.DataFrame, store: Reader, folder: Path, *, name: str, field: str) -> list[Path]:
    """`<name>.csv`, `.md`, `.svg`, `.pdf` and `.png`."""
    table = sweeps.sweep_table(runs, field)
    return _figure(name, table, sweeps.sweep_figure(table, field), folder)


def write_slices(runs: pd.DataFrame, store: Reader, folder: Path) -> list[Path]:
    """`frontier_slices.csv`, `.md`, `.svg`, `.pdf` and `.png`."""
    points = slices.slices(runs)
    return _figure("frontier_slices", points.round({"epsilon": 4}), slices.slices_figure(points), folder)


def write_main_effects(runs: pd.DataFrame, store: Reader, folder: Path) -> list[Path]:
    """`main_effects.csv`, `.md`, `.svg`, `.pdf` and `.png`."""
    table = main_effects.main_effects(runs)
    contents = {"main_effects.csv": table.round(6).to_csv(index=False, lineterminator="\n"),
                "main_effects.md": titled(TITLES["main_effects"], main_effects.to_markdown(table, len(runs)))}
    return write(contents, folder) + style.save(main_effects.main_effects_figure(table), folder, "main_effects")


def write_parallel_coordinates(runs: pd.DataFrame, store: Reader, folder: Path) -> list[Path]:
    """`parallel_coordinates.csv`, `.md`, `.svg`, `.pdf` and `.png`."""
    table = parallel_coordinates.settings_table(runs)
    return _figure("parallel_coordinates", table, parallel_coordinates.parallel_figure(table), folder)


def write_means(runs: pd.DataFrame, store: Reader, folder: Path) -> list[Path]:
    """`means.csv` and `means.md`."""
    table = means.means_table(runs)
    text = titled(TITLES["means"], means.to_markdown(table))
    return write({"means.csv": means.to_csv(table), "means.md": text}, folder)


def write_leekifer(runs: pd.DataFrame, store: Reader, folder: Path) -> list[Path]:
    """`leekifer.csv`, `leekifer.md`, and `leekifer.svg`, `.pdf` and `.png`."""
    table = leekifer.curves(store, runs)
    contents = {"leekifer.csv": table.round(6).to_csv(index=False, lineterminator="\n"),
                "leekifer.md": titled(TITLES["leekifer"], leekifer.to_markdown(table))}
    return write(contents, folder) + style.save(leekifer.leekifer_figure(table), folder, "leekifer")


def _noise(runs: pd.DataFrame, experiment: Experiment, store: Reader) -> dict[str, pd.Series]:
    """The columns `sigma` and `noise_multiplier` with what targets came to, in place of the 0 of a trial's settings: as
    it was tracked, and by the accountant for trials of which it was not."""
    trials, columns = {trial.trial_key: trial for trial in experiment.trials}, {}
    tags = {run.trial_key: run.tags for run in store.runs()}
    for name, target in NOISE.items():
        columns[name] = runs[name].copy()
        for index, key in runs.loc[runs[target].fillna(0) > 0, "trial_key"].items():
            tracked = tags[key].get(f"calibrated.{name}")
            columns[name][index] = float(tracked) if tracked else getattr(with_noise(trials[key]), name)
    return columns


def _json(value: object) -> str | None:
    """A tuple as JSON; nothing where the field does not apply."""
    return json.dumps(list(value)) if isinstance(value, tuple) else None


def _figure(name: str, table: pd.DataFrame, figure: Figure, folder: Path) -> list[Path]:
    """A figure beside the tidy data behind it and its caption."""
    most = table["choices"].max() if "choices" in table else 1
    caption = CAPTIONS[name] if most == 1 else f"{CAPTIONS[name]} {ENVELOPE.format(most=most)}"
    contents = {f"{name}.csv": table.round(dict.fromkeys(SUMMARY, 4)).to_csv(index=False, lineterminator="\n"),
                f"{name}.md": titled(TITLES[name], markdown(caption))}
    return write(contents, folder) + style.save(figure, folder, name)


def write(contents: dict[str, str], folder: Path) -> list[Path]:
    """Text files by name, written into `folder`."""
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in contents]


EXHIBITS: dict[str, Callable[[pd.DataFrame, Reader, Path], list[Path]]] = {
    "table1": write_table1,
    "figure2": write_figure2,
    **{name: partial(write_frontier, name=name, metric=metric) for name, metric in FRONTIERS.items()},
    "frontier_slices": write_slices,
    "frontier_claimed": partial(write_frontier, name="frontier_claimed", metric="accuracy", kinds=("claimed",)),
    **{name: partial(write_heatmap, name=name, metric=metric) for name, metric in HEATMAPS.items()},
    **{name: partial(write_sweep, name=name, field=field) for name, field in SWEPT.items()},
    "main_effects": write_main_effects,
    "parallel_coordinates": write_parallel_coordinates,
    "means": write_means,
    "leekifer": write_leekifer,
}
