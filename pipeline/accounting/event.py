"""`certified` epsilon: accounting of Gaussian mechanisms on the released update, for the sampler that drew the batches.

A mechanism describes its releases as an immutable `PrivacyEvent`. Its accountants give epsilon, or refuse it with
`UnsupportedAccounting` and the reason. It answers what `stated.StatedEvent` answers, so that callers need not tell them
apart. Proved accountants:

    sampler               relation      accountants
    poisson               add/remove    pld
    without_replacement   replace-one   pld, rdp/improved, rdp/classic
    shuffled              replace-one   gdp (no amplification)

The guarantee assumes that every record's contribution was clipped to norm C after all record-local randomness. It
assumes that the noise was then added to the sum of all released tensors, or to this sum divided by a public constant.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant

from pipeline.accounting.calibration import calibrate, kept
from pipeline.accounting.curves import (
    COARSEST,
    DISCRETIZATION,
    FINEST,
    ORDERS,
    LossDistribution,
    classic_conversion,
    gdp_eps,
    improved_conversion,
    poisson_losses,
    without_replacement_rdp,
)
from pipeline.accounting.epsilon import Epsilon, check_delta
from pipeline.trials.fields import UserError
from pipeline.trials.mechanism import MIN_DELTA_PER_STEP, MIN_NOISE_OVER_C
from pipeline.trials.part import PARTS, load, parts_of
from pipeline.trials.sampler import RELATIONS, Sampler

NEIGHBOURS = {"add/remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace-one": NeighboringRelation.REPLACE_ONE}
CONVERSIONS = {"pld": "pld", "rdp/improved": "improved", "rdp/classic": "classic", "gdp": "exact"}
LEAST_NOISE_OVER_SENSITIVITY = MIN_NOISE_OVER_C / 2  # the sensitivity is 2 C under replace-one
LITTLE_NOISE = 0.4  # below it the loss of one step spreads over tens, so the grid is `COARSEST`
# Of full batches: above either, a grid of losses is too large, and one Gaussian is accounted for instead.
LARGEST_MU, MOST_STEPS = 30.0, 100_000


class UnsupportedAccounting(UserError, ValueError):
    """A schedule without a proof here; the message names the missing proof and the schedules that are accounted for."""


class TooLittleNoise(UnsupportedAccounting):
    """Noise that is too small for the grid of a privacy-loss distribution."""


@dataclass(frozen=True)
class PrivacyEvent:
    """A training run as a sequence of Gaussian mechanisms: all that its epsilon depends on."""

    sampler: str
    relation: str  # one of `RELATIONS`
    # z, the standard deviation of the noise on the batch sum over the sum's sensitivity: C for add/remove, 2 C for
    # replace-one. Noise sigma_w on the mean gives z = sigma_w q N/C or sigma_w m/(2 C). 0: no noise; None: not
    # calibrated yet.
    noise_multiplier: float | None
    steps: int  # releases in the whole run
    epochs: int  # passes over the records in the whole run; a shuffled record takes part at most once in each
    sampling_rate: float | None = None  # q of poisson
    N: int | None = None  # records, and batch size m, of without_replacement
    m: int | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range, missing sampling fields, and those that the sampler does not use."""
        for name, accepted in (("sampler", PARTS["sampler"]), ("relation", RELATIONS)):
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name}: must be one of {', '.join(accepted)}, got {getattr(self, name)!r}")
        if self.noise_multiplier is not None and not self.noise_multiplier >= 0:
            raise ValueError(f"noise_multiplier: must be >= 0, got {self.noise_multiplier}")
        for name in ("steps", "epochs"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}: must be >= 1, got {getattr(self, name)}")
        needed = self.sampler_class.rate_names
        for name in ("sampling_rate", "N", "m"):
            value = getattr(self, name)
            if name in needed and value is None:
                raise ValueError(f"{name}: missing for sampler {self.sampler}, got None")
            if name not in needed and value is not None:
                raise ValueError(f"{name}: has no meaning for sampler {self.sampler}, got {value}")
        if needed and not 0 < self.q <= 1:
            raise ValueError(f"sampling rate: must be > 0 and at most 1, got {self.q}")

    @property
    def q(self) -> float:
        """Return the probability that a record takes part in a step."""
        if self.sampling_rate is not None:
            return self.sampling_rate
        if self.m is not None and self.N is not None:
            return self.m / self.N
        raise ValueError("q: shuffled batches have no sampling rate, only participations")

    @property
    def z(self) -> float:
        """Return the noise multiplier, once it is calibrated."""
        if self.noise_multiplier is None:
            raise ValueError("noise_multiplier: not set; noise_multiplier_for calibrates it")
        return self.noise_multiplier

    @property
    def mu(self) -> float | None:
        """Return mu if the whole run is one Gaussian mechanism, as without amplification; otherwise None.

        E shuffled epochs are sqrt(E)/z-Gaussian DP, and so are E steps on all records. The latter have a privacy-loss
        distribution, too. It is left where its grid would be too coarse or too large.
        """
        releases = self.steps if self.sampler_class.amplified else self.epochs  # of one record
        mu = math.sqrt(releases) / self.z if self.z else math.inf
        if not self.sampler_class.amplified:
            return mu
        is_too_large = mu > LARGEST_MU or self.steps > MOST_STEPS
        is_left = is_too_large or sufficient_interval((self.steps, mu**2)) < DISCRETIZATION
        return mu if self.q == 1 and is_left else None

    @property
    def losses(self) -> tuple[int, float]:
        """Return how many privacy-loss distributions the run composes, and about the variance of their sum.

        With sampling rate q and noise multiplier z, the variance is q^2 (e^(1/z^2) - 1) per step.
        """
        if self.mu is not None:
            return 1, self.mu**2
        return self.steps, self.steps * self.q**2 * math.expm1(1 / self.z**2)

    @property
    def sampler_class(self) -> type[Sampler]:
        """Return the class of the sampler, which knows its accountants and its neighbouring relation."""
        return parts_of("sampler", Sampler)[self.sampler]

    @property
    def noiseless(self) -> bool:
        """Whether the run has no noise, so that its epsilon is infinite."""
        return self.z == 0

    @property
    def note(self) -> str:
        """Return the note on a certified epsilon: the noise multiplier, and how often a record takes part in a step."""
        if self.noise_multiplier == 0:
            return "no noise, no guarantee"
        return f"noise multiplier {self.z:.4g}; {self.sampler_class.part_in_step}; holds for every released iterate"

    @property
    def accountants(self) -> tuple[str, ...]:
        """Return the names of the accountants that are proved for the sampler, the tightest first.

        For noise below `LEAST_NOISE_OVER_SENSITIVITY` the slow `pld` is left out, unless it is the only accountant.
        """
        if self.relation != self.sampler_class.relation:
            known = "; ".join(f"{name} with {other.relation}" for name, other in parts_of("sampler", Sampler).items())
            raise UnsupportedAccounting(f"sampler {self.sampler} with relation {self.relation}: "
                                        f"{self.sampler_class.other_relation} (accounted for: {known})")
        proved = self.sampler_class.accountants
        if self.noise_multiplier and self.noise_multiplier < LEAST_NOISE_OVER_SENSITIVITY:
            return tuple(name for name in proved if name != "pld") or proved
        return proved

    @property
    def neighbours(self) -> NeighboringRelation:
        """Return the neighbouring relation for `dp_accounting`'s accountants."""
        return NEIGHBOURS[self.relation]

    @property
    def run(self) -> SelfComposedDpEvent:
        """Return the whole run as an event of `dp_accounting`."""
        gaussian = GaussianDpEvent(self.noise_multiplier)
        if not self.sampler_class.amplified:
            return SelfComposedDpEvent(gaussian, self.epochs)
        if self.sampler_class.full:  # batches have a fixed size
            return SelfComposedDpEvent(SampledWithoutReplacementDpEvent(self.N, self.m, gaussian), self.steps)
        return SelfComposedDpEvent(PoissonSampledDpEvent(self.q, gaussian), self.steps)

    @lru_cache(maxsize=1024)  # noqa: B019  (events are few and small)
    def renyi(self) -> np.ndarray:
        """Return the Renyi divergence of the whole run at all orders of `ORDERS`, [len(ORDERS)], read-only."""
        if self.sampler_class.amplified and self.sampler_class.full:  # `dp_accounting` takes seconds
            curve = self.steps * without_replacement_rdp(self.q, self.z)
        else:
            curve = np.array(RdpAccountant(ORDERS, self.neighbours).compose(self.run).rdp)
        curve.setflags(write=False)
        return curve

    @lru_cache(maxsize=4096)  # noqa: B019
    def value(self, delta: float, accountant: str) -> float:
        """Return epsilon at delta by one accountant; infinite without noise.

        `gdp` is exact for one Gaussian mechanism. `pld` composes privacy-loss distributions of steps. `rdp/...`
        converts the Renyi divergence of batches without replacement.
        """
        check_delta(delta)
        if self.noiseless:
            return math.inf
        if self.mu is not None and accountant in ("gdp", "pld"):
            return gdp_eps(self.mu, delta)
        if accountant == "pld":
            return pld_epsilon(loss_distribution(self), delta, self.steps)
        convert = {"rdp/classic": classic_conversion, "rdp/improved": improved_conversion}[accountant]
        value, _ = convert(ORDERS, self.renyi(), delta)
        return value


