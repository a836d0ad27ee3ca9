"""What is claimed of photonic trials, and what holds for one column of one layer."""

import dataclasses
import itertools
import math
import textwrap

import numpy as np
import pytest
from approved import approved
from scipy import stats

from pipeline.accounting import account, describe, privacy_tags
from pipeline.accounting import claimed as ph
from pipeline.accounting import column as col
from pipeline.accounting.epsilon import Epsilon
from pipeline.trials.config import TrialConfig

FINITE = dict(m=256, n_out=512, sigma=0.1, tau_B=1.0, gamma_min=0.25, gamma_max=1.0, tau_h_min=0.5, tau_h_max=1.0)
PHOTONIC = dict(mechanism="photonic", sigma=0.1)
ENFORCED = dict(**PHOTONIC, gamma_min=0.25, tau_h_min=0.5, activation_floor=True)


@pytest.mark.parametrize("bound", [v.bound for v in ph.VARIANTS], ids=lambda b: b.__name__)
def test_more_noise_is_a_smaller_divergence(bound):
    values = [bound(2.0, **{**FINITE, "sigma": sigma}) for sigma in (0.0, 1e-200, 0.1, 0.2, 1.0, 10.0)]
    assert values[:2] == [math.inf, math.inf]
    assert all(a > b for a, b in itertools.pairwise(values[1:]))
    if bound is ph.prop3_second:  # rho^2 = 64: infinite at m + 1 = 64, log(m / 1) at m = 64
        assert bound(2.0, **{**FINITE, "m": 63}) == math.inf
        at_64 = bound(2.0, **{**FINITE, "m": 64})
        assert at_64 == pytest.approx(2 * 2 * 64 / 64 / 0.1**2 + 512 * math.log(64))


def renyi_of_gaussians(alpha, mu_1, cov_1, mu_2, cov_2):
    """Proposition 1, Eq. 7, with full matrices."""
    mixed = alpha * cov_2 + (1 - alpha) * cov_1
    assert (np.linalg.eigvalsh(mixed) > 0).all()
    d = mu_1 - mu_2
    logs = [np.linalg.slogdet(c)[1] for c in (mixed, cov_1, cov_2)]
    return alpha / 2 * d @ np.linalg.solve(mixed, d) - (logs[0] - (1 - alpha) * logs[1] - alpha * logs[2]) / (
        2 * (alpha - 1))


def column(p, derivative, h, sigma):
    """Mean and covariance of one column's update, Eq. 13: p, derivative [m, n], h [m]."""
    m = len(h)
    a2 = ((derivative * h[:, None]) ** 2).sum(0)
    return (p * derivative * h[:, None]).mean(0), sigma**2 / m**2 * np.diag(a2)


def test_a2_is_eq_7_where_the_smallest_covariance_meets_the_largest_change_of_the_mean():
    """Of Eq. 14 and Eq. 16; and the saturating variant where the covariance is the largest."""
    c = {**FINITE, "m": 6, "n_out": 5}
    for alpha in (1.1, 2.0, 30.0):
        smallest = c["sigma"]**2 / (c["m"] * c["n_out"]) * (c["gamma_min"] * c["tau_h_min"])**2 * np.eye(c["n_out"])
        shift = np.zeros(c["n_out"])
        shift[0] = 2 / c["m"] * c["tau_B"] * c["gamma_max"] * c["tau_h_max"] / math.sqrt(c["n_out"])
        assert renyi_of_gaussians(alpha, shift, smallest, 0 * shift, smallest) == pytest.approx(
            ph.a2_equal_cov(alpha, **c))
        saturated = smallest * (c["gamma_max"] * c["tau_h_max"] / (c["gamma_min"] * c["tau_h_min"]))**2
        assert renyi_of_gaussians(alpha, shift, saturated, 0 * shift, saturated) == pytest.approx(
            ph.a3_saturating(alpha, **c))


def test_the_other_order_exceeds_the_printed_bound():
    """Why `claimed` is no guarantee even of one column: two neighbours whose divergence the formula misses."""
    c = {**FINITE, "m": 16, "n_out": 2, "sigma": 1.0, "gamma_min": 1 / 1.8, "tau_h_min": 1.0}
    p = np.zeros((16, 2))
    p[0] = math.sqrt(0.5)
    low, h = np.full((16, 2), c["gamma_min"]), np.full(16, 1 / math.sqrt(2))
    high = low.copy()
    high[0] = c["gamma_max"]
    exact = renyi_of_gaussians(5.0, *column(p, high, h, 1.0), *column(-p, low, h, 1.0))
    assert exact == pytest.approx(2.858307784701961)
    assert exact > ph.prop3_second(5.0, **c) > ph.a1_alt(5.0, **c)


