"""Networks, sound and not, as a plugin of tests."""

import torch
from torch import nn

from pipeline import network, setting


@network("perceptron", version=1, settings={"units": setting(16, "units of the hidden layers", low=1)})
def perceptron(trial, shape, n_classes):
    n = torch.Size(shape).numel()
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(n, trial.units), nn.Tanh()),
                         nn.Sequential(nn.Linear(trial.units, trial.units), nn.Tanh()),
                         nn.Linear(trial.units, n_classes))


@network("convolutions", version=1)
def convolutions(trial, shape, n_classes):
    """Of digits: 8 x 8 pixels."""
    return nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Tanh()),
                         nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.MaxPool2d(2), nn.Tanh()),
                         nn.Sequential(nn.Flatten(), nn.Linear(24, 16), nn.Tanh()),
                         nn.Linear(16, n_classes))


class Pair(nn.Module):
    def forward(self, x):
        return x, x


def _with(*layers):
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))


def _tied():
    first = nn.Linear(64, 64)
    return nn.Sequential(nn.Sequential(nn.Flatten(), first, nn.Tanh()), nn.Sequential(first, nn.Tanh()),
                         nn.Linear(64, 10))


FAULTY = {"batch_norm": lambda: _with(nn.BatchNorm1d(64)), "dropout": lambda: _with(nn.Dropout(0.1)),
          "pair": lambda: _with(Pair()), "tied": _tied, "frozen": lambda: _with().requires_grad_(False),
          "classes": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), "module": lambda: nn.Linear(64, 10),
          "shape": lambda: nn.Sequential(nn.Flatten(), nn.Linear(63, 10)), "raises": lambda: 1 / 0,
          "double": lambda: _with().double()}
for _name, _make in FAULTY.items():
    network(f"faulty_{_name}", version=1)(lambda trial, shape, n_classes, make=_make: make())
