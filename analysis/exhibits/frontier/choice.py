"""Choose the settings that represent a grid on a frontier, by validation accuracy; compute the price of the choice."""

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
    """Whether a noise setting is a target epsilon: `epsilon=3`, `label_epsilon=3`."""
    return setting.rpartition("=")[0].endswith("epsilon")


def candidates(runs: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Add columns on the settings of every algorithm, before any choice, to the runs.

    `point` identifies a setting, with all its seeds. `chosen` has the fields that differ along a curve, as text.
    `choice` identifies a set of candidates: the settings of one target, or all settings of an algorithm without a
    target if several have the same noise level; empty if there is no choice. `algorithm` becomes the method of a curve
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
    """Choose among `candidates` with a column `epsilon`, by mean validation accuracy at the last epoch.

    For a target it is the best setting; without a target, the Pareto front of epsilon and validation accuracy. Test
    accuracy is not used. The column `choices` has the number of compared settings.

    Raises:
        ReportError: if there is a choice, and a run lacks validation accuracy.
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
    """Add the column `selected_epsilon` to points of a frontier.

    It is the certified epsilon of all trials compared for a point, seeds included, by composition. Without a choice it
    is the point's own epsilon. It is empty if no price is proved.

    Args:
        points: from `frontier`, of any kind; no price is known for label epsilons.
        runs: the runs of the points.
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
    """Return the epsilon of compared trials, cached for all exhibits of a report: it takes seconds."""
    return selected_epsilon(trials, Selection(), dict(earlier)).value


def letters(points: pd.DataFrame) -> dict[str, str]:
    """Return chosen settings as text -> the letter that marks them in a figure, in order of appearance.

    After z come the numbers from 1 on. It is empty if there was no choice.
    """
    if points["choices"].max() == 1:
        return {}
    return {text: ascii_lowercase[place] if place < 26 else str(place - 25)
            for place, text in enumerate(dict.fromkeys(points["chosen"])) if text}


def table(points: pd.DataFrame, columns: Sequence[str], letters: Mapping[str, str]) -> Table:
    """Return a table of the settings of every point; after a choice, also the number of settings and its price.

    Args:
        points: points, with `selected_epsilon` from `price` if known.
        columns: name of each point's epsilon.
        letters: letters of settings in the figure.
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
