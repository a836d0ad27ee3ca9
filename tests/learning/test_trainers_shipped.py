"""The trainers of experiments/trainers do what they state."""

import dataclasses
import importlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import PoissonSampledDpEvent

from analysis.exhibits.selection import standing_of
from pipeline import TrialConfig, account, privacy_tags
from pipeline import train as trained
from pipeline.accounting.certified import with_noise
from pipeline.experiment.plugins import load_plugins
from pipeline.learning.data.dataset import load
from pipeline.learning.handed import TrialContext
from pipeline.learning.harness import Harness
from pipeline.learning.own_code import TrainerError, TrainerFailed
from pipeline.trials.fields import ConfigError
from pipeline.trials.packs import Pack

# Opacus warns of its own hooks; it is imported by the trainers, and only when they train.
pytestmark = pytest.mark.filterwarnings("ignore")

CLIPPING = ("opacus_cnn", "ghost")
NAMES = (*CLIPPING, "output_perturbation")
BASE = dict(dataset="digits", inputs="unit", delta=1e-5, batch_size=64)
OWN = {"opacus_cnn": dict(tempered_kernel=4, tempered_stride=1, learning_rate=2.0, clipping_norm=0.1),
       "ghost": dict(learning_rate=1.0, clipping_norm=0.5),
       "output_perturbation": dict(epochs=1, ridge=0.1)}


@pytest.fixture(autouse=True)
def modules(extensions):
    """By name."""
    load_plugins(NAMES, Path(__file__).parents[2] / "experiments" / "trainers")
    return {name: importlib.import_module(name) for name in NAMES}


def trial_of(name, **settings):
    return TrialConfig(**{"trainer": name, "epochs": 2, **BASE, **OWN[name], **settings})


def records_of(trial, n=None):
    """As the harness hands them: n training records and labels, or all of them."""
    harness = Harness(Pack((trial,)), load("digits"), torch.device("cpu"))
    return harness._fetch(torch.from_numpy(harness.records[0][:n]))


def last(trial, records, labels):
    """The parameters [P] of the model that a trainer yields last, and those that it starts from."""
    handed = TrialContext(with_noise(trial), None)
    torch.manual_seed(0)
    *_, epoch = trial.parts.trainer.works(handed, records, labels, torch.device("cpu"))
    return torch.cat([p.detach().flatten().double() for p in epoch.model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epsilon", "epochs", "least"), [
    ("opacus_cnn", 8, 1, 0.2), ("ghost", 8, 3, 0.7), ("output_perturbation", 20, 1, 0.4)])
def test_it_learns_digits_within_its_target(name, epsilon, epochs, least):
    trial = trial_of(name, target_epsilon=epsilon, epochs=epochs)
    *_, record = trained(trial)
    assert record.metrics["test/accuracy"] > least
    assert 0.95 * epsilon < record.metrics["epsilon/stated/pld"] <= epsilon
    tags = privacy_tags(trial)
    assert (tags["privacy.relation"], tags["privacy.certified"]) == ("add/remove", "stated")
    assert {e.kind for e in account(trial)} == {"stated"}


def is_normal(values, scale):
    """Whether values [n] may be n draws of N(0, scale^2): their mean square is within five standard deviations."""
    return abs(float(values.square().mean()) / scale**2 - 1) < 5 * math.sqrt(2 / len(values))


@pytest.mark.parametrize("name", CLIPPING)
@pytest.mark.parametrize("n", [0, None])
def test_noise_is_added_once_in_a_step_also_to_an_empty_batch(name, n, modules, monkeypatch):
    monkeypatch.setattr(modules[name], "AT_ONCE", 300)  # so that a batch of 1,293 records is one of five parts
    trial = trial_of(name, batch_size=1293, momentum=0, epochs=1)
    assert trial.sampling_rate == 1 and trial.steps_per_epoch == 1
    records, labels = records_of(trial, n)
    noisy, less, plain = (last(dataclasses.replace(trial, noise_multiplier=z), records, labels) for z in (1.5, 1.2, 0))
    stated = trial.learning_rate * 1.5 * trial.clipping_norm / trial.batch_size
    assert is_normal(noisy - plain, stated)
    assert not is_normal(less - plain, stated)  # 0.8 of it
    assert not is_normal(math.sqrt(5) * (noisy - plain), stated)  # once for each part


