"""The audit of one step of a user's trainer, which states its release and shows nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from pipeline.accounting.audited import auc, tpr_at_fpr
from pipeline.accounting.certified import one_step
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
MIN_VARIANCE = 1e-9  # least variance of a coordinate, over the largest one

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class StepAudit:
    """How well releases of one step on two neighbouring batches can be distinguished."""

    auc: float  # of the projection, on the counted runs
    tpr: float  # at a false positive rate of 0.1%
    mu_lower: float | None  # measured; None unless the event is Gaussian
    mu: float | None  # of the step, stated
    audited: Epsilon  # of the step, for an attacker who knows that the record may be in the batch
    stated: Epsilon
    fresh: bool  # whether releases of one batch ever differ

    @property
    def exceeds(self) -> bool:
        """Whether the bound exceeds the stated value: the statement is wrong, or the bound fails (probability 5%)."""
        if self.mu is None or self.mu_lower is None:
            return self.audited.value > self.stated.value
        return self.mu_lower > self.mu


def audit_step(config: TrialConfig, data: Dataset, runs: int, conf: float = 0.95) -> StepAudit:
    """Return how well the releases of a trainer's `step` on two neighbouring batches can be told apart.

    The result compares the measured lower bound on epsilon or mu with the one that the trainer states. The neighbours
    are batches of test records (`_neighbours`). Each release is projected on a direction that was estimated from
    separate runs (`_direction`), and a threshold on this number guesses the batch.
    """
    mu, stated = one_step(config)
    harness = Harness(Pack((TrialConfig(config.given, canaries=0),)), data, data.train_x.device)
    neighbours = _neighbours(harness, stated.relation)
    direction = _direction(harness, neighbours)
    projections: tuple[list[float], list[float]] = ([], [])  # of all releases, by neighbour

    def projected_release(j: int) -> float:
        """Return the projection of a new release on neighbour j, and keep it."""
        projection = float(harness.release_step(*neighbours[j]).double() @ direction)
        projections[j].append(projection)
        return projection

    result = two_point_step_audit(projected_release, config.delta, runs, conf, of="epsilon" if mu is None else "mu")
    first_half = runs // 2  # runs that chose the threshold; the others were counted
    counted_on_first, counted_on_second = (np.array(values[first_half:]) for values in projections)
    if mu is None:
        mu_lower, epsilon_lower = None, result.epsilon_lower
    else:
        mu_lower, epsilon_lower = result.mu_lower, gdp_eps(result.mu_lower, config.delta)
    audited = dataclasses.replace(stated, value=epsilon_lower, kind="audited",
                                  note=f"lower bound with {conf:.0%} confidence")
    is_fresh = len(set(projections[0])) > 1  # repeated releases of one batch differ
    return StepAudit(auc=auc(counted_on_second, counted_on_first),
                     tpr=tpr_at_fpr(counted_on_second, counted_on_first, fpr=0.001), mu_lower=mu_lower, mu=mu,
                     audited=audited, stated=stated, fresh=is_fresh)


def _neighbours(harness: Harness, relation: str) -> tuple[Batch, Batch]:
    """Return the two neighbouring batches whose mean releases differ most.

    They have the same test records, and a candidate: another test record, with a wrong label. Under add/remove, the
    first batch has no candidate; under replace-one, each batch has a different one.
    """
    indices = torch.arange(min(BATCH + CANDIDATES, len(harness.data.test_y)), device=harness.device)
    records, labels = harness.test_inputs.batch(indices).view(-1, *harness.shape), harness.data.test_y[indices]
    wrong_labels = (labels + 1) % harness.data.spec.n_classes
    n_common = max(len(indices) - CANDIDATES, 0)  # the candidates come after the common records
    common_records, common_labels = records[:n_common], labels[:n_common]
    batches = []  # one per candidate
    for k in range(n_common, len(indices)):
        batches.append((torch.cat([common_records, records[k:k + 1]]),
                        torch.cat([common_labels, wrong_labels[k:k + 1]])))
    pairs = [*combinations(range(len(batches)), 2)]
    if relation == "add/remove":  # the batch without a candidate comes first
        batches = [(common_records, common_labels), *batches]
        pairs = [(0, k) for k in range(1, len(batches))]
    total = sum(torch.stack(_releases_with_equal_noise(harness, batches)) for _ in range(CHOOSING))
    means = torch.as_tensor(total / CHOOSING)  # [batches, d]

    def distance(pair: tuple[int, int]) -> float:
        first, second = pair
        return float(torch.linalg.vector_norm(means[second] - means[first]))

    first, second = max(pairs, key=distance)
    return batches[first], batches[second]


def _direction(harness: Harness, neighbours: tuple[Batch, Batch]) -> torch.Tensor:
    """Return the direction [d], float64, that tells the releases of two neighbours apart best.

    It is the difference of the means over the variances, by coordinate, estimated from `LEARNING` runs on each
    neighbour. Coordinates without noise count most.
    """
    # The first releases are subtracted from all others, because large means would make the variances inaccurate.
    origins = [release.double() for release in _releases_with_equal_noise(harness, neighbours)]
    sums = [torch.zeros_like(origin) for origin in origins]
    square_sums = [torch.zeros_like(origin) for origin in origins]
    for _ in range(LEARNING):
        releases = _releases_with_equal_noise(harness, neighbours)
        for j, release in enumerate(releases):
            shifted = release.double() - origins[j]
            sums[j] += shifted
            square_sums[j] += shifted.square()
    difference = (origins[1] - origins[0]) + (sums[1] - sums[0]) / LEARNING
    variances = [square_sum / LEARNING - (total / LEARNING).square()
                 for total, square_sum in zip(sums, square_sums, strict=True)]  # by neighbour
    variance = torch.as_tensor(sum(variances))
    min_variance = MIN_VARIANCE * float(variance.max())
    return difference / variance.clamp(min=min_variance or 1.0)  # 1 if nothing varies


def _releases_with_equal_noise(harness: Harness, batches: Sequence[Batch]) -> list[torch.Tensor]:
    """Return one release of each batch, all generators restored before each, so that noise cancels in differences."""
    generators, global_state = harness.context.generators, harness.randomness.state
    states = {name: generator.get_state() for name, generator in generators.items()}
    releases = []
    for batch in batches:
        harness.randomness.state = global_state
        for name in [*generators]:  # a copy, because entries are deleted
            if name in states:
                generators[name].set_state(states[name])
            else:
                del generators[name]  # the release before created it: it restarts from the trial's seed
        releases.append(harness.release_step(*batch))
    return releases
