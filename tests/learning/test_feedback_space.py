"""denoise with Gaussian mechanisms: contributions and noise in the column space of B, bounded as before."""

import dataclasses

import pytest
import torch
from scipy import stats

from pipeline.auditing import audit_release
from pipeline.learning.mechanisms.feedback_space import FeedbackSpace
from pipeline.learning.randomness import GaussianNoise
from pipeline.learning.train import prepare
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

CPU, M, HIDDEN = torch.device("cpu"), 32, (24, 16)
DFA = TrialConfig(dataset="digits", hidden=HIDDEN, batch_size=M, mechanism="per_example", clipping_norm=0.5, epochs=2,
                  sampler="poisson", noise_multiplier=1.0, learning_rate=0.5, denoise=True)
COMPONENT = dataclasses.replace(DFA, mechanism="component", clipping_norm=1.0, tau_e=0.4, tau_h=2.0)
HYBRID = dataclasses.replace(DFA, algorithm="hybrid", projector="", network="convnet", channels=(4,), kernel=3)
SECURE = dataclasses.replace(DFA, noise="secure", arithmetic="integer")
TERNARY = dataclasses.replace(DFA, algorithm="tdfa", projector="")
OPTICAL = dataclasses.replace(DFA, algorithm="pdfa", projector="", sigma=0.3)
TRIALS = {"dfa": DFA, "component": COMPONENT, "tdfa": TERNARY, "pdfa": OPTICAL,
          "centred": dataclasses.replace(TERNARY, feedback_centered=True), "hybrid": HYBRID, "secure": SECURE}


def parts(trial, digits, **changes):
    """A training, and the deltas and activations of its first batch."""
    training = prepare(Pack((dataclasses.replace(trial, **changes),)), digits, CPU)
    indices = training.sampler.epoch()[0].clamp(min=0)
    activations, logits = training.net.forward(training.train_inputs.batch(indices))
    error = torch.softmax(logits, dim=-1) - torch.nn.functional.one_hot(digits.train_y[indices], 10)
    return training, training.deltas(error, activations), activations


def sums_vary(trial):
    """Whether projected errors have sums other than 0, which B does not take away."""
    return trial.algorithm in ("tdfa", "pdfa") and not trial.feedback_centered


def columns(training, trial):
    """Column space of every hidden layer's B, as a projector [n, n], by its pseudo-inverse."""
    b = training.feedback.matrices[0].double()
    if not sums_vary(trial):
        b = b - b.mean(dim=0)
    return [block.T @ torch.linalg.pinv(block.T) for block in b.split(HIDDEN, dim=1)]


@pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)
def test_updates_lie_in_the_feedback_space_and_noise_there_has_the_stated_size(trial, digits):
    """Of 60 noisy updates: nothing is outside the column space, inside is z C/m noise on n_L - 1 or n_L directions,
    while the output layer keeps all of its own."""
    training, deltas, activations = parts(trial, digits)
    mechanism, first = training.mechanism, len(training.net.layers) - 1 - len(HIDDEN)
    nothing = [torch.zeros_like(d) for d in deltas]
    sigma = trial.noise_multiplier * mechanism.bounds[0] / M
    off = 2e-3 if trial.exact else 2e-5  # integers have the basis in steps of 2^-12
    inside, output = [[], []], []
    for _ in range(60):
        mechanism.update(nothing, activations, training.update)
        for k, space in enumerate(columns(training, trial)):
            block = training.update.weights[first + k][0].double()
            torch.testing.assert_close(space @ block, block, rtol=0, atol=off * sigma)
            inside[k].append(block.square().sum().item())
        output.append(training.update.weights[-1][0].double().square().sum().item())
    rank = 10 if sums_vary(trial) else 9
    for found, rows, width in ((inside[0], rank, training.net.sizes[first]), (inside[1], rank, HIDDEN[0]),
                               (output, 10, HIDDEN[1])):
        freedom = 60 * rows * width
        for wrong, accepted in ((1.0, True), (1.08, False), (0.92, False)):
            tail = stats.chi2.cdf(sum(found) / (wrong * sigma) ** 2, freedom)
            assert (1e-4 < tail < 1 - 1e-4) == accepted


