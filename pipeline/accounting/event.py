"""A training run as a privacy event, and its epsilon by every accountant that takes the event.

A `PrivacyEvent` is one `dp_accounting` event, repeated. Batches of the package's samplers with Gaussian noise have
accountants that are proved here. Other events come from trainers that state them; `dp_accounting` takes most of them:

    sampler               relation      accountants
    poisson               add/remove    pld
    without_replacement   replace-one   pld, rdp/improved, rdp/classic
    shuffled              replace-one   gdp (no amplification)
    by_trainer            either        pld, rdp/improved

The guarantee assumes that every record's contribution was clipped to norm C after all record-local randomness. It
assumes that the noise was then added to the sum of all released tensors, or to this sum divided by a public constant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Unpack

import attrs
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dp
from dp_accounting.rdp import RdpAccountant

from pipeline.accounting import curves, dp_events
from pipeline.accounting.calibration import calibrate, kept
from pipeline.accounting.dp_events import LEAST_NOISE_OVER_SENSITIVITY
from pipeline.accounting.epsilon import check_delta
from pipeline.trials.fields import ConfigError, UserError
from pipeline.trials.mechanism import MIN_DELTA_PER_STEP
from pipeline.trials.part import load, parts_of
from pipeline.trials.sampler import Rates, Sampler

NEIGHBOURS = {"add/remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace-one": NeighboringRelation.REPLACE_ONE}
BY_TRAINER = "by_trainer"  # in place of a sampler's name, for events that a trainer states
LITTLE_NOISE = 0.4  # below it the loss of one step spreads over tens, so the grid is `COARSEST`
# Of full batches: above either, a grid of losses is too large, and one Gaussian is accounted for instead.
LARGEST_MU, MOST_STEPS = 30.0, 100_000
# Names of accountants, and how each converts its curve to (epsilon, delta).
CONVERSIONS = {"pld": "pld", "rdp/improved": "improved", "rdp/classic": "classic", "gdp": "exact"}


class UnsupportedAccounting(UserError, ValueError):
    """A schedule without a proof here; the message names the missing proof and the schedules that are accounted for."""


class TooLittleNoise(UnsupportedAccounting):
    """Noise that is too small for the grid of a privacy-loss distribution."""


@dataclass(frozen=True)
class PrivacyEvent:
    """A training run as one event, repeated: all that epsilon depends on; noise is over the sensitivity, not over C."""

    step: dp.DpEvent  # what one step releases, or one epoch if a trainer states so; hashable: tuples, no lists
    steps: int  # how often `step` is repeated in the whole run
    epochs: int  # passes over the records in the whole run; a shuffled record takes part at most once in each
    relation: str  # a key of `NEIGHBOURS`
    sampler: str = BY_TRAINER  # its accountants are proved here; those of `BY_TRAINER` are `dp_accounting`'s

    def __post_init__(self) -> None:
        for name in ("steps", "epochs"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}: must be >= 1, got {getattr(self, name)}")

    @property
    def proved(self) -> type[Sampler] | None:
        """Return the sampler's class, which names the accountants proved for it; None for a stated event."""
        return None if self.sampler == BY_TRAINER else parts_of("sampler", Sampler)[self.sampler]

    @property
    def noise_multiplier(self) -> float | None:
        """Return z, the step's noise over the sensitivity; None before calibration, or if the step is a composition."""
        return getattr(dp_events.unsampled(self.step), "noise_multiplier", None)

    @property
    def z(self) -> float:
        """Return `noise_multiplier`; refuse an event that has none, or none yet."""
        if self.noise_multiplier is None:
            raise ValueError("noise_multiplier: not set; noise_for calibrates it")
        return self.noise_multiplier

    def with_noise(self, noise_multiplier: float | None) -> PrivacyEvent:
        """Return this event of `gaussian` with this z (over the sensitivity) in place of its own; sampling stays.

        None stands for noise to be calibrated. Stated events are not accepted: their steps have other forms.
        """
        noise = dp.GaussianDpEvent(noise_multiplier)
        step = noise if isinstance(self.step, dp.GaussianDpEvent) else attrs.evolve(self.step, event=noise)
        return replace(self, step=step)

    @property
    def sampling_rate(self) -> float | None:
        """Return q of Poisson batches; None for others."""
        return getattr(self.step, "sampling_probability", None)

    @property
    def N(self) -> int | None:  # noqa: N802
        """Return the number of records that batches without replacement are drawn from; None for others."""
        return getattr(self.step, "source_dataset_size", None)

    @property
    def m(self) -> int | None:
        """Return the size of batches without replacement; None for others."""
        return getattr(self.step, "sample_size", None)

    @property
    def q(self) -> float:
        """Return the probability that a record takes part in a step; refuse shuffled and unsampled events."""
        if self.sampling_rate is not None:
            return self.sampling_rate
        if self.m is not None and self.N is not None:
            return self.m / self.N
        raise ValueError("q: shuffled batches have no sampling rate, only participations")

    @property
    def run(self) -> dp.SelfComposedDpEvent:
        """Return the whole run as an event of `dp_accounting`: `step` repeated, for shuffled batches once an epoch."""
        by_epoch = self.proved and not self.proved.amplified  # a shuffled record takes part at most once an epoch
        return dp.SelfComposedDpEvent(self.step, self.epochs if by_epoch else self.steps)

    @property
    def mu(self) -> float | None:
        """Return mu of the whole run, its noise set, if it is accounted for as one Gaussian mechanism; else None.

        It is for Gaussians without sampling, and for full batches (q = 1) that no grid of losses suits.
        """
        if not (self.proved and self.proved.amplified):
            return dp_events.gaussian_mu(self.run)
        # Steps on all records have a privacy-loss distribution, too; it is left if its grid is too coarse or too large.
        mu = math.sqrt(self.steps) / self.z if self.z else math.inf
        is_too_large = mu > LARGEST_MU or self.steps > MOST_STEPS
        is_left = is_too_large or sufficient_interval((self.steps, mu**2)) < curves.DISCRETIZATION
        return mu if self.q == 1 and is_left else None

    @property
    def losses(self) -> tuple[int, float]:
        """Return (number of privacy-loss distributions that the run composes, about their sum's variance); z > 0."""
        if self.mu is not None:
            return 1, self.mu**2
        return self.steps, self.steps * self.q**2 * math.expm1(1 / self.z**2)  # q^2 (e^(1/z^2) - 1) a step

    @property
    def noiseless(self) -> bool:
        """Whether a sampler's run has no noise: epsilon is infinite. False for stated events: accountants see to it."""
        return self.proved is not None and self.z == 0

    @property
    def accountants(self) -> tuple[str, ...]:
        """Return the names of the accountants that take the event, the tightest first."""
        if not self.proved:
            return tuple(name for name, takes in (
                ("pld", dp_events.has_losses(self.run, self.neighbours)),
                ("rdp/improved", RdpAccountant(curves.ORDERS, self.neighbours).supports(self.run))) if takes)
        # With so little noise pld is slow, so it is left out unless it is the only one.
        if self.noise_multiplier and self.noise_multiplier < LEAST_NOISE_OVER_SENSITIVITY:
            return tuple(name for name in self.proved.accountants if name != "pld") or self.proved.accountants
        return self.proved.accountants

    @property
    def neighbours(self) -> NeighboringRelation:
        """Return the neighbouring relation for `dp_accounting`'s accountants."""
        # They support randomized response under replace-one alone. That is valid under any relation, as randomized
        # response has the largest privacy loss of all mechanisms with its pure epsilon.
        return NeighboringRelation.REPLACE_ONE if dp_events.is_pure(self.step) else NEIGHBOURS[self.relation]

    @lru_cache(maxsize=1024)  # noqa: B019  (events are few and small)
    def renyi(self) -> np.ndarray:
        """Return the run's Renyi divergence at all `ORDERS`, [len(ORDERS)], read-only; refuse an event without one."""
        if self.proved and self.N is not None:  # `dp_accounting` has the same values, in seconds
            curve = self.steps * curves.without_replacement_rdp(self.q, self.z)
        else:
            accountant = RdpAccountant(curves.ORDERS, self.neighbours)
            if not accountant.supports(self.run):
                raise ConfigError("event: must have a Renyi divergence that is known, by which it is composed with "
                                  f"others, got {self.step}")
            curve = np.array(accountant.compose(self.run).rdp)
        curve.setflags(write=False)
        return curve

    @lru_cache(maxsize=4096)  # noqa: B019
    def value(self, delta: float, accountant: str = "") -> float:
        """Return epsilon of the whole run, every step published, by one accountant, by default the tightest.

        It is infinite without noise. An accountant without a proof for the sampler is refused.
        """
        accountant = accountant or self.accountants[0]
        # All that are proved, so also pld of little noise, which `accountants` leaves out.
        proved = self.proved.accountants if self.proved else self.accountants
        if accountant not in proved:
            raise UnsupportedAccounting(f"accountant {accountant!r}: not proved for sampler {self.sampler} with "
                                        f"relation {self.relation}, only {', '.join(proved)}")
        check_delta(delta)
        if self.noiseless:
            return math.inf
        if accountant == "pld":
            return composed_epsilon([self], 0.0, delta)[0]
        if accountant == "gdp":
            # `gdp` is of samplers without amplification, whose mu is never None
            return curves.gdp_eps(math.inf if self.mu is None else self.mu, delta)
        convert = curves.improved_conversion if accountant == "rdp/improved" else curves.classic_conversion
        return convert(curves.ORDERS, self.renyi(), delta)[0]

    def noise_for(self, target_epsilon: float, delta: float, least: float = LEAST_NOISE_OVER_SENSITIVITY) -> float:
        """Return the z >= `least`, over the sensitivity, that gives the run 0.99 to 1 times `target_epsilon`.

        The event is one of `gaussian`; its present noise does not matter. A target that no such z attains is refused.
        """
        accountant, *_ = self.accountants

        def epsilon_of(noise_multiplier: float) -> float:
            return self.with_noise(noise_multiplier).value(delta, accountant)

        return kept((self.with_noise(None), delta, accountant), target_epsilon, epsilon_of, least, lambda: calibrate(
            target_epsilon, epsilon_of, "noise multiplier", LEAST_NOISE_OVER_SENSITIVITY, least))


