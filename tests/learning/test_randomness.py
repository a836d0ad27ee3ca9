"""Noise and batches have their distributions: of seeded streams, and of secure ones, which leave nothing behind."""

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
import torch
from flat import train
from scipy import stats

from pipeline.learning.data import sampling
from pipeline.learning.data.sampling import ABSENT, BatchSampler, poisson, shuffled
from pipeline.learning.randomness import (
    STREAMS,
    GaussianNoise,
    RoundedNoise,
    integer_seed,
    secret_integers,
    torch_generator,
)
from pipeline.learning.train import prepare
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.part import PARTS

CPU = torch.device("cpu")


def test_streams_are_independent_of_each_other_and_reproducible_and_only_ever_appended():
    draws = {(seed, name): torch.randn(1000, generator=torch_generator(seed, name)) for seed in (0, 1)
             for name in STREAMS}
    values = torch.stack(list(draws.values()))
    correlation = torch.corrcoef(values) - torch.eye(len(values))
    assert correlation.abs().max() < 0.15  # 1/sqrt(1000) = 0.03; equal streams would give 1
    assert torch.equal(torch.randn(1000, generator=torch_generator(1, "noise")), draws[1, "noise"])
    assert len({integer_seed(s, n) for s in range(50) for n in STREAMS}) == 50 * len(STREAMS)
    before = ("split", "init", "feedback", "sampling", "noise", "release", "audit")
    assert STREAMS[:len(before)] == before, "another index seeds another stream: every recorded trial would change"


def test_noise_of_a_trial_has_its_sigma_and_does_not_depend_on_the_others():
    sigma, sample = 0.2, []
    alone = GaussianNoise([7], [sigma], (64, 64), CPU)
    beside = GaussianNoise([3, 7, 4], [0.1, sigma, 0.0], (64, 64), CPU)
    for _ in range(3):
        ours, theirs = alone.next(), beside.next()
        assert torch.equal(ours[0], theirs[1]) and not theirs[2].any()
        sample.append(ours.flatten().clone())
    sample = torch.cat(sample).numpy() / sigma
    assert stats.kstest(sample, "norm").pvalue > 1e-3
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(sample * factor, "norm").pvalue < 1e-12


def test_shuffled_uses_every_record_at_most_once_an_epoch_and_others_draw_anew_every_step():
    records = np.arange(1000, 1103)
    sampler = BatchSampler("shuffled", [records], [0], batch_size=10, steps=10, device=CPU)
    first, second = sampler.epoch().flatten().tolist(), sampler.epoch().flatten().tolist()
    for epoch in (first, second):
        assert len(set(epoch)) == 100 and set(epoch) <= set(records)
    assert first != second
    sampler = BatchSampler("without_replacement", [np.arange(20)], [0], batch_size=10, steps=400, device=CPU)
    batches = sampler.epoch()[:, 0]
    assert all(len(set(batch.tolist())) == 10 for batch in batches)
    counts = torch.bincount(batches.flatten(), minlength=20)
    # Every record takes part with rate 1/2: Binomial(400, 1/2) has standard deviation 10.
    assert (counts - 200).abs().max() < 50 and counts.float().std() > 3


def test_poisson_batches_have_binomial_sizes_and_lose_no_record():
    n, m, steps = 300, 60, 600
    sampler = BatchSampler("poisson", [np.arange(1000, 1000 + n)], [0], m, steps, CPU)
    batches = sampler.epoch()[:, 0]
    present = batches >= 0
    sizes = present.sum(dim=1).numpy()
    assert all(len(set(b[p].tolist())) == p.sum() for b, p in zip(batches, present, strict=True))
    assert set(batches[present].tolist()) == set(range(1000, 1000 + n)) and (batches[~present] == -1).all()
    # Sizes are Binomial(300, 1/5): mean 60, variance 48.
    assert abs(sizes.mean() - 60) < 4 * math.sqrt(48 / steps)
    assert stats.chi2(steps - 1).cdf((sizes.var(ddof=1) / 48) * (steps - 1)) == pytest.approx(0.5, abs=0.4999)
    counts = torch.bincount(batches[present] - 1000, minlength=n).numpy()
    # Every record is drawn Binomial(600, 1/5) times.
    assert stats.chisquare(counts).pvalue > 1e-4


# --- secure: of the right distribution, never twice the same, and leaving nothing behind

SECURE = TrialConfig(dataset="digits", hidden=(16, 16), batch_size=32, epochs=2, learning_rate=0.1, noise="secure")
INTEGER = dataclasses.replace(SECURE, mechanism="per_example", sampler="poisson", noise_multiplier=1.0,
                              arithmetic="integer")
TRIALS = {
    "photonic": dataclasses.replace(SECURE, mechanism="photonic", sigma=10.0),
    "per_example": INTEGER,
    "optical noise": dataclasses.replace(INTEGER, algorithm="pdfa", projector="", mechanism="automatic", sigma=0.1,
                                         sampler="without_replacement"),
}
EVERY = pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)


