"""Whatever bits features, labels and weights have, one record moves the integer sum by at most C."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
import torch
from generated import given_settings
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from test_integers import BASE, CPU, TRIALS, made

from pipeline import TrialConfig
from pipeline.learning.integers.contributions import IntegerSum
from pipeline.learning.integers.integer_inputs import IntegerInputs
from pipeline.learning.mechanisms.gradients import GradientRows
from pipeline.learning.mechanisms.row_sum import RowSum
from pipeline.learning.network.stacked import Parameters
from pipeline.trials.config import ConfigError

N_RECORDS, N_FEATURES, ROUNDS = 24, 64, 4
BOUND = 0.5  # C of rows; with a power of two nothing is rounded after the sum
# Above 2^112, a feature over the fine step is infinite in float32.
EXTREMES = torch.tensor([0.0, -0.0, 2.0**-149, 2.0**-126, 2.0**111, 2.0**112, -(2.0**113), 3.4e38, torch.inf,
                         -torch.inf, torch.nan])


def random_bits(shape, generator):
    """Random float32 bit patterns; some rows are of ordinary size, and some numbers extreme."""
    bits = torch.randint(-(2**31), 2**31, shape, dtype=torch.int64, generator=generator).to(torch.int32)
    extreme = EXTREMES[torch.randint(len(EXTREMES), shape, generator=generator)]
    ordinary = torch.randn(shape, generator=generator)
    kind = torch.randint(4, (shape[0], *[1] * (len(shape) - 1)), generator=generator)
    chosen = torch.where(kind == 0, bits.view(torch.float32), ordinary)
    rare = torch.rand(shape, generator=generator) < 1 / N_FEATURES
    return torch.where((kind == 1) | ((kind == 2) & rare), extreme, chosen)


def summed(training, batch, monkeypatch):
    """The integer sums of a step's contributions, by layer: of weights [n_l, n_{l-1}] and of biases [n_l]."""
    contributions, seen = IntegerSum.contributions, []

    def watched(self, factors, deltas, activations):
        seen.extend([*contributions(self, factors, deltas, activations)])
        seen.extend(activations)
        return seen[: len(deltas)]
    weights = training.net.parameters.flat.clone()
    with monkeypatch.context() as patch:
        patch.setattr(IntegerSum, "contributions", watched)
        training.step(batch)
    training.net.parameters.flat.copy_(weights)
    half = len(seen) // 2
    sums = []
    for (k, k_of_biases), h in zip(seen[:half], seen[half:], strict=True):
        k, k_of_biases, h = (x[0].numpy().astype(np.int64) for x in (k, k_of_biases, h.values))
        sums.append((k.T @ h, k_of_biases.sum(0)))
    return sums


def excess(training, sums, others):
    """Exact squared norm of the difference of two sums, over C^2."""
    [of_trial], [bound] = training.mechanism.sum.steps, training.mechanism.bounds
    square = Fraction(0)
    for (weights, biases), (of_weights, of_biases), step in zip(sums, others, of_trial, strict=True):
        a, b = Fraction(step.contribution), Fraction(step.input)
        weight, bias = (sum(int(x) ** 2 for x in difference.flatten())
                        for difference in (weights - of_weights, biases - of_biases))
        square += a**2 * (b**2 * weight + bias)
    return square / Fraction(bound) ** 2


EXTREME = {"per_example, large inputs": TrialConfig(BASE.given, input_norm=1e6),
           "automatic, least gamma": TrialConfig(BASE.given, mechanism="automatic", clipping_gamma=1e-6)}
DRAWN = given_settings({"algorithm", "hidden", "activation", "init", "output_init", "feedback_std", "loss", "smoothing",
                        "mechanism", "clipping_norm", "noise_multiplier", "tau_h", "tau_e", "target_norm",
                        "denoise", "sigma", "tau_f", "input_norm", "feedback_norm"})


FEATURES = dict(features="file", feature_name="any", feature_width=N_FEATURES, feature_source="random bits")


