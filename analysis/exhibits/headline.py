"""The headline of a report: the best algorithm at each epsilon, its lead, the cost of choosing, and doubts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.exhibits.doubts.checks import against, examine
from analysis.exhibits.doubts.evidence import NO_FRONTIER, Evidence
from analysis.exhibits.frontier.choice import is_target, price
from analysis.exhibits.frontier.points import GUARANTEED, PRICE, PROTECTED, asked, on_axis, summarized
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.selection import Choice, guarantee_of
from analysis.runs import ALGORITHM_LABELS, DATASET_LABELS
from analysis.statistics import accuracy_error, difference_of
from pipeline.experiment.experiment import Experiment
from pipeline.trials.datasets import DATASETS
from pipeline.trials.naming import COMPOSABLE, counted

MOST = 3  # largest number of epsilons of one kind with a sentence of their own
ROOM = 6  # largest number of sentences in a headline, if possible


def compose(runs: pd.DataFrame, experiment: Experiment, choice: Choice | None = None) -> list[str]:
    """Return sentences on test accuracy: the answer, the cost of choosing, and doubts.

    For each data set and kind of epsilon with a guarantee, they name the algorithm with the highest mean at each
    epsilon. At up to three epsilons (fewer if there are many doubts) they give the lead over the next algorithm, with
    its 95% t interval over seeds (`analysis.statistics.difference_of`). They also give the selected epsilon, which
    covers the choice among settings. Then follow the price of the best trial, and a sentence for each check that fires
    (`doubts.checks`). A comparison that fails a check gets no verdict.

    If the trials of a kind make no frontier (several relations or deltas, or no score to choose by), a sentence tells
    this.

    Args:
        runs: from `load_runs`, the experiment's runs.
        experiment: the experiment.
        choice: the best trial and its price, if known.
    """
    evidence = Evidence.of(runs, experiment)
    doubts = examine(evidence)
    sentences, most = [], min(MOST, max(1, ROOM - 2 - len(doubts)))
    for dataset, part in runs.groupby("dataset", sort=False):
        place = f" on {DATASET_LABELS[dataset]}" if runs["dataset"].nunique() > 1 else ""
        for kind in (kind for kind in GUARANTEED if on_axis(part, kind).notna().any()):
            if reason := evidence.refused.get((dataset, kind)):
                sentences.append(f"No frontier of {kind} ε{place}: {reason}.")
            else:
                sentences += _of_kind(part, evidence, dataset, kind, place, most)
    if (evidence.points["kind"] != NO_FRONTIER).any():
        sentences.append(_price(experiment, choice))
    none = ["No trial has an ε that guarantees anything; what noise there is, is a noise level."]
    return [*(sentences or none), *(doubt.sentence for doubt in doubts)]


def published(choice: Choice, runs: pd.DataFrame, experiment: Experiment) -> list[str]:
    """Return sentences on the trial that a search publishes within its budget, and doubts about it.

    The check for a single seed is left out, as no mean is reported.

    Args:
        choice: the best trial, with the epsilon of the budget.
        runs: from `load_runs`, the experiment's runs.
        experiment: the experiment.
    """
    paid, evidence = choice.selected, Evidence.of(runs, experiment)
    if paid is None:
        raise ValueError(f"choice: must have the epsilon that its budget came to, got none ({choice.reason})")
    alone = dataclasses.replace(evidence, shown=evidence.shown[evidence.shown["trial_key"] == choice.trial_key])
    return [f"For ε = {paid.value:g} at δ = {paid.delta:g}, of all that it released ({PROTECTED['certified']}; "
            f"{choice.standing}), the search publishes {choice.name}: test accuracy {100 * choice.test:.2f}%, chosen "
            f"by its validation accuracy of {100 * choice.validation:.2f}%.",
            *(doubt.sentence for doubt in examine(alone) if doubt.check != "seeds")]


def _of_kind(runs: pd.DataFrame, evidence: Evidence, dataset: str, kind: str, place: str, most: int) -> list[str]:
    """Return sentences on the best algorithm at each epsilon of one kind, and on its lead over the next.

    Args:
        runs: the runs of the data set, from `load_runs`.
        evidence: the runs behind the report's points, for the price of a choice and for the doubts.
        dataset, kind: data set and kind of epsilon.
        place: the data set in words, ` on MNIST`; empty if the report has only one.
        most: largest number of epsilons with a sentence on the lead.
    """
    behind = evidence.shown[(evidence.shown["dataset"] == dataset) & (evidence.shown["kind"] == kind)]
    points = summarized(behind, kind)
    points = points.assign(asked=asked(points)).sort_values("mean", ascending=False, kind="stable")
    what = f"{kind} ε ({PROTECTED[kind]})"
    compared = {epsilon: group for epsilon, group in points.groupby("asked") if group["algorithm"].nunique() > 1}
    if not compared:
        best = points.iloc[0]
        return [f"The highest mean test accuracy{place} under {what} is {_score(best)}, of {_label(best)} at "
                f"ε = {best['epsilon']:.3g}{_cost(points[:1], runs, evidence)}."]
    winners: dict[str, list[str]] = {}
    for epsilon, group in compared.items():
        winners.setdefault(_label(group.iloc[0]), []).append(f"{epsilon:.3g}")
    names = "; ".join(f"{name} at {', '.join(epsilons)}" for name, epsilons in winners.items())
    choices = points["choices"].max()
    chosen = f", each at the best of up to {choices} settings by validation" if choices > 1 else ""
    return [f"Highest mean test accuracy{place} by {what}{chosen}: {names}.",
            *(_lead(compared[epsilon], epsilon, behind, runs, evidence) for epsilon in _told(sorted(compared), most))]


def _told(epsilons: list[float], most: int) -> list[float]:
    """Return at most this many epsilons: the one nearest to 3, and the ends."""
    middle = min(epsilons[1:-1] or epsilons, key=lambda epsilon: abs(np.log(epsilon / 3)))
    ranked = dict.fromkeys([middle, epsilons[0], epsilons[-1], *epsilons])
    return sorted(list(ranked)[:most])


def _lead(group: pd.DataFrame, epsilon: float, behind: pd.DataFrame, runs: pd.DataFrame, evidence: Evidence) -> str:
    """Return the sentence on the lead at one epsilon.

    Example: `At certified ε ≤ 3 (nothing was chosen): BP 85.69 ± 0.26%, ahead of DFA by 0.49 points (95% interval −0.10
    to +1.10, n = 3 seeds, paired by seed; within what seeds explain).`

    Args:
        group: points at this epsilon, the best mean first.
        epsilon: the target, or the epsilon of the points.
        behind: runs of the points, with `value` in percent.
        runs: all runs of the data set.
        evidence: the runs of the report, for doubts about the comparison.
    """
    best = group.drop_duplicates("algorithm")[:2]
    first, second = best.to_dict("records")
    difference, how = difference_of(_by_seed(second, behind), _by_seed(first, behind))
    kind = first["kind"]
    reasons, unknown = against(evidence, behind["dataset"].iloc[0], kind, (first, second))
    # If all seeds have the same small difference, the interval is too narrow: compare with the test set's resolution.
    records = DATASETS[behind["dataset"].iloc[0]].n_test
    resolution = 100 * accuracy_error([], min(first["mean"], 100) / 100, records)  # points
    interval = ""
    if not np.isnan(difference.low):
        low, high = (f"{end:+.2f}".replace("-", "−") for end in (difference.low, difference.high))
        interval = f"95% interval {low} to {high}, n = {difference.n} seeds, {how}; "
    if reasons:
        verdict = f"no verdict: {', '.join(reasons)}"
    elif not difference.low > 0 or (np.isclose(difference.low, difference.high) and difference.mean <= resolution):
        verdict = "within what seeds explain"
    else:
        verdict = "seeds do not explain it, the settings may" if unknown else "beyond what seeds explain"
    return (f"At {kind} ε ≤ {epsilon:.3g}{_cost(best, runs, evidence)}: {_label(first)} {_score(first)}, "
            f"ahead of {_label(second)} by {difference.mean:.2f} points ({interval}{verdict}).")


def _by_seed(point: Mapping[str, Any], runs: pd.DataFrame) -> pd.Series:
    """Return the test accuracies in percent of a point's runs, with their seeds as index."""
    own = ((runs["algorithm"] == point["algorithm"]) & (runs["setting"] == point["setting"])
           & (runs["chosen"] == point["chosen"]))
    return runs[own].set_index("seed")["value"]


