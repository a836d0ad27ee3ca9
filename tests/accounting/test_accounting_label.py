"""Label epsilon: of Gaussian noise by closed forms, and of photons by exact sums and simulation of the device."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_formulas import label_dp_photonic_layer
from scipy import integrate, stats

from pipeline.accounting import account, privacy_tags
from pipeline.accounting import label as lab
from pipeline.accounting import photon as module
from pipeline.accounting.certified import with_noise
from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.label import photon_eps
from pipeline.accounting.overview import statements
from pipeline.accounting.photon import exact_bound, label_divergence, least_intensity_bound, most_positive
from pipeline.experiment.experiment import parse_experiment
from pipeline.learning.feedback.algorithms import ternarize
from pipeline.learning.feedback.projection import make_projector
from pipeline.trials.camera import camera_of
from pipeline.trials.config import TrialConfig
from pipeline.trials.streams import transmission

PHOTONIC = dict(mechanism="photonic", sigma=0.5, tau_f=1.5)


def labels(config, epochs=3):
    return {e.variant: e for e in account(config, epochs) if e.kind == "label"}


def test_one_layer_is_the_divergence_of_two_gaussians():
    """-tau_B against +tau_B with noise sigma, by quadrature."""
    alpha, sigma, tau = 3.0, 0.7, 0.4
    p, q = stats.norm(tau, sigma), stats.norm(-tau, sigma)
    integral = integrate.quad(lambda x: math.exp(alpha * p.logpdf(x) + (1 - alpha) * q.logpdf(x)), -15, 15)[0]
    assert label_dp_photonic_layer(alpha, sigma, tau) == pytest.approx(math.log(integral) / (alpha - 1))
    assert label_dp_photonic_layer(2.0, 0.0, 1.0) == math.inf


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


def test_monotone():
    values = [labels(TrialConfig(**{**PHOTONIC, "sigma": s}))["gdp"].value for s in (0.1, 0.5, 1.0, 10.0)]
    assert values == sorted(values, reverse=True) and len(set(values)) == 4
    assert {e.value for e in labels(TrialConfig(**{**PHOTONIC, "sigma": 1e-200})).values()} == {math.inf}
    epochs = [labels(TrialConfig(**PHOTONIC), e)["gdp"].value for e in (1, 2, 15)]
    assert np.all(np.diff(epochs) > 0)
    shuffled, fresh = (labels(TrialConfig(**PHOTONIC, sampler=s)) for s in ("shuffled", "without_replacement"))
    for variant in ("gdp", "rdp"):
        assert fresh[variant].value > shuffled[variant].value and "binomial" in fresh[variant].note


def test_refusals():
    assert lab.label_epsilons(TrialConfig(), 1) == []
    with pytest.raises(ValueError, match="epochs_done: must be >= 1, got 0"):
        account(TrialConfig(**PHOTONIC), 0)
    poisson = TrialConfig(sampler="poisson")
    with pytest.raises(ValueError, match="participations are known of shuffled and without_replacement, got poisson"):
        poisson.parts.sampler.participations(poisson, 1)


# --- of photons

TRIAL = TrialConfig(algorithm="pdfa", projector="opu_physical", mechanism="photonic", joint_release=True, hidden=(12,),
                    dataset="digits", batch_size=64, epochs=3, photons=0.5, dark_counts=0.05)


def poisson_divergence(alpha: float, a: np.ndarray | float, b: np.ndarray | float) -> np.ndarray | float:
    """D_alpha(Poi(a) || Poi(b)), alpha > 1, of counts with means a >= 0 and b > 0."""
    return (a**alpha * b ** (1 - alpha) - alpha * a + (alpha - 1) * b) / (alpha - 1)


def label(trial, epochs=3):
    found, = (e for e in account(trial, epochs) if e.kind == "label")
    return found


def errors_of(threshold, logits, y, other):
    """Ternary errors of one record with label y, and with another."""
    p = torch.softmax(logits, dim=0)
    hot = torch.eye(len(logits))
    return (ternarize((p - hot[k])[None, None], torch.full((1, 1, 1), threshold)) for k in (y, other))


@pytest.mark.parametrize("threshold", [0.0, 0.15, 0.3, 0.45, 0.6])
def test_no_two_labels_of_a_record_cost_more(threshold):
    """Random softmax outputs through the device itself; some come close where the maximum can be attained."""
    trial = dataclasses.replace(TRIAL, threshold=threshold)
    device, alpha, closest = make_projector([trial], 12, "cpu"), 3.0, 0.0
    bound = label_divergence(alpha, trial)
    generator = torch.Generator().manual_seed(4)
    for scale in (0.1, 1.0, 3.0, 10.0):
        for _ in range(80):
            logits = scale * torch.randn(10, generator=generator)
            y, other = torch.randperm(10, generator=generator)[:2].tolist()
            before, after = (device.expected_counts(e).double().numpy() for e in errors_of(threshold, logits, y, other))
            cost = poisson_divergence(alpha, before, after).sum()
            assert cost <= bound * (1 + 1e-5)
            closest = max(closest, cost)
    assert closest > 0.4 * bound


def test_the_exact_bound_is_the_maximum_over_all_pairs():
    matrix = transmission(3, 4, 6) / 5
    alpha, dark, most = 2.5, 0.1, 2

    def cost(before, after):
        return sum(poisson_divergence(alpha, np.abs(sign + before @ matrix) ** 2 + dark,
                                      np.abs(sign + after @ matrix) ** 2 + dark).sum() for sign in (1, -1))

    unit, worst = np.eye(4), 0.0
    for y, other in itertools.permutations(range(4), 2):
        rest = [c for c in range(4) if c not in (y, other)]
        for a, b, c, d in itertools.product((0, 1), repeat=4):
            for common in itertools.product((0, 1), repeat=2):
                if sum(common) + a + b <= most:
                    shared = sum((on * unit[k] for on, k in zip(common, rest, strict=True)), np.zeros(4))
                    worst = max(worst, cost(shared + b * unit[other], shared + a * unit[y])
                                + cost(c * unit[y], d * unit[other]))
    assert exact_bound(alpha, matrix, dark, most) == pytest.approx(worst, rel=1e-6)


@pytest.mark.parametrize("alpha", [1.01, 2.0, 5.0])
@pytest.mark.parametrize("ratio, dark", [(30.0, 0.0), (8.0, 0.5), (1.0, 2.0)])
def test_the_bound_from_the_least_intensity_is_above_the_exact_one(alpha, ratio, dark):
    matrix = transmission(1, 6, 20) / (ratio * math.sqrt(12))
    exact, bound = (f(alpha, matrix, dark, 3) for f in (exact_bound, least_intensity_bound))
    assert 0 < exact <= bound < math.inf
    if ratio == 30:
        assert bound < 4 * exact  # the whole field in place of its part in phase, and patterns that are not the worst


def test_two_mirrors_that_switch_change_the_field_by_the_difference_of_their_pixels():
    """Which is twice as large for opposite ones as for one alone; a divergence grows with the square."""
    opposite, alone = (least_intensity_bound(2.0, np.array([[0.1], [other]]), 1e6, 1) for other in (-0.1, 0.0))
    assert opposite == pytest.approx(4 * alone, rel=1e-3)
    # Without dark counts, a pixel that can be dark tells all by the bound.
    assert least_intensity_bound(2.0, transmission(1, 6, 20) / math.sqrt(12), 0.0, 3) == math.inf
    assert [most_positive(threshold, 10) for threshold in (0.0, 0.04, 0.15, 0.2, 0.34, 0.9)] == [10, 10, 6, 5, 2, 1]


def test_many_classes_take_the_bound(monkeypatch):
    exact = label_divergence(2.0, dataclasses.replace(TRIAL, seed=11))
    monkeypatch.setattr(module, "MOST_CLASSES", 9)
    module._label_divergence.cache_clear()
    assert exact < label_divergence(2.0, dataclasses.replace(TRIAL, seed=11)) < math.inf
    module._label_divergence.cache_clear()


def test_in_the_bright_limit_it_is_the_gaussian_formula():
    """Parts have noise of variance 1/(8 phi) each, and their changes are squared and added: mu^2 = 8 phi (...)."""
    trial = dataclasses.replace(TRIAL, photons=1e7, reference_ratio=300.0, dark_counts=0.0, threshold=0.45)
    camera = camera_of(trial)
    sigma = 1 / (2 * math.sqrt(camera.photons_per_unit))  # of B e, both parts
    b = make_projector([trial], 12, "cpu").matrices[0].double().numpy()
    worst = max(((b[y] - b[k]) ** 2).sum() for y, k in itertools.combinations(range(10), 2))
    for alpha in (1.5, 4.0):
        gaussian = 2 * alpha * worst / (2 * (sigma / math.sqrt(2)) ** 2)  # y -> y' in either part
        assert label_divergence(alpha, trial) == pytest.approx(gaussian, rel=0.03)


def test_the_search_finds_the_best_order(monkeypatch):
    monkeypatch.setattr("pipeline.accounting.label.label_divergence", lambda alpha, config: 0.02 * alpha)
    mu = math.sqrt(2 * 0.02 * 5)
    assert gdp_eps(mu, 1e-5) < photon_eps(TRIAL, 5, 1.0, 1e-5) < 1.12 * gdp_eps(mu, 1e-5)
    assert photon_eps(TRIAL, 50, 0.1, 1e-5) > photon_eps(TRIAL, 5, 1.0, 1e-5)  # more at times
    monkeypatch.setattr("pipeline.accounting.label.label_divergence",
                        lambda alpha, config: alpha if alpha < 1.5 else math.inf)
    assert photon_eps(TRIAL, 5, 1.0, 1e-5) == pytest.approx(5 * (1 + 2**-1.5) + math.log(1e5) * 2**1.5, rel=0.3)
    monkeypatch.setattr("pipeline.accounting.label.label_divergence", lambda alpha, config: math.inf)
    assert photon_eps(TRIAL, 5, 1.0, 1e-5) == math.inf


def test_a_trial_states_its_label_epsilon():
    def of(epochs=3, **changes):
        return label(dataclasses.replace(TRIAL, **changes), epochs).value

    found = label(TRIAL)
    assert (found.variant, found.relation, found.sampler) == ("photon", "replace-one label", "shuffled")
    assert 0 < of(1) < found.value < math.inf and found.value == photon_eps(TRIAL, 3, 1.0, 1e-5)
    assert of(dark_counts=1.0) < found.value < of(photons=2.0)
    assert of(read_noise=3.0, full_well=100.0, adc_bits=4, denoise=True, tau_f=0.1) == found.value, "all are free"
    assert of(sampler="without_replacement") > found.value != of(seed=1)
    assert {e.kind for e in account(TRIAL, 3) if e.is_finite} == {"label"}
    bare = label(dataclasses.replace(TRIAL, joint_release=False, output_noise=False))
    assert bare.value == math.inf and "without noise" in bare.note
    assert not account(dataclasses.replace(TRIAL, mechanism="none", joint_release=False), 3)


def test_every_seed_is_stated_of_its_own():
    text = json.dumps({"base": {k: v for k, v in TRIAL.canonical().items() if k != "seed"}, "grid": {"seed": [0, 1]}})
    first, second = statements(parse_experiment(text, Path("e.yaml")))  # JSON is YAML
    assert first.name.endswith("photons=0.5 seed=0") and first.noise == "photons = 0.5"
    assert first.epsilons != second.epsilons
