"""Epsilon of events that a trainer states, against closed forms."""

import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from scipy import stats

from pipeline import TrialConfig, account, trainer
from pipeline.accounting import certified, overview, privacy_tags
from pipeline.accounting.certified import certified_epsilons, one_step, with_noise
from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.dp_events import hashable
from pipeline.accounting.evaluations import check_evaluations, selected_epsilon
from pipeline.accounting.event import NEIGHBOURS, PrivacyEvent, composed_epsilon
from pipeline.accounting.selected import selected_by_composition
from pipeline.experiment.stopping import Selection
from pipeline.sweep.checks import check_trainers
from pipeline.trials.fields import ConfigError, UserError
from pipeline.trials.part import PARTS

DIGITS = dict(dataset="digits", batch_size=64, epochs=2)  # 40 steps on 1293 records


def delta_of(epsilon, once, many):
    """delta at epsilon of `many` answers with two values, each e^once times as likely to be true: of the number of
    true answers under either truth (Kairouz, Oh and Viswanath 2015, theorem 3.3)."""
    true = math.exp(once) / (1 + math.exp(once))
    return sum(math.comb(many, k) * max(0.0, true**k * (1 - true)**(many - k)
                                        - math.exp(epsilon) * true**(many - k) * (1 - true)**k)
               for k in range(many + 1))


@pytest.mark.parametrize(("inner", "steps"), [(10, 1), (1, 10), (2, 5)])
def test_randomized_response_costs_as_often_as_it_is_repeated(inner, steps):
    once, delta = 0.8, 1e-2
    answer = dp.RandomizedResponseDpEvent(2 / (1 + math.exp(once)), 2)
    event = PrivacyEvent(dp.SelfComposedDpEvent(answer, inner), steps, steps, "add/remove")
    value = event.value(delta, "pld")
    assert delta_of(value, once, 10) <= delta < delta_of(0.995 * value, once, 10)
    assert event.value(delta, "rdp/improved") >= value
    together, _ = composed_epsilon([PrivacyEvent(event.step, 1, 1, event.relation)] * steps, 0.0, delta)
    assert together == pytest.approx(value, rel=1e-3)


def test_answers_that_tell_nothing_or_all_cost_nothing_or_infinitely_much():
    def value(share, buckets):
        return values(dp.ComposedDpEvent([dp.RandomizedResponseDpEvent(share, buckets)] * 2), "replace-one", 3)["pld"]

    assert value(1.0, 2) == value(0.5, 1) == value(0.0, 1) == 0
    assert value(0.0, 2) == math.inf


def test_an_event_made_of_lists_can_be_looked_up():
    one, other = dp.GaussianDpEvent(2.0), dp.GaussianDpEvent(3.0)
    parts = [dp.PoissonSampledDpEvent(0.1, dp.ComposedDpEvent([one])), other]
    event = hashable(dp.ComposedDpEvent(parts))
    assert event == dp.ComposedDpEvent((dp.PoissonSampledDpEvent(0.1, dp.ComposedDpEvent((one,))), other))
    assert {event: 1}[hashable(dp.ComposedDpEvent(list(parts)))] == 1


# the unit of noise: the sensitivity of the sum, C under add/remove and 2 C under replace-one

def values(event, relation, steps=1, delta=1e-5):
    run = PrivacyEvent(hashable(event), steps, steps, relation)
    return {accountant: run.value(delta, accountant) for accountant in run.accountants}


FREE = dp.RandomizedResponseDpEvent(1.0, 2)  # tells nothing, but takes the way of what is no Gaussian
QUARTER = dp.GaussianDpEvent(4.0)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("event", [
    QUARTER, dp.SelfComposedDpEvent(dp.GaussianDpEvent(8.0), 4), dp.ComposedDpEvent([QUARTER, dp.NoOpDpEvent()]),
    dp.ComposedDpEvent([dp.GaussianDpEvent(5.0), dp.SelfComposedDpEvent(dp.GaussianDpEvent(20 / 3), 1)]),
    dp.PoissonSampledDpEvent(1.0, QUARTER),
    dp.ComposedDpEvent([dp.PoissonSampledDpEvent(1.0, dp.GaussianDpEvent(8.0))] * 4),
    dp.TruncatedSubsampledGaussianDpEvent(2, 1.0, 2, 4.0), dp.ComposedDpEvent([FREE, QUARTER]),
    dp.SampledWithoutReplacementDpEvent(10, 10, QUARTER), dp.ZCDpEvent(1 / 32)], ids=str)
def test_what_is_one_gaussian_costs_the_same_by_every_accountant_under_either_relation(event, relation):
    exact, costs = gdp_eps(1 / 4, 1e-5), values(event, relation)
    renyi = values(QUARTER, relation)["rdp/improved"]
    only_replace = isinstance(event, dp.SampledWithoutReplacementDpEvent) or FREE in getattr(event, "events", [])
    assert bool(costs) == (relation == "replace-one" or not only_replace)
    assert costs.get("pld", exact) == pytest.approx(exact, rel=1e-6) and exact == pytest.approx(0.926, abs=1e-3)
    assert costs.get("rdp/improved", renyi) == pytest.approx(renyi) and exact < renyi < 1.1 * exact