def _cost(points: pd.DataFrame, runs: pd.DataFrame, evidence: Evidence) -> str:
    """Return the cost of choosing settings: ` (selected ε 7.15, which covers the choice)`, ` (nothing was chosen)`.

    Args:
        points: the compared points, of one kind of epsilon.
        runs: all runs of the data set.
        evidence: the runs of the report, with the candidates of every choice.
    """
    if points["choices"].max() == 1:
        return " (no ε covers the search)" if evidence.experiment.search else " (nothing was chosen)"
    kind, search, costs = points["kind"].iloc[0], evidence.experiment.search, []
    if kind in COMPOSABLE and not (search and (search.adaptive or evidence.experiment.budget)):
        tried = evidence.tried[(evidence.tried["kind"] == kind) & evidence.tried["algorithm"].isin(points["algorithm"])]
        if points["setting"].map(is_target).all():
            tried = tried[tried["setting"].isin(points["setting"])]
        costs = price(points, runs.loc[runs.index.intersection(tried.index)])[PRICE]
    if not len(costs) or not np.isfinite(costs).all():
        return " (no ε covers the choice of settings)"
    return f" (selected ε {' and '.join(dict.fromkeys(f'{cost:.3g}' for cost in costs))}, which covers the choice)"


def _price(experiment: Experiment, choice: Choice | None) -> str:
    """Return the cost of the best trial, and a remark on uncovered runs before the sweep."""
    if choice and choice.selected:
        trials = f"{choice.trials} " if choice.trials else ""
        kind = guarantee_of(choice)
        what = (f"{kind.capitalize()} ε is of one trial; to publish the best of all {trials}{kind} trials costs "
                f"selected ε = {choice.selected.value:.3g} in the place of {choice.alone.value:.3g}")
    elif choice:
        what = (f"{guarantee_of(choice).capitalize()} ε is of one trial, and none covers the choice of the best: "
                f"{choice.reason}")
    else:
        what = "Each ε is of one trial; the choice of the best was not paid for"
    before = ""
    if experiment.chosen and experiment.chosen.runs:
        before = f"; no ε covers the {counted(experiment.chosen.runs, 'run')} that chose the settings"
    elif experiment.preset:
        before = f"; no ε covers the runs that chose the settings of {experiment.preset}"
    return f"{what}{before}."


def _label(row: pd.Series | Mapping[str, Any]) -> str:
    return ALGORITHM_LABELS[row["algorithm"]]


def _score(row: pd.Series | Mapping[str, Any]) -> str:
    return f"{METRICS['accuracy'].text(row['mean'], row['half_width'])}%"
