from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from pipeline.accounting import selection as se
from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.gaussian import PrivacyEvent, UnsupportedAccounting, epsilon

SHUFFLED = PrivacyEvent("shuffled", "replace-one", 20.0, steps=100, epochs=10)
FIXED = PrivacyEvent("without_replacement", "replace-one", 2.0, steps=200, epochs=1, N=54000, m=256)
POISSON = PrivacyEvent("poisson", "add/remove", 2.0, steps=200, epochs=1, sampling_rate=256 / 54000)


def test_composing_shuffled_trials_is_one_gaussian():
    quiet = dataclasses.replace(SHUFFLED, noise_multiplier=10.0, epochs=5)
    found = se.selected_by_composition([SHUFFLED, SHUFFLED, quiet], 1e-5)
    mu = math.sqrt(2 * 10 / 20**2 + 5 / 10**2)
    assert found.value == pytest.approx(gdp_eps(mu, 1e-5))
    assert (found.kind, found.variant, found.conversion, found.relation) == (
        "selected", "composition", "exact", "replace-one")


@pytest.mark.parametrize("event", [FIXED, POISSON], ids=lambda e: e.sampler)
def test_composing_equal_trials_is_a_longer_run(event):
    longer = epsilon(dataclasses.replace(event, steps=3 * event.steps), 1e-5).value
    assert se.selected_by_composition([event] * 3, 1e-5).value == pytest.approx(longer, rel=1e-9)
    assert se.selected_by_composition([event], 1e-5).value == pytest.approx(epsilon(event, 1e-5).value, rel=1e-9)
    assert longer > epsilon(event, 1e-5).value


def test_samplers_of_one_relation_compose():
    both = se.selected_by_composition([SHUFFLED, FIXED], 1e-5)
    alone = [epsilon(e, 1e-5).value for e in (SHUFFLED, FIXED)]
    assert max(alone) < both.value < sum(alone)
    assert (both.sampler, both.conversion) == ("shuffled, without_replacement", "pld")


def test_a_trial_without_noise_costs_everything():
    bare = dataclasses.replace(SHUFFLED, noise_multiplier=0.0)
    assert se.selected_by_composition([SHUFFLED, bare], 1e-5).value == math.inf
    assert se.selected_by_random_stopping([SHUFFLED, bare], 1e-5, mean=3).value == math.inf


def geometric_by_hand(mu, mean, delta):
    """Papernot & Steinke 2022, Theorem 2 with eta = 1, gamma = 1/mean, on a dense grid; improved conversion."""
    orders = np.concatenate([np.linspace(1.05, 64, 3000), np.geomspace(64, 4096, 500)])
    curve = orders * mu**2 / 2
    constant = 2 * np.min((1 - 1 / orders) * curve + math.log(mean) / orders)
    selected = curve + math.log(mean) / (orders - 1) + constant
    return np.min(selected + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1))


@pytest.mark.parametrize("mean", [5.0, 40.0])
def test_geometric_stopping_is_theorem_2(mean):
    found = se.selected_by_random_stopping([SHUFFLED], 1e-5, mean=mean)
    by_hand = geometric_by_hand(math.sqrt(10) / 20, mean, 1e-5)
    assert found.value == pytest.approx(by_hand, rel=0.02)
    assert by_hand <= found.value * (1 + 1e-9)
    assert (found.kind, found.variant) == ("selected", "random_stopping") and "geometric with mean" in found.note


@pytest.mark.parametrize("event", [SHUFFLED, FIXED, POISSON], ids=lambda e: e.sampler)
@pytest.mark.parametrize("shape", [se.LOGARITHMIC, 0.5, se.GEOMETRIC, se.POISSON])
def test_selection_costs_more_than_a_trial_and_grows(event, shape):
    few, many = (se.selected_by_random_stopping([event], 1e-5, mean=mean, shape=shape).value for mean in (2.0, 50.0))
    assert epsilon(event, 1e-5).value < few < many < math.inf


def test_random_stopping_is_cheaper_than_composing_a_hundred():
    assert (se.selected_by_random_stopping([SHUFFLED], 1e-5, mean=100).value
            < se.selected_by_composition([SHUFFLED] * 100, 1e-5).value)


def test_the_least_private_candidate_counts():
    louder = dataclasses.replace(FIXED, noise_multiplier=4.0, m=512)
    longer = dataclasses.replace(FIXED, steps=300)
    worst = dataclasses.replace(FIXED, steps=300, m=512)
    assert (se.selected_by_random_stopping([louder, longer, FIXED], 1e-5, mean=4).value
            == se.selected_by_random_stopping([worst], 1e-5, mean=4).value)


@pytest.mark.parametrize("call", [
    se.selected_by_composition, lambda events, delta: se.selected_by_random_stopping(events, delta, mean=2)])
def test_refusals(call):
    with pytest.raises(ValueError, match="events: must be one per trial looked at, got none"):
        call([], 1e-5)
    with pytest.raises(UnsupportedAccounting, match="relation: must be one for all trials, got add/remove and replace"):
        call([FIXED, POISSON], 1e-5)
    with pytest.raises(UnsupportedAccounting, match="sampler shuffled with relation add/remove"):
        call([dataclasses.replace(SHUFFLED, relation="add/remove")], 1e-5)
    with pytest.raises(ValueError, match="delta: must be > 0 and < 1, got 1"):
        call([SHUFFLED], 1)
    with pytest.raises(ValueError, match="noise_multiplier: not set"):
        call([dataclasses.replace(SHUFFLED, noise_multiplier=None)], 1e-5)


@pytest.mark.parametrize("change, message", [
    (dict(mean=0.5), "mean: must be >= 1 and finite, got 0.5"), (dict(mean=math.inf), "mean: must be >= 1 and finite"),
    (dict(mean=2, shape=-1.0), "shape: must be >= 0, got -1.0"), (dict(mean=2, shape=math.nan), "shape: must be >= 0"),
])
def test_stopping_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        se.selected_by_random_stopping([SHUFFLED], 1e-5, **change)


def test_stopping_refuses_mixed_samplers():
    with pytest.raises(UnsupportedAccounting, match="sampler: must be one for all trials, got shuffled and without"):
        se.selected_by_random_stopping([SHUFFLED, FIXED], 1e-5, mean=2)
