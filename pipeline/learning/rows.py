"""What layers take in: tensors or, in integer arithmetic, rows of 8-bit integers."""

from __future__ import annotations

import functools
from typing import Any

import torch

Activation = Any  # a tensor [R, m, n], or `Rows`


class Rows:
    """What a layer takes in.

    Attributes:
        values: int8 [R, m, n], in [-127, 127].
        step: what 1 stands for.
    """

    def __init__(self, values: torch.Tensor, step: float, squares: torch.Tensor | None = None) -> None:
        self.values, self.step = values, step
        if squares is not None:
            self.squares = squares

    @functools.cached_property
    def squares(self) -> torch.Tensor:
        """Squared norms of the rows of `values` [R, m, 1], float64, exact."""
        return exact_norm(self.values.float()).square_().round_()

    def real(self) -> torch.Tensor:
        """What the integers stand for [R, m, n], float32, exact."""
        return self.values.float().mul_(self.step)


def exact_norm(x: torch.Tensor) -> torch.Tensor:
    """Norms of rows [..., 1], float64. Of integers (times a power of two) whose squares sum to less than 2^53, they
    are the same in any order of summation."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)
