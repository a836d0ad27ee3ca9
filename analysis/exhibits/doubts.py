"""Checks over the runs of a report: each returns nothing, or a problem with its place and remedy.

The headline asks all of them for its list of doubts, and those in `AGAINST` before it gives a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any, NamedTuple

import pandas as pd

from analysis.exhibits.envelope import SCORE
from analysis.exhibits.evidence import KEY, NO_FRONTIER, Evidence, Key
from analysis.labels import DATASETS, NON_PRIVATE, algorithm_labels, setting_label
from analysis.runs import trials_of
from analysis.statistics import accuracy_error, welch_interval
from pipeline.accounting.evaluations import score_noise
from pipeline.experiment.search import Domain, Search
from pipeline.trials.arithmetic import CLAMPED
from pipeline.trials.config import settings
from pipeline.trials.kinds import KINDS
from pipeline.trials.naming import abridged

ERRORS = 3  # an accuracy within this many standard errors of chance counts as chance
REAL_FACTOR = 2  # epsilons with this ratio should differ in accuracy
MOST_APART = 0.5  # accuracies within this many points count as equal
MOST_CLAMPED = 1e-3  # share of a layer's components that may be clamped in integers
NOISY = 0.5  # share of noise in the variance of scores
NEAR_END = 0.05  # share of a search's range that counts as its end
# Settings that describe the measurement, and are not tuned.
MEASURED = ("seed", "delta", "train_records", "validation_fraction", "alignment_batches", "canaries")
MOST_NAMED = 3  # largest number of curves, and of settings of a curve, in a sentence


class Doubt(NamedTuple):
    """The finding of a check."""

    check: str  # its name
    points: frozenset[Key]  # that it affects
    sentence: str  # the problem, its place, and the remedy

    def names(self) -> str:
        """Return the affected algorithms: `DFA`, `BP and DFA`."""
        affected = {point[KEY.index("algorithm")] for point in self.points}
        return " and ".join(label for name, label in algorithm_labels().items() if name in affected)


def chance(evidence: Evidence) -> Doubt | None:
    """Find points with a mean test accuracy of at most three standard errors above chance.

    Chance is the accuracy of the best constant answer: the share of the largest class in the test records if it is
    public (`DatasetSpec.majority`), else 1/classes. `analysis.statistics.accuracy_error` gives the standard error.
    """
    at_chance: list[Key] = []
    chance_texts: dict[str, str] = {}  # data set -> its accuracy of chance
    for row in evidence.rows:
        spec = DATASETS[row["dataset"]].spec
        level = spec.majority or 1 / spec.n_classes
        error = accuracy_error([value / 100 for value in row["values"]], level, spec.n_test)
        if row["mean"] <= 100 * level + ERRORS * (100 * error):
            at_chance.append(row["key"])
            chance_texts[row["dataset"]] = f"{100 * level:.3g}%"
    return _doubt("chance", at_chance, evidence, lambda where: (
        f"{where}: test accuracy within {ERRORS} standard errors of chance ({', '.join(chance_texts.values())}), so "
        "nothing was learnt; change learning_rate or feedback_std, or train more epochs."))


def flat(evidence: Evidence) -> Doubt | None:
    """Find curves with the same accuracy at all epsilons: more privacy costs nothing, so noise does not limit them.

    The epsilons differ by a factor of 2 or more. The best and the worst mean differ by at most half a point, and by at
    most one standard error of an accuracy on the test records. Welch's interval over seeds contains 0. An interval
    paired by seed would be too narrow: if noise hardly changes the weights, all seeds have the same small difference.

    A curve with a point at chance is left to `chance`. A curve as good as the algorithm's trials without privacy is not
    reported: it has reached the limit of its model.
    """
    on_flat_curves: list[Key] = []
    doubt_of_chance = chance(evidence)
    at_chance = doubt_of_chance.points if doubt_of_chance else frozenset()
    non_private_means = {(row["dataset"], row["algorithm"]): row["mean"] for row in evidence.rows
                         if row["setting"] == NON_PRIVATE}
    for (dataset, kind, algorithm), curve in evidence.curves.items():
        keys = [row["key"] for row in curve]
        epsilons = [row["compared_epsilon"] for row in curve]
        if kind == NO_FRONTIER or at_chance & set(keys):
            continue
        if len(curve) < 2 or max(epsilons) < REAL_FACTOR * min(epsilons):  # too close for a difference in accuracy
            continue
        by_mean = sorted(curve, key=lambda row: row["mean"])
        worst, best = by_mean[0], by_mean[-1]
        mean_accuracy = sum(row["mean"] for row in curve) / len(curve) / 100  # a fraction
        by_records = accuracy_error([], mean_accuracy, DATASETS[dataset].spec.n_test)  # of the test set
        tolerance = min(MOST_APART, 100 * by_records)  # points
        difference = welch_interval(worst["values"], best["values"])  # best less worst, in points
        is_beyond_seeds = difference.low > 0  # never with one seed, as its interval is NaN
        has_more_to_gain = non_private_means.get((dataset, algorithm), math.inf) > best["mean"] + tolerance
        if difference.mean <= tolerance and has_more_to_gain and not is_beyond_seeds:
            on_flat_curves += keys
    return _doubt("flat", on_flat_curves, evidence, lambda where: (
        f"{where}: the same test accuracy, so steps or settings limit it, not noise; train more epochs, take larger "
        "steps, or show by trials without privacy that no more is to be had."))


def edge(evidence: Evidence) -> Doubt | None:
    """Find points with a chosen number at the end of its grid, if values beyond it are allowed.

    Noise and the fields in `MEASURED` are not tuned, and not checked. In a search the ends are the ends of the range;
    5% of the range, on its own scale, count as the end. A `choice` in a search has no end.
    """
    plan = evidence.experiment.plan
    numeric = [field for field in settings() if type(field.default) in (int, float) and field.name not in MEASURED]
    tuned = [field for field in numeric if evidence.tried.get(field.name, pd.Series()).nunique() > 1]
    at_end: list[Key] = []
    descriptions: dict[str, None] = {}  # each once, in order
    for row in evidence.rows:
        if row["settings"] == 1:  # nothing was chosen
            continue
        rivals = evidence.rivals(row["key"])
        chosen = rivals[rivals["point"] == row["point"]].iloc[0]  # of any seed
        for field in (field for field in tuned if field.name not in KINDS[row["kind"]].noise):
            domain = plan.space.get(field.name) if isinstance(plan, Search) else None
            value, values = chosen[field.name], rivals[field.name].dropna()
            ends = domain.ends if domain else (values.min(), values.max())
            has_ends = not domain or (domain.kind != "choice" and len(ends) > 1 and domain.has(value))
            if values.nunique() > 1 and has_ends and _at_end(value, ends, field, domain):
                at_end.append(row["key"])
                descriptions[f"{field.name} {value:g} of {ends[0]:g} to {ends[1]:g}"] = None
    return _doubt("edge", at_end, evidence, lambda where: (
        f"{where}: the best value lies at the end of its grid ({abridged([*descriptions], MOST_NAMED, '; ')}), and "
        "better ones may lie beyond; widen the grid there."))


def effort(evidence: Evidence) -> Doubt | None:
    """Find points with fewer tried settings than another algorithm at their epsilon."""
    compared: dict[tuple[str, str, float], list[dict[str, Any]]] = {}  # (data set, kind, epsilon) -> points
    for row in evidence.rows:
        if row["kind"] != NO_FRONTIER:
            compared.setdefault((row["dataset"], row["kind"], row["compared_epsilon"]), []).append(row)
    with_fewer: list[Key] = []
    counts: dict[str, None] = {}  # algorithms with their number of settings, each once, in order
    for group in compared.values():
        max_settings = max(row["settings"] for row in group)
        fewer_in_group = [row["key"] for row in group if row["settings"] < max_settings]
        if fewer_in_group:
            with_fewer += fewer_in_group
            counts |= {f"{algorithm_labels()[row['algorithm']]} {row['settings']}": None for row in group}
    return _doubt("effort", with_fewer, evidence, lambda where: (
        f"{where}: fewer settings tried than for others ({', '.join(counts)}); give every algorithm as many."))


def seeds(evidence: Evidence) -> Doubt | None:
    """Find points with one seed."""
    with_one_seed = [row["key"] for row in evidence.rows if row["n"] == 1]
    return _doubt("seeds", with_one_seed, evidence, lambda where: (
        f"{where}: one seed (n = 1), so nobody knows how far seeds differ; give at least three, "
        "`seed: {range: [0, 3]}`."))


def clamped(evidence: Evidence) -> Doubt | None:
    """Find points with a run in integers in which more than 0.1% of the components of a layer are clamped.

    The tag has the shares by layer, of public test records before the first epoch. Runs without it are not doubted.
    """
    shown = evidence.shown.reindex(columns=[*KEY, CLAMPED]).dropna(subset=CLAMPED)
    shown = shown.assign(worst=[max(map(float, shares.split(","))) for shares in shown[CLAMPED]])
    over = shown[shown["worst"] > MOST_CLAMPED]
    return _doubt("clamped", map(tuple, over[KEY].to_numpy().tolist()), evidence, lambda where: (
        f"{where}: up to {over['worst'].max():.2g} of a layer's numbers were clamped in integers (limit "
        f"{MOST_CLAMPED:g}), so updates are not those of float32; take arithmetic float32, or mechanism component."))


def noisy(evidence: Evidence) -> Doubt | None:
    """Find points chosen by noisy scores: noise is at least half of the variance among the settings compared."""
    by_noise: list[Key] = []
    largest = 0.0  # standard deviation of a score's noise
    for row in evidence.rows:
        if row["settings"] == 1:  # nothing was chosen
            continue
        scored = evidence.rivals(row["key"]).dropna(subset=SCORE)
        noises = [score_noise(trial) for trial in trials_of(scored)]
        seeds = scored.groupby("point").size().mean()
        of_noise = sum(noise**2 for noise in noises) / len(noises) / seeds
        if of_noise and of_noise >= NOISY * scored.groupby("point")[SCORE].mean().var():
            by_noise.append(row["key"])
            largest = max(largest, *noises)
    return _doubt("noisy", by_noise, evidence, lambda where: (
        f"{where}: validation accuracies have noise of standard deviation up to {largest:.1%}, half or more of what "
        "they differ by, so that luck chose; hold more records out, or compare fewer settings at a larger ε."))


def origin(evidence: Evidence) -> Doubt | None:
    """Return all points if the file does not state how its settings were found."""
    experiment = evidence.experiment
    sources = (experiment.chosen, experiment.plan.asks, experiment.preset)
    without_origin = [] if any(sources) else [row["key"] for row in evidence.rows]
    return _doubt("origin", without_origin, evidence, lambda where: (
        "Nothing says how the settings were found, and other settings may rank the algorithms otherwise; state it in "
        "the file, `chosen: {runs, by, seeds}`, or take `preset: recommended`."))


CHECKS: tuple[Callable[[Evidence], Doubt | None], ...] = (chance, flat, edge, effort, seeds, clamped, noisy, origin)

# Checks that prevent a verdict on a comparison, with the text of the reason. The interval of a difference covers only
# the variation between seeds. It does not cover an algorithm that has learnt nothing (chance), is not limited by noise
# (flat), may have better settings beyond its grid (edge), or had fewer tries (effort); with one seed there is no
# interval (seeds), clamped integers make another update (clamped), and luck may have chosen settings (noisy).
# `origin` does not prevent a verdict, as the difference is real at the tested settings; the verdict then states that
# settings may explain it.
AGAINST: Mapping[str, str] = {
    "chance": "{} at chance", "flat": "{} limited by steps, not noise", "edge": "{} best at the end of a grid",
    "effort": "fewer settings tried for {}", "seeds": "one seed of {}", "clamped": "integers of {} clamped",
    "noisy": "settings of {} chosen by noise"}


def examine(evidence: Evidence) -> list[Doubt]:
    """Return the findings of all checks, in the order of `CHECKS`."""
    return [doubt for check in CHECKS if (doubt := check(evidence))]


def against(evidence: Evidence, dataset: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], bool]:
    """Return the reasons against a verdict on a comparison, as `DFA at chance`, and whether settings have no origin.

    `rows` are the two compared points; the checks use only their two curves.
    """
    compared = {(dataset, kind, row["algorithm"], row["setting"]) for row in rows}  # as the first columns of `KEY`
    reasons = []
    unknown_origin = False
    for doubt in examine(evidence.only(dataset, kind, [row["algorithm"] for row in rows])):
        compared_points = frozenset(point for point in doubt.points if point[:4] in compared)
        if not compared_points:
            continue
        if doubt.check == "origin":
            unknown_origin = True
        elif doubt.check in AGAINST:
            reasons.append(AGAINST[doubt.check].format(doubt._replace(points=compared_points).names()))
    return reasons, unknown_origin


def _at_end(value: float, ends: tuple[float, float], field: Field[Any], domain: Domain | None) -> bool:
    """Whether a value is at an end, of its grid or of a search's range `domain`, that the setting lets be extended."""
    scale = math.log if domain and domain.kind == "loguniform" else float
    low, high = map(scale, ends)
    margin = NEAR_END * (high - low) if domain else 0.0
    allowed = field.metadata  # `open_low`: values down to `low` are allowed, but not `low` itself
    can_go_lower = allowed["open_low"] or ends[0] != allowed["low"]
    can_go_higher = allowed["open_high"] or ends[1] != allowed["high"]
    return (scale(value) <= low + margin and can_go_lower) or (scale(value) >= high - margin and can_go_higher)


