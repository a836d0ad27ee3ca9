"""Measured lower bounds: reference values, closed forms, and simulated audits of mechanisms of known epsilon."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

from pipeline.accounting.audited import gdp_mu_lower, one_run, two_point, upper_limit

CASES = json.loads((Path(__file__).parents[1] / "data" / "accounting_audit.json").read_text())
FUNCTIONS = {"audit_one_run": one_run, "audit_two_point_cp": two_point, "audit_gdp_mu_lower": gdp_mu_lower}
AUDITS = 200


def gaussian_epsilon(mu, delta):
    """epsilon of a mu-GDP mechanism: delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Balle and Wang 2018)."""
    def excess(epsilon):
        return (stats.norm.cdf(mu / 2 - epsilon / mu)
                - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) - delta)
    return optimize.brentq(excess, 0, 50)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_reference(case):
    bound = FUNCTIONS[case["function"]](**case["inputs"])
    assert bound == pytest.approx(case["expected"], rel=case["rtol"])
    if case.get("published"):
        assert bound == pytest.approx(case["published"], abs=1e-3)


def test_one_run_without_delta_is_the_lower_clopper_pearson_limit():
    """All r right: s^r = p, so eps = log(s/(1 - s)) with s = p^(1/r)."""
    for p in (0.05, 0.01):
        s = p ** (1 / 100)
        assert one_run(1000, 100, 100, 0.0, p) == pytest.approx(math.log(s / (1 - s)), rel=1e-9)
    limit = stats.binomtest(80, 100).proportion_ci(0.9, "exact").low
    assert one_run(100, 100, 80, 0.0) == pytest.approx(math.log(limit / (1 - limit)), rel=1e-6)


def test_one_run_p_value_at_the_bound():
    """The formula written out as a double loop: p(eps_LB) = 0.05."""
    m, r, v, delta = 500, 40, 33, 1e-4
    s = 1 / (1 + math.exp(-one_run(m, r, v, delta)))
    pmf = [math.comb(r, k) * s**k * (1 - s) ** (r - k) for k in range(r + 1)]
    worst = max(sum(pmf[v - i: v]) / i for i in range(1, v + 1))
    assert sum(pmf[v:]) + 2 * m * delta * worst == pytest.approx(0.05, rel=1e-9)


def test_one_run_is_monotone():
    bounds = [one_run(1000, 100, v, 1e-5) for v in range(101)]
    assert all(a <= b for a, b in itertools.pairwise(bounds))
    assert len(set(bounds[60:])) == 41
    assert one_run(1000, 100, 90, 0.0) > one_run(1000, 100, 90, 1e-5) > one_run(1000, 100, 90, 1e-4)
    assert one_run(1000, 100, 90, 1e-5) > one_run(10_000, 100, 90, 1e-5)
    assert one_run(1000, 100, 90, 1e-5, p=0.05) > one_run(1000, 100, 90, 1e-5, p=0.01)


def test_random_guessing_bounds_nothing():
    assert one_run(1000, 100, 50, 1e-5) == 0 and one_run(1000, 100, 0, 1e-5) == 0
    assert two_point(500, 1000, 500, 1000, 1e-5) == 0 and gdp_mu_lower(500, 1000, 500, 1000) == 0
    assert two_point(1000, 1000, 1000, 1000, 0.0) == 0 and gdp_mu_lower(0, 10, 10, 10) == 0
    assert two_point(0, 1000, 0, 1000, 0.9999) == 0


def test_two_point_closed_forms():
    """No error in n trials: the upper limit is 1 - ((1 - conf)/2)^(1/n)."""
    for conf in (0.95, 0.9):
        a = 1 - ((1 - conf) / 2) ** (1 / 400)
        assert upper_limit(0, 400, conf) == pytest.approx(a, rel=1e-9) and upper_limit(400, 400, conf) == 1
        assert two_point(0, 400, 0, 400, 0.01, conf) == pytest.approx(math.log((0.99 - a) / a), rel=1e-9)
        assert gdp_mu_lower(0, 400, 0, 400, conf) == pytest.approx(2 * stats.norm.isf(a), rel=1e-9)
    interval = stats.binomtest(7, 400).proportion_ci(0.95, "exact")
    assert upper_limit(7, 400, 0.95) == pytest.approx(interval.high, rel=1e-6)


def test_two_point_uses_the_better_of_both_directions_and_takes_arrays():
    assert two_point(1, 1000, 600, 1000, 1e-5) == two_point(600, 1000, 1, 1000, 1e-5) > 3
    together = two_point(np.array([0, 5, 500]), 1000, np.array([900, 30, 500]), 1000, 1e-5)
    alone = [two_point(fp, 1000, fn, 1000, 1e-5) for fp, fn in ((0, 900), (5, 30), (500, 500))]
    assert together.tolist() == alone


def test_two_point_calibration():
    """N(0, 1) against N(mu, 1), threshold fixed beforehand: below the true epsilon in 95% of audits, and near it."""
    mu, delta, n = 1.0, 0.01, 20_000
    epsilon, threshold = gaussian_epsilon(mu, delta), 2.5
    rng = np.random.default_rng(0)
    fp = (rng.normal(0, 1, (AUDITS, n)) > threshold).sum(axis=1)
    fn = (rng.normal(mu, 1, (AUDITS, n)) <= threshold).sum(axis=1)
    bounds = two_point(fp, n, fn, n, delta)
    assert np.mean(bounds <= epsilon) >= 0.95
    assert 0.8 * epsilon < np.median(bounds) < epsilon


def test_gdp_calibration():
    mu, n, threshold = 1.0, 2_000, 0.5
    rng = np.random.default_rng(1)
    fp = (rng.normal(0, 1, (AUDITS, n)) > threshold).sum(axis=1)
    fn = (rng.normal(mu, 1, (AUDITS, n)) <= threshold).sum(axis=1)
    bounds = [gdp_mu_lower(a, n, b, n) for a, b in zip(fp.tolist(), fn.tolist(), strict=True)]
    assert np.mean(np.array(bounds) <= mu) >= 0.95
    assert 0.85 * mu < np.median(bounds) < mu


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 3.0])
def test_one_run_is_tight_for_randomized_response(epsilon):
    """Every guess is right with probability e^eps/(1 + e^eps): the bound is wrong in just under 5% of audits."""
    r, s = 500, 1 / (1 + math.exp(-epsilon))
    typical = int(r * s)
    wrong = next(v for v in range(typical, r + 1) if one_run(r, r, v, 0.0) > epsilon)
    assert 0.02 < stats.binom.sf(wrong - 1, r, s) < 0.05
    assert 0.8 * epsilon - 0.1 < one_run(r, r, typical, 0.0) < epsilon


def test_one_run_calibration_with_a_gaussian_mechanism():
    """m canaries, one coordinate each, N(0, 1/mu^2) noise; the 50 highest and lowest outputs are guessed."""
    mu, delta, m, r = 1.0, 1e-5, 1000, 100
    epsilon = gaussian_epsilon(mu, delta)
    rng = np.random.default_rng(3)
    included = rng.random((AUDITS, m)) < 0.5
    order = np.argsort(mu * included + rng.normal(size=(AUDITS, m)), axis=1)
    sorted_inclusion = np.take_along_axis(included, order, axis=1)
    v = (~sorted_inclusion[:, :r // 2]).sum(axis=1) + sorted_inclusion[:, -(r // 2):].sum(axis=1)
    bounds = np.array([one_run(m, r, right, delta) for right in v.tolist()])
    assert np.mean(bounds <= epsilon) >= 0.95
    assert 0.3 * epsilon < np.median(bounds)


@pytest.mark.parametrize("call, message", [
    (lambda: one_run(100, 101, 5, 0.0), "r: must be at least 1 and at most m = 100, got 101"),
    (lambda: one_run(100, 0, 0, 0.0), "r: must be"),
    (lambda: one_run(100, 10, 11, 0.0), "v: must be at least 0 and at most r = 10, got 11"),
    (lambda: one_run(100, 10, 5, 1.0), "delta: must be >= 0 and < 1, got 1.0"),
    (lambda: one_run(100, 10, 5, math.nan), "delta: must be"),
    (lambda: one_run(100, 10, 5, 0.0, p=0.0), "p: must be > 0 and < 1, got 0.0"),
    (lambda: two_point(-1, 10, 0, 10, 0.0), "fp: must be at least 0 and at most the 10 trials, got -1"),
    (lambda: two_point(0, 10, 11, 10, 0.0), "fn: must be"),
    (lambda: two_point(0, 0, 0, 10, 0.0), "fp: must come from at least 1 trial, got 0"),
    (lambda: two_point(0, 10, 0, 10, -0.1), "delta: must be"),
    (lambda: two_point(0, 10, 0, 10, 0.0, conf=1.0), "conf: must be > 0 and < 1, got 1.0"),
    (lambda: gdp_mu_lower(0, 10, 11, 10), "fn: must be")])
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
