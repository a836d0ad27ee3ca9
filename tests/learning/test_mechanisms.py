"""Mechanisms written out per record, their bounds, which no record exceeds, and their noise against the asked sigma."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from mlp import Mlp
from scipy import stats

from pipeline.learning.mechanisms import make_mechanism
from pipeline.learning.mechanisms.base import MECHANISMS
from pipeline.learning.mechanisms.photonic import PhotonicStep
from pipeline.learning.network.stacked import make_network
from pipeline.learning.training import Training
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack

CPU = torch.device("cpu")
SIZES, M = (64, 6, 8, 10), 32
BASE = TrialConfig(dataset="digits", hidden=(6, 8), batch_size=M, mechanism="photonic", tau_f=0.7, tau_h=1.3)


def make(trial):
    return PhotonicStep((trial,), Mlp(SIZES, "tanh", [trial.seed]), CPU)


def shortened(v, c):
    """Rows of v, none of them longer than c, in float64."""
    norms = v.double().norm(dim=-1, keepdim=True)
    return v.double() * norms.clamp(max=c) / norms


def test_signals_are_shortened_with_and_without_noise_and_a_bare_output_layer_is_an_explicit_choice():
    mechanism = make(BASE)
    generator = torch.Generator().manual_seed(0)
    signals = [torch.randn(1, M, n, generator=generator) for n in SIZES[1:]]
    noisy = make(dataclasses.replace(BASE, sigma=0.1))
    noisy.optics.noise.next = lambda: torch.zeros(1, M, sum(SIZES[1:]))
    for v, below_noise in zip(mechanism.perturb(signals), noisy.perturb(signals), strict=True):
        assert torch.linalg.vector_norm(v, dim=-1).max() <= BASE.tau_f * (1 + 1e-6)
        torch.testing.assert_close(below_noise, v)
    released = make(dataclasses.replace(BASE, sigma=0.1, output_noise=False)).perturb(signals)
    assert released[-1] is signals[-1] and not torch.equal(released[0], signals[0])


def noise_samples(config, draws=40):
    """What perturb adds to signals of zero, per layer."""
    mechanism = make(config)
    widths = SIZES[-1:] if config.algorithm == "bp" else SIZES[1:]
    samples = [[] for _ in widths]
    for _ in range(draws):
        for sample, v in zip(samples, mechanism.perturb([torch.zeros(1, M, n) for n in widths]), strict=True):
            sample.append(v.clone().flatten())
    return [torch.cat(sample).numpy() for sample in samples]


@pytest.mark.parametrize("algorithm", ["bp", "dfa"])
def test_every_layer_gets_noise_of_sigma_and_another_sigma_is_rejected(algorithm):
    sigma = 0.3
    layers = noise_samples(dataclasses.replace(BASE, algorithm=algorithm, projector="", sigma=sigma))
    assert len(layers) == (1 if algorithm == "bp" else 3)
    for sample in layers:
        assert stats.kstest(sample, "norm", (0, sigma)).pvalue > 1e-3
        for wrong in (sigma * 2 / 3, sigma * 3 / 2):
            assert stats.kstest(sample, "norm", (0, wrong)).pvalue < 1e-9
    if algorithm == "dfa":
        n = min(map(len, layers))
        assert np.abs(np.corrcoef([sample[:n] for sample in layers]) - np.eye(3)).max() < 0.05


# --- Gaussian mechanisms

DPSGD = TrialConfig(dataset="digits", hidden=(6, 8), batch_size=M, algorithm="bp", mechanism="per_example",
                    clipping_norm=0.5, epochs=2, learning_rate=0.1)
LEE_KIFER = dataclasses.replace(DPSGD, algorithm="dfa", projector="", mechanism="component", tau_e=0.4, tau_h=2.0)


def test_component_clipping_is_algorithm_1_written_out(digits):
    training = Training(Pack((LEE_KIFER,)), digits, CPU)
    blocks = training.feedback.projector.matrices[0].double().split((6, 8), dim=1)
    for block in blocks:
        assert torch.linalg.matrix_norm(block, 2).item() == pytest.approx(0.9, rel=1e-5)
    layers = [(w[0].double().clone(), b[0].double().clone()) for w, b in
              zip(training.net.parameters.weights, training.net.parameters.biases, strict=True)]
    indices = training.sampler.epoch()[0]
    training.step(indices)
    h = [digits.train_x[indices[0]].double() / 8 - 1]
    for weight, bias in layers:
        z = h[-1] @ weight.T + bias
        h.append(torch.tanh(z))
    p = torch.exp(z)
    e = shortened(p / p.sum(dim=1, keepdim=True) - torch.eye(10)[digits.train_y[indices[0]]], 0.4)
    for layer, delta in enumerate([(e @ blocks[0]) * (1 - h[1]**2), (e @ blocks[1]) * (1 - h[2]**2), e]):
        weight, bias = (group[layer][0].double() for group in (training.update.weights, training.update.biases))
        torch.testing.assert_close(weight, delta.T @ shortened(h[layer], 2.0) / M, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(bias, delta.mean(dim=0), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("changes", [
    {"algorithm": "pdfa", "sigma": 0.2},
    {"algorithm": "hybrid", "network": "convnet", "channels": (4, 6), "kernel": 3, "hidden": (16,)}], ids=str)
def test_absent_records_contribute_nothing(changes, digits):
    """And an empty batch still releases noise."""
    config, updates = dataclasses.replace(DPSGD, sampler="poisson", projector="", **changes), []
    present = torch.tensor([[5, 9, 40]])
    for indices in (present, torch.nn.functional.pad(present, (0, 13), value=-1)):
        training = Training(Pack((config,)), digits, CPU)
        training.step(indices)
        updates.append(training.update.flat.clone())
    torch.testing.assert_close(*updates, rtol=1e-4, atol=1e-7)
    assert updates[0].norm() > 0
    training = Training(Pack((dataclasses.replace(config, noise_multiplier=1.0),)), digits, CPU)
    loss, _ = training.step(torch.full((1, 48), -1))
    assert loss.item() == 0
    assert training.update.flat.std().item() == pytest.approx(0.5 / M, rel=0.2)


@pytest.mark.parametrize("mechanism", ["per_example", "component"])
def test_a_record_that_overflows_contributes_nothing_and_leaves_the_others_alone(mechanism):
    """Error zero, activations whose squares overflow: 0 inf = nan in the norm would tell that the record took part."""
    trial = TrialConfig(dataset="digits", hidden=SIZES[1:-1], mechanism=mechanism, batch_size=4)
    net = Mlp(SIZES, "relu", [0])
    made = MECHANISMS[trial.parts.mechanism]((trial,), net, torch.device("cpu"))
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