def epsilon(event: PrivacyEvent, delta: float, accountant: str | None = None) -> Epsilon:
    """Return the certified epsilon of publishing the weights after every step of the run; infinite without noise.

    `accountant` is one of `event.accountants`; None takes the tightest.
    """
    accountant = _accountant_for(event, accountant)
    return Epsilon(event.value(delta, accountant), kind="certified", variant=accountant, relation=event.relation,
                   sampler=event.sampler, delta=delta, conversion=CONVERSIONS[accountant], note=event.note)


def noise_multiplier_for(target_epsilon: float, event: PrivacyEvent, delta: float, accountant: str | None = None,
                         least: float = LEAST_NOISE_OVER_SENSITIVITY) -> float:
    """Return the noise multiplier that `event` needs for an epsilon between 0.99 and 1 times `target_epsilon`."""
    accountant = _accountant_for(event, accountant)

    def epsilon_of(noise_multiplier: float) -> float:
        return dataclasses.replace(event, noise_multiplier=noise_multiplier).value(delta, accountant)

    of = repr(dataclasses.replace(event, noise_multiplier=None)), delta, accountant
    return kept(of, target_epsilon, epsilon_of, least, lambda: calibrate(
        target_epsilon, epsilon_of, "noise multiplier", LEAST_NOISE_OVER_SENSITIVITY, least))


