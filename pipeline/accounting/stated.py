"""`stated` epsilon: accounted for here, for a mechanism that a trainer states and nobody here checked.

A trainer states a `dp_accounting.DpEvent` for one step or epoch (`pipeline.trials.trainer`). This package's accountants
take Poisson batches with Gaussian noise; the accountants of `dp_accounting` take all other events.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SampledWithReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting.pld import PLDAccountant as _PLDAccountant
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from pipeline.accounting.curves import ORDERS, gdp_eps, improved_conversion
from pipeline.accounting.event import LEAST_NOISE_OVER_SENSITIVITY, NEIGHBOURS, PrivacyEvent, TooLittleNoise
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.mechanism import LARGEST_NUMBER, MIN_DELTA_PER_STEP
from pipeline.trials.trainer import STEP


class PLDAccountant(_PLDAccountant):  # type: ignore[misc]  # dp_accounting has no types
    """`dp_accounting`'s accountant with two corrections of its version 0.6.0.

    It composes repeated randomized response only once. Under replace-one it takes noise multipliers over C, and its
    Renyi accountant takes them over 2 C, as this package does.
    """

    _pld: Any  # an untyped object of dp_accounting

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> object:
        """Add `count` repetitions of an event to the composed privacy loss; return None if the event is supported.

        Randomized response answers uniformly with probability `noise_parameter`; the base class refuses 0. Without
        `do_compose` the caller only asks whether the event is supported.
        """
        if self.neighboring_relation == NeighboringRelation.REPLACE_ONE:
            event = _over_norm(event)
        if not do_compose or not isinstance(event, RandomizedResponseDpEvent) or event.noise_parameter == 0:
            return super()._maybe_compose(event, count, do_compose)
        if event.noise_parameter == 1 or event.num_buckets == 1:
            return None  # the output is independent of the input
        once = privacy_loss_distribution.from_randomized_response(
            event.noise_parameter, event.num_buckets,
            value_discretization_interval=self._value_discretization_interval,
            neighboring_relation=self.neighboring_relation)
        self._pld = self._pld.compose(once.self_compose(count))
        return None


def _over_norm(event: DpEvent) -> DpEvent:
    """Return an event with noise over C in place of 2 C, the sensitivity of a sum under replace-one.

    Compositions stay as they are, as the accountant takes them apart.
    """
    if isinstance(event, GaussianDpEvent | TruncatedSubsampledGaussianDpEvent):
        return attrs.evolve(event, noise_multiplier=2 * event.noise_multiplier)
    if isinstance(event, PoissonSampledDpEvent):
        return attrs.evolve(event, event=_over_norm(event.event))
    return event


def _gaussian_loss(mu: float) -> float:
    """Return about the largest privacy loss on the grid of mu-Gaussian DP: it is exceeded with probability e^-50."""
    return mu * (10 + mu / 2)


LARGEST_LOSS = _gaussian_loss(1 / LEAST_NOISE_OVER_SENSITIVITY)  # on a grid
# By field of an event: the type of its numbers, the least and the largest.
RANGES: dict[str, tuple[Any, float, float]] = {
    **dict.fromkeys(("noise_multiplier", "standard_deviation", "rho", "xi"), (Real, 0, LARGEST_NUMBER)),
    **dict.fromkeys(("sampling_probability", "sampling_probs", "noise_parameter"), (Real, 0, 1)),
    **dict.fromkeys(("count", "num_buckets", "source_dataset_size", "sample_size", "dataset_size",
                     "truncated_batch_size", "sensitivity", "step_counts"), (Integral, 1, LARGEST_NUMBER)),
    "sensitivities": (Real, -LARGEST_NUMBER, LARGEST_NUMBER), "mean": (Real, 1, LARGEST_NUMBER),
    "shape": (Real, 0, math.inf)}
MAKERS: dict[str, Callable[[NeighboringRelation], Any]] = {
    "pld": PLDAccountant, "rdp/improved": lambda relation: RdpAccountant(ORDERS, relation)}


@dataclass(frozen=True)
class StatedEvent:
    """A run of one stated event, repeated. It answers what a `PrivacyEvent` answers."""

    relation: str  # one of `NEIGHBOURS`
    event: DpEvent  # of one repetition
    steps: int  # repetitions in the whole run
    epochs: int  # passes over the records in the whole run
    sampler = "by_trainer"
    mu = None  # it need not be one Gaussian mechanism
    noiseless = False  # the accountants see to it
    note = "nobody here checked it"

    @property
    def neighbours(self) -> NeighboringRelation:
        """Return the neighbouring relation for `dp_accounting`'s accountants.

        For events of randomized responses alone it is replace-one, the only relation that they support. This is valid
        for any relation: randomized response has the largest privacy loss of all mechanisms with its pure epsilon.
        """
        return NeighboringRelation.REPLACE_ONE if _is_pure(self.event) else NEIGHBOURS[self.relation]

    @property
    def accountants(self) -> tuple[str, ...]:
        """Return the accountants that support the event, the tightest first."""
        return tuple(name for name, make in MAKERS.items() if make(self.neighbours).supports(self.run)
                     and (name != "pld" or _fits_grid(self.run)))

    @property
    def run(self) -> SelfComposedDpEvent:
        """Return the event of all repetitions."""
        return SelfComposedDpEvent(self.event, self.steps)

    @lru_cache(maxsize=1024)  # noqa: B019  (events are few and small)
    def renyi(self) -> np.ndarray:
        """Return the Renyi divergence of the whole run at all orders of `ORDERS`, [len(ORDERS)], read-only."""
        if "rdp/improved" not in self.accountants:
            raise ConfigError("event: must have a Renyi divergence that is known, which a budget and a random number "
                              f"of trials are accounted by, got {self.event}")
        curve = np.array(RdpAccountant(ORDERS, self.neighbours).compose(self.event, self.steps).rdp)
        curve.setflags(write=False)
        return curve

    @lru_cache(maxsize=4096)  # noqa: B019
    def value(self, delta: float, accountant: str) -> float:
        """Return epsilon of the whole run at delta, by one of `accountants`."""
        if accountant == "pld":
            return _pld_epsilon([self.run], self.neighbours, delta)
        epsilon, _ = improved_conversion(ORDERS, self.renyi(), delta)
        return epsilon


Event = PrivacyEvent | StatedEvent


def hashable(event: Any) -> Any:
    """Return an event, or a value inside one, with every list replaced by a tuple: a key for caches."""
    if isinstance(event, DpEvent):
        values = {field.name: hashable(getattr(event, field.name)) for field in attrs.fields(type(event))}
        return attrs.evolve(event, **values)
    if isinstance(event, list):
        return tuple(hashable(item) for item in event)
    return event


def mechanisms(event: DpEvent, count: int = 1) -> Iterator[tuple[DpEvent, int]]:
    """Yield (mechanism, count) for every mechanism that an event composes, at any depth."""
    if isinstance(event, SelfComposedDpEvent):
        yield from mechanisms(event.event, count * event.count)
    elif isinstance(event, ComposedDpEvent):
        for member in event.events:
            yield from mechanisms(member, count)
    else:
        yield event, count


def gaussian_mu(event: DpEvent) -> float | None:
    """Return mu of an event that composes Gaussian mechanisms alone, without sampling; None for others."""
    mus = []
    for mechanism, count in mechanisms(event):
        if not isinstance(mechanism, GaussianDpEvent):
            return None
        mus.append(math.sqrt(count) / mechanism.noise_multiplier if mechanism.noise_multiplier else math.inf)
    return math.hypot(*mus)


def _largest_loss(mechanism: DpEvent, count: int = 1) -> float:
    """Return about the largest privacy loss that a grid must have for a mechanism; 0 without noise or without a grid.

    `count` repetitions of a Gaussian are one Gaussian; others have the grid of a single one.
    """
    match mechanism:
        case PoissonSampledDpEvent(event=event):
            return _largest_loss(event)
        case GaussianDpEvent(noise_multiplier=z) if z:
            return _gaussian_loss(math.sqrt(count) / z)
        case TruncatedSubsampledGaussianDpEvent(noise_multiplier=z) if z:
            return _gaussian_loss(2 / z)
        case MixtureOfGaussiansDpEvent(standard_deviation=sigma, sensitivities=sensitivities) if sigma:
            return _gaussian_loss(max(map(abs, sensitivities), default=0.0) / sigma)
        case LaplaceDpEvent(noise_multiplier=z) if z:
            return 1 / z
        case DiscreteLaplaceDpEvent(noise_parameter=a, sensitivity=sensitivity):
            return a * sensitivity
        case _:
            return 0.0


def _fits_grid(event: DpEvent) -> bool:
    """Whether the privacy losses of an event fit on a grid, or need none, as those of Gaussians alone.

    The grid of less noise would take up to terabytes.
    """
    losses = (_largest_loss(mechanism, count) for mechanism, count in mechanisms(event))
    return gaussian_mu(event) is not None or max(losses, default=0.0) <= LARGEST_LOSS


def _fault(event: Any) -> str:
    """Return what is wrong in an event or a value inside one, `count must be a whole number >= 1, got 0`."""
    if isinstance(event, list | tuple):
        return next(filter(None, map(_fault, event)), "")
    if not isinstance(event, DpEvent):
        return f"must be a dp_accounting.DpEvent, got {event!r}"
    for name, value in ((field.name, getattr(event, field.name)) for field in attrs.fields(type(event))):
        if name not in RANGES:
            if fault := _fault(value):
                return fault
            continue
        kind, low, high = RANGES[name]
        if isinstance(event, LaplaceDpEvent):
            low = 1 / LARGEST_NUMBER  # the Renyi divergence divides by its noise
        elif isinstance(event, DiscreteLaplaceDpEvent):
            high = LARGEST_NUMBER  # of `noise_parameter`, which is a rate here
        numbers: Iterable[Any] = value if isinstance(value, list | tuple) else [value]
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, kind) or not low <= number <= high:
                noun = "a number" if kind is Real else "a whole number"
                return f"{name} must be {noun} >= {low:g} and <= {high:g}, got {number!r}"
    if isinstance(event, SampledWithoutReplacementDpEvent) and event.sample_size > event.source_dataset_size:
        return f"sample_size must be at most source_dataset_size, got {event.sample_size}"
    return ""


def _pld_epsilon(events: list[DpEvent], relation: NeighboringRelation, delta: float) -> float:
    """Return epsilon of composed events from their privacy-loss distributions; exact for Gaussians without sampling.

    It is infinite if delta is too small for rounding errors, which are covered as in `accounting.event.pld_epsilon`.
    """
    together = ComposedDpEvent(events)
    mu = gaussian_mu(together)
    if mu is not None:
        return gdp_eps(mu, delta)
    min_delta = sum(count for _, count in mechanisms(together)) * MIN_DELTA_PER_STEP
    if delta < min_delta:
        return math.inf
    rounding_margin = min_delta / 10
    return float(PLDAccountant(relation).compose(together).get_epsilon(delta - rounding_margin))


def _is_pure(event: DpEvent) -> bool:
    """Whether an event consists of randomized responses alone, so that it has a pure epsilon (delta = 0)."""
    return all(isinstance(mechanism, RandomizedResponseDpEvent) for mechanism, _ in mechanisms(event))


def noise_in_words(event: DpEvent, relation: str) -> str:
    """Return `noise 4 times what replacing one record changes at most`; empty for an event without such noise."""
    changes = {"add/remove": "adding or removing", "replace-one": "replacing"}[relation]
    noise = dict.fromkeys(f"{mechanism.noise_multiplier:.4g}" for mechanism, _ in mechanisms(unsampled(event))
                          if isinstance(mechanism, GaussianDpEvent | LaplaceDpEvent))
    return f"noise {' and '.join(noise)} times what {changes} one record changes at most" if noise else ""


def unsampled(event: DpEvent) -> DpEvent:
    """Return an event with every sampling of batches removed, also inside compositions.

    It describes an attacker who knows which records may be in the batch, so that sampling hides nothing.
    """
    if isinstance(event, PoissonSampledDpEvent | SampledWithoutReplacementDpEvent | SampledWithReplacementDpEvent):
        return unsampled(event.event)
    if isinstance(event, SelfComposedDpEvent):
        return SelfComposedDpEvent(unsampled(event.event), event.count)
    if isinstance(event, ComposedDpEvent):
        return ComposedDpEvent([unsampled(part) for part in event.events])
    return event


def stated_event(config: TrialConfig, epochs_done: int) -> StatedEvent:
    """Return the privacy event that a trial's trainer states, repeated for the first `epochs_done` epochs."""
    trainer = config.parts.trainer
    if config.trainer_version != trainer.version:  # another version may state another event
        raise ConfigError(f"trainer_version: version {config.trainer_version} of trainer '{trainer.name}' states what "
                          f"its trials cost, and version {trainer.version} is loaded; load that file")
    try:
        event = trainer.stated_event(config)
    except Exception as error:
        lines = [f":{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == trainer.source]
        raise ConfigError(f"event: of trainer '{trainer.name}' fails with {type(error).__name__}: {error} "
                          f"({Path(trainer.source).name}{''.join(lines[-1:])})") from error
    # where it is stated, for example `trainer 'dpsgd' (opacus_cnn.py:31)`
    source = f"trainer '{trainer.name}' ({Path(trainer.source).name}:{trainer.works.__code__.co_firstlineno})"
    if fault := _fault(event):
        raise ConfigError(f"event: {fault} of {source}")
    events_per_epoch = config.steps_per_epoch if trainer.per == STEP else 1
    stated = StatedEvent(trainer.relation, hashable(event), epochs_done * events_per_epoch, epochs_done)
    if stated.accountants:
        return stated
    if PLDAccountant(stated.neighbours).supports(event):
        raise TooLittleNoise("event: its noise must be 0 (no guarantee) or at least some "
                             f"{LEAST_NOISE_OVER_SENSITIVITY} times the sensitivity, below which nothing can be "
                             f"accounted for, got {event} of {source}")
    raise ConfigError(f"event: no accountant takes {event} under {trainer.relation}, got it of {source}; Poisson "
                      "sampled or plain Gaussian and Laplace events, randomized response for pure epsilon, "
                      "zero-concentrated ones, and their compositions are taken")


def composed_epsilon(runs: list[tuple[DpEvent, NeighboringRelation]], mus: list[float], delta: float) -> float:
    """Return epsilon at delta of several runs, (event, relation) each, with Gaussian releases of parameters `mus`.

    Privacy-loss distributions are used if all events have one under a common relation, else Renyi divergences.
    """
    relations = {relation for _, relation in runs}
    events = [event for event, _ in runs] + [GaussianDpEvent(1 / mu) for mu in mus if mu]
    if len(relations) == 1 and all(PLDAccountant(*relations).supports(event) and _fits_grid(event)
                                   for event in events):
        return _pld_epsilon(events, relations.pop(), delta)
    curve = np.array(ORDERS) * sum(mu**2 for mu in mus) / 2  # Renyi divergence [orders], of the Gaussian releases
    for event, relation in runs:
        accountant = RdpAccountant(ORDERS, relation)
        if not accountant.supports(event):
            raise ConfigError("event: must have a Renyi divergence that is known, to be composed with others, got "
                              f"{event}")
        curve = curve + np.array(accountant.compose(event).rdp)
    if not np.isfinite(curve).any():
        return math.inf
    epsilon, _ = improved_conversion(ORDERS, curve, delta)
    return epsilon
