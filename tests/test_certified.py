"""The event of a trial is what the trial runs; its epsilon, its noise for a target, and what attacks see of it."""

import dataclasses
import os

import pytest
import torch

from pipeline.accounting import account, privacy_tags
from pipeline.accounting.certified import certified, event_of, with_noise
from pipeline.attacks import gaussian_log_ratio, row_space_audit, two_point_step_audit
from pipeline.config import TrialConfig
from pipeline.data import load
from pipeline.mechanisms.gaussian import PerExample
from pipeline.networks import Mlp, Parameters
from pipeline.packs import Pack
from pipeline.training import Training, train

CPU = torch.device("cpu")
BASE = TrialConfig(dataset="digits", hidden=(24, 16), batch_size=32, algorithm="bp", mechanism="per_example",
                   sampler="poisson", noise_multiplier=1.0, clipping_norm=0.5, epochs=2, learning_rate=0.1)


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.mark.parametrize(("sampler", "relation", "z"), [("poisson", "add/remove", 1.0),
                                                        ("without_replacement", "replace-one", 0.5),
                                                        ("shuffled", "replace-one", 0.5)])
def test_the_event_is_derived_from_what_runs(sampler, relation, z, digits):
    config = dataclasses.replace(BASE, sampler=sampler)
    event = event_of(config, 2)
    training = Training(Pack((config,)), digits, CPU)
    batches = training.sampler.epoch()
    assert (event.sampler, event.relation, event.noise_multiplier) == (sampler, relation, z)
    assert event.steps == 2 * len(batches) and event.epochs == 2
    if sampler == "poisson":
        sizes = (batches >= 0).sum(dim=-1).float()
        assert abs(sizes.mean() - event.q * 1293) < 4 * (32 / len(batches)) ** 0.5
    if sampler == "without_replacement":
        assert (event.m, event.N) == (batches.shape[-1], 1293)
    # The noise on the sum is what the event says of it, over the sensitivity: C, or 2 C.
    deviation = training.mechanism.source.sigmas[0]
    assert deviation / {"add/remove": 0.5, "replace-one": 1.0}[relation] == pytest.approx(event.noise_multiplier)


@pytest.mark.parametrize("sampler", ["poisson", "without_replacement", "shuffled"])
def test_a_target_epsilon_is_met_from_below_and_within_one_percent(sampler):
    config = dataclasses.replace(BASE, sampler=sampler, noise_multiplier=0, target_epsilon=3.0)
    value = certified(config, config.epochs)[0].value
    assert 0.99 * 3 <= value <= 3
    assert with_noise(config).noise_multiplier > 0 and with_noise(BASE) == BASE
    assert certified(config, 1)[0].value < value


def test_training_logs_the_certified_epsilon_of_every_epoch_and_its_labels(digits):
    config = dataclasses.replace(BASE, noise_multiplier=0, target_epsilon=3.0)
    first, last = train(Pack((config,)), digits)
    assert 0.99 * 3 <= last.metrics["epsilon/certified/pld"] <= 3
    assert first.metrics["epsilon/certified/pld"] < last.metrics["epsilon/certified/pld"]
    assert first.tags["privacy.certified"] == "true" and first.tags["privacy.relation"] == "add/remove"
    assert "simulated" in first.tags["privacy.notes"]


def test_without_noise_nothing_is_certified_and_nothing_is_logged(digits):
    config = dataclasses.replace(BASE, noise_multiplier=0)
    record = list(train(Pack((config,)), digits))[0]
    assert not [name for name in record.metrics if name.startswith("epsilon/")]
    assert record.tags["privacy.certified"] == "false" and "no noise" in record.tags["privacy.notes"]


def test_photonic_trials_are_never_certified():
    config = TrialConfig(mechanism="photonic", sigma=1.0)
    assert privacy_tags(config)["privacy.certified"] == "false"
    assert {e.kind for e in account(config, 1)} == {"claimed", "column", "label"}


@pytest.mark.parametrize("mechanism", ["per_example", "component"])
@pytest.mark.parametrize("algorithm", ["bp", "dfa", "tdfa", "pdfa"])
def test_row_space_attack_is_blind_to_certified_updates(algorithm, mechanism, digits):
    base = dataclasses.replace(BASE, algorithm=algorithm, projector="", mechanism=mechanism, sigma=0.1,
                               tau_h=4.0, tau_e=0.5, batch_size=16)
    certified_audit = row_space_audit(base, digits, steps=20)
    assert abs(certified_audit.auc - 0.5) < 0.1  # 20 batches of 16: the AUC's standard deviation is 0.017
    bare = row_space_audit(dataclasses.replace(base, noise_multiplier=0), digits, steps=3)
    assert bare.auc > 0.99, "the same attack finds the members where there is no noise"


@pytest.mark.skipif(not os.environ.get("PHOTONIC_DATA"), reason="PHOTONIC_DATA is not set")
def test_row_space_attack_on_fashion_mnist_tells_the_papers_mechanism_from_the_certified_one():
    data = load("fashion_mnist")
    for sigma in (0.1, 1.0, 10.0):
        assert row_space_audit(TrialConfig(algorithm="pdfa", mechanism="photonic", sigma=sigma), data).auc == 1
    config = TrialConfig(algorithm="pdfa", mechanism="per_example", sigma=0.1, noise_multiplier=1.0, sampler="poisson")
    assert abs(row_space_audit(config, data, steps=3).auc - 0.5) < 0.05


def step_audit(noise_multiplier, claimed, trials=4000):
    """Two-point audit of the real mechanism on the worst neighbours: one record of full length, or none."""
    sizes = (3, 2, 2)
    net = Mlp(sizes, "tanh", [0])
    config = dataclasses.replace(BASE, hidden=(2,), noise_multiplier=noise_multiplier)
    mechanism = PerExample([config], net, CPU)
    out, mean = Parameters(sizes, 1), Parameters(sizes, 1)
    h = [torch.ones(1, 1, n) for n in sizes[:-1]]
    record = [torch.full((1, 1, n), 100.0) for n in sizes[1:]], h
    nothing = [torch.zeros(1, 1, n) for n in sizes[1:]], h
    quiet = PerExample([dataclasses.replace(config, noise_multiplier=0)], net, CPU)
    quiet.update(*record, mean)
    sigma = claimed * config.clipping_norm / config.batch_size

    def step(present):
        mechanism.update(*(record if present else nothing), out)
        return gaussian_log_ratio(out.flat[0].numpy(), torch.zeros_like(out.flat[0]).numpy(), mean.flat[0].numpy(),
                                  sigma)

    return two_point_step_audit(step, delta=0.01, trials=trials)


def test_audited_epsilon_of_a_step_stays_below_certified_and_catches_half_the_noise():
    mu = 1 / 1.0  # one Gaussian release of sensitivity C and noise z C is (1/z)-GDP
    assert 0.6 * mu < step_audit(1.0, claimed=1.0).mu_lower <= mu
    assert step_audit(0.5, claimed=1.0).mu_lower > 1.2 * mu
