"""What is timed: training steps of the product, the matrix products alone that they cannot do without, and Opacus."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import torch

from pipeline.learning.data.dataset import Dataset, MappedFeatures, load
from pipeline.learning.data.inputs import largest_sizes
from pipeline.learning.own.alone import Alone
from pipeline.learning.own.building import initial_module
from pipeline.learning.train import prepare
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.datasets import DATASETS
from pipeline.trials.packs import Pack

ALONE = 16  # records of a step that computes them one after the other
Step = Callable[[], object]
Shape = tuple[int, int, int]  # (m, k, n) of a product [m, k] @ [k, n]


def records(dataset: str) -> Dataset:
    """digits, or `random_records`: a step's time is that of any values."""
    return load(dataset) if dataset == "digits" else random_records(dataset)


def random_records(dataset: str, device: torch.device | str = "cpu") -> Dataset:
    """As many random pixels and labels as the data set has records."""
    spec, generator = DATASETS[dataset].spec, torch.Generator().manual_seed(0)

    def part(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (torch.randint(int(spec.scale) + 1, (n, spec.n_features), dtype=torch.uint8,
                              generator=generator).to(device),
                torch.randint(spec.n_classes, (n,), generator=generator).to(device))

    return Dataset(spec, *part(spec.n_train), *part(spec.n_test))


def with_features(data: Dataset, config: TrialConfig) -> Dataset:
    """The same data set with random numbers in place of the features of a trial: one block of them, repeated."""
    features = config.parts.features
    width = math.prod(features.shape(config))
    block = torch.randn(1_000, width, generator=torch.Generator().manual_seed(0)).bfloat16()
    parts = block.repeat(-(-len(data.train_x) // 1_000), 1)[: len(data.train_x)], block
    data.mapped[features.key(config)] = MappedFeatures(parts, (largest_sizes(parts[0]), largest_sizes(block)))
    return data


def training_of(config: TrialConfig, data: Dataset, replicas: int = 1) -> Training:
    """A pack of `replicas` seeds, on the device of the data."""
    return prepare(Pack(tuple(TrialConfig(config.given, seed=s) for s in range(replicas))), data, data.train_x.device)


def training_step(config: TrialConfig, data: Dataset, replicas: int = 1) -> Step:
    """One `Training.step` of `training_of` per call, on the batches of an epoch in turn."""
    training = training_of(config, data, replicas)
    batches = itertools.cycle(training.sampler.epoch())
    return lambda: training.step(next(batches))


class HandWritten:
    """DFA without privacy as it is written by hand, in plain torch and float32 (Nokland 2016): torch's own layers,
    optimizer and tanh, inputs made floats beforehand. One step per call, from the weights and with the feedback matrix
    of a training, on the batches of its next epoch in turn."""

    def __init__(self, training: Training) -> None:
        self.config, data = training.pack.shared, training.data
        self.layers = [torch.nn.Linear(*sizes) for sizes in itertools.pairwise(self.config.layer_sizes)]
        for layer, weight, bias in zip(self.layers, training.net.parameters.weights, training.net.parameters.biases,
                                       strict=True):
            layer.load_state_dict({"weight": weight[0], "bias": bias[0]})
        self.matrices = training.feedback.matrices[0].split(self.config.hidden, dim=1)
        self.x, self.y = data.train_x.float() / data.spec.scale, data.train_y
        self.optimizer = torch.optim.SGD([p for layer in self.layers for p in layer.parameters()],
                                         lr=self.config.learning_rate, momentum=self.config.momentum)
        self.batches = itertools.cycle(training.sampler.epoch()[:, 0])

    @torch.no_grad()
    def __call__(self) -> None:
        indices = next(self.batches)
        activations = [self.x[indices]]
        for layer in self.layers[:-1]:
            activations.append(torch.tanh(layer(activations[-1])))
        error = torch.softmax(self.layers[-1](activations[-1]), dim=1)
        error[torch.arange(len(indices)), self.y[indices]] -= 1
        deltas = [error @ b * (1 - h**2) for b, h in zip(self.matrices, activations[1:], strict=True)] + [error]
        for layer, delta, h in zip(self.layers, deltas, activations, strict=True):
            layer.weight.grad, layer.bias.grad = delta.T @ h / len(indices), delta.mean(dim=0)
        self.optimizer.step()


def own_network_step(config: TrialConfig, data: Dataset, alone: bool = False) -> Step:
    """One step of a user's network on as many records as the batch size says, or on `ALONE` one after the other."""
    training = training_of(config, data)
    if alone:
        training.net.way, training.net.chunk = Alone(training.net.segments, training.net.n_classes), 1
    places = torch.arange(ALONE if alone else config.batch_size)[None]
    return lambda: training.step(places)


def products(config: TrialConfig) -> list[tuple[Shape, bool, bool]]:
    """The matrix products of one step of a fully connected network, forward, feedback, update: (shape, whether the left
    and whether the right factor lies transposed in memory)."""
    m, sizes = config.batch_size, config.layer_sizes
    layers = list(itertools.pairwise(sizes))
    forward = [((m, n_in, n_out), False, True) for n_in, n_out in layers]
    update = [((n_out, m, n_in), True, False) for n_in, n_out in layers]
    if config.algorithm == "bp":
        feedback = [((m, n_out, n_in), False, False) for n_in, n_out in layers[1:]]
    else:
        feedback = [((m, sizes[-1], sum(sizes[1:-1])), False, False)]
    return [*forward, *feedback, *update]


def floor(config: TrialConfig, replicas: int = 1, device: torch.device | str = "cpu") -> Step:
    """Those products alone, for every replica, in the trial's precision and into tensors that exist already; on a CPU
    one after the other, elsewhere as stacks, as `layers.matmul` multiplies."""
    dtype = getattr(torch, config.arithmetic)
    one_by_one = torch.device(device).type == "cpu"
    stack, multiply = ((), torch.mm) if one_by_one else ((replicas,), torch.bmm)

    def factor(rows: int, columns: int, transposed: bool) -> torch.Tensor:
        shape = (columns, rows) if transposed else (rows, columns)
        numbers = torch.randn(*stack, *shape, device=device).to(dtype)
        return numbers.mT if transposed else numbers

    prepared = [(factor(m, k, left), factor(k, n, right), torch.empty(*stack, m, n, dtype=dtype, device=device))
                for _ in range(replicas if one_by_one else 1) for (m, k, n), left, right in products(config)]

    def run() -> None:
        for left, right, out in prepared:
            multiply(left, right, out=out)

    return run


def opacus_step(config: TrialConfig, data: Dataset, mode: str) -> Step:
    """One step of Opacus' DP-SGD on the trial's network, batch size, clipping norm and noise, its batch made of floats
    beforehand, on the device of the data; `mode` as Opacus names it, "hooks" or "ghost"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine

    m, criterion = config.batch_size, torch.nn.CrossEntropyLoss()
    if config.parts.network.own:
        model = initial_module(config)
    else:
        layers = [module for n_in, n_out in itertools.pairwise(config.layer_sizes)
                  for module in (torch.nn.Linear(n_in, n_out), torch.nn.Tanh())][:-1]
        model = torch.nn.Sequential(*layers)
    model = model.to(data.train_x.device)
    x, y = data.train_x[:m].float() / data.spec.scale, data.train_y[:m]
    x = x.view(-1, *data.spec.shape) if config.parts.network.own else x
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
