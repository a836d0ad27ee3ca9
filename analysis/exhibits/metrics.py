"""Metrics in figures: test accuracy, test accuracy of the worst class, and alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.runs import ReportError, require_accuracy, trials_of
from analysis.statistics import plus_minus, summarize
from pipeline.trials.config import TrialConfig
from pipeline.trials.disclosure import ALIGNMENTS
from pipeline.trials.naming import counted


@dataclass(frozen=True)
class Metric:
    """A number per trial."""

    name: str  # in tables and file names
    label: str  # of axes, with the unit
    phrase: str  # in sentences
    low: float  # of its range
    high: float
    digits: int  # decimals in tables
    key: str = ""  # MLflow's, of a fraction; empty for alignment, which is a mean over keys
    meaning: str = ""  # a definition, if the phrase needs one
    short: str = ""  # above a panel, beside panels of other metrics
    layers: str = ""  # of alignment: what MLflow's keys of its layers begin with

    @property
    def heading(self) -> str:
        """The phrase at the beginning of a sentence."""
        return f"{self.phrase[0].upper()}{self.phrase[1:]}"

    @property
    def factor(self) -> int:
        """Factor from tracked values to those in tables: accuracies are tracked as fractions and shown in percent."""
        return 100 if self.key else 1  # alignment has no key

    def summarize(self, values: Sequence[float]) -> dict[str, float]:
        """Return mean and intervals over seeds, clipped to the metric's range: `analysis.statistics.SUMMARY`."""
        return summarize(values, self.low, self.high)

    def text(self, mean: float, half_width: float) -> str:
        """Return a mean and its interval as text (`analysis.statistics.plus_minus`)."""
        return plus_minus(mean, half_width=half_width, digits=self.digits, minimum=self.low, maximum=self.high)

    def of(self, runs: pd.DataFrame) -> pd.Series:
        """Return the metric's value at the last epoch of every trial: accuracies in percent, alignment as a cosine.

        Alignment is empty if it was never measured: the trial diverged in its first epoch, or its update was zero.
        Refused are runs if one lacks accuracy, or if all lack alignment.
        """
        if self.key:
            require_accuracy(runs, self.key)
            return runs[self.key] * self.factor
        values = hidden_alignment(runs, self.layers)
        if values.isna().all():
            raise ReportError(f"alignment: measured in none of {counted(len(runs), 'trial')} (it needs a "
                              "hidden layer, a finite first epoch and alignment_batches >= 1)")
        return values


UPDATE, FEEDBACK = ALIGNMENTS  # before the number of a layer
# Accuracies that trials log, with their headings in tables of trials.
HEADINGS = {"test/accuracy": "test %", "validation/accuracy": "validation %",
            "test/worst_class_accuracy": "worst class %"}
METRICS = {metric.name: metric for metric in (
    Metric("accuracy", "Test accuracy (%)", "test accuracy (%)", 0, 100, 2, "test/accuracy"),
    Metric("worst_class", "Test accuracy of the worst class (%)", "worst-class test accuracy (%)", 0, 100,
           2, "test/worst_class_accuracy"),
    Metric("alignment", "Alignment of the update (cosine)", "alignment of the released update (cosine, hidden layers)",
           -1, 1, 3, short="released update", layers=UPDATE, meaning="Alignment of the update: cosine of the released "
           "update, after clipping and noise, and the true gradient, mean over hidden layers."),
    Metric("feedback_alignment", "Alignment of the feedback (cosine)",
           "alignment of the feedback (cosine, hidden layers)", -1, 1, 3, short="feedback, before clipping and noise",
           layers=FEEDBACK, meaning="Alignment of the feedback: cosine of the update that it gives before clipping and "
           "noise, and the true gradient, mean over hidden layers."),
)}


def layer_name(number: int, trials: Sequence[TrialConfig]) -> str:
    """Return the name of a layer, from 1: `layer 2`, or `output layer` if it is that of all trials."""
    is_output = all(number == len(trial.layers) for trial in trials)
    return "output layer" if trials and is_output else f"layer {number}"


def feedback_is_measured(runs: pd.DataFrame) -> bool:
    """Whether all trials logged the alignment of the feedback itself, as those of earlier versions did not."""
    return bool(hidden_alignment(runs, FEEDBACK).notna().all())


def hidden_alignment(runs: pd.DataFrame, layers: str) -> pd.Series:
    """Return the mean of an alignment over hidden layers, [-1, 1]; empty if a trial lacks a layer.

    The output layer is left out: its learning signal is the error itself for every kind of feedback.
    """
    values = []
    for trial, (_, row) in zip(trials_of(runs), runs.iterrows(), strict=True):
        keys = [f"{layers}{layer}" for layer in range(1, len(trial.layers))]  # of hidden ones, convolutions included
        values.append(row.reindex(keys).astype(float).mean(skipna=False))
    return pd.Series(values, index=runs.index, dtype=float)
