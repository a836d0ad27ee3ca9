"""Gaussian mechanisms: exact norms, bounds that no record exceeds, and noise of the asked size."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.func import functional_call, grad, vmap

from pipeline.learning.feedback.algorithms import BackPropagation
from pipeline.learning.feedback.losses import CrossEntropy
from pipeline.learning.mechanisms import contribution_bound, make_mechanism
from pipeline.learning.mechanisms.gaussian import Component, PerExample, contribution_norms
from pipeline.learning.network.network import Mlp, Parameters, make_network
from pipeline.learning.training import Training
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack

output_error = CrossEntropy(TrialConfig())

CPU = torch.device("cpu")
SIZES, M = (64, 6, 8, 10), 32
DPSGD = TrialConfig(dataset="digits", hidden=(6, 8), batch_size=M, algorithm="bp", mechanism="per_example",
                    clipping_norm=0.5, epochs=2, learning_rate=0.1)
LEE_KIFER = dataclasses.replace(DPSGD, algorithm="dfa", projector="", mechanism="component", tau_e=0.4, tau_h=2.0)


def torch_net(net, r=0):
    """The same network as a torch.nn.Sequential, in float64."""
    layers = []
    for k, (w, b) in enumerate(zip(net.parameters.weights, net.parameters.biases, strict=True)):
        linear = torch.nn.Linear(w.shape[2], w.shape[1], dtype=torch.float64)
        linear.weight.data, linear.bias.data = w[r].clone(), b[r].clone()
        layers += [linear] if k == len(SIZES) - 2 else [linear, torch.nn.Tanh()]
    return torch.nn.Sequential(*layers)


def test_per_example_clipping_of_bp_is_dp_sgd():
    """Against per-example gradients that torch.func materialises: the same norms, the same clipped sum."""
    net = Mlp(SIZES, "tanh", [3], dtype=torch.float64)
    x = torch.randn(1, M, SIZES[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.randint(10, (1, M), generator=torch.Generator().manual_seed(1))
    activations, logits = net.forward(x)
    bp = BackPropagation()
    deltas = bp.deltas(bp.signals(output_error(logits, y)[0]), net, activations, net.derivative)

    model = torch_net(net)

    def loss(parameters, record, label):
        return torch.nn.functional.cross_entropy(functional_call(model, parameters, record[None]), label[None])

    parameters = {k: v.detach() for k, v in model.named_parameters()}
    per_example = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x[0], y[0])
    norms = torch.stack([g.flatten(1).square().sum(1) for g in per_example.values()]).sum(0).sqrt()
    torch.testing.assert_close(contribution_norms(net, deltas, activations)[0, :, 0], norms)

    c = norms.median().item()
    mechanism = PerExample([dataclasses.replace(DPSGD, clipping_norm=c)], net, CPU)
    out = Parameters(SIZES, 1, dtype=torch.float64)
    mechanism.update(deltas, activations, out)
    factor = (c / norms).clamp(max=1)
    assert 0 < (factor < 1).sum() < M, "some records are clipped and some are not"
    for layer in range(3):
        for ours, name in ((out.weights[layer], f"{2 * layer}.weight"), (out.biases[layer], f"{2 * layer}.bias")):
            clipped = torch.einsum("i,i...->...", factor, per_example[name]) / M
            torch.testing.assert_close(ours[0], clipped, rtol=1e-5, atol=1e-9)  # C is kept in float32


def random_contributions(mechanism, trial, kind, seed):
    """Contributions of m random records, one by one, as flat vectors [m, P], and the mechanism's own sum."""
    generator = torch.Generator().manual_seed(seed)
    size = 10 ** torch.empty(()).uniform_(-2, 3, generator=generator).item()
    deltas = [size * torch.randn(1, M, n, generator=generator) for n in SIZES[1:]]
    activations = [torch.randn(1, M, n, generator=generator) * (1 if kind == "plain" else 30) for n in SIZES[:-1]]
    deltas, activations = mechanism.bounded(deltas, activations)
    rows = [torch.cat([torch.einsum("io,ij->ioj", d[0].double(), h[0].double()).flatten(1), d[0].double()], dim=1)
            for d, h in zip(deltas, activations, strict=True)]
    return torch.cat(rows, dim=1)


