"""A training run as a privacy event, and its epsilon by every accountant that is proved for its sampler.

    sampler               relation      accountants
    poisson               add/remove    pld
    without_replacement   replace-one   pld, rdp/improved, rdp/classic
    shuffled              replace-one   gdp (no amplification)

The guarantee assumes that every record's contribution was clipped to norm C after all record-local randomness. It
assumes that the noise was then added to the sum of all released tensors, or to this sum divided by a public constant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dp
from dp_accounting.rdp import RdpAccountant

from pipeline.accounting import curves
from pipeline.accounting.calibration import calibrate, kept
from pipeline.accounting.epsilon import check_delta
from pipeline.trials import sampler
from pipeline.trials.fields import UserError
from pipeline.trials.mechanism import MIN_DELTA_PER_STEP, MIN_NOISE_OVER_C
from pipeline.trials.part import Workers, parts_of
from pipeline.trials.sampler import Sampler

# From q, z and the interval to the privacy-loss distribution of a step, of samplers that amplify privacy.
STEP_LOSSES: Workers[Callable[[float, float, float], curves.LossDistribution]] = Workers()
STEP_LOSSES.of(sampler.Poisson)(curves.poisson_losses)
STEP_LOSSES.of(sampler.WithoutReplacement)(curves.without_replacement_losses)

NEIGHBOURS = {"add/remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace-one": NeighboringRelation.REPLACE_ONE}
LEAST_NOISE_OVER_SENSITIVITY = MIN_NOISE_OVER_C / 2  # the sensitivity is 2 C under replace-one
LITTLE_NOISE = 0.4  # below it the loss of one step spreads over tens, so the grid is `COARSEST`
# Of full batches: above either, a grid of losses is too large, and one Gaussian is accounted for instead.
LARGEST_MU, MOST_STEPS = 30.0, 100_000
# Names of accountants, and how each converts its curve to (epsilon, delta).
CONVERSIONS = {"pld": "pld", "rdp/improved": "improved", "rdp/classic": "classic", "gdp": "exact"}


class UnsupportedAccounting(UserError, ValueError):
    """A schedule without a proof here; the message names the missing proof and the schedules that are accounted for."""


@dataclass(frozen=True)
class PrivacyEvent:
    """A training run with Gaussian noise on sums over a sampler's batches: all that epsilon depends on.

    Attributes:
        sampler: its name; its class names the accountants that are proved for it.
        noise_multiplier: z, over the sensitivity and not over C; None until it is calibrated.
        steps, epochs: of the whole run; a shuffled record takes part at most once an epoch.
        sampling_rate: probability that a record is in a Poisson batch.
        N, m: of batches without replacement, m of N records.
    """

    sampler: str
    noise_multiplier: float | None
    steps: int
    epochs: int
    sampling_rate: float | None = None
    N: int | None = None
    m: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "epochs"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}: must be >= 1, got {getattr(self, name)}")
        given = [name for name in ("sampling_rate", "N", "m") if getattr(self, name) is not None]
        if set(given) != set(self.sampler_class.rate_names):
            raise ValueError(f"rates: must be {' and '.join(self.sampler_class.rate_names) or 'none'} for sampler "
                             f"{self.sampler}, got {' and '.join(given) or 'none'}")
        if given and not 0 < self.q <= 1:
            raise ValueError(f"sampling rate: must be > 0 and at most 1, got {self.q}")
        if self.noise_multiplier is not None and not self.noise_multiplier >= 0:
            raise ValueError(f"noise_multiplier: must be >= 0, got {self.noise_multiplier}")

    @property
    def sampler_class(self) -> type[Sampler]:
        return parts_of("sampler", Sampler)[self.sampler]

    @property
    def relation(self) -> str:
        """Return the neighbouring relation, a key of `NEIGHBOURS`."""
        return self.sampler_class.relation

    @property
    def z(self) -> float:
        """Return `noise_multiplier`; refuse an event that has none, or none yet."""
        if self.noise_multiplier is None:
            raise ValueError("noise_multiplier: not set; noise_for calibrates it")
        return self.noise_multiplier

    @property
    def q(self) -> float:
        """Return the probability that a record takes part in a step; refuse shuffled and unsampled events."""
        if self.sampling_rate is not None:
            return self.sampling_rate
        if self.m is not None and self.N is not None:
            return self.m / self.N
        raise ValueError("q: shuffled batches have no sampling rate, only participations")

    @property
    def participations(self) -> int:
        """Return how often a record may take part: in every step, of shuffled batches once an epoch."""
        return self.steps if self.sampler_class.amplified else self.epochs

    @property
    def run(self) -> dp.SelfComposedDpEvent:
        """Return the whole run as an event of `dp_accounting`."""
        step: dp.DpEvent = dp.GaussianDpEvent(self.z)
        if self.sampling_rate is not None:
            step = dp.PoissonSampledDpEvent(self.sampling_rate, step)
        elif self.N is not None:
            step = dp.SampledWithoutReplacementDpEvent(self.N, self.m, step)
        return dp.SelfComposedDpEvent(step, self.participations)

    @property
    def mu(self) -> float | None:
        """Return mu of the one Gaussian mechanism that stands for the run, or None if losses of steps are composed.

        One stands for shuffled batches, and for full batches (q = 1) whose grid of losses would be too coarse or large.
        """
        mu = math.sqrt(self.participations) / self.z if self.z else math.inf
        if not self.sampler_class.amplified:
            return mu
        is_too_large = mu > LARGEST_MU or self.steps > MOST_STEPS
        has_no_grid = is_too_large or sufficient_interval((self.steps, mu**2)) < curves.DISCRETIZATION
        return mu if self.q == 1 and has_no_grid else None

    @property
    def loss_count_and_variance(self) -> tuple[int, float]:
        """Return (number of composed loss distributions, variance of their sum, approximately); needs z > 0."""
        if self.mu is not None:
            return 1, self.mu**2
        return self.steps, self.steps * self.q**2 * math.expm1(1 / self.z**2)  # q^2 (e^(1/z^2) - 1) a step

    @property
    def accountants(self) -> tuple[str, ...]:
        """Return the names of the accountants that take the event, the tightest first."""
        proved = self.sampler_class.accountants
        # With so little noise pld is slow, so it is left out unless it is the only one.
        if self.noise_multiplier and self.noise_multiplier < LEAST_NOISE_OVER_SENSITIVITY:
            return tuple(name for name in proved if name != "pld") or proved
        return proved

    @lru_cache(maxsize=1024)  # noqa: B019  (events are few and small)
    def renyi(self) -> np.ndarray:
        """Return the run's Renyi divergence at all `ORDERS`, [len(ORDERS)], read-only."""
        if self.N is not None:  # `dp_accounting` has the same values, in seconds
            curve = self.steps * curves.without_replacement_rdp(self.q, self.z)
        else:
            curve = np.array(RdpAccountant(curves.ORDERS, NEIGHBOURS[self.relation]).compose(self.run).rdp)
        curve.setflags(write=False)
        return curve

    @lru_cache(maxsize=4096)  # noqa: B019
    def value(self, delta: float, accountant: str = "") -> float:
        """Return epsilon of the whole run, every step published, by one accountant, by default the tightest.

        It is infinite without noise. An accountant without a proof for the sampler is refused.
        """
        accountant = accountant or self.accountants[0]
        if accountant not in self.sampler_class.accountants:
            raise UnsupportedAccounting(f"accountant {accountant!r}: not proved for sampler {self.sampler} with "
                                        f"relation {self.relation}, only {', '.join(self.sampler_class.accountants)}")
        check_delta(delta)
        if self.z == 0:
            return math.inf
        if accountant == "pld":
            return composed_epsilon([self], 0.0, delta)[0]
        if accountant == "gdp":  # of samplers without amplification, whose mu is never None
            return curves.gdp_eps(math.inf if self.mu is None else self.mu, delta)
        convert = curves.improved_conversion if accountant == "rdp/improved" else curves.classic_conversion
        return convert(curves.ORDERS, self.renyi(), delta)[0]

    def noise_for(self, target_epsilon: float, delta: float, least: float = LEAST_NOISE_OVER_SENSITIVITY) -> float:
        """Return the z >= `least`, over the sensitivity, that gives the run 0.99 to 1 times `target_epsilon`.

        The event's present noise does not matter. A target that no such z attains is refused.
        """
        unset = replace(self, noise_multiplier=None)
        accountant, *_ = unset.accountants

        def epsilon_of(noise_multiplier: float) -> float:
            return replace(self, noise_multiplier=noise_multiplier).value(delta, accountant)

        def search() -> float:
            return calibrate(target_epsilon, epsilon_of, "noise multiplier", LEAST_NOISE_OVER_SENSITIVITY, least)

        return kept((unset, delta, accountant), target_epsilon, epsilon_of, least, search)


