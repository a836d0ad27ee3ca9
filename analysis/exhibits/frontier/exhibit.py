"""A frontier as an exhibit: figure, means, chosen settings, and the assumptions of its epsilons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.exhibits.exhibit import Exhibit, Texts, to_csv
from analysis.exhibits.frontier import choice, imported
from analysis.exhibits.frontier.figure import comparable, plot
from analysis.exhibits.frontier.points import (
    COLUMNS,
    PRICE,
    frontiers,
    hypervolumes,
    on_axis,
    target_of,
)
from analysis.exhibits.metrics import METRICS, Metric
from analysis.exhibits.table import Table
from analysis.runs import ALGORITHM_LABELS, DATASET_LABELS, common_value, noise_sources, setting_label
from analysis.statistics import SUMMARY
from analysis.style import present
from analysis.text import NO_VALUE, best_of, epsilon_text, means_text
from pipeline.accounting.noise import standing
from pipeline.experiment.exhibits import FRONTIERS
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.sections import Budget, Reference
from pipeline.trials.kinds import COMPOSABLE, GUARANTEED
from pipeline.trials.naming import counted
from pipeline.trials.trainer import is_stated

TITLES = {"frontier": "Accuracy against ε", "frontier_worst_class": "Accuracy of the worst class against ε",
          "frontier_alignment": "Alignment against ε",
          "frontier_claimed": "Accuracy against the ε that is claimed: no guarantee"}
SETTINGS_NAMED = 3  # largest number of an algorithm's settings in a note


def of_experiment(runs: pd.DataFrame, *, name: str, experiment: Experiment, results: pd.DataFrame | None) -> Exhibit:
    """Call `draw` with the experiment's references, budget and imported results."""
    if results is None or name != imported.SHOWN_BY:
        results = imported.NONE
    return draw(runs, name=name, references=experiment.references, budget=experiment.plan.budget,
                by_scores=experiment.plan.by_scores, results=results)


def draw(runs: pd.DataFrame, *, name: str, references: Sequence[Reference] = (),
         budget: Budget | None = None, by_scores: bool = False, results: pd.DataFrame = imported.NONE) -> Exhibit:
    """Make one of the exhibits in `TITLES`, with dominated areas and comparable published results.

    Errors as in `frontiers`. If trials were suggested by scores of others (`by_scores`), composition is no price of a
    choice.
    """
    if name == "frontier_claimed":
        points = frontiers(runs, "accuracy", kinds=["claimed"])
    else:
        points = frontiers(runs, FRONTIERS[name], kinds=GUARANTEED)
    if by_scores:
        points = [frame.drop(columns=PRICE, errors="ignore") for frame in points]
    areas = to_csv(hypervolumes(points, runs).round({"hypervolume": 4}))
    imported_points = imported.against(results, points, common_value(runs["dataset"]))
    marked = imported.comparable(imported_points)
    own_texts = texts(points, runs, references, budget)
    all_texts = own_texts._replace(more=(*imported.table(marked), *own_texts.more),
                                   notes=(*own_texts.notes, *imported.notes(imported_points)))
    rows = tidy([*points, marked], ["source"]) if len(marked) else tidy(points)
    return Exhibit(name, title=TITLES[name], texts=all_texts, rows=rows, figure=plot(points, references, marked),
                   others={f"{name}_hypervolume.csv": areas})


