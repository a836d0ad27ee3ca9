"""Shapes of layers from the settings alone (no torch), for counting, planning and networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

POOL = 2  # rows and columns of a pooling window, and its stride


@dataclass(frozen=True)
class DenseShape:
    """A fully connected layer from n_in to n_out units."""

    n_in: int
    n_out: int

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.n_out, self.n_in

    @property
    def parameters(self) -> int:
        """Return the number of weights and biases."""
        return self.n_out * self.n_in + self.n_out

    @property
    def multiplications(self) -> int:
        """Return the multiplications of one record's forward pass."""
        return self.n_out * self.n_in


@dataclass(frozen=True)
class ConvShape:
    """A convolution (stride 1, zero padding that keeps the size, odd kernel), followed by a 2 x 2 max pool."""

    in_channels: int  # of the input, as height and width
    height: int
    width: int
    out_channels: int  # filters
    kernel: int  # rows and columns of a filter

    @property
    def pooled(self) -> tuple[int, int, int]:
        """Return (channels, rows, columns) of the pooled output; an odd last row or column is left out."""
        return self.out_channels, self.height // POOL, self.width // POOL

    @property
    def n_in(self) -> int:
        """Return how many numbers of a record enter."""
        return self.in_channels * self.height * self.width

    @property
    def n_out(self) -> int:
        """Return how many numbers of a record leave the pool."""
        return math.prod(self.pooled)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Return (filters, channels of the input, rows of a filter, columns of a filter)."""
        return self.out_channels, self.in_channels, self.kernel, self.kernel

    @property
    def parameters(self) -> int:
        """Return the number of weights and biases, one bias for each filter."""
        return math.prod(self.weight_shape) + self.out_channels

    @property
    def multiplications(self) -> int:
        """Return the multiplications of one record's forward pass, those with padding included."""
        return self.height * self.width * math.prod(self.weight_shape)


@dataclass(frozen=True)
class BlockShape(DenseShape):
    """A block of a user's network, from n_in to n_out numbers of a record, with counts of its own."""

    trained: int  # parameters
    products: int  # multiplications of one record's forward pass

    @property
    def parameters(self) -> int:
        return self.trained

    @property
    def multiplications(self) -> int:
        return self.products


LayerShape = DenseShape | ConvShape


def n_parameters(layers: Sequence[LayerShape]) -> int:
    """Return the number of weights and biases of all layers."""
    return sum(layer.parameters for layer in layers)


def dense_shapes(sizes: Sequence[int]) -> tuple[DenseShape, ...]:
    """Return fully connected layers from n_0 to n_1, n_1 to n_2, ..."""
    return tuple(DenseShape(n_in, n_out) for n_in, n_out in itertools.pairwise(sizes))


def conv_shapes(image: tuple[int, int, int], channels: Sequence[int], kernel: int) -> tuple[ConvShape, ...]:
    """Return a convolution for each number of filters in `channels`.

    The first takes `image` (channels, rows, columns), each other the pooled output of the one before it.
    """
    shapes = []
    for filters in channels:
        shapes.append(ConvShape(*image, filters, kernel))
        image = shapes[-1].pooled
    return tuple(shapes)
