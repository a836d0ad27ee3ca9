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
        """Add `count` repetitions of an event to the composed privacy loss; return None if the event is supported.

        The base class adds randomized response only once, so this method adds it. Randomized response answers uniformly
        with probability `noise_parameter`; the base class refuses 0. Without `do_compose` the caller only asks whether
        the event is supported.
        """
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
        """Return the neighbouring relation for `dp_accounting`'s accountants.

        For events of randomized responses alone it is replace-one, the only relation that they support. This is valid
        for any relation: randomized response has the largest privacy loss of all mechanisms with its pure epsilon.
        """
        return NeighboringRelation.REPLACE_ONE if _is_pure(self.event) else RELATIONS[self.relation]

    @property
    def accountants(self) -> tuple[str, ...]:
        """Return the accountants that support the event, the tightest first."""
        return tuple(name for name, make in MAKERS.items() if make(self.neighbours).supports(self.event))

    def renyi(self) -> np.ndarray:
        """Return the Renyi divergence of the whole run at all orders of `ORDERS`, [len(ORDERS)].

        Raises:
            ConfigError: for an event without a known Renyi divergence.
        """
        if "rdp/improved" not in self.accountants:
            raise ConfigError("event: must have a Renyi divergence that is known, which a budget and a random number "
                              f"of trials are accounted by, got {self.event}")
        return np.array(RdpAccountant(ORDERS, self.neighbours).compose(self.event, self.steps).rdp)


def hashable(event: Any) -> Any:
    """Return an event with every list in it replaced by a tuple, so that it can be a key of a cache.

    Args:
        event: a `DpEvent`, or a value inside one: a number, an event, or a list of events.
    """
    if isinstance(event, DpEvent):
        values = {field.name: hashable(getattr(event, field.name)) for field in attrs.fields(type(event))}
        return attrs.evolve(event, **values)
    if isinstance(event, list):
        return tuple(hashable(item) for item in event)
    return event


def count_mechanisms(event: Any) -> int:
    """Return how many mechanisms an event composes, repetitions included; 1 for an event that composes nothing."""
    if isinstance(event, SelfComposedDpEvent):
        return event.count * count_mechanisms(event.event)
    if isinstance(event, ComposedDpEvent):
        return sum(count_mechanisms(member) for member in event.events)
    return 1


def _numbers(event: Any) -> list[float]:
    """Return all numbers in an event, such as noise multipliers and counts, in one flat list.

    Args:
        event: a `DpEvent` from `hashable`, or a value inside one: a number, an event, or a tuple of events.
    """
    if isinstance(event, DpEvent):
        values = [getattr(event, field.name) for field in attrs.fields(type(event))]
    elif isinstance(event, tuple):
        values = list(event)
    else:
        return [event]
    return [number for value in values for number in _numbers(value)]


def _pld_epsilon(accountant: PLDAccountant, n_mechanisms: int, delta: float) -> float:
    """Return epsilon from a composed privacy-loss distribution; infinite if delta is too small for rounding errors.

    A tenth of the smallest accepted delta is subtracted, to cover these errors (see `accounting.event.pld_epsilon`).

    Args:
        accountant: after composition.
        n_mechanisms: number of mechanisms that it composed.
    """
    min_delta = n_mechanisms * MIN_DELTA_PER_STEP
    if delta < min_delta:
        return math.inf
    rounding_margin = min_delta / 10
    return float(accountant.get_epsilon(delta - rounding_margin))


def _is_pure(event: DpEvent) -> bool:
    """Whether an event consists of randomized responses alone, so that it has a pure epsilon (delta = 0)."""
    if isinstance(event, ComposedDpEvent):
        return all(_is_pure(part) for part in event.events)
    if isinstance(event, SelfComposedDpEvent):
        return _is_pure(event.event)
    return isinstance(event, RandomizedResponseDpEvent)


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


