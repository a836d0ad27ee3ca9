import dataclasses
import math
from dataclasses import replace as changed
from functools import partial

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from dp_accounting.rdp import RdpAccountant
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.accounting import event as ga
from pipeline.accounting import selected as se
from pipeline.accounting.curves import COARSEST, DISCRETIZATION, gdp_eps, improved_conversion
from pipeline.accounting.event import PrivacyEvent, UnsupportedAccounting

SHUFFLED = PrivacyEvent("shuffled", 20.0, steps=100, epochs=10)
FIXED = PrivacyEvent("without_replacement", 2.0, steps=200, epochs=1, N=54000, m=256)
POISSON = PrivacyEvent("poisson", 2.0, steps=200, epochs=1, sampling_rate=256 / 54000)


SIZES = dict(steps=st.integers(1, 20), epochs=st.integers(1, 20))
NOISE = st.floats(1, 8)
RUNS = st.one_of(st.lists(kind, min_size=1, max_size=4) for kind in (
    st.builds(PrivacyEvent, st.just("poisson"), NOISE, **SIZES, sampling_rate=st.floats(0.05, 1)),
    st.builds(PrivacyEvent, st.just("without_replacement"), NOISE, **SIZES, N=st.just(100), m=st.integers(5, 100))
    | st.builds(PrivacyEvent, st.just("shuffled"), NOISE, **SIZES)))


@pytest.mark.slow
@settings(max_examples=6, phases=(Phase.generate,))  # a failing example is slow to shrink
@given(RUNS, st.sampled_from([1e-3, 1e-5, 1e-7]), st.randoms(use_true_random=False))
def test_composition_has_no_order_and_grows_with_trials_steps_and_certainty(runs, delta, random):
    """No epsilon is below the true one, and a grid adds 0.2% at most."""
    def cost(*events, delta=delta):
        return se.selected_by_composition(events, delta).value

    whole, (first, *others) = cost(*runs), runs
    twice, longer = cost(first, *runs), dataclasses.replace(first, steps=2 * first.steps, epochs=2 * first.epochs)
    assert cost(*random.sample(runs, len(runs))) == pytest.approx(whole, rel=1e-9)
    assert cost(*random.sample(runs, random.randint(1, len(runs)))) <= 1.002 * whole
    assert twice == pytest.approx(cost(longer, *others), rel=2e-3)
    assert 1.002 * min(twice, cost(*runs, delta=delta / 2)) >= whole


@given(st.lists(st.builds(PrivacyEvent, st.just("shuffled"), NOISE, **SIZES), min_size=1, max_size=5), st.floats(0, 2))
def test_composition_of_gaussians_is_the_root_of_the_sum_of_their_squares(runs, scores):
    """Exactly, every participation counted: so it is monotone, and associative. Shuffled trials take part by epoch."""
    squares = sum(run.epochs / run.z**2 for run in runs) + scores**2
    value, conversion = ga.composed_epsilon(runs, scores, 1e-5)
    assert value == pytest.approx(gdp_eps(math.sqrt(squares), 1e-5), rel=1e-9) and conversion == "exact"


def test_a_trial_without_noise_costs_everything_and_what_is_selected_says_what_it_is():
    bare = changed(SHUFFLED, noise_multiplier=0.0)
    assert se.selected_by_composition([SHUFFLED, bare], 1e-5).value == math.inf
    assert se.selected_by_random_stopping([SHUFFLED, bare], 1e-5, mean=3).value == math.inf
    found = se.selected_by_composition([SHUFFLED], 1e-5)
    assert (found.kind, found.variant, found.conversion, found.relation) == (
        "selected", "composition", "exact", "replace-one")


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


@pytest.mark.parametrize(("event", "shape", "mean"), [
    *((event, shape, mean) for event, mean in ((SHUFFLED, 50.0), (POISSON, 2.0))
      for shape in (se.LOGARITHMIC, 0.5, se.GEOMETRIC, se.POISSON)), (FIXED, se.GEOMETRIC, 7.0)],
    ids=lambda value: getattr(value, "sampler", value))
