"""Which settings of a grid become points of a frontier, by validation accuracy, and what that choice costs.

Frontiers use it for figures and tables, the headline for its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from analysis.exhibits.envelope import SCORE, varied
from analysis.exhibits.table import Table
from analysis.labels import NO_VALUE
from analysis.runs import ask, require_accuracy, trials_of
from analysis.text import settings_text
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.past import NO_PAST, Past
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import KINDS
from pipeline.trials.naming import method, noise_setting, setting_key

PRICE = "selected_epsilon"  # column of points that were chosen among several settings


def pareto_front(epsilon: Sequence[float], value: Sequence[float]) -> np.ndarray:
    """Return whether each point is on the Pareto front: no other point is at least as good in both and better in one.

    Less epsilon and more value are better. Equal points are both on the front, or both not. Epsilons must be finite and
    > 0, and values finite (`ValueError`).
    """
    epsilons, values = np.asarray(epsilon, dtype=float), np.asarray(value, dtype=float)
    if epsilons.ndim != 1 or epsilons.shape != values.shape:
        raise ValueError(f"value: must have one per epsilon, got shapes {epsilons.shape} and {values.shape}")
    if not (np.isfinite(epsilons).all() and (epsilons > 0).all()):
        raise ValueError(f"epsilon: must be finite and > 0, got {epsilons.tolist()}")
    if not np.isfinite(values).all():
        raise ValueError(f"value: must be finite, got {values.tolist()}")
    # Row i, column j: point j against point i.
    no_worse = (epsilons[None, :] <= epsilons[:, None]) & (values[None, :] >= values[:, None])
    better = (epsilons[None, :] < epsilons[:, None]) | (values[None, :] > values[:, None])
    return np.asarray(~(no_worse & better).any(axis=1))


def is_target(setting: str) -> bool:
    """Whether a noise setting is a target epsilon: `epsilon=3`, `label_epsilon=3`."""
    return setting.rpartition("=")[0].endswith("epsilon")


def candidates(runs: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Return the runs with columns that describe the choice of a frontier's points among settings.

    Columns:
        algorithm: the method of a curve (`naming.method`), in place of the algorithm.
        point: identifies a setting, with all its seeds.
        chosen: the fields that differ along a curve, as text.
        choice: identifies a set of candidates; empty if there is no choice. The candidates are the settings of one
            target epsilon, or all settings of an algorithm without a target if several have the same noise level.
    """
    runs = runs.assign(algorithm=ask(runs, method), point=ask(runs, setting_key))
    fields = varied(runs, ["algorithm"], ("seed", *KINDS[kind].noise))
    runs = runs.assign(chosen=[settings_text(trial, fields) for trial in trials_of(runs)])
    has_rivals = runs.groupby(["algorithm", "setting"])["point"].transform("nunique") > 1
    has_target = runs["setting"].map(is_target) & (kind != "claimed")
    # Without a target, rivals at one noise level open the choice among all settings of the algorithm.
    curve_has_rivals = (has_rivals & ~has_target).groupby(runs["algorithm"]).transform("any")
    is_candidate = has_rivals.where(has_target, curve_has_rivals)
    choice = runs["algorithm"] + " " + runs["setting"].where(has_target, "")
    return runs.assign(choice=choice.where(is_candidate, ""))


