"""Gaussian mechanisms, and the plugin of readings of Lee & Kifer 2020: what a record contributes, noise, epsilon."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import test_integers as integers
import test_random_bits as random_bits
import torch
from scipy import stats
from test_golden import reproducible, run

from analysis.exhibits.needs import update_sigma
from pipeline import train
from pipeline.accounting import account, privacy_tags
from pipeline.accounting.certified import certified_epsilons, event_of, with_noise
from pipeline.auditing.two_point import audit_release
from pipeline.experiment.epsilon_table import as_lines
from pipeline.experiment.experiment import load_experiment, parse_experiment
from pipeline.experiment.prices import bound_lines
from pipeline.learning.mechanisms import contribution_bound, make_mechanism, noise_deviation
from pipeline.learning.mechanisms.base import sum_outer_products
from pipeline.learning.network.stacked import make_network
from pipeline.learning.training import Training
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.promises import check_promises

FOLDER = Path(__file__).parents[2] / "experiments" / "leekifer2020"
pytestmark = pytest.mark.usefixtures("lee_kifer")
CPU = torch.device("cpu")
FIGURE4 = TrialConfig(hidden=(128, 256), activation="sigmoid", algorithm="dfa", mechanism="component", target_norm=1,
                      tau_e=0.1, feedback_norm=0.9, batch_size=128, sampler="without_replacement",
                      validation_fraction=0, noise_multiplier=6.4, epochs=300)
FIGURE2 = replace(FIGURE4, network="convnet", hidden=(384, 384), algorithm="hybrid", target_norm=1.5,
                  batch_size=512)
DENSE = TrialConfig(dataset="digits", hidden=(12, 9), algorithm="dfa", mechanism="component", target_norm=1.5,
                    tau_e=0.4, batch_size=32, epochs=2, learning_rate=0.1, alignment_batches=1)
HYBRID = replace(DENSE, network="convnet", channels=(4, 6), kernel=3, hidden=(16,), algorithm="hybrid",
                 feedback_std=0.3)
READINGS = {  # a trial, and the settings of the plugin's mechanism
    "off": (DENSE, dict(error_clip=False)),
    "off, tau_h": (DENSE, dict(error_clip=False, target_norm=0, tau_h=2.0)),
    "scale": (DENSE, dict(bounding="scale")),
    "scale bp": (DENSE, dict(bounding="scale", algorithm="bp", projector="")),
    "raw": (HYBRID, dict(conv_error="raw")),
    "conv off": (HYBRID, dict(error_clip=False)),
    "conv scale": (HYBRID, dict(bounding="scale")),
}
readings = pytest.mark.parametrize("name", READINGS)
PER_EXAMPLE = dict(mechanism="per_example", target_norm=0, clipping_norm=0.5)
OTHERS = {
    "per_example": replace(DENSE, **PER_EXAMPLE),
    "per_example, convnet": replace(HYBRID, **PER_EXAMPLE, conv_activation="relu", activation="relu"),
    "component": replace(DENSE, target_norm=0, tau_h=2.0),
    "component, hybrid": HYBRID,
    "component, convnet": replace(HYBRID, algorithm="dfa", conv_activation="relu", activation="relu"),
}
bounded = pytest.mark.parametrize("name", [*READINGS, *OTHERS])
GOLDEN = {  # of weights after two epochs in integers, which have the same bits everywhere
    "off": "efcaea0c22aa4a004d067aeb1dfcfff28cddeee54e0a3edb67dfd9ae05094376",
    "scale": "a5162b0600ddbf4046ddc54883c0b914492cdf40d3136b3f16ce3cd9bb40abeb"}


def of(trial, **changes):
    """The trial by the plugin's mechanism."""
    return replace(trial, mechanism="lee_kifer", **changes)


def trial_of(name):
    return OTHERS[name] if name in OTHERS else of(READINGS[name][0], **READINGS[name][1])


def ratio_of(trial):
    return trial.parts.mechanism.sensitivity_ratio(trial)


