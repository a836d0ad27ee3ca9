"""Rounded Gaussian integers: their table to the last of 320 bits, their law, and comparisons that are settled late."""

import functools
import math
from decimal import Context, Decimal

import numpy as np
import pytest
from scipy import stats

from pipeline.accounting.finite_precision import STEPS_PER_SIGMA
from pipeline.learning import rounded_gaussian
from pipeline.learning.rounded_gaussian import CELL_BITS, FRACTION_BITS, MORE_BITS, OFFSET_BITS, draw

CELLS, H = 2**CELL_BITS, 2.0**-6
EXACT = Context(prec=160)


def test_the_table_gives_every_cell_its_weight_to_300_bits():
    table = rounded_gaussian._table()
    whole = 2 ** (FRACTION_BITS + MORE_BITS)
    mass = [0] * CELLS
    for place in range(CELLS):
        keeps = int(table.high[place]) * 2**MORE_BITS + table.low[place]
        assert 0 <= keeps <= whole
        mass[place] += keeps
        mass[place ^ int(table.alias[place])] += whole - keeps
    weights = [EXACT.exp(-EXACT.divide(Decimal(j * j), Decimal(2**13))) for j in range(CELLS)]
    total = functools.reduce(EXACT.add, weights)
    assert sum(mass) == CELLS * whole
    for found, weight in zip(mass, weights, strict=True):
        share = EXACT.divide(Decimal(found), Decimal(CELLS * whole))
        assert EXACT.subtract(share, EXACT.divide(weight, total)).copy_abs() < EXACT.power(Decimal(2), -300)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 2**14 + 5])
def test_it_draws_as_many_integers_as_asked_for(n):
    drawn = draw(n)
    assert drawn.shape == (n,) and (drawn == np.round(drawn)).all() and (np.abs(drawn) < 32 * STEPS_PER_SIGMA).all()
    assert len(set(drawn)) == n


@pytest.fixture(scope="module")
def sample():
    return draw(4_000_000)


@pytest.mark.parametrize("factor", [2 / 3, 0.99, 1.01, 3 / 2])
def test_it_has_its_sigma_and_another_is_rejected(sample, factor):
    x = sample / STEPS_PER_SIGMA
    assert stats.kstest(x, "norm").pvalue > 1e-6
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10_170)):
        assert abs((x**power).mean() - moment) < 6 * (variance / len(x)) ** 0.5
    assert abs(((factor * x) ** 2).mean() - 1) > 6 * (2 / len(x)) ** 0.5
    tail = (np.abs(x) > 4).sum()
    assert abs(tail - len(x) * 2 * stats.norm.sf(4)) < 6 * (len(x) * 2 * stats.norm.sf(4)) ** 0.5


def test_inside_a_cell_the_density_falls_as_it_should(sample):
    """Without the coin that accepts it would be flat: 9 standard errors away."""
    x = np.abs(sample) / STEPS_PER_SIGMA
    cell = np.floor(x / H)
    v = x / H - cell
    slope = np.mean((v - 0.5) * cell)
    j = np.arange(CELLS)
    expected = -np.average(j * j * H**2 / 12, weights=np.exp(-((j * H) ** 2) / 2))  # to first order in j h^2
    error = np.std((v - 0.5) * cell) / len(v) ** 0.5
    assert abs(slope - expected) < 5 * error < abs(expected) * 0.7


def test_low_bits_and_signs_are_those_of_fair_coins(sample):
    integers = sample.astype(np.int64)
    counts = np.bincount(integers & 1023, minlength=1024)
    assert stats.chisquare(counts).pvalue > 1e-6
    assert abs((integers > 0).mean() - 0.5) < 6 * 0.5 / len(integers) ** 0.5
    assert abs(np.corrcoef(integers[:-1], integers[1:])[0, 1]) < 6 / len(integers) ** 0.5
    assert abs(np.corrcoef(integers & 1, np.abs(integers))[0, 1]) < 6 / len(integers) ** 0.5


def scripted(first, second, *later):
    """Bits: the words of two draws' halves, then what is asked for in addition."""
    answers = [np.array([*first, *second], dtype=np.uint64).tobytes(), *later]
    return lambda n: answers.pop(0)


def test_a_fraction_on_the_edge_between_a_cell_and_its_alias_is_settled_by_more_bits():
    table = rounded_gaussian._table()
    place = next(p for p in range(CELLS) if table.alias[p] and 0 < table.low[p])
    word = (place << FRACTION_BITS) | int(table.high[place])
    accepted_at_once = 0  # a coin of 0
    for low, cell in ((table.low[place] - 1, place), (table.low[place], place ^ int(table.alias[place]))):
        more = low.to_bytes(MORE_BITS // 8, "little")
        drawn = draw(1, scripted([word], [accepted_at_once], more))
        assert drawn[0] == cell << 34


def test_the_sign_and_the_rounding_bit():
    word = 0  # place 0, fraction 0: cell 0
    for offset, negative, expected in ((0, 0, 0), (1, 0, 1), (2, 0, 1), (3, 1, -2), (2**OFFSET_BITS - 1, 0, 2**34)):
        assert draw(1, scripted([word], [negative << 63 | offset]))[0] == expected


@pytest.mark.parametrize("cell", [0, 1, 64, 700, 2047])
def test_the_series_is_exp_to_2_to_the_minus_45(cell):
    v = np.linspace(0, 1, 101)
    a = v * (2 * cell + v) * 2.0**-13
    assert np.abs(rounded_gaussian._acceptance(np.full(101, cell), v) - np.exp(-a)).max() < 2.0**-45


def test_a_coin_next_to_the_edge_is_settled_by_more_bits_and_rightly():
    cell, offset = 700, 2**34
    v = EXACT.divide(Decimal(offset), Decimal(2**OFFSET_BITS))
    edge = EXACT.exp(-v * (2 * cell + v) / 2**13)
    coin = int(edge * 2**28)  # the interval [coin, coin + 1)/2^28 holds the edge
    arrays = (np.array([x]) for x in (cell, offset, coin))
    below = int((edge * 2**28 - coin) * 2**MORE_BITS)
    no_more_of_v = bytes(MORE_BITS // 8)
    answers = []
    for further in (below - 2**200, below + 2**200):
        late = [no_more_of_v, further.to_bytes(MORE_BITS // 8, "little")]
        arrays = [np.array([x]) for x in (cell, offset, coin)]
        answers.append(bool(rounded_gaussian._accepted(*arrays, lambda n, late=late: late.pop(0))[0]))
        assert not late  # both were needed
    assert answers == [True, False]


def test_how_often_a_draw_is_refused():
    """The area of exp(-x^2/2) over that of the steps above it."""
    asked = []
    bits = rounded_gaussian.secret_bits()
    draw(2**14, lambda n: asked.append(n) or bits(n))
    again = sum(n for n in asked[1:] if n != MORE_BITS // 8) / 16 / 2**14
    steps = H * np.exp(-((np.arange(CELLS) * H) ** 2) / 2).sum()
    refused = 1 - math.sqrt(math.pi / 2) / steps
    assert abs(again - refused) < 6 * (refused / 2**14) ** 0.5 + 1e-4


def test_every_draw_takes_a_new_key_of_256_bits(monkeypatch):
    keys, real = [], rounded_gaussian.AES
    monkeypatch.setattr(rounded_gaussian, "AES", lambda key: keys.append(key) or real(key))
    draw(5), draw(5)
    assert len(set(keys)) == len(keys) and {len(key) for key in keys} == {32}