LAYER = ph.Layer(4, 4, 0.1, 1.0, 0.25, 1.0, 0.5, 1.0)
EPSILON = dict(value=1.0, kind="claimed", variant="a", relation="r", sampler="s", delta=0.1, conversion="c")


@pytest.mark.parametrize("refused, message", [
    (lambda: ph.network_epsilon(bound=ph.a1_alt, layers=[LAYER], T=0, delta=1e-5, m=8), "T: must be >= 1, got 0"),
    (lambda: ph.network_epsilon(bound=ph.a1_alt, layers=[LAYER], T=1, delta=1.0, m=8), "delta: must be > 0 and < 1"),
    (lambda: dataclasses.replace(LAYER, gamma_min=2.0), "gamma_min: must be >= 0 and at most gamma_max = 1.0, got 2.0"),
    (lambda: account(TrialConfig(**PHOTONIC), 0), "epochs_done: must be >= 1, got 0"),
    *((lambda change=change: Epsilon(**{**EPSILON, **change}), message) for change, message in (
        (dict(value=-1.0), "value: must be >= 0"), (dict(value=math.nan), "value: must be >= 0"),
        (dict(kind="proved"), "kind: must be one of certified"), (dict(relation=""), "relation: must name one"),
        (dict(sampler=""), "sampler: must name one"), (dict(delta=0.0), "delta: must be > 0"),
        (dict(conversion=""), "conversion: must name one")))])
def test_refuses(refused, message):
    with pytest.raises(ValueError, match=message):
        refused()


def values(config, epochs=15):
    return {e.variant: e.value for e in account(config, epochs) if e.kind == "claimed"}


def test_claimed_is_the_composition_over_all_layers():
    """Hidden layers have the activation's gamma, the output layer has gamma = 1; T is 15, or 15 x 210 steps."""
    config = TrialConfig(**{**ENFORCED, "activation": "sigmoid", "gamma_min": 0.1, "tau_f": 2.0})
    log = math.log(1 / config.delta)
    for T, convention in ((15, "epochs"), (15 * 210, "iterations")):
        best = min(T * (784 * ph.a1_alt(a, 256, 512, 0.1, 2.0, 0.1, 0.25, 0.5, 1.0)
                        + 512 * ph.a1_alt(a, 256, 512, 0.1, 2.0, 0.1, 0.25, 0.5, 1.0)
                        + 512 * ph.a1_alt(a, 256, 10, 0.1, 2.0, 1.0, 1.0, 0.5, 1.0)) + log / (a - 1)
                   for a in (1 + 10 ** (k / 20) for k in range(-80, 61)))
        assert values(config)[f"alternative/{convention}"] == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("setting, fails", [
    (dict(), set()), (dict(sigma=0.0), {ph.SIGMA}), (dict(output_noise=False), {ph.OUTPUT}),
    (dict(gamma_min=0.0), {ph.GAMMA, ph.RHO}), (dict(tau_h_min=0.0), {ph.OFFSET, ph.RHO}),
    (dict(gamma_min=0.0, tau_h_min=0.0, activation_floor=False), {ph.GAMMA, ph.FLOOR, ph.OFFSET, ph.RHO}),
    (dict(activation_floor=False), {ph.FLOOR, ph.RHO}),
    (dict(activation_floor=False, inputs="unit"), {ph.FLOOR, ph.RHO}),
    (dict(activation_floor=False, activation="relu"), {ph.FLOOR, ph.RHO}),
    (dict(activation_floor=False, activation="relu", inputs="unit"), set()),
    (dict(activation_floor=False, activation="sigmoid", inputs="unit"), set()), (dict(batch_size=63), {ph.RHO}),
    (dict(batch_size=64), set())])
def test_what_is_claimed_is_infinite_exactly_where_an_assumption_fails(setting, fails):
    config = TrialConfig(**{**ENFORCED, **setting})
    assert {a.name for a in ph.assumptions(config) if not a.holds} - {ph.EQUAL, ph.SATURATING} == fails
    claimed = values(config)
    for variant in ph.VARIANTS:
        for convention in ("epochs", "iterations"):
            assert math.isinf(claimed[f"{variant.name}/{convention}"]) == bool(fails & set(variant.needs))