def test_the_norm_of_a_contribution_is_the_closed_form_of_each_reading():
    for trial, layers, convolutions in ((FIGURE4, 3, 0), (FIGURE2, 5, 2)):
        c, part = trial.target_norm, trial.target_norm / math.sqrt(layers)
        assert contribution_bound(trial) == contribution_bound(of(trial)) == c
        off = of(trial, error_clip=False)
        expected = math.sqrt(convolutions * part**2 + (layers - convolutions) * (part * math.sqrt(2) / 0.1) ** 2)
        assert contribution_bound(off) == pytest.approx(expected) and off.parts.mechanism.stated_norm(off) == c
        for same in ({"bounding": "scale"}, {"bounding": "scale", "error_clip": False}):
            assert contribution_bound(of(trial, **same)) == c
    assert ratio_of(of(FIGURE4, error_clip=False)) == pytest.approx(14.14, abs=0.01)
    assert contribution_bound(of(FIGURE2, conv_error="raw")) == 1.5
    for activation, gamma in (("relu", 1), ("sigmoid", 0.25)):
        trial = replace(FIGURE4, activation=activation)
        hidden, _, output = trial.parts.mechanism.activation_bounds(trial)
        for tau_h, factor in ((hidden, gamma * 0.9), (output, 1)):
            assert factor * 0.1 * math.sqrt(1 + tau_h**2) == pytest.approx(1 / math.sqrt(3))


def test_with_the_defaults_it_is_component_clipping(digits):
    for trial in (DENSE, HYBRID, replace(DENSE, arithmetic="integer")):
        trial = replace(trial, noise_multiplier=0.5, epochs=1)
        with reproducible():
            assert run(train(of(trial), digits)) == run(train(trial, digits))


def contributions(trial, seed):
    """u_i of records, one by one, as flat vectors [m, P], whatever made their factors: of random sizes (odd seeds: long
    throughout), and of one sign in seed 0, which makes the longest sums over positions of a convolution."""
    generator, net = torch.Generator().manual_seed(seed), make_network(trial, [seed])
    mechanism, out, rows = make_mechanism(Pack((trial,)), net, CPU), net.blank_parameters(1), []

    def drawn(n, sizes):
        size = 1e3 if seed % 2 or not seed else 10 ** torch.empty(()).uniform_(*sizes, generator=generator).item()
        x = torch.randn(1, 1, n, generator=generator)
        return size * (x if seed else torch.ones_like(x))

    for _ in range(6):
        deltas = [drawn(n, (-2, 3)) for n in net.sizes[1:]]
        activations, _ = net.forward(drawn(net.sizes[0], (0, 2)))
        convolutions = len(net.layers) - len(trial.hidden) - 1
        activations = [*activations[:convolutions + 1], *(drawn(n, (0, 2)) for n in net.sizes[convolutions + 1:-1])]
        sum_outer_products(net, *mechanism.bounded(deltas, activations), out)
        rows.append(out.flat[0].double().clone())
    return torch.stack(rows)


@pytest.mark.parametrize(("field", "value"), [("bounding", "scale"), ("conv_error", "raw"), ("error_clip", False)])
def test_a_reading_makes_another_trial_where_it_is_used_and_none_elsewhere(field, value):
    assert of(HYBRID, **{field: value}).trial_key != of(HYBRID).trial_key and field not in HYBRID.canonical()
    other = replace(HYBRID, mechanism="per_example", target_norm=0)
    assert replace(other, **{field: value}).trial_key == other.trial_key


@bounded
def test_no_record_moves_the_sum_by_more_than_the_bound_and_some_come_within_one_percent(name):
    trial = trial_of(name)
    c = contribution_bound(trial)
    longest = max(contributions(trial, seed).norm(dim=1).max().item() for seed in range(8))
    assert 0.99 * c <= longest <= c * (1 + 1e-5)