def test_secure_streams_take_nothing_from_seeds_or_global_generators():
    def draws():
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        noise = RoundedNoise([None], (64,), CPU).next()
        sampler = BatchSampler("shuffled", [np.arange(64)], [7], 8, 8, CPU, secure=True)
        return noise, sampler.epoch(), sampler.epoch()

    first, second = draws(), draws()
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[1], first[2])


@pytest.mark.parametrize("name", PARTS["sampler"])
def test_secure_batches_have_the_distribution_of_their_sampler(name):
    n, m, steps = 60, 20, 3 if name == "shuffled" else 400
    sampler = BatchSampler(name, [np.arange(n)], [0], m, steps, CPU, secure=True)
    batches = sampler.epoch()[:, 0]
    counts = torch.bincount(batches[batches >= 0], minlength=n)
    if name == "shuffled":
        assert (counts == 1).all()
    else:  # every record takes part with rate 1/3: Binomial(400, 1/3) has standard deviation 9.4
        assert (counts - 400 / 3).abs().max() < 57


def test_secret_integers_are_never_the_same_and_of_64_fair_bits():
    one, two = secret_integers(50_000), secret_integers(50_000)
    assert not (one == two).any() and len(set(one)) == len(one)
    ones = np.unpackbits(one.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 6 * 0.5 / 50_000**0.5


def test_secret_poisson_batches_take_records_independently_and_at_most_at_the_rate(monkeypatch):
    n, m, steps = 50, 7, 4_000
    drawn = poisson(None, n, steps, m)
    sizes = (drawn != ABSENT).sum(axis=1)
    assert abs(sizes.mean() - m) < 6 * (m * (1 - m / n) / steps) ** 0.5
    assert sizes.var() == pytest.approx(m * (1 - m / n), rel=0.15)
    rate = 2**64 * m // n
    monkeypatch.setattr(sampling, "secret_integers", lambda n: np.array([rate - 1, rate] * (n // 2), np.uint64))
    edge = poisson(None, n, 1, m)[0]
    assert edge[edge != ABSENT].tolist() == list(range(0, n, 2)), "below m/N of 2^64, and not at it"
    assert (poisson(None, n, 3, n) == np.arange(n)).all()
    assert all((np.diff(batch[batch != ABSENT]) > 0).all() for batch in drawn), "no place twice, in order"


def test_orders_of_the_secret_permutation_are_equally_likely_and_ties_are_drawn_anew(monkeypatch):
    orders = [tuple(shuffled(None, 3, 1, 3)[0]) for _ in range(3_000)]
    counts = [orders.count(order) for order in itertools.permutations(range(3))]
    assert sum(counts) == 3_000 and stats.chisquare(counts).pvalue > 1e-6
    answers = [np.array([1, 5, 5], np.uint64), np.array([2, 9, 4], np.uint64)]
    monkeypatch.setattr(sampling, "secret_integers", lambda n: answers.pop(0))
    assert shuffled(None, 3, 1, 3).tolist() == [[0, 2, 1]] and not answers


@EVERY
def test_a_secure_trial_never_repeats_and_a_research_one_does(trial, digits):
    trial = dataclasses.replace(trial, epochs=1, train_records=320)

    def weights(config):
        return list(train(Pack((config,)), digits))[-1].outcome.weights["layer_1.weight"]

    assert not np.array_equal(weights(trial), weights(trial))
    research = dataclasses.replace(trial, noise="research")
    assert np.array_equal(weights(research), weights(research))
    assert trial.trial_key != research.trial_key and trial.pack_key != research.pack_key


def generators(training):
    """All that a training's sampler and mechanism reach through attributes, containers and their items."""
    seen, todo = {}, [training.sampler, training.mechanism]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type(None), torch.Tensor, np.ndarray, type)):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, (list, tuple, set)):
            todo += thing
        else:
            todo += (thing if isinstance(thing, dict) else getattr(thing, "__dict__", {})).values()
    return [x for x in seen.values() if isinstance(x, (torch.Generator, np.random.Generator))]


@EVERY
def test_only_what_is_public_stays_seeded_and_no_generator_is_left_to_be_read(trial, digits):
    one, two, research = (prepare(Pack((dataclasses.replace(trial, noise=noise),)), digits, CPU)
                          for noise in ("secure", "secure", "research"))
    assert torch.equal(one.validation, two.validation)
    assert torch.equal(one.net.parameters.flat, two.net.parameters.flat)
    assert torch.equal(one.feedback.projector.matrices, two.feedback.projector.matrices)
    assert not torch.equal(one.sampler.epoch()[0], two.sampler.epoch()[0])
    for training in (one, research):
        training.step(training.sampler.epoch()[0])
        assert bool(generators(training)) == (training is research)
    for training in (one, two, research):
        training.close()
