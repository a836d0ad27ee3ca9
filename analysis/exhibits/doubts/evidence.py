"""The runs of a report for its checks: the points that it shows, and the runs from which they were chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.exhibits.envelope import setting_keys
from analysis.exhibits.frontier.choice import candidates
from analysis.exhibits.frontier.points import GUARANTEED, asked, shown, tightest
from analysis.runs import MixedTrials, ReportError
from pipeline.experiment.experiment import Experiment
from pipeline.trials.naming import method

KEY = ["dataset", "kind", "algorithm", "setting", "point"]  # identifies a point: one setting with all its seeds
Key = tuple[str, ...]  # values of `KEY`, or of its first columns
NO_FRONTIER = ""  # kind of runs on no frontier: each of their settings is a point


@dataclass(frozen=True)
class Evidence:
    """The shown and tried runs of a report.

    Attributes:
        shown: the runs of the points, with the columns `KEY`, `epsilon`, `value` (test accuracy in percent), `chosen`
            and `choices` of `frontier.points.shown`. `algorithm` is the method of a curve (`naming.method`).
        tried: all candidate runs of guaranteed kinds, with the columns `KEY` and `epsilon`.
        experiment: the experiment.
        refused: (data set, kind) -> why there is no frontier.
    """

    shown: pd.DataFrame
    tried: pd.DataFrame
    experiment: Experiment
    refused: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, runs: pd.DataFrame, experiment: Experiment) -> Evidence:
        """Make the evidence of runs from `load_runs`.

        Runs without a guaranteed epsilon, or of a kind without a frontier, are points on no frontier.
        """
        points, tried, refused = [], [], {}
        for dataset, part in runs.groupby("dataset", sort=False):
            rest = pd.Series(True, part.index)
            for kind in GUARANTEED:
                has = tightest(part, kind)
                if has.isna().all():
                    continue
                try:
                    points.append(shown(part, kind).assign(kind=kind))
                except (MixedTrials, ReportError) as error:
                    refused[dataset, kind] = str(error)
                    continue
                tried.append(candidates(part.assign(epsilon=has).dropna(subset="epsilon"), kind).assign(kind=kind))
                rest &= has.isna()
            points.append(_bare(part[rest]))
        return cls(pd.concat(points), pd.concat(tried) if tried else runs[:0].assign(kind="", point="", epsilon=0.0),
                   experiment, refused)

    @cached_property
    def points(self) -> pd.DataFrame:
        """A row per point: `KEY`, `asked`, `values` of its seeds and their `mean` in percent, `n` seeds, `settings`.

        `asked` is its target, else its epsilon (NaN on no frontier). `settings` is the number of candidate settings.
        """
        rows = self.shown.groupby(KEY, sort=False, as_index=False).agg(
            epsilon=("epsilon", "max"), values=("value", list), mean=("value", "mean"), n=("value", "size"))
        tried = self.tried.groupby(self._cell, as_index=False).agg(settings=("point", "nunique"))
        rows = rows.merge(tried, how="left", on=self._cell)
        return rows.assign(asked=asked(rows), settings=rows["settings"].fillna(1).astype(int))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The points as dictionaries, each with `key`, its values of `KEY`."""
        return [{**row, "key": tuple(row[name] for name in KEY)} for row in self.points.to_dict("records")]

    @property
    def curves(self) -> dict[Key, list[dict[str, Any]]]:
        """The rows by curve: data set, kind of epsilon and algorithm."""
        found: dict[Key, list[dict[str, Any]]] = {}
        for row in self.rows:
            found.setdefault(row["key"][:3], []).append(row)
        return found

    @property
    def _cell(self) -> list[str]:
        """Columns that a point's candidates share; in a search without the noise setting, which it may choose too."""
        return KEY[:3] if self.experiment.search else KEY[:4]

    @cached_property
    def _tried_at(self) -> dict[Key, pd.DataFrame]:
        return dict(list(self.tried.groupby(self._cell)))

    def rivals(self, point: Key) -> pd.DataFrame:
        """Return the candidate runs of a point, given by its key.

        They have its noise and, to within 1%, its epsilon; in a search all runs of the algorithm are candidates.
        """
        same = self._tried_at[point[:len(self._cell)]]
        if self.experiment.search:
            return same
        own = same.loc[same["point"] == point[4], "epsilon"].max()
        return same[(same["epsilon"] / own - 1).abs() < 0.01]

    def only(self, dataset: str, kind: str, algorithms: Collection[str]) -> Evidence:
        """Return the evidence for a comparison: curves of these algorithms, and their runs on no frontier."""
        shown, tried = (runs[(runs["dataset"] == dataset) & runs["algorithm"].isin(algorithms)
                             & runs["kind"].isin((kind, NO_FRONTIER))] for runs in (self.shown, self.tried))
        return dataclasses.replace(self, shown=shown, tried=tried)


def _bare(runs: pd.DataFrame) -> pd.DataFrame:
    runs = runs[runs.reindex(columns=["test/accuracy"])["test/accuracy"].notna()]
    return runs.assign(algorithm=[method(row) for row in runs.to_dict("records")], point=setting_keys(runs),
                       kind=NO_FRONTIER, epsilon=float("nan"), value=100 * runs.get("test/accuracy", 0.0), chosen="",
                       choices=1)

