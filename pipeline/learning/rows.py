"""Inputs of layers: tensors or, in integer arithmetic, rows of integers."""

from __future__ import annotations

import functools
from typing import Any

import torch

Activation = Any  # a tensor [R, m, n], or `IntegerRows`


class IntegerRows:
    """A layer's input as integers.

    Attributes:
        values: int8 [R, m, n], in [-127, 127], or int16 with two digits (`steps.is_fine`).
        step: the real number that integer 1 represents.
        scales: powers of two >= 1 by which the records are divided, so that they fit [R, m, 1]; None where all are 1.
    """

    def __init__(self, values: torch.Tensor, step: float, squares: torch.Tensor | None = None,
                 scales: torch.Tensor | None = None) -> None:
        self.values, self.step, self.scales = values, step, scales
        if squares is not None:
            self.squares = squares

    @functools.cached_property
    def squares(self) -> torch.Tensor:
        """Return the squared norms of the rows of `values` [R, m, 1], float64, exact."""
        return exact_norm(self.values.float()).square_().round_()

    def real(self) -> torch.Tensor:
        """Return the real numbers that the integers represent [R, m, n], float32, exact."""
        return self.scaled(self.values.float()).mul_(self.step)

    def real_squares(self) -> torch.Tensor:
        """Return the squared norms of the records, in real numbers [R, m, 1], float64."""
        squares = self.squares * self.step**2
        return squares if self.scales is None else squares * self.scales.double().square()

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [R, m, n] times the records' scales, exact."""
        return x if self.scales is None else x * self.scales


def exact_norm(x: torch.Tensor) -> torch.Tensor:
    """Return the norms of rows [..., 1], float64.

    For integers (times a power of two) with a sum of squares below 2^53, any order of summation gives the same norm.
    """
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)
