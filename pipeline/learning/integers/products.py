"""Exact products of small integers.

Entries of the first factor are in [-127, 127], entries of the second in [-64, 64]. `torch._int_mm` returns wrong sums
without an error in two cases: larger second factors on processors without VNNI, and a single row or column anywhere.
So every shape is tested with large entries before its first use. If the test fails, or if int8 products are slow, as on
processors without AVX512, chunks of float32 products replace it; their sums stay below 2^24 and are exact.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from pipeline.trials.steps import BASE, LARGEST_FIRST, LARGEST_SECOND, LARGEST_SIGNAL

FLOAT32_TERMS = 2**24 // (LARGEST_FIRST * LARGEST_SECOND)
FLOAT32_ROWS = 512
LARGEST_FLOAT = 2.0**100  # replaces larger numbers, and infinity
TIMED_SHAPE, TIMED_ROUNDS = (256, 512, 64), 3  # products by which int8 and float32 are compared
CUDA_ROWS, CUDA_MULTIPLE = 17, 8  # `_int_mm` on a GPU: least number of rows; divisor of terms and columns


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a b, int32 [m, n], exact, for int8 a [m, k] in [-127, 127], k <= `steps.MAX_TERMS`, and b in [-64, 64]."""
    if torch.compiler.is_exporting():  # for any processor, and any m: kernels are chosen and tested for one
        return (a.double() @ b.double()).to(torch.int32)
    (m, k), (_, n) = a.shape, b.shape
    if by_int8(a.device, m, k, n, a.is_contiguous(), b.is_contiguous()):
        return _by_int8(a, b)
    return _by_float32(a, b)


def by_int8(device: torch.device, m: int, k: int, n: int, rows_first: bool = True, rows_second: bool = True) -> bool:
    """Return whether [m, k] @ [k, n], each stored by row or by column, is faster in int8, and correct."""
    return int8_is_faster(device, rows_first, rows_second) and int8_is_exact(device, m, k, n, rows_first, rows_second)


@functools.cache
def int8_is_faster(device: torch.device, rows_first: bool = True, rows_second: bool = True) -> bool:
    """Return whether int8 products are faster than float32 ones, by their times here; on a GPU they are.

    Both kernels give the same bits. Without AVX512 int8 products were 10 to 180 times slower.
    """
    if device.type != "cpu":
        return True
    m, k, n = TIMED_SHAPE
    a, b = (torch.ones(shape, dtype=torch.int8) for shape in ((m, k), (k, n)))
    a, b = _stored(a, rows_first), _stored(b, rows_second)
    times: dict[Callable[..., torch.Tensor], float] = {}
    for _ in range(TIMED_ROUNDS):
        for compute in (_by_int8, _by_float32):
            begin = time.perf_counter()
            compute(a, b)
            times[compute] = min(time.perf_counter() - begin, times.get(compute, math.inf))
    return times[_by_int8] < times[_by_float32]


@functools.cache
def int8_is_exact(device: torch.device, m: int, k: int, n: int, rows_first: bool = True, rows_second: bool = True
                  ) -> bool:
    """Return whether int8 products are correct, by a test; `by_int8` explains the arguments."""
    if min(m, k, n) < 2:  # `_int_mm` misreads the strides of a single row or column
        return False
    # Odd and unequal entries, the largest included, with both signs. All terms of a sum have one sign, for large sums.
    rows = _cycled(m, (127, -125, 1, 123, -127, 63), device)
    columns = _cycled(n, (64, -61, 3, -64, 57), device)
    signs = _cycled(k, (1, 1, -1, 1, -1, -1, 1), device)  # cancel in every term
    a, b = _outer(rows, signs, rows_first), _outer(signs, columns, rows_second)
    return torch.equal(_by_int8(a, b), k * rows.int()[:, None] * columns.int())


def _outer(first: torch.Tensor, second: torch.Tensor, by_rows: bool) -> torch.Tensor:
    """Return the products of all pairs of two int8 vectors [m, n], int8, stored row by row or column by column."""
    return torch.outer(first, second) if by_rows else torch.outer(second, first).t()


def _stored(matrix: torch.Tensor, by_rows: bool) -> torch.Tensor:
    """Return a matrix that is stored row by row, or else the same one stored column by column."""
    return matrix if by_rows else matrix.t().contiguous().t()


