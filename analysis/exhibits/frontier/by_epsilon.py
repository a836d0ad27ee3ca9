"""The exhibits `frontier...`: figure, means, chosen settings, assumptions of the epsilons. The catalogue calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.frontier import choice, others
from analysis.exhibits.frontier.figure import plot
from analysis.exhibits.frontier.points import PRICE, frontiers, named, target_of, tightest
from analysis.exhibits.metrics import METRICS, feedback_is_measured
from analysis.exhibits.table import Table, crossed
from analysis.labels import DATASETS, algorithm_labels, setting_label
from analysis.runs import common_value
from analysis.statistics import SUMMARY
from analysis.text import best_of, epsilon_text, fixed_text, means_text
from pipeline.accounting.epsilon import Budget
from pipeline.experiment.experiment import Experiment
from pipeline.trials.kinds import GUARANTEED
from pipeline.trials.naming import counted

# By name: title, and the metrics of its panels.
FRONTIERS = {"frontier": ("Accuracy against ε", ["accuracy"]),
             "frontier_worst_class": ("Accuracy of the worst class against ε", ["worst_class"]),
             "frontier_alignment": ("Alignment against ε", ["alignment", "feedback_alignment"]),
             "frontier_claimed": ("Accuracy against the ε that is claimed: no guarantee", ["accuracy"])}
SETTINGS_NAMED = 3  # largest number of an algorithm's settings in a note


def of_experiment(runs: pd.DataFrame, name: str, experiment: Experiment) -> Exhibit:
    """Make one of the exhibits in `FRONTIERS`, with comparable results of others; errors as in `frontiers`."""
    title, metrics = FRONTIERS[name]
    kinds = ["claimed"] if name == "frontier_claimed" else GUARANTEED
    metrics = [metric for metric in metrics if metric != "feedback_alignment" or feedback_is_measured(runs)]
    points = [frame for metric in metrics for frame in frontiers(runs, experiment, metric, kinds)]
    references = experiment.references if runs["dataset"].nunique() == 1 else ()
    points_of_others = others.points_of(references, points, common_value(runs["dataset"]))
    marked = others.comparable(points_of_others)
    of_files = others.from_files(marked)
    own_texts = texts(points, runs, experiment.plan.budget)
    all_texts = own_texts._replace(more=(*others.table(of_files), *own_texts.more),
                                   notes=(*own_texts.notes, *others.notes(points_of_others)))
    rows = tidy([*points, of_files] if len(of_files) else points)
    return Exhibit(name, title, texts=all_texts, rows=rows, figure=plot(points, marked))


def tidy(points: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the points of all kinds as written to a file: one row each, rounded to four decimals."""
    columns = dict.fromkeys(name for frame in points for name in frame.columns if name not in others.INTERNAL)
    table = pd.concat(points)[[*columns]]
    return table.round({name: 4 for name in ("epsilon", PRICE, *SUMMARY) if name in table})


def texts(points: Sequence[pd.DataFrame], runs: pd.DataFrame, budget: Budget | None = None) -> Texts:
    """Return a caption and a table of means per kind and metric, then tables of chosen settings, and notes."""
    body: list[str | Table] = []
    more: list[str | Table] = []
    kinds_by_note: dict[str, list[str]] = {}
    for frame in points:
        body += [caption(frame, runs, budget), means_of(frame)]
        if frame["chosen"].any():
            table = choice.table(frame, [_column(row) for row in frame.itertuples()], named(frame))
            more += table if table[1] not in more else ()  # metrics of one kind share it
        for note in _notes(frame, runs):
            kinds_by_note.setdefault(note, []).append(f"{common_value(frame['kind'])} ε{_formula(frame)}")
    notes: list[str] = []
    for note, kinds in kinds_by_note.items():
        notes += [note] if len(kinds) == len(points) else [f"{kind}: {note}" for kind in dict.fromkeys(kinds)]
    return Texts(tuple(body), tuple(more), tuple(notes))


