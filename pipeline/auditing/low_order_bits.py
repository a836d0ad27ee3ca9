"""The low-order-bit attack: noise drawn from too few bits lies on a lattice and reveals the sum below it.

Box and Muller turn two uniform numbers into two Gaussian numbers x and y with x^2 + y^2 = -2 log u. If u has b bits,
2^b exp(-(x^2 + y^2)/(2 sigma^2)) is a whole number, or half-way between two. The attacker of differential privacy knows
all records but one, and subtracts the two possible sums from the release. The true sum leaves noise, which is on the
lattice. The other leaves noise plus a record, which is on none. The difference is visible in the tail, where lattice
points lie far apart: with b = 31 at a handful of pairs among 700,000 numbers, and they suffice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.accounting.audited import auc, gdp_mu_lower, two_point
from pipeline.accounting.certified import step_mu, with_noise
from pipeline.accounting.curves import gdp_eps
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.mechanisms.gaussian import GaussianMechanism
from pipeline.learning.network.network import Parameters
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.part import names_with

VIEWS = ("update", "weights")


@dataclass(frozen=True)
class Lattice:
    """The lattice of squared radii from a Box-Muller transform of b bits: 2^b exp(-r^2/2) + offset is a whole number.

    `gap` is the distance between the two numbers x and y of a pair: in blocks of 2 gap numbers, the first half has x
    and the second half y. 0 if all numbers are one block.
    """

    bits: int  # b
    offset: float
    gap: int


LATTICES = (Lattice(31, 0.5, 0),  # integers of 31 bits, middle of an interval; cosines first, then sines
            Lattice(24, 0.0, 8))  # torch.Tensor.normal_ in float32 on a CPU
RESOLVED = 2.0**17  # lattice points from 0 that float32 can still resolve
BLUR = 2.0**-24  # relative standard deviation of float32 rounding of x^2 + y^2
DOUBT = 0.01  # probability that a pair is on no lattice


@dataclass(frozen=True)
class LowOrderBitAudit:
    """The result of the attack, which assigns every run to one of the two neighbours."""

    view: str  # the attacker's: `update` or `weights`
    runs: int  # on each of the neighbours, all counted
    errors: int  # wrong assignments
    auc: float
    mu_lower: float  # measured, with 95% confidence
    epsilon_lower: float
    mu: float  # certified, for one step
    epsilon: float

    @property
    def exceeds(self) -> bool:
        return self.mu_lower > self.mu


def lattice_score(residual: np.ndarray, sigma: float, lattice: Lattice) -> float:
    """Return the evidence that noise lies on a lattice blurred by rounding: log(1 + likelihood ratio), near 0 for none.

    The residual [n] is noise, or noise plus a record; nan for unseen numbers. Only pairs in the tail count, where
    float32 resolves the lattice. The ratio compares the density of distances from the lattice with the uniform density
    of numbers that lie on none.
    """
    gap = lattice.gap or len(residual) // 2
    n_blocks = len(residual) // (2 * gap)
    pairs = residual[:n_blocks * 2 * gap].reshape(-1, 2, gap)  # [blocks, (x, y), gap]
    with np.errstate(invalid="ignore", under="ignore"):
        squared_radius = np.square(pairs / sigma).sum(axis=1)
        point = 2.0**lattice.bits * np.exp(-squared_radius / 2) + lattice.offset  # whole on the lattice
    in_tail = (point < RESOLVED) & (point > 0.5)
    point, squared_radius = point[in_tail], squared_radius[in_tail]
    distance = point - np.round(point)
    blur = point * squared_radius * BLUR  # standard deviation of the distance by rounding
    # Gaussian density of the distance, from the nearest whole number and its two neighbours
    density = sum(np.exp(-np.square((distance + k) / blur) / 2) for k in (-1, 0, 1)) / (blur * math.sqrt(2 * math.pi))
    log_ratio = np.log(DOUBT + (1 - DOUBT) * density).sum()  # over all pairs; the uniform density is 1
    return float(np.logaddexp(0.0, log_ratio))


def low_order_bit_audit(training: Training, runs: int = 100) -> list[LowOrderBitAudit]:
    """Return the result of an attack on the first step of a certified trial: which of two neighbouring batches it used.

    The batches are the trial's next batch, and the same batch without its last record (add/remove) or with another
    record in its place (replace-one). The attacker knows both, the weights before the step, and all settings. Optical
    noise is added before the bound and is the same in all runs. One view is the released update; the other is the
    weights after a step of size learning_rate. The weights of `training` are not changed.
    """
    config, = training.pack.trials
    if not config.parts.mechanism.certified:
        raise ValueError(f"mechanism: must be one of {', '.join(names_with('mechanism', 'certified'))}, got "
                         f"{config.mechanism}")
    if config.denoise:  # post-processing of the release hides the last bits of the noise
        raise ValueError("denoise: hands out products of what was released, whose last bits are not looked at; must be "
                         "false, got true")
    if runs < 1:
        raise ValueError(f"runs: must be >= 1, got {runs}")
    config, mu = with_noise(config), step_mu(config)
    scores = _scores(training, config, runs)
    return [_summary(view, first, second, mu, config.delta) for view, (first, second) in scores.items()]


def _summary(view: str, first_scores: np.ndarray, second_scores: np.ndarray, mu: float,
             delta: float) -> LowOrderBitAudit:
    """Return the audit for one view, from scores [runs] on either neighbour; a score above 0 guesses the second."""
    runs = len(first_scores)
    false_positives, false_negatives = int((first_scores > 0).sum()), int((second_scores <= 0).sum())
    counts = false_positives, runs, false_negatives, runs
    return LowOrderBitAudit(
        view=view, runs=runs, errors=false_positives + false_negatives, auc=auc(second_scores, first_scores),
        mu_lower=float(gdp_mu_lower(*counts)), epsilon_lower=float(two_point(*counts, delta)), mu=mu,
        epsilon=gdp_eps(mu, delta))


def _scores(training: Training, config: TrialConfig, runs: int) -> dict[str, list[np.ndarray]]:
    """Return, by the attacker's view, the scores of all runs on the first and on the second neighbour, [runs] each.

    The attacker subtracts either neighbour's sum from the release. What is left is pure noise for the true neighbour,
    and then looks more like noise on a lattice. A score above 0 points to the second neighbour.
    """
    net, mechanism, released = training.net, training.mechanism, training.update  # `released` is written in place
    if not isinstance(mechanism, GaussianMechanism):
        raise TypeError(f"mechanism: must be a GaussianMechanism, got {type(mechanism).__name__}")
    sigma, weights_before = mechanism.deviations[0], net.parameters.flat[0].clone()  # of the only trial
    neighbours = [(batch, _factors(training, batch)) for batch in _neighbours(training)]
    sums = []
    for batch, factors in neighbours:
        training.net.forward(training.train_inputs.batch(batch.clamp(min=0)))  # sets the maxima of convolutions
        total = net.blank_parameters(1, training.device, torch.float64 if mechanism.integers else torch.float32)
        mechanism.add_up(*factors, total)
        sums.append(_numbers(total))

    def score(update: np.ndarray) -> float:
        """Return the evidence for the second neighbour minus the evidence for the first, over all lattices."""
        first_residual, second_residual = (update * config.batch_size - total for total in sums)
        return sum(lattice_score(second_residual, sigma, lattice) - lattice_score(first_residual, sigma, lattice)
                   for lattice in LATTICES)

    scores: dict[str, list[np.ndarray]] = {view: [] for view in VIEWS}
    for batch, factors in neighbours:
        training.net.forward(training.train_inputs.batch(batch.clamp(min=0)))
        by_update, by_weights = [], []
        for _ in range(runs):
            mechanism.update(*factors, released)
            update = _numbers(released)
            by_update.append(score(update))
            # An attacker who sees only weights infers the update from the step, in which float32 lost some bits.
            weights_after = weights_before - config.learning_rate * released.flat[0]
            step = ((weights_before.double() - weights_after.double()) / config.learning_rate).cpu().numpy()
            by_weights.append(score(np.where(np.isnan(update), np.nan, step)))  # nan in the padding
        scores["update"].append(np.array(by_update))
        scores["weights"].append(np.array(by_weights))
    return scores


def _neighbours(training: Training) -> list[torch.Tensor]:
    """Return two batches [1, m] of the training that differ in one record.

    Under add/remove, the first lacks the last record; under replace-one, it has another record in its place.
    """
    batch, next_batch = training.sampler.epoch()[:2]
    neighbour = batch.clone()
    last_place = int((batch[0] != ABSENT).nonzero()[-1])  # of a record; places without one may follow
    is_add_remove = training.pack.shared.parts.sampler.relation == "add/remove"
    neighbour[0, last_place] = ABSENT if is_add_remove else next_batch[0, 0]
    return [neighbour, batch]


def _factors(training: Training, batch: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the mechanism's inputs for a batch [1, m]: learning signals (deltas) and activations of every layer."""
    indices = batch.clamp(min=0)  # any record in a place without one; `is_present` keeps it out of the error
    is_present = (batch != ABSENT).unsqueeze(-1).to(torch.float32)
    activations, logits = training.net.forward(training.train_inputs.batch(indices))
    error, _ = training.loss(logits, training.data.train_y[indices], is_present)
    return training.deltas(error, activations, is_present), activations


def _numbers(parameters: Parameters) -> np.ndarray:
    """Return all weights and biases of one trial in memory order, float64; the padding between them is nan."""
    is_padding = np.ones(parameters.flat.shape[1], dtype=bool)
    for block in parameters.weights + parameters.biases:
        begin = block.storage_offset()
        is_padding[begin: begin + block.numel()] = False
    return np.where(is_padding, np.nan, parameters.flat[0].double().cpu().numpy())
