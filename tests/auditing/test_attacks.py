"""Attacks: they find what is there, find nothing where nothing is, and catch mechanisms that claim too much."""

from __future__ import annotations

import dataclasses
import math
import os

import numpy as np
import pytest
import torch
from test_audit import gaussian_epsilon

from pipeline.accounting.audited import auc, one_run_audit, tpr_at_fpr
from pipeline.auditing.row_space import row_space_audit, row_space_basis, row_space_membership
from pipeline.auditing.two_point import gaussian_log_ratio, two_point_step_audit
from pipeline.learning.data.dataset import load
from pipeline.learning.mechanisms.photonic import Photonic
from pipeline.trials.config import TrialConfig

DIGITS = TrialConfig(dataset="digits", hidden=(128, 64), batch_size=32, mechanism="photonic", sigma=1.0)
FASHION = TrialConfig(mechanism="photonic", batch_size=256)
needs_fashion = pytest.mark.skipif(not os.environ.get("PHOTONIC_DATA"),
                                   reason="needs Fashion-MNIST in the folder that PHOTONIC_DATA names")


# --- scores


def test_auc_is_the_share_of_pairs():
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 8, 40), rng.integers(0, 7, 60)
    pairs = (members[:, None] > others) + 0.5 * (members[:, None] == others)
    assert auc(members, others) == pytest.approx(pairs.mean(), rel=1e-12)
    assert auc([np.inf], [-np.inf, np.inf]) == 0.75


def test_tpr_at_fpr():
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


def test_rounded_updates_need_the_batch_size():
    update, members, others = outer_products(20)
    rounded = update.bfloat16().float()
    assert row_space_basis(rounded).shape == (60, 60)
    assert row_space_membership(rounded, members, max_rank=20).max() < 0.02
    assert row_space_membership(rounded, others, max_rank=20).min() > 0.3


def test_noise_on_the_update_itself_hides_the_members():
    update, members, others = outer_products(20)
    noisy = update + 5 * torch.randn(update.shape, generator=torch.Generator().manual_seed(1))
    residuals = (row_space_membership(noisy, h, max_rank=20).numpy() for h in (members, others))
    assert 0.3 < auc(*(-r for r in residuals)) < 0.7


@pytest.mark.parametrize("update, candidates", [((80, 60), (5, 61)), ((1, 80, 60), (5, 60)), ((80, 60), (60,))])
def test_row_space_refuses_shapes(update, candidates):
    with pytest.raises(ValueError, match=r"candidates: must be \[k, n_in\]"):
        row_space_membership(torch.ones(update), torch.ones(candidates))


# --- one step of a real trial

def assert_all_found(found, m, steps=1):
    assert found.auc == 1.0 and found.tpr(0.0) == 1.0
    assert len(found.members) == m * steps
    assert found.members.max() < found.non_members.min() / 50


@pytest.mark.parametrize("change", [
    dict(sigma=0.1), dict(sigma=1.0), dict(sigma=10.0), dict(sigma=0.0), dict(mechanism="none"),
    dict(algorithm="bp", projector="none"), dict(algorithm="tdfa"), dict(algorithm="pdfa", projector="opu_simulated"),
    dict(activation="relu"), dict(tau_h_min=0.5, activation_floor=True), dict(tau_h_min=0.5),
    dict(matmul_precision="bfloat16"), dict(optimizer="adam")], ids=str)
def test_the_photonic_mechanism_gives_away_every_record_of_the_batch(change, digits):
    assert_all_found(row_space_audit(dataclasses.replace(DIGITS, **change), digits), 32)


def test_deeper_layers_and_later_steps(digits):
    one, three = row_space_audit(DIGITS, digits), row_space_audit(DIGITS, digits, steps=3)
    second, output = row_space_audit(DIGITS, digits, layer=2), row_space_audit(DIGITS, digits, layer=3)
    assert_all_found(second, 32)
    assert second.non_members.mean() > 1.2 * one.non_members.mean()  # 32 of 128 dimensions, not 32 of 64
    assert output.members.min() > 0.1 and output.auc < 0.9  # 10 rows do not span 32 activations
    assert_all_found(three, 32, steps=3)
    assert np.array_equal(three.members[:32], one.members)
    assert len(one.non_members) == DIGITS.split_sizes[1] == len(three.non_members) / 3


