"""`stated` epsilon: accounted for here, for a mechanism that a trainer states and nobody here checked.

A trainer states a `dp_accounting.DpEvent` for one step or epoch (`pipeline.trials.trainer`). This package's accountants
take Poisson batches with Gaussian noise; the accountants of `dp_accounting` take all other events.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SampledWithReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant as _PLDAccountant
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from pipeline.accounting.curves import ORDERS, improved_conversion
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.mechanism import MIN_DELTA_PER_STEP
from pipeline.trials.trainer import STEP, Trainer


class PLDAccountant(_PLDAccountant):  # type: ignore[misc]  # dp_accounting has no types
    """`dp_accounting`'s accountant with a correction: version 0.6.0 composes repeated randomized response only once."""

    _pld: Any  # an untyped object of dp_accounting

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> object:
        """Compose `count` repetitions of an event, as the base class does; randomized response is corrected.

        Return None if the accountant supports the event. `do_compose` is False if the caller only asks for support. A
        noise parameter of 1 means a uniform answer; with 0 the base class refuses the event.
        """
        if not (isinstance(event, RandomizedResponseDpEvent) and do_compose and event.noise_parameter):
            return super()._maybe_compose(event, count, do_compose)
        if event.noise_parameter == 1 or event.num_buckets == 1:
            return None  # the output is independent of the input
        once = privacy_loss_distribution.from_randomized_response(
            event.noise_parameter, event.num_buckets,
            value_discretization_interval=self._value_discretization_interval,
            neighboring_relation=self.neighboring_relation)
        self._pld = self._pld.compose(once.self_compose(count))
        return None


RELATIONS = {"add/remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace-one": NeighboringRelation.REPLACE_ONE}
MAKERS: dict[str, Callable[[NeighboringRelation], Any]] = {
    "pld": PLDAccountant, "rdp/improved": lambda relation: RdpAccountant(ORDERS, relation)}


@dataclass(frozen=True)
class StatedEvent:
    """A run of one stated event, repeated.

    Attributes:
        relation: one of `RELATIONS`.
        event: of one repetition.
        steps: repetitions in the whole run.
        epochs: passes over the records in the whole run.
    """

    relation: str
    event: DpEvent
    steps: int
    epochs: int
    sampler = "by_trainer"

    @property
    def neighbours(self) -> NeighboringRelation:
        """Return the relation as `dp_accounting` names it.

        Randomized response dominates every mechanism with the same pure epsilon, under any relation; its accountants
        support only replace-one.
        """
        return NeighboringRelation.REPLACE_ONE if _is_pure(self.event) else RELATIONS[self.relation]

    @property
    def accountants(self) -> tuple[str, ...]:
        """Return the accountants that support the event, the tightest first."""
        return tuple(name for name, make in MAKERS.items() if make(self.neighbours).supports(self.event))

    def renyi(self) -> np.ndarray:
        """Return the Renyi divergence at all orders, [len(ORDERS)].

        Raises:
            ConfigError: for an event without a known Renyi divergence.
        """
        if "rdp/improved" not in self.accountants:
            raise ConfigError("event: must have a Renyi divergence that is known, which a budget and a random number "
                              f"of trials are accounted by, got {self.event}")
        return np.array(RdpAccountant(ORDERS, self.neighbours).compose(self.event, self.steps).rdp)


def hashable(event: Any) -> Any:
    """Return the same event with tuples instead of lists, for example in `ComposedDpEvent`."""
    if isinstance(event, DpEvent):
        return attrs.evolve(event, **{f.name: hashable(getattr(event, f.name)) for f in attrs.fields(type(event))})
    return tuple(map(hashable, event)) if isinstance(event, list) else event


def repetitions(event: Any) -> int:
    """Return the number of mechanisms that an event composes."""
    if isinstance(event, SelfComposedDpEvent):
        return event.count * repetitions(event.event)
    return sum(map(repetitions, event.events)) if isinstance(event, ComposedDpEvent) else 1


def _numbers(event: Any) -> list[float]:
    """Return all numbers in an event."""
    if isinstance(event, DpEvent):
        return [number for f in attrs.fields(type(event)) for number in _numbers(getattr(event, f.name))]
    return [number for own in event for number in _numbers(own)] if isinstance(event, tuple) else [event]


def _by_losses(made: PLDAccountant, steps: int, delta: float) -> float:
    """Return epsilon from a composed privacy-loss distribution; infinite if rounding may exceed its share of delta.

    `accounting.event.pld_epsilon` explains the share.

    Args:
        made: the accountant, after composition.
        steps: composed mechanisms.
    """
    least = steps * MIN_DELTA_PER_STEP
    return float(made.get_epsilon(delta - least / 10)) if delta >= least else math.inf


def _is_pure(event: DpEvent) -> bool:
    """Whether an event has a pure epsilon: it consists of randomized responses alone."""
    if isinstance(event, ComposedDpEvent):
        return all(map(_is_pure, event.events))
    if isinstance(event, SelfComposedDpEvent):
        return _is_pure(event.event)
    return isinstance(event, RandomizedResponseDpEvent)


