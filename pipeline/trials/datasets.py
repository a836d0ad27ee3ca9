"""Facts about every data set, with which trials are validated and sweeps planned before any data is read (no torch)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.trials.condition import Trial
from pipeline.trials.fields import refuse
from pipeline.trials.part import Part, View, part, setting


@dataclass(frozen=True)
class DatasetSpec:
    """Public facts about one data set."""

    n_train: int  # official training records, before the validation split
    n_test: int  # official test records
    shape: tuple[int, ...]  # of one record, channels first for images
    n_classes: int  # number of labels
    mean: tuple[float, ...]  # constants per channel, on the [0, 1] scale, used by `inputs: standardized`
    std: tuple[float, ...]
    scale: float = 255.0  # the uint8 value that means 1
    # Of the records' bytes, training x and y, then test x and y (uint8; int64 labels above 256 classes). Empty if it is
    # not checked, or if the files have their own digests.
    sha256: str = ""
    # Whether `mean` and `std` were published with the data and are in general use, so that they count as public. Others
    # are statistics of private records, which no epsilon covers.
    published: bool = False
    # The most frequent class's share of the test records, if public: the accuracy of the best constant answer. 0 if it
    # is unknown, or if classes are equally frequent.
    majority: float = 0.0

    @property
    def n_features(self) -> int:
        """Return how many numbers a record has."""
        return math.prod(self.shape)

    def split_sizes(self, validation_fraction: float, records: int = 0) -> tuple[int, int]:
        """Return the numbers of (training, validation) records, of so many records; 0 takes all that there are."""
        n = records or self.n_train
        n_validation = round(n * validation_fraction)
        return n - n_validation, n_validation


class Data(Part):
    """A trial's records from one data set."""

    spec: ClassVar[DatasetSpec]
    validation_fraction: float = setting(
        0.1, "share of the training records held out for validation, drawn by seed; 0 trains on all, and test "
        "accuracy is logged after every epoch in place of validation accuracy: choose nothing by it", low=0, high=0.5)
    train_records: int = setting(
        0, "training records that are used at all, validation included, drawn by seed; 0 takes all", low=0, elide=True)

    @property
    def split_sizes(self) -> tuple[int, int]:
        """Return the numbers of (training, validation) records."""
        return self.spec.split_sizes(self.validation_fraction, self.train_records)

    def check(self, trial: Trial) -> None:
        """Refuse more records than there are, and an empty validation set."""
        refuse(self.train_records > self.spec.n_train, "train_records",
               f"must be at most the {self.spec.n_train} of {self.name}", self.train_records)
        refuse(self.validation_fraction and self.split_sizes[1] < 1, "validation_fraction",
               "leaves no validation record", self.validation_fraction, "0 does without")


def enter(name: str, spec: DatasetSpec, reader: Any, label: str = "") -> None:
    """Register a data set that the function `reader` (or its `module:attribute`) reads, as `dataset: <name>`."""
    part("dataset", name)(type(name, (Data,), {"spec": spec, "label": label, "works": reader}))


_READERS = "pipeline.learning.data.readers:"
enter("fashion_mnist", DatasetSpec(60_000, 10_000, (1, 28, 28), 10, (0.2860,), (0.3530,), published=True),
      _READERS + "fashion_mnist", "Fashion-MNIST")
enter("mnist", DatasetSpec(60_000, 10_000, (1, 28, 28), 10, (0.1307,), (0.3081,), published=True, majority=0.1135),
      _READERS + "mnist", "MNIST")
enter("cifar10", DatasetSpec(50_000, 10_000, (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
                             published=True), _READERS + "cifar10", "CIFAR-10")
enter("digits", DatasetSpec(1_437, 360, (1, 8, 8), 10, (0.3053,), (0.3760,), scale=16.0, majority=47 / 360),
      _READERS + "digits", "scikit-learn's digits")
enter("svhn", DatasetSpec(73_257, 26_032, (3, 32, 32), 10, (0.5,) * 3, (0.5,) * 3), _READERS + "svhn", "SVHN")

DATASETS: Mapping[str, DatasetSpec] = View("dataset", "spec")
DATASET_LABELS: Mapping[str, str] = View("dataset", "label")

# SHA-256 of the decompressed files
DIGESTS = {
    "fashion_mnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "cifar10": {
        "data_batch_1.bin": "af06af7e59043022e74c1de78435bb1e540c2a69c3c48a45046f06382ff3e474",
        "data_batch_2.bin": "2b73bdf0f23211b3b6d3765662fdd17ae3a18b5a52bcc586fcab5a8a9ac4de32",
        "data_batch_3.bin": "58c7214d1aba195372afb04f9eb65926777f4611a94a91b6a7b0081219697d36",
        "data_batch_4.bin": "54594a9f40dde9ea3050c26bd522a7dd79d6272eb9eb131ee26a57b4df0dcf51",
        "data_batch_5.bin": "4eba8c9ad546591656580c4fa2f6a1c22833a8ed65b38b15d5e7842d349c2ffb",
        "test_batch.bin": "a96c53182bf9bf85d78e8877085ad442fa0bb020460c8abfa23438f79173bc84",
    },
}
