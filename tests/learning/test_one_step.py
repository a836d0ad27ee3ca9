"""The page that shows a whole private step does what this package does, with the same noise."""

import importlib.util
from pathlib import Path

import pytest
import torch

from pipeline import TrialConfig, account
from pipeline.learning.data.dataset import load
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.randomness import GaussianNoise
from pipeline.learning.training import Training
from pipeline.trials.packs import Pack

PATH = Path(__file__).parents[2] / "experiments" / "one_step.py"


@pytest.fixture
def page():
    spec = importlib.util.spec_from_file_location("one_step", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trial_of(page, algorithm):
    return TrialConfig(
        dataset="digits", validation_fraction=0.0, hidden=page.SIZES[1:-1], algorithm=algorithm, batch_size=page.M,
        mechanism="per_example", sampler="poisson", noise_multiplier=page.Z, clipping_norm=page.C, delta=page.DELTA,
        learning_rate=page.RATE, momentum=0.0, epochs=page.EPOCHS)


def layers_of(parameters):
    return [(weight[0].clone(), bias[0].clone()) for weight, bias in zip(*parameters, strict=True)]


@pytest.mark.parametrize("algorithm", ["bp", "dfa"])
def test_steps_are_those_of_this_package(page, algorithm):
    trial, cpu = trial_of(page, algorithm), torch.device("cpu")
    training = Training(Pack((trial,)), load("digits"), cpu)
    net, batches = training.net, training.sampler.epoch()
    drawn = GaussianNoise([trial.seed], [page.Z * page.C], net.parameters.flat.shape[1:], cpu, stream="release")
    layers = layers_of((net.parameters.weights, net.parameters.biases))
    widths = list(page.SIZES[1:-1])
    matrices = list(training.feedback.matrices[0].split(widths, dim=1)) if algorithm == "dfa" else None
    for indices in batches[:3]:
        records = indices[indices != ABSENT]
        page.step(layers, training.train_inputs.batch(records), training.data.train_y[records],
                  layers_of(net.parameters.views(drawn.next())), matrices)
        training.step(indices)
    for own, other in zip(layers, layers_of((net.parameters.weights, net.parameters.biases)), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_its_epsilon_is_the_certified_one(page):
    trial = trial_of(page, "dfa")
    assert trial.split_sizes[0] == page.N
    certified = account(trial)[0].value
    assert page.epsilon(page.EPOCHS * (page.N // page.M)) == pytest.approx(certified, rel=1e-3)