def test_noise_on_the_released_update_defeats_the_attack(digits, monkeypatch):
    def noisy_update(self, deltas, activations, out):
        update(self, deltas, activations, out)
        for weight in out.weights:
            weight += torch.randn(weight.shape, generator=generator)

    update, generator = Photonic.update, torch.Generator().manual_seed(0)
    monkeypatch.setattr(Photonic, "update", noisy_update)
    found = row_space_audit(DIGITS, digits, steps=5)
    assert 0.4 < found.auc < 0.6 and found.tpr(0.01) < 0.1


@pytest.mark.parametrize("arguments, message", [
    (dict(layer=0), "layer: must be at least 1 and at most 3, got 0"), (dict(layer=4), "layer: .* got 4"),
    (dict(steps=0), "steps: must be at least 1 and at most the 40 of an epoch, got 0"), (dict(steps=41), "steps: ")])
def test_row_space_audit_refuses(arguments, message, digits):
    with pytest.raises(ValueError, match=message):
        row_space_audit(DIGITS, digits, **arguments)


@needs_fashion
def test_fashion_mnist_gives_away_every_record_at_any_sigma():
    data = load("fashion_mnist")
    for sigma in (0.1, 1.0, 10.0):
        found = row_space_audit(dataclasses.replace(FASHION, sigma=sigma), data)
        assert_all_found(found, 256)
        assert len(found.non_members) == 6000


# --- lower bounds on epsilon, of mechanisms that keep their claim and of mechanisms that do not

MU, DELTA, TRIALS = 1.0, 0.01, 4_000
CLAIMED = gaussian_epsilon(MU, DELTA)
OUTPUT = slice(30, 40)  # of 40 weights, those of the output layer


class Step:
    """The sum of clipped records, with or without one more, and N(0, (C/mu)^2) on every weight. C = 1."""

    def __init__(self, seed=0, noise_multiplier=1 / MU):
        self.rng = np.random.default_rng(seed)
        self.sigma = np.full(40, noise_multiplier)
        records = self.rng.normal(size=(9, 40))
        records /= np.linalg.norm(records, axis=1, keepdims=True)
        self.base, self.canary = records[:8].sum(axis=0), records[8]

    def release(self, j):
        return self.base + j * self.canary + self.sigma * self.rng.normal(size=40)

    def log_ratio(self, j):
        """The best statistic if all weights have the noise that is claimed."""
        return gaussian_log_ratio(self.release(j), self.base, self.base + self.canary, 1 / MU)

    def output_layer(self, j):
        """How much of the canary is in the output layer."""
        return (self.release(j) - self.base)[OUTPUT] @ self.canary[OUTPUT]


def test_two_point_audit_of_a_step_that_keeps_its_claim():
    for seed in range(5):
        step = Step(seed)
        audit = two_point_step_audit(step.log_ratio, DELTA, TRIALS)
        assert 0.3 * CLAIMED < audit.epsilon_lower < CLAIMED
        assert 0.2 * MU < audit.mu_lower < MU
        assert audit.trials == TRIALS // 2
        assert two_point_step_audit(step.output_layer, DELTA, TRIALS).epsilon_lower < audit.epsilon_lower


def test_two_point_audit_catches_half_the_noise():
    for seed in range(5):
        audit = two_point_step_audit(Step(seed, 0.5 / MU).log_ratio, DELTA, TRIALS)
        assert audit.epsilon_lower > 1.1 * CLAIMED and audit.mu_lower > 1.1 * MU


def test_two_point_audit_catches_an_output_layer_without_noise():
    step = Step()
    step.sigma[OUTPUT] = 0
    audit = two_point_step_audit(step.output_layer, DELTA, TRIALS)
    assert (audit.false_positives, audit.false_negatives) == (0, 0)
    assert audit.epsilon_lower == pytest.approx(6.28, abs=0.01) and audit.epsilon_lower > 2 * CLAIMED