def sizes(trial, digits, seed, monkeypatch):
    """How far six records move the sum, as squares over C^2; weights are ordinary for even seeds."""
    as_features = TrialConfig(trial.given, **FEATURES)
    digits = dataclasses.replace(digits, train_y=digits.train_y.clone())
    generator, training = torch.Generator().manual_seed(seed), made(trial, digits)
    training.mechanism.optics = None  # the record's own randomness, drawn by place
    records = random_bits((N_RECORDS, N_FEATURES), generator)
    training.train_inputs = IntegerInputs(records, as_features, digits)
    digits.train_y[:N_RECORDS].random_(0, 10, generator=generator)
    flat = training.net.parameters.flat
    flat.copy_(random_bits(flat.shape, generator) if seed % 2 else torch.randn(flat.shape, generator=generator))
    batch = torch.arange(N_RECORDS)[None]
    whole = summed(training, batch, monkeypatch)
    for record in torch.randperm(N_RECORDS, generator=generator)[:6]:
        without = batch.clone()
        without[0, record] = -1
        yield excess(training, whole, summed(training, without, monkeypatch))


def of_bits(given, drawn=()):
    return TrialConfig(**{"input_norm": 2.0, **dict(given), **dict(drawn), "sampler": "poisson",
                          "alignment_batches": 0})


@pytest.mark.parametrize("name", [*TRIALS, *EXTREME])
def test_one_record_of_random_bits_moves_the_sum_by_at_most_c_and_in_every_trial_by_much_of_it(
        name, digits, monkeypatch):
    trial = of_bits((TRIALS | EXTREME)[name].given)
    least = Fraction(2, 10) if trial.mechanism == "component" else Fraction(9, 10)
    assert least < max(sizes(trial, digits, 0, monkeypatch)) <= 1


def test_one_record_of_random_bits_moves_the_sum_by_at_most_c_whatever_the_settings(digits, monkeypatch):
    @settings(max_examples=25)
    @given(st.sampled_from([*TRIALS.values(), *EXTREME.values()]), DRAWN, st.integers(0, 2**32))
    def check(trial, drawn, seed):
        try:
            trial = of_bits(trial.given, drawn)
            TrialConfig(trial.given, **FEATURES)
        except ConfigError:
            reject()
        assert max(sizes(trial, digits, seed, monkeypatch)) <= 1

    check()


@pytest.mark.parametrize("factor", [lambda norms: (BOUND / norms).clamp_(max=1.0),
                                    lambda norms: BOUND / (norms + 1e-6)], ids=["per_example", "automatic"])
def test_one_row_of_random_bits_moves_the_sum_of_rows_by_at_most_c(factor):
    trial = TrialConfig(dataset="digits", mechanism="per_example", noise="secure", noise_multiplier=1.0, batch_size=64,
                        arithmetic="integer")
    generator, width = torch.Generator().manual_seed(6), 32
    release = RowSum([trial], [BOUND], [BOUND], (width,), CPU)
    release.noise.next = lambda: torch.zeros(1, width, dtype=torch.float64)
    largest = Fraction(0)

    def total(rows):
        """The released sum, exact: float64 holds all its bits."""
        out = Parameters((0, width), 1, CPU, torch.float64)
        parts = [GradientRows(part) for part in rows.split(5, dim=1)]
        release.add(factor, parts, torch.ones(len(rows), dtype=torch.bool))
        release.publish(out)
        return [Fraction(x) * trial.batch_size for x in out.biases[0][0].tolist()]
    for _ in range(ROUNDS):
        rows = random_bits((N_RECORDS, width), generator)
        whole = total(rows)
        for record in range(N_RECORDS):
            others = total(torch.cat([rows[:record], rows[record + 1:]]))
            square = sum((one - other) ** 2 for one, other in zip(whole, others, strict=True))
            largest = max(largest, square / Fraction(BOUND) ** 2)
    assert Fraction(9, 10) < largest <= 1
