"""BP with per-example clipping is DP-SGD: the same updates and the same epsilon as Opacus."""

import dataclasses

import pytest
import torch

from pipeline.accounting.certified import certified_epsilons
from pipeline.learning.data.dataset import load
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

# Opacus is imported in the tests: it takes seconds, which every process would pay that only collects them.
pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = TrialConfig(dataset="digits", hidden=(24, 16), batch_size=64, algorithm="bp", mechanism="per_example",
                     sampler="poisson", clipping_norm=0.8, learning_rate=0.2, epochs=1)


def opacus_twin(training):
    """A torch network with the trial's weights, wrapped for Opacus, and its DP-SGD optimizer without noise."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    layers = []
    for w, b in zip(training.net.parameters.weights, training.net.parameters.biases, strict=True):
        linear = torch.nn.Linear(w.shape[2], w.shape[1])
        linear.weight.data, linear.bias.data = w[0].clone(), b[0].clone()
        layers += [linear, torch.nn.Tanh()]
    model = GradSampleModule(torch.nn.Sequential(*layers[:-1]))
    optimizer = DPOptimizer(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), noise_multiplier=0.0,
                            max_grad_norm=0.8, expected_batch_size=64)
    return model, optimizer


def test_twenty_steps_equal_those_of_opacus():
    data = load("digits")
    training = Training(Pack((CONFIG,)), data, torch.device("cpu"))
    model, optimizer = opacus_twin(training)
    for indices in training.sampler.epoch()[:20]:
        training.step(indices)
        present = indices[0][indices[0] >= 0]
        optimizer.zero_grad()
        logits = model(data.train_x[present].float() / 8 - 1)
        torch.nn.functional.cross_entropy(logits, data.train_y[present], reduction="mean").backward()
        optimizer.step()
    ours = training.net.parameters
    theirs = [p.detach() for p in model.parameters()]
    for mine, other in zip([p[0] for pair in zip(ours.weights, ours.biases, strict=True) for p in pair], theirs,
                           strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_epsilon_equals_that_of_opacus():
    from opacus.accountants import PRVAccountant

    config = dataclasses.replace(CONFIG, dataset="fashion_mnist", batch_size=540, noise_multiplier=1.1)
    value = certified_epsilons(config, 5)[0].value
    accountant = PRVAccountant()
    accountant.history = [(1.1, 540 / 54_000, 5 * config.steps_per_epoch)]
    assert accountant.get_epsilon(delta=1e-5, eps_error=0.005) == pytest.approx(value, abs=0.006)