def gaussian(sampler: str, noise_multiplier: float | None, steps: int, epochs: int,
             **rates: Unpack[Rates]) -> PrivacyEvent:  # exactly the sampler's `rate_names`
    """Return the event of Gaussian noise, over the sensitivity, on sums of a sampler's batches; None: to be set."""
    part = parts_of("sampler", Sampler)[sampler]
    needed = part.rate_names
    if set(rates) != set(needed):
        raise ValueError(f"rates: must be {' and '.join(needed) or 'none'} for sampler {sampler}, got "
                         f"{' and '.join(rates) or 'none'}")
    if noise_multiplier is not None and not noise_multiplier >= 0:
        raise ValueError(f"noise_multiplier: must be >= 0, got {noise_multiplier}")
    step: dp.DpEvent = dp.GaussianDpEvent(noise_multiplier)
    if "sampling_rate" in rates:
        step = dp.PoissonSampledDpEvent(rates["sampling_rate"], step)
    elif "N" in rates:
        step = dp.SampledWithoutReplacementDpEvent(rates["N"], rates["m"], step)
    event = PrivacyEvent(step, steps, epochs, part.relation, sampler)
    if needed and not 0 < event.q <= 1:
        raise ValueError(f"sampling rate: must be > 0 and at most 1, got {event.q}")
    return event


