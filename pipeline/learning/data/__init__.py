"""Data sets, resident on the device, and which of their records a batch gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.learning.data.dataset import Dataset, load, register_dataset
    from pipeline.learning.data.download import DataError
    from pipeline.learning.data.maps import register_features

__all__ = ["DataError", "Dataset", "load", "register_dataset", "register_features"]

__getattr__, __dir__ = lazy(__name__, {"DataError": "download", "Dataset": "dataset", "load": "dataset",
                                       "register_dataset": "dataset", "register_features": "maps"})
