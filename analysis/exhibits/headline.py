"""The headline of a report: the best algorithm at each epsilon, its lead, the cost of choosing, and doubts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.exhibits.doubts.checks import against, examine
from analysis.exhibits.doubts.evidence import NO_FRONTIER, Evidence
from analysis.exhibits.frontier.choice import is_chosen, price
from analysis.exhibits.frontier.points import PRICE, compared_epsilon, summarized, tightest
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.selection import Choice
from analysis.runs import ALGORITHM_LABELS, DATASET_LABELS, common_value
from analysis.statistics import MeanInterval, accuracy_error, difference_of
from pipeline.experiment.experiment import Experiment
from pipeline.trials.datasets import DATASETS
from pipeline.trials.kinds import GUARANTEED, KINDS
from pipeline.trials.naming import counted
from pipeline.trials.ranking import is_difference, who_leads

MAX_LEADS = 3  # largest number of epsilons of one kind with a sentence of their own
TYPICAL_EPSILON = 3  # of the epsilons with a sentence, one is near this
MAX_SENTENCES = 6  # largest number of sentences in a headline, if possible


def compose(runs: pd.DataFrame, experiment: Experiment, choice: Choice | None = None) -> list[str]:
    """Return the headline of a report, sentences on test accuracy: the answer, the cost of choosing, and doubts.

    For each data set and kind of epsilon with a guarantee, they name the algorithm with the highest mean at each
    epsilon. At up to three epsilons (fewer if there are many doubts) they give the lead over the next algorithm and the
    selected epsilon, which covers the choice among settings. Then follow the price of the best trial, and a sentence
    for each check that fires (`doubts.checks`). A comparison that fails a check gets no verdict.
    """
    evidence = Evidence.of(runs, experiment)
    doubts = examine(evidence)
    # Of all sentences, two are the answer and the cost of choosing, and every doubt has one.
    max_leads = min(MAX_LEADS, max(1, MAX_SENTENCES - 2 - len(doubts)))
    sentences = []
    for dataset, dataset_runs in runs.groupby("dataset", sort=False):
        place = f" on {DATASET_LABELS[dataset]}" if runs["dataset"].nunique() > 1 else ""
        for kind in GUARANTEED:
            if tightest(dataset_runs, kind).isna().all():
                continue
            reason = evidence.refused.get((dataset, kind))
            if reason:
                sentences.append(f"No frontier of {kind} ε{place}: {reason}.")
            else:
                sentences += _answer(evidence, dataset=dataset, kind=kind, place=place, max_leads=max_leads)
    if (evidence.points["kind"] != NO_FRONTIER).any():
        sentences.append(_price(experiment, choice))
    if not sentences:
        sentences = ["No trial has an ε that guarantees anything; what noise there is, is a noise level."]
    return [*sentences, *(doubt.sentence for doubt in doubts)]


def published(choice: Choice, runs: pd.DataFrame, experiment: Experiment) -> list[str]:
    """Return sentences on the trial that a search publishes within its budget, and doubts about it.

    The check for a single seed is left out, as no mean is reported.
    """
    spent = choice.selected
    if spent is None:
        raise ValueError(f"choice: must have the epsilon of its budget, got none ({choice.reason})")
    evidence = Evidence.of(runs, experiment)
    is_best = evidence.shown["trial_key"] == choice.trial_key
    doubts = examine(dataclasses.replace(evidence, shown=evidence.shown[is_best]))
    equals = f", as {counted(choice.equals, 'other')} had" if choice.equals else ""
    return [f"For ε = {spent.value:g} at δ = {spent.delta:g}, of all that it released ({KINDS['certified'].protects}; "
            f"{choice.standing}), the search publishes {choice.name}: test accuracy {100 * choice.test:.2f}%, chosen "
            f"by its validation accuracy of {100 * choice.validation:.2f}%{equals}.",
            *(doubt.sentence for doubt in doubts if doubt.check != "seeds")]


def _answer(evidence: Evidence, *, dataset: str, kind: str, place: str, max_leads: int) -> list[str]:
    """Return sentences on the best algorithm at each epsilon of one kind, and on its lead over the next.

    `place` is the data set in words, ` on MNIST`; empty if the report has only one.
    """
    point_runs = evidence.shown[(evidence.shown["dataset"] == dataset) & (evidence.shown["kind"] == kind)]
    points = summarized(point_runs, kind)
    points = points.assign(compared_epsilon=compared_epsilon(points))
    points = points.sort_values("mean", ascending=False, kind="stable")
    kind_text = f"{kind} ε ({KINDS[kind].protects})"
    # Only at an epsilon with points of several algorithms is there a comparison.
    compared = {epsilon: group for epsilon, group in points.groupby("compared_epsilon")
                if group["algorithm"].nunique() > 1}
    if not compared:
        best = points[~(points["mean"].max() - points["mean"]).map(is_difference)]  # the first, and all equal to it
        scores = "; ".join(f"{_score(point)}, of {_label(point)} at ε = {point['epsilon']:.3g}"
                           for point in best[:MAX_LEADS].to_dict("records"))
        equal = ": no difference" if len(best) > 1 else ""
        return [f"The highest mean test accuracy{place} under {kind_text} is {scores}"
                f"{_cost(best[:MAX_LEADS], dataset, evidence)}{equal}."]
    winners: dict[str, list[str]] = {}  # algorithm that is ahead, or equal ones -> epsilons
    for epsilon, group in compared.items():
        means = {_label(point): point["mean"] for point in group.drop_duplicates("algorithm").to_dict("records")}
        winners.setdefault(who_leads(means), []).append(f"{epsilon:.3g}")
    names = "; ".join(f"{name} at {', '.join(epsilons)}" for name, epsilons in winners.items())
    choices = points["choices"].max()
    chosen = f", each at the best of up to {choices} settings by validation" if choices > 1 else ""
    return [f"Highest mean test accuracy{place} by {kind_text}{chosen}: {names}.",
            *(_lead(compared[epsilon], epsilon, point_runs, evidence)
              for epsilon in _representative(sorted(compared), max_leads))]


def _representative(epsilons: list[float], limit: int) -> list[float]:
    """Return at most `limit` of these sorted epsilons: first the inner one nearest to 3, then the two ends."""
    inner = epsilons[1:-1] or epsilons
    middle = min(inner, key=lambda epsilon: abs(np.log(epsilon / TYPICAL_EPSILON)))
    by_priority = list(dict.fromkeys([middle, epsilons[0], epsilons[-1], *epsilons]))  # each once
    return sorted(by_priority[:limit])


def _lead(group: pd.DataFrame, epsilon: float, point_runs: pd.DataFrame, evidence: Evidence) -> str:
    """Return the sentence on the lead of the best algorithm over the next one, at one epsilon, or that it has none.

    Example: `At certified ε ≤ 3 (nothing was chosen): BP 85.69 ± 0.26%, ahead of DFA by 0.49 points (95% interval −0.10
    to +1.10, n = 3 seeds, paired by seed; within what seeds explain).` The points of `group` are sorted by their mean.
    """
    best_two = group.drop_duplicates("algorithm")[:2]
    first, second = best_two.to_dict("records")
    difference, pairing = difference_of(_by_seed(second, point_runs), _by_seed(first, point_runs))
    dataset, kind = common_value(point_runs["dataset"]), first["kind"]
    at = f"At {kind} ε ≤ {epsilon:.3g}{_cost(best_two, dataset, evidence)}: "
    notes = []
    if not np.isnan(difference.low):
        low, high = (f"{end:+.2f}".replace("-", "−") for end in (difference.low, difference.high))
        notes.append(f"95% interval {low} to {high}, n = {difference.n} seeds, {pairing}")
    reasons, unknown_origin = against(evidence, dataset, kind, (first, second))
    verdict = f"no verdict: {', '.join(reasons)}" if reasons else _verdict(difference, first, dataset, unknown_origin)
    if is_difference(difference.mean):
        return (f"{at}{_label(first)} {_score(first)}, ahead of {_label(second)} by {difference.mean:.2f} points "
                f"({'; '.join([*notes, verdict])}).")
    in_brackets = "; ".join([*notes, *([verdict] if reasons else [])])
    return (f"{at}no difference between {_label(first)} {_score(first)} and {_label(second)} {_score(second)}"
            f"{in_brackets and f' ({in_brackets})'}.")


def _verdict(difference: MeanInterval, first: Mapping[str, Any], dataset: str, unknown_origin: bool) -> str:
    """Return what explains the lead of the point `first` over the next: seeds, or perhaps settings of no known origin.

    If all seeds have the same small difference, the interval is too narrow: the test set's resolution decides.
    """
    resolution = 100 * accuracy_error([], min(first["mean"], 100) / 100, DATASETS[dataset].n_test)  # points
    is_unresolved = np.isclose(difference.low, difference.high) and difference.mean <= resolution
    if not difference.low > 0 or is_unresolved:
        return "within what seeds explain"
    return "seeds do not explain it, the settings may" if unknown_origin else "beyond what seeds explain"


def _by_seed(point: Mapping[str, Any], runs: pd.DataFrame) -> pd.Series:
    """Return seed -> test accuracy in percent of a point's runs."""
    is_of_point = ((runs["algorithm"] == point["algorithm"]) & (runs["setting"] == point["setting"])
                   & (runs["chosen"] == point["chosen"]))
    return runs[is_of_point].set_index("seed")["value"]


