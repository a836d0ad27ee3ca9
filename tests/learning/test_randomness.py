import math

import numpy as np
import pytest
import torch
from scipy import stats

from pipeline.learning.data.sampling import BatchSampler
from pipeline.learning.randomness import GaussianNoise, torch_generator
from pipeline.trials.streams import STREAMS, integer_seed

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


def test_noise_of_a_trial_does_not_depend_on_the_others():
    alone = GaussianNoise([7], [0.3], (5, 11), CPU)
    beside = GaussianNoise([3, 7, 4], [0.1, 0.3, 0.0], (5, 11), CPU)
    for _ in range(4):
        ours, theirs = alone.next(), beside.next()
        assert torch.equal(ours[0], theirs[1])
        assert not theirs[2].any()


def test_noise_has_its_sigma_and_another_is_rejected():
    noise, sigma = GaussianNoise([1], [0.2], (64, 64), CPU), 0.2
    sample = torch.cat([noise.next().flatten() for _ in range(3)]).numpy() / sigma
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
