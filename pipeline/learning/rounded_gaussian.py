"""Draw integers round(2^40 x), x ~ N(0, 1), from secret bits: noise for a guarantee that holds for the released bits.

The low-order bits of a floating-point Gaussian reveal the value to which it was added (Mironov 2012). These integers
follow the rounded Gaussian within a total variation of 2^-256 per draw (`finite_precision.TOTAL_VARIATION`).
docs/privacy.md, section 9, proves it from integer arithmetic, comparisons with a margin, and bits that are
indistinguishable from fair coins.

    |x| = (j + v) h,   h = 2^-6:   j with probability proportional to exp(-(j h)^2/2), v uniform on [0, 1),
    accepted with probability exp(-a), a = v (2 j + v) h^2/2; otherwise j and v are drawn again

This is a rejection sampler: on cell j the density exp(-x^2/2) is exp(-(j h)^2/2) exp(-a). j comes from an alias table
(Walker 1977) of integers with sum 2^320. As h 2^40 = 2^34, the first bits of v are bits of the rounded number. v has
35 bits and the acceptance coin has 28. If they do not decide, each gets `MORE_BITS` more; this is rare.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from decimal import Context, Decimal
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

CHUNK = 2**14  # draws at a time: they fit a cache

CELL_BITS, OFFSET_BITS, COIN_BITS = 11, 35, 28  # j; v, whose last bit rounds it; the coin
FRACTION_BITS = 64 - CELL_BITS  # they choose between a table entry and its alias
MORE_BITS = 256
_LOG_H = -6
_SURE = 2**COIN_BITS - 2 ** (COIN_BITS + 2 * _LOG_H - 1) - 1
# 140 decimal digits: 465 bits. Use this context's methods: operators round to the thread's 28 digits.
_EXACT = Context(prec=140)
_HALF_H_SQUARED = Decimal(2.0 ** (2 * _LOG_H - 1))  # exact, like every Decimal of a float

Bits = Callable[[int], bytes | bytearray]


class _Table(NamedTuple):
    """Alias table of the cells. An entry keeps its cell if the fraction is below a threshold of at most 2^53 2^256."""

    high: np.ndarray  # first bits of each entry's threshold [2048], int64
    low: list[int]  # its other `MORE_BITS` bits
    alias: np.ndarray  # own cell xor alias [2048], int64


def secret_bits() -> Bits:
    """Return `keyed_bits` under a fresh key from the operating system; use it for one `draw` only."""
    return keyed_bits(os.urandom(32))


def keyed_bits(key: bytes) -> Bits:
    """Return a source of AES-256 bytes in counter mode, with a key of 32 bytes; a chunk is valid until the next."""
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    chunk_buffer = bytearray()

    def bits(n: int) -> bytearray:
        nonlocal chunk_buffer
        is_whole_chunk = n == 16 * CHUNK  # a draw takes 16 bytes
        out = chunk_buffer if is_whole_chunk and chunk_buffer else bytearray(n + 15)  # a cipher's block has 16 bytes
        if is_whole_chunk:
            chunk_buffer = out
        encryptor.update_into(memoryview(_zeros((n - 1).bit_length()))[:n], out)
        return out

    return bits


def draw(n: int, bits: Bits | None = None) -> np.ndarray:
    """Return n independent integers as float64 [n], which is exact for them."""
    out = np.empty(n)
    fill(out, bits or secret_bits())
    return out


def fill(out: np.ndarray, bits: Bits) -> None:
    """Fill float64 `out` [n] with independent integers of the rounded Gaussian.

    Every number is drawn once, in chunks. Rejection sampling then draws again the ones that are not accepted.
    """
    undecided = []  # per chunk, the draws that are not surely accepted
    work = np.empty((4, min(CHUNK, len(out))), dtype=np.int64)
    for begin in range(0, len(out), CHUNK):
        chunk = out[begin: begin + CHUNK]
        undecided.append(_fill(chunk, bits, work[:, : len(chunk)]))
        undecided[-1][0] += begin  # from places in the chunk to places in `out`
    if undecided:
        places, cells, offsets, coins = np.concatenate(undecided, axis=1)
        rejected = places[~_accepted(cells, offsets, coins, bits)]
        out[rejected] = draw(len(rejected), bits)


def _fill(out: np.ndarray, bits: Bits, work: np.ndarray) -> np.ndarray:
    """Fill `out` [n] as if all draws were accepted; return those in doubt as (place, cell, offset, coin), int64 [4, k].

    `work` int64 [4, n] is overwritten: allocating it for every chunk would take longer than the rest.
    """
    n = len(out)
    first, second = np.frombuffer(bits(16 * n), dtype=np.int64, count=2 * n).reshape(2, n)
    cells, offsets, coins, scratch = work
    _fill_cells(cells, first, bits, offsets, coins)
    np.bitwise_and(second, 2**OFFSET_BITS - 1, out=offsets)
    rounded = np.left_shift(cells, OFFSET_BITS, out=scratch)
    rounded += offsets
    rounded += 1
    rounded >>= 1
    np.copysign(rounded, second.view(np.float64), out=out)  # the sign is the first bit of the word
    np.right_shift(second, OFFSET_BITS, out=coins)
    coins &= 2**COIN_BITS - 1
    # exp(-a) >= 1 - a >= 1 - (2 j + 1) h^2/2: a coin below this bound accepts any v.
    shifted_coins = np.left_shift(cells, COIN_BITS + 2 * _LOG_H, out=scratch)
    shifted_coins += coins
    undecided = np.flatnonzero(shifted_coins >= _SURE)
    return np.stack([undecided, cells[undecided], offsets[undecided], coins[undecided]])


def _fill_cells(out: np.ndarray, words: np.ndarray, bits: Bits, below: np.ndarray, taken: np.ndarray) -> None:
    """Fill `out` with cells j, drawn by the alias table from uniform 64-bit words; all arrays are int64 [n].

    The first bits of a word choose a place of the table. The other bits, the fraction, choose between the place's own
    cell and its alias; further `bits` decide a fraction that equals its threshold. There are no branches per draw: the
    choice becomes a mask of bits. `below` and `taken` are overwritten.
    """
    table = _table()
    places = out
    np.right_shift(words.view(np.uint64), np.uint64(FRACTION_BITS), out=places.view(np.uint64))
    np.bitwise_and(words, 2**FRACTION_BITS - 1, out=below)
    below -= np.take(table.high, places, out=taken, mode="clip")  # below 0: the place's own cell
    for tie in np.flatnonzero(below == 0) if np.count_nonzero(below) < len(below) else ():
        below[tie] = -1 if _more(bits) < table.low[places[tie]] else 1
    below >>= 63  # all bits 1 for the own cell, all 0 for the alias
    np.invert(below, out=below)
    below &= np.take(table.alias, places, out=taken, mode="clip")
    out ^= below  # an alias is stored as own cell xor alias


def _accepted(cells: np.ndarray, offsets: np.ndarray, coins: np.ndarray, bits: Bits) -> np.ndarray:
    """Return whether draws with cells j are accepted, coin < exp(-a) with a = v (2 j + v) h^2/2, bool [n].

    The coin is in [coins, coins + 1)/2^28, and v in [offsets, offsets + 1)/2^35; further `bits` decide open cases.
    """
    margin = 2.0**-40  # rounding and the series remainder are below 2^-44
    lower_bound = _acceptance(cells, (offsets + 1) * 2.0**-OFFSET_BITS)  # of exp(-a), which falls with v
    upper_bound = _acceptance(cells, offsets * 2.0**-OFFSET_BITS)
    accepted = (coins + 1) * 2.0**-COIN_BITS <= lower_bound - margin
    rejected = coins * 2.0**-COIN_BITS >= upper_bound + margin
    for k in np.flatnonzero(~(accepted | rejected)):
        accepted[k] = _accepted_exactly(int(cells[k]), int(offsets[k]), int(coins[k]), bits)
    return accepted


def _acceptance(cells: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return exp(-a) for 0 <= v <= 1 by its series; the remainder is below 2^-45, as a <= 1/2."""
    a = v * (2 * cells + v) * 2.0 ** (2 * _LOG_H - 1)
    total = np.ones_like(a)
    for k in range(12, 0, -1):
        total = 1 - a * total * (1 / k)
    return total