@bounded
def test_noise_is_measured_by_the_stated_norm_and_epsilon_by_what_a_record_contributes(name):
    trial = replace(trial_of(name), noise_multiplier=1.7)
    net = make_network(trial, [0])
    mechanism = make_mechanism(Pack((trial,)), net, CPU)
    activations, _ = net.forward(torch.zeros(1, 32, 64))
    stated = trial.parts.mechanism.stated_norm(trial)
    sigma = 1.7 * stated / 32
    assert noise_deviation(trial) / 32 == pytest.approx(sigma)
    draws = []
    for _ in range(80):
        out = net.blank_parameters(1)
        mechanism.update([torch.zeros(1, 32, n) for n in net.sizes[1:]], activations, out)
        draws.append([block[0].flatten().clone() for block in out.weights + out.biases])
        assert all(block.all() for block in draws[-1]), "every parameter has noise"
    assert not torch.equal(draws[0][0], draws[1][0])
    for block in zip(*draws, strict=True):
        sample = torch.cat(block)
        assert stats.kstest(sample.numpy(), "norm", (0, sigma)).pvalue > 1e-4
        variance, error = sample.square().mean().item(), math.sqrt(2 / len(sample))
        assert abs(variance / sigma**2 - 1) < 5 * error
        assert all(abs(variance / (sigma * wrong) ** 2 - 1) > 5 * error for wrong in (2 / 3, 3 / 2))
    assert event_of(trial, 1).noise_multiplier == pytest.approx(1.7 * stated / contribution_bound(trial) / 2)


@pytest.mark.parametrize("name", ["off", "raw"])
def test_an_audit_of_a_step_stays_below_what_is_certified_and_comes_close(name):
    trial = trial_of(name)
    trial = replace(trial, sampler="poisson", noise_multiplier=ratio_of(trial))
    audit = audit_release(trial, trials=600, delta=0.01)
    assert 0.35 < audit.mu_lower <= audit.mu == pytest.approx(1) and not audit.exceeds
    assert abs(audit.auc - 0.7602) < 0.05  # Phi(mu/sqrt 2), of all that is released


def parts(trial, digits, inside=False):
    """Every record's part [m, P_l] in every layer in the trial's first step, and the errors; `inside`, in the
    coordinates of the feedback space."""
    training = Training(Pack((trial,)), digits, CPU)
    indices = training.sampler.epoch()[0][:, :12]
    found, errors = [], []
    for i in range(indices.shape[1]):
        activations, logits = training.net.forward(training.train_inputs.batch(indices[:, i: i + 1]))
        error = logits.softmax(-1) - torch.nn.functional.one_hot(training.data.train_y[indices[:, i: i + 1]], 10)
        out = training.mechanism.inside if inside else training.net.blank_parameters(1)
        training.mechanism.sum.add_up(training.mechanism, training.deltas(error, activations), activations, out)
        found.append([layer[0].clone() for layer in out.layers])
        errors.append(error.norm().item())
    return [torch.stack(of_layer) for of_layer in zip(*found, strict=True)], errors


