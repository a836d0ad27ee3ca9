"""A frontier as an exhibit: figure, means, chosen settings, and the assumptions of its epsilons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.exhibits.exhibit import Exhibit, Texts, to_csv
from analysis.exhibits.frontier import choice, imported
from analysis.exhibits.frontier.figure import comparable, plot
from analysis.exhibits.frontier.fit import FRONTIERS
from analysis.exhibits.frontier.points import (
    COLUMNS,
    GUARANTEED,
    PRICE,
    frontiers,
    hypervolumes,
    on_axis,
    target_of,
)
from analysis.exhibits.metrics import METRICS, Metric
from analysis.exhibits.table import Table
from analysis.runs import ALGORITHM_LABELS, DATASET_LABELS, noise_sources, setting_label
from analysis.statistics import SUMMARY
from analysis.style import present
from analysis.text import NO_VALUE, best_of, epsilon_text, means_text
from pipeline.accounting.noise import standing
from pipeline.experiment.budget import Budget
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.references import Reference
from pipeline.tracking.reader import Reader
from pipeline.trials.naming import COMPOSABLE, counted
from pipeline.trials.trainer import is_stated

TITLES = {"frontier": "Accuracy against ε", "frontier_worst_class": "Accuracy of the worst class against ε",
          "frontier_alignment": "Alignment against ε",
          "frontier_claimed": "Accuracy against the ε that is claimed: no guarantee"}
SETTINGS_NAMED = 3  # largest number of an algorithm's settings in a note


def of_experiment(runs: pd.DataFrame, *, name: str, experiment: Experiment, store: Reader | None) -> Exhibit:
    """Call `draw` with the experiment's references, budget and imported results."""
    shown = name == imported.SHOWN_BY and experiment.imports
    results = imported.load(store, experiment.imports) if shown and store else imported.NONE
    adaptive = bool(experiment.search and (experiment.search.adaptive or experiment.budget))
    return draw(runs, name=name, references=experiment.references, budget=experiment.budget, by_scores=adaptive,
                results=results)


def draw(runs: pd.DataFrame, *, name: str, references: Sequence[Reference] = (),
         budget: Budget | None = None, by_scores: bool = False, results: pd.DataFrame = imported.NONE) -> Exhibit:
    """Make one of the exhibits in `TITLES`, with dominated areas and comparable published results.

    Errors as in `frontiers`.

    Args:
        runs: from `load_runs`.
        name: key of `TITLES`.
        references: published results, marked if comparable.
        budget: the sweep's budget, if it has one; a note tells what it covers.
        by_scores: whether trials were suggested by scores of others; composition is then no price of a choice.
        results: imported results (`imported.load`), marked if comparable.
    """
    claimed = name == "frontier_claimed"
    points = frontiers(runs, *(("accuracy", ["claimed"]) if claimed else (FRONTIERS[name], GUARANTEED)))
    if by_scores:
        points = [frame.drop(columns=PRICE, errors="ignore") for frame in points]
    areas = to_csv(hypervolumes(points, runs).round({"hypervolume": 4}))
    others = imported.against(results, points, runs["dataset"].iloc[0])
    marked, told = imported.comparable(others), texts(points, runs, references, budget)
    told = told._replace(more=(*imported.table(marked), *told.more), notes=(*told.notes, *imported.notes(others)))
    rows = tidy([*points, marked], ["source"]) if len(marked) else tidy(points)
    return Exhibit(name, TITLES[name], told, rows, plot(points, references, marked),
                   {f"{name}_hypervolume.csv": areas})


def tidy(points: Sequence[pd.DataFrame], also: Sequence[str] = ()) -> pd.DataFrame:
    """Return the points of all kinds as written to a file, one row each; `also` has further columns."""
    table = pd.concat(points)
    priced = [PRICE] if PRICE in table else []
    return table[[*COLUMNS, *priced, *also]].round(dict.fromkeys(["epsilon", *priced, *SUMMARY], 4))


