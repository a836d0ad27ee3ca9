"""Integer arithmetic: contributions that are functions of one record, never longer than C, with exact sums."""

import dataclasses
import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import stats

from pipeline import TrialConfig, train
from pipeline.learning.data.dataset import load, register_dataset
from pipeline.learning.integers import products
from pipeline.learning.integers.integer_inputs import IntegerInputs
from pipeline.learning.integers.integer_network import IntegerDense
from pipeline.learning.model import TrainedModel
from pipeline.learning.rows import IntegerRows
from pipeline.learning.train import prepare
from pipeline.trials import steps as steps_of
from pipeline.trials.config import ConfigError
from pipeline.trials.datasets import DatasetSpec
from pipeline.trials.packs import Pack
from pipeline.trials.shapes import DenseShape
from pipeline.trials.steps import GRID_BITS, LARGEST, grid_exponent, signal_steps, steps

CPU = torch.device("cpu")
BASE = TrialConfig(dataset="digits", algorithm="dfa", hidden=(24, 16), feedback_std=0.3, mechanism="per_example",
                   sampler="poisson", noise_multiplier=0.5, batch_size=48, epochs=2, learning_rate=0.3, momentum=0.9,
                   averaging=0.8, alignment_batches=1, arithmetic="integer", train_records=640)
OF_FACTORS = TrialConfig({k: v for k, v in BASE.given if k != "feedback_std"}, mechanism="component", tau_e=0.1,
                         tau_h=1.0, noise_multiplier=1.0)
TRIALS = {
    "dfa": BASE,
    "bp, sigmoid, adam": TrialConfig(BASE.given, algorithm="bp", feedback_std=1.0, activation="sigmoid",
                                     optimizer="adam", momentum=0.9, learning_rate=0.02),
    "tdfa, shuffled, nesterov": TrialConfig(BASE.given, algorithm="tdfa", sampler="shuffled", optimizer="nesterov"),
    "pdfa with optical noise": TrialConfig(BASE.given, algorithm="pdfa", sigma=0.1, tau_f=2.0,
                                           sampler="without_replacement"),
    "denoise": TrialConfig(BASE.given, denoise=True, output_init="feedback", input_norm=2.0, optimizer="adamw",
                           weight_decay=0.1, learning_rate=0.02),
    "automatic, relu": TrialConfig(BASE.given, mechanism="automatic", activation="relu", inputs="standardized"),
    "width 1": TrialConfig(BASE.given, hidden=(1, 3), learning_rate=0.1),
    "softmax, smoothed": TrialConfig(BASE.given, algorithm="bp", feedback_std=1.0, hidden=(),
                                     loss="label_smoothing", private_metrics="noisy"),
    **{f"component{name}": TrialConfig(OF_FACTORS.given, **changes) for name, changes in {
        "": {}, ", bp": {"algorithm": "bp"}, ", relu": {"algorithm": "bp", "activation": "relu"},
        ", sigmoid": {"algorithm": "bp", "activation": "sigmoid"},
        ", pdfa": {"algorithm": "pdfa", "tau_e": 0.5},
        ", target": {"target_norm": 0.4, "denoise": True}}.items()},
}
EVERY = pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)


def made(trial, data, *others):
    return prepare(Pack((trial, *others)), data, CPU)


def contributions(training, batch):
    """K of every layer [m, n_l] and H, as integers, of a batch [1, m] in which every place has a record."""
    training.mechanism.optics = None  # the record's own randomness, drawn by place
    activations, logits = training.net.forward(training.train_inputs.batch(batch))
    error, _ = training.loss(logits, training.data.train_y[batch])
    deltas = training.deltas(error, activations)
    found = training.mechanism.sum.contributions(training.mechanism.layer_factors, deltas, activations)
    return ([k[0].numpy() for k, _ in found], [k[0].numpy() for _, k in found],
            [h.values[0].numpy() for h in activations])


def of_length(trial, norm):
    """The trial with contributions that are clipped to this norm or, factor by factor, to one that grows with it."""
    used = trial.canonical()
    if "clipping_norm" in used:
        return TrialConfig(trial.given, clipping_norm=norm)
    changes = {"target_norm": norm} if trial.target_norm else {}
    return TrialConfig(trial.given, **changes, tau_e=norm / 4 if used.get("error_clip", True) else 1.0)


