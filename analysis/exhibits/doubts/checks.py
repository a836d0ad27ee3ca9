"""Checks over the runs of a report: each returns nothing, or a problem with its place and remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any, NamedTuple

import pandas as pd

from analysis.exhibits.doubts.evidence import NO_FRONTIER, Evidence, Key
from analysis.exhibits.frontier.fit import noise_fields
from analysis.runs import ALGORITHM_LABELS, DATASET_LABELS, NON_PRIVATE, setting_label
from analysis.statistics import accuracy_error, welch_interval
from pipeline.experiment.search import Domain
from pipeline.trials.camera import SETTINGS as CAMERA
from pipeline.trials.config import settings
from pipeline.trials.datasets import DATASETS

ERRORS = 3  # an accuracy within this many standard errors of chance counts as chance
REAL_FACTOR = 2  # epsilons with this ratio should differ in accuracy
MOST_APART = 0.5  # accuracies within this many points count as equal
NEAR_END = 0.05  # share of a search's range that counts as its end
# Settings that describe the measurement, and are not tuned.
MEASURED = ("seed", "delta", "train_records", "validation_fraction", "alignment_batches", "canaries", "optical_seed",
            *CAMERA)
MOST_NAMED = 3  # largest number of curves, and of settings of a curve, in a sentence


class Doubt(NamedTuple):
    """The finding of a check.

    Attributes:
        check: name of the check.
        points: the affected points, by their `evidence.KEY`.
        sentence: the problem, its place, and the remedy.
    """

    check: str
    points: frozenset[Key]
    sentence: str

    def names(self) -> str:
        """Return the affected algorithms: `DFA`, `BP and DFA`."""
        found = {point[2] for point in self.points}
        return " and ".join(label for name, label in ALGORITHM_LABELS.items() if name in found)


def chance(evidence: Evidence) -> Doubt | None:
    """Find points with a mean test accuracy of at most three standard errors above chance.

    Chance is the accuracy of the best constant answer: the share of the largest class in the test records if it is
    public (`DatasetSpec.majority`), else 1/classes. `analysis.statistics.accuracy_error` gives the standard error.
    """
    found, levels = [], {}
    for row in evidence.rows:
        level, error = _chance(row["dataset"]), _error(row)
        if row["mean"] <= level + ERRORS * error:
            found.append(row["key"])
            levels[row["dataset"]] = f"{level:.3g}%"
    return _doubt("chance", found, evidence, lambda where: (
        f"{where}: test accuracy within {ERRORS} standard errors of chance ({', '.join(levels.values())}), so nothing "
        "was learnt; change learning_rate or feedback_std, or train more epochs."))


def flat(evidence: Evidence) -> Doubt | None:
    """Find curves with the same accuracy at all epsilons: more privacy costs nothing, so noise does not limit them.

    The epsilons differ by a factor of 2 or more. The best and the worst mean differ by at most half a point, and by at
    most one standard error of an accuracy on the test records. Welch's interval over seeds contains 0. An interval
    paired by seed would be too narrow: if noise hardly changes the weights, all seeds have the same small difference.

    A curve with a point at chance is left to `chance`. A curve as good as the algorithm's trials without privacy is not
    reported: it has reached the limit of its model.
    """
    found: list[Key] = []
    untrained = chance(evidence)
    at_chance = untrained.points if untrained else frozenset()
    non_private = {(row["dataset"], row["algorithm"]): row["mean"] for row in evidence.rows
             if row["setting"] == NON_PRIVATE}
    for (dataset, kind, algorithm), curve in evidence.curves.items():
        keys, epsilons, means = ([row[name] for row in curve] for name in ("key", "asked", "mean"))
        if kind == NO_FRONTIER or at_chance & set(keys) or max(epsilons) < REAL_FACTOR * min(epsilons):
            continue
        worst, *_, best = sorted(curve, key=lambda row: row["mean"])
        mean_accuracy = sum(means) / len(means) / 100  # a fraction
        tolerance = min(MOST_APART, 100 * accuracy_error([], mean_accuracy, DATASETS[dataset].n_test))  # points
        difference = welch_interval(worst["values"], best["values"])
        as_good_as_non_private = non_private.get((dataset, algorithm), math.inf) <= best["mean"] + tolerance
        if difference.mean <= tolerance and not difference.low > 0 and not as_good_as_non_private:
            found += keys
    return _doubt("flat", found, evidence, lambda where: (
        f"{where}: the same test accuracy, so steps or settings limit it, not noise; train more epochs, take larger "
        "steps, or show by trials without privacy that no more is to be had."))


def edge(evidence: Evidence) -> Doubt | None:
    """Find points with a chosen number at the end of its grid, if values beyond it are allowed.

    Noise and the fields in `MEASURED` are not tuned, and not checked. In a search the ends are the ends of the range;
    5% of the range, on its own scale, count as the end. A `choice` in a search has no end.
    """
    found, search = [], evidence.experiment.search
    names: dict[str, None] = {}  # in order
    fields = [f for f in settings() if type(f.default) in (int, float) and f.name not in MEASURED
              and evidence.tried.get(f.name, pd.Series(dtype=float)).nunique() > 1]
    for row in evidence.rows:
        if row["settings"] == 1:
            continue
        rivals = evidence.rivals(row["key"])
        own = rivals[rivals["point"] == row["point"]].iloc[0]
        for field in (field for field in fields if field.name not in noise_fields(row["kind"])):
            value, values = own[field.name], rivals[field.name].dropna()
            domain = search.space.get(field.name) if search else None
            if values.nunique() > 1 and not (domain and domain.kind == "choice"):
                ends = domain.ends if domain else (values.min(), values.max())
                if _at_end(value, ends, field, domain):
                    found.append(row["key"])
                    names[f"{field.name} {value:g} of {ends[0]:g} to {ends[1]:g}"] = None
    return _doubt("edge", found, evidence, lambda where: (
        f"{where}: the best value lies at the end of its grid ({_listed(list(names), '; ')}), and better ones may lie "
        "beyond; widen the grid there."))


def effort(evidence: Evidence) -> Doubt | None:
    """Find points with fewer tried settings than another algorithm at their epsilon."""
    found: list[Key] = []
    counts: dict[tuple[str, int], None] = {}  # in order
    compared: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for row in (row for row in evidence.rows if row["kind"] != NO_FRONTIER):
        compared.setdefault((row["dataset"], row["kind"], row["asked"]), []).append(row)
    for group in compared.values():
        fewer = [row["key"] for row in group if row["settings"] < max(row["settings"] for row in group)]
        if fewer:
            found += fewer
            counts |= {(row["algorithm"], row["settings"]): None for row in group}
    told = ", ".join(f"{ALGORITHM_LABELS[algorithm]} {count}" for algorithm, count in counts)
    return _doubt("effort", found, evidence, lambda where: (
        f"{where}: fewer settings tried than for others ({told}); give every algorithm as many."))


def seeds(evidence: Evidence) -> Doubt | None:
    """Find points with one seed."""
    found = [row["key"] for row in evidence.rows if row["n"] == 1]
    return _doubt("seeds", found, evidence, lambda where: (
        f"{where}: one seed (n = 1), so nobody knows how far seeds differ; give at least three, "
        "`seed: {range: [0, 3]}`."))


def origin(evidence: Evidence) -> Doubt | None:
    """Return all points if the file does not state how its settings were found."""
    experiment = evidence.experiment
    sources = (experiment.chosen, experiment.search, experiment.preset)
    found = [] if any(sources) else [row["key"] for row in evidence.rows]
    return _doubt("origin", found, evidence, lambda where: (
        "Nothing says how the settings were found, and other settings may rank the algorithms otherwise; state it in "
        "the file, `chosen: {runs, by, seeds}`, or take `preset: recommended`."))


CHECKS: tuple[Callable[[Evidence], Doubt | None], ...] = (chance, flat, edge, effort, seeds, origin)

# Checks that prevent a verdict on a comparison, with the text of the reason. The interval of a difference covers only
# the variation between seeds. It does not cover an algorithm that has learnt nothing (chance), is not limited by noise
# (flat), may have better settings beyond its grid (edge), or had fewer tries (effort); with one seed there is no
# interval (seeds). `origin` does not prevent a verdict, as the difference is real at the tested settings; the verdict
# then states that settings may explain it.
AGAINST: Mapping[str, str] = {
    "chance": "{} at chance", "flat": "{} limited by steps, not noise", "edge": "{} best at the end of a grid",
    "effort": "fewer settings tried for {}", "seeds": "one seed of {}"}


def examine(evidence: Evidence) -> list[Doubt]:
    """Return the findings of all checks, in the order of `CHECKS`."""
    return [doubt for check in CHECKS if (doubt := check(evidence))]


def against(evidence: Evidence, dataset: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], bool]:
    """Return the reasons against a verdict on a comparison, as `DFA at chance`, and whether settings have no origin.

    Args:
        evidence: the runs of the report.
        dataset, kind: data set and kind of epsilon.
        rows: the two compared points, with `algorithm` and `setting`. The checks use only their two curves.
    """
    found = examine(evidence.only(dataset, kind, [row["algorithm"] for row in rows]))
    compared = {(dataset, kind, row["algorithm"], row["setting"]) for row in rows}
    concerned = [doubt._replace(points=own) for doubt in found
                 if (own := frozenset(point for point in doubt.points if point[:4] in compared))]
    return ([AGAINST[doubt.check].format(doubt.names()) for doubt in concerned if doubt.check in AGAINST],
            any(doubt.check == "origin" for doubt in concerned))


def _chance(dataset: str) -> float:
    """Return the accuracy of chance in percent."""
    spec = DATASETS[dataset]
    return 100 * (spec.majority or 1 / spec.n_classes)


def _error(row: Mapping[str, Any]) -> float:
    """Return the standard error of a point at chance, in percent."""
    level, records = _chance(row["dataset"]) / 100, DATASETS[row["dataset"]].n_test
    return 100 * accuracy_error([value / 100 for value in row["values"]], level, records)


def _at_end(value: float, ends: tuple[float, float], field: Field[Any], domain: Domain | None) -> bool:
    """Whether a value is at an end of its grid, or of a search's range, that could be extended."""
    scale = math.log if domain and domain.kind == "loguniform" else float
    low, high = map(scale, ends)
    width = NEAR_END * (high - low) if domain else 0.0
    least, most = (field.metadata[side] if not field.metadata[f"open_{side}"] else None for side in ("low", "high"))
    return (scale(value) <= low + width and ends[0] != least) or (scale(value) >= high - width and ends[1] != most)


