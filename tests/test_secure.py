"""Secure noise: of the right distribution, never twice the same, and leaving nothing behind to draw it again from."""

import dataclasses
import logging
import random

import numpy as np
import pytest
import torch
from scipy import stats

from pipeline import randomness
from pipeline.config import TrialConfig
from pipeline.data import load
from pipeline.packs import Pack
from pipeline.randomness import GaussianNoise, fill_with_secret_noise, secret_generator
from pipeline.sampling import SAMPLERS, BatchSampler
from pipeline.training import Training, train

CPU = torch.device("cpu")
BASE = TrialConfig(dataset="digits", hidden=(16, 16), batch_size=32, epochs=2, learning_rate=0.1, noise="secure")
TRIALS = {
    "photonic": dataclasses.replace(BASE, mechanism="photonic", sigma=0.1),
    "per_example": dataclasses.replace(BASE, mechanism="per_example", sampler="poisson", noise_multiplier=1.0),
    "component": dataclasses.replace(BASE, algorithm="pdfa", projector="", mechanism="component", sigma=0.1,
                                     noise_multiplier=1.0, sampler="without_replacement"),
}
EVERY = pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def secret_noise(n, sigma):
    out = torch.full((n,), torch.nan)
    fill_with_secret_noise(out, sigma)
    return out.numpy()


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_secret_noise_has_its_sigma_and_another_is_rejected(factor):
    sample = secret_noise(100_001, 0.3) / 0.3
    assert stats.kstest(sample, "norm").pvalue > 1e-6
    assert stats.kstest(sample * factor, "norm").pvalue < 1e-12
    assert abs((sample**2).mean() - 1) < 6 * (2 / len(sample)) ** 0.5
    assert abs((sample**4).mean() - 3) < 6 * (96 / len(sample)) ** 0.5


def test_secret_noise_is_independent_between_elements():
    sample, other = secret_noise(100_000, 1.0), secret_noise(100_000, 1.0)
    halves = np.stack([sample[:50_000], sample[50_000:]])  # sine and cosine of one angle
    for pair in (halves, halves**2, np.stack([sample[1:], sample[:-1]]), np.stack([sample, other])):
        assert abs(np.corrcoef(pair)[0, 1]) < 6 / 50_000**0.5


@pytest.mark.parametrize("n", [1, 2, 7])
def test_secret_noise_fills_every_element(n):
    assert np.isfinite(secret_noise(n, 1.0)).all() and len(set(secret_noise(n, 1.0))) == n


def test_extreme_bits_give_finite_noise(monkeypatch):
    class Constant:
        def __init__(self, byte):
            self.byte = byte

        def encryptor(self):
            return self

        def update(self, zeros):
            return bytes([self.byte]) * len(zeros)

    for byte, largest in ((0x00, 6.67), (0xFF, 1e-3)):
        monkeypatch.setattr(randomness, "Cipher", lambda *_, byte=byte: Constant(byte))
        assert np.abs(secret_noise(4, 1.0)).max() <= largest


def test_every_block_of_noise_takes_a_new_key_of_256_bits(monkeypatch):
    keys = []
    real = randomness.AES
    monkeypatch.setattr(randomness, "AES", lambda key: keys.append(key) or real(key))
    noise = GaussianNoise([0, 0], [1.0, 1.0], (3,), CPU, secure=True)
    noise.next(), noise.next()
    assert len(set(keys)) == len(keys) == 4 and {len(key) for key in keys} == {32}


def test_secure_streams_take_nothing_from_seeds_or_global_generators():
    def draws():
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        noise = GaussianNoise([7], [0.3], (64,), CPU, secure=True).next().clone()
        sampler = BatchSampler("shuffled", [np.arange(64)], [7], 8, 8, CPU, secure=True)
        return noise, sampler.epoch(), sampler.epoch()

    first, second = draws(), draws()
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[1], first[2])


