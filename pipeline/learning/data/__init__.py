"""Data sets, resident on the device, and which of their records a batch gets."""

from pipeline.learning.data.dataset import Dataset, load, register_dataset
from pipeline.learning.data.download import DataError
from pipeline.learning.data.maps.registered import register_features

__all__ = ["DataError", "Dataset", "load", "register_dataset", "register_features"]
