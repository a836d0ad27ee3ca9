"""Networks with a leading replica axis; the forward pass keeps the activations for the learning rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.learning.network.layers import make_layer
from pipeline.learning.randomness import torch_generator
from pipeline.learning.rows import Activation
from pipeline.trials.config import TrialConfig
from pipeline.trials.shapes import LayerShape, dense_shapes


class Parameters:
    """R sets of weights and biases as views of one tensor, for optimizers that make one pass over all of them.

    Every block starts at a multiple of 64 bytes, with zeros as padding. Vectorised kernels then compute every replica
    in the same way, so its bits do not depend on R.

    Attributes:
        shapes: (rows, columns) of every layer's weights; by default (n_l, n_{l-1}).
        flat: [R, P].
        weights: W^l [R, n_l, n_{l-1}], l = 1..L; a convolution has one filter per row.
        biases: b^l [R, n_l]; a convolution has one per filter.
        layers: each layer's part of `flat` with weights, biases and padding [R, P_l].
    """

    def __init__(self, sizes: Sequence[int], replicas: int, device: torch.device | str = "cpu",  # (n_0, ..., n_L); R
                 dtype: torch.dtype = torch.float32, shapes: Sequence[tuple[int, int]] | None = None) -> None:
        self.shapes = shapes or [(shape.n_out, shape.n_in) for shape in dense_shapes(sizes)]
        self._lengths = [_padded(n_out * n_in) + _padded(n_out) for n_out, n_in in self.shapes]
        self.flat = torch.zeros(replicas, sum(self._lengths), device=device, dtype=dtype)
        self.layers = list(self.flat.split(self._lengths, dim=1))
        self.weights, self.biases = self.views(self.flat)

    def views(self, flat: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return views of the weights and biases in a tensor [R, P] with the layout of `flat`."""
        weights, biases = [], []
        for layer, (n_out, n_in) in zip(flat.split(self._lengths, dim=1), self.shapes, strict=True):
            weights.append(self._matrix(layer[:, : n_out * n_in], n_out, n_in))
            bias_start = _padded(n_out * n_in)
            biases.append(layer[:, bias_start: bias_start + n_out])
        return weights, biases

    @staticmethod
    def _matrix(numbers: torch.Tensor, n_out: int, n_in: int) -> torch.Tensor:
        return numbers.unflatten(1, (n_out, n_in))