@pytest.mark.parametrize(("event", "least", "most"), [
    (dp.LaplaceDpEvent(2.0), 0.4999, 0.53), (dp.RandomizedResponseDpEvent(0.5, 2), math.log(3), 1.13)])
def test_pure_mechanisms_cost_their_epsilon_under_either_relation(event, least, most):
    for relation in NEIGHBOURS:
        assert all(least <= value <= most for value in values(event, relation).values())


@pytest.mark.parametrize(("event", "taken"), [
    (dp.LaplaceDpEvent(2.0), {"rdp/improved"}), (dp.PoissonSampledDpEvent(0.1, QUARTER), {"pld"}),
    (dp.SampledWithoutReplacementDpEvent(10, 1, QUARTER), {"rdp/improved"}),
    (dp.RepeatAndSelectDpEvent(QUARTER, 4, 1), {"rdp/improved"}), (dp.ZCDpEvent(0.1), {"rdp/improved"}),
    (dp.DiscreteLaplaceDpEvent(0.5, 1), set()), (dp.MixtureOfGaussiansDpEvent(4.0, (0.0, 1.0), (0.5, 0.5)), set()),
    (dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(2.0)), set())])
def test_accountants_of_replace_one(event, taken):
    assert {*PrivacyEvent(hashable(event), 1, 1, "replace-one").accountants} == taken


@pytest.mark.parametrize(("q", "z"), [(0.3, 2.0), (64 / 1293, 0.6)])
def test_poisson_batches_under_replace_one_by_quadrature(q, z):
    """The record's contribution is C in one direction, and its replacement's in the opposite one: 1/(2 z) from 0."""
    x = np.linspace(-12, 12, 400_001)

    def mixture(shift):
        return (1 - q) * stats.norm.pdf(x) + q * stats.norm.pdf(x, shift)

    def delta(epsilon):
        return np.trapezoid(np.maximum(mixture(0.5 / z) - math.exp(epsilon) * mixture(-0.5 / z), 0), x)

    (value,) = values(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), "replace-one").values()
    assert delta(value) <= 1.001e-5 and delta(0.995 * value) > 1e-5


def test_releases_of_several_kinds_compose_in_one_unit():
    exact = gdp_eps(math.hypot(0.25, 0.5, 0.1), 1e-5)
    for free, by in (([], "exact"), ([FREE], "pld")):  # without and with a grid
        runs = [PrivacyEvent(event, 1, 1, "replace-one")
                for event in (QUARTER, dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 4), *free)]
        value, conversion = composed_epsilon(runs, 0.1, 1e-5)
        assert value == pytest.approx(exact, rel=1e-6) and conversion == by
    both = [PrivacyEvent(event, 1, 1, "replace-one") for event in (dp.ZCDpEvent(0.1), dp.LaplaceDpEvent(2.0))]
    chosen = selected_by_composition(both, 1e-5)
    assert chosen.conversion == "improved" and chosen.value > both[0].value(1e-5, "rdp/improved")


@pytest.fixture
def trainers(extensions):
    def all_records(trial):
        return dp.GaussianDpEvent(trial.noise_multiplier)

    def poisson_batches(trial):
        return dp.PoissonSampledDpEvent(trial.sampling_rate, all_records(trial))

    for name, event in (("all_records", all_records), ("poisson_batches", poisson_batches)):
        @trainer(name, version=1, relation="replace-one", calibrates="noise_multiplier", event=event)
        def train(trial, records, labels, device):
            yield


def test_calibrated_noise_costs_the_target_under_replace_one(trainers):
    trial = TrialConfig(**DIGITS, trainer="all_records", target_epsilon=3.0)
    assert 0.99 * 3 <= certified_epsilons(trial, 2)[0].value <= 3
    noise = with_noise(trial).noise_multiplier
    assert noise == pytest.approx(8.84, abs=1e-3)
    words = f"; noise {noise:.4g} times what replacing one record changes at most; "
    assert words in privacy_tags(trial)["privacy.notes"]
    mu, step = one_step(trial)
    assert mu == pytest.approx(1 / noise) and step.value == gdp_eps(1 / noise, 1e-5)
    sampled = TrialConfig(**DIGITS, trainer="poisson_batches", noise_multiplier=0.512)
    assert certified_epsilons(sampled, 2)[0].value == pytest.approx(2.985, rel=5e-3)
    with pytest.raises(ConfigError, match="target_epsilon: must be at most 2e.13, as no noise_multiplier in .* gives"):
        check_evaluations([TrialConfig(**DIGITS, trainer="all_records", target_epsilon=1e300)])


def test_the_choice_among_stated_trials_of_replace_one_is_priced_in_the_unit_of_their_noise(trainers):
    pair = [TrialConfig(**DIGITS, trainer="all_records", noise_multiplier=9.498, seed=seed, private_metrics="withheld")
            for seed in (0, 1)]
    chosen = selected_epsilon(pair, Selection()).value
    assert chosen == pytest.approx(gdp_eps(math.sqrt(80) / 9.498, 1e-5), rel=1e-9) == pytest.approx(4.084, abs=1e-3)


