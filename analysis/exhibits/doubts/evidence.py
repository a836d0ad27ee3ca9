"""The runs of a report as checks take them: the points that it shows, and what these were chosen among."""

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

KEY = ["dataset", "kind", "algorithm", "setting", "point"]  # of a point: one setting, all of its seeds
Key = tuple[str, ...]  # values of `KEY`, or of the first of them
NO_FRONTIER = ""  # kind of runs that are on no frontier: each of their settings is a point


@dataclass(frozen=True)
class Evidence:
    """What a report shows of its runs.

    Attributes:
        shown: the runs behind the points, with the columns `KEY`, `epsilon`, `value` (test accuracy in percent),
            `chosen` and `choices` of `frontier.points.shown`. `algorithm` is what a curve is of (`naming.method`).
        tried: the runs that those of guaranteed kinds were chosen among, with the columns `KEY` and `epsilon`.
        experiment: what the runs are of.
        refused: by data set and kind why there is no frontier.
    """

    shown: pd.DataFrame
    tried: pd.DataFrame
    experiment: Experiment
    refused: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, runs: pd.DataFrame, experiment: Experiment) -> Evidence:
        """Of runs from `load_runs`. Runs without a guaranteed epsilon, or of a kind of which there is no frontier, are
        points of no frontier."""
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
        """A row per point: the columns `KEY`, `asked` (its target, else its epsilon; NaN on no frontier), `values` of
        its seeds and their `mean` in percent, `n` seeds, and `settings`: how many it was chosen among."""
        rows = self.shown.groupby(KEY, sort=False, as_index=False).agg(
            epsilon=("epsilon", "max"), values=("value", list), mean=("value", "mean"), n=("value", "size"))
        tried = self.tried.groupby(self._cell, as_index=False).agg(settings=("point", "nunique"))
        rows = rows.merge(tried, how="left", on=self._cell)
        return rows.assign(asked=asked(rows), settings=rows["settings"].fillna(1).astype(int))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The points as dictionaries, each with its `key`: its values of `KEY`."""
        return [{**row, "key": tuple(row[name] for name in KEY)} for row in self.points.to_dict("records")]

    @property
    def curves(self) -> dict[Key, list[dict[str, Any]]]:
        """The rows by data set, kind and algorithm."""
        found: dict[Key, list[dict[str, Any]]] = {}
        for row in self.rows:
            found.setdefault(row["key"][:3], []).append(row)
        return found

    @property
    def _cell(self) -> list[str]:
        """What the settings have in common that a point is chosen among: of a search, which may ask for noise as well,
        the algorithm alone."""
        return KEY[:3] if self.experiment.search else KEY[:4]

    @cached_property
    def _tried_at(self) -> dict[Key, pd.DataFrame]:
        return dict(list(self.tried.groupby(self._cell)))

    def rivals(self, point: Key) -> pd.DataFrame:
        """The runs that a point, given by its key, was chosen among: at its noise and, to within 1%, at its epsilon; of
        a search all."""
        same = self._tried_at[point[:len(self._cell)]]
        if self.experiment.search:
            return same
        own = same.loc[same["point"] == point[4], "epsilon"].max()
        return same[(same["epsilon"] / own - 1).abs() < 0.01]

    def only(self, dataset: str, kind: str, algorithms: Collection[str]) -> Evidence:
        """That of a comparison: the curves of these algorithms, and their runs that are on no frontier."""
        shown, tried = (runs[(runs["dataset"] == dataset) & runs["algorithm"].isin(algorithms)
                             & runs["kind"].isin((kind, NO_FRONTIER))] for runs in (self.shown, self.tried))
        return dataclasses.replace(self, shown=shown, tried=tried)


def _bare(runs: pd.DataFrame) -> pd.DataFrame:
    runs = runs[runs.reindex(columns=["test/accuracy"])["test/accuracy"].notna()]
    return runs.assign(algorithm=[method(row) for row in runs.to_dict("records")], point=setting_keys(runs),
                       kind=NO_FRONTIER, epsilon=float("nan"), value=100 * runs.get("test/accuracy", 0.0), chosen="",
                       choices=1)

