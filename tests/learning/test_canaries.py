"""The audit of a whole run by its own canaries: who takes part, what is seen of it, and what it costs nobody else."""

import dataclasses

import numpy as np
import pytest
import torch
from flat import train

from pipeline.accounting import privacy_tags
from pipeline.accounting.audited import guesses, one_run, one_run_audit
from pipeline.learning.canaries import Canaries
from pipeline.learning.data.sampling import ABSENT, BatchSampler, split
from pipeline.learning.randomness import GaussianNoise
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

CPU = torch.device("cpu")
BASE = TrialConfig(dataset="digits", hidden=(64, 64), algorithm="bp", sampler="poisson", batch_size=64, epochs=2,
                   learning_rate=0.1, alignment_batches=0, canaries=200)
CERTIFIED = dataclasses.replace(BASE, epochs=5, mechanism="per_example", target_epsilon=1.0)
BOUND, AUC = "epsilon/audited/one_run", "audit/canary_auc"


def canaries_of(trial, digits):
    records = split(digits.spec.n_train, trial.split_sizes[1], trial.seed)[0]
    return Canaries((trial,), [records], digits.train_y, 10), records


def last_metrics(trial, digits):
    return list(train(Pack((trial,)), digits))[-1].metrics


# --- what is found

def test_an_overfitting_run_without_privacy_is_caught(digits):
    metrics = last_metrics(dataclasses.replace(BASE, epochs=40), digits)
    most = one_run(200, guesses(200), guesses(200), BASE.delta)
    assert 1.5 < metrics[BOUND] <= most < 3 and metrics[AUC] > 0.95


@pytest.mark.slow
def test_the_bound_of_a_certified_run_stays_below_what_is_certified_but_for_missing_noise(digits, monkeypatch):
    metrics = last_metrics(CERTIFIED, digits)
    assert metrics[BOUND] <= metrics["epsilon/certified/pld"] <= 1.0
    assert abs(metrics[AUC] - 0.5) < 0.2  # 1-DP at all, and 100 + 100 canaries: the standard deviation is 0.04
    # The noise is drawn, accounted for, and never added; clipping alone hides nobody.
    monkeypatch.setattr(GaussianNoise, "next", lambda self: torch.zeros_like(self.block[:, 0]))
    metrics = last_metrics(dataclasses.replace(CERTIFIED, epochs=25, clipping_norm=20.0), digits)
    assert metrics[BOUND] > 1.0 >= metrics["epsilon/certified/pld"] and metrics[AUC] > 0.9


def test_a_run_that_shows_the_opposite_bounds_nothing_and_neither_does_one_that_diverged(digits):
    canaries, _ = canaries_of(BASE, digits)
    betrayed = canaries.included[0].astype(float)
    assert canaries.audit(0, betrayed) == {BOUND: pytest.approx(one_run(200, 40, 40, BASE.delta)), AUC: 1.0}
    assert canaries.audit(0, -betrayed) == {BOUND: 0.0, AUC: 0.0}
    overflowed = np.where(canaries.included[0], 0.0, np.nan)  # is taken for the lowest score
    assert canaries.audit(0, overflowed)[AUC] == 1.0
    record, = train(Pack((dataclasses.replace(BASE, epochs=2, activation="relu", learning_rate=1e30),)), digits)
    assert record.outcome.status == "diverged" and BOUND not in record.metrics and AUC not in record.metrics


def test_scores_are_the_drop_of_the_wrong_labels_loss(digits):
    training = Training(Pack((BASE,)), digits, CPU)
    training.net.parameters.flat.zero_()  # all classes alike: the loss is log 10, whatever the label
    records = training.canaries.indices[0]
    wrong = training.canaries.labels[0, records]
    other = Training(Pack((BASE,)), digits, CPU)
    _, logits = other.net.forward(other.train_inputs.batch(records.unsqueeze(0)))
    expected = torch.nn.functional.cross_entropy(logits[0], wrong, reduction="none") - np.log(10)
    np.testing.assert_allclose(training.canaries.scores(training.net, training.train_inputs)[0], expected, atol=1e-5)