def interval_of(*events: PrivacyEvent) -> float:
    """Return the interval of the events' common grid of privacy losses; refuse one whose noise is too small for any."""
    for event in events:
        if event.z < LEAST_NOISE_OVER_SENSITIVITY:
            raise UnsupportedAccounting(f"noise_multiplier: must be at least {LEAST_NOISE_OVER_SENSITIVITY} for a "
                                        "privacy-loss distribution (smaller noise has an epsilon in the hundreds, and "
                                        f"a grid of hundreds of millions), got {event.z}")
    if len(events) == 1 and events[0].z < LITTLE_NOISE:
        return curves.COARSEST
    largest = curves.DISCRETIZATION if len(events) == 1 else curves.COARSEST  # of several kinds of runs
    sufficient = sufficient_interval(*(event.loss_count_and_variance for event in events))
    return max(min(sufficient, largest), curves.FINEST)


def sufficient_interval(*runs: tuple[int, float]) -> float:  # `loss_count_and_variance` of every run
    """Return the interval of a grid of privacy losses at which rounding adds 0.2% to the variance of their sum."""
    counts, variances = zip(*runs, strict=True)
    return math.sqrt(0.008 * sum(variances) / sum(counts))  # rounding adds at most interval^2/4 to each variance


def loss_distribution(event: PrivacyEvent, interval: float | None = None) -> curves.LossDistribution:
    """Return the privacy-loss distribution of a sampler's whole run; a coarse grid is faster, its epsilon larger."""
    interval = interval or interval_of(event)
    if event.mu is not None:  # one Gaussian mechanism of sensitivity 1: rate 1 takes every record
        return curves.poisson_losses(1.0, 1 / event.mu, interval)
    return STEP_LOSSES[event.sampler_class](event.q, event.z, interval).self_compose(event.steps)