def test_what_an_earlier_version_trained_under_replace_one_stays_and_a_line_says_so(trainers):
    """Its noise was 9.498, and its notes did not have the noise in words."""
    trial = TrialConfig(**DIGITS, trainer="all_records", target_epsilon=3.0)
    begun = trial.with_recorded_noise({"noise_multiplier": 9.498})
    assert account(begun)[0].value == pytest.approx(gdp_eps(math.sqrt(40) / 9.498, 1e-5))
    notes = privacy_tags(begun)["privacy.notes"]
    before = notes.replace("; noise 9.498 times what replacing one record changes at most", "")

    def told(notes):
        tags = {"privacy.certified": "stated", "privacy.relation": "replace-one", "privacy.notes": notes,
                "calibrated.noise_multiplier": "9.498"}
        run = SimpleNamespace(trial_key=trial.trial_key, params={}, tags=tags, trial=begun)
        return check_trainers([run], [trial])

    assert told(notes) == [] and before != notes
    (line,) = told(before)
    assert line.startswith("trainer 'all_records': an earlier version stored epsilons of this sweep")


@pytest.mark.parametrize(("event", "message"), [
    (dp.PoissonSampledDpEvent(1.5, QUARTER), "sampling_probability must be a number >= 0 and <= 1, got 1.5"),
    (dp.RandomizedResponseDpEvent(2, 2), "noise_parameter must be a number >= 0 and <= 1, got 2"),
    (dp.RandomizedResponseDpEvent(0.5, 0), "num_buckets must be a whole number >= 1 .*, got 0"),
    (dp.SelfComposedDpEvent(QUARTER, 0), "count must be a whole number >= 1 .*, got 0"),
    (dp.ComposedDpEvent([QUARTER, dp.GaussianDpEvent(-1.0)]), "noise_multiplier must be a number >= 0 .*, got -1"),
    (dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(math.nan)), "noise_multiplier must be a number >= 0 .*, got nan"),
    (dp.GaussianDpEvent(math.inf), "noise_multiplier must be a number .*, got inf"),
    (dp.LaplaceDpEvent(0.0), "noise_multiplier must be a number >= 1e-100 .*, got 0"),
    (dp.ComposedDpEvent([3]), "must be a dp_accounting.DpEvent, got 3"),
    (dp.SampledWithoutReplacementDpEvent(10, 20, QUARTER), "sample_size must be at most source_dataset_size, got 20"),
    (dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1e-3)), "its noise must be 0 .* or at least some 0.1 times")])
def test_events_that_are_none_get_one_line(event, message, extensions):
    @trainer("odd", version=1, relation="replace-one", event=lambda trial: event)
    def odd(trial, records, labels, device):
        yield

    for refuse in (account, lambda trial: check_evaluations([trial])):
        with pytest.raises(UserError, match=rf"event: {message}.* of trainer 'odd' \(test_stated_accounting.py:\d+\)"):
            refuse(TrialConfig(**DIGITS, trainer="odd"))


def test_little_noise_takes_no_grid():
    assert values(dp.GaussianDpEvent(1e-3), "replace-one")["pld"] == pytest.approx(gdp_eps(1e3, 1e-5))
    for event in (dp.LaplaceDpEvent(1e-3), dp.ComposedDpEvent([dp.GaussianDpEvent(1e-3), dp.LaplaceDpEvent(1.0)]),
                  dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1e-3))):
        assert set(values(event, "add/remove")) == {"rdp/improved"}


def test_noise_of_a_trainer_is_calibrated_again_only_where_another_event_needs_another(trainers, monkeypatch):
    search = Mock(wraps=certified.calibrate)
    monkeypatch.setattr(certified, "calibrate", search)
    trial, noise = TrialConfig(**DIGITS, trainer="all_records", target_epsilon=2.2), []
    for event in (dp.GaussianDpEvent, dp.GaussianDpEvent, lambda z: dp.GaussianDpEvent(2 * z)):
        monkeypatch.setattr(PARTS["trainer"]["all_records"], "event", staticmethod(
            lambda t, event=event: event(t.noise_multiplier)))
        with_noise.cache_clear()
        noise.append(with_noise(trial).noise_multiplier)
    with_noise.cache_clear()
    assert search.call_count == 2 and noise[0] == noise[1] == pytest.approx(2 * noise[2], rel=0.01)


@pytest.mark.parametrize(("names", "merged"), [
    (["bp epsilon=1", "bp epsilon=3", "dfa epsilon=1", "dfa epsilon=3"], "bp, dfa epsilon=1, 3"),
    (["bp epsilon=1", "dfa epsilon=3"], "bp epsilon=1; dfa epsilon=3"), (["bp", "dfa epsilon=3"], "bp; dfa epsilon=3")])
def test_merged_names_of_settings_claim_no_other_setting(names, merged):
    assert overview._merged_names(names) == merged