def test_gamma_of_the_activations():
    assert {a: ph.layers_of(TrialConfig(**PHOTONIC, activation=a))[0].gamma_max for a in ("tanh", "sigmoid", "relu")
            } == {"tanh": 1.0, "sigmoid": 0.25, "relu": 1.0}
    clamped = ph.layers_of(TrialConfig(**PHOTONIC, activation="sigmoid", gamma_min=0.5))
    assert [(layer.n_in, layer.n_out, layer.gamma_min, layer.gamma_max) for layer in clamped] == [
        (784, 512, 0.5, 0.5), (512, 512, 0.5, 0.5), (512, 10, 1.0, 1.0)]


PLAIN = dict(dataset="digits", hidden=(8,), mechanism="per_example", noise_multiplier=1.0)
SAID = {
    "without noise": {}, "photonic": PHOTONIC, "photonic, secret noise": {**PHOTONIC, "sigma": 10.0, "noise": "secure"},
    "large batches": {**ENFORCED, "batch_size": 600}, "as many records as inputs": {**ENFORCED, "batch_size": 784},
    "no sigma": {**ENFORCED, "sigma": 0.0}, "bp": {**ENFORCED, "algorithm": "bp"},
    "denoised": {**PHOTONIC, "denoise": True, "joint_release": True},
    "DP-SGD": PLAIN, "DP-SGD without noise": {**PLAIN, "noise_multiplier": 0.0},
    "DP-SGD, secret noise": {**PLAIN, "noise": "secure", "arithmetic": "integer"},
    "component, secret noise": {**PLAIN, "mechanism": "component", "noise": "secure", "arithmetic": "integer"},
    "component, a target": {**PLAIN, "mechanism": "component", "noise_multiplier": 0.0, "target_epsilon": 3.0},
    "canaries": {**PLAIN, "sampler": "poisson", "noise_multiplier": 4.0, "batch_size": 64, "canaries": 200}}


def test_what_is_said_of_a_trial():
    """Its description and its tags, and every epsilon of a photonic one: what holds, of what, and what does not."""
    assert account(TrialConfig(), 1) == [] and ph.assumptions(TrialConfig()) == ()
    text = []
    for name, settings in SAID.items():
        trial = TrialConfig(**settings)
        epsilons = [f"{e.metric_name}: {e}; {e.note}" for e in account(trial, 2) if name == "photonic"]
        tags = [f"{tag}: {value}" for tag, value in privacy_tags(trial).items()]
        text += [f"## {name}", *describe(trial).splitlines(), "", *epsilons, *tags, ""]
        assert describe(trial).isascii() and not any("\n" in line for line in [*epsilons, *tags])
    approved("statements", "\n".join(filled for line in text for filled in textwrap.wrap(line, 118) or [""]))


def test_a_claim_by_epochs_says_what_batches_it_presupposes():
    for sampler in ("shuffled", "without_replacement"):
        trial = TrialConfig(mechanism="photonic", sigma=0.1, sampler=sampler)
        notes = [epsilon.note for epsilon in account(trial, 1) if epsilon.variant.endswith("/epochs")]
        assert notes and {f"which {sampler} is not" in note for note in notes} == {sampler != "shuffled"}


def test_notes_stay_one_short_line():
    """As a tag of MLflow has to, also of 500 layers."""
    assert len(privacy_tags(TrialConfig(**PHOTONIC, hidden=(512,) * 500))["privacy.notes"]) <= 5000


# --- one column

C = dict(m=16, n_out=2, sigma=1.0, tau_B=1.0, gamma_min=1 / 1.8, gamma_max=1.0, tau_h_min=1.0, tau_h_max=1.0)
BOUNDS = (col.corrected_column_replace_one, col.corrected_column_add_remove)


def renyi(alpha, mean, std, other_mean, other_std):
    """D_alpha of two normal distributions, by the trapezoidal rule, exact to rounding for what is so smooth."""
    x = np.linspace(-60, 60, 12_001)
    logs = alpha * stats.norm.logpdf(x, mean, std) + (1 - alpha) * stats.norm.logpdf(x, other_mean, other_std)
    return math.log(np.trapezoid(np.exp(logs), x)) / (alpha - 1)