def pld_epsilon(losses: curves.LossDistribution, delta: float, steps: int) -> float:
    """Return epsilon at delta of losses that are composed of `steps` distributions, and never less than the true one.

    A delta that rounding errors could reach is refused.
    """
    min_delta = steps * MIN_DELTA_PER_STEP
    if delta < min_delta:
        raise UnsupportedAccounting(f"delta: must be at least {min_delta:.3g} for a privacy-loss distribution of "
                                    f"{steps} steps, below which its rounding errors count, got {delta:.3g}; use a "
                                    "larger one, or fewer steps")
    # Composition by Fourier transforms misplaces up to steps x 2^-53 of probability, as measured against exact Gaussian
    # compositions of up to 10^6 steps. This is about ten times as much.
    rounding_margin = min_delta / 10
    return float(losses.get_epsilon_for_delta(delta - rounding_margin))


def composed_epsilon(events: Sequence[PrivacyEvent], extra_mu: float, delta: float) -> tuple[float, str]:
    """Return (epsilon, conversion) of all events together with a Gaussian release of mu `extra_mu`, unless that is 0.

    The conversion is `exact` if all are accounted for as Gaussians, or one has no noise, else `pld`.
    """
    if any(event.z == 0 for event in events):
        return math.inf, "exact"
    if all(event.mu is not None for event in events):
        mus = (event.mu or 0.0 for event in events)  # `or` is for types: none is None here
        return curves.gdp_eps(math.hypot(extra_mu, *mus), delta), "exact"
    # Equal events become one longer run: composing its steps at once is faster.
    runs = [replace(event, steps=event.steps * count, epochs=event.epochs * count)
            for event, count in Counter(events).items()]
    interval = interval_of(*runs)
    distributions = [loss_distribution(run, interval) for run in runs]
    n_steps = sum(run.loss_count_and_variance[0] for run in runs)
    if extra_mu:
        distributions.append(curves.poisson_losses(1.0, 1 / extra_mu, interval))
        n_steps += 1
    total = reduce(curves.LossDistribution.compose, distributions)
    return pld_epsilon(total, delta, n_steps), "pld"


def sensitivity(C: float, relation: str) -> float:
    """Return the sensitivity of a sum over records whose contributions have norm at most C: C or 2 C, by relation."""
    return C if relation == "add/remove" else 2 * C
