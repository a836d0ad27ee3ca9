"""Score how well a trainer's models know its canaries: an audit from outside can see nothing else."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.learning.canaries import Canaries
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.inputs import Inputs

REFERENCE = 2000  # largest number of test records in the ridge regression
RIDGE = 0.1  # its penalty, relative to the mean squared norm of a record


class CanaryScores:
    """Sums the log-probability of each canary's wrong label over models.

    Some wrong labels are likely even if the canary is no member. Ridge regression on test records predicts the
    canary's wrong and right labels. A linear fit over all canaries subtracts the part that these predictions explain.
    """

    def __init__(self, canaries: Canaries, data: Dataset, train_inputs: Inputs, test_inputs: Inputs) -> None:
        self._canaries, self._data, self._train, self._test = canaries, data, train_inputs, test_inputs
        self.total = np.zeros(canaries.indices.shape[1])

    def add(self, logits: torch.Tensor) -> None:
        """Add one model, by its logits of the canaries [1, k, classes]."""
        self.total -= self._canaries.losses(logits)[0].double().cpu().numpy()

    def scores(self) -> np.ndarray:
        """Return each canary's score [k], higher if it seems to be a member; membership is not used."""
        indices = self._canaries.indices[0]  # of the only trial
        wrong_labels, right_labels = self._canaries.labels_of(self._canaries.indices)[0], self._data.train_y[indices]
        predictions = self._ridge(indices)
        columns = [predictions.gather(1, labels[:, None])[:, 0].cpu().numpy()
                   for labels in (wrong_labels, right_labels)]
        design = np.stack([*columns, np.ones_like(self.total)], axis=1)
        coefficients = np.linalg.lstsq(design, self.total, rcond=None)[0]
        return self.total - design @ coefficients

    def _ridge(self, indices: torch.Tensor) -> torch.Tensor:
        """Return one-hot labels [k, classes] of the training records at `indices`, predicted by ridge regression."""
        y = self._data.test_y[:REFERENCE]
        x = _with_intercept(self._test.batch(torch.arange(len(y), device=y.device)))
        canaries = _with_intercept(self._train.batch(indices))
        kernel = x @ x.T
        kernel.diagonal().add_(RIDGE * kernel.diagonal().mean())
        targets = torch.nn.functional.one_hot(y, self._data.spec.n_classes).double()
        return canaries @ (x.T @ torch.linalg.solve(kernel, targets))


def _with_intercept(inputs: torch.Tensor) -> torch.Tensor:
    """Return inputs [n, n_0] as float64 with a further column of ones [n, n_0 + 1]."""
    return torch.nn.functional.pad(inputs.double(), (0, 1), value=1.0)