def _accepted_exactly(cell: int, offset: int, coin: int, bits: Bits) -> bool:
    """Decide as `_accepted`, with `MORE_BITS` more bits; a case still open (probability < 2^-280) is refused."""
    v = _EXACT.divide(Decimal((offset << MORE_BITS) + _more(bits)), Decimal(2 ** (OFFSET_BITS + MORE_BITS)))
    u = _EXACT.divide(Decimal((coin << MORE_BITS) + _more(bits) + 1), Decimal(2 ** (COIN_BITS + MORE_BITS)))
    a = _EXACT.multiply(_EXACT.multiply(v, _EXACT.add(v, Decimal(2 * cell))), _HALF_H_SQUARED)
    edge = _EXACT.multiply(_EXACT.exp(a.copy_negate()), _EXACT.subtract(Decimal(1), Decimal(2.0**-280)))
    return _EXACT.compare(u, edge) <= 0


def _more(bits: Bits) -> int:
    """Return an integer of `MORE_BITS` fresh bits."""
    return int.from_bytes(bits(MORE_BITS // 8)[: MORE_BITS // 8], "little")


@functools.cache
def _zeros(log_n: int) -> bytes:
    return bytes(2**log_n)


@functools.cache
def _table() -> _Table:
    """Return Walker's alias table: cell j has the weight exp(-(j h)^2/2).

    All entries are equally likely. Entry j gives its own cell with a probability of threshold/capacity, else its alias.
    Weights are decimals; all other numbers are integers.
    """
    n_cells, capacity = 2**CELL_BITS, 2 ** (FRACTION_BITS + MORE_BITS)
    weights = [_EXACT.exp(_EXACT.multiply(Decimal(-j * j), _HALF_H_SQUARED)) for j in range(n_cells)]
    total = functools.reduce(_EXACT.add, weights)
    shares = [int(_EXACT.divide(_EXACT.multiply(w, Decimal(n_cells * capacity)), total)) for w in weights]
    shares[0] += n_cells * capacity - sum(shares)  # what rounding lost
    thresholds, alias = shares.copy(), list(range(n_cells))
    small = [j for j in range(n_cells) if shares[j] < capacity]
    large = [j for j in range(n_cells) if shares[j] >= capacity]
    while small:  # fill the rest of a small entry from a large one
        j, donor = small.pop(), large[-1]
        alias[j] = donor
        thresholds[donor] -= capacity - thresholds[j]
        if thresholds[donor] < capacity:
            small.append(large.pop())
    high, low = zip(*(divmod(threshold, 2**MORE_BITS) for threshold in thresholds), strict=True)
    return _Table(np.array(high), list(low), np.arange(n_cells) ^ np.array(alias))
