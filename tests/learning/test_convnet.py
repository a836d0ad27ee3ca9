"""Trials with convolutions: bounds that no record exceeds, certificates, packs, and the real training loop."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import torch
from flat import train
from test_gaussian import updates_of_a_batch_and_of_the_same_in_a_larger_tensor

from analysis.exhibits.catalogue import mismatch
from pipeline.accounting.certified import certified_epsilons, event_of
from pipeline.auditing.release import audit_release
from pipeline.auditing.row_space import row_space_audit
from pipeline.learning.mechanisms import contribution_bound, make_mechanism
from pipeline.learning.mechanisms.base import sum_outer_products
from pipeline.learning.mechanisms.gaussian import activation_bounds
from pipeline.learning.network.network import make_network
from pipeline.learning.training import Training
from pipeline.tracking.artifacts import write_artifacts
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

CPU = torch.device("cpu")
ALGORITHMS = ("bp", "dfa", "tdfa", "pdfa", "hybrid")
PLAIN = TrialConfig(dataset="digits", network="convnet", channels=(4, 6), kernel=3, hidden=(16,), algorithm="hybrid",
                    batch_size=32, epochs=2, learning_rate=0.1, feedback_std=0.3)
CLIPPED = dataclasses.replace(PLAIN, mechanism="per_example", clipping_norm=0.5)
PARTS = dataclasses.replace(PLAIN, mechanism="component", target_norm=1.5, tau_e=0.4)
MECHANISMS = {"none": PLAIN, "per_example": CLIPPED, "component": PARTS}


def of(config, algorithm, **changes):
    return dataclasses.replace(config, algorithm=algorithm, projector="", **changes)


@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_and_mechanism_trains_every_layer(algorithm, mechanism, digits, tmp_path):
    config = of(MECHANISMS[mechanism], algorithm, train_records=320, noise_multiplier=0.5 * (mechanism != "none"))
    start = make_network(config, [config.seed]).parameters
    first, last = train(Pack((config,)), digits)
    assert last.outcome.status == "finished"
    assert {f"alignment/layer_{k}" for k in (1, 2, 3, 4)} <= set(first.metrics)
    assert ("epsilon/certified/gdp" in last.metrics) == (mechanism != "none")
    for k, shape in enumerate([(4, 1, 3, 3), (6, 4, 3, 3), (16, 24), (10, 16)]):
        weight = last.outcome.weights[f"layer_{k + 1}.weight"]
        assert weight.shape == shape
        assert not np.array_equal(weight.ravel(), start.weights[k][0].flatten().numpy())
    write_artifacts(tmp_path, config, last.outcome)
    assert (tmp_path / "weights.safetensors").stat().st_size > 4 * sum(w.size for w in last.outcome.weights.values())


@pytest.mark.parametrize("algorithm", ["bp", "hybrid"])
def test_convnets_learn_digits_and_hybrid_convolutions_follow_the_gradient(algorithm, digits):
    config = of(PLAIN, algorithm, channels=(8, 16), hidden=(32,), optimizer="adam", learning_rate=0.003, epochs=5)
    last = list(train(Pack((config,)), digits))[-1]
    assert last.metrics["test/accuracy"] > 0.85
    assert last.metrics["alignment/layer_4"] > 0.999
    if algorithm == "bp":
        assert all(last.metrics[f"alignment/layer_{k}"] > 0.999 for k in (1, 2, 3))
    else:
        assert 0.3 < last.metrics["alignment/layer_1"] < 0.999


def contributions(config, step_on, scale=1.0):
    """u_i of records, one by one, as flat vectors [m, P]: what the mechanism lets pass of each of them."""
    net = make_network(config, [config.seed])
    net.parameters.flat.mul_(scale)
    mechanism = make_mechanism(Pack((config,)), net, CPU)
    out, rows = net.blank_parameters(1), []
    x, deltas = step_on(net)
    for i in range(x.shape[1]):
        activations, _ = net.forward(x[:, i: i + 1])
        sum_outer_products(net, *mechanism.bounded([d[:, i: i + 1] for d in deltas], activations), out)
        rows.append(out.flat[0].double().clone())
    return torch.stack(rows)


def random_step(seed):
    """Records and deltas of a random size, whatever feedback would have made them."""
    def draw(net):
        generator = torch.Generator().manual_seed(seed)
        size = 10 ** torch.empty(()).uniform_(-2, 3, generator=generator).item()
        deltas = [size * torch.randn(1, 8, n, generator=generator) for n in net.sizes[1:]]
        return torch.randn(1, 8, net.sizes[0], generator=generator) * (1, 30)[seed % 2], deltas
    return draw


def coherent_step(net):
    """Two records whose every position pulls alike, one against the other: the longest contributions there are."""
    deltas = [torch.full((1, 2, n), 1e3) * torch.tensor([1.0, -1.0]).view(1, 2, 1) for n in net.sizes[1:]]
    return torch.full((1, 2, net.sizes[0]), 1e3), deltas


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("config", [CLIPPED, PARTS, dataclasses.replace(PARTS, algorithm="dfa"),
                                    dataclasses.replace(PARTS, network="mlp", algorithm="dfa", hidden=(12, 9))],
                         ids=["per_example", "component hybrid", "component dfa", "component mlp"])
def test_no_neighbour_moves_the_sum_by_more_than_the_sensitivity_and_some_come_close(config, activation):
    config = dataclasses.replace(config, activation=activation, conv_activation=activation)
    c = contribution_bound(config)
    assert c == {"per_example": config.clipping_norm, "component": config.target_norm}[config.mechanism]
    lengths, distances = [], []
    for step, scale in [(random_step(seed), (1, 5)[seed % 2]) for seed in range(10)] + [(coherent_step, 30)]:
        u = contributions(config, step, scale)
        lengths.append(u.norm(dim=1).max().item())
        distances.append((u[:, None] - u[None]).norm(dim=2).max().item())
    assert 0.9 * c <= max(lengths) <= c * (1 + 1e-5)
    assert 2 * 0.9 * c <= max(distances) <= 2 * c * (1 + 1e-5)


@pytest.mark.parametrize("config", [CLIPPED, PARTS], ids=["per_example", "component"])
def test_a_record_optimised_against_the_bound_stays_below_it(config, digits):
    """Search, in growing steps, for the record that would contribute most if nothing were clipped; then clip."""
    training = Training(Pack((config,)), digits, CPU)
    worst = torch.rand(1, 1, 64)
    best = 0.0
    for size in np.geomspace(1, 1e4, 40):
        candidates = torch.cat([worst, worst + 0.1 * size * torch.randn(1, 31, 64)], dim=1)
        activations, logits = training.net.forward(candidates)
        error = training.mechanism.error(logits.softmax(-1) - torch.eye(10)[logits.argmin(-1)])
        deltas = training.feedback.deltas(training.feedback.signals(error), training.net, activations,
                                          training.mechanism.derivative)
        squares = sum(layer.squared_norms(d, h) for layer, d, h in
                      zip(training.net.layers, deltas, activations, strict=True))
        worst = candidates[:, squares[0, :, 0].argmax()].unsqueeze(1)
        activations, _ = training.net.forward(candidates)
        deltas, activations = training.mechanism.bounded(deltas, activations)
        squares = sum(layer.squared_norms(d, h) for layer, d, h in
                      zip(training.net.layers, deltas, activations, strict=True))
        best = max(best, squares.max().item() ** 0.5)
    bound = contribution_bound(config)
    assert 0.3 * bound < best <= bound * (1 + 1e-4)


def test_every_layer_gets_an_equal_part_of_the_papers_sensitivity():
    config = TrialConfig(network="convnet", algorithm="hybrid", activation="sigmoid", hidden=(384, 384),
                         mechanism="component", target_norm=1.5, tau_e=0.1, feedback_norm=0.9)
    part = 1.5 / math.sqrt(5)
    for gamma_beta, tau_h in zip((0.25 * 0.9, 0.25 * 0.9, 1), activation_bounds(config), strict=True):
        assert gamma_beta * 0.1 * math.sqrt(1 + tau_h**2) == pytest.approx(part)
    # S = 3 under replace-one, sigma = 0.01 on the mean of 512 records: the paper's z, by which its table is computed.
    config = dataclasses.replace(config, batch_size=512, sampler="without_replacement", validation_fraction=0,
                                 noise_multiplier=0.01 * 512 / 1.5, epochs=50)
    event = event_of(config, 50)
    assert event.noise_multiplier == pytest.approx(0.01 * 512 / 3)
    assert (event.N, event.m, event.steps) == (60_000, 512, 50 * 117)
    classic, = (e for e in certified_epsilons(config, 50) if e.variant == "rdp/classic")
    assert classic.value == pytest.approx(4.43, abs=0.01)


@pytest.mark.parametrize("config", [CLIPPED, PARTS], ids=["per_example", "component"])
def test_noise_of_the_asked_size_lies_on_every_weight_and_bias(config):
    config = dataclasses.replace(config, noise_multiplier=1.7)
    net = make_network(config, [0])
    mechanism = make_mechanism(Pack((config,)), net, CPU)
    activations, _ = net.forward(torch.zeros(1, 32, 64))
    blocks = None
    for _ in range(200):
        out = net.blank_parameters(1)
        mechanism.update([torch.zeros(1, 32, n) for n in net.sizes[1:]], activations, out)
        drawn = [b.flatten().clone() for b in out.weights + out.biases]
        blocks = drawn if blocks is None else [torch.cat(pair) for pair in zip(blocks, drawn, strict=True)]
    for block in blocks:
        assert block.std().item() == pytest.approx(1.7 * contribution_bound(config) / 32, rel=0.15)


@pytest.mark.parametrize(("algorithm", "config"), [
    ("bp", PLAIN), ("dfa", CLIPPED), ("tdfa", PARTS), ("pdfa", CLIPPED), ("hybrid", PLAIN), ("hybrid", PARTS)])
def test_a_trials_result_does_not_depend_on_its_pack(algorithm, config, digits):
    trials = [of(config, algorithm, seed=k, channels=(16, 16), kernel=5, hidden=(16,),
                 noise_multiplier=0.5 * k * (config is not PLAIN),
                 target_norm=(1.5 + k) * (config is PARTS)) for k in range(3)]
    weights = []
    for company in (trials[1:2], trials, trials[::-1]):
        training = Training(Pack(tuple(company)), digits, CPU)
        for indices in training.sampler.epoch()[:6]:
            training.step(indices)
        weights.append(training.net.parameters.flat[company.index(trials[1])])
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])


def test_absent_records_contribute_nothing_and_an_empty_batch_releases_noise(digits):
    config = dataclasses.replace(CLIPPED, sampler="poisson")
    updates = updates_of_a_batch_and_of_the_same_in_a_larger_tensor(config, digits)
    torch.testing.assert_close(*updates, rtol=1e-4, atol=1e-7)
    assert updates[0].norm() > 0
    training = Training(Pack((dataclasses.replace(config, noise_multiplier=1.0),)), digits, CPU)
    training.step(torch.full((1, 48), -1))
    assert training.update.weights[2].std().item() == pytest.approx(0.5 / 32, rel=0.2)


@pytest.mark.filterwarnings("ignore")
def test_ten_steps_of_back_propagation_equal_those_of_opacus(digits):
    config = of(CLIPPED, "bp", batch_size=64, sampler="poisson", learning_rate=0.2, activation="relu")
    training = Training(Pack((config,)), digits, CPU)
    modules = [torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.MaxPool2d(2), torch.nn.Tanh(),
               torch.nn.Conv2d(4, 6, 3, padding=1), torch.nn.MaxPool2d(2), torch.nn.Tanh(), torch.nn.Flatten(),
               torch.nn.Linear(24, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10)]
    ours = training.net.parameters
    learning = [module for module in modules if hasattr(module, "weight")]
    for module, w, b in zip(learning, ours.weights, ours.biases, strict=True):
        module.weight.data, module.bias.data = w[0].view(module.weight.shape).clone(), b[0].clone()
    model = GradSampleModule(torch.nn.Sequential(*modules))
    optimizer = DPOptimizer(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), noise_multiplier=0.0,
                            max_grad_norm=0.5, expected_batch_size=64)
    for indices in training.sampler.epoch()[:10]:
        training.step(indices)
        present = indices[0][indices[0] >= 0]
        optimizer.zero_grad()
        logits = model(digits.train_x[present].view(-1, 1, 8, 8).float() / 8 - 1)
        torch.nn.functional.cross_entropy(logits, digits.train_y[present]).backward()
        optimizer.step()
    theirs = [p.detach() for p in model.parameters()]
    mine = [p[0] for pair in zip(ours.weights, ours.biases, strict=True) for p in pair]
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.view(other.shape), other, rtol=1e-4, atol=1e-5)


def test_audited_mu_of_a_step_comes_close_to_what_is_certified_and_stays_below():
    """That of mechanism `component` is audited in test_readings.py."""
    audit = audit_release(dataclasses.replace(CLIPPED, sampler="poisson", noise_multiplier=1.0), trials=600, delta=0.01)
    assert 0.35 < audit.mu_lower <= audit.mu == 1 and not audit.exceeds
    assert abs(audit.auc - 0.7602) < 0.05  # Phi(mu/sqrt 2), of all that is released


@pytest.mark.parametrize("config", [CLIPPED, PARTS], ids=["per_example", "component"])
def test_an_audit_catches_convolutions_that_are_not_clipped(config):
    config = dataclasses.replace(config, sampler="poisson", noise_multiplier=1.0)
    mechanism = make_mechanism(Pack((config,)), make_network(config, [config.seed]), CPU)
    bounded = mechanism.bounded

    def forgetful(deltas, activations):
        clipped, activations = bounded(deltas, activations)
        return [3 * d for d in clipped[:2]] + clipped[2:], activations

    mechanism.bounded = forgetful
    audit = audit_release(config, trials=250, delta=0.01, mechanism=mechanism)
    assert audit.exceeds and audit.auc > 0.85


def test_row_space_attack_is_for_fully_connected_layers_and_needs_held_out_records(digits):
    config = dataclasses.replace(PLAIN, batch_size=8)
    assert row_space_audit(config, digits, layer=3).auc > 0.99
    with pytest.raises(ValueError, match="layer: must be fully connected .* got 2"):
        row_space_audit(config, digits, layer=2)
    with pytest.raises(ValueError, match="validation_fraction: must be > 0"):
        row_space_audit(dataclasses.replace(config, validation_fraction=0), digits, layer=3)


def test_without_validation_all_records_train_and_nothing_is_said_of_validation(digits):
    config = dataclasses.replace(PLAIN, validation_fraction=0, epochs=2, train_records=640)
    first, record = train(Pack((config,)), digits)
    assert all("validation/accuracy" not in r.metrics and "test/accuracy" in r.metrics for r in (first, record))
    assert "test/worst_class_accuracy" not in first.metrics and first.outcome is None
    assert {row.split for row in record.outcome.per_class} == {"test"}
    training = Training(Pack((config, dataclasses.replace(config, seed=1))), digits, CPU)
    first, second = (set(training.sampler.epoch()[:, r].flatten().tolist()) for r in (0, 1))
    assert len(first) == len(second) == 640 and first != second
    assert "validation_fraction 0" in mismatch("figure2", [dataclasses.replace(config, algorithm="bp", projector="")])


def test_a_subset_of_training_records_is_split_like_all_of_them(digits):
    config = dataclasses.replace(PLAIN, train_records=400, seed=3)
    training = Training(Pack((config,)), digits, CPU)
    trained = {i for _ in range(12) for i in training.sampler.epoch().flatten().tolist()}
    held_out = set(training.validation[0].tolist())
    assert (len(trained), len(held_out)) == (360, 40) and not trained & held_out
    event = event_of(dataclasses.replace(config, mechanism="per_example", sampler="poisson", noise_multiplier=1.0), 1)
    assert event.sampling_rate == 32 / 360 and event.steps == 11


def test_target_norm_is_refused_where_it_leaves_nothing_for_activations():
    with pytest.raises(ConfigError, match="target_norm: must be > 0.2, which"):  # sqrt(4 layers) tau_e
        dataclasses.replace(PARTS, tau_e=0.1, target_norm=0.2)
    assert min(activation_bounds(dataclasses.replace(PARTS, tau_e=0.1, target_norm=0.201))) > 0
