"""Means over seeds by cell, from which exhibits draw. Of several settings, the best by validation represents a cell."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.exhibits.metrics import METRICS
from analysis.labels import algorithm_labels, by_noise
from analysis.runs import Sweep, ask, load_runs, require_accuracy, setting_names, trials_of
from analysis.statistics import SUMMARY
from analysis.statistics import summarize as summary
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
    """Return the runs of each cell's best configuration, by mean validation accuracy at the last epoch.

    A cell is the runs with equal `by`; a configuration is all settings but the seed. Test accuracy is not used. Two
    columns are added: `chosen`, the fields that vary within any cell, as text (empty if none varies), and `choices`,
    the number of configurations in the cell. Where there are several, all runs need validation accuracy
    (`ReportError`).
    """
    varied_fields = varied(runs, by)
    setting_texts = [settings_text(trial, varied_fields) for trial in trials_of(runs)]
    runs = runs.assign(chosen=setting_texts, choices=1)
    if not varied_fields:  # one configuration in every cell: nothing to choose
        return runs
    require_accuracy(runs, SCORE)
    runs = runs.assign(key=ask(runs, setting_key))  # equal for runs of one configuration
    runs["score"] = runs.groupby([*by, "key"], dropna=False)[SCORE].transform("mean")
    cells = runs.groupby(list(by), dropna=False)
    runs["choices"] = cells["key"].transform("nunique")
    # For every run, the configuration with the best score in its cell; if scores are equal, the first declared one.
    best_key = cells["score"].transform("idxmax").map(runs["key"])
    return runs[runs["key"] == best_key].drop(columns=["key", "score"])


def cells(runs: Sweep, by: Sequence[str], value: str, carry: Sequence[str] = (),
          largest: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row per cell, the runs with equal columns `by`: mean and intervals of a value over seeds.

    If several settings share a cell, that with the best mean validation accuracy represents it.

    Args:
        runs: from `load_runs` (last epoch of every trial), or what it takes.
        by: columns of `runs`.
        value: `accuracy`, `worst_class` (percent of the test records), `alignment` (cosine, mean over hidden layers),
            or a column of numbers. Runs without the value are left out.
        carry: columns with one value in every cell.
        largest: columns of which a cell has the largest value, and none if a run has none.

    Returns:
        Columns: `by`, `metric` (the name of the value), `mean`, `half_width`, `low`, `high` (95% t interval),
        `bootstrap_low`, `bootstrap_high`, `n`, `carry`, `chosen` (the settings that represent the cell, as text),
        `choices` (how many settings the cell has), `largest`.

    Raises:
        ReportError: for runs without accuracy, or of which none has alignment; or if a choice is to be made and a run
            lacks validation accuracy.

    Example:
        >>> cells(load_runs("example"), ["algorithm", "setting"], "accuracy")[["algorithm", "setting", "mean", "n"]]
          algorithm    setting  mean  n
        0        bp  epsilon=1  80.0  1
        1        bp  epsilon=8  90.0  1
        2       dfa  epsilon=1  70.0  1
        3       dfa  epsilon=8  80.0  1
    """
    return averaged(best(load_runs(runs), by), by, value, (*carry, "chosen", "choices"), largest)


def averaged(runs: pd.DataFrame, by: Sequence[str], value: str, carry: Sequence[str] = (),
             largest: Sequence[str] = ()) -> pd.DataFrame:
    """Return means over the runs of every cell, whose runs differ only in their seed; otherwise as `cells`."""
    metric = METRICS.get(value)
    summarize = metric.summarize if metric else summary
    measured = runs.assign(value=metric.of(runs) if metric else runs[value]).dropna(subset="value")
    rows = []
    for values, cell in measured.groupby(list(by)):
        rows.append({**dict(zip(by, values, strict=True)), "metric": value, **summarize(cell["value"]),
                     **{name: cell[name].iloc[0] for name in carry},
                     **{name: cell[name].max(skipna=False) for name in largest}})
    return pd.DataFrame(rows, columns=[*by, "metric", *SUMMARY, *carry, *largest])


def ordered(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return a table sorted by these columns: algorithms as in all figures, noise as in `by_noise`, others by value."""
    def rank(column: pd.Series) -> pd.Series:
        if column.name not in ("algorithm", "setting"):
            return column
        order = list(algorithm_labels()) if column.name == "algorithm" else by_noise(column)
        return column.map({value: number for number, value in enumerate(order)})

    return table.sort_values(list(by), key=rank, kind="stable", ignore_index=True)