@pytest.mark.parametrize("trial", [DPSGD, LEE_KIFER], ids=["per_example", "component"])
def test_no_neighbour_moves_the_sum_by_more_than_the_sensitivity_and_some_come_within_one_percent(trial):
    net = Mlp(SIZES, "tanh", [0])
    mechanism = (PerExample if trial is DPSGD else Component)([trial], net, CPU)
    c = contribution_bound(trial)
    moved, replaced = [], []
    for seed in range(40):
        u = random_contributions(mechanism, trial, ("plain", "large")[seed % 2], seed)
        moved.append(u.norm(dim=1).max().item())
        replaced.append((u[:, None] - u[None]).norm(dim=2).max().item())
    # The worst neighbours: full-length contributions of opposite sign, e = +-tau_e along the feedback's top direction.
    worst = [torch.full((1, 2, n), 1e3) * torch.tensor([1.0, -1.0]).view(1, 2, 1) for n in SIZES[1:]]
    deltas, activations = mechanism.bounded(worst, [torch.full((1, 2, n), 1e3) for n in SIZES[:-1]])
    u = torch.cat([torch.cat([torch.einsum("io,ij->ioj", d[0], h[0]).flatten(1), d[0]], dim=1)
                   for d, h in zip(deltas, activations, strict=True)], dim=1)
    moved.append(u.norm(dim=1).max().item())
    replaced.append((u[0] - u[1]).norm().item())
    assert 0.99 * c <= max(moved) <= c * (1 + 1e-5)
    assert 0.99 * 2 * c <= max(replaced) <= 2 * c * (1 + 1e-5)


def test_component_bound_is_the_papers_sensitivity():
    equal = dataclasses.replace(LEE_KIFER, feedback_norm=1.0)
    # Delta <= 2 gamma beta tau_e sqrt((1 + tau_h^2) L)/m for the mean, replace-one; gamma = beta = 1 for all L layers.
    paper = 2 * 1 * 1 * 0.4 * math.sqrt((1 + 2.0**2) * 3) / M
    assert 2 * contribution_bound(equal) / M == pytest.approx(paper)
    assert contribution_bound(dataclasses.replace(equal, activation="sigmoid")) == pytest.approx(
        0.4 * math.sqrt((2 / 16 + 1) * 5))


