"""`certified` epsilon: accounting of Gaussian mechanisms on the released update, for the sampler that drew the batches.

A mechanism describes its releases as an immutable `PrivacyEvent`. `epsilon` accounts for the event, or refuses it with
`UnsupportedAccounting` and the reason. Proved accountants:

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pipeline.accounting.curves import (
    COARSEST,
    DISCRETIZATION,
    ORDERS,
    LossDistribution,
    classic_conversion,
    gaussian_losses,
    gdp_eps,
    improved_conversion,
    without_replacement_rdp,
)
from pipeline.accounting.epsilon import Epsilon
from pipeline.trials.mechanism import MIN_DELTA_PER_STEP, MIN_NOISE_OVER_C
from pipeline.trials.part import PARTS, load, parts_of
from pipeline.trials.sampler import RELATIONS, Sampler

CONVERSIONS = {"pld": "pld", "rdp/improved": "improved", "rdp/classic": "classic", "gdp": "exact"}
LEAST_NOISE_OVER_SENSITIVITY = MIN_NOISE_OVER_C / 2  # the sensitivity is 2 C under replace-one
LITTLE_NOISE = 0.4  # below it the loss of one step spreads over tens, so the grid is `COARSEST`


class UnsupportedAccounting(ValueError):
    """A schedule without a proof here; the message names the missing proof and the schedules that are accounted for."""


@dataclass(frozen=True)
class PrivacyEvent:
    """A training run as a sequence of Gaussian mechanisms: all that its epsilon depends on.

    Attributes:
        sampler: name of a sampler.
        relation: one of `RELATIONS`.
        noise_multiplier: z, the standard deviation of the noise on the batch sum over the sensitivity of the sum under
            `relation`: C for add/remove, 2 C for replace-one. Noise sigma_w on the mean gives z = sigma_w q N/C or
            sigma_w m/(2 C). 0 means no noise; None means not calibrated yet.
        steps: releases in the whole run.
        epochs: passes over the records in the whole run; a shuffled record takes part at most once in each.
        sampling_rate: q of poisson.
        N, m: records and batch size of without_replacement.

    Raises:
        ValueError: for a value out of range, or a missing or superfluous field, naming it.
    """

    sampler: str
    relation: str
    noise_multiplier: float | None
    steps: int
    epochs: int
    sampling_rate: float | None = None
    N: int | None = None
    m: int | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range, and sampling fields that the sampler lacks or does not use."""
        for name, accepted in (("sampler", PARTS["sampler"]), ("relation", RELATIONS)):
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name}: must be one of {', '.join(accepted)}, got {getattr(self, name)!r}")
        if self.noise_multiplier is not None and not self.noise_multiplier >= 0:
            raise ValueError(f"noise_multiplier: must be >= 0, got {self.noise_multiplier}")
        for name in ("steps", "epochs"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}: must be >= 1, got {getattr(self, name)}")
        needed = self.drawn.rate_names
        for name in ("sampling_rate", "N", "m"):
            if (getattr(self, name) is not None) != (name in needed):
                raise ValueError(f"{name}: {'missing' if name in needed else 'has no meaning'} for sampler "
                                 f"{self.sampler}, got {getattr(self, name)}")
        if needed and not 0 < self.q <= 1:
            raise ValueError(f"sampling rate: must be > 0 and at most 1, got {self.q}")

    @property
    def q(self) -> float:
        """Return the probability that a record takes part in a step.

        Raises:
            ValueError: for shuffled batches, which have no sampling rate.
        """
        if self.sampling_rate is not None:
            return self.sampling_rate
        if self.m is not None and self.N is not None:
            return self.m / self.N
        raise ValueError("q: shuffled batches have no sampling rate, only participations")

    @property
    def z(self) -> float:
        """Return the noise multiplier.

        Raises:
            ValueError: if it is not calibrated yet.
        """
        if self.noise_multiplier is None:
            raise ValueError("noise_multiplier: not set; noise_multiplier_for calibrates it")
        return self.noise_multiplier

    @property
    def drawn(self) -> type[Sampler]:
        """Return the sampler's class."""
        return parts_of("sampler", Sampler)[self.sampler]


def accountants(event: PrivacyEvent) -> tuple[str, ...]:
    """Return the accountants proved for the event, the tightest first.

    Below `LEAST_NOISE_OVER_SENSITIVITY` the list omits pld, if another accountant is left.

    Raises:
        UnsupportedAccounting: if no accountant is proved.
    """
    if event.relation != event.drawn.relation:
        known = "; ".join(f"{name} with {sampler.relation}" for name, sampler in parts_of("sampler", Sampler).items())
        raise UnsupportedAccounting(f"sampler {event.sampler} with relation {event.relation}: "
                                    f"{event.drawn.other_relation} (accounted for: {known})")
    proved = event.drawn.accountants
    if event.noise_multiplier and event.noise_multiplier < LEAST_NOISE_OVER_SENSITIVITY:
        proved = tuple(name for name in proved if name != "pld") or proved
    return proved


