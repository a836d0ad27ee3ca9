"""Label epsilon by closed forms."""

import dataclasses
import math

import pytest
from reference_formulas import label_dp_photonic_layer
from scipy import stats

from pipeline.accounting import account, privacy_tags
from pipeline.accounting import label as lab
from pipeline.accounting.certified import with_noise
from pipeline.accounting.curves import gdp_eps
from pipeline.trials.config import TrialConfig

PHOTONIC = dict(mechanism="photonic", sigma=0.5, tau_f=1.5)


def labels(config, epochs=3):
    return {e.variant: e for e in account(config, epochs) if e.kind == "label"}


def test_shuffled_is_exact_gaussian_dp():
    """Two hidden layers and the output layer, three epochs: mu = 2 tau_B/sigma sqrt(9)."""
    found = labels(TrialConfig(**PHOTONIC))
    mu = 2 * 1.5 / 0.5 * math.sqrt(9)
    assert found["gdp"].value == pytest.approx(gdp_eps(mu, 1e-5), rel=1e-12)
    assert (found["gdp"].conversion, found["gdp"].relation) == ("exact", "replace-one label")
    # nine participations of 2 alpha tau_B^2/sigma^2, classic: c alpha + log(1/delta)/(alpha - 1) at its minimum
    c, log = 9 * label_dp_photonic_layer(1.0, 0.5, 1.5), math.log(1e5)
    assert found["rdp"].value == pytest.approx(c + 2 * math.sqrt(c * log), rel=2e-3)
    assert found["gdp"].value < found["rdp"].value


def test_what_is_released_and_what_is_free():
    """BP perturbs once, a joint release is one, denoise costs nothing, and a bare output layer hides nothing."""
    def mu(**changes):
        return lab.label_mu(TrialConfig(**{**PHOTONIC, **changes}))

    one = mu(joint_release=True)
    assert mu(algorithm="bp") == pytest.approx(6.0) == pytest.approx(one)
    assert mu(joint_release=True, denoise=True, hidden=[16] * 5) == one and mu(denoise=True) == mu()
    found = labels(TrialConfig(**PHOTONIC, joint_release=True), epochs=4)
    assert found["gdp"].value == pytest.approx(gdp_eps(one * 2, 1e-5), rel=1e-12)
    for change in (dict(output_noise=False), dict(sigma=0.0)):
        found = labels(TrialConfig(**{**PHOTONIC, **change}))
        assert all(math.isinf(e.value) and "without noise" in e.note for e in found.values()) and len(found) == 2


@pytest.mark.parametrize("sampler", ["shuffled", "without_replacement"])
@pytest.mark.parametrize("target", [1e-3, 0.5, 8.0, 1e6])
def test_a_target_is_met_from_below_and_within_one_percent(sampler, target):
    trial = TrialConfig(mechanism="photonic", tau_f=1.5, target_label_epsilon=target, sampler=sampler, epochs=3)
    found = labels(trial)["gdp"].value
    assert 0.99 * target <= found <= target
    resolved = with_noise(trial)
    assert (resolved.target_label_epsilon, labels(resolved)["gdp"].value) == (0, found)
    assert labels(trial, 1)["gdp"].value < found, "earlier epochs have spent less"
    assert account(trial, 3) == account(resolved, 3) and privacy_tags(trial) == privacy_tags(resolved)
    joint = with_noise(dataclasses.replace(trial, joint_release=True))
    assert joint.sigma == pytest.approx(resolved.sigma / math.sqrt(3)), "three releases become one"


def test_binomial_participations_by_simulation_free_sum():
    """delta at the returned epsilon, summed over every number of participations."""
    mu, draws, q, delta = 0.8, 40, 0.2, 1e-4
    epsilon = lab.binomial_gdp_eps(mu, draws, q, delta)
    total = sum(stats.binom.pmf(k, draws, q)
                * (stats.norm.cdf(mu * math.sqrt(k) / 2 - epsilon / (mu * math.sqrt(k)))
                   - math.exp(epsilon) * stats.norm.cdf(-mu * math.sqrt(k) / 2 - epsilon / (mu * math.sqrt(k))))
                for k in range(1, draws + 1))
    assert total == pytest.approx(delta, rel=1e-4) and total <= delta
    assert lab.binomial_gdp_eps(mu, draws, 1.0, delta) == gdp_eps(mu * math.sqrt(draws), delta)
    assert epsilon < lab.binomial_rdp_eps(mu, draws, q, delta)
    assert lab.binomial_gdp_eps(1e-6, draws, q, delta) == 0.0


def test_next_to_no_noise_costs_everything_and_batches_that_are_drawn_anew_cost_more():
    assert {e.value for e in labels(TrialConfig(**{**PHOTONIC, "sigma": 1e-200})).values()} == {math.inf}
    shuffled, fresh = (labels(TrialConfig(**PHOTONIC, sampler=s)) for s in ("shuffled", "without_replacement"))
    for variant in ("gdp", "rdp"):
        assert fresh[variant].value > shuffled[variant].value and "binomial" in fresh[variant].note


def test_refusals():
    assert lab.label_epsilons(TrialConfig(), 1) == []
    poisson = TrialConfig(sampler="poisson")
    with pytest.raises(ValueError, match="participations are known of shuffled and without_replacement, got poisson"):
        poisson.parts.sampler.participations(poisson, 1)
