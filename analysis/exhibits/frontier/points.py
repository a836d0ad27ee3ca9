"""The points of a privacy-utility frontier: a metric against epsilon, for exhibits, verdicts and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.exhibits.envelope import averaged, ordered
from analysis.exhibits.frontier import choice
from analysis.exhibits.frontier.choice import PRICE as PRICE
from analysis.exhibits.frontier.choice import pareto_front
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.needs import layout_of_frontier
from analysis.labels import names_of
from analysis.runs import ReportError, Sweep, load_runs, relations, require_one, trials_of, with_trials
from analysis.statistics import SUMMARY
from analysis.text import with_levels
from pipeline.experiment.experiment import Experiment
from pipeline.trials.kinds import GUARANTEED, KINDS

FRONTIER_KINDS = tuple(name for name, kind in KINDS.items() if kind.noise)
COLUMNS = ["algorithm", "epsilon", "metric", *SUMMARY, "kind", "formula", "relation", "sampler", "delta", "setting",
           "chosen", "choices", "on_front", "on_overall_front"]


def frontier(runs: Sweep, kind: str = "certified", metric: str = "accuracy", formula: str = "") -> pd.DataFrame:
    """Return the points of one kind of epsilon: a metric at the last epoch, by algorithm and epsilon.

    There is one row per algorithm and noise setting, sorted by algorithm and epsilon. The columns `COLUMNS` have mean
    and 95% intervals over n seeds, and epsilon with its relation, sampler and delta. Two columns tell whether the mean
    is on the Pareto front of its algorithm, and of all algorithms. Epsilon is that of the last epoch by the tightest
    logged accountant, the largest over seeds. A diverged trial counts with its final weights.

    If trials of one algorithm and noise differ in further fields, the frontier is their envelope: a point is the best
    of its `choices` settings by mean validation accuracy, and `chosen` names it. Its epsilon does not cover this choice
    (`choice.price` does).

    Args:
        runs: from `load_runs`, or a sweep as `load_runs` takes it; trials without a finite epsilon of this kind are
            left out.
        kind: 'certified', 'label', or 'claimed', which has no guarantee. Other kinds have no frontier.
        metric: 'accuracy', 'worst_class', 'alignment' or 'feedback_alignment'; a trial without it (see `Metric.of`)
            is left out.
        formula: of a claimed epsilon, for example `saturating/epochs`, since formulas bound different quantities;
            empty for other kinds.

    Raises:
        ReportError: for another kind or metric, no trial of this kind, a trial without the metric, or, if there is a
            choice, a trial without validation accuracy.
        MixedTrials: if data sets, relations or deltas differ.

    Example:
        >>> frontier(load_runs("example"))[["algorithm", "epsilon", "mean", "n", "on_overall_front"]]
          algorithm  epsilon  mean  n  on_overall_front
        0        bp      1.0  80.0  1              True
        1        bp      8.0  90.0  1              True
        2       dfa      1.0  70.0  1             False
        3       dfa      8.0  80.0  1             False
    """
    if metric not in METRICS:
        raise ReportError(f"metric: must be one of {', '.join(METRICS)}, got {metric!r}")
    tried = tried_runs(load_runs(runs), kind, formula)
    return summarized(choice.choose(tried), kind, metric, formula)


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
    runs = runs.assign(relation=relations(runs, kind))
    require_one(runs, ("dataset", "relation", "delta"), "for all points of one frontier")
    return choice.candidates(runs, kind)


def compared_epsilon(points: pd.DataFrame) -> pd.Series:
    """Return the epsilon at which each point of a frontier is compared: its target if it has one, else its epsilon.

    Targets are met to within 1% from below; the remaining difference is no property of an algorithm.
    """
    return pd.Series([float(target_of(row) or row.epsilon) for row in points.itertuples()], index=points.index)


def target_of(row: Any) -> str:  # Any: of `DataFrame.itertuples`
    """Return the target of a point as text, `3`; empty for a point without a target."""
    _, _, target = row.setting.rpartition("=")
    return target if choice.is_target(row.setting) and row.kind in GUARANTEED else ""


def frontiers(runs: pd.DataFrame, experiment: Experiment, metric: str = "accuracy",
              kinds: Sequence[str] = GUARANTEED) -> list[pd.DataFrame]:
    """Return the points of every kind of epsilon that the runs have, with a column for each factor of their layout.

    For `claimed` epsilons there is one frame per formula. `attrs["layout"]` tells which settings are lines and which
    are panels. If settings were chosen, here or before the file was edited, the points have a column with the price of
    the choice (`choice.price`). There must be a kind (`ReportError`); other errors as in `frontier`.
    """
    frames = []
    for kind in kinds:
        if kind == "claimed":
            formulas = [name.removeprefix("epsilon/claimed/") for name in sorted(runs.columns)
                        if name.startswith("epsilon/claimed/") and runs[name].notna().any()]
        else:
            formulas = [""] if tightest(runs, kind).notna().any() else []
        frames += [_by_factors(runs, kind, formula, metric, experiment) for formula in formulas]
    if not frames:
        names = " or ".join(f"epsilon/{kind}" for kind in kinds)
        raise ReportError(f"frontier: needs trials with a finite {names}, found none")
    return frames


def _by_factors(runs: pd.DataFrame, kind: str, formula: str, metric: str, experiment: Experiment) -> pd.DataFrame:
    runs = with_trials(runs[tightest(runs, kind, formula).notna()])
    layout = layout_of_frontier(trials_of(runs), kind, experiment)
    if layout.fault:
        raise ReportError(f"frontier: {layout.fault}")
    runs = with_levels(runs, layout.factors)
    groups = runs.groupby(list(layout.factors), sort=False, dropna=False) if layout.factors else [((), runs)]
    parts = []
    for values, group in groups:
        tried = tried_runs(group, kind, formula)
        points = choice.price(summarized(choice.choose(tried), kind, metric, formula), tried, experiment.past)
        parts.append(points.assign(**{name: [value] * len(points)
                                      for name, value in zip(layout.factors, values, strict=True)}))
    table = pd.concat(parts, ignore_index=True)
    by_scores = experiment.plan.by_scores or experiment.past.by_scores  # then composition is no price of a choice
    price = [PRICE] if choice.is_chosen(table, experiment.past) and not by_scores else []
    table = table[[*layout.factors, *COLUMNS, *price]]
    table.attrs["layout"] = layout
    return table


def tightest(runs: pd.DataFrame, kind: str, formula: str = "") -> pd.Series:
    """Return each trial's smallest logged `epsilon/<kind>/<accountant>`; empty if there is none.

    Every logged accountant is proved for the trial, so the smallest value holds too. For `claimed` nothing is proved;
    the value is from one formula. Infinite epsilons are not logged.
    """
    logged = [name for name in runs.columns if name.startswith(f"epsilon/{kind}/{formula}")]
    return runs[logged].astype(float).min(axis=1)


def named(points: pd.DataFrame) -> list[str]:
    """Return the line and the panel of each point as text: `DFA, τ_h = 0.5`."""
    names = ["algorithm", *points.attrs["layout"].factors]
    return [names_of(row, names) for row in points.to_dict("records")]