def choose(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the chosen settings, with a column `choices`: the number of compared settings.

    Settings are compared by mean validation accuracy at the last epoch; test accuracy is not used. For a target epsilon
    the best setting is chosen; without a target, the Pareto front of epsilon and validation accuracy. `runs` are from
    `candidates`, with a column `epsilon`; where there is a choice, all need validation accuracy.
    """
    has_choice = runs["choice"] != ""
    choices = runs.groupby("choice")["point"].transform("nunique").where(has_choice, 1)
    runs = runs.assign(choices=choices)
    chosen = [runs[~has_choice]]
    for name, group in runs[has_choice].groupby("choice", sort=False):
        require_accuracy(group, SCORE)
        settings = group.groupby("point", sort=False).agg(epsilon=("epsilon", "max"), score=(SCORE, "mean"))
        without_target = name.endswith(" ")  # a choice is named `<algorithm> <target>`, see `candidates`
        if without_target:
            best_points = settings.index[pareto_front(settings["epsilon"], settings["score"])]
        else:
            best_points = [settings["score"].idxmax()]
        chosen.append(group[group["point"].isin(best_points)])
    return pd.concat(chosen)


def price(points: pd.DataFrame, tried: pd.DataFrame, past: Past = NO_PAST) -> pd.DataFrame:
    """Return points with a column `selected_epsilon`: the privacy cost of a point and its choice.

    It composes the certified epsilons of all trials compared for a point, seeds included. Without a choice it is the
    point's own epsilon. It is nan if no price is proved, as for label epsilons. `tried` are the `candidates` of the
    points, and `past` has the trials from before the experiment file was edited.
    """
    return points.assign(**{PRICE: [_price(point, tried, past) for point in points.itertuples()]})


def _price(point: Any, tried: pd.DataFrame, past: Past) -> float:  # Any: of `DataFrame.itertuples`
    gone = rivals(past, point)  # compared before the file was edited
    if point.choices == 1 and not gone:
        return float(point.epsilon)
    if point.kind != "certified" or past.no_price:
        return np.nan
    compared = tried[(tried["algorithm"] == point.algorithm) & (tried["setting"] == point.setting)]
    if point.choices > 1:  # all rivals, which without a target have other noise too
        compared = tried[tried["choice"] == compared["choice"].iloc[0]]
    return composed_epsilon((*trials_of(compared), *gone))


def is_chosen(points: pd.DataFrame, past: Past) -> bool:
    """Whether any of these points was chosen: among settings of the file, or of the past of an edited one."""
    return points["choices"].max() > 1 or any(rivals(past, point) for point in points.itertuples())


def rivals(past: Past, point: Any) -> list[TrialConfig]:  # Any: of `DataFrame.itertuples`
    """Return past trials with a point's method and noise, of all seeds: the point was chosen among them too."""
    return [trial for trial in (*past.trials, *past.lost) if method(trial) == point.algorithm
            and noise_setting(trial).removeprefix("sigma=") == point.setting]


@lru_cache(maxsize=1024)  # as it takes seconds, and all exhibits of a report call it
def composed_epsilon(trials: tuple[TrialConfig, ...]) -> float:
    """Return the certified epsilon of choosing among all of these trials; nan if none is proved."""
    try:
        return selected_epsilon(trials).value
    except UnsupportedAccounting:
        return np.nan


def table(points: pd.DataFrame, epsilons: Sequence[str], names: Sequence[str]) -> tuple[str, Table]:
    """Return a caption and the settings of every point; after a choice, also the number of settings and its price.

    `epsilons` and `names` tell the points apart.
    """
    has_choice, has_price = points["choices"].max() > 1, PRICE in points
    caption = ("What was chosen at every point, by mean validation accuracy over seeds" if has_choice else
               "Settings that differ between the points of a line, each trained with one of them")
    if has_price:
        caption += ("; selected ε composes all trials that were compared for it, seeds included. Scores without noise "
                    "and the choice among algorithms are not covered")
    header = ["", "ε", *(["chosen", "of settings"] if has_choice else ["settings"]),
              *(["selected ε"] if has_price else [])]
    rows = []
    for name, epsilon, point in zip(names, epsilons, points.itertuples(), strict=True):
        cells = [name, epsilon, point.chosen or NO_VALUE]
        if has_choice:
            cells.append(f"{point.choices}")
        if has_price:
            is_proved = np.isfinite(point.selected_epsilon)
            cells.append(f"{point.selected_epsilon:.3g}" if is_proved else NO_VALUE)
        rows.append(cells)
    return f"{caption}.", Table.of(header, rows, text_columns=(0, 1, 2))
