"""The base class of mechanisms, with hooks that change nothing, and sums of outer products.

R trials with m records each; layer l maps h^{l-1} [R, m, n_{l-1}] to z^l [R, m, n_l], h^l = phi(z^l), and delta^l
[R, m, n_l] is the learning signal at z^l.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from pipeline.learning.network.stacked import Parameters, StackedNetwork
from pipeline.learning.randomness import Noise
from pipeline.trials import mechanism
from pipeline.trials.config import TrialConfig
from pipeline.trials.part import Workers


class MechanismStep(ABC):
    """Hooks of the training step, in the order `error`, `perturb`, `derivative`, `update`; `update` may call `factors`.

    Args:
        trials: the trials of one pack, each with its own parameters.
        net: the networks that they train.
        device: device of all tensors.
        matrices: feedback matrices B [R, n_classes, n_1 + ... + n_{L-1}], or None if they are not known.
    """

    def __init__(self, trials: Sequence[TrialConfig], net: StackedNetwork, device: torch.device,
                 matrices: torch.Tensor | None = None) -> None:
        self.net, self.batch_size, self.matrices = net, trials[0].batch_size, matrices

    def error(self, error: torch.Tensor) -> torch.Tensor:
        """Return the output error [R, m, n_L] for the feedback, for example clipped."""
        return error

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the feedback signals of the layers, for example with noise: each [R, m, n_l], before phi'."""
        return signals

    def derivative(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        """Return phi'(z^l) for the update, from h^l = phi(z^l); l starts at 1."""
        return self.net.derivative(h, layer)

    def factors(self, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the factors that replace delta^1..delta^L [R, m, n_l] in the bounded outer products."""
        return deltas

    def noise_sources(self) -> list[Noise]:
        """Return every noise source, always in the same order."""
        return []

    @abstractmethod
    def update(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        """Write the applied update, a mean over the batch, to `out`.

        Args:
            deltas: delta^1..delta^L, each [R, m, n_l].
            activations: h^0..h^{L-1}, each [R, m, n_{l-1}].
        """


def sum_outer_products(net: StackedNetwork, deltas: Sequence[torch.Tensor], activations: Sequence[torch.Tensor],
                       out: Parameters) -> None:
    """Write sum_i delta_i^l (h_i^{l-1})^T, in convolutions over positions too, and sum_i delta_i^l to `out`."""
    for layer, delta, h, weight, bias in zip(net.layers, deltas, activations, out.weights, out.biases, strict=True):
        layer.write_sum(delta, h, weight, bias)


def mean_outer_products(net: StackedNetwork, deltas: Sequence[torch.Tensor], activations: Sequence[torch.Tensor],
                        batch_size: int, out: Parameters) -> None:
    """Write the result of `sum_outer_products`, divided by the batch size m, to `out`."""
    sum_outer_products(net, [delta / batch_size for delta in deltas], activations, out)


MECHANISMS: Workers[type[MechanismStep]] = Workers()


@MECHANISMS.of(mechanism.NoMechanism)
class PlainStep(MechanismStep):
    """Applies the plain mean of the records' updates (Ohana et al. Eq. 3 and 4). No privacy."""

    def update(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        mean_outer_products(self.net, deltas, activations, self.batch_size, out)
