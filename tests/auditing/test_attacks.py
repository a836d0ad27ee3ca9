"""Attacks find what is there and nothing where nothing is; the bounds that follow hold, and catch false claims."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from pipeline.accounting.audited import auc, gdp_mu_lower, one_run, one_run_audit, tpr_at_fpr, upper_limit
from pipeline.accounting.curves import gdp_eps
from pipeline.auditing.audit import findings
from pipeline.auditing.row_space import row_space_audit, row_space_basis, row_space_membership
from pipeline.auditing.two_point import gaussian_log_ratio, two_point_audit
from pipeline.trials.config import TrialConfig

DIGITS = TrialConfig(dataset="digits", hidden=(128, 64), batch_size=32, mechanism="photonic", sigma=1.0)
AUDITS = 200


# --- bounds from counts: reference values, closed forms, simulated audits of mechanisms of known epsilon

def test_one_run_is_its_closed_form_and_monotone():
    for p in (0.05, 0.01):  # all r right: s^r = p, so eps = log(s/(1 - s)) with s = p^(1/r)
        s = p ** (1 / 100)
        assert one_run(1000, 100, 100, 0.0, p) == pytest.approx(math.log(s / (1 - s)), rel=1e-9)
    limit = stats.binomtest(80, 100).proportion_ci(0.9, "exact").low
    assert one_run(100, 100, 80, 0.0) == pytest.approx(math.log(limit / (1 - limit)), rel=1e-6)
    m, r, v, delta = 500, 40, 33, 1e-4  # the formula written out as a double loop: p(eps_LB) = 0.05
    s = 1 / (1 + math.exp(-one_run(m, r, v, delta)))
    pmf = [math.comb(r, k) * s**k * (1 - s) ** (r - k) for k in range(r + 1)]
    worst = max(sum(pmf[v - i: v]) / i for i in range(1, v + 1))
    assert sum(pmf[v:]) + 2 * m * delta * worst == pytest.approx(0.05, rel=1e-9)
    bounds = [one_run(1000, 100, v, 1e-5) for v in range(101)]
    assert bounds == sorted(bounds) and len(set(bounds[60:])) == 41
    assert one_run(1000, 100, 90, 0.0) > bounds[90] > max(one_run(1000, 100, 90, 1e-4), one_run(10_000, 100, 90, 1e-5))


def test_random_guessing_bounds_nothing():
    assert one_run(1000, 100, 50, 1e-5) == 0 and one_run(1000, 100, 0, 1e-5) == 0
    assert gdp_mu_lower(500, 1000, 500, 1000) == gdp_mu_lower(0, 10, 10, 10) == 0


def test_limits_of_rates_and_the_bound_on_mu_are_their_closed_forms():
    for conf in (0.95, 0.9):  # no error in n trials: the upper limit is 1 - ((1 - conf)/2)^(1/n)
        a = 1 - ((1 - conf) / 2) ** (1 / 400)
        assert upper_limit(0, 400, conf) == pytest.approx(a, rel=1e-9) and upper_limit(400, 400, conf) == 1
        assert gdp_mu_lower(0, 400, 0, 400, conf) == pytest.approx(2 * stats.norm.isf(a), rel=1e-9)
    interval = stats.binomtest(7, 400).proportion_ci(0.95, "exact")
    assert upper_limit(7, 400, 0.95) == pytest.approx(interval.high, rel=1e-6)


def test_calibration_with_two_gaussians():
    """N(0, 1) against N(1, 1), threshold fixed beforehand: below the truth in 95% of audits, and near it."""
    rng, n, threshold = np.random.default_rng(0), 2_000, 0.5
    fp = rng.binomial(n, stats.norm.sf(threshold), AUDITS)
    fn = rng.binomial(n, stats.norm.cdf(threshold - 1), AUDITS)
    bounds = np.array([gdp_mu_lower(a, n, b, n) for a, b in zip(fp, fn, strict=True)])
    assert np.mean(bounds <= 1) >= 0.95 and 0.85 < np.median(bounds) < 1


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 3.0])
def test_one_run_is_tight_for_randomized_response(epsilon):
    """Every guess is right with probability e^eps/(1 + e^eps): the bound is wrong in just under 5% of audits."""
    r, s = 500, 1 / (1 + math.exp(-epsilon))
    typical = int(r * s)
    wrong = next(v for v in range(typical, r + 1) if one_run(r, r, v, 0.0) > epsilon)
    assert 0.02 < stats.binom.sf(wrong - 1, r, s) < 0.05
    assert 0.8 * epsilon - 0.1 < one_run(r, r, typical, 0.0) < epsilon


def test_scores():
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 8, 40), rng.integers(0, 7, 60)
    pairs = (members[:, None] > others) + 0.5 * (members[:, None] == others)
    assert auc(members, others) == pytest.approx(pairs.mean(), rel=1e-12)
    assert auc([np.inf], [-np.inf, np.inf]) == 0.75
    members, others = np.array([5.0, 3, 2, 1]), np.array([4.0, 2, 0, 0, 0, 0, 0, 0, 0, 0])
    assert [tpr_at_fpr(members, others, fpr) for fpr in (0, 0.05, 0.1, 0.2, 1)] == [0.25, 0.25, 0.5, 1, 1]
    assert tpr_at_fpr(np.zeros(5), np.zeros(5), 0.5) == 0  # ties do not count as found


# --- the row space of one update

def outer_products(m, n_in=60, n_out=80, seed=0):
    """An update of m records [n_out, n_in], float32, its records' activations [m, n_in], and others [100, n_in]."""
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(m + 100, n_in, generator=generator)
    return torch.randn(m, n_out, generator=generator).T @ h[:m] / m, h[:m], h[m:]


