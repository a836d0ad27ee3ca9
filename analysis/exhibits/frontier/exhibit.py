"""A frontier as an exhibit: figure, means, chosen settings, and the assumptions of its epsilons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.exhibit import Exhibit, Texts, to_csv
from analysis.exhibits.frontier import choice, others
from analysis.exhibits.frontier.figure import plot
from analysis.exhibits.frontier.points import COLUMNS, PRICE, frontiers, hypervolumes, target_of, tightest
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.table import Table, by_algorithm
from analysis.runs import ALGORITHM_LABELS, DATASET_LABELS, common_value, setting_label
from analysis.statistics import SUMMARY
from analysis.text import best_of, epsilon_text, means_text
from pipeline.experiment.exhibits import FRONTIERS
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.past import NO_PAST, Past
from pipeline.experiment.results import Result
from pipeline.experiment.sections import Budget
from pipeline.trials.kinds import GUARANTEED
from pipeline.trials.naming import counted

TITLES = {"frontier": "Accuracy against ε", "frontier_worst_class": "Accuracy of the worst class against ε",
          "frontier_alignment": "Alignment against ε",
          "frontier_claimed": "Accuracy against the ε that is claimed: no guarantee"}
SETTINGS_NAMED = 3  # largest number of an algorithm's settings in a note


@exhibit(*TITLES)
def of_experiment(runs: pd.DataFrame, *, name: str, experiment: Experiment) -> Exhibit:
    """Call `draw` with the experiment's references, budget and past."""
    return draw(runs, name=name, references=experiment.references, budget=experiment.plan.budget,
                by_scores=experiment.plan.by_scores or experiment.past.by_scores, past=experiment.past)


def draw(runs: pd.DataFrame, *, name: str, references: Sequence[Result] = (),
         budget: Budget | None = None, by_scores: bool = False, past: Past = NO_PAST) -> Exhibit:
    """Make one of the exhibits in `TITLES`, with dominated areas and comparable results of others.

    Errors as in `frontiers`. If trials were suggested by scores of others (`by_scores`), composition is no price of a
    choice.
    """
    kinds = ["claimed"] if name == "frontier_claimed" else GUARANTEED
    points = frontiers(runs, FRONTIERS.get(name, "accuracy"), kinds, past)
    if by_scores:
        points = [frame.drop(columns=PRICE, errors="ignore") for frame in points]
    volumes = hypervolumes(points, runs)
    points_of_others = others.points_of(references, points, common_value(runs["dataset"]))
    marked = others.comparable(points_of_others)
    of_files = others.from_files(marked)
    own_texts = texts(points, runs, volumes, budget)
    all_texts = own_texts._replace(more=(*others.table(of_files), *own_texts.more),
                                   notes=(*own_texts.notes, *others.notes(points_of_others)))
    rows = tidy([*points, of_files], ["source"]) if len(of_files) else tidy(points)
    return Exhibit(name, title=TITLES[name], texts=all_texts, rows=rows, figure=plot(points, marked),
                   others={f"{name}_hypervolume.csv": to_csv(volumes.round({"hypervolume": 4}))})