@pytest.mark.parametrize("name", CLIPPING)
def test_a_record_moves_an_update_by_at_most_the_clipping_norm(name):
    trial = trial_of(name, batch_size=1293, momentum=0, epochs=1, clipping_norm=0.01)
    records, labels = records_of(trial, 20)
    together = last(trial, records, labels)
    for k in (0, 7):
        others = [i for i in range(20) if i != k]
        moved = (together - last(trial, records[others], labels[others])).norm()
        bound = trial.learning_rate * trial.clipping_norm / trial.batch_size
        assert 0.98 * bound < moved <= 1.001 * bound


@pytest.mark.parametrize(("name", "makes"), [("opacus_cnn", "network"), ("ghost", "small")])
def test_batches_are_drawn_at_the_rate_of_the_public_number_of_records(name, makes, modules, monkeypatch):
    make, sizes = getattr(modules[name], makes), []

    def counting(*given):
        model = make(*given)
        model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        return model

    monkeypatch.setattr(modules[name], makes, counting)
    trial = trial_of(name, epochs=3)
    last(trial, *records_of(trial, 640))  # half of those that the trial has
    q, n = trial.batch_size / 1293, len(sizes)
    assert n == 3 * trial.steps_per_epoch
    assert abs(np.mean(sizes) - 640 * q) < 5 * math.sqrt(640 * q * (1 - q) / n)
    assert np.var(sizes) > 0.4 * 640 * q * (1 - q)  # and no batches of a fixed size
    event = trial.parts.trainer.event(trial)
    assert isinstance(event, PoissonSampledDpEvent) and event.sampling_probability == q


@pytest.mark.parametrize("name", CLIPPING)
def test_a_trial_goes_on_with_the_same_bits(name):
    trial = trial_of(name, noise_multiplier=1.0, epochs=2)
    whole, first, second = (Harness(Pack((trial,)), load("digits"), torch.device("cpu")) for _ in range(3))
    whole.run_epoch(), first.run_epoch()
    second.restore(*first.capture())
    (expected,), (record,) = whole.run_epoch(), second.run_epoch()
    assert record.outcome.weights.keys() == expected.outcome.weights.keys()
    assert all(np.array_equal(record.outcome.weights[key], expected.outcome.weights[key])
               for key in expected.outcome.weights)
    assert record.metrics["test/accuracy"] == expected.metrics["test/accuracy"]


def distance(module, records, labels, classes, ridge, tolerance):
    """How far apart the minimisers of every class [K] are with and without the last record."""
    y = 2.0 * torch.nn.functional.one_hot(labels, classes).double() - 1
    with_it, without = (module.minimisers(records[:n], y[:n], ridge, tolerance) for n in (None, -1))
    return (with_it - without).norm(dim=1)