def _doubt(check: str, points: Iterable[Key], evidence: Evidence, sentence_at: Callable[[str], str]) -> Doubt | None:
    """Return the finding on these points, None if there are none; `sentence_at` gets their place in words."""
    points = frozenset(points)
    return Doubt(check, points, sentence_at(_where(points, evidence))) if points else None


def _where(points: frozenset[Key], evidence: Evidence) -> str:
    """Return the place of points, as `DFA at ε ≤ 1, 3; BP at every ε`, with the data set if there are several."""
    if len(points) == len(evidence.rows) > 1:
        return "All points"
    has_several_datasets = len({row["dataset"] for row in evidence.rows}) > 1
    places = []  # (rank of the algorithm, place)
    for (dataset, kind, algorithm), curve in evidence.curves.items():
        affected = [row for row in curve if row["key"] in points]
        if not affected:
            continue
        levels = _levels(affected)
        if len(affected) == len(curve) > 1:
            levels = "every noise" if kind == NO_FRONTIER else "every ε"
        dataset_text = f" on {DATASETS[dataset].label}" if has_several_datasets else ""
        places.append((list(algorithm_labels()).index(algorithm),
                       f"{algorithm_labels()[algorithm]}{dataset_text} at {levels}"))
    return abridged([place for _, place in sorted(places)], MOST_NAMED, "; ")


def _levels(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the noise levels of rows, shortened: `ε ≤ 1, 3`."""
    levels: list[str] = []
    last_symbol = None
    for label in dict.fromkeys(setting_label(row["setting"]) for row in rows):  # each once
        symbol, _, number = label.rpartition(" ")  # `ε ≤`, `3`
        levels.append(number if symbol == last_symbol else label)
        last_symbol = symbol
    return abridged(levels, MOST_NAMED)
