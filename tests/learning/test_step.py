"""One whole training step, its data and its records, recomputed in numpy from the trial's named random streams."""

import contextlib
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flat import train

from pipeline.accounting import account
from pipeline.learning import evaluation
from pipeline.learning.data.sampling import split
from pipeline.learning.randomness import integer_seed, torch_generator
from pipeline.learning.training import Training
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.packs import Pack

CPU = torch.device("cpu")
M, SIZES = 32, (64, 24, 16, 10)
BASE = TrialConfig(dataset="digits", hidden=SIZES[1:3], batch_size=M, epochs=2, learning_rate=0.2, momentum=0.5)
# Two trials that differ in everything in which trials of a pack may differ.
PHOTONIC = [replace(BASE, algorithm="tdfa", mechanism="photonic", seed=k, sigma=s, tau_f=f, tau_h=h,
                                tau_h_min=low, gamma_min=g, threshold=t)
            for k, s, f, h, low, g, t in [(3, 0.2, 0.8, 1.5, 0.3, 0.4, 0.1), (4, 0.1, 1.2, 0.9, 0.2, 0.7, 0.05)]]


def initial_parameters(seed):
    """Uniform on +-1/sqrt(n_in), weights then bias of each layer, from the `init` stream."""
    generator = torch_generator(seed, "init")
    weights, biases = [], []
    for n_in, n_out in itertools.pairwise(SIZES):
        bound = 1 / math.sqrt(n_in)
        weights.append(torch.empty(n_out, n_in).uniform_(-bound, bound, generator=generator).double().numpy())
        biases.append(torch.empty(n_out).uniform_(-bound, bound, generator=generator).double().numpy())
    return weights, biases


def forward(weights, biases, x):
    h = [x]
    for w, b in zip(weights, biases, strict=True):
        z = h[-1] @ w.T + b
        h.append(np.tanh(z))
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return h[:-1], p / p.sum(axis=1, keepdims=True)


def inputs_of(digits, indices):
    return digits.train_x[indices].double().numpy() / 8 - 1, np.eye(10)[digits.train_y[indices]]


def equation_8(trial, weights, biases, x, y):
    """The update of Eq. 8 for one batch: W updates, b updates; B and g re-drawn from the trial's streams."""
    h, p = forward(weights, biases, x)
    e = p - y
    seed = torch.Generator().manual_seed(integer_seed(trial.seed, "feedback"))
    feedback = torch.randn(10, sum(SIZES[1:3]), generator=seed).double().numpy()
    carried = (e > trial.threshold).astype(float) - (e < -trial.threshold)
    signals = [*np.split(carried @ feedback, [SIZES[1]], axis=1), e]
    noise = torch.empty(1, M, sum(SIZES[1:])).normal_(0, trial.sigma, generator=torch_generator(trial.seed, "noise"))
    noise = np.split(noise[0].double().numpy(), np.cumsum(SIZES[1:-1]), axis=1)
    updates_w, updates_b = [], []
    for layer, (v, g) in enumerate(zip(signals, noise, strict=True)):
        norm = np.linalg.norm(v, axis=1, keepdims=True)
        v = v * np.minimum(1, trial.tau_f / np.where(norm == 0, 1, norm)) + g
        if layer < 2:
            v = v * np.maximum(1 - h[layer + 1] ** 2, trial.gamma_min)
        c, nu = trial.tau_h / math.sqrt(SIZES[layer]), trial.tau_h_min / math.sqrt(SIZES[layer])
        clipped = np.clip(h[layer] + nu, -c, c)
        if trial.activation_floor:
            clipped = np.where(h[layer] >= 0, 1, -1) * np.clip(np.abs(h[layer]), nu, c)
        updates_w.append(v.T @ clipped / M)
        updates_b.append(v.mean(axis=0))
    return updates_w, updates_b


