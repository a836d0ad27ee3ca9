"""Facts about every data set, with which trials are validated and sweeps planned before any data is read (no torch)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from pipeline.trials.condition import Trial
from pipeline.trials.fields import refuse
from pipeline.trials.part import Part, part, parts_of, setting


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
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ...; empty where the numbers are the names

    @property
    def n_features(self) -> int:
        """Return how many numbers a record has."""
        return math.prod(self.shape)

    def split_sizes(self, validation_fraction: float, records: int = 0) -> tuple[int, int]:
        """Return the numbers of (training, validation) records, of `records` official training ones; 0 takes all."""
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
        0, "training records that are used at all, validation included, drawn by seed; 0 takes all", low=0)

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


@part("dataset", "fashion_mnist")
class FashionMnist(Data):
    """Zalando's images of clothes (Xiao et al. 2017)."""

    label = "Fashion-MNIST"
    spec = DatasetSpec(
        60_000, 10_000, (1, 28, 28), 10, (0.2860,), (0.3530,), published=True,
        classes=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
                 "Ankle boot"))


@part("dataset", "mnist")
class Mnist(Data):
    """Handwritten digits (LeCun et al. 1998)."""

    label = "MNIST"
    spec = DatasetSpec(60_000, 10_000, (1, 28, 28), 10, (0.1307,), (0.3081,), published=True, majority=0.1135)


@part("dataset", "cifar10")
class Cifar10(Data):
    """Small colour photographs (Krizhevsky 2009)."""

    label = "CIFAR-10"
    spec = DatasetSpec(
        50_000, 10_000, (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), published=True,
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"))


@part("dataset", "digits")
class Digits(Data):
    """Handwritten digits of 8 x 8 pixels, bundled with scikit-learn."""

    label = "scikit-learn's digits"
    spec = DatasetSpec(1_437, 360, (1, 8, 8), 10, (0.3053,), (0.3760,), scale=16.0, majority=47 / 360)


@part("dataset", "svhn")
class Svhn(Data):
    """House numbers (Netzer et al. 2011)."""

    label = "SVHN"
    spec = DatasetSpec(73_257, 26_032, (3, 32, 32), 10, (0.5,) * 3, (0.5,) * 3)


DATASETS = parts_of("dataset", Data)  # by name; extensions appear when they are registered
