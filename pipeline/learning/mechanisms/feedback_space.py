"""Project the gradients of direct feedback on the column space of B, which has at most n_L dimensions per layer.

delta_i = (B e_i) * phi'(z_i) leaves this space only through phi'. Let Q [n, r] be an orthonormal basis of the space.
A record then contributes Q Q^T delta_i h_i^T instead of delta_i h_i^T. B is public, so the projection depends on one
record only, and it makes no contribution longer. The r rows Q^T delta_i h_i^T are bounded and summed and get noise; Q
is applied to the release. A layer thus has r <= n_L noisy rows instead of n. Softmax errors sum to 0, so B e spans
n_L - 1 dimensions, unless errors are ternarized and B is not centred.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.learning.integers.products import quantised
from pipeline.learning.network.layers import Dense, Matmul, matmul
from pipeline.learning.network.stacked import Parameters, StackedNetwork
from pipeline.trials.config import TrialConfig
from pipeline.trials.feedback import is_centered

BASIS_STEPS = 2**12  # integer arithmetic: steps per 1 in an orthonormal basis
RELEASED_STEPS = 2**24  # steps of the largest released number


class FeedbackSpace:
    """Coordinates of learning signals in the column spaces of B, for fully connected hidden layers."""

    def __init__(self, shared: TrialConfig, net: StackedNetwork,
                 matrices: torch.Tensor | None) -> None:  # [R, n_L, n_1 + ... + n_{L-1}]
        if matrices is None:
            raise ValueError("matrices: denoise needs the feedback matrix B, got None")
        matrices = matrices.double()
        rank = matrices.shape[1]
        if not shared.parts.feedback.ternary or is_centered(shared):
            # e sums to 0, or B is centred already: subtracting B's mean over classes keeps B e
            matrices = matrices - matrices.mean(dim=1, keepdim=True)
            rank -= 1
        widths = [layer.shape.n_out for layer in net.layers[:-1] if isinstance(layer, Dense)]
        bases = [torch.linalg.svd(block.mT, full_matrices=False)[0][..., :rank].float()
                 for block in matrices.split(widths, dim=2)]
        self.matmul: Matmul = matmul
        if shared.exact:
            self.matmul = _exact_matmul
            bases = [basis.mul(BASIS_STEPS).round_().div_(BASIS_STEPS) for basis in bases]
        self.net = net
        n_convolutions = len(net.layers) - 1 - len(bases)
        # Q of every layer [R, n_l, r_l]; None for convolutions and the output layer, which keep their signals.
        self.bases = [*[None] * n_convolutions, *bases, None]

    def blank_parameters(self, replicas: int, device: torch.device | str, dtype: torch.dtype) -> Parameters:
        """Return zeros in the shapes of sums and noise: a layer with a basis has r_l rows instead of its n_l units."""
        weights = self.net.blank_parameters(replicas, "meta").weights  # on "meta": only their shapes are needed
        shapes = []
        for weight, basis in zip(weights, self.bases, strict=True):
            n_rows = weight.shape[1] if basis is None else basis.shape[2]
            shapes.append((n_rows, weight.shape[2]))
        return self.net.layout(self.net.sizes, replicas, device, dtype, shapes)

    def coordinates(self, deltas: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return Q^T delta [R, m, r_l] for layers with a basis, and delta [R, m, n_l] for the others."""
        return [d if basis is None else matmul(d, basis) for d, basis in zip(deltas, self.bases, strict=True)]

    def expand_to(self, inside: Parameters, out: Parameters) -> None:
        """Write the release to `out` in full coordinates: Q times the release `inside` for layers with a basis Q."""
        for basis, weight, bias, out_weight, out_bias in zip(self.bases, inside.weights, inside.biases, out.weights,
                                                             out.biases, strict=True):
            if basis is None:
                out_weight.copy_(weight)
                out_bias.copy_(bias)
            else:
                out_weight.copy_(self.matmul(basis, weight))
                out_bias.copy_(self.matmul(basis, bias.unsqueeze(2)).squeeze(2))


def _exact_matmul(basis: torch.Tensor, released: torch.Tensor) -> torch.Tensor:
    """Return the exact product of basis [R, n, r] and release [R, r, k]: float64 [R, n, k].

    The basis is in steps of 1/4096; the release is first rounded to 24 bits of its largest entry.
    """
    products = []
    for trial_basis, trial_release in zip(basis, released, strict=True):
        integers, step = quantised(trial_release, RELEASED_STEPS)
        products.append(torch.mm(trial_basis.double(), integers.double()).mul_(step))
    return torch.stack(products)