@pytest.mark.parametrize("floor", [False, True])
def test_a_step_is_equation_8_with_momentum(floor, digits):
    trials = tuple(replace(trial, activation_floor=floor) for trial in PHOTONIC)
    training = Training(Pack(trials), digits, CPU)
    indices = training.sampler.epoch()[0]
    loss, _ = training.step(indices)
    for r, trial in enumerate(trials):
        weights, biases = initial_parameters(trial.seed)
        x, y = inputs_of(digits, indices[r])
        updates_w, updates_b = equation_8(trial, weights, biases, x, y)
        p = forward(weights, biases, x)[1]
        assert loss[r].item() == pytest.approx(-np.log((p * y).sum(axis=1)).mean(), rel=1e-5)
        for layer in range(3):
            np.testing.assert_allclose(training.update.weights[layer][r], updates_w[layer], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(training.update.biases[layer][r], updates_b[layer], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(training.net.parameters.weights[layer][r],
                                       weights[layer] - 0.2 * updates_w[layer], rtol=1e-4, atol=1e-6)


def test_alignment_compares_the_applied_update_with_the_true_gradient(digits):
    trial = PHOTONIC[0]
    training = Training(Pack((trial,)), digits, CPU)
    indices = training.sampler.epoch()[0]
    _, alignment = training.step(indices, measure_alignment=True)
    weights, biases = initial_parameters(trial.seed)
    x, y = inputs_of(digits, indices[0])
    leaves = [torch.tensor(v, requires_grad=True) for pair in zip(weights, biases, strict=True) for v in pair]
    h = torch.tensor(x)
    for layer in range(3):
        h = h @ leaves[2 * layer].T + leaves[2 * layer + 1]
        h = torch.tanh(h) if layer < 2 else h
    torch.nn.functional.cross_entropy(h, torch.tensor(y.argmax(axis=1))).backward()
    plain = SimpleNamespace(seed=trial.seed, threshold=trial.threshold, sigma=0, tau_f=np.inf, gamma_min=0,
                            tau_h=np.inf, tau_h_min=0, activation_floor=False)
    for k, of in enumerate((trial, plain)):  # the applied update, and the feedback's without bounds and noise
        updates_w, updates_b = equation_8(of, weights, biases, x, y)
        for layer in range(3):
            u = np.concatenate([updates_w[layer].ravel(), updates_b[layer]])
            g = np.concatenate([leaves[2 * layer].grad.numpy().ravel(), leaves[2 * layer + 1].grad.numpy()])
            expected = u @ g / np.linalg.norm(u) / np.linalg.norm(g)
            assert alignment[0, k, layer].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("algorithm", "mechanisms"), [
    ("pdfa", [dict(mechanism="photonic", sigma=sigma, tau_f=tau, tau_h=tau, gamma_min=tau, joint_release=joint)
              for sigma, tau, joint in [(0, 1.0, False), (9.0, 0.1, False), (1.0, 1.0, True)]]),
    ("dfa", [dict(mechanism="per_example", clipping_norm=c, noise_multiplier=z, denoise=denoise)
             for c, z, denoise in [(1e9, 0, False), (1.0, 0, False), (1.0, 50.0, False), (1.0, 1.0, True)]]),
    ("bp", [dict(mechanism="per_example", clipping_norm=c, noise_multiplier=z) for c, z in [(1e9, 0), (1.0, 50.0)]])])
def test_alignment_of_the_feedback_does_not_depend_on_clipping_noise_and_denoising(algorithm, mechanisms, digits):
    """To the last bit, and the alignment of the applied update does."""
    trials = [replace(BASE, algorithm=algorithm, **mechanism) for mechanism in mechanisms]
    trainings = [Training(Pack((trial,)), digits, CPU) for trial in trials]
    found = [training.step(training.sampler.epoch()[0], measure_alignment=True)[1] for training in trainings]
    for alignment in found[1:]:
        assert torch.equal(alignment[:, 1], found[0][:, 1])
        assert (alignment[:, 0] - found[0][:, 0]).abs().max() > 1e-3
    hidden, output = found[0][0, 1].split([2, 1])
    assert output.item() == pytest.approx(1) and (hidden > 0.999).all() == (algorithm == "bp")


def test_training_never_sees_validation_records_and_each_is_counted_where_it_belongs(digits, monkeypatch):
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 100)  # several blocks, the last one smaller
    trial = replace(BASE, algorithm="dfa", seed=5)
    train_records, validation = split(1437, 144, 5)
    training = Training(Pack((trial,)), digits, CPU)
    seen = set()
    for _ in range(40):
        seen |= set(training.sampler.epoch().flatten().tolist())
    assert seen == set(train_records) and not seen & set(validation)

    last = list(train(Pack((trial,)), digits))[-1]
    weights, biases = ([last.outcome.weights[f"layer_{k}.{kind}"].astype(float) for k in (1, 2, 3)]
                       for kind in ("weight", "bias"))
    for part, x, labels in (("validation", digits.train_x[validation], digits.train_y[validation].numpy()),
                            ("test", digits.test_x, digits.test_y.numpy())):
        right = forward(weights, biases, x.double().numpy() / 8 - 1)[1].argmax(axis=1) == labels
        assert last.metrics[f"{part}/accuracy"] == pytest.approx(right.mean())
        rows = [row for row in last.outcome.per_class if row.split == part]
        assert [(row.label, row.count, row.correct) for row in rows] == [
            (k, int((labels == k).sum()), int(right[labels == k].sum())) for k in range(10)]


