"""joint_release and denoise: what is released of labels, its sensitivity, its noise, and an audit of one step."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from mlp import Mlp
from scipy import stats

from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.label import label_epsilons, label_mu
from pipeline.auditing.two_point import gaussian_log_ratio, two_point_audit
from pipeline.learning.feedback.algorithms import FEEDBACK
from pipeline.learning.feedback.losses import CrossEntropyLoss
from pipeline.learning.mechanisms import make_mechanism
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

output_error = CrossEntropyLoss(TrialConfig())

CPU, M, CLASSES, DELTA = torch.device("cpu"), 400, 10, 1e-5
BASE = TrialConfig(dataset="digits", hidden=(12, 16), batch_size=M, mechanism="photonic", algorithm="pdfa", tau_f=0.6)
BOTH = dict(joint_release=True, denoise=True)
SETTINGS = {"joint": dict(joint_release=True), "denoise": dict(denoise=True), "both": BOTH}
HALVES = (0.0, 0.0, *[-50.0] * 8)  # logits: two classes with probability 1/2


def make(*trials):
    pack = Pack(trials)
    net = Mlp(trials[0].layer_sizes, "tanh", [t.seed for t in trials])
    feedback = FEEDBACK[pack.shared.parts.feedback](pack, net, CPU)
    return feedback, make_mechanism(pack, net, CPU, feedback.matrices)


def release(trial, logits, labels, made=None):
    """What label-dependent signals become, all layers side by side [m, sum n_l], and the signals themselves."""
    feedback, mechanism = made or make(trial)
    error, _ = output_error(torch.as_tensor(logits).expand(1, len(labels), -1), torch.as_tensor(labels).unsqueeze(0))
    signals = mechanism.perturb(feedback.signals(error))
    return torch.cat(signals, dim=-1)[0].double().numpy(), signals


def released(trial, rows):
    """The part of `release` that is released: with joint_release the output layer's error is computed from the rest."""
    return rows[:, :-CLASSES] if trial.joint_release else rows


def label_pairs(logits):
    """Releases of all labels, without noise, as every pair of neighbours."""
    return itertools.combinations(range(CLASSES), 2), torch.tensor(logits).float(), torch.arange(CLASSES)