def test_minimisers_of_neighbours_are_within_the_sensitivity(modules):
    module = modules["output_perturbation"]
    trial = trial_of("output_perturbation")
    generator = torch.Generator().manual_seed(3)
    stated = module.sensitivity(trial) * module.strength(trial)  # at a strength of 1
    assert stated == 1 + 2 * trial.tolerance and module.strength(trial) == 0.1 * 1293
    for strength in (0.02, 1.0, 30.0):
        for n in (1, 2, 40):
            records = module.scaled(torch.randn(n, 6, generator=generator, dtype=torch.float64))
            labels = torch.randint(0, 3, (n,), generator=generator)
            assert records.norm(dim=1).max() <= 1 + 1e-12
            assert distance(module, records, labels, 3, strength, trial.tolerance).max() <= stated / strength
    y = 2.0 * torch.nn.functional.one_hot(labels, 3).double() - 1
    exact, rough = (module.minimisers(records, y, 2.0, tau) for tau in (1e-9, 0.5))
    assert 1e-3 < (rough - exact).norm(dim=1).max() <= 0.5 / 2.0, "it is as near as its tolerance says"
    # Many records agree on a direction in which each has little weight: one record against it counts nearly in full.
    side = torch.tensor([0.03, math.sqrt(1 - 0.03**2)], dtype=torch.float64)
    mirrored = side * torch.tensor([1, -1])
    records = torch.stack([*[side] * 388, *[mirrored] * 388, torch.tensor([1, 0])])
    labels = torch.tensor([0] * 776 + [1])
    worst = distance(module, records, labels, 2, 1.0, trial.tolerance).max()
    assert stated / 2 < 0.75 < worst <= stated


def test_output_perturbation_adds_the_noise_that_it_states(modules):
    module, dimension = modules["output_perturbation"], 65
    lengths = module.noise(torch.zeros(2000, dimension), 0.7, torch.Generator().manual_seed(0)).norm(dim=1)
    error = 5 * 0.7 * math.sqrt(dimension / 2000)  # of the mean of a Gamma distribution with shape d
    assert abs(float(lengths.mean()) - 0.7 * dimension) < error < 0.2 * 0.7 * dimension
    assert abs(float(lengths.var()) / (0.49 * dimension) - 1) < 0.2
    trial = with_noise(trial_of("output_perturbation", target_epsilon=5))
    records, labels = records_of(trial)
    noise = last(trial, records, labels) - last(dataclasses.replace(trial, perturbation=0.0), records, labels)
    length = noise.view(10, dimension).norm(dim=1).mean() / (module.sensitivity(trial) * dimension)
    assert abs(float(length) / trial.perturbation - 1) < 0.15
    event = module.event(trial)
    share = event.event.noise_parameter / 2  # of the wrong answer
    assert math.log((1 - share) / share) == pytest.approx(1 / trial.perturbation) and event.count == 10
    assert 10 / trial.perturbation == pytest.approx(5, rel=0.01)


def test_ghost_clipping_trains_the_module_that_is_named_and_what_cannot_be_trained_is_refused(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(
        "import torch\n"
        "def wide(shape, classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 77), torch.nn.Linear(77, classes))\n"
        "def normalised(shape, classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, classes))\n")
    monkeypatch.syspath_prepend(tmp_path)
    *_, record = trained(trial_of("ghost", epochs=1, noise_multiplier=1.0, ghost_module="my_networks:wide"))
    assert record.outcome.weights["1.weight"].shape == (77, 64)
    for name, settings, message in (
            ("ghost", {"ghost_module": "my_networks:normalised", "noise_multiplier": 1.0}, "BatchNorm"),
            ("ghost", {"ghost_module": "os.system"}, r"ghost_module: must be 'module:attribute', or empty, got 'os"),
            ("opacus_cnn", {"tempered_kernel": 8, "tempered_stride": 2},
             r"tempered_kernel: must leave a pixel of images of 8 x 8, got 8"),
            ("output_perturbation", {"epochs": 3}, r"epochs: must be 1 with trainer 'output_perturbation'.*got 3")):
        with pytest.raises((ConfigError, TrainerError, TrainerFailed), match=message):
            list(trained(trial_of(name, **{"epochs": 1, **settings})))


def test_an_epsilon_that_covers_a_stated_trial_says_so():
    certified = TrialConfig(dataset="digits", mechanism="per_example", sampler="poisson", noise_multiplier=1.0)
    assert standing_of([certified]) == "simulated"
    assert standing_of([certified, trial_of("ghost", target_epsilon=2)]) == "stated, simulated"