def test_component_clipping_is_algorithm_1_written_out(digits):
    training = Training(Pack((LEE_KIFER,)), digits, CPU)
    matrices = training.feedback.projector.matrices[0].double().numpy().T
    blocks = np.split(matrices, [6])
    for block in blocks:
        assert np.linalg.norm(block, 2) == pytest.approx(0.9, rel=1e-5)
    weights = [w[0].double().numpy().copy() for w in training.net.parameters.weights]
    biases = [b[0].double().numpy().copy() for b in training.net.parameters.biases]
    indices = training.sampler.epoch()[0]
    training.step(indices)
    expected_w, expected_b = [np.zeros_like(w) for w in weights], [np.zeros_like(b) for b in biases]

    def clip(v, c):
        return min(c, np.linalg.norm(v)) * v / np.linalg.norm(v)

    for i in indices[0].tolist():
        h = [digits.train_x[i].double().numpy() / 8 - 1]
        z = []
        for w, b in zip(weights, biases, strict=True):
            z.append(w @ h[-1] + b)
            h.append(np.tanh(z[-1]))
        p = np.exp(z[-1] - z[-1].max())
        e = clip(p / p.sum() - np.eye(10)[digits.train_y[i]], 0.4)
        deltas = [(blocks[0] @ e) * (1 - h[1]**2), (blocks[1] @ e) * (1 - h[2]**2), e]
        for layer, delta in enumerate(deltas):
            expected_w[layer] += np.outer(delta, clip(h[layer], 2.0)) / M
            expected_b[layer] += delta / M
    for layer in range(3):
        np.testing.assert_allclose(training.update.weights[layer][0], expected_w[layer], rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(training.update.biases[layer][0], expected_b[layer], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("trial", [DPSGD, LEE_KIFER], ids=["per_example", "component"])
def test_released_noise_has_standard_deviation_z_c_over_m_on_every_parameter(trial):
    trial = dataclasses.replace(trial, noise_multiplier=1.7)
    net = Mlp(SIZES, "tanh", [0])
    mechanism = (PerExample if trial.mechanism == "per_example" else Component)([trial], net, CPU)
    nothing = [torch.zeros(1, M, n) for n in SIZES[1:]], [torch.zeros(1, M, n) for n in SIZES[:-1]]
    draws = []
    for _ in range(500):
        out = Parameters(SIZES, 1)
        mechanism.update(*nothing, out)
        draws.append([block[0].flatten().clone() for block in out.weights + out.biases])
        assert out.flat.ne(0).sum() == sum(block[0].numel() for block in out.weights + out.biases)
    sigma = 1.7 * contribution_bound(trial) / M
    for block in zip(*draws, strict=True):
        sample = torch.cat(block).numpy()
        assert stats.kstest(sample, "norm", (0, sigma)).pvalue > 1e-4
        for wrong in (sigma * 2 / 3, sigma * 3 / 2):
            assert stats.kstest(sample, "norm", (0, wrong)).pvalue < 1e-4
    assert not torch.equal(draws[0][0], draws[1][0])


@pytest.mark.parametrize("algorithm", ["bp", "dfa", "tdfa", "pdfa"])
@pytest.mark.parametrize("base", [DPSGD, LEE_KIFER], ids=["per_example", "component"])
def test_poisson_trials_do_not_depend_on_their_pack(algorithm, base, digits):
    trials = [dataclasses.replace(base, algorithm=algorithm, projector="", sampler="poisson", sigma=0.05 * k,
                                  noise_multiplier=0.5, hidden=(48, 32), seed=k) for k in range(3)]
    weights = []
    for company in (trials[1:2], trials):
        training = Training(Pack(tuple(company)), digits, CPU)
        training.run_epoch()
        weights.append(training.net.parameters.flat[company.index(trials[1])])
    torch.testing.assert_close(*weights, rtol=0, atol=1e-6)


def test_an_empty_poisson_batch_still_releases_noise(digits):
    training = Training(Pack((dataclasses.replace(DPSGD, sampler="poisson", noise_multiplier=1.0),)), digits, CPU)
    loss, _ = training.step(torch.full((1, 48), -1))
    assert loss.item() == 0
    assert training.update.weights[0].std().item() == pytest.approx(0.5 / M, rel=0.2)


@pytest.mark.parametrize("algorithm", ["bp", "dfa", "tdfa", "pdfa"])
@pytest.mark.parametrize("base", [DPSGD, LEE_KIFER], ids=["per_example", "component"])
def test_every_layer_learns_without_noise(algorithm, base, digits):
    training = Training(Pack((dataclasses.replace(base, algorithm=algorithm, projector=""),)), digits, CPU)
    training.step(training.sampler.epoch()[0])
    assert all(weight.norm() > 0 for weight in training.update.weights)


def updates_of_a_batch_and_of_the_same_in_a_larger_tensor(config, digits):
    present, updates = torch.tensor([[5, 9, 40]]), []
    for indices in (present, torch.nn.functional.pad(present, (0, 13), value=-1)):
        training = Training(Pack((config,)), digits, CPU)
        training.step(indices)
        updates.append(training.update.flat.clone())
    return updates


def test_absent_records_contribute_nothing(digits):
    config = dataclasses.replace(DPSGD, sampler="poisson", algorithm="pdfa", projector="", sigma=0.2)
    updates = updates_of_a_batch_and_of_the_same_in_a_larger_tensor(config, digits)
    torch.testing.assert_close(*updates, rtol=1e-4, atol=1e-7)
    assert updates[0].norm() > 0


@pytest.mark.parametrize("mechanism", ["per_example", "component"])
def test_a_record_that_overflows_contributes_nothing_and_leaves_the_others_alone(mechanism):
    """Error zero, activations whose squares overflow: 0 inf = nan in the norm would tell that the record took part."""
    trial = TrialConfig(dataset="digits", hidden=SIZES[1:-1], mechanism=mechanism, batch_size=4)
    net = Mlp(SIZES, "relu", [0])
    made = trial.parts.mechanism.load()((trial,), net, torch.device("cpu"))
    deltas = [torch.randn(1, 4, n) for n in SIZES[1:]]
    activations = [torch.randn(1, 4, n) for n in SIZES[:-1]]
    alone, among = (net.blank_parameters(1, "cpu") for _ in range(2))
    kept = torch.tensor([1.0, 1.0, 0.0, 1.0]).view(1, 4, 1)
    made.update([d * kept for d in deltas], [h * kept for h in activations], alone)
    for d, h in zip(deltas, activations, strict=True):
        d[:, 2], h[:, 2] = 0, math.inf
    made.update(deltas, activations, among)
    assert torch.isfinite(among.flat).all() and torch.equal(among.flat, alone.flat)


@pytest.fixture
def precisions():
    """The settings of torch that the test may change, as they were."""
    backends = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.mkldnn.matmul,
                torch.backends.mkldnn.conv]
    before = [backend.fp32_precision for backend in backends]
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    for backend, value in zip(backends, before, strict=True):
        backend.fp32_precision = value


@pytest.mark.parametrize(("change", "setting", "value"), [
    (lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True), "cuda.matmul", "tf32"),
    (lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"), "cuda.matmul", "tf32"),
    (lambda: torch.set_float32_matmul_precision("high"), "cuda.matmul", "tf32"),
    (lambda: setattr(torch.backends.cudnn, "allow_tf32", True), "cudnn.conv", "tf32"),
    (lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"), "mkldnn.matmul", "bf16"),
    (lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "tf32"), "mkldnn.matmul", "tf32"),
    (lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "bf16"), "mkldnn.conv", "bf16")])
def test_no_mechanism_is_certified_where_torch_rounds_factors(change, setting, value, precisions):
    def made(mechanism):
        trial = TrialConfig(dataset="digits", hidden=(8,), mechanism=mechanism, noise_multiplier=1.0)
        return make_mechanism(Pack((trial,)), make_network(trial, [0]), torch.device("cpu"))

    assert made("per_example") and made("component")
    change()
    for mechanism in ("per_example", "component"):
        with pytest.raises(ConfigError, match=f"^torch.backends.{setting}.fp32_precision: must be 'ieee' with "
                                              f"mechanism '{mechanism}', .* got '{value}'"):
            made(mechanism)
    assert made("none")
