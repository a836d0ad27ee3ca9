import functools
import math
import warnings
from dataclasses import replace as changed
from pathlib import Path
from unittest.mock import Mock

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import SampledWithoutReplacementDpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from dp_accounting.rdp import RdpAccountant
from scipy import integrate, stats

from pipeline.accounting import curves
from pipeline.accounting import event as ga
from pipeline.accounting.calibration import calibrate
from pipeline.accounting.event import PrivacyEvent, UnsupportedAccounting
from pipeline.accounting.selected import selected_by_composition
from pipeline.trials.fields import ConfigError
from pipeline.trials.mechanism import MIN_DELTA_PER_STEP, MIN_NOISE_OVER_C
from pipeline.trials.part import PARTS
from pipeline.trials.sampler import RELATIONS, relation_of

POISSON = PrivacyEvent("poisson", 1.0, steps=3150, epochs=15, sampling_rate=256 / 54000)
FIXED = PrivacyEvent("without_replacement", 1.0, steps=3150, epochs=15, N=54000, m=256)
SHUFFLED = PrivacyEvent("shuffled", 4.0, steps=3150, epochs=15)
ALL = (POISSON, FIXED, SHUFFLED)
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def test_gaussian_delta_by_quadrature():
    for mu, eps in ((0.5, 0.3), (2.0, 4.0), (3.0, 0.0)):
        p, q = stats.norm(mu).pdf, stats.norm(0).pdf
        area = integrate.quad(lambda x, p=p, q=q, e=eps: max(p(x) - math.exp(e) * q(x), 0), -12, 15, limit=800,
                              points=[eps / mu + mu / 2])[0]
        assert curves.gdp_delta(mu, eps) == pytest.approx(area, rel=1e-6)
    for mu in (0.1, 1.0, 30.0):
        assert curves.gdp_delta(mu, curves.gdp_eps(mu, 1e-6)) == pytest.approx(1e-6, rel=1e-6)
    assert curves.gdp_eps(0.0, 1e-5) == 0.0
    with warnings.catch_warnings(action="error"):  # delta rounds to 0 for so much noise
        assert [curves.gdp_eps(10.0**-power, 1e-5) for power in range(16, 300)] == [0.0] * 284


@pytest.mark.parametrize(("q", "z"), [(256 / 54000, 1.0), (0.5, 0.9), (0.125, 3.0), (1.0, 2.0)])
def test_the_losses_of_one_step_are_dp_accountings_to_the_last_bit(q, z):
    theirs = privacy_loss_distribution.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=1e-3)
    ours = curves.poisson_losses(q, z, 1e-3)
    assert [ours.get_delta_for_epsilon(e) for e in (0.0, 0.1, 1.0, 4.0)] == [
        theirs.get_delta_for_epsilon(e) for e in (0.0, 0.1, 1.0, 4.0)]
    grid = np.arange(-500, 5000) * 1e-3
    if q < 1:
        grid = np.append(grid, np.log1p(-q) * np.array([-1 - 1e-10, -1, -1 + 1e-10, 1 - 1e-10, 1, 1 + 1e-10]))
    for adjacency in (AdjacencyType.ADD, AdjacencyType.REMOVE):
        loss = GaussianPrivacyLoss(z, sampling_prob=q, adjacency_type=adjacency)
        assert np.array_equal(curves._profile(loss, z, grid), loss.get_delta_for_epsilon(grid))


def test_without_replacement_is_dp_accountings_own():
    orders = [2, 3, 4, 9, 20]
    for z, q in ((0.6, 0.005), (1.0, 0.1), (5.0, 0.02), (2.0, 1.0)):
        accountant = RdpAccountant(orders, REPLACE)
        accountant.compose(SampledWithoutReplacementDpEvent(1000, round(1000 * q), dp_accounting.GaussianDpEvent(z)))
        np.testing.assert_allclose(curves.without_replacement_rdp(round(1000 * q) / 1000, z, tuple(orders)),
                                   accountant.rdp, rtol=1e-9)


