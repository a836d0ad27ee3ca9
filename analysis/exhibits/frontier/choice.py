"""Of a grid with more settings than a frontier shows: which stand for it, chosen by validation, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import ascii_lowercase

import numpy as np
import pandas as pd

from analysis.exhibits.envelope import SCORE, configs, setting_keys, varied
from analysis.exhibits.frontier.fit import noise_fields
from analysis.exhibits.frontier.pareto import pareto_front
from analysis.exhibits.table import Table
from analysis.runs import ALGORITHM_LABELS, earlier_epochs, require_accuracy
from analysis.text import NO_VALUE, settings_text
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.stopping import Selection
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import COMPOSABLE, method


def is_target(setting: str) -> bool:
    """Whether a noise setting is an epsilon that was asked for: `epsilon=3`, `label_epsilon=3`."""
    return setting.rpartition("=")[0].endswith("epsilon")


def candidates(runs: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The settings of every algorithm, before any choice, as columns of the runs.

    `point` tells settings apart, seeds aside; `chosen` names those fields in which they differ along a curve, as text;
    `choice` tells apart what is chosen from: the settings of one target, or all of an algorithm that have none, where
    several have one noise level; empty where there is nothing to choose. `algorithm` becomes what a curve is of
    (`naming.method`).
    """
    runs = runs.assign(algorithm=[method(row) for row in runs.to_dict("records")])
    fields = varied(runs, ["algorithm"], ("seed", *noise_fields(kind)))
    runs = runs.assign(point=setting_keys(runs), chosen=[settings_text(row, fields) for row in runs.to_dict("records")])
    crowded = runs.groupby(["algorithm", "setting"])["point"].transform("nunique") > 1
    targets = runs["setting"].map(is_target) & (kind != "claimed")
    open_to_choice = crowded.where(targets, (crowded & ~targets).groupby(runs["algorithm"]).transform("any"))
    choice = runs["algorithm"] + " " + runs["setting"].where(targets, "")
    return runs.assign(choice=choice.where(open_to_choice, ""))


def choose(runs: pd.DataFrame) -> pd.DataFrame:
    """Of `candidates` with a column `epsilon`, those that stand for the rest by mean validation accuracy at the last
    epoch.

    Of the settings of one target the best; of those without a target the Pareto front of epsilon and validation
    accuracy. Test accuracy has no part in it. The column `choices` has the number of settings that were compared.

    Raises:
        ReportError: where there is a choice, and a run that lacks validation accuracy.
    """
    choices = runs.groupby("choice")["point"].transform("nunique").where(runs["choice"] != "", 1)
    runs = runs.assign(choices=choices)
    kept = [runs[runs["choice"] == ""]]
    for name, group in runs[runs["choice"] != ""].groupby("choice", sort=False):
        require_accuracy(group, SCORE)
        settings = group.groupby("point", sort=False).agg(epsilon=("epsilon", "max"), score=(SCORE, "mean"))
        if name.endswith(" "):
            front = settings.index[pareto_front(settings["epsilon"], settings["score"])]
        else:
            front = [settings["score"].idxmax()]
        kept.append(group[group["point"].isin(front)])
    return pd.concat(kept)


def price(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Points of a frontier with the column `selected_epsilon`: certified epsilon of all trials that were compared for
    a point, seeds included, by composition; that of the point itself where nothing was. Empty where none is proved.

    Args:
        points: from `frontier`, of any kind; of label epsilons no price of a choice is known here.
        runs: those that the points are of.
    """
    choices = candidates(runs, points["kind"].iloc[0])["choice"]
    costs = []
    for row in points.itertuples():
        cost = row.epsilon if row.choices == 1 else np.nan
        if row.choices > 1 and row.kind in COMPOSABLE:
            setting = row.setting if is_target(row.setting) else ""
            try:
                compared = runs[choices == f"{row.algorithm} {setting}"]
                cost = _composed(tuple(configs(compared)), tuple(earlier_epochs(compared).items()))
            except UnsupportedAccounting:
                cost = np.nan
        costs.append(cost)
    return points.assign(selected_epsilon=costs)


@lru_cache(maxsize=1024)
def _composed(trials: tuple[TrialConfig, ...], earlier: tuple[tuple[str, int], ...]) -> float:
    """Of trials that were compared, once for all exhibits of a report: it takes seconds."""
    return selected_epsilon(trials, Selection(), dict(earlier)).value


def letters(points: pd.DataFrame) -> dict[str, str]:
    """A letter for every text in `chosen`, in order of appearance; {} of points of which none was chosen."""
    if points["choices"].max() == 1:
        return {}
    return {text: ascii_lowercase[place] if place < 26 else str(place - 25)
            for place, text in enumerate(dict.fromkeys(points["chosen"])) if text}


def table(points: pd.DataFrame, columns: Sequence[str], letters: Mapping[str, str]) -> Table:
    """Settings at every point; where some were chosen, of how many, and what epsilon covers the choice.

    Args:
        points: with `selected_epsilon` of `price`, if it is known.
        columns: what to call the epsilon of every point.
        letters: of settings, as the figure has them.
    """
    compared, priced = points["choices"].max() > 1, "selected_epsilon" in points
    header = ["algorithm", "ε", *(["chosen", "of settings"] if compared else ["settings"]),
              *(["selected ε"] if priced else [])]
    rows = []
    for name, row in zip(columns, points.itertuples(), strict=True):
        cost = [f"{row.selected_epsilon:.3g}" if np.isfinite(row.selected_epsilon) else NO_VALUE] if priced else []
        mark = f"{letters[row.chosen]}: " if row.chosen in letters else ""
        rows.append([ALGORITHM_LABELS[row.algorithm], name, f"{mark}{row.chosen}" or NO_VALUE,
                     *([f"{row.choices}"] if compared else []), *cost])
    return Table.of(header, rows, texts=(0, 1, 2))
