"""What is known of every dataset before it is read: sizes, shapes, classes and public constants.

Importing this module costs nothing (no torch), so that configurations are validated, and sweeps planned,
without loading any data.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DatasetSpec:
    """Public facts about one dataset.

    Attributes:
        n_train: official training records, before the validation split.
        n_test: official test records.
        shape: shape of one record, channels first for images.
        n_classes: number of labels.
        mean, std: constants per channel, on the [0, 1] scale, used by `inputs: standardized`. Those of the benchmarks
            are in general use; those of digits are its training records' own, and standardizing by them is no part
            of any privacy statement.
        scale: the uint8 value that stands for 1.
    """

    n_train: int
    n_test: int
    shape: tuple[int, ...]
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0

    @property
    def n_features(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    def split_sizes(self, validation_fraction: float, records: int = 0) -> tuple[int, int]:
        """Sizes (train, validation) after `round(n * validation_fraction)` of n records are held out: n = n_train, or
        `records` where that is not 0."""
        n = records or self.n_train
        n_validation = round(n * validation_fraction)
        return n - n_validation, n_validation


DATASETS: dict[str, DatasetSpec] = {
    "fashion_mnist": DatasetSpec(60_000, 10_000, (1, 28, 28), 10, (0.2860,), (0.3530,)),
    "mnist": DatasetSpec(60_000, 10_000, (1, 28, 28), 10, (0.1307,), (0.3081,)),
    "cifar10": DatasetSpec(50_000, 10_000, (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "digits": DatasetSpec(1_437, 360, (1, 8, 8), 10, (0.3053,), (0.3760,), scale=16.0),
}
