"""Canaries of a trial: mislabelled training records. A fair coin leaves each in or out, and the attack guesses it.

Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run". The attack guesses a fifth of the
canaries and abstains from the rest. The number of guesses follows from the number of canaries, before training
(`accounting.audited.guesses`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pipeline.accounting.audited import auc, guesses, one_run_audit
from pipeline.learning.data.inputs import Inputs
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.evaluation import EVALUATION_BATCH, Net
from pipeline.learning.randomness import numpy_generator
from pipeline.trials.config import TrialConfig


class Canaries:
    """k canaries of each of R trials. A trial's `audit` stream draws their records and wrong labels.

    Secure trials have none: no epsilon covers results computed from canaries.

    Attributes:
        indices: the canaries' records [R, k], int64.
        included: whether each canary is a member, bool [R, k]; fair and independent coins.
        labels: the labels that each trial trains on [R, len(labels)].
        remaining: per trial, its records [N]; `ABSENT` replaces canaries that are left out. A sampler still draws from
            N, and a batch that draws an absent one has one record less.
    """

    def __init__(self, trials: Sequence[TrialConfig], records: Sequence[np.ndarray],  # per trial, training records [N]
                 labels: torch.Tensor, n_classes: int) -> None:  # of all records that `records` point into, int64
        self.trials = tuple(trials)
        self.labels = labels.repeat(len(self.trials), 1)
        self.remaining, indices, included = [], [], []
        for r, (trial, trial_records) in enumerate(zip(self.trials, records, strict=True)):
            rng, k = numpy_generator(trial.seed, "audit"), trial.canaries
            positions = rng.choice(len(trial_records), k, replace=False)
            shift = torch.from_numpy(rng.integers(1, n_classes, k)).to(labels.device)  # never gives the true label
            is_member = rng.random(k) < 0.5
            canaries = torch.from_numpy(trial_records[positions]).to(labels.device)
            self.labels[r, canaries] = (labels[canaries] + shift) % n_classes
            remaining = trial_records.copy()
            remaining[positions] = np.where(is_member, trial_records[positions], ABSENT)
            self.remaining.append(remaining)
            indices.append(canaries)
            included.append(is_member)
        self.indices = torch.stack(indices)
        self.included = np.stack(included)

    def labels_of(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the labels [R, m] of records [R, m] that each trial trains on."""
        return self.labels.gather(1, indices)

    def begin(self, net: Net, inputs: Inputs) -> None:
        """Keep the losses of the wrong labels before training."""
        self.untrained = self._losses(net, inputs)

    def _losses(self, net: Net, inputs: Inputs) -> torch.Tensor:
        """Return the cross-entropy of each canary's wrong label at the current weights [R, k]."""
        chunks = self.indices.split(EVALUATION_BATCH, dim=1)
        logits = torch.cat([net.forward(inputs.batch(chunk))[1] for chunk in chunks], dim=1)
        log_p = torch.log_softmax(logits, dim=-1)
        return -log_p.gather(-1, self.labels_of(self.indices).unsqueeze(-1)).squeeze(-1)

    def scores(self, net: Net, inputs: Inputs) -> np.ndarray:
        """Return how much training lowered the loss of each canary's wrong label [R, k]; higher for members."""
        return (self.untrained - self._losses(net, inputs)).cpu().numpy()

    def audit(self, r: int, scores: np.ndarray) -> dict[str, float]:
        """Return the metrics of trial r's audit: a lower bound on epsilon with 95% confidence, and the canaries' AUC.

        Scores [k] are higher for canaries that seem to be members. A nan, after an overflow, counts as the lowest.
        """
        trial, included = self.trials[r], self.included[r]
        scores = np.where(np.isnan(scores), -np.inf, scores)
        result = one_run_audit(included, scores, guesses(trial.canaries), trial.delta)
        return {"epsilon/audited/one_run": result.epsilon_lower,
                "audit/canary_auc": auc(scores[included], scores[~included])}