def test_two_branches_bound_both_orders_of_the_neighbours():
    """One step: replacing the first of five records, batches of two, the worst mixtures, by quadrature."""
    q, z = 0.4, 1.0
    losses = curves.without_replacement_losses(q, z)
    x = np.linspace(-12, 12, 400_001)  # of max(., 0) the trapezoidal rule is off by 3e-10 at most, h^2/12 at its kink
    zero, shifted = stats.norm.pdf(x), stats.norm.pdf(x, 1)

    def hockey_stick(mine, theirs, eps):
        return np.trapezoid(np.maximum(mine - math.exp(eps) * theirs, 0), x)

    # contributions C and other C in units of 2 C: 1/2 and other/2
    mixtures = {record: (1 - q) * zero + q * stats.norm.pdf(x, record / 2 / z) for record in (-1.0, 0.0, 1.0)}
    for other in mixtures:
        for eps in (0.0, 0.2, 0.5):
            for mine, theirs in ((1.0, other), (other, 1.0)):
                area = hockey_stick(mixtures[mine], mixtures[theirs], eps)
                assert area <= losses.get_delta_for_epsilon(eps) + 1e-9
    remove = hockey_stick((1 - q) * zero + q * shifted, zero, 0.2)
    assert losses.get_delta_for_epsilon(0.2) == pytest.approx(remove, rel=1e-4)


def test_two_branches_lie_between_poisson_and_renyi():
    two_branches, *renyi = [FIXED.value(1e-5, accountant) for accountant in FIXED.accountants]
    assert POISSON.value(1e-5) < two_branches < renyi[0] < renyi[1]


def test_no_subsampling_is_a_gaussian():
    exact = curves.gdp_eps(math.sqrt(4) / 5, 1e-5)
    for event in (PrivacyEvent("without_replacement", 5.0, steps=4, epochs=4, N=100, m=100),
                  PrivacyEvent("poisson", 5.0, steps=4, epochs=4, sampling_rate=1.0)):
        assert exact * (1 - 1e-9) <= event.value(1e-5) == pytest.approx(exact, rel=2e-3)
    shuffled = PrivacyEvent("shuffled", 5.0, steps=400, epochs=4)
    assert shuffled.value(1e-5) == pytest.approx(exact, rel=1e-12)
    assert ga.loss_distribution(shuffled).get_epsilon_for_delta(1e-5) == pytest.approx(exact, rel=2e-3)
    assert all(changed(event, noise_multiplier=0.0).value(1e-5) == math.inf for event in ALL)


@pytest.mark.parametrize(("refused", "error", "message"), [
    (lambda: SHUFFLED.value(1e-5, "pld"), UnsupportedAccounting,
     "'pld': not proved for sampler shuffled with relation replace-one, only gdp"),
    (lambda: POISSON.value(1e-5, "gdp"), UnsupportedAccounting,
     "'gdp': not proved for sampler poisson with relation add/remove, only pld"),
    (lambda: SHUFFLED.value(0.0), ValueError, "delta: must be > 0 and < 1, got 0"),
    (lambda: SHUFFLED.q, ValueError, "no sampling rate"),
    (lambda: changed(SHUFFLED, noise_multiplier=None).value(1e-5), ValueError, "noise_multiplier: not set"),
    (lambda: changed(POISSON, noise_multiplier=0.01).value(1e-5), ValueError, "noise_multiplier: must be at least 0.1"),
    (lambda: changed(POISSON, noise_multiplier=-1.0), ValueError, "noise_multiplier: must be >= 0, got -1.0"),
    (lambda: changed(POISSON, steps=0), ValueError, "steps: must be >= 1, got 0"),
    (lambda: changed(POISSON, epochs=0), ValueError, "epochs: must be >= 1, got 0"),
    (lambda: changed(POISSON, sampling_rate=1.5), ValueError, "sampling rate: must be > 0 and at most 1, got 1.5"),
    (lambda: changed(POISSON, N=10), ValueError,
     "rates: must be sampling_rate for sampler poisson, got sampling_rate and N"),
    (lambda: changed(FIXED, m=60000), ValueError, "sampling rate: must be > 0 and at most 1"),
    (lambda: changed(SHUFFLED, sampling_rate=0.1), ValueError, "rates: must be none .* got sampling_rate"),
    (lambda: SHUFFLED.noise_for(0.0, 1e-5), ValueError, "target_epsilon: must be > 0 and finite"),
    (lambda: SHUFFLED.noise_for(math.inf, 1e-5), ValueError, "target_epsilon: must be > 0 and finite"),
    (lambda: calibrate(0.1, lambda value: curves.gdp_eps(0.25, 1e-5), "noise", 0.5), ConfigError,
     "must be at least 0.9263, as no noise in .0.5, 1e.06. gives less, got 0.1"),
    (lambda: calibrate(3, lambda value: math.inf, "noise"), ConfigError,
     "no noise in .* gives a finite epsilon at this delta, got 3; use a larger"),
    (lambda: calibrate(9, lambda value: 1 / value if value >= 1 else math.inf, "noise"), ConfigError,
     "must be at most 1, as no noise in .* gives more, got 9")])
