"""Rounded Gaussian integers: their table to the last of 320 bits, their law, and comparisons that are settled late."""

import functools
import math
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from scipy import stats

from pipeline.accounting.finite_precision import STEPS_PER_SIGMA
from pipeline.learning import rounded_gaussian
from pipeline.learning.rounded_gaussian import CELL_BITS, FRACTION_BITS, MORE_BITS, OFFSET_BITS, draw

CELLS, H = 2**CELL_BITS, 2.0**-6
EXACT = Context(prec=160)


def test_the_table_gives_every_cell_its_weight_to_300_bits_in_every_context():
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
    with localcontext() as context:
        context.prec = 5
        again = rounded_gaussian._table.__wrapped__()
    assert table.low == again.low
    assert np.array_equal(table.high, again.high) and np.array_equal(table.alias, again.alias)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 2**14 + 5])
def test_it_draws_as_many_integers_as_asked_for(n):
    drawn = draw(n)
    assert drawn.shape == (n,) and (drawn == np.round(drawn)).all() and (np.abs(drawn) < 32 * STEPS_PER_SIGMA).all()
    assert len(set(drawn)) == n


@pytest.fixture(scope="module")
def sample():
    return draw(3_000_000)


def test_it_has_its_sigma_and_another_is_rejected(sample):
    x = sample / STEPS_PER_SIGMA
    assert stats.kstest(x, "norm").pvalue > 1e-6
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10_170)):
        assert abs((x**power).mean() - moment) < 6 * (variance / len(x)) ** 0.5
    square = (x**2).mean()
    for factor in (2 / 3, 0.99, 1.01, 3 / 2):
        assert abs(factor**2 * square - 1) > 6 * (2 / len(x)) ** 0.5
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
def test_the_series_is_exp_to_2_to_the_minus_45_and_the_first_coin_that_is_doubted_is_rightly(cell):
    v = np.linspace(0, 1, 101)
    a = v * (2 * cell + v) * 2.0**-13
    assert np.abs(rounded_gaussian._acceptance(np.full(101, cell), v) - np.exp(-a)).max() < 2.0**-45
    # Where v is as large as it may be: 1 - (2 j + 1) h^2/2, and never above exp(-a).
    first_doubted = rounded_gaussian._SURE - (cell << 16)
    assert first_doubted / 2**28 <= 1 - (2 * cell + 1) * 2.0**-13 < (first_doubted + 2) / 2**28
    assert Decimal(first_doubted) / 2**28 <= edge_of(cell, 2**OFFSET_BITS - 1, 2**MORE_BITS - 1)


def edge_of(cell, offset, more):
    """exp(-a) to 160 digits, v having all its bits."""
    v = EXACT.divide(Decimal((offset << MORE_BITS) + more), Decimal(2 ** (OFFSET_BITS + MORE_BITS)))
    a = EXACT.multiply(EXACT.multiply(v, EXACT.add(v, Decimal(2 * cell))), Decimal(2.0**-13))
    return EXACT.exp(a.copy_negate())


def accepted(cell, offset, coin, *more):
    late = [number.to_bytes(MORE_BITS // 8, "little") for number in more]
    found = rounded_gaussian._accepted(*(np.array([x]) for x in (cell, offset, coin)), lambda n: late.pop(0))
    return bool(found[0]), len(late)


@pytest.mark.parametrize("digits", [5, 200])  # of the thread's context, which nothing may depend on
@pytest.mark.parametrize(("cell", "offset"), [(0, 2**35 - 1), (1, 12345678901), (700, 2**34), (2047, 33333333333)])
def test_a_coin_next_to_the_edge_is_settled_by_more_bits_and_rightly(cell, offset, digits):
    more_of_v = 2**255 + 2**101 + 1
    scaled = EXACT.multiply(edge_of(cell, offset, more_of_v), Decimal(2**28))
    coin = int(scaled)  # the interval [coin, coin + 1)/2^28 holds the edge
    below = int(EXACT.multiply(EXACT.subtract(scaled, Decimal(coin)), Decimal(2**MORE_BITS)))
    with localcontext() as context:
        context.prec = digits
        for distance in (2**40, 2**100, 2**200):  # of 2^256
            assert accepted(cell, offset, coin, more_of_v, below - distance) == (True, 0)
            assert accepted(cell, offset, coin, more_of_v, below + distance) == (False, 0)


def test_every_decision_is_that_of_exact_arithmetic():
    rng, n = np.random.default_rng(0), 2000
    cells, offsets, coins = (rng.integers(0, most, n) for most in (CELLS, 2**OFFSET_BITS, 2**28))
    for k in range(n // 2):  # next to the edge, where margins and series count
        coins[k] = int(edge_of(int(cells[k]), int(offsets[k]), 0) * 2**28) + rng.integers(-2, 2)
    more_v, more_coin = 2**200 + 1, 2**250 + 3
    for cell, offset, coin in zip(cells.tolist(), offsets.tolist(), np.clip(coins, 0, 2**28 - 1).tolist(), strict=True):
        found, _ = accepted(cell, offset, coin, more_v, more_coin)
        u = EXACT.divide(Decimal((coin << MORE_BITS) + more_coin + 1), Decimal(2 ** (28 + MORE_BITS)))
        expected = EXACT.compare(u, edge_of(cell, offset, more_v)) <= 0
        sure = coin < rounded_gaussian._SURE - (cell << 16)
        assert found == expected and (expected or not sure)


def test_every_draw_takes_a_new_key_of_256_bits_and_is_refused_as_often_as_it_should(monkeypatch):
    """The area of exp(-x^2/2) over that of the steps above it."""
    asked, bits = [], rounded_gaussian.secret_bits()
    draw(2**14, lambda n: asked.append(n) or bits(n))
    again = sum(n for n in asked[1:] if n != MORE_BITS // 8) / 16 / 2**14
    steps = H * np.exp(-((np.arange(CELLS) * H) ** 2) / 2).sum()
    refused = 1 - math.sqrt(math.pi / 2) / steps
    assert abs(again - refused) < 6 * (refused / 2**14) ** 0.5 + 1e-4
    keys, real = [], rounded_gaussian.AES
    monkeypatch.setattr(rounded_gaussian, "AES", lambda key: keys.append(key) or real(key))
    draw(5), draw(5)
    assert len(set(keys)) == len(keys) and {len(key) for key in keys} == {32}
