"""Random stopping: the number of trials has the distribution that its price presupposes; what files may draw."""

import math
from collections import Counter

import numpy as np
import pytest
from commands import load
from dp_accounting.rdp.rdp_privacy_accountant import _gamma_truncated_negative_binomial
from scipy import stats

from analysis.catalogue import check, listed
from pipeline.accounting.repetitions import GEOMETRIC, LOGARITHMIC, POISSON, draw_number, gamma_of
from pipeline.experiment.plan import Grid
from pipeline.experiment.stopping import Selection, draw
from pipeline.trials.config import ConfigError, TrialConfig

SHAPES = (LOGARITHMIC, 0.3, GEOMETRIC, 4.0, POISSON)
N = 20_000


def pmf(mean, shape, n=2000):
    """P[K = 0, ..., n - 1], term by term as Papernot & Steinke (2022) define it."""
    k = np.arange(n)
    if shape == POISSON:
        return stats.poisson.pmf(k, mean)
    gamma = _gamma_truncated_negative_binomial(shape, mean)
    if shape == LOGARITHMIC:
        return np.append(0.0, (1 - gamma) ** k[1:] / (k[1:] * math.log(1 / gamma)))
    product = np.cumprod((np.arange(n - 1) + shape) / (np.arange(n - 1) + 1))
    return np.append(0.0, (1 - gamma) ** k[1:] / (gamma**-shape - 1) * product)


def chi_square(draws, expected):
    """p-value of the draws under these probabilities, cells pooled to at least 20 expected draws."""
    counts = np.bincount(np.minimum(draws, len(expected) - 1), minlength=len(expected)).astype(float)
    frequencies, cells = expected / expected.sum() * len(draws), [[0.0, 0.0]]
    for count, frequency in zip(counts, frequencies, strict=True):
        cells[-1][0] += count
        cells[-1][1] += frequency
        if cells[-1][1] >= 20:
            cells.append([0.0, 0.0])
    rest = cells.pop()
    cells[-1] = [a + b for a, b in zip(cells[-1], rest, strict=True)]
    observed, wanted = np.array(cells).T
    assert observed.sum() == len(draws)
    return stats.chisquare(observed, wanted).pvalue


