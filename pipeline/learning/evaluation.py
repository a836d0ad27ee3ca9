"""Count the records that a network classifies correctly, on the test set and on validation.

The test set is public. Validation records are private. `private_metrics` may restrict their release to one noisy
number per epoch, which epsilon covers (`accounting.evaluations`), or to nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import torch

from pipeline.accounting.evaluations import evaluation_noise, is_noisy
from pipeline.accounting.finite_precision import count_enlargement
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.inputs import Inputs
from pipeline.learning.mechanisms.fixed_point import FixedPointRelease
from pipeline.learning.randomness import GaussianNoise, RoundedNoise, seeds_of
from pipeline.learning.rows import Activation
from pipeline.trials.config import TrialConfig

EVALUATION_BATCH = 1_000


class Net(Protocol):
    """R networks that can be evaluated."""

    def forward(self, x: Activation) -> tuple[Any, torch.Tensor]:
        """Return (anything, logits [R, m, n_L]) of inputs [R, m, n_0]."""


class Evaluation:
    """Counts of correct records for R trials of a pack, with `validation` records [R, k].

    In secure or integer trials, counts are rounded to a grid and get noise on it, with a slightly larger deviation
    (`count_enlargement`).

    Attributes:
        followed: the part with an accuracy for every epoch: `validation`; `test` if nothing is held out; empty if
            validation accuracy is withheld.
        published: parts with counts that may be released.
    """

    def __init__(self, trials: tuple[TrialConfig, ...], data: Dataset, train_inputs: Inputs, test_inputs: Inputs,
                 validation: torch.Tensor) -> None:
        shared = trials[0]
        self.data, self.validation = data, validation
        self._inputs = {"validation": train_inputs, "test": test_inputs}
        if validation.shape[1]:
            self.followed = "" if shared.disclosure == "withheld" else "validation"
        else:
            self.followed = "test"
        self.published = ("validation", "test") if shared.disclosure == "plain" else ("test",)
        self.noise: GaussianNoise | RoundedNoise | None = None
        self._release: FixedPointRelease | None = None
        if is_noisy(shared):
            deviations = [evaluation_noise(t) for t in trials]
            if shared.secure or shared.exact:
                enlarged = [deviation * (1 + count_enlargement(deviation)) for deviation in deviations]
                self._release = FixedPointRelease(enlarged, (1,), torch.device("cpu"), seeds_of(trials), "evaluation")
                self.noise = self._release.noise
            else:
                self.noise = GaussianNoise([t.seed for t in trials], deviations, (1,), torch.device("cpu"),
                                           stream="evaluation")

    def noise_sources(self) -> list[GaussianNoise | RoundedNoise]:
        return [self.noise] if self.noise else []

    def metrics(self, net: Net, ended: Collection[int]  # replicas whose trials end
                ) -> tuple[list[dict[str, float]], list[dict[str, torch.Tensor]]]:
        """Return, by replica, the accuracies and the counts [2, classes] by split that may be released.

        Each trial has that of the split that is followed; those that end have the test set's too.
        """
        splits = dict.fromkeys(split for split in (self.followed, "test" if ended else "") if split)
        counts = {split: self.count(net, split) for split in splits}
        accuracies = {split: self.accuracy(split, of_split) for split, of_split in counts.items()}
        metrics = []
        for r in range(len(self.validation)):
            metrics.append({f"{split}/accuracy": accuracy[r] for split, accuracy in accuracies.items()
                            if split == self.followed or r in ended})
            if r in ended:
                metrics[r]["test/worst_class_accuracy"] = worst_class(counts["test"][r])
        published = [{split: of_split[r] for split, of_split in counts.items() if split in self.published}
                     for r in range(len(self.validation))]
        return metrics, published

    def count(self, net: Net, part: str) -> torch.Tensor:
        """Return the number of records and of correct records per class: [R, 2, n_classes], int64, on the CPU.

        A record with an output that is not finite, as after divergence, is not correct. Neither is an unusable record.
        """
        classes, replicas = self.data.spec.n_classes, len(self.validation)
        counts = torch.zeros(replicas, 2, classes, dtype=torch.int64, device=self.validation.device)
        if part == "validation":
            labels, indices = self.data.train_y, self.validation
        else:
            labels = self.data.test_y
            indices = torch.arange(len(labels), device=labels.device).expand(replicas, -1)
        for chunk in indices.split(EVALUATION_BATCH, dim=1):
            inputs = self._inputs[part]
            _, logits = net.forward(inputs.batch(chunk, reuse_buffer=True))
            y = labels[chunk]
            right = (logits.argmax(dim=-1) == y) & torch.isfinite(logits).all(dim=-1)
            if inputs.usable is not None:
                right &= inputs.usable[chunk]
            counts[:, 0].scatter_add_(1, y, torch.ones_like(y))
            counts[:, 1].scatter_add_(1, y, right.to(torch.int64))
        return counts.cpu()

    def accuracy(self, part: str, counts: torch.Tensor) -> list[float]:
        """Return each trial's share of correct records from counts [R, 2, n_classes].

        If validation accuracy is released with noise, a call for `validation` is one release.
        """
        n_records, n_correct = (counts[:, k].sum(dim=1, keepdim=True) for k in (0, 1))
        if part == "validation" and self._release:
            n_correct = self._release(n_correct.double())
        elif part == "validation" and self.noise:
            n_correct = n_correct + self.noise.next()
        return (n_correct / n_records).squeeze(1).tolist()


def worst_class(counts: torch.Tensor) -> float:
    """Return the lowest accuracy of any class, from counts [2, n_classes]."""
    return (counts[1] / counts[0]).min().item()
