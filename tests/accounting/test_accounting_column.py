import math

import numpy as np
import pytest
from scipy import integrate, stats

from pipeline.accounting import account, reference
from pipeline.accounting import column as col
from pipeline.trials.config import TrialConfig

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


def test_floor_must_exceed_the_order():
    assert reference.joint_layer_floor(4.0, 3.0, 5, 1.0, 1.0, 1.0, 1.0) == math.inf
    assert reference.joint_layer_floor(4.0, 3.001, 5, 1.0, 1.0, 1.0, 1.0) < math.inf
    assert reference.joint_layer_floor(2.0, 9.0, 5, 0.0, 1.0, 1.0, 1.0) == math.inf


def test_exact_epsilon_of_variances_by_quadrature():
    """One row: delta(epsilon) as an integral of (p - e^epsilon q)_+."""
    R, delta = 1.5, 1e-3
    epsilon = reference.epsilon_of_variance_ratio(R, 1, delta)
    wide, narrow = stats.norm(scale=math.sqrt(R)).pdf, stats.norm().pdf
    deltas = [2 * integrate.quad(lambda x, p=p, q=q: max(p(x) - math.exp(epsilon) * q(x), 0), 0, 12, limit=500)[0]
              for p, q in ((wide, narrow), (narrow, wide))]
    assert max(deltas) == pytest.approx(delta, rel=1e-5)
    assert reference.epsilon_of_variance_ratio(1.0001, 1, 0.5) == 0.0


JOINT = dict(m=256, n_in=3, n_out=7, sigma=0.1, tau_B=1.0, alpha=2.0, h_others=[1, 1, 0], phi_prime=0.3,
             h_I=[0, 0, 1])


def test_joint_is_one_participation_whatever_the_others_are():
    assert reference.joint_column_counterexample(**JOINT)["true_joint"] == pytest.approx(400)
    hidden = reference.joint_column_counterexample(**{**JOINT, "h_I": [1, 1, 0]})["true_joint"]
    assert hidden == pytest.approx(400 / 256)
    for change, message in ((dict(h_I=[1]), "h_I: must have n_in = 3 entries, got 1"),
                            (dict(sigma=0.0), "sigma must be > 0"), (dict(phi_prime=0.0), "phi_prime other than 0")):
        with pytest.raises(ValueError, match=message):
            reference.joint_column_counterexample(**{**JOINT, **change})
    with pytest.raises(ValueError, match="gamma_min, tau_h_min: must be > 0, got 0.0, 1.0"):
        reference.single_column_eps_counterexample(1, 1e-5, 4, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0)


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