def test_stopping_of_one_candidate_is_dp_accountings(event, shape, mean):
    accountant = RdpAccountant(neighboring_relation=ga.NEIGHBOURS[event.relation])
    accountant.compose(dp.RepeatAndSelectDpEvent(event.run, mean, shape))
    found = se.selected_by_random_stopping([event, event], 1e-5, mean=mean, shape=shape).value
    assert event.value(1e-5) < found < math.inf
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


def test_the_least_private_candidate_counts_order_by_order():
    def cost(*events):
        return se.selected_by_random_stopping(events, 1e-5, mean=4).value

    longer, worst = changed(FIXED, steps=300), changed(FIXED, steps=300, m=512)
    assert cost(FIXED, longer) == cost(longer) > cost(FIXED)
    # Many weak steps against a few strong ones: their curves cross, and no candidate alone is the least private.
    strong = changed(POISSON, noise_multiplier=1.0)
    weak = changed(POISSON, noise_multiplier=3.0, sampling_rate=0.03, steps=3000)
    orders, curves = zip(*((a.orders, a.rdp) for a in (
        RdpAccountant().compose(event.run) for event in (weak, strong))), strict=True)
    assert (curves[0] > curves[1]).any() and (curves[0][orders[0] > 1] < curves[1][orders[0] > 1]).any()
    both = se.repeated(orders[0], np.maximum(*curves), 4.0, 1.0)
    assert cost(weak, strong) == improved_conversion(orders[0], both, 1e-5)[0] >= max(cost(weak), cost(strong))
    assert cost(changed(FIXED, noise_multiplier=4.0, m=512), longer) < cost(worst)


def test_composing_many_kinds_of_trials_takes_a_coarser_grid_that_costs_next_to_nothing(monkeypatch):
    events = [changed(POISSON, noise_multiplier=z, sampling_rate=q, steps=steps)
              for z, q, steps in ((0.7, 0.01, 300), (1.0, 0.02, 300), (5.0, 0.004, 600))]
    counted = [*events, events[0]]
    found = se.selected_by_composition(counted, 1e-5)
    interval = ga.interval_of(*events)
    assert DISCRETIZATION < interval <= COARSEST
    assert found.value == pytest.approx(se.selected_by_composition(counted[::-1], 1e-5).value, rel=1e-9)
    monkeypatch.setattr(ga, "interval_of", lambda *runs: DISCRETIZATION)
    exact = se.selected_by_composition(counted, 1e-5).value
    assert exact <= found.value <= 1.002 * exact
    monkeypatch.setattr(ga, "interval_of", lambda *runs: 100 * interval)
    assert se.selected_by_composition(counted, 1e-5).value > 1.01 * exact, "a coarse grid is not always harmless"
    quiet = [changed(e, noise_multiplier=50.0) for e in events]
    monkeypatch.undo()
    assert ga.interval_of(events[0]) == DISCRETIZATION > ga.interval_of(*quiet), "small losses have a finer grid"


def stopped(*events, delta=1e-5, **change):
    return se.selected_by_random_stopping(events, delta, **{"mean": 2, **change})


def composed(*events, delta=1e-5):
    return se.selected_by_composition(events, delta)


@pytest.mark.parametrize(("refused", "error", "message"), [
    *(row for call in (composed, stopped) for row in (
        (partial(call), ValueError, "events: must be one per trial looked at, got none"),
        (partial(call, FIXED, POISSON), UnsupportedAccounting,
         "relation: must be one for all trials, got add/remove and replace"),
        (partial(call, SHUFFLED, delta=1), ValueError, "delta: must be > 0 and < 1, got 1"),
        (partial(call, changed(SHUFFLED, noise_multiplier=None)), ValueError, "noise_multiplier: not set"))),
    (partial(stopped, SHUFFLED, mean=0.5), ValueError, "mean: must be >= 1 and finite, got 0.5"),
    (partial(stopped, SHUFFLED, mean=math.inf), ValueError, "mean: must be >= 1 and finite"),
    (partial(stopped, SHUFFLED, shape=-1.0), ValueError, "shape: must be >= 0, got -1.0"),
    (partial(stopped, SHUFFLED, shape=math.nan), ValueError, "shape: must be >= 0"),
    (partial(stopped, SHUFFLED, FIXED), UnsupportedAccounting,
     "sampler: must be one for all trials, got shuffled and without")])
def test_refusals(refused, error, message):
    with pytest.raises(error, match=message):
        refused()
