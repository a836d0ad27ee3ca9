"""How well two updates point along the true gradient. `Training` measures it on a few batches of an epoch.

One is the applied update. The other is the update that the feedback gives by itself, without the mechanism's clipping
and noise, as papers on direct feedback alignment measure it.
"""

from __future__ import annotations

import torch

from pipeline.learning.feedback.algorithms import BackPropagationPath, FeedbackPath
from pipeline.learning.mechanisms.base import mean_outer_products
from pipeline.learning.network.stacked import Parameters, StackedNetwork


def true_gradient(net: StackedNetwork, error: torch.Tensor, activations: list[torch.Tensor], out: Parameters) -> None:
    """Write the gradient of the batch's mean loss to `out`: the update of back-propagation."""
    feedback_update(BackPropagationPath(), net, error, activations, out)


def feedback_update(feedback: FeedbackPath, net: StackedNetwork, error: torch.Tensor, activations: list[torch.Tensor],
                    out: Parameters, present: torch.Tensor | None = None) -> None:  # as of `Training.deltas`
    """Write a batch's mean update by a feedback to `out`, without the mechanism's clipping and noise."""
    signals = feedback.signals(error)
    if present is not None:  # a device's own noise is in the padding too
        signals = [signal * present for signal in signals]
    deltas = feedback.deltas(signals, net, activations, net.derivative)
    mean_outer_products(net, deltas, activations, error.shape[1], out)


def cosines(update: Parameters, gradient: Parameters) -> torch.Tensor:
    """Return the cosine between update and gradient per layer [R, L], over weights and biases; nan if one is zero."""
    layers = zip(update.layers, gradient.layers, strict=True)
    return torch.stack([_dot(u, g) / (_dot(u, u) * _dot(g, g)).sqrt() for u, g in layers], dim=1)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return row-wise dot products [R, n], [R, n] -> [R], one at a time: a row's bits must not depend on R."""
    return torch.stack([torch.dot(x, y) for x, y in zip(a, b, strict=True)])
