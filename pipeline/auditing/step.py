"""The audit of one step of a user's trainer, which states its release and shows nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from pipeline.accounting.audited import auc, tpr_at_fpr
from pipeline.accounting.certified import stated_step
from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.epsilon import Epsilon
from pipeline.auditing.two_point import two_point_step_audit
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.harness import Harness
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

BATCH = 8  # common records of both neighbours; with few, a fault that scales with the batch shows more
CANDIDATES = 8  # candidates for the differing record
CHOOSING = 20  # runs that choose the candidate
LEARNING = 200  # runs on each neighbour that choose the projection

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class StepAudit:
    """How well releases of one step on two neighbouring batches can be distinguished.

    Attributes:
        auc, tpr: of the projection, on the counted runs; tpr at a false positive rate of 0.1%.
        mu_lower, mu: measured lower bound and stated value of the step's mu; None unless the event is Gaussian.
        audited, stated: measured and stated epsilon of the step, for an attacker who knows that the record may be in
            the batch.
        fresh: whether releases of one batch ever differ.
    """

    auc: float
    tpr: float
    mu_lower: float | None
    mu: float | None
    audited: Epsilon
    stated: Epsilon
    fresh: bool

    @property
    def exceeds(self) -> bool:
        """Whether the bound exceeds the stated value: the statement is wrong, or the bound fails (probability 5%)."""
        if self.mu is None or self.mu_lower is None:
            return self.audited.value > self.stated.value
        return self.mu_lower > self.mu


def audit_step(config: TrialConfig, data: Dataset, runs: int, conf: float = 0.95) -> StepAudit:
    """Return how well the releases of a trainer's `step` on two neighbouring batches can be told apart.

    The measured lower bound is compared with the stated event of one step. Neighbours are batches of test records. With
    add/remove, one batch has an additional record with a wrong label. With replace-one, each batch has a different one.
    Of several candidates, those with the largest difference of the releases are taken. The statistic is the projection
    on the difference of the means over the variances, both estimated from separate runs. In these runs the neighbours
    share the noise of the trial's generators, so that it cancels.

    Args:
        config: a trial whose trainer has a `step`, and noise.
        data: its data set.
        runs: on each of the neighbours; even.
        conf: probability that the bound holds.

    Raises:
        ConfigError: as `stated_step`.
        TrainerError, TrainerFailed: from the trainer.
    """
    mu, stated = stated_step(config)
    harness = Harness(Pack((TrialConfig(config.given, canaries=0),)), data, data.train_x.device)
    neighbours = _neighbours(harness, stated.relation)
    direction = _direction(harness, neighbours)
    seen: tuple[list[float], list[float]] = ([], [])

    def step(j: int) -> float:
        seen[j].append(float(harness.release_step(*neighbours[j]).double() @ direction))
        return seen[j][-1]

    found = two_point_step_audit(step, config.delta, runs, conf, "epsilon" if mu is None else "mu")
    zeros, ones = (np.array(values[runs // 2:]) for values in seen)
    lower = found.epsilon_lower if mu is None else gdp_eps(found.mu_lower, config.delta)
    audited = dataclasses.replace(stated, value=lower, kind="audited", note=f"lower bound with {conf:.0%} confidence")
    return StepAudit(auc(ones, zeros), tpr_at_fpr(ones, zeros, 0.001), None if mu is None else found.mu_lower, mu,
                     audited, stated, len({*seen[0]}) > 1)


def _neighbours(harness: Harness, relation: str) -> tuple[Batch, Batch]:
    """Return the two neighbouring batches whose mean releases differ most.

    They consist of common test records and a candidate with a wrong label. Under add/remove, the first batch has no
    candidate; under replace-one, each has another.
    """
    places = torch.arange(min(BATCH + CANDIDATES, len(harness.data.test_y)), device=harness.device)
    records, labels = harness.test_inputs.batch(places).view(-1, *harness.shape), harness.data.test_y[places]
    wrong_labels = (labels + 1) % harness.data.spec.n_classes
    n = max(len(places) - CANDIDATES, 0)  # common records; the candidates come after them
    batches = [(torch.cat([records[:n], records[k:k + 1]]), torch.cat([labels[:n], wrong_labels[k:k + 1]]))
               for k in range(n, len(places))]
    pairs = [*combinations(range(len(batches)), 2)]
    if relation == "add/remove":  # the batch without a candidate comes first
        batches = [(records[:n], labels[:n]), *batches]
        pairs = [(0, k) for k in range(1, len(batches))]
    means = torch.as_tensor(sum(torch.stack(_together(harness, batches)) for _ in range(CHOOSING)) / CHOOSING)
    i, j = max(pairs, key=lambda pair: float(torch.linalg.vector_norm(means[pair[1]] - means[pair[0]])))
    return batches[i], batches[j]


def _direction(harness: Harness, neighbours: tuple[Batch, Batch]) -> torch.Tensor:
    """Return the direction [d], float64, that tells the releases of two neighbours apart best.

    It is the difference of the means over the variances, estimated from `LEARNING` runs; coordinates without noise
    count most.
    """
    first = [release.double() for release in _together(harness, neighbours)]  # subtracted: squares cancel
    sums, squares = ([torch.zeros_like(release) for release in first] for _ in range(2))
    for _ in range(LEARNING):
        for release, origin, total, square in zip(_together(harness, neighbours), first, sums, squares, strict=True):
            release = release.double() - origin
            total += release
            square += release.square()
    difference = (first[1] - first[0]) + (sums[1] - sums[0]) / LEARNING
    variance = torch.as_tensor(sum(square / LEARNING - (total / LEARNING).square()
                                   for total, square in zip(sums, squares, strict=True)))
    return difference / variance.clamp(min=1e-9 * float(variance.max()) or 1.0)


def _together(harness: Harness, batches: Sequence[Batch]) -> list[torch.Tensor]:
    """Return a release of each batch, all with the same draws of the trial's and the global generators."""
    generators, everybody = harness.context.generators, harness.randomness.state
    before = {key: own.get_state() for key, own in generators.items()}
    released = []
    for batch in batches:
        harness.randomness.state = everybody
        for key in [*generators]:
            if key in before:
                generators[key].set_state(before[key])
            else:
                del generators[key]  # created since: it restarts from the trial's seed
        released.append(harness.release_step(*batch))
    return released
