"""Automatic clipping (AUTO-S): its closed form, its bound, and the accounting of per_example."""

import dataclasses

import pytest
import torch
from test_feedback_space import parts as batch_of

from pipeline import account
from pipeline.auditing import audit_release
from pipeline.experiment.preset import recommended
from pipeline.learning.mechanisms import noise_deviation
from pipeline.learning.mechanisms.base import MECHANISMS
from pipeline.trials.config import ConfigError, TrialConfig

CPU, M, C, GAMMA = torch.device("cpu"), 32, 0.5, 0.01
TRIAL = TrialConfig(dataset="digits", hidden=(24, 16), batch_size=M, mechanism="automatic", clipping_norm=C, epochs=2,
                    sampler="poisson", noise_multiplier=1.0, learning_rate=0.5)
CONVNET = dataclasses.replace(TRIAL, algorithm="hybrid", projector="", network="convnet", channels=(4,), kernel=3)
SECURE = dataclasses.replace(TRIAL, noise="secure", arithmetic="integer")
TRIALS = {"dfa": TRIAL, "bp": dataclasses.replace(TRIAL, algorithm="bp", projector=""), "convnet": CONVNET,
          "denoise": dataclasses.replace(TRIAL, denoise=True)}


def contribution(mechanism, deltas, activations, i, size=1.0):
    """What record i contributes to the sum, alone [P]."""
    keep = torch.zeros(1, deltas[0].shape[1], 1)
    keep[0, i] = size
    total = (mechanism.space or mechanism.net).blank_parameters(1, CPU, torch.float32)
    mechanism.sum.add_up(mechanism, [d * keep for d in deltas], activations, total)
    return total.flat[0].double().clone()


@pytest.mark.parametrize("gamma", [GAMMA, 3.0])
@pytest.mark.parametrize("name", TRIALS)
def test_a_contribution_is_c_u_over_its_norm_plus_gamma(name, gamma, digits):
    """u is what an enormous C leaves of the record under per_example."""
    trial = dataclasses.replace(TRIALS[name], clipping_gamma=gamma)
    training, deltas, activations = batch_of(trial, digits)
    plain = dataclasses.replace(trial, mechanism="per_example", clipping_norm=1e6)
    bare = MECHANISMS[plain.parts.mechanism]((plain,), training.net, CPU, training.feedback.matrices)
    for i in range(6):
        for size in (1e-3, 1.0, 1e3):
            u = contribution(bare, deltas, activations, i, size)
            found = contribution(training.mechanism, deltas, activations, i, size)
            torch.testing.assert_close(found, C * u / (u.norm() + gamma), rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize("changes", [
    {}, {"noise": "secure", "arithmetic": "integer"}, {"sampler": "shuffled"}, {"sampler": "without_replacement"},
    {"noise_multiplier": 0.0, "target_epsilon": 3.0}, {"denoise": True}])
def test_it_is_accounted_for_as_per_example_whatever_gamma(changes):
    automatic = dataclasses.replace(TRIAL, **changes)
    per_example, other = (dataclasses.replace(automatic, **change) for change in (
        {"mechanism": "per_example"}, {"clipping_gamma": 2.0}))
    assert account(automatic) == account(per_example) == account(other) and account(other)[0].kind == "certified"
    assert noise_deviation(automatic) == noise_deviation(per_example)
    assert len({t.trial_key for t in (automatic, per_example, other)}) == 3
    with pytest.raises(ConfigError, match="automatic"):  # no preset has settings for it
        recommended(dataset="digits", mechanism="automatic", target_epsilon=3)


def test_an_audit_of_one_release_in_integers_comes_close_to_what_is_certified_and_stays_below():
    audit = audit_release(dataclasses.replace(TRIAL, arithmetic="integer"), trials=600, delta=0.01)
    assert 0.3 < audit.mu_lower <= audit.mu == 1 and not audit.exceeds
    assert abs(audit.auc - 0.7602) < 0.07  # Phi(mu/sqrt 2), of all that is released
