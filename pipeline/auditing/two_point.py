"""The audit of one release: a certified trial's own mechanism, on the worst-case neighbours of its relation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.accounting.audited import auc, checked, gdp_mu_lower, tpr_at_fpr
from pipeline.accounting.certified import one_step, step_mu, with_noise
from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.epsilon import Epsilon
from pipeline.learning.feedback.algorithms import FEEDBACK
from pipeline.learning.integers.products import whole_type
from pipeline.learning.mechanisms import make_mechanism, noise_deviation
from pipeline.learning.mechanisms.base import MechanismStep
from pipeline.learning.network.layers import make_layer
from pipeline.learning.network.stacked import Parameters, StackedNetwork, make_network
from pipeline.learning.rows import Activation, IntegerRows
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.shapes import dense_shapes, n_parameters
from pipeline.trials.steps import largest_integers, signal_steps, steps

CONFIDENCE = 0.95  # that a bound holds


@dataclass(frozen=True)
class ReleaseAudit:
    """How well the outputs of one step on the worst-case neighbours can be distinguished."""

    statistic: str  # the one with the best bound
    auc: float  # of this statistic, on the counted runs
    tpr: float  # at a false positive rate of 0.1%
    mu_lower: float  # measured
    mu: float  # of the step, certified
    audited: Epsilon  # of a Gaussian mechanism with `mu_lower`
    certified: Epsilon

    @property
    def exceeds(self) -> bool:
        """Whether the bound exceeds the certified mu: the mechanism is broken, or the bound fails (probability 5%)."""
        return self.mu_lower > self.mu


def audit_release(config: TrialConfig, trials: int, delta: float,
                  mechanism: MechanismStep | None = None) -> ReleaseAudit:
    """Return how well the release of one step on two worst-case neighbouring batches can be told apart, with bounds.

    The trial's own mechanism, or another one, runs many times on either batch. Several statistics are tried, because
    noise may be missing in one place only: the log-likelihood ratio of the whole release, and of every matrix and bias
    vector. The last is the energy in a column of the first layer that only one neighbour reaches. It detects noise with
    a covariance that depends on data. Contributions of a user's network have no layers, so only the first statistic
    applies. Bounds hold with probability `CONFIDENCE`.
    """
    mu = step_mu(config)
    config = with_noise(TrialConfig(config.given, delta=delta))
    step = _OneStep(config, mechanism)
    # by neighbour, [statistics, trials]
    scores = [np.array([step.statistics(j) for _ in range(trials)]).T for j in (0, 1)]
    statistic_conf = 1 - (1 - CONFIDENCE) / len(step.names)  # all statistics share the error probability
    bounds = [two_point_audit(first, second, statistic_conf) for first, second in zip(*scores, strict=True)]
    best = int(np.argmax(bounds))
    counted = slice(trials // 2, None)  # the first half of the runs chose the threshold
    first, second = (np.nan_to_num(statistic_scores[best, counted]) for statistic_scores in scores)
    mu_lower = bounds[best]
    certified = one_step(config)
    audited = dataclasses.replace(certified, value=gdp_eps(mu_lower, delta), kind="audited",
                                  note=f"lower bound with {CONFIDENCE:.0%} confidence")
    return ReleaseAudit(statistic=step.names[best], auc=auc(second, first), tpr=tpr_at_fpr(second, first, fpr=0.001),
                        mu_lower=mu_lower, mu=mu, audited=audited, certified=certified)


class _OneStep:
    """One step of a trial that has its calibrated noise, to be run on two worst-case neighbours; its statistics."""

    def __init__(self, config: TrialConfig, mechanism: MechanismStep | None) -> None:  # the trial's own if None
        cpu = torch.device("cpu")
        self._has_layers = not config.parts.network.own
        net = make_network(config, [config.seed]) if self._has_layers else Flat(config)
        matrices = FEEDBACK[config.parts.feedback](Pack((config,)), net, cpu).matrices if config.denoise else None
        self._mechanism = mechanism or make_mechanism(Pack((config,)), net, cpu, matrices)
        self._neighbours = _worst_neighbours(config, net.sizes)
        self._pools = self._has_layers and not config.exact
        self._sigma = noise_deviation(config) / config.batch_size
        without_noise = TrialConfig(config.given, noise_multiplier=0.0, noise="research", private_metrics="")
        noiseless = make_mechanism(Pack((without_noise,)), net, cpu, matrices)
        self._output = net.blank_parameters(1)
        means = [net.blank_parameters(1) for _ in range(2)]  # by neighbour
        for j, mean in enumerate(means):  # the release without noise is the mean of the release with noise
            self._release(noiseless, j, mean)
        # Blocks of each release, the weights and biases of every layer; the first show the latest output.
        self._blocks = [[block[0].numpy() for block in parameters.weights + parameters.biases]
                        for parameters in (self._output, *means)]
        layers = range(1, len(net.layers) + 1)
        self.names = ["all"]
        if self._has_layers:
            self.names += [*(f"weights {n}" for n in layers), *(f"biases {n}" for n in layers), "support"]

    def _release(self, mechanism: MechanismStep, j: int, to: Parameters) -> None:
        deltas, activations = self._neighbours[j]
        if self._pools:
            mechanism.net.forward(activations[0])  # sets this batch's maxima of convolutions
        mechanism.update(deltas, activations, to)

    def statistics(self, j: int) -> list[float]:
        """Return the statistics `names` of a new release on neighbour j, 0 or 1."""
        self._release(self._mechanism, j, self._output)
        ratios = [gaussian_log_ratio(output, mean_0, mean_1, self._sigma)
                  for output, mean_0, mean_1 in zip(*self._blocks, strict=True)]
        if not self._has_layers:
            return [sum(ratios)]
        first_layer = self._blocks[0][0]
        energy = float(np.square(first_layer[:, -1]).sum())  # in a column that only one neighbour reaches
        return [sum(ratios), *ratios, energy]


class Flat(StackedNetwork):
    """A network for mechanisms that see a contribution as one vector of d numbers: one layer of d biases alone."""

    def __init__(self, config: TrialConfig) -> None:
        self.sizes = (0, n_parameters(config.layers))
        self.layers = [make_layer(shape) for shape in dense_shapes(self.sizes)]


def gaussian_log_ratio(output: np.ndarray, mean_0: np.ndarray, mean_1: np.ndarray, sigma: float) -> float:
    """Return log p_1/p_0 of an output under the densities p_j of N(mean_j, sigma^2 I), sigma > 0.

    No other statistic distinguishes j = 1 from j = 0 better.
    """
    middle = (np.asarray(mean_0) + mean_1) / 2
    return float(np.sum((np.asarray(output) - middle) * (np.asarray(mean_1) - mean_0))) / sigma**2


def two_point_audit(zeros: np.ndarray, ones: np.ndarray, conf: float = CONFIDENCE) -> float:
    """Return a lower bound on mu of a step, from a statistic on two neighbouring inputs [trials] (Nasr et al. 2023).

    The statistic is larger for input 1 (`gaussian_log_ratio` for Gaussian output); it may be infinite. The first half
    of the trials on each input chooses the threshold with the best bound; the other half is counted. The bound holds
    with probability `conf`.
    """
    # Infinities become the largest numbers: a threshold fits between.
    zeros, ones = (np.nan_to_num(checked("statistics", values)) for values in (zeros, ones))
    half = len(zeros) // 2
    threshold = _best_threshold(np.sort(zeros[:half]), np.sort(ones[:half]), conf)
    false_positives = int((zeros[half:] > threshold).sum())
    false_negatives = int((ones[half:] <= threshold).sum())
    return float(gdp_mu_lower(false_positives, len(zeros) - half, false_negatives, len(ones) - half, conf))


def _best_threshold(zeros: np.ndarray, ones: np.ndarray, conf: float) -> float:  # sorted and finite
    """Return the threshold that gives the largest bound, among the midpoints of neighbouring statistics."""
    values = np.unique(np.concatenate([zeros, ones]))
    thresholds = values
    if len(values) > 1:
        thresholds = values[:-1] / 2 + values[1:] / 2  # halves first: the sum of two large numbers would overflow
    false_positives = len(zeros) - np.searchsorted(zeros, thresholds, side="right")
    false_negatives = np.searchsorted(ones, thresholds, side="right")
    return float(thresholds[np.argmax(gdp_mu_lower(false_positives, len(zeros), false_negatives, len(ones), conf))])


def _worst_neighbours(config: TrialConfig,
                      sizes: Sequence[int]) -> tuple[tuple[list[torch.Tensor], list[Activation]], ...]:
    """Return two neighbouring batches whose contributions any bound clips, for the largest possible difference.

    A batch is a pair of factors: deltas [1, m, n_l] and activations [1, m, n_{l-1}] of every layer. add/remove: no
    record, and one record. replace-one: the same record, and a record of opposite sign without the last input. The
    missing input brings the two closer by a relative 1/(8 n_0) at most.
    """
    norm = 1e4  # above every bound on contributions

    def equal_entries(n: int) -> torch.Tensor:
        """Return a vector [1, 1, n] of norm `norm` with equal entries."""
        return torch.full((1, 1, n), norm / max(n, 1)**0.5)

    deltas = [equal_entries(n) for n in sizes[1:]]
    activations = [equal_entries(n) for n in sizes[:-1]]
    if config.parts.sampler.relation == "add/remove":  # no record
        other_deltas, other_activations = [delta[:, :0] for delta in deltas], [h[:, :0] for h in activations]
    else:
        without_last = activations[0].clone()
        without_last[..., -1:] = 0  # a slice, because contributions of a user's network have no inputs
        other_deltas, other_activations = [-delta for delta in deltas], [without_last, *activations[1:]]
    if config.exact:  # integer arithmetic
        return (_in_integers(config, other_deltas, other_activations), _in_integers(config, deltas, activations))
    return (other_deltas, other_activations), (deltas, activations)


def _in_integers(config: TrialConfig, deltas: list[torch.Tensor],
                 activations: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[Activation]]:
    """Return factors of the given signs, as large as integers allow; no layer's part is truncated to nothing."""
    largest = largest_integers(config)
    inputs = [IntegerRows((activation > 0).to(whole_type(largest.input)) * largest.input, step.input)
              for activation, step in zip(activations, steps(config, 1.0, 1.0), strict=True)]
    # Norms of vectors with equal entries: the largest entry times the root of their number.
    input_norms = [rows.step * largest.input * rows.values.shape[-1]**0.5 for rows in inputs]
    roots = [delta.shape[-1]**0.5 for delta in deltas]
    largest_norms = [step * largest.signal * input_norm * root
                     for step, input_norm, root in zip(signal_steps(config), input_norms, roots, strict=True)]
    part_norm = min(largest_norms)  # of a layer's part, delta times input; every layer can have it
    scaled = [delta.sign() * (part_norm / input_norm / root)
              for delta, input_norm, root in zip(deltas, input_norms, roots, strict=True)]
    return scaled, inputs