def _accountant_for(event: PrivacyEvent, accountant: str | None) -> str:
    """Return the given accountant if it is proved for the event, or the tightest for None."""
    proved = event.accountants
    if accountant is None:
        return proved[0]
    if accountant in event.sampler_class.accountants:
        return accountant
    reason = "" if event.sampler_class.amplified else "; amplification by sampling is not proved for shuffled batches"
    raise UnsupportedAccounting(f"accountant {accountant!r}: not proved for sampler {event.sampler} with relation "
                                f"{event.relation}, only {', '.join(proved)}{reason}")


def interval_of(event: PrivacyEvent) -> float:
    """Return the interval of the grid of privacy losses: coarse for little noise, whose losses spread widely.

    It is fine where losses are so small that rounding would count.
    """
    if event.z < LITTLE_NOISE:
        return COARSEST
    return max(min(sufficient_interval(event.losses), DISCRETIZATION), FINEST)


def sufficient_interval(*runs: tuple[int, float]) -> float:
    """Return the interval of a grid of privacy losses at which rounding adds 0.2% to the variance of their sum.

    Rounding adds at most interval^2/4 to the variance of each of the composed losses, `PrivacyEvent.losses` of every
    run.
    """
    counts, variances = zip(*runs, strict=True)
    return math.sqrt(0.008 * sum(variances) / sum(counts))