def test_without_noise_the_update_is_the_projected_one(digits):
    """Against contributions that are formed, projected, clipped and added up one by one in float64."""
    training, deltas, activations = parts(DFA, digits, noise_multiplier=0.0, target_epsilon=0.0)
    training.mechanism.update(deltas, activations, training.update)
    spaces = [*columns(training, DFA), torch.eye(10, dtype=torch.float64)]
    rows, total = deltas[0].shape[1], [0.0, 0.0, 0.0]
    clipped = 0
    for i in range(rows):
        u = [p @ torch.outer(d[0, i].double(), torch.cat([h[0, i].double(), torch.ones(1)])) for p, d, h in
             zip(spaces, deltas, activations, strict=True)]
        norm = torch.stack([x.square().sum() for x in u]).sum().sqrt()
        clipped += bool(norm > 0.5)
        total = [t + x * min(1, 0.5 / norm) / M for t, x in zip(total, u, strict=True)]
    assert clipped > rows // 2
    for expected, weight, bias in zip(total, training.update.weights, training.update.biases, strict=True):
        torch.testing.assert_close(torch.cat([weight[0], bias[0][:, None]], dim=1).double(), expected, atol=1e-6,
                                   rtol=1e-4)


def test_where_the_slope_is_one_nothing_of_the_signal_is_lost(digits):
    """relu units that are all on: delta = B e lies in the space, so that only noise is taken away."""
    updates = []
    for denoise in (True, False):
        training, _, _ = parts(DFA, digits, activation="relu", denoise=denoise, noise_multiplier=0.0)
        for weight, bias in zip(training.net.parameters.weights[:-1], training.net.parameters.biases[:-1], strict=True):
            weight.zero_()
            bias.fill_(1.0)
        indices = training.sampler.epoch()[0]
        training.step(indices)
        updates.append(training.update.flat.clone())
    torch.testing.assert_close(*updates, atol=1e-6, rtol=1e-4)
    assert updates[0].norm() > 0


@pytest.mark.parametrize("trial", [DFA, COMPONENT, TERNARY], ids=["dfa", "component", "tdfa"])
def test_no_record_contributes_more_than_the_bound(trial, digits):
    """Long factors of a record alone: the noiseless sum has norm C at most, and comes within a percent of it.

    In integers, test_random_bits.py has it.
    """
    training, _, activations = parts(trial, digits)
    mechanism, most = training.mechanism, 0.0
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        matrices = training.feedback.matrices
        e = torch.randn(1, 1, 10, generator=generator) * 10.0 ** (seed % 4)
        e = e - e.mean(dim=-1, keepdim=True)
        deltas = [*(e @ matrices).split(HIDDEN, dim=2), e]
        h = [30 * torch.randn(1, 1, a.shape[2], generator=generator) for a in activations]
        total = mechanism.space.blank_parameters(1, CPU, torch.float32)
        mechanism.sum.add_up(mechanism, deltas, h, total)
        most = max(most, total.flat.double().norm().item())
    assert most <= mechanism.bounds[0] * (1 + 1e-5)
    if trial.mechanism == "per_example":
        assert most >= 0.99 * mechanism.bounds[0]


@pytest.mark.parametrize(("hidden", "m"), [((24, 16), 32), ((24, 16), 80), ((128,), 80)])
def test_a_records_coordinates_depend_neither_on_other_records_nor_on_its_place(hidden, m, digits):
    """To the last bit, among multiples of 16 rows."""
    training = prepare(Pack((dataclasses.replace(DFA, hidden=hidden),)), digits, CPU)
    generator = torch.Generator().manual_seed(0)
    deltas = [torch.randn(1, m, n, generator=generator) for n in training.net.sizes[1:]]
    found = training.mechanism.space.coordinates(deltas)
    assert all(x.dtype == torch.float32 for x in found)
    order = torch.randperm(m, generator=generator)
    longer = [torch.cat([torch.randn(1, 16, d.shape[2], generator=generator), d[:, order]], dim=1) for d in deltas]
    for before, after in zip(found, training.mechanism.space.coordinates(longer), strict=True):
        assert torch.equal(before[:, order], after[:, 16:])


@pytest.mark.parametrize("broken", [False, True])
def test_an_audit_of_one_release_finds_no_more_than_is_certified_and_does_where_noise_is_too_small(broken, monkeypatch):
    if broken:
        drawn = GaussianNoise.next
        monkeypatch.setattr(GaussianNoise, "next", lambda self: 0.5 * drawn(self))
    found = audit_release(dataclasses.replace(DFA, hidden=(16,), batch_size=16), 600, 1e-5)
    assert found.exceeds == broken and found.mu_lower > 0.35 * found.mu


def test_the_space_is_of_a_known_matrix(digits):
    with pytest.raises(ValueError, match="matrices: denoise needs the feedback matrix B, got None"):
        FeedbackSpace(DFA, prepare(Pack((DFA,)), digits, CPU).net, None)