def _cost(points: pd.DataFrame, dataset: str, evidence: Evidence) -> str:
    """Return the cost of choosing settings: ` (selected ε 7.15, which covers the choice)`, ` (nothing was chosen)`."""
    kind, plan, past = common_value(points["kind"]), evidence.experiment.plan, evidence.experiment.past
    if not is_chosen(points, past):
        return " (no ε covers the search)" if plan.asks else " (nothing was chosen)"
    # Composition needs certified epsilons, and trials that were not suggested by the scores of others.
    if kind != "certified" or plan.by_scores or past.by_scores:
        return " (no ε covers the choice of settings)"
    tried = evidence.tried[(evidence.tried["kind"] == kind) & (evidence.tried["dataset"] == dataset)]
    costs = price(points, tried, past)[PRICE]
    if not np.isfinite(costs).all():
        return " (no ε covers the choice of settings)"
    distinct_costs = dict.fromkeys(f"{cost:.3g}" for cost in costs)
    return f" (selected ε {' and '.join(distinct_costs)}, which covers the choice)"


def _price(experiment: Experiment, choice: Choice | None) -> str:
    """Return a sentence on the privacy cost of publishing the best trial, and on uncovered runs before the sweep."""
    if choice and choice.selected:
        number = f"{choice.trials + choice.gone} " if choice.trials else ""
        cost = (f"Certified ε is of one trial; to publish the best of all {number}certified trials costs selected ε = "
                f"{choice.selected.value:.3g} in the place of {choice.alone.value:.3g}")
    elif choice:
        cost = f"Certified ε is of one trial, and none covers the choice of the best: {choice.reason}"
    else:
        cost = "Each ε is of one trial; the choice of the best was not paid for"
    earlier_runs = ""
    if experiment.chosen and experiment.chosen.runs:
        earlier_runs = f"; no ε covers the {counted(experiment.chosen.runs, 'run')} that chose the settings"
    elif experiment.preset:
        earlier_runs = "; no ε covers the runs that chose the settings of the preset"
    return f"{cost}{earlier_runs}."


def _label(row: pd.Series | Mapping[str, Any]) -> str:
    return ALGORITHM_LABELS[row["algorithm"]]


def _score(row: pd.Series | Mapping[str, Any]) -> str:
    """Return a point's mean test accuracy with its interval as text, in percent."""
    return f"{METRICS['accuracy'].text(row['mean'], row['half_width'])}%"