@EVERY
def test_what_a_record_contributes_depends_on_no_other(trial, digits):
    """Wherever it stands, among how many, and with whichever trials in the pack."""
    training = made(trial, digits)
    training.step(training.sampler.epoch()[0])
    batch = torch.arange(100, 171).view(1, -1)
    before, *_ = contributions(training, batch)
    order = torch.randperm(71, generator=torch.Generator().manual_seed(1))
    moved, *_ = contributions(training, batch[:, order])
    fewer, *_ = contributions(training, batch[:, 3:8])
    replaced, *_ = contributions(training, torch.cat([batch[:, :5], batch[:, :1] + 300, batch[:, 6:]], dim=1))
    others = [k for k in range(71) if k != 5]
    for k, m, f, r in zip(before, moved, fewer, replaced, strict=True):
        assert np.array_equal(k[order.numpy()], m) and np.array_equal(k[3:8], f)
        assert np.array_equal(k[others], r[others])
    assert any(not np.array_equal(k[5], r[5]) for k, r in zip(before, replaced, strict=True))


def test_the_sum_is_exact_and_the_release_is_that_plus_the_noise(digits):
    training = made(BASE, digits)
    integers = training.mechanism.sum
    batch = torch.arange(60).view(1, -1)
    (found, _, inputs), drawn = contributions(training, batch), integers.noise.next()
    integers.noise.next = lambda: drawn.clone()
    activations, logits = training.net.forward(training.train_inputs.batch(batch))
    error, _ = training.loss(logits, digits.train_y[batch])
    training.mechanism.update(training.deltas(error, activations), activations, training.update)
    weights, biases = training.update.views(drawn)
    gamma = training.mechanism.deviations[0] / 2**GRID_BITS
    for layer, (k, h, step) in enumerate(zip(found, inputs, integers.steps[0], strict=True)):
        scale = 2.0 ** grid_exponent(step, training.mechanism.deviations[0])
        assert step.contribution * step.input == scale * gamma, "the sum lies on the noise's grid"
        exact = k.T.astype(object) @ h.astype(object) * int(scale) + weights[layer][0].numpy().astype(object)
        released = training.update.weights[layer][0].numpy()
        assert np.array_equal(released, (exact.astype(np.float64) * (gamma / BASE.batch_size)).astype(np.float32))
        exact = k.sum(axis=0, dtype=object) * int(scale / step.input) + biases[layer][0].numpy().astype(object)
        assert np.array_equal(training.update.biases[layer][0].numpy(),
                              (exact.astype(np.float64) * (gamma / BASE.batch_size)).astype(np.float32))


@pytest.mark.parametrize("noise", ["research", "secure"])
@pytest.mark.parametrize("wrong", [2 / 3, 3 / 2])
def test_noise_has_its_sigma_and_another_is_rejected(noise, wrong, digits):
    trial = TrialConfig(BASE.given, noise=noise, noise_multiplier=3.0, private_metrics="withheld", clipping_norm=0.3)
    training = made(trial, digits)
    nothing = torch.full((1, 48), -1)
    sample = []
    for _ in range(12):
        training.step(nothing)
        sample += [block.flatten().numpy().copy() for block in training.update.weights + training.update.biases]
    sample = np.concatenate(sample) * trial.batch_size / (3.0 * 0.3)
    assert stats.kstest(sample, "norm").pvalue > 1e-6 > 1e-12 > stats.kstest(sample * wrong, "norm").pvalue


def test_seeded_noise_is_that_of_the_step_and_no_other_trials_or_streams(digits):
    first, again, other = (made(TrialConfig(BASE.given, seed=seed), digits).mechanism.sum.noise
                           for seed in (0, 0, 1))
    one, two = first.next().clone(), first.next().clone()
    again.restore({"step": torch.tensor([1])})
    assert torch.equal(again.next(), two) and not torch.equal(one, two) and not torch.equal(other.next(), one)
    keys = {(source.stream, source.step) for source in made(TRIALS["pdfa with optical noise"], digits).noise_sources()}
    assert {stream for stream, _ in keys} == {"release", "noise"}


def trained(training):
    """Parameters [trials, P] after two steps."""
    for batch in training.sampler.epoch()[:2]:
        training.step(batch)
    return training.net.parameters.flat