def unsampled(event: DpEvent) -> DpEvent:
    """Return the event without sampling, for an attacker who knows which records may be in the batch."""
    if isinstance(event, PoissonSampledDpEvent | SampledWithoutReplacementDpEvent | SampledWithReplacementDpEvent):
        return unsampled(event.event)
    if isinstance(event, SelfComposedDpEvent):
        return SelfComposedDpEvent(unsampled(event.event), event.count)
    return ComposedDpEvent([unsampled(e) for e in event.events]) if isinstance(event, ComposedDpEvent) else event


def poisson_of(stated: StatedEvent) -> tuple[float, float] | None:
    """Return (sampling rate, noise multiplier) of an event with Poisson batches and Gaussian noise under add/remove.

    This package accounts for such events itself. Return None for all others.
    """
    event = stated.event
    if stated.relation != "add/remove" or not isinstance(event, PoissonSampledDpEvent) or not isinstance(
            event.event, GaussianDpEvent) or not 0 < event.sampling_probability <= 1:
        return None
    return event.sampling_probability, event.event.noise_multiplier


@lru_cache(maxsize=4096)
def stated_value(event: StatedEvent, delta: float, accountant: str) -> float:
    """Return epsilon at delta by one of the event's accountants.

    Args:
        event: a whole run.
        accountant: `pld` (privacy-loss distribution), or `rdp/improved` (Renyi divergence).
    """
    if accountant != "pld":
        return improved_conversion(ORDERS, event.renyi(), delta)[0]
    made = PLDAccountant(event.neighbours).compose(event.event, event.steps)
    return _by_losses(made, event.steps * repetitions(event.event), delta)


def stated_event(config: TrialConfig, epochs_done: int) -> StatedEvent:
    """Return the privacy event that a trial's trainer states, repeated for the first `epochs_done` epochs.

    Raises:
        ConfigError: if the trainer gives no event, or one that no accountant supports; with the trainer's file and
            line.
    """
    trainer = config.parts.trainer
    if config.trainer_version != trainer.version:  # another version may state another event
        raise ConfigError(f"trainer_version: version {config.trainer_version} of trainer '{trainer.name}' states what "
                          f"its trials cost, and version {trainer.version} is loaded; load that file")
    try:
        event = trainer.stated_event(config)
    except Exception as error:
        line = next((f":{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__))
                     if frame.filename == trainer.source), "")
        raise ConfigError(f"event: of trainer '{trainer.name}' fails with {type(error).__name__}: {error} "
                          f"({Path(trainer.source).name}{line})") from error
    if not isinstance(event, DpEvent):
        raise ConfigError(f"event: must be a dp_accounting.DpEvent, got {event!r} of trainer '{trainer.name}' "
                          f"({place(trainer)})")
    if any(math.isnan(number) for number in _numbers(hashable(event))):
        raise ConfigError(f"event: must be made of numbers, got {event} of trainer '{trainer.name}' ({place(trainer)})")
    repeats = epochs_done * (config.steps_per_epoch if trainer.per == STEP else 1)
    stated = StatedEvent(trainer.relation, hashable(event), repeats, epochs_done)
    if not stated.accountants:
        raise ConfigError(f"event: no accountant takes {event} under {trainer.relation}, got it of trainer "
                          f"'{trainer.name}' ({place(trainer)}); Poisson sampled or plain Gaussian and Laplace events, "
                          "randomized response for pure epsilon, zero-concentrated ones, and their compositions are "
                          "taken")
    return stated


def place(trainer: Trainer) -> str:
    """Return the file and line of a trainer's function, for example `opacus_cnn.py:31`."""
    return f"{Path(trainer.source).name}:{trainer.works.__code__.co_firstlineno}"


def composed_epsilon(parts: list[tuple[DpEvent, NeighboringRelation]], mus: list[float], delta: float) -> float:
    """Return epsilon at delta of several events, composed with Gaussian releases.

    Privacy-loss distributions are used if all events have one under a common relation, else Renyi divergences.

    Args:
        parts: (event, neighbouring relation).
        mus: of the Gaussian releases: sensitivity over standard deviation; 0 for no release.

    Raises:
        ConfigError: for an event that has neither.
    """
    gaussians = [GaussianDpEvent(1 / mu) for mu in mus if mu]
    relations = {relation for _, relation in parts}
    events = [event for event, _ in parts] + gaussians
    if len(relations) == 1 and all(PLDAccountant(*relations).supports(event) for event in events):
        made = PLDAccountant(*relations)
        for event in events:
            made.compose(event)
        return _by_losses(made, sum(map(repetitions, events)), delta)
    curve = np.array(ORDERS) * sum(mu**2 for mu in mus) / 2
    for event, relation in parts:
        made = RdpAccountant(ORDERS, relation)
        if not made.supports(event):
            raise ConfigError("event: must have a Renyi divergence that is known, to be composed with others, got "
                              f"{event}")
        curve = curve + np.array(made.compose(event).rdp)
    return improved_conversion(ORDERS, curve, delta)[0] if np.isfinite(curve).any() else math.inf
