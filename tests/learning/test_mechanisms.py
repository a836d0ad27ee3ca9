"""The photonic mechanism against Eq. 8 written out per record, and its noise against the asked sigma."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from mlp import Mlp
from scipy import stats

from pipeline.learning.mechanisms.photonic import Photonic, offset_and_clip
from pipeline.learning.network.network import Parameters
from pipeline.trials.config import TrialConfig

CPU = torch.device("cpu")
SIZES, M = (64, 6, 8, 10), 32
BASE = TrialConfig(dataset="digits", hidden=(6, 8), batch_size=M, mechanism="photonic", tau_f=0.7, tau_h=1.3)


def make(*trials, activation="tanh"):
    net = Mlp(SIZES, activation, [t.seed for t in trials])
    return net, Photonic(trials, net, CPU)


def random_step(net, seed=0):
    """Activations of random inputs and random signals of every layer."""
    generator = torch.Generator().manual_seed(seed)
    r = net.parameters.flat.shape[0]
    activations, _ = net.forward(torch.randn(r, M, SIZES[0], generator=generator))
    return activations, [torch.randn(r, M, n, generator=generator) for n in SIZES[1:]]


@pytest.mark.parametrize(("nu", "c"), [(torch.full((1, 1, 1), 0.1), torch.full((1, 1, 1), 1.0)), (0.1, 1.0)])
def test_offset_and_clip_and_its_floor(nu, c):
    h = torch.tensor([[[-3.0, -0.5, -0.1, 0.0, 0.2, 3.0]]])
    torch.testing.assert_close(offset_and_clip(h, nu, c), torch.tensor([[[-1.0, -0.4, 0.0, 0.1, 0.3, 1.0]]]))
    torch.testing.assert_close(offset_and_clip(h, nu, c, floor=True),
                               torch.tensor([[[-1.0, -0.5, -0.1, 0.1, 0.2, 1.0]]]))


@pytest.mark.parametrize("changes", [{}, {"tau_h_min": 0.4}, {"tau_h_min": 0.4, "activation_floor": True},
                                     {"gamma_min": 0.9}])
def test_update_without_noise_is_equation_8_written_out(changes):
    config = dataclasses.replace(BASE, **changes)
    net, mechanism = make(config)
    activations, signals = random_step(net)
    released = mechanism.perturb([s.clone() for s in signals])
    deltas = [v * mechanism.derivative(h, layer) for layer, (v, h) in
              enumerate(zip(released[:-1], activations[1:], strict=True), start=1)] + released[-1:]
    ours = Parameters(SIZES, 1)
    mechanism.update(deltas, activations, ours)
    for layer in range(3):
        n_in = SIZES[layer]
        c, nu = config.tau_h / math.sqrt(n_in), config.tau_h_min / math.sqrt(n_in)
        expected_w, expected_b = np.zeros((SIZES[layer + 1], n_in)), np.zeros(SIZES[layer + 1])
        for i in range(M):
            h = activations[layer][0, i].double().numpy()
            if config.activation_floor:
                clipped = np.where(h >= 0, 1, -1) * np.minimum(np.maximum(abs(h), nu), c)
            else:
                clipped = np.sign(h + nu) * np.minimum(abs(h + nu), c)
            v = signals[layer][0, i].double().numpy()
            v = min(config.tau_f, np.linalg.norm(v)) * v / np.linalg.norm(v)
            if layer < 2:
                v = v * np.maximum(1 - activations[layer + 1][0, i].double().numpy() ** 2, config.gamma_min)
            expected_w += np.outer(v, clipped) / M
            expected_b += v / M
        np.testing.assert_allclose(ours.weights[layer][0], expected_w, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(ours.biases[layer][0], expected_b, rtol=2e-5, atol=1e-6)


def test_bounds_that_the_accounting_relies_on_hold():
    """And a bare output layer is an explicit choice."""
    config = dataclasses.replace(BASE, tau_h_min=0.4, activation_floor=True, gamma_min=0.2)
    net, mechanism = make(config)
    activations, signals = random_step(net)
    for v in mechanism.perturb(signals):
        assert torch.linalg.vector_norm(v, dim=-1).max() <= config.tau_f * (1 + 1e-6)
    for clipped, (nu, c) in zip(mechanism.clipped(activations), mechanism.input_bounds, strict=True):
        assert clipped.abs().min() >= nu and clipped.abs().max() <= c
        assert config.tau_h_min <= torch.linalg.vector_norm(clipped, dim=-1).min() * (1 + 1e-6)
        assert torch.linalg.vector_norm(clipped, dim=-1).max() <= config.tau_h * (1 + 1e-6)
    assert mechanism.derivative(activations[1], 1).min() >= np.float32(0.2)
    released = make(dataclasses.replace(BASE, sigma=0.1, output_noise=False))[1].perturb(signals)
    assert released[-1] is signals[-1] and not torch.equal(released[0], signals[0])


def noise_samples(config, draws=40):
    """What perturb adds to signals of zero, per layer."""
    _net, mechanism = make(config)
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
