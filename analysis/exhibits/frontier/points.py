"""Compute the points of a privacy-utility frontier, accuracy or alignment against epsilon, and its hypervolume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.exhibits.envelope import averaged, ordered
from analysis.exhibits.frontier import choice
from analysis.exhibits.frontier.choice import PRICE as PRICE
from analysis.exhibits.frontier.pareto import hypervolume, pareto_front, reference_epsilon
from analysis.exhibits.metrics import METRICS
from analysis.runs import ReportError, Sweep, common_value, require_one, runs_of, with_trials
from analysis.statistics import SUMMARY
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.experiment.past import NO_PAST, Past
from pipeline.trials.kinds import GUARANTEED, KINDS

FRONTIER_KINDS = tuple(name for name, kind in KINDS.items() if kind.noise)
COLUMNS = ["algorithm", "epsilon", "metric", *SUMMARY, "kind", "formula", "relation", "sampler", "delta", "setting",
           "chosen", "choices", "on_front", "on_overall_front"]
VOLUME_COLUMNS = ["kind", "formula", "metric", "algorithm", "hypervolume", "points", "reference_epsilon",
                  "reference_value"]
ALL = "all"  # algorithms together


def frontier(runs: Sweep, kind: str = "certified", metric: str = "accuracy", formula: str = "") -> pd.DataFrame:
    """Return the points of one kind of epsilon: a metric at the last epoch, by algorithm and epsilon.

    There is one row per algorithm and noise setting, sorted by algorithm and epsilon. The columns `COLUMNS` have mean
    and 95% intervals over n seeds, and epsilon with its relation, sampler and delta. Two columns tell whether the mean
    is on the Pareto front of its algorithm, and of all algorithms. Epsilon is the value at the last epoch by the
    tightest logged accountant. If seeds differ (one diverged early), it is the largest, which holds for all. A diverged
    trial counts with its final weights.

    If trials of one algorithm and noise differ in further fields, the frontier is their envelope: a point is the best
    of its `choices` settings by mean validation accuracy, and `chosen` names it. Its epsilon does not cover this choice
    (`choice.price` does).

    Args:
        runs: from `load_runs`, or what it takes; trials without a finite epsilon of this kind are left out (`caption`
            names them).
        kind: 'certified', 'label', or 'claimed', which has no guarantee. Other kinds have no frontier.
        metric: one of `METRICS`; a trial without it (see `Metric.of`) is left out.
        formula: formula of a claimed epsilon, for example `saturating/epochs`, since formulas bound different
            quantities.

    Raises:
        ReportError: for another kind, no trial of this kind, a trial without the metric, or, if there is a choice, a
            trial without validation accuracy.
        MixedTrials: if data sets, relations or deltas differ.

    Example:
        >>> frontier(load_runs("example"))[["algorithm", "epsilon", "mean", "n", "on_overall_front"]]
          algorithm  epsilon  mean  n  on_overall_front
        0        bp      1.0  80.0  1              True
        1        bp      8.0  90.0  1              True
        2       dfa      1.0  70.0  1             False
        3       dfa      8.0  80.0  1             False
    """
    return summarized(choice.choose(tried_runs(runs_of(runs), kind, formula)), kind, metric, formula)


def summarized(runs: pd.DataFrame, kind: str, metric: str = "accuracy", formula: str = "") -> pd.DataFrame:
    """Return the points of a frontier: a row per algorithm and setting, with mean and intervals over seeds (`COLUMNS`).

    The runs are those of `choice.choose`.
    """
    carry = ("relation", "sampler", "delta", "chosen", "choices")
    points = averaged(runs, ["algorithm", "setting", "point"], metric, carry, ["epsilon"])
    points = points.assign(kind=kind, formula=formula)
    points = ordered(points, ["algorithm", "epsilon"])
    compared = points.assign(epsilon=compared_epsilon(points))  # with targets in place of epsilons just below them
    fronts = [pareto_front(curve["epsilon"], curve["mean"]) for _, curve in compared.groupby("algorithm", sort=False)]
    on_front = np.concatenate(fronts)  # in the order of the points, which are sorted by algorithm
    on_overall_front = pareto_front(compared["epsilon"], compared["mean"])
    return points.assign(on_front=on_front, on_overall_front=on_overall_front)[COLUMNS]


def tried_runs(runs: pd.DataFrame, kind: str, formula: str = "") -> pd.DataFrame:
    """Return the runs among which the points of a frontier are chosen, with their `choice.candidates`.

    Further columns: `epsilon` and `relation`. Arguments and errors are those of `frontier`.
    """
    if kind not in FRONTIER_KINDS:
        raise ReportError(f"kind: must be one of {', '.join(FRONTIER_KINDS)}, got {kind!r}")
    runs = with_trials(runs).assign(epsilon=tightest(runs, kind, formula)).dropna(subset="epsilon")
    if runs.empty:
        epsilon = f"epsilon/{kind}/{formula}".rstrip("/")
        raise ReportError(f"frontier: needs trials with a finite {epsilon}, found none")
    runs = runs.assign(relation=LABEL_RELATION if kind == "label" else runs.get("privacy.relation", "not tracked"))
    require_one(runs, ("dataset", "relation", "delta"), "for all points of one frontier")
    return choice.candidates(runs, kind)


def compared_epsilon(points: pd.DataFrame) -> pd.Series:
    """Return the epsilon at which each point of a frontier is compared: its target if it has one, else its epsilon.

    Targets are met to within 1% from below; the remaining difference is no property of an algorithm.
    """
    return pd.Series([float(target_of(row) or row.epsilon) for row in points.itertuples()], index=points.index)


def target_of(row: Any) -> str:  # Any: of `DataFrame.itertuples`
    """Return the target of a point as text, `3`; empty for a point without a target."""
    if not choice.is_target(row.setting) or row.kind not in GUARANTEED:
        return ""
    _, _, target = row.setting.rpartition("=")
    return target


def frontiers(runs: pd.DataFrame, metric: str = "accuracy", kinds: Sequence[str] = GUARANTEED, past: Past = NO_PAST,
              ) -> list[pd.DataFrame]:
    """Return the points of a frontier (see `frontier`) for every kind of epsilon that the runs have.

    For `claimed` epsilons there is one frame per formula. If settings were chosen, here or in the `past` of an edited
    file, the points have a column with the price of the choice (`choice.price`). There must be a kind (`ReportError`);
    other errors as in `frontier`.
    """
    frames = []
    for kind in kinds:
        formulas = [""] if kind != "claimed" and tightest(runs, kind).notna().any() else []
        if kind == "claimed":
            prefix = f"epsilon/{kind}/"
            formulas = [name.removeprefix(prefix) for name in sorted(runs.columns)
                        if name.startswith(prefix) and runs[name].notna().any()]
        for formula in formulas:
            tried = tried_runs(runs, kind, formula)
            points = summarized(choice.choose(tried), kind, metric, formula)
            frames.append(choice.price(points, tried, past) if choice.is_chosen(points, past) else points)
    if not frames:
        names = " or ".join(f"epsilon/{kind}" for kind in kinds)
        raise ReportError(f"frontier: needs trials with a finite {names}, found none")
    return frames


def tightest(runs: pd.DataFrame, kind: str, formula: str = "") -> pd.Series:
    """Return each trial's smallest logged `epsilon/<kind>/<accountant>`; empty if there is none.

    Every logged accountant is proved for the trial, so the smallest value holds too. For `claimed` nothing is proved;
    the value is from one formula. Infinite epsilons are not logged.
    """
    logged = [name for name in runs.columns if name.startswith(f"epsilon/{kind}/{formula}")]
    return runs[logged].astype(float).min(axis=1)


def hypervolumes(points: Sequence[pd.DataFrame], runs: pd.DataFrame) -> pd.DataFrame:
    """Return the area dominated by each algorithm's means, and by all together: `VOLUME_COLUMNS`, largest first.

    The axes are ln epsilon and the metric (accuracies in percent). All algorithms of a kind share the reference point:
    the smallest power of ten above every epsilon, and chance for accuracy, 0 for the worst class and alignment. The
    trials tell the data set, on which chance depends.
    """
    rows = []
    for frame in points:
        kind, formula, metric = (common_value(frame[name]) for name in ("kind", "formula", "metric"))
        reference = reference_epsilon(frame["epsilon"]), METRICS[metric].floor(common_value(runs["dataset"]))
        curves = [(ALL, frame), *frame.groupby("algorithm", sort=False)]
        of_kind = [(kind, formula, metric, algorithm, hypervolume(curve["epsilon"], curve["mean"], *reference),
                    len(curve), *reference) for algorithm, curve in curves]  # as `VOLUME_COLUMNS`
        rows += sorted(of_kind, key=lambda row: -row[VOLUME_COLUMNS.index("hypervolume")])
    return pd.DataFrame(rows, columns=VOLUME_COLUMNS)


def title(points: pd.DataFrame) -> str:
    """Return the title of an axis, in two lines: `certified ε: features and labels`, then relation, sampler, delta."""
    first = points.iloc[0]  # points of an axis have one kind, formula, relation and delta
    samplers = " or ".join(sorted(set(points["sampler"])))
    name, _, count = first["formula"].partition("/")
    formula = f", {name.replace('_', ' ')} formula, T = {count}" if name else ""
    guarantee = f"{first['kind']} ε: {KINDS[first['kind']].protects}{formula}"
    return f"{guarantee}\n{first['relation']}, {samplers} batches, δ = {first['delta']:g}"


def short_title(points: pd.DataFrame) -> str:
    """Return the first line of an axis's `title` up to a comma: `certified ε: features and labels`."""
    return title(points).splitlines()[0].partition(",")[0]
