"""Randomised response on the labels, the simplest mechanism that hides them, as the baseline of label epsilon.

    PHOTONIC_DATA=... python experiments/ohana2021/randomised_response.py

It prints the row of docs/privacy.md, section 5. Every training label is kept with probability
e^epsilon/(e^epsilon + 9), and otherwise replaced by one of the nine others (Warner 1965; the pure epsilon-label-DP of
the whole run, delta 0). What is trained on them is the network of the label trials, by back-propagation, without any
noise or clipping; nothing was tuned.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from analysis.statistics import mean_interval, plus_minus
from pipeline.learning.data import Dataset, load
from pipeline.learning.train import train
from pipeline.trials import TrialConfig
from pipeline.trials.packs import Pack

EPSILONS = (0.5, 1, 2, 3, 5, 8)
TRIAL = TrialConfig(dataset="fashion_mnist", algorithm="bp", hidden=(256,), epochs=2, alignment_batches=0,
                    learning_rate=0.01)


def randomised(data: Dataset, epsilon: float, seed: int) -> Dataset:
    """The data set with randomised training labels; the test labels stay."""
    generator, classes = torch.Generator().manual_seed(seed), data.spec.n_classes
    labels = data.train_y
    keep = torch.rand(len(labels), generator=generator) < math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    other = (labels + torch.randint(1, classes, (len(labels),), generator=generator)) % classes
    return dataclasses.replace(data, train_y=torch.where(keep, labels, other))


def accuracy(data: Dataset, epsilon: float, seed: int) -> float:
    """Test accuracy in percent after the last epoch."""
    *_, (last,) = train(Pack((TrialConfig(TRIAL.given, seed=seed),)), randomised(data, epsilon, seed))
    return 100 * last.metrics["test/accuracy"]


def main() -> None:
    torch.set_num_threads(1)
    data, cells = load(TRIAL.dataset), []
    for epsilon in EPSILONS:
        found = [accuracy(data, epsilon, seed) for seed in range(3)]
        interval = mean_interval(found)
        cells.append(plus_minus(interval.mean, half_width=interval.half_width))
    print("| label epsilon |", " | ".join(f"{epsilon:g}" for epsilon in EPSILONS), "|")
    print("| randomised response |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
