"""Audits of users' trainers: canaries from outside, and two neighbours of one step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline import TrialConfig, load_dataset, trainer
from pipeline.accounting.audited import auc
from pipeline.learning.canary_scores import CanaryScores
from pipeline.learning.handed import Epoch
from pipeline.learning.harness import Harness
from pipeline.trials.packs import Pack

pytestmark = pytest.mark.usefixtures("extensions")
DIGITS = dict(dataset="digits", batch_size=64)


def harness(trial):
    return Harness(Pack((trial,)), load_dataset(trial.dataset), torch.device("cpu"))


def memory(trial, records, labels, device):
    """Least squares, which adds a little to the logit of a record that it was handed."""
    x, y = records.flatten(1), torch.nn.functional.one_hot(labels, 10).float()
    w = torch.linalg.solve(x.T @ x + torch.eye(64), x.T @ y)
    for _ in trial.epochs_left:
        yield Epoch(lambda new: 10 * new.flatten(1) @ w + 2 * (torch.cdist(new.flatten(1), x) < 1e-3).float() @ y,
                    state=[])


def test_what_a_label_owes_to_chance_is_taken_off_the_canaries_scores():
    trainer("memory", version=1)(memory)
    run = harness(TrialConfig(trainer="memory", epochs=3, canaries=300, **DIGITS))
    (first,), (second,), (third,) = (run.run_epoch() for _ in range(3))
    assert "audit/canary_auc" not in first.metrics | second.metrics
    included = run.canaries.included[0]
    raw = CanaryScores(run.canaries, run.data, run.train_inputs, run.test_inputs)
    raw.add(run.forward(run.train_inputs.batch(run.canaries.indices))[1])
    assert np.allclose(2 * raw.total, run.known.total)  # two of three epochs are of the later half
    found = third.metrics["audit/canary_auc"], third.metrics["epsilon/audited/one_run"]
    assert found[0] > auc(raw.total[included], raw.total[~included]) + 0.01 and found[1] > 1


def test_a_restart_knows_what_earlier_models_knew_of_the_canaries():
    trainer("memory", version=1)(memory)
    trial = TrialConfig(trainer="memory", epochs=4, canaries=100, **DIGITS)
    whole, other = harness(trial), harness(trial)
    for _ in range(3):
        whole.run_epoch()
    other.restore(*whole.capture())
    (expected,), (found,) = whole.run_epoch(), other.run_epoch()
    assert found.metrics["audit/canary_auc"] == expected.metrics["audit/canary_auc"] > 0.6
    assert np.array_equal(whole.known.total, other.known.total)