def _doubt(check: str, points: Iterable[Key], evidence: Evidence, say: Callable[[str], str]) -> Doubt | None:
    """Return the finding on these points; None if there are none."""
    points = frozenset(points)
    return Doubt(check, points, say(_where(points, evidence))) if points else None


def _where(points: frozenset[Key], evidence: Evidence) -> str:
    """Return the place of points, as `DFA at ε ≤ 1, 3; BP at every ε`, with the data set if there are several."""
    if len(points) == len(evidence.rows) > 1:
        return "All points"
    found, several = [], len({row["dataset"] for row in evidence.rows}) > 1
    for (dataset, kind, algorithm), curve in evidence.curves.items():
        if own := [row for row in curve if row["key"] in points]:
            place = f" on {DATASET_LABELS[dataset]}" if several else ""
            levels = f"every {'ε' if kind else 'noise'}" if len(own) == len(curve) > 1 else _levels(own)
            found.append((list(ALGORITHM_LABELS).index(algorithm),
                          f"{ALGORITHM_LABELS[algorithm]}{place} at {levels}"))
    return _listed([text for _, text in sorted(found)], "; ")


def _levels(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the noise levels of rows, shortened: `ε ≤ 1, 3`."""
    labels = list(dict.fromkeys(setting_label(row["setting"]) for row in rows))
    heads = [label.rpartition(" ")[0] for label in labels]
    short = [label if place == 0 or heads[place] != heads[place - 1] else label.rpartition(" ")[2]
             for place, label in enumerate(labels)]
    return _listed(short, ", ")


def _listed(texts: Sequence[str], between: str) -> str:
    rest = len(texts) - MOST_NAMED
    return between.join(texts[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
