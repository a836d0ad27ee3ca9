"""Curves by epoch: the accuracy that all trials have, its means over seeds, and their bands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.exhibits.metrics import Metric
from analysis.runs import ReportError, load_history
from pipeline.tracking.reader import Reader
from pipeline.trials.records import ACCURACY

ACCURACIES = (ACCURACY, "test/accuracy")  # the first that all trials have by epoch is used


class MissingSeries(ReportError):
    """The runs lack data for a figure."""


def accuracy_by_epoch(runs: pd.DataFrame, store: Reader, is_complete: Callable[[pd.DataFrame], bool]
                      ) -> pd.DataFrame | None:
    """Return the history of the first accuracy that all runs have and that is complete; None if there is none.

    The column `accuracy_of` is `validation` or `test`.
    """
    for metric in ACCURACIES:
        history = load_history(store, runs, metric)
        if set(history["trial_key"]) == set(runs["trial_key"]) and is_complete(history):
            return history.assign(accuracy_of=metric.partition("/")[0])
    return None


def by_epoch(cell: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the mean of a metric over the trials of a history and its intervals: columns epoch and `SUMMARY`."""
    # A diverged trial stays in the mean with its last value; otherwise the curve would seem to recover.
    by_trial = cell.pivot(index="epoch", columns="trial_key", values="value").ffill() * metric.factor
    return pd.DataFrame([{"epoch": epoch, **metric.summarize(values.dropna())}
                         for epoch, values in by_trial.iterrows()])


def plot_band(ax: Axes, means: pd.DataFrame, x: str, **line_properties: Any) -> None:
    """Plot means over column `x`, with the band of their bootstrap intervals if n > 1."""
    (line,) = ax.plot(means[x], means["mean"], **line_properties)
    if (means["n"] > 1).any():
        ax.fill_between(means[x], means["bootstrap_low"], means["bootstrap_high"], color=line.get_color(), alpha=0.12,
                        linewidth=0)
