"""What is timed: training steps of the product, the matrix products alone that they cannot do without, and Opacus."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable

import torch

from pipeline.learning.data.dataset import Dataset, load
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.datasets import DATASETS
from pipeline.trials.packs import Pack

Step = Callable[[], object]
Shape = tuple[int, int, int]  # (m, k, n) of a product [m, k] @ [k, n]


def records(dataset: str) -> Dataset:
    """digits, or as many random pixels and labels as the data set has records: a step's time is that of any values."""
    if dataset == "digits":
        return load(dataset)
    spec, generator = DATASETS[dataset], torch.Generator().manual_seed(0)

    def part(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (torch.randint(0, 256, (n, spec.n_features), dtype=torch.uint8, generator=generator),
                torch.randint(0, spec.n_classes, (n,), generator=generator))

    return Dataset(spec, *part(spec.n_train), *part(spec.n_test))


def training_step(config: TrialConfig, data: Dataset, replicas: int = 1) -> Step:
    """One `Training.step` of a pack of `replicas` seeds per call, on the batches of an epoch in turn."""
    training = Training(Pack(tuple(dataclasses.replace(config, seed=s) for s in range(replicas))), data,
                        torch.device("cpu"))
    batches = itertools.cycle(training.sampler.epoch())
    return lambda: training.step(next(batches))


def products(config: TrialConfig) -> list[tuple[Shape, bool, bool]]:
    """The matrix products of one step of a fully connected network, forward, feedback, update: (shape, whether the left
    and whether the right factor lies transposed in memory)."""
    m, sizes = config.batch_size, config.layer_sizes
    layers = list(zip(sizes, sizes[1:], strict=False))
    forward = [((m, n_in, n_out), False, True) for n_in, n_out in layers]
    update = [((n_out, m, n_in), True, False) for n_in, n_out in layers]
    if config.algorithm == "bp":
        feedback = [((m, n_out, n_in), False, False) for n_in, n_out in layers[1:]]
    else:
        feedback = [((m, sizes[-1], sum(sizes[1:-1])), False, False)]
    return [*forward, *feedback, *update]


def floor(config: TrialConfig, replicas: int = 1) -> Step:
    """Those products alone, for every replica, in the trial's precision and into tensors that exist already."""
    dtype = getattr(torch, config.matmul_precision)

    def factor(rows: int, columns: int, transposed: bool) -> torch.Tensor:
        return (torch.randn(columns, rows).T if transposed else torch.randn(rows, columns)).to(dtype)

    prepared = [(factor(m, k, left), factor(k, n, right), torch.empty(m, n, dtype=dtype))
                for _ in range(replicas) for (m, k, n), left, right in products(config)]

    def run() -> None:
        for left, right, out in prepared:
            torch.mm(left, right, out=out)

    return run


def opacus_step(config: TrialConfig, data: Dataset, mode: str) -> Step:
    """One step of Opacus' DP-SGD on the trial's network, batch size, clipping norm and noise, its batch made of floats
    beforehand; `mode` as Opacus names it, "hooks" or "ghost"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine

    sizes, m = config.layer_sizes, config.batch_size
    layers = [module for n_in, n_out in zip(sizes, sizes[1:], strict=False)
              for module in (torch.nn.Linear(n_in, n_out), torch.nn.Tanh())][:-1]
    model, criterion = torch.nn.Sequential(*layers), torch.nn.CrossEntropyLoss()
    x, y = data.train_x[:m].float() / data.spec.scale, data.train_y[:m]
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=m)
    ghost = {"grad_sample_mode": "ghost", "criterion": criterion} if mode == "ghost" else {"grad_sample_mode": mode}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, *rest = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=config.noise_multiplier,
            max_grad_norm=config.clipping_norm, poisson_sampling=False, **ghost)
    criterion = rest[0] if mode == "ghost" else criterion

    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()

    return run
