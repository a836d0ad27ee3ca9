"""Average runs by cell; choose the setting that represents a cell, if more settings vary than a figure shows."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.exhibits.metrics import METRICS
from analysis.runs import ask, require_accuracy, setting_names, trials_of
from analysis.statistics import SUMMARY
from analysis.text import settings_text
from pipeline.experiment.factors import differing
from pipeline.trials.naming import setting_key

SCORE = "validation/accuracy"


def varied(runs: pd.DataFrame, by: Sequence[str], ignored: Sequence[str] = ("seed",)) -> list[str]:
    """Return the fields that differ among runs with equal columns `by`, in the order of `TrialConfig`."""
    cells = iter(runs.groupby(list(by), dropna=False).ngroup())
    differ = {*differing(trials_of(runs), lambda _: next(cells))} - {*by, *ignored}
    return [name for name in setting_names() if name in differ]


def best(runs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return each cell's runs of one setting: the one with the highest mean validation accuracy at the last epoch.

    Test accuracy is not used. Two columns are added: `chosen`, the fields that vary within any cell, as text (empty if
    none varies), and `choices`, the number of settings in the cell. Among several settings, all runs need validation
    accuracy (`ReportError`).
    """
    varied_fields = varied(runs, by)
    setting_texts = [settings_text(trial, varied_fields) for trial in trials_of(runs)]
    runs = runs.assign(chosen=setting_texts, choices=1)
    if not varied_fields:  # one setting in every cell: nothing to choose
        return runs
    require_accuracy(runs, SCORE)
    runs = runs.assign(key=ask(runs, setting_key))  # equal for runs of one setting
    runs["score"] = runs.groupby([*by, "key"], dropna=False)[SCORE].transform("mean")
    cells = runs.groupby(list(by), dropna=False)
    runs["choices"] = cells["key"].transform("nunique")
    # For every run, the setting with the best score in its cell; if scores are equal, the first declared one.
    best_key = cells["score"].transform("idxmax").map(runs["key"])
    return runs[runs["key"] == best_key].drop(columns=["key", "score"])


def best_cells(runs: pd.DataFrame, by: Sequence[str], metric: str, carry: Sequence[str] = (),
               largest: Sequence[str] = ()) -> pd.DataFrame:
    """Return the `cells` of the `best` settings, with the columns `chosen` and `choices`; errors as in `best`."""
    return cells(best(runs, by), by, metric, (*carry, "chosen", "choices"), largest)


def cells(runs: pd.DataFrame, by: Sequence[str], metric: str, carry: Sequence[str] = (),
          largest: Sequence[str] = ()) -> pd.DataFrame:
    """Return a metric at the last epoch, a row per cell: the columns `by`, `metric`, `SUMMARY`, `carry` and `largest`.

    Runs without a measured alignment are left out; errors as in `Metric.of`. `carry` are columns with one value in
    every cell, as its runs differ only in their seed. Of the columns `largest` a cell has the largest value, and none
    if a run has none.
    """
    measured = runs.assign(value=METRICS[metric].of(runs)).dropna(subset="value")
    rows = []
    for values, cell in measured.groupby(list(by)):
        rows.append({**dict(zip(by, values, strict=True)), "metric": metric, **METRICS[metric].summarize(cell["value"]),
                     **{name: cell[name].iloc[0] for name in carry},
                     **{name: cell[name].max(skipna=False) for name in largest}})
    return pd.DataFrame(rows, columns=[*by, "metric", *SUMMARY, *carry, *largest])
