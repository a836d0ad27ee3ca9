"""What a trial is judged by in figures: test accuracy, that of its worst class, and alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.runs import ReportError, require_accuracy
from analysis.statistics import plus_minus, summarize
from pipeline.trials.datasets import DATASETS
from pipeline.trials.naming import counted
from pipeline.trials.network import Network
from pipeline.trials.part import parts_of


@dataclass(frozen=True)
class Metric:
    """A number per trial.

    Attributes:
        name: in tables and file names.
        label: on axes, with the unit.
        phrase: in sentences.
        low, high: what it can be.
        digits: after the point, in tables.
        key: of MLflow, a fraction; empty for alignment, which is a mean over keys.
        meaning: a sentence, where the phrase does not say it all.
    """

    name: str
    label: str
    phrase: str
    low: float
    high: float
    digits: int
    key: str = ""
    meaning: str = ""

    @property
    def factor(self) -> int:
        """From what is tracked to what is shown: accuracies are tracked as fractions and shown in percent."""
        return 100 if self.key else 1

    def summarize(self, values: Sequence[float]) -> dict[str, float]:
        """Mean and intervals over seeds, which stay within what the metric can be: `analysis.statistics.SUMMARY`."""
        return summarize(values, self.low, self.high)

    def text(self, mean: float, half_width: float) -> str:
        """A mean and its interval in a table (`analysis.statistics.plus_minus`)."""
        return plus_minus(mean, half_width=half_width, digits=self.digits, least=self.low, most=self.high)

    def of(self, runs: pd.DataFrame) -> pd.Series:
        """Its value at the last epoch of every trial: accuracies in percent, alignment as a cosine.

        A trial of which alignment was never measured, because it diverged in its first epoch or its update was zero,
        has none.

        Raises:
            ReportError: for a trial without accuracy, or trials of which none has alignment.
        """
        if self.key:
            require_accuracy(runs, self.key)
            return runs[self.key] * self.factor
        values = hidden_alignment(runs)
        if values.isna().all():
            raise ReportError(f"alignment: measured in none of {counted(len(runs), 'trial')} (alignment_batches >= 1 "
                              "measures it)")
        return values

    def floor(self, dataset: str) -> float:
        """What takes no learning: chance for accuracy, 0 for the worst class and for alignment."""
        return 100 / DATASETS[dataset].n_classes if self.name == "accuracy" else 0.0


# Accuracies that trials log, with their headings in tables of trials.
HEADINGS = {"test/accuracy": "test %", "validation/accuracy": "validation %",
            "test/worst_class_accuracy": "worst class %"}
METRICS = {metric.name: metric for metric in (
    Metric("accuracy", "Test accuracy (%)", "test accuracy (%)", 0, 100, 2, "test/accuracy"),
    Metric("worst_class", "Test accuracy of the worst class (%)", "worst-class test accuracy (%)", 0, 100,
           2, "test/worst_class_accuracy"),
    Metric("alignment", "Alignment of hidden layers\n(cosine)",
           "alignment (cosine, hidden layers)", -1, 1, 3,
           meaning="Alignment is the cosine of the applied update and the true gradient, mean over hidden layers."),
)}


def hidden_alignment(runs: pd.DataFrame) -> pd.Series:
    """Mean over hidden layers of `alignment/layer_<k>`, [-1, 1]; empty for a trial that lacks one of them.

    The output layer, whose learning signal is the error itself whatever the feedback, is left out.
    """
    def of_trial(row: pd.Series) -> float:
        if row["hidden"] is None:  # of a user's trainer nothing is known of layers
            return float("nan")
        convolutional = parts_of("network", Network)[row["network"]].convolutional
        hidden = len(row["hidden"]) + (len(row["channels"]) if convolutional else 0)
        return row.reindex([f"alignment/layer_{k}" for k in range(1, hidden + 1)]).astype(float).mean(skipna=False)
    return pd.Series([of_trial(row) for _, row in runs.iterrows()], index=runs.index, dtype=float)
