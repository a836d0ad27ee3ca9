"""The runs of a report for its headline and checks: the points shown, and the runs from which they were chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.exhibits.frontier.choice import choose
from analysis.exhibits.frontier.points import compared_epsilon, tightest, tried_runs
from analysis.exhibits.metrics import METRICS
from analysis.runs import MixedTrials, ReportError, ask
from pipeline.experiment.experiment import Experiment
from pipeline.trials.kinds import GUARANTEED
from pipeline.trials.naming import method, setting_key

KEY = ["dataset", "kind", "algorithm", "setting", "point"]  # identifies a point: one setting with all its seeds
Key = tuple[str, ...]  # values of `KEY`, or of its first columns
NO_FRONTIER = ""  # kind of runs on no frontier: each of their settings is a point


@dataclass(frozen=True)
class Evidence:
    """The shown and tried runs of a report.

    `shown` has the runs of the points, with the columns `KEY`, `epsilon`, `value` (test accuracy in percent), `chosen`
    and `choices` of `frontier.choice.choose`. `algorithm` is the method of a curve (`naming.method`).
    """

    shown: pd.DataFrame
    tried: pd.DataFrame  # all candidate runs of guaranteed kinds, with the columns `KEY` and `epsilon`
    experiment: Experiment
    refused: Mapping[tuple[str, str], str]  # (data set, kind) -> why there is no frontier

    @classmethod
    def of(cls, runs: pd.DataFrame, experiment: Experiment) -> Evidence:
        """Return the shown and tried runs of a report on an experiment, for its checks.

        Runs without a guaranteed epsilon, or of a kind without a frontier, are points on no frontier.
        """
        shown, tried, refused = [], [], {}
        for dataset, dataset_runs in runs.groupby("dataset", sort=False):
            on_no_frontier = pd.Series(True, dataset_runs.index)
            for kind in GUARANTEED:
                epsilon = tightest(dataset_runs, kind)
                if epsilon.isna().all():
                    continue
                try:
                    candidates = tried_runs(dataset_runs, kind).assign(kind=kind)
                    chosen = choose(candidates)
                    shown.append(chosen.assign(value=METRICS["accuracy"].of(chosen)))
                except (MixedTrials, ReportError) as error:
                    refused[dataset, kind] = str(error)
                    continue
                tried.append(candidates)
                on_no_frontier &= epsilon.isna()
            accuracy = dataset_runs.reindex(columns=["test/accuracy"])["test/accuracy"]  # NaN without the column
            rest = dataset_runs[on_no_frontier & accuracy.notna()]
            shown.append(rest.assign(algorithm=ask(rest, method), point=ask(rest, setting_key), kind=NO_FRONTIER,
                                     epsilon=float("nan"), value=100 * accuracy[rest.index], chosen="", choices=1))
        none_tried = runs[:0].assign(kind="", point="", epsilon=0.0)
        return cls(pd.concat(shown), pd.concat(tried) if tried else none_tried, experiment, refused)

    @cached_property
    def points(self) -> pd.DataFrame:
        """A row per point of the report.

        Columns: `KEY`, test accuracies of its seeds in percent (`values`), their `mean` and number `n`,
        `compared_epsilon` (its target, else its epsilon; NaN on no frontier), and `settings` (the number of candidate
        settings).
        """
        rows = self.shown.groupby(KEY, sort=False, as_index=False).agg(
            epsilon=("epsilon", "max"), values=("value", list), mean=("value", "mean"), n=("value", "size"))
        tried = self.tried.groupby(self._cell, as_index=False).agg(settings=("point", "nunique"))
        rows = rows.merge(tried, how="left", on=self._cell)
        return rows.assign(compared_epsilon=compared_epsilon(rows), settings=rows["settings"].fillna(1).astype(int))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The points as dictionaries, each with `key`, its values of `KEY`."""
        return [{**row, "key": tuple(row[name] for name in KEY)} for row in self.points.to_dict("records")]

    @property
    def curves(self) -> dict[Key, list[dict[str, Any]]]:
        """The points of each curve, as dictionaries, by (data set, kind of epsilon, algorithm)."""
        curves: dict[Key, list[dict[str, Any]]] = {}
        for row in self.rows:
            curves.setdefault(row["key"][:3], []).append(row)  # by the first columns of `KEY`
        return curves

    @property
    def _cell(self) -> list[str]:
        """Columns that a point's candidates share; in a search without the noise setting, which it may choose too."""
        return KEY[:3] if self.experiment.plan.asks else KEY[:4]

    @cached_property
    def _tried_at(self) -> dict[Key, pd.DataFrame]:
        return dict(list(self.tried.groupby(self._cell)))

    def rivals(self, point: Key) -> pd.DataFrame:
        """Return the runs of all settings among which a point's setting was chosen.

        They have the point's noise and, to within 1%, its epsilon. In a search they are all runs of the algorithm.
        """
        same_cell = self._tried_at[point[:len(self._cell)]]
        if self.experiment.plan.asks:
            return same_cell
        own_point = point[KEY.index("point")]
        epsilon = same_cell.loc[same_cell["point"] == own_point, "epsilon"].max()
        return same_cell[(same_cell["epsilon"] / epsilon - 1).abs() < 0.01]

    def only(self, dataset: str, kind: str, algorithms: Collection[str]) -> Evidence:
        """Return the evidence for a comparison of algorithms: their curves, and their runs on no frontier."""
        def matching(runs: pd.DataFrame) -> pd.DataFrame:
            return runs[(runs["dataset"] == dataset) & runs["algorithm"].isin(algorithms)
                        & runs["kind"].isin((kind, NO_FRONTIER))]

        return dataclasses.replace(self, shown=matching(self.shown), tried=matching(self.tried))
