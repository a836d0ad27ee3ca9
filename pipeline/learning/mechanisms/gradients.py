"""What n records contribute to one parameter: rows, or products that are cheaper to bound and to add than rows.

`OwnTraining` gets a list of these from `mapped` or `alone`, one for each trained parameter. Norms of rows are at
least the true ones, so that what is bounded by them is bounded whatever was rounded (docs/privacy.md, section 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 128  # squares that are added in float32
BLOCK_MARGIN = 1 + (BLOCK + 8) * 2.0**-24  # covers their rounding, in whatever order they are added
PRODUCT_MARGIN = 1 + 2.0**-20  # covers the rounding of a product's rows
GRAM_MARGIN = 2.0**-20
SMALLEST = 2.0**-126  # smaller squares are lost


@dataclass(frozen=True)
class GradientRows:
    """Gradients of n records as rows [n, d]."""

    values: Tensor

    def rows(self, records: slice = slice(None)) -> Tensor:
        """Return the gradients of some records, [n, d]."""
        return self.values[records]

    def squares(self) -> Tensor:
        """Return the squared norms [n], float64, rounded up; nan or infinity where a number is not finite."""
        return squares_of(self.values)

    def add_to(self, total: Tensor, factors: Tensor) -> None:  # [d], [n]
        """Add all gradients to a total, each times its factor."""
        total.addmv_(self.values.T, factors)

    def only(self, present: Tensor) -> GradientRows:
        """Return these gradients with zeros for records that are not `present` [n]."""
        return GradientRows(torch.where(present[:, None], self.values, 0.0))

    @property
    def width(self) -> int:
        """Return d."""
        return self.values.shape[1]


@dataclass(frozen=True)
class GradientProducts:
    """Gradients of n records as matrix products of `left` [n, p, t] and `right` [n, t, q], over t positions."""

    left: Tensor
    right: Tensor

    def rows(self, records: slice = slice(None)) -> Tensor:
        """Return the gradients of some records, [n, p q]."""
        return torch.bmm(self.left[records], self.right[records]).flatten(1)

    def squares(self) -> Tensor:
        """Return the squared norms [n], float64; nan or infinity where a number is not finite.

        They are rounded up if t = 1. Else ||sum_t l_t r_t^T||^2 is the sum of all (l_s . l_t)(r_s . r_t) in float32,
        whose rounding is relative to ||l||^2 ||r||^2: that is added with a margin, lest it hides a long gradient.
        """
        if self.left.shape[2] == 1:
            return squares_of(self.left[:, :, 0]) * squares_of(self.right[:, 0]) * PRODUCT_MARGIN
        grams = torch.bmm(self.left.mT, self.left), torch.bmm(self.right, self.right.mT)
        left, right = (gram.diagonal(dim1=1, dim2=2).sum(dim=1) for gram in grams)
        return ((grams[0] * grams[1]).sum(dim=(1, 2)) + left * right * GRAM_MARGIN).double()

    def add_to(self, total: Tensor, factors: Tensor) -> None:  # [p q], [n]
        """Add all gradients to a total, each times its factor."""
        left = (self.left * factors[:, None, None]).transpose(0, 1).flatten(1)
        total.view(len(left), -1).addmm_(left, self.right.flatten(0, 1))

    def only(self, present: Tensor) -> GradientProducts:
        """Return these gradients with zeros for records that are not `present` [n]."""
        places = present[:, None, None]
        return GradientProducts(torch.where(places, self.left, 0.0), torch.where(places, self.right, 0.0))

    @property
    def width(self) -> int:
        """Return p q."""
        return self.left.shape[1] * self.right.shape[2]


Gradients = GradientRows | GradientProducts


def squares_of(values: Tensor) -> Tensor:  # [n, d]
    """Return the squared norms [n] of rows, float64, rounded up; nan or infinity where a number is not finite."""
    whole = values.shape[1] // BLOCK * BLOCK
    squares = torch.linalg.vector_norm(values[:, whole:], dim=1).double().square()
    if whole:
        blocks = torch.linalg.vector_norm(values[:, :whole].unflatten(1, (-1, BLOCK)), dim=2)
        squares += blocks.double().square().sum(dim=1)
    return squares * BLOCK_MARGIN + values.shape[1] * SMALLEST


def product_of(left: Tensor, right: Tensor) -> Gradients:  # [n, p, t], [n, t, q]
    """Return products where their norms are cheaper than rows, else rows."""
    (_, p, t), q = left.shape, right.shape[2]
    products = GradientProducts(left, right)
    return products if t * t * (p + q) < t * p * q or t == 1 else GradientRows(products.rows())


def in_rows(gradients: Gradients) -> Gradients:
    """Return gradients whose norms are rounded up: products over several positions as rows."""
    is_rounded_up = isinstance(gradients, GradientRows) or gradients.left.shape[2] == 1
    return gradients if is_rounded_up else GradientRows(gradients.rows())


def rows_of(gradients: Sequence[Gradients]) -> Tensor:
    """Return the gradients of n records in all parameters as rows [n, d]."""
    return torch.cat([of_one.rows() for of_one in gradients], dim=1)


def add_all(gradients: Sequence[Gradients], total: Tensor, factors: Tensor) -> None:  # [d], [n]
    """Add the gradients in all parameters to a total, each record's times its factor."""
    slots = total.split([of_one.width for of_one in gradients])
    for of_one, slot in zip(gradients, slots, strict=True):
        of_one.add_to(slot, factors)


def norms(gradients: Sequence[Gradients]) -> Tensor:
    """Return the norms [n] of the records' gradients in all parameters, float64."""
    return torch.stack([of_one.squares() for of_one in gradients]).sum(dim=0).sqrt()