def means_of(points: pd.DataFrame) -> Table:
    """Return the table of means: a row per line, a column per epsilon."""
    metric = METRICS[common_value(points["metric"])]
    names = dict(zip(points.index, named(points), strict=True))
    by_epsilon = points.sort_values("epsilon", kind="stable")
    columns = dict.fromkeys(_column(row) for row in by_epsilon.itertuples())  # each once, by growing epsilon
    cells = {(names[row.Index], _column(row)): metric.text(row.mean, row.half_width) for row in points.itertuples()}
    return crossed(names.values(), columns, cells)


def caption(points: pd.DataFrame, runs: pd.DataFrame, budget: Budget | None = None) -> str:
    """Return the caption of one kind, with the assumptions of its epsilon, and what a search's budget covers."""
    axis_runs = _runs_on_axis(points, runs)
    metric, kind = METRICS[common_value(points["metric"])], common_value(points["kind"])
    datasets = " and ".join(DATASETS[name].label for name in axis_runs["dataset"].unique())
    covered = "" if not budget or kind != "certified" else (
        f" The sweep's budget, ε = {budget.epsilon:g} at δ = {budget.delta:g}, covers all of these trials together, "
        "and every choice among them by the scores that they released.")
    return (f"{metric.heading} on {datasets} against "
            f"{epsilon_text(kind, axis_runs, points)}{_formula(points)}: {means_text(points['n'])}"
            f"{best_of(points['choices'].max())}.{covered}")


def _runs_on_axis(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:  # with an ε of its kind and formula
    return runs.loc[tightest(runs, common_value(points["kind"]), common_value(points["formula"])).notna()]


def _formula(points: pd.DataFrame) -> str:
    formula = common_value(points["formula"])
    return f", formula {formula}" if formula else ""


def _notes(points: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    kind, metric = common_value(points["kind"]), METRICS[common_value(points["metric"])]
    axis_runs = _runs_on_axis(points, runs)
    layout = points.attrs["layout"]
    notes = [fixed_text(axis_runs, (*layout.factors, *layout.bound, "setting"))]
    if "epochs" not in layout.factors and axis_runs.groupby("algorithm")["epochs"].nunique().max() > 1:
        epochs = " or ".join(f"{value:g}" for value in sorted(set(axis_runs["epochs"])))
        notes.append(f"Trained for {counted(epochs, 'epoch')}.")
    low, high = points["mean"] - points["half_width"], points["mean"] + points["half_width"]
    if ((low < metric.low) | (high > metric.high)).any():
        notes.append(f"Where an interval would leave {metric.low:g} to {metric.high:g}, its ends are cut there and "
                     "printed: so few seeds say little.")
    notes.append(metric.meaning)
    if n_unmeasured := int(metric.of(axis_runs).isna().sum()):
        notes.append(f"{n_unmeasured} of {len(axis_runs)} trials have no measured {metric.name} and are left out.")
    diverged = axis_runs[axis_runs["status"] == "diverged"]
    if len(diverged):
        notes.append(f"Diverged trials count with the weights they ended with: {_settings(diverged)}.")
    without_epsilon = runs.drop(axis_runs.index)
    if len(without_epsilon):
        notes.append(f"Without a finite {kind} ε and left out: {_settings(without_epsilon)}.")
    return list(filter(None, notes))


def _settings(runs: pd.DataFrame) -> str:
    """Return each algorithm's settings, or their number if they are many: `BP (σ = 0, σ = 0.1), DFA (6 settings)`."""
    parts = []
    for algorithm, group in runs.groupby("algorithm", sort=False):
        labels = list(dict.fromkeys(map(setting_label, group["setting"])))  # each once
        settings = ", ".join(labels) if len(labels) <= SETTINGS_NAMED else f"{len(labels)} settings"
        parts.append(f"{algorithm_labels()[algorithm]} ({settings})")
    return ", ".join(parts)


def _column(row: Any) -> str:  # Any: of `DataFrame.itertuples`
    """Return a column's name: `ε ≤ 3` for a target, which is met to within 1% from below; else the value."""
    target = target_of(row)
    return f"ε ≤ {target}" if target else f"ε = {row.epsilon:.4g}"