def test_the_number_of_guesses_is_even_and_allows_a_bound_from_the_least_canaries_on():
    assert [guesses(k) for k in (30, 39, 200, 1000)] == [6, 6, 40, 200]
    assert one_run(30, 6, 6, 1e-5) > 0 == one_run(29, guesses(29), guesses(29), 1e-5)
    included = np.arange(100) % 2 == 0
    for coins in (included, ~included, np.sort(included), np.sort(included)[::-1]):  # equal scores tell nothing of them
        by_place = int((~coins[:10]).sum() + coins[-10:].sum())
        assert one_run_audit(coins, np.zeros(100), 20, 1e-5).right == by_place


# --- who takes part

def test_canaries_are_distinct_training_records_with_wrong_labels_and_those_left_out_are_never_drawn(digits):
    canaries, records = canaries_of(BASE, digits)
    chosen = canaries.indices[0]
    assert len(set(chosen.tolist())) == 200 and set(chosen.tolist()) <= set(records.tolist())
    changed = (canaries.labels[0] != digits.train_y).nonzero().flatten()
    assert set(changed.tolist()) == set(chosen.tolist())
    shift = (canaries.labels[0] - digits.train_y)[chosen] % 10
    assert set(shift.tolist()) == set(range(1, 10))  # any wrong label
    assert canaries.labels_of(chosen.unsqueeze(0)).tolist() == [canaries.labels[0, chosen].tolist()]
    out = set(chosen[~canaries.included[0]].tolist())
    drawn, plain = (BatchSampler("poisson", [given], [0], 64, 200, CPU).epoch()[:, 0]
                    for given in (canaries.remaining[0], records))
    assert torch.equal(drawn, torch.where(torch.isin(plain, torch.tensor(sorted(out))), ABSENT, plain))
    assert out & set(plain.flatten().tolist()), "without the coins they would have been drawn"
    assert len(canaries.remaining[0]) == len(records)  # N, and with it q = m/N, is public


def test_coins_are_fair_and_independent_of_records_and_labels(digits):
    seeds = [canaries_of(dataclasses.replace(BASE, seed=seed, canaries=400), digits)[0] for seed in range(50)]
    coins = np.stack([c.included[0] for c in seeds])
    assert abs(coins.mean() - 0.5) < 4 * 0.5 / coins.size**0.5
    assert coins.sum(axis=1).std() == pytest.approx(10, abs=4)  # Binomial(400, 1/2), and not exactly half
    labels = np.stack([c.labels[0, c.indices[0]] for c in seeds])
    assert abs(np.corrcoef(coins.ravel(), labels.ravel())[0, 1]) < 4 / coins.size**0.5


# --- what it does to trials

def test_without_canaries_nothing_changes(digits):
    """The identity of a trial that does not name them, the plain sampler's batches, the data set's labels, no audit."""
    plain = dataclasses.replace(BASE, canaries=0)
    assert TrialConfig(canaries=0).trial_key == TrialConfig().trial_key == "e08599ddec9e8030"
    assert "delta" not in plain.canonical() and "delta" in BASE.canonical()
    training = Training(Pack((plain,)), digits, CPU)
    records = split(digits.spec.n_train, plain.split_sizes[1], 0)[0]
    expected = BatchSampler("poisson", [records], [0], 64, plain.steps_per_epoch, CPU).epoch()
    assert training.canaries is None and torch.equal(training.sampler.epoch(), expected)
    assert not {BOUND, AUC} & set(last_metrics(plain, digits))
    assert "audited by 200 canaries, training records with wrong labels" in privacy_tags(BASE)["privacy.notes"]
    assert "audited" not in privacy_tags(plain)["privacy.notes"]