def random_column(rng, m, n, c):
    """Contributions p phi' h and their noise variances (phi' h)^2 sigma^2, of m records in n rows."""
    p = rng.normal(size=(m, n))
    p *= c["tau_B"] / np.linalg.norm(p, axis=1, keepdims=True)
    a = rng.uniform(c["gamma_min"], c["gamma_max"], (m, n)) * rng.choice([-1, 1], (m, 1)) * rng.uniform(
        c["tau_h_min"], c["tau_h_max"], (m, 1))
    return p * a, a**2 * c["sigma"] ** 2


@pytest.mark.parametrize("alpha", [1.2, 2.0, 5.0])
def test_bounds_cover_both_orders_by_quadrature(alpha):
    c = {**C, "m": 24, "sigma": 1.5}
    rng = np.random.default_rng(0)
    replace, remove = (bound(alpha, **c) for bound in BOUNDS)
    for _ in range(6):
        contributions, variances = random_column(rng, c["m"], c["n_out"], c)
        own, own_variance = random_column(rng, 1, c["n_out"], c)
        means, stds = contributions.sum(0), np.sqrt(variances.sum(0))
        for bound, other, other_variance in (
                (replace, contributions[1:].sum(0) + own[0], variances[1:].sum(0) + own_variance[0]),
                (remove, contributions[1:].sum(0), variances[1:].sum(0))):
            forth = sum(renyi(alpha, *row) for row in zip(means, stds, other, np.sqrt(other_variance), strict=True))
            back = sum(renyi(alpha, *row) for row in zip(other, np.sqrt(other_variance), means, stds, strict=True))
            assert 0 < max(forth, back) <= bound


def test_replace_one_is_attained():
    """The neighbours of the finite counterexample: all others at L, record I from U to L, its error turned around."""
    low, high = C["gamma_min"], 1.0
    p = math.sqrt(0.5)
    others = (C["m"] - 1) * low**2
    exact = 2 * renyi(5.0, p * high, math.sqrt(others + high**2), -p * low, math.sqrt(others + low**2))
    assert col.corrected_column_replace_one(5.0, **C) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("bound", BOUNDS)
def test_infinite_from_the_largest_order_on_and_without_noise_or_floor(bound):
    constants = {k: C[k] for k in ("m", "gamma_min", "gamma_max", "tau_h_min", "tau_h_max")}
    limit = col.alpha_max(**constants) if bound is BOUNDS[0] else 1 + 15 / 1.8**2
    values = bound(limit * np.array([0.5, 0.999999, 1.0, 2.0]), **C)
    assert np.isfinite(values[:2]).all() and np.isinf(values[2:]).all() and values[0] < values[1]
    for bare in ("sigma", "gamma_min", "tau_h_min"):
        assert bound(2.0, **{**C, bare: 0.0}) == math.inf


def test_equal_bounds_leave_a_gaussian():
    """rho = 1: variances agree, and the divergence is that of the means, 2 alpha tau_B^2/(m sigma^2)."""
    c = {**C, "gamma_min": 1.0}
    assert col.alpha_max(16, 1.0, 1.0, 1.0, 1.0) == math.inf
    assert col.corrected_column_replace_one(50.0, **c) == pytest.approx(2 * 50 / 16)
    assert col.corrected_column_add_remove(2.0, **{**c, "m": 1}) == math.inf


def test_column_of_a_trial_is_its_worst_layer():
    config = TrialConfig(mechanism="photonic", sigma=0.1, gamma_min=0.25, tau_h_min=0.5, activation_floor=True)
    found = {e.metric_name: e for e in account(config, 3) if e.kind == "column"}
    worst = min(col.corrected_column_replace_one(a, 256, 512, 0.1, 1.0, 0.25, 1.0, 0.5, 1.0) + math.log(1e5) / (a - 1)
                for a in col.ALPHAS)
    assert found["epsilon/column/replace-one"].value == pytest.approx(worst)
    assert math.isfinite(found["epsilon/column/add-remove"].value)
    assert "one column of one layer in one step" in found["epsilon/column/replace-one"].note
    tanh = TrialConfig(mechanism="photonic", sigma=0.1)
    assert all(math.isinf(e.value) for e in col.column_epsilons(tanh)) and len(col.column_epsilons(tanh)) == 2
    assert col.column_epsilons(TrialConfig()) == []
    assert col.column_epsilons(TrialConfig(mechanism="photonic", sigma=0.1, algorithm="bp")) == []
