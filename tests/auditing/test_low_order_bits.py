"""The low-order-bit attack finds noise of 31 and of 24 bits, in updates and in weights, and no rounded Gaussian."""

import contextlib
import dataclasses
import math

import numpy as np
import pytest
import torch
from box_muller import box_muller_31_bits, with_box_muller_noise

from pipeline.accounting.finite_precision import STEPS_PER_SIGMA
from pipeline.auditing.low_order_bits import LATTICES, lattice_score, low_order_bit_audit
from pipeline.learning import rounded_gaussian
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

CPU = torch.device("cpu")
WIDE = TrialConfig(dataset="digits", hidden=(1024, 512), algorithm="dfa", mechanism="per_example",
                   noise_multiplier=20.0, batch_size=16, sampler="poisson", learning_rate=0.5)


def attacked(config, data, runs, change=lambda training: training):
    with contextlib.closing(change(Training(Pack((config,)), data, CPU))) as training:  # in any arithmetic
        return low_order_bit_audit(training, runs)


def test_noise_of_31_bits_is_found_with_few_runs_in_updates_and_in_weights(digits):
    """And torch's own float32 noise of research trials."""
    for seen in attacked(dataclasses.replace(WIDE, sampler="shuffled"), digits, 12, with_box_muller_noise):
        assert seen.auc > 0.99 and seen.errors == 0 and seen.exceeds and seen.epsilon_lower > seen.epsilon
        assert seen.mu == 1 / 10, "a record in the place of another moves the sum twice as far"
    for seen in attacked(WIDE, digits, 12):
        assert seen.auc > 0.99 and seen.exceeds and seen.mu == 1 / 20


def test_the_noise_of_secure_trials_is_not_found(digits):
    secure = dataclasses.replace(WIDE, hidden=(256, 128), noise="secure", noise_multiplier=4.0,
                                 matmul_precision="integer")
    for seen in attacked(secure, digits, 120):
        assert 0.35 <= seen.auc <= 0.62 and not seen.exceeds and seen.epsilon_lower <= seen.epsilon
        assert seen.runs == 120 and 75 <= seen.errors <= 165


def test_scores_of_noise_on_and_off_its_lattice():
    n = 2_000_000
    noise = torch.empty(n)
    box_muller_31_bits(noise, 2.0)
    halves, blocks = LATTICES
    assert lattice_score(noise.double().numpy(), 2.0, halves) > 20
    assert lattice_score(torch.randn(n).double().numpy() * 2, 2.0, blocks) > 1000
    exact = rounded_gaussian.draw(n) / STEPS_PER_SIGMA * 2
    for lattice in LATTICES:
        assert lattice_score(exact, 2.0, lattice) < 1e-6
        assert lattice_score(exact.astype(np.float32).astype(float), 2.0, lattice) < 1e-6
        assert lattice_score(noise.double().numpy() + 0.01, 2.0, lattice) < 1e-6
    assert lattice_score(np.full(64, math.nan), 2.0, halves) == pytest.approx(math.log(2)), "no evidence at all"


@pytest.mark.parametrize(("changes", "runs", "message"), [
    ({"mechanism": "none"}, 3, "mechanism: must be one of per_example, automatic, component, got none"),
    ({"noise_multiplier": 0.0}, 3, "noise_multiplier: must be > 0"), ({}, 0, "runs: must be >= 1, got 0")])
def test_what_cannot_be_attacked_is_refused(changes, runs, message, digits):
    with pytest.raises(ValueError, match=f"^{message}"):
        attacked(dataclasses.replace(WIDE, hidden=(8,), **changes), digits, runs)