@pytest.mark.parametrize("name", SAMPLERS)
def test_secure_batches_have_the_distribution_of_their_sampler(name):
    n, m, steps = 60, 20, 3 if name == "shuffled" else 400
    sampler = BatchSampler(name, [np.arange(n)], [0], m, steps, CPU, secure=True)
    batches = sampler.epoch()[:, 0]
    counts = torch.bincount(batches[batches >= 0], minlength=n)
    if name == "shuffled":
        assert (counts == 1).all()
    else:  # every record takes part with rate 1/3: Binomial(400, 1/3) has standard deviation 9.4
        assert (counts - 400 / 3).abs().max() < 57


def test_two_secret_generators_differ_and_have_255_bits():
    states = [secret_generator().bit_generator.state["state"] for _ in range(2)]
    assert states[0]["state"] != states[1]["state"] and states[0]["inc"] != states[1]["inc"]
    assert len(secret_generator().bit_generator.seed_seq.pool) == 8


@EVERY
def test_a_secure_trial_never_repeats_and_a_research_one_does(trial, digits):
    def weights(config):
        return list(train(Pack((config,)), digits))[-1].outcome.weights["layer_1.weight"]

    assert not np.array_equal(weights(trial), weights(trial))
    research = dataclasses.replace(trial, noise="research")
    assert np.array_equal(weights(research), weights(research))
    assert trial.trial_key != research.trial_key and trial.pack_key != research.pack_key


@EVERY
def test_split_initialisation_and_feedback_of_a_secure_trial_stay_seeded(trial, digits):
    one, two = (Training(Pack((trial,)), digits, CPU) for _ in range(2))
    try:
        assert torch.equal(one.validation, two.validation)
        assert torch.equal(one.net.parameters.flat, two.net.parameters.flat)
        assert torch.equal(one.feedback.projector.matrices, two.feedback.projector.matrices)
        assert not torch.equal(one.sampler.epoch()[0], two.sampler.epoch()[0])
    finally:
        one.close(), two.close()


def reachable(thing, seen):
    """Everything that can be reached from an object through attributes, containers and their items."""
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type(None), torch.Tensor, np.ndarray, type)):
        return
    seen[id(thing)] = thing
    if isinstance(thing, dict):
        children = list(thing.values())
    elif isinstance(thing, (list, tuple, set)):
        children = list(thing)
    else:
        children = list(getattr(thing, "__dict__", {}).values())
    for child in children:
        reachable(child, seen)


def generators(training):
    seen = {}
    for part in (training.sampler, training.mechanism):
        reachable(part, seen)
    return [x for x in seen.values() if isinstance(x, (torch.Generator, np.random.Generator))]


@EVERY
def test_no_generator_is_left_to_be_read(trial, digits):
    for noise, expected in (("secure", False), ("research", True)):
        training = Training(Pack((dataclasses.replace(trial, noise=noise),)), digits, CPU)
        training.step(training.sampler.epoch()[0])
        assert bool(generators(training)) == expected
        training.close()


@EVERY
def test_no_key_or_seed_is_in_any_record_tag_or_log(trial, digits, monkeypatch, caplog, capfd):
    keys, entropies = [], []
    aes, randbits = randomness.AES, randomness.secrets.randbits
    monkeypatch.setattr(randomness, "AES", lambda key: keys.append(key) or aes(key))
    monkeypatch.setattr(randomness.secrets, "randbits", lambda n: entropies.append(randbits(n)) or entropies[-1])
    with caplog.at_level(logging.DEBUG):
        records = list(train(Pack((trial,)), digits))
    written = "".join([repr(records), str(trial.canonical()), caplog.text, *capfd.readouterr()])
    assert keys and len(entropies) == trial.epochs
    for secret in [*(int.from_bytes(key) for key in keys), *entropies]:
        assert str(secret) not in written and f"{secret:x}" not in written
    arrays = b"".join(w.tobytes() for w in records[-1].outcome.weights.values())
    assert not any(key[:8] in arrays for key in keys)
