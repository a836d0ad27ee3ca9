"""What a report says first: one verdict, and behind it the lead at each epsilon, the cost of choosing, and doubts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.exhibits.doubts import AGAINST, against, examine
from analysis.exhibits.evidence import KEY, NO_FRONTIER, Evidence
from analysis.exhibits.frontier.choice import is_chosen, price
from analysis.exhibits.frontier.points import PRICE, compared_epsilon, summarized
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.selection import Choice
from analysis.exhibits.table import Table
from analysis.labels import DATASETS, NO_VALUE, algorithm_labels, short
from analysis.statistics import MeanInterval, accuracy_error, difference_of
from analysis.text import PROTECTED
from pipeline.experiment.experiment import Experiment
from pipeline.trials.kinds import GUARANTEED, KINDS
from pipeline.trials.naming import counted
from pipeline.trials.ranking import is_difference, joined, who_leads

TYPICAL_EPSILON = 3  # the verdict is at the epsilon nearest to this
MAX_NAMED = 3  # largest number of equal points in a sentence
NO_EPSILON = "No verdict: no trial has an ε that guarantees anything; its noise, if any, is only a noise level."
SELECTED = ("Selected ε is the epsilon of publishing the best of all trials compared for the best and for the "
            "next: those of one target_epsilon, and without a target those of any ε.")
NO_CHOICE = ("Each point has one setting, so this sweep made no choice of settings to pay for; other sweeps on these "
             "records, by which settings may have been chosen, are not counted.")
NOT_COVERED = "not covered"  # cost of a choice that no epsilon covers
LEADS, ELSEWHERE, COSTS = "The lead at each ε", "Other data sets and kinds of ε", "What choosing costs"


class Headline(NamedTuple):
    """What a report says first, and `photonic report` prints."""

    verdict: str = ""  # one sentence
    test_error: str = ""  # a sentence, if the test records have a larger error than the seeds
    details: Mapping[str, Sequence[str | Table]] = MappingProxyType({})  # heading -> sentences and tables
    doubts: Sequence[str] = ()  # sentences
    under_table: str = ""  # a sentence on the error of the test records, for all means

    @property
    def folded(self) -> dict[str, Sequence[str | Table]]:
        """What stands behind the verdict, by heading: the details, and the doubts with their number."""
        behind = {**self.details, f"Doubts ({len(self.doubts)})": self.doubts}
        return {heading: parts for heading, parts in behind.items() if parts}

    @property
    def brief(self) -> list[str]:
        """The sentences without the tables, the verdict first."""
        behind = [part for parts in self.folded.values() for part in parts if isinstance(part, str)]
        return [sentence for sentence in (self.verdict, self.test_error, *behind) if sentence]


class Lead(NamedTuple):
    """The best algorithm at one epsilon, and the next one."""

    epsilon: float
    leader: str  # algorithm that is ahead, or all that are equal
    first: Mapping[str, Any]  # point of `frontier.points.summarized`
    second: Mapping[str, Any]
    difference: MeanInterval  # of their means, in points
    pairing: str  # how its interval is computed
    reasons: Sequence[str]  # against a verdict
    unknown_origin: bool  # whether nothing says how the settings were found
    cost: str  # epsilons that cover the choice of both, `NOT_COVERED`, or empty if there was no choice
    errors: tuple[float, float]  # standard errors of the first (`_errors`)

    @property
    def outcome(self) -> str:
        """What explains the lead: seeds, perhaps settings of no known origin, or why that is not known.

        If all seeds have the same small difference, the interval is too narrow: the test set's resolution decides.
        """
        if self.reasons:
            return f"no verdict: {'; '.join(self.reasons)}"
        lead, by_records = self.difference, self.errors[0]
        if not is_difference(lead.mean):
            return "no difference"
        is_unresolved = np.isclose(lead.low, lead.high) and lead.mean <= by_records
        if not lead.low > 0 or is_unresolved:  # the end is NaN with one seed
            return "no more than seeds explain"
        return "more than seeds explain" + (", but the settings may explain it" if self.unknown_origin else "")

    @property
    def verdict(self) -> str:
        """The end of a sentence: `BP leads DFA by 0.49 points, more than seeds explain (...)`."""
        points = [(_label(point), _score(point)) for point in (self.first, self.second)]
        if self.reasons or not is_difference(self.difference.mean):
            return f"{self.outcome} (test accuracy: {', '.join(map(' '.join, points))})"
        (best, score), (other, other_score) = points
        return (f"{best} leads {other} by {self.difference.mean:.2f} points, {self.outcome} (test accuracy: {score} "
                f"against {other_score})")

    @property
    def cells(self) -> list[str]:
        """The row of a table."""
        low, high = (f"{end:+.2f}".replace("-", "−") for end in (self.difference.low, self.difference.high))
        interval = NO_VALUE if np.isnan(self.difference.low) else f"{low} to {high}, {self.pairing}"
        best, following = (f"{_label(point)} {_score(point)}" for point in (self.first, self.second))
        return [f"≤ {short(self.epsilon)}", best, following, f"{self.difference.mean:.2f}", interval,
                f"{self.difference.n}", self.outcome, self.cost or NO_VALUE]


def compose(runs: pd.DataFrame, experiment: Experiment, choice: Choice | None = None) -> Headline:
    """Return the headline of a report on test accuracy.

    The verdict is on the first data set and the strongest kind of epsilon, at the epsilon nearest to 3: who leads, by
    how much, and whether seeds explain it. A comparison that fails a check (`doubts.AGAINST`) gets no verdict.
    """
    evidence = Evidence.of(runs, experiment)
    points = evidence.points[evidence.points["kind"] != NO_FRONTIER]
    known = {*evidence.refused, *zip(points["dataset"], points["kind"], strict=True)}
    frontiers = [(dataset, kind) for dataset in runs["dataset"].unique() for kind in GUARANTEED]
    answers = [_answer(evidence, *frontier) for frontier in frontiers if frontier in known]
    first, *others = answers or [Headline(NO_EPSILON)]
    elsewhere = [part for other in others for part in (other.verdict, *other.details.get(LEADS, ()))]
    costs: list[str] = []
    if not points.empty:
        on_frontiers = evidence.shown[evidence.shown["kind"] != NO_FRONTIER].drop_duplicates(KEY)
        if not (experiment.plan.asks or is_chosen(on_frontiers, experiment.past)):
            costs.append(NO_CHOICE)
        costs += _price(experiment, choice)
    costs += [f"{line}." for line in experiment.past.lines(experiment.trials)]
    details = {**first.details, ELSEWHERE: elsewhere, COSTS: costs}
    doubts = [doubt.sentence for doubt in examine(evidence)]
    return Headline(first.verdict, first.test_error, details, doubts, _under_table(evidence))


def published(choice: Choice, runs: pd.DataFrame, experiment: Experiment) -> Headline:
    """Return the headline on the trial that a search publishes within its budget.

    The check for a single seed is left out, as no mean is reported.
    """
    spent = choice.selected
    if spent is None:
        raise ValueError(f"choice: must have the epsilon of its budget, got none ({choice.reason})")
    evidence = Evidence.of(runs, experiment)
    is_best = evidence.shown["trial_key"] == choice.trial_key
    found = examine(dataclasses.replace(evidence, shown=evidence.shown[is_best]))
    doubts = [doubt for doubt in found if doubt.check != "seeds"]
    reasons = [AGAINST[doubt.check].format(doubt.names()) for doubt in doubts if doubt.check in AGAINST]
    equals = f", as {counted(choice.equals, 'other')} had" if choice.equals else ""
    verdict = (f"The search publishes {choice.name}: test accuracy {100 * choice.test:.2f}%, for ε = {spent.value:g} "
               f"at δ = {spent.delta:g} of all that it released ({KINDS['certified'].protects}; {choice.standing})"
               f"{_in_doubt(reasons)}.")
    costs = [f"It was chosen by its validation accuracy of {100 * choice.validation:.2f}%{equals}.",
             *(f"{line}." for line in experiment.past.lines(experiment.trials))]
    return Headline(verdict, details={COSTS: costs}, doubts=[doubt.sentence for doubt in doubts])


def _answer(evidence: Evidence, dataset: str, kind: str) -> Headline:
    """Return the verdict on one frontier with the lead at each epsilon or, without one, with the highest accuracy."""
    place = f" on {DATASETS[dataset].label}" if evidence.shown["dataset"].nunique() > 1 else ""
    if reason := evidence.refused.get((dataset, kind)):
        return Headline(f"No verdict for {kind} ε{place}: {reason}.")
    point_runs = evidence.shown[(evidence.shown["dataset"] == dataset) & (evidence.shown["kind"] == kind)]
    points = summarized(point_runs, kind).assign(dataset=dataset)
    points = points.assign(compared_epsilon=compared_epsilon(points))
    points = points.sort_values("mean", ascending=False, kind="stable")
    compared = points[points.groupby("compared_epsilon")["algorithm"].transform("nunique") > 1]  # with another
    leads = [_lead(group, epsilon, point_runs, evidence) for epsilon, group in compared.groupby("compared_epsilon")]
    alone = _alone({*points["algorithm"]}, {*compared["algorithm"]}, kind)
    if not leads:
        errors = _errors(_by_seed(points.iloc[0], point_runs), dataset)
        return Headline(_highest(points, kind, place, evidence), _test_error(errors, dataset), {LEADS: alone})
    typical = min(leads, key=lambda lead: abs(np.log(lead.epsilon / TYPICAL_EPSILON)))
    verdict = f"At {kind} ε ≤ {short(typical.epsilon)}{place}{_remark(kind, typical.cost)}, {typical.verdict}."
    choices = points["choices"].max()
    chosen = f", each at the best of up to {choices} settings by validation" if choices > 1 else ""
    won: dict[str, list[str]] = {}  # leader -> epsilons at which it leads
    for lead in leads:
        won.setdefault(lead.leader, []).append(short(lead.epsilon))
    winners = "; ".join(f"{leader} at {', '.join(found)}" for leader, found in won.items())
    summary = f"Highest mean test accuracy by {kind} ε ({KINDS[kind].protects}){place}{chosen}: {winners}."
    return Headline(verdict, _test_error(typical.errors, dataset), {LEADS: [summary, *alone, *_table(leads)]})


def _alone(algorithms: Set[str], compared: Set[str], kind: str) -> list[str]:
    """Return a sentence on algorithms that have no epsilon in common with another, if there are others."""
    alone = sorted(algorithms - compared)
    if not alone or len(algorithms) == 1:
        return []
    names = ", ".join(algorithm_labels()[algorithm] for algorithm in alone)
    target, *_ = KINDS[kind].noise
    return [f"Compared with no other, for want of an ε in common: {names}; `{target}` trains all to one ε."]


def _lead(group: pd.DataFrame, epsilon: float, point_runs: pd.DataFrame, evidence: Evidence) -> Lead:
    """Return the lead at an epsilon, from its points, sorted by their mean."""
    by_algorithm = group.drop_duplicates("algorithm")
    leader = who_leads({_label(point): point["mean"] for point in by_algorithm.to_dict("records")})
    first, second = by_algorithm[:2].to_dict("records")
    by_seed = _by_seed(first, point_runs)
    difference, pairing = difference_of(_by_seed(second, point_runs), by_seed)
    reasons, unknown_origin = against(evidence, first["dataset"], first["kind"], (first, second))
    return Lead(epsilon, leader, first, second, difference, pairing, reasons, unknown_origin,
                _cost(by_algorithm[:2], evidence), _errors(by_seed, first["dataset"]))


def _table(leads: Sequence[Lead]) -> list[str | Table]:
    """Return the table of leads, a row per epsilon; after a choice of settings with its cost, and what that is."""
    header = ["ε", "best, test accuracy", "next", "lead, points", "95% interval", "n", "verdict", "selected ε"]
    has_cost = any(lead.cost for lead in leads)
    width = len(header) if has_cost else len(header) - 1
    table = Table.of(header[:width], [lead.cells[:width] for lead in leads], text_columns=(0, 1, 2, 4, 6, 7))
    return [*([SELECTED] if has_cost else []), table]


def _highest(points: pd.DataFrame, kind: str, place: str, evidence: Evidence) -> str:
    """Return the verdict on points of which no two algorithms share an epsilon: the highest mean, and doubts of it."""
    best = points[~(points["mean"].max() - points["mean"]).map(is_difference)][:MAX_NAMED]  # the first, and its equals
    rows = best.to_dict("records")
    names = joined([f"{_label(row)} at ε = {short(row['epsilon'])}" for row in rows])
    reasons, _ = against(evidence, rows[0]["dataset"], kind, rows)
    return (f"{names} {'have' if len(rows) > 1 else 'has'} the highest mean test accuracy by {kind} ε"
            f"{place}{_remark(kind, _cost(best, evidence))}: {_score(rows[0])}{_in_doubt(reasons)}.")


def _in_doubt(reasons: Sequence[str]) -> str:
    return f"; in doubt: {'; '.join(reasons)}" if reasons else ""


def _errors(values: Sequence[float] | pd.Series, dataset: str) -> tuple[float, float]:
    """Return standard errors of a mean of accuracies, in points: by the test records alone, and over seeds (or NaN)."""
    accuracies = pd.Series(values, dtype=float)
    by_records = 100 * accuracy_error([], min(accuracies.mean(), 100) / 100, DATASETS[dataset].spec.n_test)
    return by_records, float(accuracies.sem())


def _test_error(errors: tuple[float, float], dataset: str) -> str:
    by_records, over_seeds = errors
    if not by_records > over_seeds:  # NaN with one seed
        return ""
    return (f"The test set of {DATASETS[dataset].spec.n_test:,} records alone has a standard error of {by_records:.2g} "
            f"points, more than the seeds ({over_seeds:.2g}).")


def _under_table(evidence: Evidence) -> str:
    """Return the sentence on all means for which the test records have a larger error than the seeds."""
    largest: dict[str, float] = {}  # data set -> largest of these errors
    for row in evidence.rows:
        by_records, over_seeds = _errors(row["values"], row["dataset"])
        if by_records > over_seeds:
            largest[row["dataset"]] = max(by_records, largest.get(row["dataset"], 0))
    texts = [f"{error:.2g} points ({DATASETS[name].label}, {DATASETS[name].spec.n_test:,} records)"
             for name, error in largest.items()]
    return f"± is over seeds; the test set alone has a standard error of up to {joined(texts)}." if texts else ""


def _by_seed(point: Mapping[str, Any], runs: pd.DataFrame) -> pd.Series:
    """Return seed -> test accuracy in percent of a point's runs."""
    is_of_point = ((runs["algorithm"] == point["algorithm"]) & (runs["setting"] == point["setting"])
                   & (runs["chosen"] == point["chosen"]))
    return runs[is_of_point].set_index("seed")["value"]