def test_two_point_audit_of_a_step_that_releases_nothing_of_the_input():
    rng = np.random.default_rng(0)
    assert two_point_step_audit(lambda j: rng.normal(), DELTA, TRIALS).epsilon_lower < 0.1
    constant = two_point_step_audit(lambda j: 0.0, DELTA, TRIALS)
    assert (constant.epsilon_lower, constant.false_negatives) == (0, TRIALS // 2)


def test_two_point_audit_counts_only_what_did_not_choose_the_threshold():
    """Perfect separation in the first half, none in the second."""
    calls = {0: 0, 1: 0}

    def step(j):
        calls[j] += 1
        return float(j) if calls[j] <= 500 else 0.7

    audit = two_point_step_audit(step, DELTA, 1000)
    assert (audit.threshold, audit.false_positives, audit.false_negatives) == (0.5, 500, 0)
    assert audit.epsilon_lower == 0 and calls == {0: 1000, 1: 1000}


def test_two_point_audit_takes_disjoint_supports():
    audit = two_point_step_audit(lambda j: math.inf if j else -math.inf, DELTA, 1000)
    assert (audit.false_positives, audit.false_negatives) == (0, 0) and audit.epsilon_lower > 4


def test_gaussian_log_ratio_is_the_log_ratio_of_densities():
    x, a, b = np.array([0.3, -1.0]), np.array([0.0, 1.0]), np.array([2.0, 0.5])
    densities = [math.exp(-np.sum((x - mean) ** 2) / (2 * 0.7**2)) for mean in (a, b)]
    assert gaussian_log_ratio(x, a, b, 0.7) == pytest.approx(math.log(densities[1] / densities[0]), rel=1e-12)


CANARIES, GUESSES, RUN_MU, RUN_DELTA = 100_000, 2_000, 0.25, 1e-6
RUN_CLAIMED = gaussian_epsilon(RUN_MU, RUN_DELTA)


def canary_run(seed, noise_multiplier=1 / RUN_MU, bare=0):
    """One canary of norm C = 1 per coordinate, each included or not; the first `bare` coordinates get no noise."""
    rng = np.random.default_rng(seed)
    included = rng.random(CANARIES) < 0.5
    sigma = np.full(CANARIES, noise_multiplier)
    sigma[:bare] = 1e-9
    return included, (included + sigma * rng.normal(size=CANARIES) - 0.5) / sigma**2


def test_one_run_audit_of_a_mechanism_that_keeps_its_claim():
    for seed in range(10):
        audit = one_run_audit(*canary_run(seed), GUESSES, RUN_DELTA)
        assert 0.3 * RUN_CLAIMED < audit.epsilon_lower < RUN_CLAIMED
        assert (audit.canaries, audit.guesses) == (CANARIES, GUESSES) and 0.5 < audit.right / GUESSES < 0.8


def test_one_run_audit_catches_half_the_noise():
    for seed in range(5):
        assert one_run_audit(*canary_run(seed, 0.5 / RUN_MU), GUESSES, RUN_DELTA).epsilon_lower > 1.05 * RUN_CLAIMED


def test_one_run_audit_catches_an_output_layer_without_noise():
    audit = one_run_audit(*canary_run(0, bare=10_000), GUESSES, RUN_DELTA)
    assert audit.right == GUESSES and audit.epsilon_lower > 5 * RUN_CLAIMED


def test_one_run_audit_guesses_the_extremes():
    included = np.array([True, False, True, False, True, False])
    audit = one_run_audit(included, np.array([0.9, 0.1, 0.5, 0.6, 0.2, 0.8]), 4, 0.0)
    assert audit.right == 2  # guessed in: 0.9 (right), 0.8 (wrong); guessed out: 0.1 (right), 0.2 (wrong)
    assert one_run_audit(~included, np.arange(6.0), 6, 0.0).right == 4


@pytest.mark.parametrize("call, message", [
    (lambda: one_run_audit(np.ones(4), np.ones(4), 2, 0.0), "included: must be bool of the shape of scores"),
    (lambda: one_run_audit(np.ones(3, bool), np.ones(4), 2, 0.0), "included: must be bool"),
    (lambda: one_run_audit(np.ones(4, bool), np.ones(4), 3, 0.0), "r: must be even, at least 2 and at most m = 4"),
    (lambda: one_run_audit(np.ones(4, bool), np.ones(4), 6, 0.0), "r: must be even"),
    (lambda: one_run_audit(np.ones(2, bool), np.array([0, np.nan]), 2, 0.0), "scores: must be numbers"),
    (lambda: two_point_step_audit(lambda j: 0.0, 0.0, 3), "trials: must be an even number of at least 2, got 3"),
    (lambda: two_point_step_audit(lambda j: math.nan, 0.0, 2), "step: must be numbers"),
    (lambda: auc([], [1.0]), "scores_members: must be numbers"),
    (lambda: tpr_at_fpr([1.0], [1.0], 1.5), "fpr: must be >= 0 and <= 1, got 1.5")])
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
