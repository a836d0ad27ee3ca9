"""The guarantee for the bits: what is rounded and added stays within C (1 + eta), whatever neighbours try."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from pipeline.accounting import account
from pipeline.accounting.certified import certified_epsilons, with_noise
from pipeline.accounting.finite_precision import (
    DELTA_SHARE,
    STEPS_PER_SIGMA,
    TOTAL_VARIATION,
    accounted_delta,
    draws,
    enlargement,
    optical_enlargement,
    within_delta,
)
from pipeline.learning.data.dataset import load
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.mechanisms import make_mechanism
from pipeline.learning.mechanisms.fixed_point import FixedPointRelease
from pipeline.learning.network.layers import Dense
from pipeline.learning.network.network import make_network
from pipeline.learning.training import Training
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.shapes import n_parameters

CPU = torch.device("cpu")
BASE = TrialConfig(dataset="digits", hidden=(16, 12), batch_size=32, epochs=2, learning_rate=0.1, noise="secure",
                   mechanism="per_example", sampler="poisson", noise_multiplier=1.0)
COMPONENT = dataclasses.replace(BASE, mechanism="component", tau_e=0.5, tau_h=4.0)
CONVOLUTIONAL = dataclasses.replace(BASE, network="convnet", channels=(4,), kernel=3, algorithm="hybrid", projector="")
CONV_COMPONENT = dataclasses.replace(CONVOLUTIONAL, mechanism="component", target_norm=2.0)
AUTOMATIC = dataclasses.replace(BASE, mechanism="automatic")
TRIALS = {"per_example": BASE, "automatic": AUTOMATIC, "component": COMPONENT, "convolutions": CONVOLUTIONAL,
          "convolutions, component": CONV_COMPONENT}
EVERY = pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)
LARGEST = 2.0**30  # of z sqrt(d), with which the grid is as coarse as it may be


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def built(trial):
    net = make_network(trial, [trial.seed])
    return net, make_mechanism(Pack((trial,)), net, CPU)


def factors(trial, net, m, rng, size):
    """Deltas and activations of m records, the last of which is what neighbours differ in."""
    x = torch.from_numpy(rng.normal(size=(1, m, net.sizes[0])) * size).float()
    activations, _ = net.forward(x)
    activations = [h * size for h in activations]
    deltas = [torch.from_numpy(rng.normal(size=(1, m, n)) * size).float() for n in net.sizes[1:]]
    return deltas, activations


def on_the_grid(mechanism, deltas, activations):
    """gamma K: what is released, without the integers that are added to K."""
    mechanism.release.noise.next = lambda: torch.zeros_like(mechanism.total.flat)
    mechanism.add_up(deltas, activations, mechanism.total)
    return mechanism.release(mechanism.total.flat)[0].numpy().copy()


def alone(deltas, activations, keep):
    return [d * keep for d in deltas], activations


@EVERY
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e12])
def test_no_record_moves_what_is_released_by_more_than_the_enlarged_bound(trial, size):
    """At the coarsest grid, where rounding alone breaks the bound C; records beyond every clip, or below it."""
    z = LARGEST / math.sqrt(n_parameters(trial.layers)) * 0.999
    trial = dataclasses.replace(trial, noise_multiplier=z)
    net, mechanism = built(trial)
    bound, eta, rng = mechanism.bounds[0], enlargement(trial), np.random.default_rng(1)
    assert 2.0**-11 < eta < 2.0**-9
    moved = []
    for _ in range(20):
        deltas, activations = factors(trial, net, 6, rng, size)
        keep = torch.ones(1, 6, 1)
        whole = on_the_grid(mechanism, deltas, activations)
        keep[0, -1] = 0
        without = on_the_grid(mechanism, *alone(deltas, activations, keep))
        moved.append(np.linalg.norm(whole - without) / bound)
    assert max(moved) <= 1 + eta
    if size > 1:
        assert max(moved) > 1 - 1e-3, "records as long as they may be"


def test_rounding_to_the_grid_does_break_the_bound_that_real_numbers_would_keep():
    """Why eta is needed: a record of norm C whose every coordinate crosses half a step."""
    trial = dataclasses.replace(BASE, noise_multiplier=LARGEST / math.sqrt(n_parameters(BASE.layers)) * 0.999)
    _net, mechanism = built(trial)
    gamma, d = mechanism.release.steps[0], n_parameters(trial.layers)
    base = np.full(d, 0.5 - 1e-6) * gamma  # just below half a step, in every coordinate
    step = np.full(d, 1 / math.sqrt(d))
    released = []
    mechanism.release.noise.next = lambda: torch.zeros(1, d, dtype=torch.float64)
    for numbers in (base, base + step):
        released.append(mechanism.release(torch.from_numpy(numbers[None].copy()))[0].numpy())
    moved = np.linalg.norm(released[1] - released[0])
    assert 1 + 2.0**-14 < moved <= 1 + enlargement(trial)


def bounded(training, batch):
    """The bounded factors of a batch [1, m] as arrays [m, n]; without optical noise, which is drawn by place."""
    present = (batch != ABSENT).unsqueeze(-1).float()
    places = batch.clamp(min=0)
    activations, logits = training.net.forward(training.train_inputs.batch(places))
    error, _ = training.loss(logits, training.data.train_y[places], present)
    training.mechanism.optics = None
    deltas = training.deltas(error, activations, present)
    factors = training.mechanism.bounded([d.double() for d in deltas], [h.double() for h in activations])
    return [x[0].numpy().copy() for part in factors for x in part]


@EVERY
@pytest.mark.parametrize(("algorithm", "m"), [("bp", 32), ("bp", 77), ("dfa", 77), ("tdfa", 32), ("pdfa", 77)])
def test_what_one_record_contributes_depends_neither_on_the_others_nor_on_its_place(trial, algorithm, m, digits):
    """What the proof takes of the products, to the last bit: a row of theirs is computed from that row and the weights
    alone, wherever it stands among a multiple of 16 rows, and however many they are."""
    trial = dataclasses.replace(trial, algorithm=algorithm, projector="", sampler="without_replacement", batch_size=m)
    training = Training(Pack((trial,)), digits, CPU)
    batch = training.sampler.epoch()[0]
    assert batch.shape[1] % 16 == 0 and (batch != ABSENT).sum() == m
    before = bounded(training, batch)
    replaced = batch.clone()
    replaced[0, 5] = training.validation[0, 0]
    others = [k for k in range(batch.shape[1]) if k != 5]
    after = bounded(training, replaced)
    assert all(np.array_equal(x[others], y[others]) for x, y in zip(before, after, strict=True))
    assert any(not np.array_equal(x[5], y[5]) for x, y in zip(before, after, strict=True))
    order = torch.randperm(batch.shape[1])
    moved = bounded(training, batch[:, order])
    assert all(np.array_equal(x[order.numpy()], y) for x, y in zip(before, moved, strict=True))
    longer = torch.cat([batch[:, 3:], torch.full((1, 16 + 3), ABSENT), batch[:, :3]], dim=1)
    more = bounded(training, longer)
    assert all(np.array_equal(x[3:], y[: len(x) - 3]) for x, y in zip(before, more, strict=True))
    training.close()


@EVERY
def test_the_grid_is_that_of_the_enlarged_noise(trial):
    trial = dataclasses.replace(trial, noise_multiplier=1e5)
    _, mechanism = built(trial)
    sigma = trial.noise_multiplier * mechanism.bounds[0] * (1 + enlargement(trial))
    assert mechanism.release.steps == [sigma / STEPS_PER_SIGMA] and enlargement(trial) > 1e-6


def test_the_norm_of_a_convolutions_part_covers_positions_that_cancel():
    """Two positions of opposite delta on nearly the same patch: the gradient is what rounding leaves of two large
    ones, and forming it again from a scaled delta leaves something else."""
    net, _mechanism = built(CONVOLUTIONAL)
    layer, shape = net.layers[0], net.layers[0].shape
    image = torch.full((1, 1, shape.n_in), 1 / 3, dtype=torch.float64)
    net.forward(image.float())
    delta = torch.zeros(1, 1, shape.n_out, dtype=torch.float64)
    delta[0, 0, 5], delta[0, 0, 6] = 1e9 / 3, -1e9 / 3
    norm = layer.squared_norms(delta, image).sqrt()
    positions = shape.height * shape.width
    aligned = 2 * 1e9 / 3 * math.sqrt(9 / 9 + 1)
    assert norm.item() >= 1024 * positions * 2.0**-52 * aligned * 0.1
    assert enlargement(CONVOLUTIONAL) > 2.0**-19


@EVERY
@pytest.mark.parametrize("wrong", [2 / 3, 3 / 2])
def test_noise_on_the_update_has_its_sigma_and_another_is_rejected(trial, wrong, digits):
    training = Training(Pack((dataclasses.replace(trial, noise_multiplier=3.0),)), digits, CPU)
    mechanism, out = training.mechanism, training.update
    nothing = ([torch.zeros(1, 0, n) for n in training.net.sizes[1:]],
               [torch.zeros(1, 0, n) for n in training.net.sizes[:-1]])
    training.net.forward(torch.zeros(1, 0, training.net.sizes[0]))
    sample = []
    for _ in range(30):
        mechanism.update(*nothing, out)
        sample.append(np.concatenate([b.flatten().numpy() for b in out.weights + out.biases]))
    sigma = 3.0 * mechanism.bounds[0] / trial.batch_size
    sample = np.concatenate(sample) / sigma
    assert stats.kstest(sample, "norm").pvalue > 1e-6
    assert stats.kstest(sample * wrong, "norm").pvalue < 1e-12
    training.close()


def test_released_numbers_lie_on_the_grid_and_hold_what_was_rounded():
    release = FixedPointRelease([3.0, 0.5], (1000,), CPU)
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


def test_sums_are_exact_where_those_of_float32_are_not(digits):
    """2^26 - 2^26 + 1 is 0 in float32, and a record would be lost from the sum."""
    net, mechanism = built(dataclasses.replace(BASE, clipping_norm=1e8))
    deltas = [torch.zeros(1, 3, n) for n in net.sizes[1:]]
    activations = [torch.zeros(1, 3, n) for n in net.sizes[:-1]]
    deltas[-1][0, :, 0] = torch.tensor([2.0**26, 1.0, -(2.0**26)])
    released = on_the_grid(mechanism, deltas, activations)
    assert released[np.abs(released) > 1e-3] == pytest.approx(1.0, abs=1e-4)


def test_eta_counts_records_widths_and_the_grid():
    z = TrialConfig(mechanism="per_example", noise="secure", sampler="poisson", noise_multiplier=1.0)
    d, n = n_parameters(z.layers), 54_000
    rounding = (2 * (784 + 512) + 3 + 16) * 2.0**-53
    expected = 2 * n * (n + 4) * 2.0**-53 + math.sqrt(d) * 2.0**-40 + (1 + 2 * n) * rounding
    assert enlargement(z) == pytest.approx(expected, rel=1e-5)
    assert enlargement(dataclasses.replace(z, train_records=1_000)) < enlargement(z) / 100
    with pytest.raises(ValueError, match=r"noise_multiplier: must be at most 1.31e\+06 with noise 'secure', whose"):
        enlargement(dataclasses.replace(z, noise="research", noise_multiplier=2e6))
    with pytest.raises(ConfigError, match="noise_multiplier: must be at most"):
        dataclasses.replace(z, noise_multiplier=2e6)
    optical = TrialConfig(mechanism="photonic", noise="secure", sigma=10.0)
    assert 0 < optical_enlargement(optical) < 1e-9


def test_a_thousandth_of_delta_is_the_samplers_and_epsilon_still_is_for_delta():
    research = dataclasses.replace(BASE, noise="research")
    assert accounted_delta(BASE) == BASE.delta * (1 - DELTA_SHARE) and accounted_delta(research) == BASE.delta
    secure, simulated = certified_epsilons(BASE, 2)[0], certified_epsilons(research, 2)[0]
    assert secure.delta == simulated.delta == BASE.delta and simulated.value < secure.value < simulated.value * 1.001
    assert draws(BASE) * TOTAL_VARIATION * (1 + math.exp(secure.value)) < DELTA_SHARE * BASE.delta
    assert within_delta(BASE, 100.0) and not within_delta(BASE, 200.0) and within_delta(research, 200.0)
    target = dataclasses.replace(BASE, noise_multiplier=0.0, target_epsilon=3.0)
    assert 2.97 <= certified_epsilons(target, target.epochs)[0].value <= 3
    simulated = dataclasses.replace(target, noise="research")
    assert with_noise(target).noise_multiplier > with_noise(simulated).noise_multiplier


def test_an_epsilon_so_large_that_the_sampler_counts_is_not_certified():
    loose = TrialConfig(mechanism="photonic", sigma=0.1, noise="secure", private_metrics="withheld")
    assert all(math.isinf(e.value) for e in account(loose, 1) if e.kind == "label")
    tight = dataclasses.replace(loose, sigma=10.0)
    assert all(math.isfinite(e.value) for e in account(tight, 1) if e.kind == "label")


@pytest.mark.parametrize(("changes", "message"), [
    ({"mechanism": "photonic", "sampler": "shuffled", "noise_multiplier": 0.0}, "noise: needs a guarantee"),
    ({"noise_multiplier": 0.0}, "noise: needs a guarantee that it can keep: mechanism 'per_example' or 'automatic' or "
                                "'component'"),
    ({"algorithm": "pdfa", "projector": "opu_hardware"}, "projector: nobody has shown that a real OPU projects"),
    ({"canaries": 100}, "canaries: their audit is computed from private records"),
    ({"clipping_norm": 1e-300}, "clipping_norm: must be at least 1e-15 and at most 1e.15 with noise 'secure'"),
    ({"clipping_norm": 1e20}, "clipping_norm: must be at least 1e-15 and at most 1e.15 with noise 'secure'"),
    ({"noise": "research", "private_metrics": "noisy", "canaries": 100}, "canaries: their audit is computed from priv"),
    ({"private_metrics": "plain"}, "private_metrics: must be 'noisy' or 'withheld' with noise 'secure'"),
    ({"private_metrics": "all"}, "private_metrics: must be one of plain, noisy, withheld, got 'all'"),
])
def test_a_secure_trial_whose_argument_does_not_hold_is_refused(changes, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        dataclasses.replace(BASE, **changes)


def test_a_device_of_which_nothing_is_known_is_refused():
    with pytest.raises(ConfigError, match="noise: 'secure' adds up in float64, .* got 'meta'; use 'cpu' or 'cuda'"):
        FixedPointRelease([1.0], (3,), torch.device("meta"))
    with pytest.raises(ConfigError, match="noise: 'secure' has a grid for noise of standard deviation"):
        FixedPointRelease([1e-290], (3,), CPU)


def test_a_mechanism_that_falls_back_to_float32_is_refused(digits):
    training = Training(Pack((BASE,)), digits, CPU)
    training.mechanism.bounded = lambda deltas, activations: ([d.float() for d in deltas], activations)
    with pytest.raises(TypeError, match="PerExample.bounded: must return float64"):
        training.step(training.sampler.epoch()[0])
    training.close()


def test_optical_signals_of_secure_trials_are_released_on_a_grid(digits):
    trial = TrialConfig(dataset="digits", hidden=(16, 12), batch_size=32, algorithm="pdfa", mechanism="photonic",
                        sigma=5.0, noise="secure")
    training = Training(Pack((trial,)), digits, CPU)
    optics = training.mechanism.optics
    sigma = optics.release.steps[0] * STEPS_PER_SIGMA
    assert sigma == pytest.approx(5.0 * (1 + optical_enlargement(trial)), rel=1e-15) and sigma > 5.0
    signals = [torch.randn(1, 32, n) * 1e3 for n in (16, 12, 10)]
    optics.release.noise.next = lambda: torch.zeros(1, 32, 38, dtype=torch.float64)
    for v, released in zip(signals, optics.perturb(signals), strict=True):
        assert torch.allclose(released, v / v.norm(dim=-1, keepdim=True), atol=1e-6)
    training.close()


@EVERY
def test_a_trial_whose_products_depend_on_a_rows_place_is_refused_before_it_trains(trial, digits, monkeypatch):
    """As narrow products do on some processors: a last bit of the third row of every block of 16 is another."""
    product = Dense.forward

    def placed(self, h, weight, bias):
        z = product(self, h, weight, bias)
        z[:, 2::16] = torch.nextafter(z[:, 2::16], torch.full_like(z[:, 2::16], math.inf))
        return z
    Training(Pack((trial,)), digits, CPU).close()
    monkeypatch.setattr(Dense, "forward", placed)
    with pytest.raises(ConfigError, match=r"noise: 'secure' needs products of which .* multiples of 16 in `hidden`"):
        Training(Pack((trial,)), digits, CPU)
    Training(Pack((dataclasses.replace(trial, noise="research", private_metrics=""),)), digits, CPU).close()