def tidy(points: Sequence[pd.DataFrame], further_columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return the points of all kinds as written to a file: one row each, rounded to four decimals."""
    table = pd.concat(points)
    price_column = [PRICE] if PRICE in table else []
    rounded = ["epsilon", *price_column, *SUMMARY]
    return table[[*COLUMNS, *price_column, *further_columns]].round(dict.fromkeys(rounded, 4))


def texts(points: Sequence[pd.DataFrame], runs: pd.DataFrame, references: Sequence[Reference] = (),
          budget: Budget | None = None) -> Texts:
    """Return a caption and a table of means per kind, then tables of chosen settings and dominated areas, and notes.

    The tables of means have algorithms as rows and epsilons as columns.
    """
    volumes, letters = hypervolumes(points, runs), choice.letters(pd.concat(points))
    body: list[str | Table] = []
    more: list[str | Table] = []
    kinds_by_note: dict[str, list[str]] = {}
    for frame, (_, areas) in zip(points, volumes.groupby(["kind", "formula"], sort=False), strict=True):
        body += [caption(frame, runs), _means(frame)]
        more += [*_chosen(frame, letters), *_areas(areas)]
        for note in _notes(frame, runs, references, budget):
            kinds_by_note.setdefault(note, []).append(_kind_text(frame))
    notes: list[str] = []
    for note, kinds in kinds_by_note.items():
        if len(kinds) == len(points):  # it holds for all kinds
            notes.append(note)
        else:
            notes += [f"{kind}: {note}" for kind in kinds]
    return Texts(tuple(body), tuple(more), tuple(notes))


def caption(points: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Return the caption of one kind, with the assumptions of its epsilon."""
    first = points.iloc[0]  # all points have one kind, metric and formula
    axis_runs = _runs_on_axis(points, runs)
    phrase = METRICS[first["metric"]].phrase
    guarantee_standing = standing(noise_sources(axis_runs).dropna()) if first["kind"] in GUARANTEED else ""
    epsilon = epsilon_text(first["kind"], points["relation"], points["sampler"], points["delta"], guarantee_standing)
    return (f"{phrase[0].upper()}{phrase[1:]} on {DATASET_LABELS[common_value(axis_runs['dataset'])]} against {epsilon}"
            f"{_formula(points)}: {means_text(points['n'])}{best_of(points['choices'].max())}.")


def _runs_on_axis(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with an epsilon of the points' kind and formula, which their axis shows."""
    return runs.loc[on_axis(runs, common_value(points["kind"]), common_value(points["formula"])).notna()]


def _kind_text(points: pd.DataFrame) -> str:
    """Return the kind of epsilon as text: `label ε`, `claimed ε, formula saturating/epochs`."""
    return f"{common_value(points['kind'])} ε{_formula(points)}"


def _formula(points: pd.DataFrame) -> str:
    formula = common_value(points["formula"])
    return f", formula {formula}" if formula else ""


def _notes(points: pd.DataFrame, runs: pd.DataFrame, references: Sequence[Reference],
           budget: Budget | None) -> list[str]:
    """Return notes on the points of one kind."""
    kind, metric = common_value(points["kind"]), METRICS[common_value(points["metric"])]
    axis_runs = _runs_on_axis(points, runs)
    epochs = counted(" or ".join(f"{value:g}" for value in sorted(set(axis_runs["epochs"]))), "epoch")
    return [f"Trained for {epochs}.", *_stated_note(points), _front_note(points), *_budget_note(kind, budget),
            *_clipping_note(points), *_metric_notes(metric, axis_runs), *_end_notes(axis_runs),
            *_left_out_note(runs, axis_runs, kind), *_published_note(points, references)]


def _stated_note(points: pd.DataFrame) -> list[str]:
    """Return a sentence on points with an epsilon that a trainer states; empty without such points."""
    names = [ALGORITHM_LABELS[algorithm] for algorithm in present(points) if is_stated(algorithm)]
    if not names:
        return []
    subject = "trainers state" if len(names) > 1 else "trainer states"
    return [f"With stars: ε is what the {subject}, accounted for here and checked by nobody ({', '.join(names)})."]


def _budget_note(kind: str, budget: Budget | None) -> list[str]:
    """Return a sentence on what the sweep's budget covers; empty without one, or if it does not cover the kind."""
    if budget is None or kind not in COMPOSABLE:
        return []
    return [f"The sweep's budget, ε = {budget.epsilon:g} at δ = {budget.delta:g}, covers all of these trials together, "
            "and every choice among them by the scores that they released."]


def _metric_notes(metric: Metric, runs: pd.DataFrame) -> list[str]:
    """Return the definition of a metric, if it needs one, and a sentence on runs in which it was not measured."""
    notes = [metric.meaning] if metric.meaning else []
    n_unmeasured = int(metric.of(runs).isna().sum())
    if n_unmeasured:
        notes.append(f"{n_unmeasured} of {len(runs)} trials have no measured {metric.name} and are left out.")
    return notes


def _left_out_note(runs: pd.DataFrame, axis_runs: pd.DataFrame, kind: str) -> list[str]:
    """Return a sentence on trials without a finite epsilon of this kind, if there are any."""
    without_epsilon = runs.drop(axis_runs.index)
    if without_epsilon.empty:
        return []
    return [f"Without a finite {kind} ε and left out: {_settings(without_epsilon)}."]


def _settings(runs: pd.DataFrame) -> str:
    """Return each algorithm's settings, or their number if they are many: `BP (σ = 0, σ = 0.1), DFA (6 settings)`."""
    parts = []
    for algorithm, group in runs.groupby("algorithm", sort=False):
        labels = list(dict.fromkeys(map(setting_label, group["setting"])))  # each once
        settings = ", ".join(labels) if len(labels) <= SETTINGS_NAMED else f"{len(labels)} settings"
        parts.append(f"{ALGORITHM_LABELS[algorithm]} ({settings})")
    return ", ".join(parts)


def _means(points: pd.DataFrame) -> Table:
    """Return the table of means of one kind of epsilon: algorithms as rows, epsilons as columns, smallest first."""
    by_epsilon = points.sort_values("epsilon", kind="stable")
    metric = METRICS[common_value(points["metric"])]
    cells: dict[tuple[str, str], str] = {}  # (algorithm, column) -> mean and interval as text
    for row in by_epsilon.itertuples():
        cells[row.algorithm, _column(row)] = metric.text(row.mean, row.half_width)
    columns = list(dict.fromkeys(column for _, column in cells))  # each once, by growing epsilon
    rows = []
    for algorithm in present(points):
        means = [cells.get((algorithm, column), NO_VALUE) for column in columns]
        rows.append([ALGORITHM_LABELS[algorithm], *means])
    return Table.of(["", *columns], rows)


def _published_note(points: pd.DataFrame, references: Sequence[Reference]) -> list[str]:
    """Return a sentence on the published results that the panel marks; empty if it marks none."""
    results = [f"{reference.source}, {reference.accuracy:g}% at ε = {reference.epsilon:g}, δ = {reference.delta:g}"
               for reference in comparable(points, references)]
    return [f"Published by others, and marked: {'; '.join(results)}."] if results else []


def _chosen(points: pd.DataFrame, letters: Mapping[str, str]) -> list[str | Table]:
    """Return a caption and a table of the settings that differ along a curve, and whether they were chosen."""
    if not points["chosen"].any():
        return []
    table_caption = "What was chosen at every point, by mean validation accuracy over seeds"
    if points["choices"].max() == 1:
        table_caption = "Settings that differ between the points of a curve, each trained with one of them"
    if PRICE in points:
        table_caption += ("; selected ε composes all trials that were compared for it, seeds included. Scores without "
                          "noise and the choice among algorithms are not covered")
    epsilons = [_column(row) for row in points.itertuples()]
    return [f"{table_caption}.", choice.table(points, epsilons, letters)]


def _areas(volumes: pd.DataFrame) -> tuple[str, Table]:
    """Return a caption and a table of the dominated areas of one kind of epsilon, largest first."""
    first = volumes.iloc[0]  # all rows have one kind, metric and reference point
    names = [ALGORITHM_LABELS.get(algorithm, "all together") for algorithm in volumes["algorithm"]]
    row = [first["metric"].replace("_", " "), *(f"{value:.4g}" for value in volumes["hypervolume"])]
    area_caption = (f"Hypervolume, {first['kind']} ε: area between the means and the reference point (ε = "
                    f"{first['reference_epsilon']:g}, {first['reference_value']:g}), in units of the metric times nats "
                    "of ln ε; larger is better.")
    return area_caption, Table.of(["hypervolume", *names], [row])


def _column(row: Any) -> str:  # Any: of `DataFrame.itertuples`
    """Return a column's name: `ε ≤ 3` for a target, which is met to within 1% from below; else the value."""
    target = target_of(row)
    return f"ε ≤ {target}" if target else f"ε = {row.epsilon:.4g}"


def _clipping_note(points: pd.DataFrame) -> list[str]:
    """Return a sentence on intervals that leave the metric's range, if there are any: their ends are clipped."""
    metric = METRICS[common_value(points["metric"])]
    low, high = points["mean"] - points["half_width"], points["mean"] + points["half_width"]
    if not ((low < metric.low) | (high > metric.high)).any():
        return []
    return [f"Where an interval would leave {metric.low:g} to {metric.high:g}, its ends are cut there and printed: so "
            "few seeds say little."]


def _end_notes(runs: pd.DataFrame) -> list[str]:
    """Return sentences on trials that diverged or were stopped, and how they count; empty if all trials finished."""
    diverged, stopped = runs[runs["status"] == "diverged"], runs[runs["status"] == "stopped"]
    notes = []
    if len(diverged):
        notes.append(f"Diverged trials count with the weights they ended with: {_settings(diverged)}.")
    if len(stopped):
        notes.append(f"{counted(len(stopped), 'trial')} stopped early, as others were better; each counts with the "
                     "weights it ended with and with the ε of all its epochs, as accuracies decided when it ends.")
    return notes


def _front_note(points: pd.DataFrame) -> str:
    """Return a sentence that names the points on the Pareto front of all algorithms."""
    best = points[points["on_overall_front"]]
    names = [f"{ALGORITHM_LABELS[algorithm]} at {', '.join(_column(row) for row in group.itertuples())}"
             for algorithm, group in best.groupby("algorithm", sort=False)]
    return f"On the Pareto front of these means, points with a target compared by it: {'; '.join(names)}."