def test_the_epsilon_of_an_epoch_is_that_of_the_epochs_done(digits):
    trial = replace(PHOTONIC[0], activation="relu", activation_floor=True, delta=1e-6)
    first, last = train(Pack((trial,)), digits)
    for record in (first, last):
        expected = {e.metric_name: e.value for e in account(trial, record.epoch) if e.is_finite}
        assert expected == {k: v for k, v in record.metrics.items() if k.startswith("epsilon/")}
    assert len(expected) == 10
    other = {e.metric_name: e.value for e in account(replace(trial, delta=1e-3), 2)}
    assert all(other[name] < expected[name] for name in expected)


def test_loss_is_the_mean_over_steps_and_divergence_in_the_last_one_is_seen(digits, monkeypatch):
    training = Training(Pack((replace(BASE, epochs=1),)), digits, CPU)
    step, total, losses = training.step, training.pack.shared.steps_per_epoch, []

    def poisoned(*arguments, **options):
        losses.append(result := step(*arguments, **options))
        if len(losses) == total:
            training.net.parameters.biases[2][0, 0] = math.nan
        return result

    monkeypatch.setattr(training, "step", poisoned)
    record, = training.run_epoch()
    assert record.metrics["train/loss"] == pytest.approx(np.mean([loss.item() for loss, _ in losses]), rel=1e-5)
    assert record.outcome.status == "diverged"
    assert record.metrics["test/accuracy"] == 0, "a record without a finite output is not classified right"


def another(setting):
    """A value that is not the default, or None for a setting whose values are not known here."""
    default, choices = setting.default, setting.metadata.get("choices")
    if choices or isinstance(default, bool):
        return next((value for value in choices or (True, False) if value != default), None)
    return type(default)(2 * default or 0.4) if isinstance(default, float) else None


@pytest.mark.parametrize("mechanism", [{"mechanism": "none"}, *(
    {"mechanism": "photonic", "sigma": 0.1, "algorithm": algorithm} for algorithm in ("dfa", "tdfa")), *(
    {"mechanism": name, "noise_multiplier": 1.0} for name in ("component", "per_example", "automatic"))],
    ids=lambda mechanism: f"{mechanism['mechanism']} {mechanism.get('algorithm', '')}")
def test_settings_that_a_trial_does_not_use_move_neither_weights_nor_epsilons(mechanism, digits):
    """They are in no key: another noise would be one that nothing accounts for."""
    trial, unused = replace(BASE, **{"algorithm": "dfa", **mechanism}), {}
    for setting in settings():
        value = another(setting)
        with contextlib.suppress(ConfigError):
            if value is not None and TrialConfig(trial.given, **{setting.name: value}).trial_key == trial.trial_key:
                unused[setting.name] = value
    assert len(unused) > 15
    weights, epsilons = [], []
    for changes in ({}, *({name: value} for name, value in unused.items())):
        changed = TrialConfig(trial.given, **changes)
        training = Training(Pack((changed,)), digits, CPU)
        training.step(training.sampler.epoch()[0])
        weights.append(training.net.parameters.flat)
        epsilons.append([epsilon.value for epsilon in account(changed, 1)])
    moved = [name for name, found in zip(unused, weights[1:], strict=True) if not torch.equal(found, weights[0])]
    assert not moved and all(found == epsilons[0] for found in epsilons)