def epsilon(event: PrivacyEvent, delta: float, accountant: str | None = None) -> Epsilon:
    """Return the certified epsilon of all released iterates together; infinite without noise.

    Args:
        accountant: one of `accountants(event)`; None takes the tightest.

    Raises:
        UnsupportedAccounting: for a combination without a proof, and as `pld_epsilon`.
        ValueError: unless 0 < delta < 1, if the noise multiplier is not set or, for pld, if it is below
            `LEAST_NOISE_OVER_SENSITIVITY`.
    """
    accountant = _checked(event, accountant)
    if event.noise_multiplier is None:
        raise ValueError("noise_multiplier: not set; noise_multiplier_for calibrates it")
    return Epsilon(_value(event, delta, accountant), "certified", accountant, event.relation, event.sampler, delta,
                   CONVERSIONS[accountant], _note(event))


def noise_multiplier_for(target_epsilon: float, event: PrivacyEvent, delta: float,
                         accountant: str | None = None) -> float:
    """Return a noise multiplier that gives an epsilon between 0.99 `target_epsilon` and `target_epsilon`.

    Raises:
        ValueError: unless target_epsilon is positive and finite, or if no multiplier in [0.1, 1e6] attains it.
        UnsupportedAccounting: as `epsilon`.
    """
    accountant = _checked(event, accountant)

    def value(z: float) -> float:
        return _value(dataclasses.replace(event, noise_multiplier=z), delta, accountant)

    return calibrate(target_epsilon, value, "noise multiplier", LEAST_NOISE_OVER_SENSITIVITY)


def calibrate(target_epsilon: float, value: Callable[[float], float], name: str, least: float = 1e-6) -> float:
    """Return a number, such as a noise multiplier, that gives an epsilon between 0.99 and 1 times `target_epsilon`.

    Args:
        value: function from the number to epsilon; decreasing.
        name: the number's name in messages.
        least: lower end of the search interval [least, 1e6].

    Raises:
        ValueError: unless target_epsilon is positive and finite, or if no number in [least, 1e6] attains it.
    """
    if not 0 < target_epsilon < math.inf:
        raise ValueError(f"target_epsilon: must be > 0 and finite, got {target_epsilon}")

    def excess(log_z: float) -> float:
        """Return log(epsilon/target), which decreases in log z and is nearly linear."""
        if not least <= math.exp(log_z) <= 1e6:
            raise ValueError(f"target_epsilon: no {name} in [{least:g}, 1e6] gives {target_epsilon}")
        return math.log(max(value(math.exp(log_z)), 1e-300) / target_epsilon)

    # Bracket the solution: excess is `above` > 0 at log z = low, and `below` <= 0 at log z = high.
    low, high = 0.0, 0.0
    above = below = excess(0.0)
    while below > 0:
        low, above, high = high, below, high + math.log(1.4)
        below = excess(high)
    while above <= 0:
        high, below, low = low, above, low - math.log(1.4)
        above = excess(low)
    # Shrink it by linear interpolation to 0.995 of the target, at least a tenth from either end.
    while below < math.log(0.99):
        share = min(max((above - math.log(0.995)) / (above - below), 0.1), 0.9) if above < math.inf else 0.5
        middle = low + share * (high - low)
        found = excess(middle)
        if found > 0:
            low, above = middle, found
        else:
            high, below = middle, found
    return math.exp(high)


def _checked(event: PrivacyEvent, accountant: str | None) -> str:
    """Return the accountant to use: the given one if it is proved for the event, or the tightest for None.

    Raises:
        UnsupportedAccounting: if the accountant is not proved for the event's sampler and relation.
    """
    proved = accountants(event)
    if accountant is None:
        return proved[0]
    if accountant not in event.drawn.accountants:
        raise UnsupportedAccounting(
            f"accountant {accountant!r}: not proved for sampler {event.sampler} with relation {event.relation}, only "
            f"{', '.join(proved)}" + ("; amplification by sampling is not proved for shuffled batches"
                                      if not event.drawn.amplified else ""))
    return accountant


def _note(event: PrivacyEvent) -> str:
    """Return a certified epsilon's note: noise multiplier, and how often a record takes part."""
    if event.noise_multiplier == 0:
        return "no noise, no guarantee"
    return (f"noise multiplier {event.noise_multiplier:.4g}; {event.drawn.part_in_step}; holds for every released "
            "iterate")


