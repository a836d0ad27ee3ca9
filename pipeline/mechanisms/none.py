"""No mechanism: the mean of the records' updates, as it is. No privacy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.config import TrialConfig
from pipeline.networks import Mlp, Parameters


def mean_outer_products(net: Mlp, deltas: Sequence[torch.Tensor], activations: Sequence[torch.Tensor],
                        out: Parameters) -> None:
    """Write (1/m) sum_i delta_i^l (h_i^{l-1})^T and (1/m) sum_i delta_i^l of every layer to `out`.

    Args:
        net: says in which precision to multiply.
        deltas: delta^1..delta^L, each [R, m, n_l].
        activations: h^0..h^{L-1}, each [R, m, n_{l-1}].
        out: overwritten, but for its gaps.
    """
    for delta, h, weight, bias in zip(deltas, activations, out.weights, out.biases, strict=True):
        mean = delta / h.shape[1]
        net.matmul(mean.transpose(1, 2), h, out=weight)
        torch.sum(mean, dim=1, out=bias)


class NoMechanism:
    """Leaves signals, derivatives and updates as they are (Eq. 3 and 4)."""

    def __init__(self, trials: Sequence[TrialConfig], net: Mlp, device: torch.device) -> None:
        self.net, self.derivative = net, net.derivative

    def perturb(self, signals: list[torch.Tensor]) -> list[torch.Tensor]:
        return signals

    def update(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        mean_outer_products(self.net, deltas, activations, out)
