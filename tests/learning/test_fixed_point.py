"""The guarantee for the bits: what neighbours move stays within C, or C (1 + eta) where numbers are put on a grid."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from pipeline.accounting import account
from pipeline.accounting.certified import certified_epsilons, with_noise
from pipeline.accounting.finite_precision import (
    COARSEST,
    DELTA_SHARE,
    STEPS_PER_SIGMA,
    accounted_delta,
    count_enlargement,
    optical_enlargement,
    within_delta,
)
from pipeline.learning.mechanisms.fixed_point import FixedPointRelease
from pipeline.learning.train import prepare
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

CPU = torch.device("cpu")
BASE = TrialConfig(dataset="digits", hidden=(16, 12), batch_size=32, epochs=2, learning_rate=0.1, noise="secure",
                   mechanism="per_example", sampler="poisson", noise_multiplier=1.0, arithmetic="integer")
PHOTONIC = TrialConfig(dataset="digits", hidden=(16, 12), batch_size=32, algorithm="pdfa", mechanism="photonic",
                       sigma=5.0, noise="secure")


def test_rounding_to_the_grid_does_break_the_bound_that_real_numbers_would_keep():
    """Why signals have eta: a vector of norm 1 whose every coordinate crosses half a step."""
    d = sum(PHOTONIC.layer_sizes[1:])
    trial = dataclasses.replace(PHOTONIC, sigma=COARSEST * STEPS_PER_SIGMA / math.sqrt(d) * 0.999)
    eta = optical_enlargement(trial)
    release = FixedPointRelease([trial.sigma * (1 + eta)], (d,), CPU, [None])
    base = np.full(d, 0.5 - 1e-6) * release.steps[0]  # just below half a step, in every coordinate
    # Half steps are crossed by as many whole steps as fit, and one more.
    step = np.full(d, (math.floor(1 / math.sqrt(d) / release.steps[0]) + 2e-6) * release.steps[0])
    release.noise.next = lambda: torch.zeros(1, d, dtype=torch.float64)
    one, other = (release(torch.from_numpy(numbers[None].copy()))[0].numpy() for numbers in (base, base + step))
    moved = np.linalg.norm(other - one)
    assert np.linalg.norm(step) <= 1 and np.linalg.norm(step) * (1 + 2.0**-11) < moved <= 1 + eta


def test_released_numbers_lie_on_the_grid_and_hold_what_was_rounded():
    release = FixedPointRelease([3.0, 0.5], (1000,), CPU, [None, None])
    drawn = release.noise.next()
    release.noise.next = lambda: drawn.clone()
    numbers = torch.randn(2, 1000, dtype=torch.float64)
    released = release(numbers.clone())
    for r, step in enumerate(release.steps):
        assert step == (3.0, 0.5)[r] / STEPS_PER_SIGMA
        integers = released[r].numpy() / step
        assert (np.abs(integers - np.round(integers)) < 1e-3).all()
        assert np.array_equal(np.round(integers) - drawn[r].numpy(), np.round(numbers[r].numpy() * (1 / step))), \
            "halfway, a quotient may round to the other side"


def test_eta_counts_widths_and_the_grid():
    width = sum(PHOTONIC.layer_sizes[1:])
    expected = (width + 16) * 2.0**-53 + 5.0 * math.sqrt(width) * 2.0**-40 + 2.0**-40
    assert PHOTONIC.tau_f == 1 and optical_enlargement(PHOTONIC) == pytest.approx(expected, rel=1e-4)
    assert count_enlargement(30.0) == pytest.approx(31 * 2.0**-40, rel=1e-4)
    for refused, message in (
            (lambda: optical_enlargement(dataclasses.replace(PHOTONIC, sigma=2e8)),
             r"sigma/tau_f: must be at most 1.74e\+08 with noise 'secure', whose grid of"),
            (lambda: count_enlargement(2e9),
             r"the noise of a count: must be at most 1.07e\+09 with noise 'secure'"),
            (lambda: FixedPointRelease([1.0], (3,), torch.device("meta"), [None]),
             "noise: 'secure' is proved on 'cpu' or 'cuda', got 'meta'; use one of them"),
            (lambda: FixedPointRelease([1e-290], (3,), CPU, [None]),
             "noise: must have a standard deviation of 1e-48 to .*, got 1e-290")):
        with pytest.raises(ValueError, match=message):
            refused()


def test_a_thousandth_of_delta_is_the_samplers_and_epsilon_still_is_for_delta():
    """An epsilon so large that the sampler counts is not certified."""
    research = dataclasses.replace(BASE, noise="research")
    assert accounted_delta(BASE) == BASE.delta * (1 - DELTA_SHARE) and accounted_delta(research) == BASE.delta
    secure, simulated = certified_epsilons(BASE, 2)[0], certified_epsilons(research, 2)[0]
    assert secure.delta == simulated.delta == BASE.delta and simulated.value < secure.value < simulated.value * 1.001
    assert within_delta(BASE, 100.0) and not within_delta(BASE, 200.0) and within_delta(research, 200.0)
    target = dataclasses.replace(BASE, noise_multiplier=0.0, target_epsilon=3.0)
    assert 2.97 <= certified_epsilons(target, target.epochs)[0].value <= 3
    simulated = dataclasses.replace(target, noise="research")
    assert with_noise(target).noise_multiplier > with_noise(simulated).noise_multiplier
    for sigma, finite in ((0.1, False), (10.0, True)):
        trial = TrialConfig(mechanism="photonic", sigma=sigma, noise="secure", private_metrics="withheld")
        assert {math.isfinite(e.value) for e in account(trial, 1) if e.kind == "label"} == {finite}


def test_optical_signals_of_secure_trials_are_released_on_a_grid(digits):
    training = prepare(Pack((PHOTONIC,)), digits, CPU)
    optics = training.mechanism.optics
    sigma = optics.release.steps[0] * STEPS_PER_SIGMA
    assert sigma == pytest.approx(5.0 * (1 + optical_enlargement(PHOTONIC)), rel=1e-15) and sigma > 5.0
    signals = [torch.randn(1, 32, n) * 1e3 for n in (16, 12, 10)]
    optics.release.noise.next = lambda: torch.zeros(1, 32, 38, dtype=torch.float64)
    for v, released in zip(signals, optics.perturb(signals), strict=True):
        assert torch.allclose(released, v / v.norm(dim=-1, keepdim=True), atol=1e-6)
