"""BP with per-example clipping is DP-SGD: updates and epsilon of Opacus, and of the page that shows a whole step."""

import dataclasses
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline import TrialConfig, account
from pipeline.accounting.certified import certified_epsilons
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.randomness import GaussianNoise
from pipeline.learning.training import Training
from pipeline.trials.packs import Pack

# Opacus is imported in the tests: it takes seconds, which every process would pay that only collects them.
pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = TrialConfig(dataset="digits", hidden=(24, 16), batch_size=64, algorithm="bp", mechanism="per_example",
                     sampler="poisson", clipping_norm=2.4, learning_rate=0.2, epochs=1)


def opacus_twin(training, steps, clipping_norm):
    """A torch network with the trial's weights, wrapped for Opacus, and its DP-SGD optimizer without noise.

    `steps` are its modules by name of torch.nn, with their arguments.
    """
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    modules = [getattr(torch.nn, name)(*arguments) for name, *arguments in steps]
    ours, learning = training.net.parameters, [module for module in modules if hasattr(module, "weight")]
    for module, w, b in zip(learning, ours.weights, ours.biases, strict=True):
        module.weight.data, module.bias.data = w[0].view(module.weight.shape).clone(), b[0].clone()
    model = GradSampleModule(torch.nn.Sequential(*modules))
    optimizer = DPOptimizer(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), noise_multiplier=0.0,
                            max_grad_norm=clipping_norm, expected_batch_size=64)
    return model, optimizer


CONVOLUTION = (("Conv2d", 1, 4, 3, 1, 1), ("MaxPool2d", 2), ("Tanh",),
               ("Conv2d", 4, 6, 3, 1, 1), ("MaxPool2d", 2), ("Tanh",))


@pytest.mark.parametrize(("config", "steps"), [
    (CONFIG, [("Flatten",), ("Linear", 64, 24), ("Tanh",), ("Linear", 24, 16), ("Tanh",), ("Linear", 16, 10)]),
    (dataclasses.replace(CONFIG, network="convnet", channels=(4, 6), kernel=3, hidden=(16,), activation="relu",
                         clipping_norm=1.6),
     [*CONVOLUTION, ("Flatten",), ("Linear", 24, 16), ("ReLU",), ("Linear", 16, 10)])], ids=["mlp", "convnet"])
def test_twenty_steps_equal_those_of_opacus(config, steps, digits):
    """With norms of which some are clipped and some are not."""
    training = Training(Pack((config,)), digits, torch.device("cpu"))
    model, optimizer = opacus_twin(training, steps, config.clipping_norm)
    for indices in training.sampler.epoch()[:20]:
        training.step(indices)
        present = indices[0][indices[0] >= 0]
        optimizer.zero_grad()
        logits = model(digits.train_x[present].view(-1, 1, 8, 8).float() / 8 - 1)
        torch.nn.functional.cross_entropy(logits, digits.train_y[present], reduction="mean").backward()
        optimizer.step()
    ours = training.net.parameters
    theirs = [p.detach() for p in model.parameters()]
    for mine, other in zip([p[0] for pair in zip(ours.weights, ours.biases, strict=True) for p in pair], theirs,
                           strict=True):
        torch.testing.assert_close(mine.view(other.shape), other, rtol=1e-4, atol=1e-6)


def test_epsilon_equals_that_of_opacus():
    from opacus.accountants import PRVAccountant

    config = dataclasses.replace(CONFIG, dataset="fashion_mnist", batch_size=540, noise_multiplier=1.1)
    value = certified_epsilons(config, 5)[0].value
    accountant = PRVAccountant()
    accountant.history = [(1.1, 540 / 54_000, 5 * config.steps_per_epoch)]
    assert accountant.get_epsilon(delta=1e-5, eps_error=0.005) == pytest.approx(value, abs=0.006)


# --- the page that shows a whole private step

PATH = Path(__file__).parents[2] / "experiments" / "one_step.py"


def layers_of(parameters):
    return [(weight[0].clone(), bias[0].clone()) for weight, bias in zip(*parameters, strict=True)]


@pytest.mark.parametrize("algorithm", ["bp", "dfa"])
def test_steps_and_epsilon_of_the_page_are_those_of_this_package(algorithm, digits):
    page, cpu = SimpleNamespace(**runpy.run_path(str(PATH))), torch.device("cpu")
    trial = TrialConfig(
        dataset="digits", validation_fraction=0.0, hidden=page.SIZES[1:-1], algorithm=algorithm, batch_size=page.M,
        mechanism="per_example", sampler="poisson", noise_multiplier=page.Z, clipping_norm=page.C, delta=page.DELTA,
        learning_rate=page.RATE, momentum=0.0, epochs=page.EPOCHS)
    training = Training(Pack((trial,)), digits, cpu)
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
    if algorithm == "dfa":
        assert trial.split_sizes[0] == page.N
        spent = page.epsilon(page.EPOCHS * (page.N // page.M))
        assert spent == pytest.approx(account(trial)[0].value, rel=1e-3)
