"""How well the applied update points along the true gradient. `Training` measures it on a few batches of an epoch."""

from __future__ import annotations

import torch

from pipeline.learning.feedback.algorithms import BackPropagation
from pipeline.learning.mechanisms.base import mean_outer_products
from pipeline.learning.network.network import Network, Parameters


def true_gradient(net: Network, error: torch.Tensor, activations: list[torch.Tensor], out: Parameters) -> None:
    """Write the gradient of the batch's mean loss to `out`: back-propagation without clipping or noise."""
    bp = BackPropagation()
    deltas = bp.deltas(bp.signals(error), net, activations, net.derivative)
    mean_outer_products(net, deltas, activations, error.shape[1], out)


def cosines(update: Parameters, gradient: Parameters) -> torch.Tensor:
    """Return the cosine between update and gradient per layer [R, L], over weights and biases; nan if one is zero."""
    layers = zip(update.layers, gradient.layers, strict=True)
    return torch.stack([_dot(u, g) / (_dot(u, u) * _dot(g, g)).sqrt() for u, g in layers], dim=1)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return row-wise dot products [R, n], [R, n] -> [R], one at a time: a row's bits must not depend on R."""
    return torch.stack([torch.dot(x, y) for x, y in zip(a, b, strict=True)])