def poisson_of(stated: StatedEvent) -> tuple[float, float] | None:
    """Return (sampling rate, noise multiplier) of an event with Poisson batches and Gaussian noise under add/remove.

    This package accounts for such events itself. Return None for all others.
    """
    event = stated.event
    if stated.relation != "add/remove" or not isinstance(event, PoissonSampledDpEvent):
        return None
    if not isinstance(event.event, GaussianDpEvent) or not 0 < event.sampling_probability <= 1:
        return None
    return event.sampling_probability, event.event.noise_multiplier


@lru_cache(maxsize=4096)
def stated_value(event: StatedEvent, delta: float, accountant: str) -> float:
    """Return epsilon of a whole run at delta, by one of the event's accountants.

    Args:
        accountant: `pld` (privacy-loss distribution), or `rdp/improved` (Renyi divergence).
    """
    if accountant == "pld":
        composed = PLDAccountant(event.neighbours).compose(event.event, event.steps)
        return _pld_epsilon(composed, event.steps * count_mechanisms(event.event), delta)
    epsilon, _ = improved_conversion(ORDERS, event.renyi(), delta)
    return epsilon


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
    event = _event_of_trainer(config)
    if not isinstance(event, DpEvent):
        raise ConfigError(f"event: must be a dp_accounting.DpEvent, got {event!r} of trainer '{trainer.name}' "
                          f"({source_line(trainer)})")
    if any(math.isnan(number) for number in _numbers(hashable(event))):
        raise ConfigError(f"event: must be made of numbers, got {event} of trainer '{trainer.name}' "
                          f"({source_line(trainer)})")
    events_per_epoch = config.steps_per_epoch if trainer.per == STEP else 1
    stated = StatedEvent(trainer.relation, hashable(event), epochs_done * events_per_epoch, epochs_done)
    if not stated.accountants:
        raise ConfigError(f"event: no accountant takes {event} under {trainer.relation}, got it of trainer "
                          f"'{trainer.name}' ({source_line(trainer)}); Poisson sampled or plain Gaussian and Laplace "
                          "events, randomized response for pure epsilon, zero-concentrated ones, and their "
                          "compositions are taken")
    return stated


def _event_of_trainer(config: TrialConfig) -> Any:
    """Return what the trainer's `event` function gives for a trial: the event of one step or epoch, not yet checked.

    Raises:
        ConfigError: if the function fails; with the file and the line where it failed.
    """
    trainer = config.parts.trainer
    try:
        return trainer.stated_event(config)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == trainer.source]
        line = f":{lines[-1]}" if lines else ""
        raise ConfigError(f"event: of trainer '{trainer.name}' fails with {type(error).__name__}: {error} "
                          f"({Path(trainer.source).name}{line})") from error


def source_line(trainer: Trainer) -> str:
    """Return the file and line of a trainer's function, for example `opacus_cnn.py:31`."""
    return f"{Path(trainer.source).name}:{trainer.works.__code__.co_firstlineno}"


def composed_epsilon(runs: list[tuple[DpEvent, NeighboringRelation]], mus: list[float], delta: float) -> float:
    """Return epsilon at delta of several runs together with Gaussian releases, such as noisy validation scores.

    Privacy-loss distributions are used if all events have one under a common relation, else Renyi divergences.

    Args:
        runs: (event, neighbouring relation) of each run.
        mus: mu of each Gaussian release, its sensitivity over the standard deviation of its noise; 0 for no release.

    Raises:
        ConfigError: if privacy-loss distributions cannot be used, and an event has no known Renyi divergence.
    """
    relations = {relation for _, relation in runs}
    events = [event for event, _ in runs] + [GaussianDpEvent(1 / mu) for mu in mus if mu]
    if len(relations) == 1 and all(PLDAccountant(*relations).supports(event) for event in events):
        composed = PLDAccountant(*relations)
        for event in events:
            composed.compose(event)
        return _pld_epsilon(composed, n_mechanisms=sum(count_mechanisms(event) for event in events), delta=delta)
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