def test_convolutions_of_hybrid_learn_from_the_raw_error_and_all_else_as_before(digits):
    trial = replace(HYBRID, target_norm=30)  # no part is shortened: it is linear in e
    clipped, errors = parts(trial, digits)
    raw, _ = parts(of(trial, conv_error="raw"), digits)
    assert min(errors) > trial.tau_e
    for before, now in zip(clipped[2:], raw[2:], strict=True):
        torch.testing.assert_close(now, before)
    for before, now in zip(clipped[:2], raw[:2], strict=True):
        longer = torch.tensor([e / trial.tau_e for e in errors]).unsqueeze(1)
        torch.testing.assert_close(now, before * longer, rtol=1e-4, atol=1e-6)
    short, _ = parts(of(HYBRID, conv_error="raw"), digits)
    bound = HYBRID.target_norm / 2
    for part, unclipped in zip(short[:2], raw[:2], strict=True):
        norms = unclipped.norm(dim=1, keepdim=True)
        torch.testing.assert_close(part, unclipped * (bound / norms).clamp(max=1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["scale", "scale bp", "conv scale"])
def test_scaled_contributions_use_what_is_paid_for_and_zeros_stay(name, digits):
    trial = trial_of(name)
    scaled, _ = parts(trial, digits)
    bound = trial.target_norm / math.sqrt(len(trial.layers))
    if trial.network == "mlp":  # noise is added to the coordinates, so these are scaled
        coordinates, _ = parts(replace(trial, denoise=trial.algorithm != "bp"), digits, trial.algorithm != "bp")
        assert all(part.norm(dim=1).numpy() == pytest.approx(bound, rel=1e-4) for part in coordinates)
    plain, _ = parts(replace(trial, bounding="clip"), digits)
    for part, before in zip(scaled, plain, strict=True):
        assert part.norm(dim=1).numpy() == pytest.approx(bound, rel=1e-4)
        factor = bound / before.norm(dim=1, keepdim=True)
        assert factor.max() > 1.01
        torch.testing.assert_close(part, before * factor, rtol=1e-3, atol=1e-4)
    net = make_network(trial, [0])
    mechanism, out = make_mechanism(Pack((trial,)), net, CPU), net.blank_parameters(1)
    activations, _ = net.forward(torch.ones(1, 32, 64))
    mechanism.update([torch.zeros(1, 32, n) for n in net.sizes[1:]], activations, out)
    assert not out.flat.any()
    update = Training(Pack((replace(trial, sampler="poisson"),)), digits, CPU)
    update.step(torch.full((1, 48), -1))
    assert not update.update.flat.any()


def test_epsilon_is_of_the_true_bound_and_none_is_of_the_published_sensitivity():
    clipped, off = FIGURE4, of(FIGURE4, error_clip=False)
    assert event_of(clipped, 300).noise_multiplier == 3.2
    assert event_of(off, 300).noise_multiplier == pytest.approx(3.2 * 0.1 / math.sqrt(2))
    one_epoch = [replace(t, epochs=1, noise_multiplier=1.28) for t in (clipped, off)]
    published, honest = ({e.metric_name: e.value for e in account(t, 1)} for t in one_epoch)
    assert set(published) == {f"epsilon/certified/{name}" for name in ("pld", "rdp/improved", "rdp/classic")}
    # Below the least noise that a privacy-loss distribution is computed for, the Renyi bounds remain.
    assert set(honest) == set(published) - {"epsilon/certified/pld"}
    assert min(honest.values()) > 1000 * max(published.values())
    assert "a record contributes up to 14.14 times that, and epsilon is of what" in privacy_tags(one_epoch[1])[
        "privacy.notes"]
    assert "contributes up to" not in privacy_tags(one_epoch[0])["privacy.notes"]


@pytest.mark.parametrize("sampler", ["poisson", "without_replacement", "shuffled"])
def test_a_target_epsilon_is_met_by_the_true_bound(sampler):
    trial = of(DENSE, error_clip=False, sampler=sampler, target_epsilon=3)
    value = certified_epsilons(trial, trial.epochs)[0].value
    assert 0.98 * 3 < value <= 3
    clipped = with_noise(replace(DENSE, sampler=sampler, target_epsilon=3)).noise_multiplier
    assert with_noise(trial).noise_multiplier == pytest.approx(clipped * ratio_of(trial))


@readings
def test_a_reading_has_secret_noise_in_integers_alone(name):
    trial = trial_of(name)
    secret = dict(noise="secure", noise_multiplier=1.0)
    message = ("network: the proof of noise 'secure' is of integers" if trial.network == "convnet" else
               "arithmetic: must be 'integer' with noise 'secure' and mechanism 'lee_kifer', .* use that, or noise")
    with pytest.raises(ConfigError, match=f"^{message}") as raised:
        replace(trial, **secret)
    assert "\n" not in str(raised.value)
    if trial.network != "convnet":
        check_promises([replace(trial, **secret, arithmetic="integer", private_metrics="withheld")])


@pytest.mark.parametrize(("text", "message"), [
    ("{bounding: scale}", "bounding: is not used with mechanism 'none', got scale; use mechanism 'lee_kifer'"),
    ("{mechanism: component, bounding: scale}", "bounding: is not used with mechanism 'component', got scale"),
    ("{mechanism: lee_kifer, bounding: scale}", "bounding: is not used with target_norm 0, got scale; use target_norm"),
    ("{mechanism: lee_kifer, target_norm: 1, bounding: scale, error_clip: off}",
     "error_clip: is not used with bounding 'scale', got False; use bounding 'clip'"),
    ("{mechanism: lee_kifer, conv_error: raw}", "conv_error: is not used with algorithm 'dfa', got raw; use alg"),
    ("{mechanism: lee_kifer, algorithm: hybrid, network: convnet, target_norm: 1, error_clip: off, conv_error: raw}",
     "conv_error: is not used with error_clip 'off', got raw; use error_clip 'on'"),
    ("{mechanism: lee_kifer, error_clip: off, sampler: poisson, noise_multiplier: 1.28}",
     "noise_multiplier: must be at least 1.41 with sampler 'poisson' where a record contributes up to 14.14 times .*, "
     "got 1.28"),
    ("{mechanism: lee_kifer, error_clip: off, tau_e: 0.01, noise_multiplier: 1.28}",
     "noise_multiplier: must be at least 1.41 with sampler 'shuffled'"),
    ("{mechanism: lee_kifer, error_clip: off, feedback_norm: 1.0e+160, tau_e: 1.0e-60, noise_multiplier: 1}",
     "tau_e: must give contributions whose squared norms are numbers"),
    ("{mechanism: lee_kifer, tau_h_rule: published}", "tau_h_rule: unknown field"),
    ("{init: normal}", "init: must be one of uniform, glorot, got 'normal'"),
    ("{init_gain: 0}", "init_gain: must be > 0, got 0")])
def test_a_reading_that_nothing_makes_use_of_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError, match="^" + message) as raised:
        parse_experiment(f"base: {text}", Path("e.yaml"))
    assert "\n" not in str(raised.value)