def test_members_lie_in_the_row_space_and_others_as_far_outside_as_dimensions_allow():
    update, members, others = outer_products(20)
    assert row_space_basis(update).shape == (20, 60)
    assert row_space_membership(update, members).max() < 1e-5
    # a random direction keeps a share 1 - 20/60 of its squared norm
    assert row_space_membership(update, others).square().mean().item() == pytest.approx(40 / 60, abs=0.03)
    rounded = update.bfloat16().float()  # its rank is found from the batch size alone
    assert row_space_basis(rounded).shape == (60, 60)
    assert row_space_membership(rounded, members, max_rank=20).max() < 0.02
    assert row_space_membership(rounded, others, max_rank=20).min() > 0.3


def test_residuals_are_relative():
    update, _, others = outer_products(20)
    torch.testing.assert_close(row_space_membership(update, 1e3 * others), row_space_membership(update, others))
    torch.testing.assert_close(row_space_membership(1e-9 * update, others), row_space_membership(update, others))
    assert row_space_membership(update, torch.zeros(1, 60)).tolist() == [0.0]
    assert row_space_membership(torch.zeros(80, 60), others).tolist() == [1.0] * 100


def test_more_records_than_inputs_or_rows_hide_the_members():
    update, members, others = outer_products(70)
    assert row_space_basis(update).shape == (60, 60)
    residuals = [row_space_membership(update, h).numpy() for h in (members, others)]
    assert max(r.max() for r in residuals) == 0 and auc(*residuals) == 0.5
    update, members, _ = outer_products(20, n_out=10)
    assert row_space_basis(update).shape == (10, 60) and row_space_membership(update, members).min() > 0.1


def assert_all_found(found, m, steps=1):
    assert found.auc == 1.0 and found.tpr(0.0) == 1.0
    assert len(found.members) == m * steps
    assert found.members.max() < found.non_members.min() / 50


@pytest.mark.parametrize("change", [
    dict(sigma=0.1), dict(sigma=1.0), dict(sigma=10.0), dict(sigma=0.0), dict(mechanism="none"),
    dict(algorithm="bp", projector="none"), dict(algorithm="tdfa"), dict(algorithm="pdfa", projector="opu_simulated"),
    dict(activation="relu"), dict(tau_h_min=0.5, activation_floor=True), dict(tau_h_min=0.5),
    dict(arithmetic="bfloat16"), dict(optimizer="adam")], ids=str)
def test_the_photonic_mechanism_gives_away_every_record_of_the_batch(change, digits):
    assert_all_found(row_space_audit(dataclasses.replace(DIGITS, **change), digits), 32)


def test_a_network_without_hidden_layers_is_attacked_in_its_only_one(digits):
    flat = TrialConfig(dataset="digits", hidden=(), algorithm="bp", mechanism="none", batch_size=32)
    assert [finding.row[1] for finding in findings("flat", flat, digits, 1)] == ["row space, layer 1"]


def test_deeper_layers_and_later_steps(digits):
    one, three = row_space_audit(DIGITS, digits), row_space_audit(DIGITS, digits, steps=3)
    second, output = row_space_audit(DIGITS, digits, layer=2), row_space_audit(DIGITS, digits, layer=3)
    assert_all_found(second, 32)
    assert second.non_members.mean() > 1.2 * one.non_members.mean()  # 32 of 128 dimensions, not 32 of 64
    assert output.members.min() > 0.1 and output.auc < 0.9  # 10 rows do not span 32 activations
    assert_all_found(three, 32, steps=3)
    assert np.array_equal(three.members[:32], one.members)
    assert len(one.non_members) == DIGITS.split_sizes[1] == len(three.non_members) / 3


# --- lower bounds on epsilon; in test_certified.py of mechanisms that keep their claim and of mechanisms that do not

def bound(step, trials=4_000):
    return two_point_audit(*(np.array([step(j) for _ in range(trials)]) for j in (0, 1)))


def test_two_point_audit_of_a_step_that_releases_nothing_of_the_input():
    rng = np.random.default_rng(0)
    assert bound(lambda j: rng.normal()) < 0.1 and bound(lambda j: 0.0) == 0


