"""Learning: how a pack of trials trains. No files but data sets, no MLflow, no Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.learning.data.dataset import Dataset
    from pipeline.learning.data.download import DataError
    from pipeline.learning.training import Training, train

__all__ = ["DataError", "Dataset", "Training", "train"]

__getattr__, __dir__ = lazy(__name__, {"DataError": "data.download", "Dataset": "data.dataset",
                                       "Training": "training", "train": "training"})
