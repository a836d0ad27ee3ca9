"""Integers of component clipping: an update as in float32, no number out of range, and no contribution above C."""

from fractions import Fraction
from functools import partial
from itertools import product

import pytest
import torch
from test_integers import BASE, OF_FACTORS, contributions, made, pair

from pipeline import TrialConfig, train
from pipeline.learning.integers import products
from pipeline.learning.mechanisms.gaussian import GaussianStep
from pipeline.learning.model import TrainedModel
from pipeline.learning.rows import IntegerRows
from pipeline.trials import steps as steps_of
from pipeline.trials.arithmetic import CLAMPED
from pipeline.trials.config import ConfigError
from pipeline.trials.steps import GRID_BITS, grid_exponent, largest_noise, steps

RECORDS = 200  # public test records
LARGEST_SHARE = 1e-3  # of a layer's components that may be clamped
ACTIVATIONS, WIDTHS = ("tanh", "relu", "sigmoid"), ((24, 16), (128,), (512, 512))


def fine(**changes):
    return TrialConfig(**{**dict(OF_FACTORS.given), "noise_multiplier": 0.0, **changes})


def norms_over_c(training, of_weights, of_biases, inputs):
    """Exact squared norms of contributions over C^2, record by record."""
    [of_trial], [bound] = training.mechanism.sum.steps, training.mechanism.bounds
    squares = [Fraction(0)] * len(inputs[0])
    for k, of_bias, h, step in zip(of_weights, of_biases, inputs, of_trial, strict=True):
        a, b = Fraction(step.contribution), Fraction(step.input)
        for record, rows in enumerate(zip(k.tolist(), of_bias.tolist(), h.tolist(), strict=True)):
            weight, bias, of_input = (sum(x * x for x in row) for row in rows)
            squares[record] += a**2 * (weight * b**2 * of_input + bias)
    return [square / Fraction(bound) ** 2 for square in squares]


def update(training, data):
    """The update of test records, layer by layer, and the activations and deltas that it was made of."""
    places = torch.arange(RECORDS)[None]
    activations, logits = training.net.forward(training.test_inputs.batch(places))
    error, _ = training.loss(logits, data.test_y[places])
    deltas = training.deltas(error, activations)
    training.mechanism.update([delta.clone() for delta in deltas], activations, training.update)
    blocks = zip(training.update.weights, training.update.biases, strict=True)
    return [torch.cat([w.flatten(), b.flatten()]).double() for w, b in blocks], activations, deltas


def distance(mine, other):
    """Norm of the difference over the norm of the second."""
    return float((mine - other).norm() / other.norm())


def most_clamped(training, activations, deltas):
    """The largest share of a layer's components that are clamped."""
    mechanism = training.mechanism
    found = mechanism.sum.contributions(mechanism.layer_factors, deltas, activations)
    return max(*mechanism.sum.clamped(activations, deltas, found)[0])


@pytest.mark.parametrize(("algorithm", "activation", "hidden"), list(product(("bp", "dfa"), ACTIVATIONS, WIDTHS)))
def test_the_update_is_within_a_hundredth_of_that_of_float32(algorithm, activation, hidden, digits):
    trial = fine(algorithm=algorithm, activation=activation, hidden=hidden)
    whole, real = pair(trial, digits)
    (mine, activations, deltas), (other, *_) = update(whole, digits), update(real, digits)
    assert distance(torch.cat(mine), torch.cat(other)) < 0.01
    assert all(distance(m, o) < 0.02 for m, o in zip(mine, other, strict=True)), "in every layer"
    assert most_clamped(whole, activations, deltas) <= LARGEST_SHARE