def test_refusals(refused, error, message):
    with pytest.raises(error, match=message):
        refused()


def test_calibration_reaches_the_least_noise_and_no_further():
    largest = curves.gdp_eps(math.sqrt(15) / 0.1, 1e-5)
    message = f"must be at most {largest:.4g}, as no noise multiplier in .0.1, 1e.06. gives more, got"
    for target in (1.02 * largest, 1e9, 1e300):
        with pytest.raises(ConfigError, match=message):
            SHUFFLED.noise_for(target, 1e-5)
    assert SHUFFLED.noise_for(0.999 * largest, 1e-5) == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize("damage", ["nan\n", "4.0\n", "{!r}", "\xff"])
def test_a_calibrated_value_is_kept_and_an_entry_that_is_damaged_is_calibrated_again(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("PHOTONIC_CACHE", str(tmp_path))
    search = Mock(wraps=calibrate)
    monkeypatch.setattr(ga, "calibrate", search)
    values = [SHUFFLED.noise_for(target, 1e-5) for target in (3.0, 3.0, 4.0)]
    assert values[0] == values[1] != values[2] and search.call_count == 2 == len(list(tmp_path.rglob("*/*")))
    for entry in tmp_path.rglob("*/*"):
        entry.write_text(damage.format(float(entry.read_text())), encoding="latin1")
    assert [SHUFFLED.noise_for(target, 1e-5) for target in (3.0, 4.0)] == values[1:]
    assert search.call_count == 4


@pytest.mark.parametrize("cache", ["a-file", "~nobody-of-this-name"])
def test_without_a_cache_that_can_be_written_nothing_is_kept(tmp_path, monkeypatch, cache):
    monkeypatch.chdir(tmp_path)
    Path("a-file").touch()
    monkeypatch.setenv("PHOTONIC_CACHE", cache)
    assert 0.99 * 3 <= changed(
        SHUFFLED, noise_multiplier=SHUFFLED.noise_for(3.0, 1e-5)).value(1e-5) <= 3
    assert [path.name for path in tmp_path.rglob("*")] == ["a-file"]


def test_the_noise_for_a_target_does_not_depend_on_the_noise_that_there_is():
    short = changed(FIXED, steps=30)
    assert changed(short, noise_multiplier=0.05).noise_for(3.0, 1e-5) == short.noise_for(3.0, 1e-5)


@pytest.mark.parametrize(("steps", "z", "delta"), [(10_000, 100.0, 1e-10), (100_000, 79.057, 1e-9), (100, 1.25, 1e-8)])
@pytest.mark.parametrize("sampler", ["poisson", "without_replacement"])
def test_rounding_of_the_fft_is_paid_for(sampler, steps, z, delta, monkeypatch):
    """Everyone takes part in every step: a Gaussian mechanism of mu = sqrt(steps)/z, of which epsilon is known."""
    rates = {"sampling_rate": 1.0} if sampler == "poisson" else {"N": 10, "m": 10}
    event = PrivacyEvent(sampler, noise_multiplier=z, steps=steps, epochs=steps, **rates)
    exact = curves.gdp_eps(math.sqrt(steps) / z, delta)
    monkeypatch.setattr(ga, "loss_distribution", functools.cache(ga.loss_distribution))  # for both ways
    least = steps * MIN_DELTA_PER_STEP
    for account in (lambda at: event.value(at, "pld"), lambda at: selected_by_composition([event], at).value):
        assert exact <= account(delta) <= exact * 1.003
        for refused in (least * 0.99, 1e-13 if least > 1e-13 else 1e-15):
            with pytest.raises(UnsupportedAccounting, match=f"delta: must be at least {least:.3g} for a privacy-loss "
                                                            f"distribution of {steps} steps, .*got {refused:.3g}"):
                account(refused)
    if sampler == "without_replacement":
        assert event.value(least * 0.5, "rdp/improved") > exact


def test_every_sampler_has_one_relation_and_the_least_noise_is_that_over_every_sensitivity():
    assert {event.sampler: event.relation for event in ALL if event.accountants} == {
        name: relation_of(name) for name in PARTS["sampler"]}
    assert {relation_of(sampler) for sampler in PARTS["sampler"]} == set(RELATIONS)
    assert (ga.sensitivity(3.0, "add/remove"), ga.sensitivity(3.0, "replace-one")) == (3.0, 6.0)
    assert min(MIN_NOISE_OVER_C / ga.sensitivity(1.0, relation) for relation in RELATIONS) == (
        ga.LEAST_NOISE_OVER_SENSITIVITY) == 0.1


def test_with_little_noise_a_coarse_grid_has_the_same_epsilon():
    event = PrivacyEvent("poisson", noise_multiplier=0.3, steps=200, epochs=2, sampling_rate=0.01)
    assert ga.interval_of(event) == 10 * curves.DISCRETIZATION
    assert ga.interval_of(changed(event, noise_multiplier=ga.LITTLE_NOISE)) == curves.DISCRETIZATION
    fine = ga.pld_epsilon(ga.loss_distribution(event, curves.DISCRETIZATION), 1e-5, event.steps)
    assert event.value(1e-5, "pld") == pytest.approx(fine, rel=1e-5)
    rough = ga.pld_epsilon(ga.loss_distribution(event, 0.5), 1e-5, event.steps)
    assert rough > 1.001 * fine, "a coarse grid is not always harmless"


# small epsilons, and full batches: where the grid would be too coarse or too large

@pytest.mark.parametrize(("kind", "target", "steps"), [
    (dict(sampler="poisson", sampling_rate=1.0), 1e-3, 40), (dict(sampler="poisson", sampling_rate=1.0), 3.0, 10**7),
    (dict(sampler="without_replacement", N=10, m=10), 3.0, 10**7)])
def test_noise_of_full_batches_is_that_of_one_gaussian(kind, target, steps):
    event = PrivacyEvent(noise_multiplier=None, steps=steps, epochs=steps, **kind)
    z = event.noise_for(target, 1e-5)
    assert 0.989 * target <= curves.gdp_eps(math.sqrt(steps) / z, 1e-5) <= target
    if steps > 40:
        two = selected_by_composition([changed(event, noise_multiplier=z)] * 2, 1e-5).value
        assert two == pytest.approx(curves.gdp_eps(math.sqrt(2 * steps) / z, 1e-5), rel=2e-3)


@pytest.mark.parametrize(("mu", "steps"), [(5e-3, 100_000), (5e-4, 40), (5e-4, 3150), (1e-4, 40)])
def test_a_fine_grid_costs_next_to_nothing_and_never_less_than_the_truth(mu, steps):
    z = math.sqrt(steps) / mu
    interval = max(ga.sufficient_interval((steps, mu**2)), curves.FINEST)
    losses = curves.poisson_losses(1.0, z, interval).self_compose(steps)
    exact = curves.gdp_eps(mu, 1e-5)
    assert exact <= ga.pld_epsilon(losses, 1e-5, steps) <= 1.005 * exact
    rough = curves.poisson_losses(1.0, z, curves.DISCRETIZATION).self_compose(steps)
    assert ga.pld_epsilon(rough, 1e-5, steps) > 1.01 * exact


@pytest.mark.parametrize("event", [POISSON, FIXED], ids=lambda event: event.sampler)
def test_small_epsilons_take_a_finer_grid_and_others_keep_theirs(event):
    small = changed(event, steps=40, noise_multiplier=40.0)
    interval = ga.interval_of(small)
    assert curves.FINEST < interval < curves.DISCRETIZATION == ga.interval_of(event)
    finer = ga.pld_epsilon(ga.loss_distribution(small, interval / 4), 1e-5, small.steps)
    assert finer <= small.value(1e-5, "pld") <= 1.005 * finer