def test_a_default_may_be_written_down_where_another_value_would_be_used():
    text = "base: {init: uniform, init_gain: 1, output_init: uniform, schedule: constant}"
    trial, = parse_experiment(text, Path("e.yaml")).trials
    assert trial.trial_key == TrialConfig().trial_key


@pytest.mark.parametrize(("init", "gain"), [("uniform", 2.5), ("glorot", 1.0)])
def test_layers_start_uniform_on_what_init_says(init, gain):
    config = replace(HYBRID, channels=(16, 24), kernel=5, hidden=(40,), init=init, init_gain=gain)
    parameters = make_network(config, [3, 4]).parameters
    fans = [(25, 16 * 25), (16 * 25, 24 * 25), (24 * 2 * 2, 40), (40, 10)]
    for weight, bias, (fan_in, fan_out) in zip(parameters.weights, parameters.biases, fans, strict=True):
        bound = gain * (1 / math.sqrt(fan_in) if init == "uniform" else math.sqrt(6 / (fan_in + fan_out)))
        sample = weight.flatten().numpy()
        assert stats.kstest(sample, "uniform", (-bound, 2 * bound)).pvalue > 1e-4
        for wrong in (bound * 2 / 3, bound * 3 / 2):
            assert stats.kstest(sample, "uniform", (-wrong, 2 * wrong)).pvalue < 1e-4
        assert bias.any() == (init == "uniform") and bias.abs().max() <= bound
    assert not torch.equal(parameters.weights[0][0], parameters.weights[0][1])
    standard = make_network(replace(config, init="uniform", init_gain=1.0), [3]).parameters
    if init == "uniform":
        torch.testing.assert_close(parameters.flat[:1], gain * standard.flat)


