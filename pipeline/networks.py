"""Networks with a leading replica axis, whose forward pass keeps what the learning rules need."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from pipeline.randomness import torch_generator


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None,
           precision: torch.dtype | None = None) -> torch.Tensor:
    """Product of stacks [R, m, k] @ [R, k, n] -> [R, m, n], into `out` if given, in the type of `a`.

    On a CPU one product per replica is faster than a batched one, and the bits of a replica's result do not depend on
    R; a GPU gets one batched product.

    Args:
        precision: type to which the factors are rounded; sums are kept in float32 and the result is rounded once.
    """
    if precision is None:
        precision = a.dtype
    if a.device.type != "cpu":
        product = torch.bmm(a.to(precision), b.to(precision))
        return product.to(a.dtype) if out is None else out.copy_(product)
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2]) if out is None else out
    factors_a, factors_b = a.to(precision), b.to(precision)
    for r in range(a.shape[0]):
        if precision == a.dtype:
            torch.mm(factors_a[r], factors_b[r], out=out[r])
        else:
            out[r].copy_(torch.mm(factors_a[r], factors_b[r]))
    return out


class Parameters:
    """R sets of weights and biases as views of one tensor, so that an optimizer makes one pass over all of them.

    Every block starts at a multiple of 64 bytes; the gaps are zero. Vectorised kernels then treat an element of a
    replica alike wherever the replica stands, and its bits do not depend on R.

    Args:
        sizes: (n_0, ..., n_L).
        replicas: R.
        device, dtype: of the tensor.

    Attributes:
        flat: [R, P].
        weights: W^l [R, n_l, n_{l-1}], l = 1..L.
        biases: b^l [R, n_l].
        layers: for every layer the part of `flat` with its weights, biases and gaps [R, P_l].
    """

    def __init__(self, sizes: Sequence[int], replicas: int, device: torch.device | str = "cpu",
                 dtype: torch.dtype = torch.float32) -> None:
        shapes = [(n_out, n_in) for n_in, n_out in zip(sizes, sizes[1:], strict=False)]
        blocks = [(_padded(n_out * n_in), _padded(n_out)) for n_out, n_in in shapes]
        self.flat = torch.zeros(replicas, sum(map(sum, blocks)), device=device, dtype=dtype)
        self.layers = list(self.flat.split([sum(block) for block in blocks], dim=1))
        self.weights = [layer[:, : n_out * n_in].view(replicas, n_out, n_in)
                        for layer, (n_out, n_in) in zip(self.layers, shapes, strict=True)]
        self.biases = [layer[:, block[0]: block[0] + n_out]
                       for layer, block, (n_out, _) in zip(self.layers, blocks, shapes, strict=True)]


def _padded(n: int) -> int:
    return -(-n // 16) * 16


def _tanh_derivative(h: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(torch.ones((), device=h.device, dtype=h.dtype), h, h, value=-1)


def _sigmoid_derivative(h: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(h, h, h, value=-1)


def _relu_derivative(h: torch.Tensor) -> torch.Tensor:
    return (h > 0).to(h.dtype)


def _tanh_(z: torch.Tensor) -> torch.Tensor:
    # tanh z = 2 sigmoid(2z) - 1, to the last bit or two of 1, in a quarter of the time of torch's own on a CPU.
    return z.mul_(2).sigmoid_().mul_(2).sub_(1)


# phi (in place), and phi'(z) written as a function of h = phi(z), so that z need not be kept.
ACTIVATIONS = {
    "tanh": (_tanh_, _tanh_derivative),
    "sigmoid": (torch.Tensor.sigmoid_, _sigmoid_derivative),
    "relu": (torch.Tensor.relu_, _relu_derivative),
}


class Mlp:
    """R fully connected networks with softmax output: z^l = W^l h^{l-1} + b^l, h^l = phi(z^l) (Ohana et al. Eq. 2).

    Weights and biases start uniform on +-1/sqrt(n_{l-1}), each network from its own `init` stream.

    Args:
        sizes: (n_0, ..., n_L).
        activation: key of `ACTIVATIONS`, of all hidden layers.
        seeds: R seeds of trials.
        device, dtype: of all tensors.
        precision: type to which the factors of matrix products are rounded; `dtype` by default.

    Attributes:
        parameters: all weights and biases.
        matmul: `matmul` in the network's precision, for whoever multiplies its activations or weights.
    """

    def __init__(self, sizes: Sequence[int], activation: str, seeds: Sequence[int],
                 device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32,
                 precision: torch.dtype | None = None) -> None:
        self.sizes = tuple(sizes)
        self.matmul = functools.partial(matmul, precision=precision)
        self.phi, self._derivative = ACTIVATIONS[activation]
        self.parameters = Parameters(self.sizes, len(seeds), device, dtype)
        for r, seed in enumerate(seeds):
            generator = torch_generator(seed, "init")
            for weight, bias in zip(self.parameters.weights, self.parameters.biases, strict=True):
                bound = 1 / math.sqrt(weight.shape[2])
                for block in (weight[r], bias[r]):
                    block.copy_(torch.empty(block.shape).uniform_(-bound, bound, generator=generator))

    def forward(self, x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Run the networks.

        Args:
            x: inputs [R, m, n_0].

        Returns:
            activations: [h^0 = x, h^1, ..., h^{L-1}], each [R, m, n_l].
            logits: z^L [R, m, n_L].
        """
        activations = [x]
        *hidden, output = zip(self.parameters.weights, self.parameters.biases, strict=True)
        for weight, bias in hidden:
            activations.append(self.phi(self._affine(activations[-1], weight, bias)))
        return activations, self._affine(activations[-1], *output)

    def _affine(self, h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self.matmul(h, weight.transpose(1, 2)).add_(bias.unsqueeze(1))

    def derivative(self, h: torch.Tensor) -> torch.Tensor:
        """phi'(z^l) for a hidden layer, from h^l = phi(z^l)."""
        return self._derivative(h)