def loss_distribution(event: PrivacyEvent, interval: float | None = None) -> LossDistribution:
    """Return the privacy-loss distribution of the whole run, from which epsilon follows at any delta.

    Sampled batches compose the losses of steps. Others are one Gaussian mechanism of sensitivity 1 with noise 1/mu.
    Epsilon is valid on any grid, by default of `interval_of(event)`; a coarse grid is faster and gives a larger
    epsilon.
    """
    check_losses(event)
    interval = interval or interval_of(event)
    if event.mu is not None:
        return poisson_losses(1.0, 1 / event.mu, interval)
    losses_of_step = load(event.sampler_class.losses)  # the sampler's function, given by name
    return losses_of_step(event.q, event.z, interval).self_compose(event.steps)


def check_losses(event: PrivacyEvent) -> None:
    """Refuse an event without a privacy-loss distribution: none is proved, or its noise is too small for the grid."""
    noise = event.noise_multiplier
    if event.accountants and (noise is None or noise < LEAST_NOISE_OVER_SENSITIVITY):  # raises if none is proved
        raise TooLittleNoise(f"noise_multiplier: must be at least {LEAST_NOISE_OVER_SENSITIVITY} for a "
                             "privacy-loss distribution (smaller noise has an epsilon in the hundreds, and a grid of "
                             f"hundreds of millions), got {event.noise_multiplier}")


def pld_epsilon(losses: LossDistribution, delta: float, steps: int) -> float:
    """Return epsilon from the privacy-loss distribution of `steps` composed steps, never below the true epsilon.

    Composition by Fourier transforms misplaces up to steps x 2^-53 of probability, as measured against exact Gaussian
    compositions of up to 10^6 steps. About ten times this error, steps x 10^-15, is subtracted from delta.
    """
    min_delta = steps * MIN_DELTA_PER_STEP
    if delta < min_delta:
        raise UnsupportedAccounting(f"delta: must be at least {min_delta:.3g} for a privacy-loss distribution of "
                                    f"{steps} steps, below which its rounding errors count, got {delta:.3g}; use a "
                                    "larger one, or an accountant other than pld")
    rounding_margin = min_delta / 10
    return float(losses.get_epsilon_for_delta(delta - rounding_margin))


def certified_component_norm(tau_B: Sequence[float], gamma: Sequence[float], tau_h_prev: Sequence[float],
                             bias: bool = True) -> float:
    """Return C, the largest Euclidean norm of one record's contribution if error and activations are clipped.

        C^2 = sum over layers l of tau_{B,l}^2 gamma_l^2 (tau_{h,l-1}^2 + 1)

    tau_B bounds the projected error, and for the output layer, which is last, the error itself. gamma bounds the slope
    of the activation function, 1 for the output layer. tau_h_prev bounds the activations that enter a layer.
    """
    squared_norms = [(B * g) ** 2 * (h**2 + bias) for B, g, h in zip(tau_B, gamma, tau_h_prev, strict=True)]  # by layer
    return math.sqrt(sum(squared_norms))


def sensitivity(C: float, relation: str) -> float:
    """Return the sensitivity of a sum over records whose contributions have norm at most C.

    It is C if a record is added or removed, and 2 C if a record is replaced by another.
    """
    if relation not in RELATIONS:
        raise ValueError(f"relation: must be one of {', '.join(RELATIONS)}, got {relation!r}")
    return C if relation == "add/remove" else 2 * C
