"""What the proof for secure trials takes of products, looked at on the processor that trains: rows that know no place.

Two batches that differ in a record have the others in other places. They must contribute the same all the same, to the
last bit (docs/privacy.md, section 9, assumption (a)). Libraries choose kernels by the shapes of factors and by the
processor, and of some narrow products they compute a row in one way or another, by where it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pipeline.learning.data.sampling import ROWS
from pipeline.learning.mechanisms.gaussian import GaussianMechanism
from pipeline.trials.fields import ConfigError

if TYPE_CHECKING:
    from pipeline.learning.training import Training


def check_rows(training: Training) -> None:
    """Refuse a secure training if what a record contributes depends on where in the batch it stands.

    What a batch of random records contributes is computed, of as many rows as batches have, and that of the same
    records in another order behind others: the factors, and what the mechanism makes of them in float64.

    Raises:
        ConfigError: naming the widths.
    """
    net = training.net
    rows = training.sampler.capacity
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS + rows, net.sizes[0], generator=generator).to(training.device)
    labels = torch.randint(net.sizes[-1], (ROWS + rows,), generator=generator).to(training.device)
    order = torch.randperm(rows, generator=generator).to(training.device)
    moved = torch.cat([torch.arange(ROWS, device=training.device), ROWS + order])
    before, after = (_factors(training, inputs[places], labels[places])
                     for places in (torch.arange(ROWS, ROWS + rows, device=training.device), moved))
    if not all(torch.equal(x[:, order], y[:, ROWS:]) for x, y in zip(before, after, strict=True)):
        raise ConfigError("noise: 'secure' needs products of which a row does not depend on its place in the batch, "
                          f"and with layers of {list(net.sizes)} units they do on this processor, got 'secure'; use "
                          "multiples of 16 in `hidden` and `channels`, or noise 'research'")


def _factors(training: Training, inputs: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """All that is bounded of m records, and what bounds it, each [R, m, n], without optical noise."""
    replicas, mechanism = len(training.pack.trials), training.mechanism
    activations, logits = training.net.forward(inputs.expand(replicas, -1, -1))
    error, _ = training.loss(logits, labels.expand(replicas, -1))
    signals = training.feedback.signals(mechanism.error(error))
    deltas = training.feedback.deltas(signals, training.net, activations, mechanism.derivative)
    found = [*activations, *mechanism.factors(deltas)]
    if isinstance(mechanism, GaussianMechanism):
        coordinates = [delta.double() for delta in found[len(activations):]]
        for part in mechanism.bounded(coordinates, [h.double() for h in activations]):
            found += part
    return found