@pytest.fixture(scope="module")
def draws():
    return {shape: np.array([draw_number(generator, 9.0, shape) for _ in range(N)])
            for shape, generator in ((s, np.random.default_rng(7)) for s in SHAPES)}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_number_of_trials_has_its_closed_form(draws, shape):
    expected = pmf(9.0, shape)
    assert expected.sum() == pytest.approx(1, abs=1e-6)
    assert expected @ np.arange(len(expected)) == pytest.approx(9, rel=1e-4)
    assert chi_square(draws[shape], expected) > 1e-3
    error = draws[shape].std() / math.sqrt(N)
    assert abs(draws[shape].mean() - 9) < 4 * error
    assert draws[shape].min() == (0 if shape == POISSON else 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_another_shape_or_mean_is_told_apart(draws, shape):
    for other in SHAPES:
        if other != shape:
            assert chi_square(draws[shape], pmf(9.0, other) + 1e-12) < 1e-9, other
    for mean in (7.5, 10.5):
        assert chi_square(draws[shape], pmf(mean, shape) + 1e-12) < 1e-9
    if 0 < shape < math.inf:  # one step beside the truncation
        assert chi_square(draws[shape] - 1, pmf(9.0, shape) + 1e-12) < 1e-9


@pytest.mark.parametrize("mean", [1.0, 1.5, 9.0, 1e4])
@pytest.mark.parametrize("shape", [0.0, 0.01, 0.5, 1.0, 20.0])
def test_gamma_is_that_of_the_accountant(mean, shape):
    assert gamma_of(mean, shape) == pytest.approx(_gamma_truncated_negative_binomial(shape, mean), rel=1e-6)
    if mean == 1:
        assert {draw_number(np.random.default_rng(s), mean, shape) for s in range(20)} == {1}


# experiment files

BASE = "base: {dataset: digits, batch_size: 64, mechanism: per_example, sampler: poisson, target_epsilon: 3}\n"
GRID = "grid: {learning_rate: [0.1, 0.2, 0.4]}\n"
STOP = "selection: {rule: random_stopping, mean: 9, seed: 3}\n"


def test_trials_are_drawn_from_the_candidates_and_the_same_file_draws_the_same(tmp_path):
    one, again, other = (load(tmp_path, BASE + GRID + STOP.replace("3}", seed)) for seed in ("3}", "3}", "4}"))
    assert one.trials == again.trials != other.trials
    assert one.plan.selection == Selection("random_stopping", 9, 1.0, 3) and listed(one) == ()
    assert [c.learning_rate for c in one.plan.candidates] == [0.1, 0.2, 0.4]
    assert len({t.trial_key for t in one.trials}) == len({t.seed for t in one.trials}) == len(one.trials) > 3
    assert {t.learning_rate for t in one.trials} <= {0.1, 0.2, 0.4}
    fixed = load(tmp_path, BASE + GRID)
    assert fixed.plan == Grid(fixed.possible) and fixed.plan.selection == Selection() and len(fixed.trials) == 3
    assert load(tmp_path, BASE + GRID + "selection: {rule: composition}").trials == fixed.trials


def test_number_candidate_and_seed_are_independent_uniform_draws():
    candidates = [TrialConfig(learning_rate=rate) for rate in (0.1, 0.2, 0.4)]
    drawn = [draw(candidates, Selection("random_stopping", 9.0, seed=seed)) for seed in range(1500)]
    numbers = np.array([len(trials) for trials in drawn])
    assert chi_square(numbers, pmf(9.0, GEOMETRIC)) > 1e-3
    assert chi_square(numbers, pmf(9.0, LOGARITHMIC)) < 1e-9
    counts = Counter(trial.learning_rate for trials in drawn for trial in trials)
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    first = Counter(trials[0].learning_rate for trials in drawn if len(trials) > 9)
    assert stats.chisquare([first[c.learning_rate] for c in candidates]).pvalue > 1e-3
    seeds = np.array([trial.seed for trials in drawn for trial in trials])
    assert stats.kstest(seeds / 2**31, "uniform").pvalue > 1e-3 and len(set(seeds)) > len(seeds) - 10


@pytest.mark.parametrize(("text", "message"), [
    ("selection: [1]", r"selection: must be a mapping"),
    ("selection: {mode: x}", r"selection.mode: unknown entry; accepted are rule, mean, shape, seed"),
    ("selection: {rule: best}", r"selection.rule: must be one of composition, random_stopping, got 'best'"),
    ("selection: {mean: 9}", r"selection.mean: has no meaning with rule 'composition', got 9"),
    ("selection: {rule: random_stopping}", r"selection.mean: must be a finite number >= 1, got None"),
    ("selection: {rule: random_stopping, mean: 0.5}", r"selection.mean: must be a finite number >= 1, got 0.5"),
    ("selection: {rule: random_stopping, mean: .inf}", r"selection.mean: must be a finite number"),
    ("selection: {rule: random_stopping, mean: 9, shape: -1}", r"selection.shape: must be 0 \(logar.* got -1"),
    ("selection: {rule: random_stopping, mean: 9, shape: 0.001}", r"selection.shape: must be 0 .* got 0.001"),
    ("selection: {rule: random_stopping, mean: 9, shape: .nan}", r"selection.shape: must be 0 .* got nan"),
    ("selection: {rule: random_stopping, mean: 9, seed: -1}", r"selection.seed: must be a whole number >= 0, got -1"),
    ("selection: {rule: random_stopping, mean: 1, shape: .inf, seed: 2}", r"selection.shape: .inf \(Poi.* K = 0"),
    (STOP + "report: [frontier]", r"report: frontier shows every trial, but .* got \['frontier'\]; leave it out"),
    (STOP.replace(", seed: 3", "") + "cases: [{base: {noise: secure, arithmetic: integer}}]",
     r"selection.seed: must be given with noise 'secure', got none"),
    (STOP + "cases: [{base: {sampler: poisson}}, {base: {sampler: shuffled}}]",
     r"sampler: must be one for all candidates of random stopping, got poisson, shuffled"),
    (STOP + "cases: [{base: {delta: 1.0e-5}}, {base: {delta: 1.0e-6}}]", r"delta: must be one .* got 1e-05, 1e-06"),
    (STOP + "cases: [{base: {dataset: digits}}, {base: {dataset: mnist}}]", r"dataset: must be one .* digits, mnist"),
    (STOP + "cases: [{}, {base: {mechanism: none}}]", r"mechanism: every candidate .* got mechanism 'none'"),
    (STOP + "cases: [{}, {base: {target_epsilon: 0}}]", r"mechanism: every candidate .* target_epsilon 0, noise_mult"),
    (STOP + "cases: [{base: {mechanism: photonic, sampler: shuffled, sigma: 1}}]",
     r"selection.rule: 'random_stopping' needs trials with a certified epsilon .* got none"),
    ("selection: {rule: composition}\ncases: [{base: {validation_fraction: 0}}]",
     r"validation_fraction: must be > 0, as the best trial is chosen by"),
    ("selection: {rule: composition}\ncases: [{base: {mechanism: none}}]", r"selection.rule: 'composition' needs"),
    (STOP + "cases: [{base: {seed: 0}}]", r"cases\[0\].base.seed: every trial of random stopping gets .* got 0"),
    (STOP + "cases: [{base: {epochs: 1}}, {grid: {seed: [0, 1]}}]", r"cases\[1\].grid.seed: every trial .* got"),
    (STOP + "grid: {seed: [0, 1]}", r"grid.seed: every trial of random stopping gets a seed of its own")])
def test_refused_with_field_value_and_remedy(tmp_path, text, message):
    with pytest.raises(ConfigError, match="^" + message) as raised:
        check(load(tmp_path, BASE + text))
    assert "\n" not in str(raised.value)


def test_a_secure_file_with_a_seed_of_its_own_is_accepted(tmp_path):
    text = BASE.replace("{", "{noise: secure, arithmetic: integer, ") + STOP.replace("seed: 3", f"seed: {2**128 + 5}")
    assert all(trial.secure for trial in load(tmp_path, text).trials)
