"""Accuracy over training time, a panel for each noise.

A trial's seconds are its share of its pack's time, summed over epochs (`time/epoch_seconds`). They depend on the
machine: compare only trials of one sweep.
"""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.figure2 import MissingSeries, by_epoch
from analysis.exhibits.metrics import METRICS
from analysis.runs import by_noise, common_value, load_history, require_replicates, setting_label
from analysis.statistics import SUMMARY
from analysis.style import handles, look, panels, present, seeds, theme
from analysis.text import means_text
from pipeline.tracking.reader import Reader
from pipeline.trials.records import ACCURACY, CLOCK

ACCURACIES = (ACCURACY, "test/accuracy")  # the first that all trials have by epoch is used
CURVES = ["algorithm", "setting"]


@exhibit("training_time")
def draw(runs: pd.DataFrame, store: Reader) -> Exhibit:
    """Make the exhibit of runs with histories in the store; errors as in `tabulate`."""
    table = tabulate(runs, store)
    split = common_value(table["accuracy_of"])  # validation or test
    caption = (f"{split.capitalize()} accuracy over mean seconds of training (a trial's share of its pack's), one "
               f"panel per noise: {means_text(table['n'], 'with 95% bootstrap bands')}")
    return Exhibit.of_means("training_time", title="Accuracy over training time", caption=caption, rows=table,
                            figure=plot(table))


def tabulate(runs: pd.DataFrame, store: Reader) -> pd.DataFrame:
    """Return accuracy after every epoch, over seeds.

    Columns: algorithm, setting, epoch, seconds (since the start of training, mean over seeds), accuracy_of
    (`validation` or `test`), and `SUMMARY` in percent. A trial that diverged keeps its last accuracy and time. Trials
    of one curve may differ only in their seed (`MixedTrials`), and all need time and accuracy of every epoch
    (`MissingSeries`).
    """
    require_replicates(runs)
    clock = load_history(store, runs, CLOCK)
    metric, accuracy = _accuracy_history(runs, store, clock)
    split, _ = metric.split("/")  # validation or test
    rows = []
    for (algorithm, setting), cell in accuracy.groupby(CURVES, sort=False):
        epoch_seconds = clock[clock["trial_key"].isin(cell["trial_key"])]
        by_trial = epoch_seconds.pivot(index="epoch", columns="trial_key", values="value")
        seconds = by_trial.cumsum().ffill().mean(axis=1)  # since the start of training, by epoch
        table = by_epoch(cell, METRICS["accuracy"])
        rows.append(table.assign(algorithm=algorithm, setting=setting, seconds=table["epoch"].map(seconds),
                                 accuracy_of=split))
    return pd.concat(rows)[[*CURVES, "epoch", "seconds", "accuracy_of", *SUMMARY]]


def _accuracy_history(runs: pd.DataFrame, store: Reader, clock: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return (metric, its history): the first of `ACCURACIES` that every trial has for every epoch with a time."""
    for metric in ACCURACIES:
        accuracy = load_history(store, runs, metric)
        timed = accuracy.merge(clock[["trial_key", "epoch"]], on=["trial_key", "epoch"])  # epochs with both values
        if set(timed["trial_key"]) == set(runs["trial_key"]) and len(timed) == len(clock):
            return metric, accuracy
    raise MissingSeries(f"training_time: needs {CLOCK}, and {' or '.join(ACCURACIES)}, of all trials by epoch")


def plot(table: pd.DataFrame) -> Figure:
    """Plot the table of `tabulate`: a panel for each noise, 3 x 2.8 inches, all on the same scales."""
    settings = by_noise(table["setting"])
    split = common_value(table["accuracy_of"])  # validation or test
    with theme():
        figure, axes = panels(len(settings), per_row=3, width=3.0, height=2.8, beside=(1.6, 0.0), sharex=True,
                              sharey=True)
        for setting, ax in zip(settings, axes, strict=True):
            panel(table[table["setting"] == setting], ax)
            ax.set(title=setting_label(setting), xlabel="Seconds of training",
                   ylabel=f"{split.capitalize()} accuracy (%)")
        title = seeds(table.groupby(CURVES)["n"].max(), "mean, 95% bootstrap band")
        figure.legend(handles=handles(table), title=title, loc="outside right center", alignment="left")
    return figure


def panel(table: pd.DataFrame, ax: Axes) -> Axes:
    """Plot accuracy over seconds at one noise, a curve for each algorithm."""
    for algorithm in present(table):
        points = table[table["algorithm"] == algorithm]
        (line,) = ax.plot(points["seconds"], points["mean"], **look(algorithm))
        if (points["n"] > 1).any():
            ax.fill_between(points["seconds"], points["bootstrap_low"], points["bootstrap_high"],
                            color=line.get_color(), alpha=0.12, linewidth=0)
    ax.set_xlim(left=0)
    sns.despine(ax=ax)
    return ax
