"""A frontier as an exhibit: what its epsilons guarantee in words, its means, and what was chosen, below its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.exhibits.exhibit import Exhibit, to_csv
from analysis.exhibits.frontier import choice
from analysis.exhibits.frontier.figure import comparable, plot
from analysis.exhibits.frontier.points import (
    COLUMNS,
    GUARANTEED,
    PRICE,
    formula_text,
    frontiers,
    hypervolumes,
    target_of,
    tightest,
)
from analysis.exhibits.metrics import METRICS, Metric
from analysis.exhibits.table import Table
from analysis.runs import ALGORITHM_LABELS, DATASET_LABELS, noise_sources, setting_label
from analysis.statistics import SUMMARY
from analysis.style import present
from analysis.text import NO_VALUE, ONE_SEED, n_seeds
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.accounting.noise import noise_statement
from pipeline.trials.budget import Budget
from pipeline.trials.exhibits import FRONTIERS
from pipeline.trials.naming import counted
from pipeline.trials.references import Reference

TITLES = {"frontier": "Accuracy against ε", "frontier_worst_class": "Accuracy of the worst class against ε",
          "frontier_alignment": "Alignment against ε",
          "frontier_claimed": "Accuracy against the ε that is claimed: no guarantee"}
NEIGHBOURS = {"add/remove": "one record, added or removed", "replace-one": "one record, replaced",
              LABEL_RELATION: "the label of one record"}
SETTINGS_NAMED = 3  # of an algorithm, in a caption
MEANINGS = {
    "certified": (
        "ε certifies the whole run: between two training sets that are equal but for {neighbours}, whoever sees all "
        "weights of every step, and knows all else but the noise, tells them apart no better than "
        "(ε, δ)-differential privacy permits. It covers one trial each, not the choice among trials; {noise}."),
    "label": (
        "ε protects labels alone: between two training sets that are equal but for {neighbours}, whoever sees all "
        "weights of every step tells them apart no better than (ε, δ)-differential privacy permits. Features count as "
        "public: of them, or of whether a record took part, nothing is guaranteed. It covers one trial each, not the "
        "choice among trials; {noise}."),
    "claimed": (
        "This ε is no guarantee: it is the value of a formula printed in Ohana et al. 2021 ({formula}), whatever of "
        "its assumptions these trials meet, and one observed update can tell who was in its batch at any σ. It can be "
        "compared with the paper's claims and with nothing else."),
}


def draw(runs: pd.DataFrame, *, name: str, references: Sequence[Reference] = (),
         budget: Budget | None = None, by_scores: bool = False) -> Exhibit:
    """One of `TITLES`, with the areas that its means dominate, and published results where they can be compared; of
    trials under a budget it says what that covers. Errors as `frontiers`.

    Args:
        by_scores: whether trials were asked for by the scores of others, of which composition is no price.
    """
    claimed = name == "frontier_claimed"
    points = frontiers(runs, *(("accuracy", ["claimed"]) if claimed else (FRONTIERS[name], GUARANTEED)))
    if by_scores:
        points = [frame.drop(columns=PRICE, errors="ignore") for frame in points]
    areas = to_csv(hypervolumes(points, runs).round({"hypervolume": 4}))
    return Exhibit(name, TITLES[name], body(points, runs, references, budget), tidy(points), plot(points, references),
                   {f"{name}_hypervolume.csv": areas})


def tidy(points: Sequence[pd.DataFrame], also: Sequence[str] = ()) -> pd.DataFrame:
    """The points of all kinds, one row each, as they are written; `also` are further columns."""
    table = pd.concat(points)
    priced = [PRICE] if PRICE in table else []
    return table[[*COLUMNS, *priced, *also]].round(dict.fromkeys(["epsilon", *priced, *SUMMARY], 4))


def body(points: Sequence[pd.DataFrame], runs: pd.DataFrame,
         references: Sequence[Reference] = (), budget: Budget | None = None) -> tuple[str | Table, ...]:
    """Per kind a caption, a table with algorithms as rows, epsilons as columns and means as cells, published results,
    and the dominated areas."""
    volumes, letters = hypervolumes(points, runs), choice.letters(pd.concat(points))
    parts = []
    for frame, (_, areas) in zip(points, volumes.groupby(["kind", "formula"], sort=False), strict=True):
        parts += [caption(frame, runs, budget), _means(frame), *_published(frame, references), *_chosen(frame, letters),
                  *_areas(areas)]
    return tuple(parts)


def caption(points: pd.DataFrame, runs: pd.DataFrame, budget: Budget | None = None) -> str:
    """What a reader must know of the points of one kind: what their epsilon guarantees, and what it does not."""
    first = points.iloc[0]
    metric = METRICS[first["metric"]]
    neighbours, samplers = NEIGHBOURS[first["relation"]], " or ".join(sorted(set(points["sampler"])))
    kept = runs.loc[tightest(runs, first["kind"], first["formula"]).notna()]
    epochs = counted(" or ".join(f"{value:g}" for value in sorted(set(kept["epochs"]))), "epoch")
    head = (f"{metric.phrase[0].upper()}{metric.phrase[1:]} on {DATASET_LABELS[kept['dataset'].iloc[0]]} after "
            f"{epochs} against {first['kind']} ε{formula_text(first['formula'])} at δ = {first['delta']:g} "
            f"(relation {first['relation']}, sampler {samplers}).")
    meaning = MEANINGS[first["kind"]].format(neighbours=neighbours, formula=first["formula"],
                                             noise=noise_statement(noise_sources(kept).dropna()))
    return " ".join([head, meaning, *_covered(first["kind"], budget), _uncertainty(points),
                     *_unmeasured(metric, kept), *_ended_early(kept), *_envelope(points),
                     *_left_out(runs, kept, first["kind"]), _front(points)])


def _covered(kind: str, budget: Budget | None) -> list[str]:
    if budget is None or kind != "certified":
        return []
    return [f"The sweep's budget, ε = {budget.epsilon:g} at δ = {budget.delta:g}, covers all of these trials together, "
            "and every choice among them by the scores that they released."]


def _envelope(points: pd.DataFrame) -> list[str]:
    most = points["choices"].max()
    return [] if most == 1 else [f"Envelope: a point is the best of up to {most} settings by validation accuracy; its "
                                 "ε does not cover that choice."]


def _unmeasured(metric: Metric, kept: pd.DataFrame) -> list[str]:
    lost = int(metric.of(kept).isna().sum())
    return [f"{lost} of {len(kept)} trials have no measured {metric.name} and are left out."] if lost else []


def _left_out(runs: pd.DataFrame, kept: pd.DataFrame, kind: str) -> list[str]:
    """A sentence on the trials that have no finite epsilon of this kind, if there are any."""
    absent = runs.drop(kept.index)
    return [] if absent.empty else [f"Without a finite {kind} ε and left out: {_settings(absent)}."]


def _settings(runs: pd.DataFrame) -> str:
    """`BP (σ = 0, σ = 0.1), DFA (6 settings)`: the settings of each algorithm, or how many where there are more."""
    texts = []
    for algorithm, group in runs.groupby("algorithm", sort=False):
        labels = list(dict.fromkeys(map(setting_label, group["setting"])))
        listed = ", ".join(labels) if len(labels) <= SETTINGS_NAMED else f"{len(labels)} settings"
        texts.append(f"{ALGORITHM_LABELS[algorithm]} ({listed})")
    return ", ".join(texts)


def _means(points: pd.DataFrame) -> Table:
    by_column = points.assign(column=[_column(row) for row in points.itertuples()])
    by_column = by_column.sort_values("epsilon", kind="stable")
    columns = list(dict.fromkeys(by_column["column"]))
    metric = METRICS[points["metric"].iloc[0]]
    cells = {(row.algorithm, row.column): metric.text(row.mean, row.half_width)
             for row in by_column.itertuples()}
    rows = ([ALGORITHM_LABELS[a], *(cells.get((a, c), NO_VALUE) for c in columns)] for a in present(points))
    return Table.of(["", *columns], rows)


def _published(points: pd.DataFrame, references: Sequence[Reference]) -> list[str]:
    """The published results that the panel marks, as they were printed."""
    marked = comparable(points, references)
    return [] if not marked else ["Published by others, and marked: " + "; ".join(
        f"{r.source}, {r.accuracy:g}% at ε = {r.epsilon:g}, δ = {r.delta:g}" for r in marked) + "."]


def _chosen(points: pd.DataFrame, letters: Mapping[str, str]) -> list[str | Table]:
    """The settings in which points of a curve differ, and whether they stand for others that are not shown."""
    if not points["chosen"].any():
        return []
    text = "What was chosen at every point, by mean validation accuracy over seeds."
    if points["choices"].max() == 1:
        text = "Settings in which the points of a curve differ, one of them at a point: none stands for others."
    if PRICE in points:
        text += (" Selected ε covers the choice as well: it composes all trials that were compared for a point, "
                 "seeds included. It does not cover the validation scores unless they were released with noise, nor "
                 "the choice among algorithms. Trials of one recorded seed share noise and batches, which composing "
                 "them as independent does not describe.")
    return [text, choice.table(points, [_column(row) for row in points.itertuples()], letters)]


def _areas(volumes: pd.DataFrame) -> tuple[str, Table]:
    """The dominated areas of one kind, largest first."""
    first = volumes.iloc[0]
    names = [ALGORITHM_LABELS.get(a, "all together") for a in volumes["algorithm"]]
    row = [first["metric"].replace("_", " "), *(f"{value:.4g}" for value in volumes["hypervolume"])]
    return (f"Hypervolume: area between the means and the reference point (ε = {first['reference_epsilon']:g}, "
            f"{first['reference_value']:g}), in units of the metric times nats of ln ε; larger is better.",
            Table.of(["hypervolume", *names], [row]))


def _column(row: tuple) -> str:
    """`ε ≤ 3` for a target, which is met to within 1% from below; else the value."""
    target = target_of(row)
    return f"ε ≤ {target}" if target else f"ε = {row.epsilon:.4g}"


def _uncertainty(points: pd.DataFrame) -> str:
    if points["n"].max() == 1:
        return ONE_SEED
    return (f"Mean over {n_seeds(points['n'])}; ± and thin bars are 95% t intervals over seeds, thick bars 95% "
            "percentile bootstrap intervals, which up to three seeds are their range"
            f"{'' if points['n'].min() > 1 else '; none where n = 1'}.{_cut(points)}")


def _cut(points: pd.DataFrame) -> str:
    """A sentence on intervals that are wider than what the metric can be, where there are any."""
    metric = METRICS[points["metric"].iloc[0]]
    wide = (points["mean"] - points["half_width"] < metric.low) | (points["mean"] + points["half_width"] > metric.high)
    return "" if not wide.any() else (f" Where an interval would leave {metric.low:g} to {metric.high:g}, its ends are "
                                      "cut there and printed: so few seeds say little.")


def _ended_early(runs: pd.DataFrame) -> list[str]:
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