def texts(points: Sequence[pd.DataFrame], runs: pd.DataFrame, references: Sequence[Reference] = (),
          budget: Budget | None = None) -> Texts:
    """Return a caption and a table of means per kind, then tables of chosen settings and dominated areas, and notes.

    The tables of means have algorithms as rows and epsilons as columns.

    Args:
        points: points of each kind of epsilon, from `frontiers`.
        runs: the trials behind them.
        references: published results that a note names if they are comparable.
        budget: the sweep's budget, if it has one.
    """
    volumes, letters = hypervolumes(points, runs), choice.letters(pd.concat(points))
    body: list[str | Table] = []
    more: list[str | Table] = []
    kinds_by_note: dict[str, list[str]] = {}
    for frame, (_, areas) in zip(points, volumes.groupby(["kind", "formula"], sort=False), strict=True):
        body += [caption(frame, runs), _means(frame)]
        more += [*_chosen(frame, letters), *_areas(areas)]
        for note in _notes(frame, runs, references, budget):
            kinds_by_note.setdefault(note, []).append(_what(frame))
    notes: list[str] = []
    for note, kinds in kinds_by_note.items():
        if len(kinds) == len(points):  # it holds for all kinds
            notes.append(note)
        else:
            notes += [f"{kind}: {note}" for kind in kinds]
    return Texts(tuple(body), tuple(more), tuple(notes))


