"""What direct feedback can reach of the weights: in a hidden layer, the column space of its B (at most n_L dimensions).

delta_i = (B e_i) * phi'(z_i) leaves that space only by phi'. Let Q [n, r] be an orthonormal basis of it. A record then
contributes Q Q^T delta_i h_i^T in place of delta_i h_i^T. B is public, so that this is a map of one record; it makes no
contribution longer. Bound, sum and noise are of the r rows Q^T delta_i h_i^T, and Q is applied to what was released. In
place of n noisy rows a layer has r <= n_L, however wide it is. Errors of softmax sum to 0, so that B e has n_L - 1
dimensions where errors are not ternarized.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.learning.integers.products import quantised
from pipeline.learning.network.layers import Dense, Matmul, matmul
from pipeline.learning.network.network import Network, Parameters
from pipeline.trials.config import TrialConfig

BASIS_STEPS = 2**12  # in integer arithmetic: of 1, in an orthonormal basis
RELEASED_STEPS = 2**24  # of the largest number that was released


class FeedbackSpace:
    """Coordinates of the learning signals of fully connected hidden layers, in the column spaces of their B.

    Args:
        shared: what the trials of a pack have in common.
        net: their networks.
        matrices: B of every trial [R, n_L, n_1 + ... + n_{L-1}], of the fully connected hidden layers.

    Raises:
        ValueError: without matrices.

    Attributes:
        bases: Q of every layer [R, n_l, r_l]; None for a layer whose signals stay as they are.
    """

    def __init__(self, shared: TrialConfig, net: Network, matrices: torch.Tensor | None) -> None:
        if matrices is None:
            raise ValueError("matrices: denoise needs the feedback matrix B, got None")
        matrices = matrices.double()
        if not shared.parts.feedback.ternary:  # a constant that is added to all of e changes nothing: it sums to 0
            matrices = matrices - matrices.mean(dim=1, keepdim=True)
        rank = matrices.shape[1] - (not shared.parts.feedback.ternary)
        widths = [layer.shape.n_out for layer in net.layers[:-1] if isinstance(layer, Dense)]
        bases = [torch.linalg.svd(block.mT, full_matrices=False)[0][..., :rank].float()
                 for block in matrices.split(widths, dim=2)]
        self.matmul: Matmul = matmul
        if shared.exact:
            self.matmul, bases = _exact_matmul, [basis.mul(BASIS_STEPS).round_().div_(BASIS_STEPS) for basis in bases]
        self.net = net
        self.bases = [*[None] * (len(net.layers) - 1 - len(bases)), *bases, None]  # convolutions come first

    def blank_parameters(self, replicas: int, device: torch.device | str, dtype: torch.dtype) -> Parameters:
        """Zeros in the shapes of sums and noise: r_l rows in place of n_l."""
        whole = self.net.blank_parameters(replicas, "meta").weights
        shapes = [(w.shape[1] if basis is None else basis.shape[2], w.shape[2])
                  for w, basis in zip(whole, self.bases, strict=True)]
        return self.net.layout(self.net.sizes, replicas, device, dtype, shapes)

    def coordinates(self, deltas: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Q^T delta [R, m, r_l] of the layers that have a basis; delta [R, m, n_l] itself of the others.

        """
        return [d if basis is None else matmul(d, basis) for d, basis in zip(deltas, self.bases, strict=True)]

    def write_outside(self, inside: Parameters, out: Parameters) -> None:
        """Write Q times what was released to `out`."""
        for basis, weight, bias, out_weight, out_bias in zip(self.bases, inside.weights, inside.biases, out.weights,
                                                             out.biases, strict=True):
            if basis is None:
                out_weight.copy_(weight)
                out_bias.copy_(bias)
            else:
                out_weight.copy_(self.matmul(basis, weight))
                out_bias.copy_(self.matmul(basis, bias.unsqueeze(2)).squeeze(2))


def _exact_matmul(basis: torch.Tensor, released: torch.Tensor) -> torch.Tensor:
    """basis [R, n, r], in steps of 1/4096, times what was released [R, r, k], rounded to 24 bits of its largest entry:
    float64 [R, n, k], exact."""
    products = []
    for q, x in zip(basis, released, strict=True):
        whole, step = quantised(x, RELEASED_STEPS)
        products.append(torch.mm(q.double(), whole.double()).mul_(step))
    return torch.stack(products)