@lru_cache(maxsize=4096)
def _value(event: PrivacyEvent, delta: float, accountant: str) -> float:
    """Return the epsilon of an event at delta by one accountant; infinite without noise.

    `gdp`: E shuffled epochs with noise multiplier z are sqrt(E)/z-Gaussian DP. `pld`: from the composed privacy-loss
    distribution. `rdp/...`: the Renyi divergence of batches without replacement, converted.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta: must be > 0 and < 1, got {delta}")
    if event.noise_multiplier == 0:
        return math.inf
    if accountant == "gdp":
        return gdp_eps(math.sqrt(event.epochs) / event.z, delta)
    if accountant == "pld":
        return pld_epsilon(loss_distribution(event), delta, event.steps)
    curve = event.steps * without_replacement_rdp(event.q, event.z)
    convert = {"rdp/classic": classic_conversion, "rdp/improved": improved_conversion}[accountant]
    return convert(ORDERS, curve, delta)[0]


def interval_of(event: PrivacyEvent) -> float:
    """Return the interval of the loss grid for a run; it depends on the noise."""
    little = event.noise_multiplier is not None and event.noise_multiplier < LITTLE_NOISE
    return COARSEST if little else DISCRETIZATION


def loss_distribution(event: PrivacyEvent, interval: float | None = None) -> LossDistribution:
    """Return the privacy-loss distribution of the whole run.

    E shuffled epochs are one Gaussian mechanism of sensitivity 1 with noise z/sqrt(E).

    Args:
        interval: of the loss grid; None takes `interval_of(event)`. Epsilon is valid on any grid; a coarse grid is
            faster and gives a larger epsilon.

    Raises:
        UnsupportedAccounting: as `accountants`, and for a noise multiplier below `LEAST_NOISE_OVER_SENSITIVITY`.
    """
    check_losses(event)
    interval = interval or interval_of(event)
    if not event.drawn.amplified:
        return gaussian_losses(event.z / math.sqrt(event.epochs), interval)
    return load(event.drawn.losses)(event.q, event.z, interval).self_compose(event.steps)


def check_losses(event: PrivacyEvent) -> None:
    """Refuse an event that `loss_distribution` cannot take.

    Raises:
        UnsupportedAccounting: as `loss_distribution`.
    """
    accountants(event)
    if event.noise_multiplier is None or event.noise_multiplier < LEAST_NOISE_OVER_SENSITIVITY:
        raise UnsupportedAccounting(f"noise_multiplier: must be at least {LEAST_NOISE_OVER_SENSITIVITY} for a "
                                    "privacy-loss distribution (smaller noise has an epsilon in the hundreds, and a "
                                    f"grid of hundreds of millions), got {event.noise_multiplier}")


def pld_epsilon(losses: LossDistribution, delta: float, steps: int) -> float:
    """Return epsilon from the privacy-loss distribution of `steps` composed steps, never below the true epsilon.

    The Fourier transforms of the composition round by up to steps 2^-53 of probability, as measured against exact
    Gaussian compositions of up to 10^6 steps. Ten times this error is taken from delta.

    Raises:
        UnsupportedAccounting: if rounding takes more than delta/10.
    """
    if delta < (least := steps * MIN_DELTA_PER_STEP):
        raise UnsupportedAccounting(f"delta: must be at least {least:.3g} for a privacy-loss distribution of {steps} "
                                    f"steps, below which its rounding errors count, got {delta:.3g}; use a larger one, "
                                    "or an accountant other than pld")
    return float(losses.get_epsilon_for_delta(delta - least / 10))


def certified_component_norm(tau_B: Sequence[float], gamma: Sequence[float], tau_h_prev: Sequence[float],
                             bias: bool = True) -> float:
    """Return C, the largest norm of one record's contribution under component clipping.

    C^2 = sum_l tau_{B,l}^2 gamma_l^2 (tau_{h,l-1}^2 + 1), the 1 for the bias. One entry per layer, the output layer
    last (tau_B = tau_e, gamma = 1 there). Norms are Euclidean.

    Raises:
        ValueError: if the lengths differ.
    """
    return math.sqrt(sum((B * g) ** 2 * (h**2 + bias) for B, g, h in zip(tau_B, gamma, tau_h_prev, strict=True)))


def sensitivity(C: float, relation: str) -> float:
    """Return the sensitivity of a sum of contributions of norm at most C: C for add/remove, 2 C for replace-one.

    Raises:
        ValueError: for another relation.
    """
    if relation not in RELATIONS:
        raise ValueError(f"relation: must be one of {', '.join(RELATIONS)}, got {relation!r}")
    return C if relation == "add/remove" else 2 * C