def _cost(points: pd.DataFrame, evidence: Evidence) -> str:
    """Return the epsilons that cover the choice of these points' settings, `NOT_COVERED`, or nothing."""
    (dataset,), (kind,) = points["dataset"].unique(), points["kind"].unique()
    plan, past = evidence.experiment.plan, evidence.experiment.past
    if not is_chosen(points, past):
        return NOT_COVERED if plan.asks else ""
    # Composition needs certified epsilons, and trials that were not suggested by the scores of others.
    if kind != "certified" or plan.by_scores or past.by_scores:
        return NOT_COVERED
    tried = evidence.tried[(evidence.tried["kind"] == kind) & (evidence.tried["dataset"] == dataset)]
    costs = price(points, tried, past)[PRICE]
    return " and ".join(dict.fromkeys(map(short, costs))) if np.isfinite(costs).all() else NOT_COVERED


def _remark(kind: str, cost: str) -> str:
    """Return what an epsilon protects, and covers of the choice of settings: ` (7.15 with the choice of settings)`."""
    choice = "no ε covers the choice of settings" if cost == NOT_COVERED else f"{cost} with the choice of settings"
    remarks = [PROTECTED[kind]] if kind in PROTECTED else []
    if cost:
        remarks.append(choice)
    return f" ({'; '.join(remarks)})" if remarks else ""


def _price(experiment: Experiment, choice: Choice | None) -> Iterator[str]:
    """Yield sentences on the cost of publishing the best trial, and on the runs that chose the settings."""
    if choice and choice.selected:
        number = f"{choice.trials + choice.gone} " if choice.trials else ""
        yield (f"Publishing the best of all {number}certified trials costs selected ε = {choice.selected.value:.3g}; "
               f"that trial alone has {choice.alone.value:.3g}.")
    elif choice:
        yield f"Each certified ε is of one trial; no ε covers publishing the best: {choice.reason}."
    else:
        yield "Each ε is of one trial; publishing the best of them costs more, which is not computed here."
    if (chosen := experiment.chosen) and chosen.runs:
        runs = counted(f"{chosen.runs:,}", "other run")
        yield f"The settings were chosen before, by {runs} ({chosen.by.strip()}); no ε here covers them."
    elif experiment.preset:
        yield ("The settings of the preset were chosen before, by other runs on validation records; no ε here covers "
               "them.")


def _label(row: Mapping[str, Any]) -> str:
    return algorithm_labels()[row["algorithm"]]


def _score(row: Mapping[str, Any]) -> str:
    return f"{METRICS['accuracy'].text(row['mean'], row['half_width'])}%"