def interval_of(*events: PrivacyEvent) -> float:
    """Return the interval of the events' common grid of privacy losses; refuse one whose noise is too small for any."""
    for event in events:
        noise = event.noise_multiplier
        if noise is None or noise < LEAST_NOISE_OVER_SENSITIVITY:
            raise TooLittleNoise(f"noise_multiplier: must be at least {LEAST_NOISE_OVER_SENSITIVITY} for a "
                                 "privacy-loss distribution (smaller noise has an epsilon in the hundreds, and a grid "
                                 f"of hundreds of millions), got {noise}")
    if len(events) == 1 and events[0].z < LITTLE_NOISE:
        return curves.COARSEST
    largest = curves.DISCRETIZATION if len(events) == 1 else curves.COARSEST  # of several kinds of runs
    return max(min(sufficient_interval(*(event.losses for event in events)), largest), curves.FINEST)


def sufficient_interval(*runs: tuple[int, float]) -> float:  # `PrivacyEvent.losses` of every run
    """Return the interval of a grid of privacy losses at which rounding adds 0.2% to the variance of their sum."""
    counts, variances = zip(*runs, strict=True)
    return math.sqrt(0.008 * sum(variances) / sum(counts))  # rounding adds at most interval^2/4 to each variance


def loss_distribution(event: PrivacyEvent, interval: float | None = None) -> curves.LossDistribution:
    """Return the privacy-loss distribution of a sampler's whole run; a coarse grid is faster, its epsilon larger."""
    interval = interval or interval_of(event)
    if event.mu is not None:  # one Gaussian mechanism of sensitivity 1: rate 1 takes every record
        return curves.poisson_losses(1.0, 1 / event.mu, interval)
    losses_of_step = load(parts_of("sampler", Sampler)[event.sampler].losses)  # the sampler's function, given by name
    return losses_of_step(event.q, event.z, interval).self_compose(event.steps)


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
    """Return (epsilon, conversion) of all events with one more Gaussian release of mu `extra_mu`, 0 for none.

    The conversion is `exact` if all are accounted for as Gaussians, or one has no noise. It is `pld` if all have
    privacy-loss distributions under a common relation, else `improved`, from Renyi divergences.
    """
    if any(event.noiseless for event in events):
        return math.inf, "exact"
    if all(event.mu is not None for event in events):
        mus = (event.mu or 0.0 for event in events)  # `or` is for types: none is None here
        return curves.gdp_eps(math.hypot(extra_mu, *mus), delta), "exact"
    # Equal events become one longer run: composing its steps at once is faster.
    runs = [replace(event, steps=event.steps * count, epochs=event.epochs * count)
            for event, count in Counter(events).items()]
    if all(event.proved for event in events):
        interval = interval_of(*runs)
        total, *others = (loss_distribution(run, interval) for run in runs)
        if extra_mu:
            others.append(curves.poisson_losses(1.0, 1 / extra_mu, interval))
        for losses in others:
            total = total.compose(losses)
        n_losses = sum(count for count, _ in (run.losses for run in runs)) + bool(extra_mu)
        return pld_epsilon(total, delta, n_losses), "pld"
    relations = {run.neighbours for run in runs}
    stated = [run.run for run in runs] + ([dp.GaussianDpEvent(1 / extra_mu)] if extra_mu else [])
    if len(relations) == 1 and all(dp_events.has_losses(event, *relations) for event in stated):
        return dp_events.composed_pld(stated, relations.pop(), delta), "pld"
    curve = sum((run.renyi() for run in runs), np.array(curves.ORDERS) * extra_mu**2 / 2)  # Renyi divergence, [orders]
    value = curves.improved_conversion(curves.ORDERS, curve, delta)[0] if np.isfinite(curve).any() else math.inf
    return value, "improved"


def sensitivity(C: float, relation: str) -> float:
    """Return the sensitivity of a sum over records whose contributions have norm at most C: C or 2 C, by relation."""
    return C if relation == "add/remove" else 2 * C