@pytest.mark.parametrize("changes", [
    {"algorithm": "tdfa", "threshold": 0.1}, {"algorithm": "pdfa", "threshold": 0.1}, {"tau_h": 50.0},
    {"tau_h": 0.01, "tau_e": 2.0}, {"target_norm": 0.4}, {"input_norm": 100.0}, {"inputs": "standardized"}], ids=str)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_so_it_is_with_other_settings_and_far_from_where_weights_start(changes, activation, digits):
    """Outputs of relu are then beyond what fits, and outputs of tanh saturate."""
    whole, real = pair(fine(activation=activation, **changes), digits, gain=6.0)
    (mine, activations, deltas), (other, *_) = update(whole, digits), update(real, digits)
    assert distance(torch.cat(mine), torch.cat(other)) < 0.01
    assert most_clamped(whole, activations, deltas) <= LARGEST_SHARE
    if activation == "relu":
        assert activations[-1].scales.max() >= 2 and activations[-1].values.max() <= steps_of.OF_FACTORS.input


@pytest.mark.parametrize("gain", [1.0, 6.0, 300.0])
@pytest.mark.parametrize("tau_h", [0.03, 1.0, 40.0])
def test_no_contribution_is_longer_than_c_however_large_its_factors(gain, tau_h, digits):
    for algorithm, activation in product(("bp", "tdfa"), ACTIVATIONS):
        training = made(fine(algorithm=algorithm, activation=activation, tau_h=tau_h, tau_e=0.01), digits)
        training.net.parameters.flat.mul_(gain)
        squares = norms_over_c(training, *contributions(training, torch.arange(30)[None]))
        assert max(squares) <= 1
        if gain == 300 and tau_h < 1 and algorithm == "tdfa":
            assert max(squares) > Fraction(1, 5), "and not short for nothing"


def test_a_mechanism_with_one_factor_for_weights_and_biases_is_bounded_with_outputs_of_relu_too(digits):
    """Weights are multiplied by the power of two that outputs were divided by; biases are not."""
    training = made(fine(algorithm="bp", activation="relu", tau_h=40.0, tau_e=0.01), digits)
    training.net.parameters.flat.mul_(300.0)
    mechanism = training.mechanism
    mechanism.factor = lambda norms: (mechanism.bounds[0] / norms).clamp_(max=1.0)
    mechanism.layer_factors = partial(GaussianStep.layer_factors, mechanism)
    found = contributions(training, torch.arange(30)[None])
    assert training.net.forward(training.train_inputs.batch(torch.arange(30)[None]))[0][-1].scales.max() > 16
    assert max(norms_over_c(training, *found)) <= 1


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_slopes_are_rounded_once_on_every_processor(activation, digits, monkeypatch):
    """Some processors round a product before it is added, others only the sum."""
    net = made(fine(activation=activation), digits).net
    h = IntegerRows(torch.arange(-2**13, 2**13 + 1, dtype=torch.int16)[None, None], net.hidden_step)
    exact = h.real().double()
    exact = (1 if activation == "tanh" else exact) - exact.square()  # of 28 bits
    assert torch.equal(net.derivative(h, 1), exact.float())
    monkeypatch.setattr(torch, "addcmul", lambda x, y, z, value: x + value * (y * z))
    assert torch.equal(net.derivative(h, 1), exact.float())


def shares(trial, data):
    """What the tag of a trained trial has, by layer."""
    [record] = train(TrialConfig(trial.given, epochs=1, train_records=160), data)
    return [float(share) for share in record.tags[CLAMPED].split(", ")]


def test_a_step_that_is_too_small_is_told_by_layer(digits, monkeypatch):
    assert shares(fine(), digits) == [0, 0, 0]
    assert shares(TrialConfig(BASE.given, clipping_norm=0.1), digits) == [0, 0, 0], "of one bound, too"
    reaches = steps_of._reaches
    monkeypatch.setattr(steps_of, "_reaches", lambda trial: [*reaches(trial)[:-1], reaches(trial)[-1] / 64])
    assert shares(fine(), digits)[:2] == [0, 0] and shares(fine(), digits)[2] > 0.05, "K of the output layer"