def caption(points: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Return the caption of one kind, with the assumptions of its epsilon.

    Args:
        points: points of one kind of epsilon.
        runs: all trials of the report.
    """
    first, kept = points.iloc[0], _kept(points, runs)
    phrase = METRICS[first["metric"]].phrase
    stands = standing(noise_sources(kept).dropna()) if first["kind"] in GUARANTEED else ""
    epsilon = epsilon_text(first["kind"], points["relation"], points["sampler"], points["delta"], stands)
    return (f"{phrase[0].upper()}{phrase[1:]} on {DATASET_LABELS[kept['dataset'].iloc[0]]} against {epsilon}"
            f"{_formula(points)}: {means_text(points['n'])}{best_of(points['choices'].max())}.")


def _kept(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that have the epsilon of these points."""
    return runs.loc[on_axis(runs, points["kind"].iloc[0], points["formula"].iloc[0]).notna()]


def _what(points: pd.DataFrame) -> str:
    """Return the kind of epsilon as text: `label ε`, `claimed ε, formula saturating/epochs`."""
    return f"{points['kind'].iloc[0]} ε{_formula(points)}"


def _formula(points: pd.DataFrame) -> str:
    formula = points["formula"].iloc[0]
    return f", formula {formula}" if formula else ""


def _notes(points: pd.DataFrame, runs: pd.DataFrame, references: Sequence[Reference],
           budget: Budget | None) -> list[str]:
    """Return notes on the points of one kind.

    Args:
        points: points of one kind of epsilon.
        runs: all trials of the report.
        references, budget: as in `texts`.
    """
    kind, kept = points["kind"].iloc[0], _kept(points, runs)
    epochs = counted(" or ".join(f"{value:g}" for value in sorted(set(kept["epochs"]))), "epoch")
    return [f"Trained for {epochs}.", *_stated(points), _front(points), *_covered(kind, budget), *_cut(points),
            *_unmeasured(METRICS[points["metric"].iloc[0]], kept), *_ended_early(kept), *_left_out(runs, kept, kind),
            *_published(points, references)]


def _stated(points: pd.DataFrame) -> list[str]:
    """Return a sentence on points with an epsilon that a trainer states."""
    names = [ALGORITHM_LABELS[algorithm] for algorithm in present(points) if is_stated(algorithm)]
    return [f"With stars: ε is what the {'trainers state' if len(names) > 1 else 'trainer states'}, accounted for here "
            f"and checked by nobody ({', '.join(names)})."] if names else []


def _covered(kind: str, budget: Budget | None) -> list[str]:
    if budget is None or kind not in COMPOSABLE:
        return []
    return [f"The sweep's budget, ε = {budget.epsilon:g} at δ = {budget.delta:g}, covers all of these trials together, "
            "and every choice among them by the scores that they released."]


def _unmeasured(metric: Metric, kept: pd.DataFrame) -> list[str]:
    lost = int(metric.of(kept).isna().sum())
    return [*filter(None, [metric.meaning]),
            *([f"{lost} of {len(kept)} trials have no measured {metric.name} and are left out."] if lost else [])]


def _left_out(runs: pd.DataFrame, kept: pd.DataFrame, kind: str) -> list[str]:
    """Return a sentence on trials without a finite epsilon of this kind, if there are any."""
    absent = runs.drop(kept.index)
    return [] if absent.empty else [f"Without a finite {kind} ε and left out: {_settings(absent)}."]


def _settings(runs: pd.DataFrame) -> str:
    """Return each algorithm's settings, or their number if they are many: `BP (σ = 0, σ = 0.1), DFA (6 settings)`."""
    texts = []
    for algorithm, group in runs.groupby("algorithm", sort=False):
        labels = list(dict.fromkeys(map(setting_label, group["setting"])))
        listed = ", ".join(labels) if len(labels) <= SETTINGS_NAMED else f"{len(labels)} settings"
        texts.append(f"{ALGORITHM_LABELS[algorithm]} ({listed})")
    return ", ".join(texts)


def _means(points: pd.DataFrame) -> Table:
    """Return the table of means of one kind of epsilon: algorithms as rows, epsilons as columns, smallest first."""
    by_column = points.assign(column=[_column(row) for row in points.itertuples()])
    by_column = by_column.sort_values("epsilon", kind="stable")
    columns = list(dict.fromkeys(by_column["column"]))
    metric = METRICS[points["metric"].iloc[0]]
    cells = {(row.algorithm, row.column): metric.text(row.mean, row.half_width)
             for row in by_column.itertuples()}
    rows = ([ALGORITHM_LABELS[a], *(cells.get((a, c), NO_VALUE) for c in columns)] for a in present(points))
    return Table.of(["", *columns], rows)


def _published(points: pd.DataFrame, references: Sequence[Reference]) -> list[str]:
    """Return a sentence on the published results that the panel marks."""
    marked = comparable(points, references)
    return [] if not marked else ["Published by others, and marked: " + "; ".join(
        f"{r.source}, {r.accuracy:g}% at ε = {r.epsilon:g}, δ = {r.delta:g}" for r in marked) + "."]


def _chosen(points: pd.DataFrame, letters: Mapping[str, str]) -> list[str | Table]:
    """Return a caption and a table of the settings that differ along a curve, and whether they were chosen."""
    if not points["chosen"].any():
        return []
    text = "What was chosen at every point, by mean validation accuracy over seeds"
    if points["choices"].max() == 1:
        text = "Settings that differ between the points of a curve, each trained with one of them"
    if PRICE in points:
        text += ("; selected ε composes all trials that were compared for it, seeds included. Scores without noise and "
                 "the choice among algorithms are not covered")
    text += "."
    return [text, choice.table(points, [_column(row) for row in points.itertuples()], letters)]


def _areas(volumes: pd.DataFrame) -> tuple[str, Table]:
    """Return a caption and a table of the dominated areas of one kind, largest first."""
    first = volumes.iloc[0]
    names = [ALGORITHM_LABELS.get(a, "all together") for a in volumes["algorithm"]]
    row = [first["metric"].replace("_", " "), *(f"{value:.4g}" for value in volumes["hypervolume"])]
    return (f"Hypervolume, {first['kind']} ε: area between the means and the reference point (ε = "
            f"{first['reference_epsilon']:g}, {first['reference_value']:g}), in units of the metric times nats of ln "
            "ε; larger is better.",
            Table.of(["hypervolume", *names], [row]))


def _column(row: Any) -> str:  # Any: of `DataFrame.itertuples`
    """Return a column's name: `ε ≤ 3` for a target, which is met to within 1% from below; else the value."""
    target = target_of(row)
    return f"ε ≤ {target}" if target else f"ε = {row.epsilon:.4g}"


def _cut(points: pd.DataFrame) -> list[str]:
    """Return a sentence on intervals that leave the metric's range, if there are any."""
    metric = METRICS[points["metric"].iloc[0]]
    wide = (points["mean"] - points["half_width"] < metric.low) | (points["mean"] + points["half_width"] > metric.high)
    return [] if not wide.any() else [f"Where an interval would leave {metric.low:g} to {metric.high:g}, its ends are "
                                      "cut there and printed: so few seeds say little."]


def _ended_early(runs: pd.DataFrame) -> list[str]:
    """Return sentences on trials that diverged or were stopped, and how they count; empty if all trials finished."""
    diverged, stopped = (runs[runs["status"] == status] for status in ("diverged", "stopped"))
    found = []
    if len(diverged):
        found.append(f"Diverged trials count with the weights they ended with: {_settings(diverged)}.")
    if len(stopped):
        found.append(f"{counted(len(stopped), 'trial')} stopped early, as others were better; each counts with the "
                     "weights it ended with and with the ε of all its epochs, as accuracies decided when it ends.")
    return found


def _front(points: pd.DataFrame) -> str:
    best = points[points["on_overall_front"]]
    names = [f"{ALGORITHM_LABELS[algorithm]} at {', '.join(_column(row) for row in group.itertuples())}"
             for algorithm, group in best.groupby("algorithm", sort=False)]
    return f"On the Pareto front of these means, points with a target compared by it: {'; '.join(names)}."
