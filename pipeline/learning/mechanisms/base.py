"""What all mechanisms have in common: hooks that leave things as they are, and sums of outer products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from pipeline.learning.network.network import Network, Parameters
from pipeline.learning.randomness import Noise
from pipeline.trials.config import TrialConfig


class Mechanism(ABC):
    """Four hooks, called in this order by the training step.

    Args:
        trials: of one pack, each with its own parameters.
        net: the networks that they train.
        device: where tensors live.
        matrices: the feedback matrices B [R, n_classes, n_1 + ... + n_{L-1}], where they are known.
    """

    def __init__(self, trials: Sequence[TrialConfig], net: Network, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        self.net, self.batch_size, self.matrices = net, trials[0].batch_size, matrices

    def error(self, error: torch.Tensor) -> torch.Tensor:
        """The output error [R, m, n_L] that feedback starts from."""
        return error

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """What feedback carries to the layers, before phi': each [R, m, n_l]."""
        return signals

    def derivative(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        """phi'(z^l) as the update uses it, from h^l = phi(z^l); l from 1."""
        return self.net.derivative(h, layer)

    def factors(self, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
        """What stands for delta^1..delta^L [R, m, n_l] in the outer products that are bounded and summed."""
        return deltas

    def noise_sources(self) -> list[Noise]:
        """All that draws noise here, always in the same order."""
        return []

    @abstractmethod
    def update(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        """Write the update that is applied, a mean over the batch, to `out`.

        Args:
            deltas: delta^1..delta^L, each [R, m, n_l].
            activations: h^0..h^{L-1}, each [R, m, n_{l-1}].
        """


def sum_outer_products(net: Network, deltas: Sequence[torch.Tensor], activations: Sequence[torch.Tensor],
                       out: Parameters) -> None:
    """Write sum_i delta_i^l (h_i^{l-1})^T and sum_i delta_i^l of every layer to `out`; for a convolution, the sum of
    such products over all its positions.

    Args:
        net: whose layers multiply.
        deltas: delta^1..delta^L, each [R, m, n_l].
        activations: h^0..h^{L-1}, each [R, m, n_{l-1}].
        out: overwritten, but for its gaps.
    """
    for layer, delta, h, weight, bias in zip(net.layers, deltas, activations, out.weights, out.biases, strict=True):
        layer.write_sum(delta, h, weight, bias)


def mean_outer_products(net: Network, deltas: Sequence[torch.Tensor], activations: Sequence[torch.Tensor],
                        batch_size: int, out: Parameters) -> None:
    """As `sum_outer_products`, divided by the batch size m."""
    sum_outer_products(net, [delta / batch_size for delta in deltas], activations, out)