@EVERY
def test_a_trial_in_a_pack_is_the_same_as_alone(trial, digits):
    trial = dataclasses.replace(trial, epochs=1, train_records=160)
    another = TrialConfig(of_length(trial, 0.1).given, seed=7, noise_multiplier=4.0)
    assert torch.equal(trained(made(another, digits, trial))[1], trained(made(trial, digits))[0])


PROCESSORS = [("AVX512_CORE", "default", 1), ("AVX2", "avx2", 2), ("SSE41", "default", 2)]
PRINT_DIGESTS = """
import os, sys
sys.path[:0] = {paths!r}
import sklearn.datasets, torch
from pipeline.learning import integer_arithmetic, opu, rounded_gaussian
from test_integers import PROCESSORS, digests
opu.import_lightonml()
for instructions, kernels, threads in PROCESSORS:
    if not (child := os.fork()):  # what is imported is imported once
        os.environ |= {{"ONEDNN_MAX_CPU_ISA": instructions, "ATEN_CPU_CAPABILITY": kernels}}
        torch.set_num_threads(threads)
        print(*digests(), torch.backends.cpu.get_cpu_capability().lower(), "torch._dynamo" in sys.modules, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@functools.cache
def digests():
    """Of the weights of every trial after two steps."""
    data = load("digits")
    return [hashlib.sha256(trained(made(dataclasses.replace(trial, epochs=1, train_records=160), data)).numpy()
                           .tobytes()).hexdigest()[:16] for trial in TRIALS.values()]


@pytest.fixture(scope="module")
def elsewhere():
    """What each of the processors prints; they are imitated by what libraries are told not to use."""
    root = Path(__file__).parents[2]
    code = PRINT_DIGESTS.format(paths=[str(root), str(Path(__file__).parent)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        **os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"})  # threads that spin take others' time
    return dict(zip(PROCESSORS, map(str.split, done.stdout.splitlines()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor[0])
def test_weights_have_the_same_bits_with_other_instructions_and_threads(processor, elsewhere):
    *found, kernels, has_compiler = elsewhere[processor]
    assert found == digests() and kernels == processor[1]
    assert has_compiler == "False", "with no optimizer: importing torch's compiler takes seconds"
    assert {t.optimizer for t in TRIALS.values()} == {"sgd", "nesterov", "adam", "adamw"}


def test_products_are_exact_in_both_kernels_and_a_wrong_one_is_noticed(monkeypatch):
    a = torch.randint(-127, 128, (600, 5_000), dtype=torch.int8)
    b = torch.randint(-64, 65, (5_000, 21), dtype=torch.int8)
    expected = (a.double() @ b.double()).to(torch.int32)
    assert torch.equal(products._by_int8(a, b), expected) and torch.equal(products._by_float32(a, b), expected)
    a, expected = a[:37], expected[:37]
    largest = torch.full((2, 5_000), 127, dtype=torch.int8), torch.full((5_000, 3), -64, dtype=torch.int8)
    assert (products._by_float32(*largest) == -127 * 64 * 5_000).all()

    def saturating(a, b):  # as pairs of 16 bits do without VNNI
        pairs = (a.int()[:, None, 0::2] * b.int().T[None, :, 0::2] + a.int()[:, None, 1::2] * b.int().T[None, :, 1::2])
        return pairs.clamp(-16_000, 16_000).sum(-1, dtype=torch.int32)
    monkeypatch.setattr(torch, "_int_mm", saturating)
    products.int8_is_exact.cache_clear()
    assert not products.int8_is_exact(CPU, 37, 5_000, 21)
    assert products.kernel(CPU, (64, 24, 10), 30) == "float32" and products.kernel(CPU, (64, 1, 10), 30) == "int8"
    assert torch.equal(products.product(a, b), expected)
    monkeypatch.undo()
    products.int8_is_exact.cache_clear()
    int_mm = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: (a.float() @ b.float()).to(torch.int32))  # sums of 24 bits
    assert not products.int8_is_exact(CPU, 37, 5_001, 21) and products.int8_is_exact(CPU, 37, 501, 21)
    monkeypatch.setattr(torch, "_int_mm", int_mm)
    products.int8_is_exact.cache_clear()


@pytest.mark.parametrize("shape", [(1, 40, 9), (40, 1, 9), (40, 9, 1), (1, 1, 40), (16, 784, 1), (5, 3, 2)])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_single_rows_and_columns_are_exact(shape, transposed):
    """Int8 products of some of them read memory that is not theirs."""
    (m, k, n), generator = shape, torch.Generator().manual_seed(1)
    a = torch.randint(-127, 128, (k, m) if transposed else (m, k), dtype=torch.int8, generator=generator)
    b = torch.randint(-64, 65, (n, k) if transposed else (k, n), dtype=torch.int8, generator=generator)
    a, b = (a.t(), b.t()) if transposed else (a, b)
    assert torch.equal(products.product(a, b).double(), a.double() @ b.double())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(20, 8, 512), (1024, 24, 1000), (3, 784, 10), (256, 2048, 784)])
def test_products_on_a_gpu_are_exact_however_factors_are_stored(shape):
    """Its kernel refuses many shapes unless terms of a sum lie side by side in both factors."""
    (m, k, n), generator = shape, torch.Generator().manual_seed(1)
    a = torch.randint(-127, 128, (m, k), dtype=torch.int8, generator=generator)
    b = torch.randint(-64, 65, (k, n), dtype=torch.int8, generator=generator)
    for by_rows in (True, True), (True, False), (False, True), (False, False):
        there = [products._stored(x.cuda(), rows) for x, rows in zip((a, b), by_rows, strict=True)]
        assert products.int8_is_exact(there[0].device, m, k, n, *by_rows)
        assert torch.equal(products.product(*there).cpu(), products.product(a, b))


def test_two_digits_make_a_number():
    x = torch.arange(-127 * 128, 127 * 128 + 1, dtype=torch.int16)[None]
    digits = products.split_digits(x)
    assert torch.equal(products.combine_digits(digits.to(torch.int32)), x.double()) and digits.abs().max() <= 127
    assert products.split_digits(x[x.abs() <= LARGEST][None]).abs().max() <= 64


@pytest.mark.parametrize("changes", [{"inputs": "unit"}, {"inputs": "standardized"}, {"input_norm": 3.0}])
def test_inputs_are_quantised_once_and_close_to_what_float32_has(changes, digits):
    trial = TrialConfig(BASE.given, **changes)
    whole = made(trial, digits).train_inputs
    assert isinstance(whole, IntegerInputs) and whole.values.dtype == torch.int8
    indices = torch.arange(50).view(1, -1)
    real = made(TrialConfig(trial.given, arithmetic="float32"), digits).train_inputs.batch(indices)
    rows = whole.batch(indices)
    assert (rows.real() - real).abs().max() <= 0.51 * whole.step + (real.abs().max() - 127 * whole.step).clamp(min=0)
    assert torch.equal(rows.squares[..., 0], rows.values.double().square().sum(-1))


def pair(trial, data, gain=1.0):
    """The trial in integers and in float32, with the same weights and feedback matrices."""
    whole, real = (made(TrialConfig(trial.given, arithmetic=kind), data) for kind in ("integer", "float32"))
    whole.net.parameters.flat.mul_(gain)
    blocks = [[*training.net.parameters.weights, *training.net.parameters.biases] for training in (whole, real)]
    for mine, other in zip(*blocks, strict=True):
        other.copy_(mine)
    if real.feedback.matrices is not None:
        real.feedback.matrices.copy_(whole.feedback.matrices)
    if real.mechanism.space:
        real.mechanism.space.bases = whole.mechanism.space.bases
    return whole, real


@pytest.mark.parametrize("name", ["dfa", "bp, sigmoid, adam", "automatic, relu", "denoise"])
def test_without_noise_an_update_has_the_direction_of_the_one_in_float32(name, digits):
    least = 0.98 if name == "automatic, relu" else 0.99  # small outputs are rounded to 0, where it has no slope
    whole, real = pair(TrialConfig(TRIALS[name].given, noise_multiplier=0.0), digits, gain=2.0)
    batch = torch.arange(200).view(1, -1)
    whole.step(batch), real.step(batch)
    for mine, other in zip(whole.update.weights, real.update.weights, strict=True):
        assert torch.cosine_similarity(mine.flatten(), other.flatten(), dim=0) > least
        assert 0.95 < mine.norm() / other.norm() < 1.05


def test_norms_of_contributions_are_those_of_what_the_integers_represent():
    rows = IntegerRows(torch.tensor([[[3, -4], [127, 0]]], dtype=torch.int8), 0.5)
    found = IntegerDense(DenseShape(2, 2), fine=False).squared_norms(torch.tensor([[[1.0, 2.0], [0.5, 0.0]]]), rows)
    expected = [5 * (25 * 0.25 + 1), 0.25 * (127**2 * 0.25 + 1)]
    assert found.squeeze().tolist() == pytest.approx(expected, rel=1e-12)


def test_a_signal_has_a_step_in_proportion_to_its_feedback():
    trial = dataclasses.replace(BASE, hidden=(1024, 16))
    wide, narrow, output = signal_steps(trial)
    by_width = signal_steps(dataclasses.replace(trial, feedback_by_width=True))
    assert wide == narrow and by_width == (wide / 32, narrow / 4, output)


def test_steps_follow_c_and_the_noise_alone_and_sums_of_the_softmax_are_exact(extensions):
    for step, twice in zip(steps(BASE, 1.0, 0.5), steps(BASE, 2.0, 1.0), strict=True):
        assert twice.contribution == 2 * step.contribution and twice[:2] == step[:2]
    for n_classes in (steps_of.MOST_CLASSES, steps_of.MOST_CLASSES + 1):
        register_dataset(f"classes_{n_classes}", DatasetSpec(20_000, 10, (4,), n_classes, (0.0,), (1.0,)), print)
    TrialConfig(BASE.given, dataset=f"classes_{steps_of.MOST_CLASSES}")
    with pytest.raises(ConfigError, match="^dataset: must have at most 8192 classes with arithmetic 'integer'.* 8193"):
        TrialConfig(BASE.given, dataset=f"classes_{steps_of.MOST_CLASSES + 1}")


def test_contributions_that_vanish_are_said(digits, capsys):
    trial = TrialConfig(BASE.given, clipping_norm=1e7, noise_multiplier=0.5, epochs=1)
    [record] = train(trial, digits)
    assert float(record.tags["arithmetic.truncated_to_zero"]) == 1.0
    assert "clipping norm C = 1e+07: 100% of" in capsys.readouterr().err
    [record] = train(TrialConfig(BASE.given, epochs=1), digits)
    assert float(record.tags["arithmetic.truncated_to_zero"]) < 0.01 and not capsys.readouterr().err
    assert record.tags["arithmetic.kernel"] == products.kernel(CPU, BASE.layer_sizes, BASE.batch_size)


def test_secure_and_seeded_trials_differ_in_keys_alone(digits):
    """With the seeded keys in place of secret ones, and the same batches, weights are the same."""
    seeded = TrialConfig(BASE.given, private_metrics="withheld", epochs=1)
    secure = TrialConfig(seeded.given, noise="secure")
    one, two = made(seeded, digits), made(secure, digits)
    two.sampler, two.mechanism.sum.noise.seeds = one.sampler, one.mechanism.sum.noise.seeds
    batch = one.sampler.epoch()[0]
    one.step(batch), two.step(batch)
    assert torch.equal(one.net.parameters.flat, two.net.parameters.flat)


def test_a_loaded_model_has_the_logits_by_which_the_trial_was_evaluated(digits):
    for name in ("dfa", "softmax, smoothed", "component, relu"):
        *_, last = train(TRIALS[name], digits)
        model = TrainedModel(TRIALS[name], last.outcome.weights)
        right = (model(digits.test_x).argmax(dim=1) == digits.test_y).double().mean()
        assert right == pytest.approx(last.metrics["test/accuracy"], abs=1e-6)
        training = made(TRIALS[name], digits)
        training.net.parameters = model._network.parameters
        places = torch.arange(len(digits.test_y))[None]
        assert torch.equal(training.net.forward(training.test_inputs.batch(places))[1][0], model(digits.test_x))


@pytest.mark.parametrize("size", [1e-4, 1e30])
def test_a_file_of_features_of_any_size_keeps_its_directions(size, tmp_path, digits):
    path, generator = tmp_path / "features.safetensors", torch.Generator().manual_seed(1)
    parts = {name: torch.randn(n, 96, generator=generator) * size for name, n in (("train", 1437), ("test", 360))}
    save_file(parts, path)
    trial = TrialConfig(BASE.given, features="file", feature_file=str(path), feature_source="random", input_norm=2.0)
    rows = made(trial, digits).train_inputs.batch(torch.arange(50)[None])
    cosines = torch.cosine_similarity(rows.real()[0], parts["train"][:50] / size, dim=1)
    assert cosines.min() > 0.999 and (rows.real().norm(dim=-1) / 2 - 1).abs().max() < 0.03