def _padded(n: int) -> int:
    """Return the least multiple of 16 >= n: 16 numbers of float32 have 64 bytes."""
    return -(-n // 16) * 16


def _tanh_derivative(h: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(torch.ones((), device=h.device, dtype=h.dtype), h, h, value=-1)


def _sigmoid_derivative(h: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(h, h, h, value=-1)


def _relu_derivative(h: torch.Tensor) -> torch.Tensor:
    return (h > 0).to(h.dtype)


def _tanh_(z: torch.Tensor) -> torch.Tensor:
    # tanh z = 2 sigmoid(2z) - 1: within one or two last bits of 1, and four times as fast as torch's tanh on a CPU.
    return z.mul_(2).sigmoid_().mul_(2).sub_(1)


# phi (in place), and phi'(z) as a function of h = phi(z): z need not be kept.
ACTIVATIONS = {
    "tanh": (_tanh_, _tanh_derivative),
    "sigmoid": (torch.Tensor.sigmoid_, _sigmoid_derivative),
    "relu": (torch.Tensor.relu_, _relu_derivative),
}


class StackedNetwork:
    """R networks with softmax output: a layer maps h^{l-1} to z^l, and h^l = phi(z^l) (Ohana et al. Eq. 2).

    Each network draws its initial weights from its own `init` stream. `uniform`: weights and biases uniform on
    +-1/sqrt(fan_in). `glorot`: weights uniform on +-sqrt(6/(fan_in + fan_out)), biases 0. See `start_bound`.

    Attributes:
        layers: layers 1..L.
        sizes: (n_0, ..., n_L).
        parameters: all weights and biases.
        layout: memory layout of tensors with the shapes of weights and biases.
    """

    layout = Parameters

    def __init__(self, shapes: Sequence[LayerShape], activations: Sequence[str],  # of hidden layers, by `ACTIVATIONS`
                 seeds: Sequence[int], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32,
                 precision: torch.dtype | None = None,  # to which factors of products are rounded; `dtype` by default
                 *, init: str = "uniform", gain: float = 1.0) -> None:
        self.layers = [make_layer(shape, precision) for shape in shapes]
        self.sizes = (shapes[0].n_in, *(shape.n_out for shape in shapes))
        self._phi = [ACTIVATIONS[name] for name in activations]
        self.parameters = self.blank_parameters(len(seeds), device, dtype)
        for r, seed in enumerate(seeds):
            generator = torch_generator(seed, "init")
            for shape, *blocks in zip(shapes, self.parameters.weights, self.parameters.biases, strict=True):
                bound = gain * start_bound(shape, init)
                drawn_blocks = blocks[:1] if init == "glorot" else blocks  # weights only, or weights and biases
                for block in drawn_blocks:
                    block[r].copy_(self._drawn(block[r].shape, bound, generator))

    @staticmethod
    def _drawn(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> torch.Tensor:
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    def blank_parameters(self, replicas: int, device: torch.device | str = "cpu",
                         dtype: torch.dtype = torch.float32) -> Parameters:
        """Return zeros in the shapes of the weights and biases, for updates, gradients and noise."""
        matrices = [(shape[0], math.prod(shape[1:])) for shape in (layer.shape.weight_shape for layer in self.layers)]
        return self.layout(self.sizes, replicas, device, dtype, matrices)

    def forward(self, x: Activation) -> tuple[list[Activation], torch.Tensor]:
        """Return (h^0 = x, h^1, ..., h^{L-1}), each [R, m, n_l], and the logits z^L [R, m, n_L]."""
        activations = [x]
        *hidden, output = zip(self.layers, self.parameters.weights, self.parameters.biases, strict=True)
        for (phi, _), (layer, weight, bias) in zip(self._phi, hidden, strict=True):
            activations.append(phi(layer.forward(activations[-1], weight, bias)))
        layer, weight, bias = output
        return activations, layer.forward(activations[-1], weight, bias)

    def derivative(self, h: Activation, layer: int) -> torch.Tensor:
        """Return phi'(z^l) of hidden layer l, given h^l = phi(z^l); l starts at 1."""
        return self._phi[layer - 1][1](h)


def start_bound(shape: LayerShape, init: str) -> float:
    """Return the largest absolute value of an initial weight, before any gain.

    It is 1/sqrt(fan_in) or, for `glorot`, sqrt(6/(fan_in + fan_out)) (Glorot & Bengio 2010, Eq. 16). A filter of k x k
    has fan_in = C_in k^2 and fan_out = C_out k^2.
    """
    outputs, inputs, *kernel = shape.weight_shape
    kernel_size = math.prod(kernel)  # k^2; 1 for a fully connected layer
    if init == "uniform":
        return 1 / math.sqrt(inputs * kernel_size)
    return math.sqrt(6 / ((inputs + outputs) * kernel_size))


def make_network(config: TrialConfig, seeds: Sequence[int], device: torch.device | str = "cpu") -> StackedNetwork:
    """Make the network of a trial's settings, for R seeds."""
    convolutions = len(config.layers) - len(config.hidden) - 1
    activations = [config.conv_activation] * convolutions + [config.activation] * len(config.hidden)
    precision = getattr(torch, config.parts.arithmetic.factors)
    return StackedNetwork(config.layers, activations, seeds, device, precision=precision,
                          init=config.init, gain=config.init_gain)


def start_output(net: StackedNetwork, config: TrialConfig, matrices: torch.Tensor | None = None) -> None:
    """Set the output layer to the start that `output_init` names.

    With `feedback`, W^L is a multiple of the last hidden layer's B [R, n_L, n_1 + ... + n_{L-1}]. That layer then
    learns from the gradient's direction at once: W^L^T e and B e are parallel.
    """
    if config.output_init == "uniform":
        return
    weight = net.parameters.weights[-1]
    net.parameters.layers[-1].zero_()
    if config.output_init == "feedback":
        if matrices is None:
            raise ValueError("matrices: output_init 'feedback' needs the feedback matrix B, got None")
        last_b = matrices[:, :, -weight.shape[2]:]  # B of the last hidden layer
        last_b = last_b.double() if config.exact else last_b  # sums of squares are exact in float64
        deviation = last_b.square().mean(dim=(1, 2), keepdim=True).sqrt()
        weight.copy_(last_b * (config.output_std / deviation))