def _cycled(count: int, values: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return the first `count` of the values, repeated as often as needed [count]."""
    return torch.tensor(values, dtype=torch.int8, device=device).repeat(-(-count // len(values)))[:count]


def kernel(device: torch.device, sizes: Sequence[int], m: int) -> str:
    """Return the kernel of a network's large products, in batches of m: `int8`, or `float32` (see `by_int8`)."""
    for n_in, n_out in itertools.pairwise(sizes):
        if min(n_in, n_out) == 1:
            continue  # a small product, which float32 always computes
        outputs = (m, n_in, n_out, True, False)  # arguments of `by_int8`
        sums_of_contributions = (n_in, m, 2 * n_out, False, True)
        if not by_int8(device, *outputs) or not by_int8(device, *sums_of_contributions):
            return "float32"
    return "int8"


def _by_int8(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a [m, k] @ b [k, n], int8, as int32; a GPU's kernel needs certain sizes and terms side by side."""
    if a.device.type != "cuda":
        return torch._int_mm(a, b)
    m, n = a.shape[0], b.shape[1]
    more_terms, more_columns = (-size % CUDA_MULTIPLE for size in b.shape)
    a = F.pad(a, (0, more_terms, 0, max(0, CUDA_ROWS - m)))  # zeros at the left, right, top and bottom
    by_column = F.pad(b.t(), (0, more_terms, 0, more_columns))
    return torch._int_mm(a.contiguous(), by_column.contiguous().t())[:m, :n]


def _by_float32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product a [m, k] @ b [k, n] of int8 matrices as int32 [m, n], from float32 products.

    Each has so few terms that its sums stay below 2^24, where float32 is exact, and so few rows that their float32
    copies stay in the processor's cache.
    """
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.int32, device=a.device)
    for first, second in zip(a.split(FLOAT32_TERMS, dim=1), b.split(FLOAT32_TERMS), strict=True):
        second = second.float()
        for sums, rows in zip(total.split(FLOAT32_ROWS), first.split(FLOAT32_ROWS), strict=True):
            sums += torch.mm(rows.float(), second).to(torch.int32)
    return total


def split_digits(x: torch.Tensor, n_digits: int = 2) -> torch.Tensor:
    """Return the signed digits of each number, x = 128 higher + lower: int8 [m, 2 n], all highest ones first.

    x is int16 or int32 [m, n], at most 128 * 127 in absolute value; at most 64 * 128 if the digits become a second
    factor, and 64 * 128^2 with three digits.
    """
    digits = torch.empty(x.shape[0], n_digits, x.shape[1], dtype=torch.int8, device=x.device)
    for place in range(n_digits - 1, 0, -1):
        higher = (x + BASE // 2).bitwise_right_shift_(BASE.bit_length() - 1)  # round(x / BASE)
        digits[:, place].copy_(torch.sub(x, higher, alpha=BASE))
        x = higher
    digits[:, 0].copy_(x)
    return digits.flatten(1)


def combine_digits(products: torch.Tensor, n_digits: int = 2) -> torch.Tensor:
    """Return the whole products, float64 [..., n], from int32 [..., 2 n] with `split_digits` as second factor."""
    *higher, lowest = products.chunk(n_digits, dim=-1)
    whole = lowest.double()
    for place, digit in enumerate(reversed(higher), start=1):
        whole.add_(digit, alpha=BASE**place)  # exact
    return whole


def as_factor(x: torch.Tensor) -> torch.Tensor:
    """Return int8 [m, k] as it is, and the two digits of int16 as [2 m, k], the higher ones first: a first factor."""
    return x if x.dtype == torch.int8 else torch.cat(split_digits(x).chunk(2, dim=1))


def combine_factor(products: torch.Tensor) -> torch.Tensor:
    """Return whole products [m, n] from float64 [1 or 2, m, n], a matrix for each digit of the first factor."""
    return products[-1] if len(products) == 1 else products[1].add_(products[0], alpha=BASE)  # exact


def whole_product(x: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    """Return x y, float64 [m, n], exact, for int8 or int16 x [m, k] and y [k, n] in two `digits` [k, 2 n]."""
    products = combine_digits(product(as_factor(x), digits))
    return combine_factor(products.unflatten(0, (1 if x.dtype == torch.int8 else 2, -1)))


def power_of_two_above(x: torch.Tensor) -> torch.Tensor:
    """Return the least power of two above finite x >= 0, element by element; 1 if x is 0."""
    mantissa, _ = torch.frexp(x)
    return torch.where(x > 0, x / mantissa, 1.0)  # exact


def quantised(x: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor as integers in [-largest, largest], float32, and their step.

    `largest` is a power of two, and so the step is one, too: x is divided by it exactly, and then rounded.
    """
    x = x.nan_to_num(0.0).clamp_(-LARGEST_FLOAT, LARGEST_FLOAT)  # a copy, and finite even in a trial that diverged
    minimum, maximum = torch.aminmax(x)
    magnitude = torch.maximum(-minimum, maximum).clamp(min=1 / LARGEST_FLOAT)  # so that 1/step is finite
    step = power_of_two_above(magnitude) / largest
    return x.mul_(1 / step).round_(), step


def signals(delta: torch.Tensor, step: torch.Tensor | float, largest: int = LARGEST_SIGNAL) -> torch.Tensor:
    """Return delta/step as integers in [-largest, largest], float32; nan becomes 0."""
    return (delta / step).nan_to_num_(0.0).round_().clamp_(-largest, largest)


def whole_type(largest: int) -> torch.dtype:
    """Return the type of integers of at most this size."""
    if largest <= torch.iinfo(torch.int8).max:
        return torch.int8
    return torch.int16 if largest <= torch.iinfo(torch.int16).max else torch.int32