def test_two_point_audit_counts_only_what_did_not_choose_the_threshold():
    """Perfect separation in the first half, none in the second."""
    zeros, ones = (np.array([float(j)] * 500 + [0.7] * 500) for j in (0, 1))
    assert two_point_audit(zeros, ones) == 0 < two_point_audit(zeros[:500], ones[:500])
    moved = (np.array([float(j)] * 500 + [10.0 + j] * 500) for j in (0, 1))  # each half by a threshold of its own
    assert two_point_audit(*moved) == 0
    assert two_point_audit(np.full(1000, -math.inf), np.full(1000, math.inf)) == gdp_mu_lower(0, 500, 0, 500)


def test_gaussian_log_ratio_is_the_log_ratio_of_densities():
    x, a, b = np.array([0.3, -1.0]), np.array([0.0, 1.0]), np.array([2.0, 0.5])
    densities = [math.exp(-np.sum((x - mean) ** 2) / (2 * 0.7**2)) for mean in (a, b)]
    assert gaussian_log_ratio(x, a, b, 0.7) == pytest.approx(math.log(densities[1] / densities[0]), rel=1e-12)


CANARIES, GUESSES, RUN_MU, RUN_DELTA = 100_000, 2_000, 0.25, 1e-6
RUN_CLAIMED = gdp_eps(RUN_MU, RUN_DELTA)


def canary_audit(seed, noise_multiplier=1 / RUN_MU, bare=0):
    """One canary of norm C = 1 per coordinate, each included or not; the first `bare` coordinates get no noise."""
    rng = np.random.default_rng(seed)
    included = rng.random(CANARIES) < 0.5
    sigma = np.full(CANARIES, noise_multiplier)
    sigma[:bare] = 1e-9
    scores = (included + sigma * rng.normal(size=CANARIES) - 0.5) / sigma**2
    return one_run_audit(included, scores, GUESSES, RUN_DELTA)


def test_one_run_audit_bounds_a_mechanism_that_keeps_its_claim_and_catches_less_noise():
    for seed in range(4):
        audit = canary_audit(seed)
        assert 0.3 * RUN_CLAIMED < audit.epsilon_lower < RUN_CLAIMED
        assert (audit.canaries, audit.guesses) == (CANARIES, GUESSES) and 0.5 < audit.right / GUESSES < 0.8
        assert canary_audit(seed, 0.5 / RUN_MU).epsilon_lower > 1.05 * RUN_CLAIMED
    bare = canary_audit(0, bare=10_000)
    assert bare.right == GUESSES and bare.epsilon_lower > 5 * RUN_CLAIMED


def test_one_run_audit_guesses_the_extremes():
    included = np.array([True, False, True, False, True, False])
    audit = one_run_audit(included, np.array([0.9, 0.1, 0.5, 0.6, 0.2, 0.8]), 4, 0.0)
    assert audit.right == 2  # guessed in: 0.9 (right), 0.8 (wrong); guessed out: 0.1 (right), 0.2 (wrong)
    assert one_run_audit(~included, np.arange(6.0), 6, 0.0).right == 4


@pytest.mark.parametrize("call, message", [
    (lambda: one_run(100, 101, 5, 0.0), "r: must be at least 1 and at most m = 100, got 101"),
    (lambda: one_run(100, 10, 11, 0.0), "v: must be at least 0 and at most r = 10, got 11"),
    (lambda: one_run(100, 10, 5, 1.0), "delta: must be >= 0 and < 1, got 1.0"),
    (lambda: one_run(100, 10, 5, 0.0, p=0.0), "p: must be > 0 and < 1, got 0.0"),
    (lambda: gdp_mu_lower(-1, 10, 0, 10), "fp: must be at least 0 and at most the 10 trials, got -1"),
    (lambda: gdp_mu_lower(0, 10, 11, 10), "fn: must be"),
    (lambda: gdp_mu_lower(0, 0, 0, 10), "fp: must come from at least 1 trial, got 0"),
    (lambda: gdp_mu_lower(0, 10, 0, 10, conf=1.0), "conf: must be > 0 and < 1, got 1.0"),
    (lambda: one_run_audit(np.ones(4), np.ones(4), 2, 0.0), "included: must be bool of the shape of scores"),
    (lambda: one_run_audit(np.ones(4, bool), np.ones(4), 3, 0.0), "r: must be even, at least 2 and at most m = 4"),
    (lambda: one_run_audit(np.ones(2, bool), np.array([0, np.nan]), 2, 0.0), "scores: must be numbers"),
    (lambda: two_point_audit(np.zeros(2), np.array([0, math.nan])), "statistics: must be numbers"),
    (lambda: auc([], [1.0]), "scores_members: must be numbers"),
    (lambda: tpr_at_fpr([1.0], [1.0], 1.5), "fpr: must be >= 0 and <= 1, got 1.5"),
    (lambda: row_space_membership(torch.ones(80, 60), torch.ones(5, 61)), r"candidates: must be \[k, n_in\]"),
    (dict(layer=0), "layer: must be at least 1 and at most 3, got 0"),
    (dict(steps=0), "steps: must be at least 1 and at most the 40 of an epoch, got 0")])
def test_refuses(call, message, digits):
    with pytest.raises(ValueError, match=message):
        call() if callable(call) else row_space_audit(DIGITS, digits, **call)