def tidy(points: Sequence[pd.DataFrame], further_columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return the points of all kinds as written to a file: one row each, rounded to four decimals."""
    table = pd.concat(points)
    price_column = [PRICE] if PRICE in table else []
    rounded = ["epsilon", *price_column, *SUMMARY]
    return table[[*COLUMNS, *price_column, *further_columns]].round(dict.fromkeys(rounded, 4))


def texts(points: Sequence[pd.DataFrame], runs: pd.DataFrame, volumes: pd.DataFrame,
          budget: Budget | None = None) -> Texts:
    """Return a caption and a table of means per kind, then tables of chosen settings and dominated areas, and notes.

    `volumes` are the `hypervolumes` of the points.
    """
    letters = choice.letters(pd.concat(points))
    body: list[str | Table] = []
    more: list[str | Table] = []
    kinds_by_note: dict[str, list[str]] = {}
    for frame, (_, areas) in zip(points, volumes.groupby(["kind", "formula"], sort=False), strict=True):
        metric = METRICS[common_value(frame["metric"])]
        by_epsilon = frame.sort_values("epsilon", kind="stable")
        means = {(row.algorithm, _column(row)): metric.text(row.mean, row.half_width)
                 for row in by_epsilon.itertuples()}
        columns = dict.fromkeys(column for _, column in means)  # each once, by growing epsilon
        body += [caption(frame, runs), by_algorithm(columns, means)]
        if frame["chosen"].any():
            more += choice.table(frame, [_column(row) for row in frame.itertuples()], letters)
        more += _areas(areas)
        for note in _notes(frame, runs, budget):
            kinds_by_note.setdefault(note, []).append(f"{common_value(frame['kind'])} ε{_formula(frame)}")
    notes: list[str] = []
    for note, kinds in kinds_by_note.items():
        holds_for_all = len(kinds) == len(points)
        notes += [note] if holds_for_all else [f"{kind}: {note}" for kind in kinds]
    return Texts(tuple(body), tuple(more), tuple(notes))


def caption(points: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Return the caption of one kind, with the assumptions of its epsilon."""
    axis_runs = _runs_on_axis(points, runs)
    phrase, kind = METRICS[common_value(points["metric"])].phrase, common_value(points["kind"])
    return (f"{phrase[0].upper()}{phrase[1:]} on {DATASET_LABELS[common_value(axis_runs['dataset'])]} against "
            f"{epsilon_text(kind, axis_runs, points)}{_formula(points)}: {means_text(points['n'])}"
            f"{best_of(points['choices'].max())}.")


def _runs_on_axis(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with an epsilon of the points' kind and formula, which their axis shows."""
    return runs.loc[tightest(runs, common_value(points["kind"]), common_value(points["formula"])).notna()]


def _formula(points: pd.DataFrame) -> str:
    formula = common_value(points["formula"])
    return f", formula {formula}" if formula else ""


def _notes(points: pd.DataFrame, runs: pd.DataFrame, budget: Budget | None) -> list[str]:
    kind, metric = common_value(points["kind"]), METRICS[common_value(points["metric"])]
    axis_runs = _runs_on_axis(points, runs)
    epochs = " or ".join(f"{value:g}" for value in sorted(set(axis_runs["epochs"])))
    notes = [f"Trained for {counted(epochs, 'epoch')}."]
    on_front = points[points["on_overall_front"]].groupby("algorithm", sort=False)
    best = [f"{ALGORITHM_LABELS[algorithm]} at {', '.join(map(_column, group.itertuples()))}"
            for algorithm, group in on_front]
    notes.append(f"On the Pareto front of these means, points with a target compared by it: {'; '.join(best)}.")
    if budget and kind == "certified":
        notes.append(f"The sweep's budget, ε = {budget.epsilon:g} at δ = {budget.delta:g}, covers all of these trials "
                     "together, and every choice among them by the scores that they released.")
    low, high = points["mean"] - points["half_width"], points["mean"] + points["half_width"]
    if ((low < metric.low) | (high > metric.high)).any():
        notes.append(f"Where an interval would leave {metric.low:g} to {metric.high:g}, its ends are cut there and "
                     "printed: so few seeds say little.")
    if metric.meaning:
        notes.append(metric.meaning)
    if n_unmeasured := int(metric.of(axis_runs).isna().sum()):
        notes.append(f"{n_unmeasured} of {len(axis_runs)} trials have no measured {metric.name} and are left out.")
    diverged = axis_runs[axis_runs["status"] == "diverged"]
    if len(diverged):
        notes.append(f"Diverged trials count with the weights they ended with: {_settings(diverged)}.")
    without_epsilon = runs.drop(axis_runs.index)
    if len(without_epsilon):
        notes.append(f"Without a finite {kind} ε and left out: {_settings(without_epsilon)}.")
    return notes


def _settings(runs: pd.DataFrame) -> str:
    """Return each algorithm's settings, or their number if they are many: `BP (σ = 0, σ = 0.1), DFA (6 settings)`."""
    parts = []
    for algorithm, group in runs.groupby("algorithm", sort=False):
        labels = list(dict.fromkeys(map(setting_label, group["setting"])))  # each once
        settings = ", ".join(labels) if len(labels) <= SETTINGS_NAMED else f"{len(labels)} settings"
        parts.append(f"{ALGORITHM_LABELS[algorithm]} ({settings})")
    return ", ".join(parts)


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
