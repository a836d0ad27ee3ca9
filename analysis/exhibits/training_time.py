"""Accuracy over training time, a panel for each noise.

A trial's seconds are its share of its pack's time, summed over epochs (`time/epoch_seconds`). They depend on the
machine: compare only trials of one sweep.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.epochs import ACCURACIES, BAND, MissingSeries, accuracy_by_epoch, by_epoch, plot_band
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.metrics import METRICS
from analysis.runs import by_noise, common_value, load_history, require_replicates, setting_label
from analysis.statistics import SUMMARY
from analysis.text import means_text
from pipeline.tracking.reader import Reader
from pipeline.trials.records import CLOCK

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
    """Return accuracy (`SUMMARY`, percent) and mean seconds since the start of training, over seeds, by epoch.

    Trials of one curve may differ only in their seed (`MixedTrials`), and all need time and accuracy of every epoch
    (`MissingSeries`).
    """
    require_replicates(runs)
    clock = load_history(store, runs, CLOCK)

    def is_complete(history: pd.DataFrame) -> bool:
        timed = history.merge(clock[["trial_key", "epoch"]], on=["trial_key", "epoch"])  # epochs with both values
        return set(timed["trial_key"]) == set(runs["trial_key"]) and len(timed) == len(clock)

    accuracy = accuracy_by_epoch(runs, store, is_complete)
    if accuracy is None:
        raise MissingSeries(f"training_time: needs {CLOCK}, and {' or '.join(ACCURACIES)}, of all trials by epoch")
    rows = []
    for (algorithm, setting), cell in accuracy.groupby(CURVES, sort=False):
        epoch_seconds = clock[clock["trial_key"].isin(cell["trial_key"])]
        by_trial = epoch_seconds.pivot(index="epoch", columns="trial_key", values="value")
        seconds = by_trial.cumsum().ffill().mean(axis=1)  # by epoch; a diverged trial keeps its last time
        means = by_epoch(cell, METRICS["accuracy"])
        rows.append(means.assign(algorithm=algorithm, setting=setting, seconds=means["epoch"].map(seconds),
                                 accuracy_of=common_value(cell["accuracy_of"])))
    return pd.concat(rows)[[*CURVES, "epoch", "seconds", "accuracy_of", *SUMMARY]]


def plot(table: pd.DataFrame) -> Figure:
    """Plot the table of `tabulate`: a panel for each noise, 3 x 2.8 inches, all on the same scales."""
    settings = by_noise(table["setting"])
    split = common_value(table["accuracy_of"])  # validation or test
    with style.theme():
        figure, axes = style.panels(len(settings), per_row=3, width=3.0, height=2.8, beside=(1.6, 0.0), sharex=True,
                                    sharey=True)
        for setting, ax in zip(settings, axes, strict=True):
            points = table[table["setting"] == setting]
            for algorithm in style.present(points):
                plot_band(ax, points[points["algorithm"] == algorithm], "seconds", **style.look(algorithm))
            ax.set_xlim(left=0)
            ax.set(title=setting_label(setting), xlabel="Seconds of training",
                   ylabel=f"{split.capitalize()} accuracy (%)")
        style.legend(figure, style.handles(table), style.seeds(table.groupby(CURVES)["n"].max(), BAND))
    return figure