@pytest.mark.parametrize("algorithm", ["pdfa", "dfa"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_label_moves_what_is_released_by_the_sensitivity_at_most_and_by_almost_that(name, algorithm):
    trial = dataclasses.replace(BASE, **SETTINGS[name], algorithm=algorithm, projector="")
    sensitivity = label_mu(dataclasses.replace(trial, sigma=1.0))
    assert sensitivity == pytest.approx(2 * 0.6 * (1 if trial.joint_release else 3**0.5))
    made = make(trial)
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for logits in [HALVES, *(4 * torch.randn(30, CLASSES, generator=generator)).tolist()]:
        pairs, logits, labels = label_pairs(logits)
        rows = released(trial, release(trial, logits, labels, made)[0])
        largest = max(largest, *(np.linalg.norm(rows[a] - rows[b]) for a, b in pairs))
    assert 0.99 * sensitivity <= largest <= sensitivity * (1 + 1e-6)


@pytest.mark.parametrize("algorithm", ["pdfa", "dfa"])
def test_without_noise_denoise_changes_nothing_and_joint_release_scales_once(algorithm):
    trial = dataclasses.replace(BASE, algorithm=algorithm, projector="")
    logits, labels = torch.randn(M, CLASSES, generator=torch.Generator().manual_seed(1)), torch.arange(M) % CLASSES
    plain, _ = release(trial, logits, labels)
    np.testing.assert_allclose(release(dataclasses.replace(trial, denoise=True), logits, labels)[0], plain, atol=1e-6)
    feedback, mechanism = make(dataclasses.replace(trial, joint_release=True))
    error, _ = output_error(logits.unsqueeze(0), labels.unsqueeze(0))
    signals = feedback.signals(error)
    stacked = torch.cat(signals[:-1], dim=-1)
    factor = (0.6 / stacked.norm(dim=-1, keepdim=True)).clamp(max=1)
    *hidden, decoded = mechanism.perturb(signals)
    torch.testing.assert_close(torch.cat(hidden, dim=-1), stacked * factor)
    # The output layer learns from the error that was projected, in its place.
    carried = error if algorithm == "dfa" else (error > 0.15).float() - (error < -0.15).float()
    torch.testing.assert_close(decoded, carried * factor, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(make(dataclasses.replace(trial, **BOTH))[1].perturb(signals), dim=-1),
                               torch.cat([*hidden, decoded], dim=-1), rtol=1e-4, atol=1e-5)
    for setting in SETTINGS.values():  # signals shorter than tau_f pass at their own length
        received = make(dataclasses.replace(trial, **setting, tau_f=1e6))[1].perturb(signals)
        for before, after in zip(signals[:-1], received[:-1], strict=True):
            torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def noise(trial, draws=40):
    """What is added to errors of zero: per layer [draws M, n_l]; and B [n_classes, n] of the trial."""
    feedback, mechanism = make(trial)
    zero = torch.zeros(1, M, CLASSES)
    drawn = [[v.clone() for v in mechanism.perturb(feedback.signals(zero))] for _ in range(draws)]
    return [torch.cat(layer, dim=1)[0].double().numpy() for layer in zip(*drawn, strict=True)], feedback.matrices[0]


def is_normal(sample, sigma):
    assert stats.kstest(sample, "norm", (0, sigma)).pvalue > 1e-3
    for wrong in (sigma * 2 / 3, sigma * 3 / 2):
        assert stats.kstest(sample, "norm", (0, wrong)).pvalue < 1e-9


def test_joint_noise_is_full_and_the_output_layer_has_no_other():
    (one, two, output), matrix = noise(dataclasses.replace(BASE, joint_release=True, sigma=0.3))
    stacked = np.concatenate([one, two], axis=1)
    is_normal(stacked.ravel(), 0.3)
    np.testing.assert_allclose(np.cov(stacked.T), 0.09 * np.eye(28), atol=0.005)
    np.testing.assert_allclose(output, stacked @ np.linalg.pinv(matrix.double().numpy()), atol=1e-5)


@pytest.mark.parametrize("name", ["denoise", "both"])
def test_denoised_noise_has_the_law_of_projected_full_noise(name):
    """P g of g ~ N(0, sigma^2 I) is normal with covariance sigma^2 P, and nothing lies outside the column space."""
    trial = dataclasses.replace(BASE, **SETTINGS[name], sigma=0.3)
    (*hidden, output), matrix = noise(trial)
    blocks = [matrix] if trial.joint_release else matrix.split(BASE.hidden, dim=1)
    parts = [np.concatenate(hidden, axis=1)] if trial.joint_release else hidden
    for part, block in zip(parts, blocks, strict=True):
        basis = np.linalg.svd(block.double().numpy(), full_matrices=False)[2]  # another basis of the same space
        np.testing.assert_allclose(part @ basis.T @ basis, part, atol=1e-5)
        is_normal((part @ basis.T).ravel(), 0.3)
        np.testing.assert_allclose(np.cov(part.T), 0.09 * basis.T @ basis, atol=0.005)
    if not trial.joint_release:
        is_normal(output.ravel(), 0.3)
        assert np.abs(np.corrcoef(np.concatenate([*hidden, output], axis=1).T)[:12, 12:]).max() < 0.04


def audited_mu(trial, runs=4000, **built):
    """Lower bound on mu of one step from the outputs on two labels of one record, the rest of the batch apart; the
    statistic is the likelihood ratio that the trial's sigma gives."""
    made = make(dataclasses.replace(trial, **built))
    quiet = make(dataclasses.replace(trial, sigma=0.0))
    means = [released(trial, release(trial, HALVES, [label], quiet)[0])[0] for label in (0, 1)]

    def statistics(label):
        rows = [released(trial, release(trial, HALVES, [label] * M, made)[0]) for _ in range(runs // M)]
        return np.array([gaussian_log_ratio(row, *means, trial.sigma) for row in np.concatenate(rows)])

    return two_point_audit(statistics(0), statistics(1))


@pytest.mark.parametrize("name", SETTINGS)
def test_audit_of_one_step_comes_near_the_label_epsilon_and_stays_below(name):
    trial = dataclasses.replace(BASE, **SETTINGS[name], sigma=0.6, epochs=1)
    step = next(e for e in label_epsilons(trial, 1) if e.variant == "gdp").value  # one epoch: one participation
    assert step == pytest.approx(gdp_eps(label_mu(trial), DELTA))
    assert 0.75 * step <= gdp_eps(audited_mu(trial), DELTA) <= step
    assert gdp_eps(audited_mu(trial, sigma=0.4), DELTA) > step, "two thirds of the noise must be noticed"


def test_a_trial_with_a_target_trains_with_the_noise_that_it_takes(digits):
    trial = dataclasses.replace(BASE, **BOTH, target_label_epsilon=8.0, batch_size=64, epochs=2)
    training = Training(Pack((trial,)), digits, CPU)
    found, = (label_epsilons(dataclasses.replace(trial, target_label_epsilon=0.0, sigma=s), 2)[0].value
              for s in training.mechanism.optics.optics.noise.sigmas)
    assert 0.99 * 8 <= found <= 8
    records = training.run_epoch() + training.run_epoch()
    spent = [r.metrics["epsilon/label/gdp"] for r in records]
    assert spent[1] == pytest.approx(found) and spent[0] < spent[1]
    assert not any(name.startswith(("epsilon/claimed", "epsilon/column")) for r in records for name in r.metrics)
    assert "nothing is claimed: denoise" in records[0].tags["privacy.notes"]
    with pytest.raises(ValueError, match="matrices: joint_release and denoise need the feedback matrix B, got None"):
        make_mechanism(Pack((trial,)), Mlp(trial.layer_sizes, "tanh", [0]), CPU)