def test_an_output_layer_that_starts_elsewhere_leaves_init_to_the_others(digits):
    config = replace(DENSE, init="glorot", init_gain=2.0)
    nets = {start: Training(Pack((replace(config, output_init=start),)), digits, CPU).net.parameters
            for start in ("uniform", "zero", "feedback")}
    for net in nets.values():
        assert torch.equal(net.weights[0], nets["uniform"].weights[0])
    assert not nets["zero"].weights[-1].any()
    assert nets["uniform"].weights[-1].abs().max() <= 2 * math.sqrt(6 / 19)
    assert nets["feedback"].weights[-1].std().item() == pytest.approx(0.2, rel=0.1)
    keys = {replace(DENSE, init=i, init_gain=g).trial_key for i in ("uniform", "glorot") for g in (1, 2)}
    assert len(keys) == 4


def test_the_file_of_readings_has_the_papers_noise_and_tells_what_it_costs():
    experiment = load_experiment(FOLDER / "leekifer_readings.yaml")
    assert len(experiment.trials) == 18 and {t.epochs for t in experiment.trials} == {300}
    assert {round(update_sigma(t), 9) for t in experiment.trials} == {0.01, 0.05}
    assert {t.seed for t in experiment.trials} == {0, 1, 2}
    short = [replace(t, epochs=1, train_records=2000) for t in experiment.trials]
    head, *lines = bound_lines(short)
    assert head.startswith("epsilon is of the most that a record contributes")
    assert [line.split(" times")[0].strip() for line in lines] == [
        "6 trials with noise_multiplier 1.28, 1", "6 trials with noise_multiplier 6.4, 1",
        "3 trials with noise_multiplier 1.28, 14.14", "3 trials with noise_multiplier 6.4, 14.14"]
    assert not list(bound_lines([trial for trial in short if trial.mechanism != "lee_kifer"]))


@pytest.mark.parametrize("name", GOLDEN)
def test_weights_are_those_that_were_written_down(name, digits):
    trial, changes = READINGS[name]
    with reproducible():
        found = run(train(of(trial, **changes, arithmetic="integer", noise_multiplier=20.0, seed=3), digits))
    assert found["weights"] == GOLDEN[name]


INTEGERS = {"filled": {"target_norm": 0.4, "bounding": "scale"},
            "error not clipped": {"error_clip": False, "tau_e": 1.0}}


@pytest.mark.parametrize("check", [
    integers.test_what_a_record_contributes_depends_on_no_other,
    integers.test_a_trial_in_a_pack_is_the_same_as_alone], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", INTEGERS)
def test_contributions_in_integers_are_as_those_of_component_clipping(name, check, digits):
    check(of(integers.OF_FACTORS, **INTEGERS[name]), digits)


@pytest.mark.parametrize("changes", [*INTEGERS.values(), {**INTEGERS["filled"], "input_norm": 4.0}])
def test_one_record_of_random_bits_moves_the_integer_sum_by_at_most_c(changes, digits, monkeypatch):
    trial = random_bits.of_bits(of(integers.OF_FACTORS, **changes).given)
    largest = [max(random_bits.sizes(trial, digits, seed, monkeypatch)) for seed in range(4)]
    assert Fraction(9 if trial.bounding == "scale" else 2, 10) < largest[0] and max(largest) <= 1


def test_account_prints_the_steps_of_training_also_where_the_noise_is_of_a_smaller_norm(digits):
    """A reading keeps the noise of a clipped error while the bound grows by 14."""
    text = ("base: {dataset: digits, algorithm: dfa, hidden: [24, 16], mechanism: lee_kifer, error_clip: false, "
            "sampler: without_replacement, noise_multiplier: 30, arithmetic: integer}")
    experiment = parse_experiment(text, Path("FILE.yaml"))
    (trial,), lines = experiment.trials, "\n".join(as_lines(experiment))
    mechanism = integers.made(trial, digits).mechanism
    [of_trial], [bound] = mechanism.sum.steps, mechanism.bounds
    assert ratio_of(trial) > 10 and "layer 1: inputs 2^-13, learning signals" in lines
    for number, step in enumerate(of_trial, start=1):
        assert f", contributions {step.contribution / bound:.3g} C" in next(
            line for line in lines.splitlines() if f"layer {number}: " in line)