@pytest.mark.parametrize(("changes", "name", "value", "layers"), [
    ({"algorithm": "bp", "feedback_std": 1.0}, "BACK_STEP", 2.0**-17, [0, 1]),  # learning signals
    ({"activation": "relu"}, "HIDDEN_STEPS", {"relu": 2.0**-11}, [1, 2])])  # outputs of relu, inputs of the next layer
def test_so_are_learning_signals_and_outputs_of_relu_under_one_bound(changes, name, value, layers, digits, monkeypatch):
    trial = TrialConfig(BASE.given, **changes)
    assert max(shares(trial, digits)) <= LARGEST_SHARE
    monkeypatch.setattr(steps_of, name, value)
    assert [layer for layer, share in enumerate(shares(trial, digits)) if share > LARGEST_SHARE] == layers


def test_so_are_learning_signals_before_their_projection(digits, monkeypatch):
    reach = steps_of._signal_reach
    monkeypatch.setattr(steps_of, "_signal_reach", lambda trial: reach(trial) / 16)
    plain, projected = (shares(fine(denoise=denoise), digits)[:2] for denoise in (False, True))
    assert min(plain) > LARGEST_SHARE and all(p >= q for p, q in zip(projected, plain, strict=True))


def test_short_outputs_of_relu_under_one_bound_leave_no_room_for_long_signals(digits):
    """Steps of one bound follow from a typical input, which those of an upper layer of relu are far below."""
    found = shares(TrialConfig(BASE.given, algorithm="bp", feedback_std=1.0, activation="relu"), digits)
    assert found[:2] == [0, 0] and found[2] > 0.05


def test_the_grid_of_the_largest_noise_divides_fine_steps_and_a_larger_one_is_refused():
    for trial in (BASE, TrialConfig(BASE.given, input_norm=1e6), fine(), fine(input_norm=1e-3), fine(input_norm=1e6),
                  fine(tau_h=300.0, activation="relu")):
        largest = largest_noise(trial)
        for z in (0.2, 0.9, 17.0, largest):
            for step in steps(trial, 1.0, z):
                assert grid_exponent(step, z) >= 0 and step.contribution * 2**GRID_BITS / z >= 1, "biases have no b"
        TrialConfig(trial.given, noise_multiplier=largest)
        with pytest.raises(ConfigError, match="noise_multiplier: must be at most .* with arithmetic 'integer'"):
            TrialConfig(trial.given, noise_multiplier=2 * largest)


def test_products_of_two_and_three_digits_are_exact():
    largest, generator = steps_of.OF_FACTORS, torch.Generator().manual_seed(1)
    h, k = (torch.randint(-size, size + 1, shape, generator=generator)
            for size, shape in ((largest.input, (40, 30)), (largest.contribution, (30, 20))))
    h[0], k[:, 0], k[:, 1] = largest.input, largest.contribution, -largest.contribution
    digits = products.split_digits(k.int(), 3)
    assert digits.abs().max() <= 64
    by_digit = products.combine_digits(products.product(products.as_factor(h.short()), digits), 3).unflatten(0, (2, -1))
    assert torch.equal(products.combine_factor(by_digit), h.double() @ k.double())
    coarse, shorter = (h // 129).to(torch.int8), (k // 129).short()
    found = products.whole_product(coarse, products.split_digits(shorter))
    assert products.as_factor(coarse) is coarse and torch.equal(found, coarse.double() @ shorter.double())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_exported_program_has_the_logits_of_the_model_for_any_number_of_records(activation, digits):
    trial = fine(activation=activation, input_norm=20.0, epochs=1, train_records=160)
    *_, last = train(trial, digits)
    model = TrainedModel(trial, last.outcome.weights)
    program = model.program().module()
    for n in (1, 2, 7, 100):
        assert torch.equal(program(digits.test_x[:n]), model(digits.test_x[:n]))
