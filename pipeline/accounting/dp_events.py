"""Events of `dp_accounting`: what they compose, whether their numbers make sense, and its accountants for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any

import attrs
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dp
from dp_accounting.pld import PLDAccountant as _PLDAccountant
from dp_accounting.pld import privacy_loss_distribution

from pipeline.accounting.curves import gdp_eps
from pipeline.trials.mechanism import LARGEST_NUMBER, MIN_DELTA_PER_STEP, MIN_NOISE_OVER_C

LEAST_NOISE_OVER_SENSITIVITY = MIN_NOISE_OVER_C / 2  # the sensitivity is 2 C under replace-one


class PLDAccountant(_PLDAccountant):  # type: ignore[misc]  # dp_accounting has no types
    """`dp_accounting`'s accountant with two corrections of its version 0.6.0.

    It composes repeated randomized response only once. Under replace-one it takes noise multipliers over C, and its
    Renyi accountant takes them over 2 C, as this package does.
    """

    _pld: Any  # an untyped object of dp_accounting

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> object:
        """Add `count` repetitions of an event to the composed privacy loss; return None if the event is supported.

        Without `do_compose` the caller only asks whether it is. Randomized response answers uniformly with probability
        `noise_parameter`; the base class refuses 0.
        """
        if self.neighboring_relation == NeighboringRelation.REPLACE_ONE:
            event = _over_norm(event)
        if not do_compose or not isinstance(event, dp.RandomizedResponseDpEvent) or event.noise_parameter == 0:
            return super()._maybe_compose(event, count, do_compose)
        if event.noise_parameter == 1 or event.num_buckets == 1:
            return None  # the output is independent of the input
        once = privacy_loss_distribution.from_randomized_response(
            event.noise_parameter, event.num_buckets,
            value_discretization_interval=self._value_discretization_interval,
            neighboring_relation=self.neighboring_relation)
        self._pld = self._pld.compose(once.self_compose(count))
        return None


def _over_norm(event: dp.DpEvent) -> dp.DpEvent:
    """Return an event with noise over C in place of 2 C; compositions, which the accountant takes apart, unchanged."""
    if isinstance(event, dp.GaussianDpEvent | dp.TruncatedSubsampledGaussianDpEvent):
        return attrs.evolve(event, noise_multiplier=2 * event.noise_multiplier)
    if isinstance(event, dp.PoissonSampledDpEvent):
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


def hashable(event: Any) -> Any:
    """Return an event, or a value inside one, with every list replaced by a tuple: a key for caches."""
    if isinstance(event, dp.DpEvent):
        values = {field.name: hashable(getattr(event, field.name)) for field in attrs.fields(type(event))}
        return attrs.evolve(event, **values)
    if isinstance(event, list):
        return tuple(hashable(item) for item in event)
    return event


def mechanisms(event: dp.DpEvent, count: int = 1) -> Iterator[tuple[dp.DpEvent, int]]:
    """Yield (mechanism, count) for every mechanism that an event composes, at any depth; a sampled one is one."""
    if isinstance(event, dp.SelfComposedDpEvent):
        yield from mechanisms(event.event, count * event.count)
    elif isinstance(event, dp.ComposedDpEvent):
        for member in event.events:
            yield from mechanisms(member, count)
    else:
        yield event, count


def gaussian_mu(event: dp.DpEvent) -> float | None:
    """Return mu of an event that composes unsampled Gaussian mechanisms alone, infinite without noise; else None."""
    mus = []
    for mechanism, count in mechanisms(event):
        if not isinstance(mechanism, dp.GaussianDpEvent):
            return None
        mus.append(math.sqrt(count) / mechanism.noise_multiplier if mechanism.noise_multiplier else math.inf)
    return math.hypot(*mus)


def _largest_loss(mechanism: dp.DpEvent, count: int = 1) -> float:
    """Return about the largest privacy loss that a mechanism's grid must have; 0 without noise or without a grid."""
    match mechanism:
        case dp.PoissonSampledDpEvent(event=event):
            return _largest_loss(event)
        case dp.GaussianDpEvent(noise_multiplier=z) if z:
            return _gaussian_loss(math.sqrt(count) / z)  # repetitions of a Gaussian are one Gaussian
        case dp.TruncatedSubsampledGaussianDpEvent(noise_multiplier=z) if z:
            return _gaussian_loss(2 / z)
        case dp.MixtureOfGaussiansDpEvent(standard_deviation=sigma, sensitivities=sensitivities) if sigma:
            return _gaussian_loss(max(map(abs, sensitivities), default=0.0) / sigma)
        case dp.LaplaceDpEvent(noise_multiplier=z) if z:
            return 1 / z
        case dp.DiscreteLaplaceDpEvent(noise_parameter=a, sensitivity=sensitivity):
            return a * sensitivity
        case _:
            return 0.0


def has_losses(event: dp.DpEvent, relation: NeighboringRelation) -> bool:
    """Whether `PLDAccountant` takes an event, and its losses fit on a grid in memory; Gaussians alone need no grid."""
    losses = (_largest_loss(mechanism, count) for mechanism, count in mechanisms(event))
    fits = gaussian_mu(event) is not None or max(losses, default=0.0) <= LARGEST_LOSS
    return fits and PLDAccountant(relation).supports(event)


def composed_pld(events: Sequence[dp.DpEvent], relation: NeighboringRelation, delta: float) -> float:
    """Return epsilon of composed events with `has_losses`; infinite for a delta that rounding errors could reach."""
    together = dp.ComposedDpEvent(list(events))
    mu = gaussian_mu(together)
    if mu is not None:
        return gdp_eps(mu, delta)
    min_delta = sum(count for _, count in mechanisms(together)) * MIN_DELTA_PER_STEP
    if delta < min_delta:
        return math.inf
    rounding_margin = min_delta / 10  # as in `event.pld_epsilon`
    return float(PLDAccountant(relation).compose(together).get_epsilon(delta - rounding_margin))


def fault(event: Any) -> str:
    """Return what is wrong in an event or a value inside one, such as `count must be ..., got 0`; empty for nothing."""
    if isinstance(event, list | tuple):
        return next(filter(None, map(fault, event)), "")
    if not isinstance(event, dp.DpEvent):
        return f"must be a dp_accounting.DpEvent, got {event!r}"
    for name, value in ((field.name, getattr(event, field.name)) for field in attrs.fields(type(event))):
        if name not in RANGES:
            if found := fault(value):
                return found
            continue
        kind, low, high = RANGES[name]
        if isinstance(event, dp.LaplaceDpEvent):
            low = 1 / LARGEST_NUMBER  # the Renyi divergence divides by its noise
        elif isinstance(event, dp.DiscreteLaplaceDpEvent):
            high = LARGEST_NUMBER  # of `noise_parameter`, which is a rate here
        numbers: Iterable[Any] = value if isinstance(value, list | tuple) else [value]
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, kind) or not low <= number <= high:
                noun = "a number" if kind is Real else "a whole number"
                return f"{name} must be {noun} >= {low:g} and <= {high:g}, got {number!r}"
    if isinstance(event, dp.SampledWithoutReplacementDpEvent) and event.sample_size > event.source_dataset_size:
        return f"sample_size must be at most source_dataset_size, got {event.sample_size}"
    return ""


def is_pure(event: dp.DpEvent) -> bool:
    """Whether an event consists of randomized responses alone, so that it has a pure epsilon (delta = 0)."""
    return all(isinstance(mechanism, dp.RandomizedResponseDpEvent) for mechanism, _ in mechanisms(event))


def noise_in_words(event: dp.DpEvent, relation: str) -> str:
    """Return `noise 4 times what replacing one record changes at most`; empty for an event without such noise."""
    changes = {"add/remove": "adding or removing", "replace-one": "replacing"}[relation]
    noise = dict.fromkeys(f"{mechanism.noise_multiplier:.4g}" for mechanism, _ in mechanisms(unsampled(event))
                          if isinstance(mechanism, dp.GaussianDpEvent | dp.LaplaceDpEvent))
    return f"noise {' and '.join(noise)} times what {changes} one record changes at most" if noise else ""


def unsampled(event: dp.DpEvent) -> dp.DpEvent:
    """Return an event whose mechanisms take all records, as for an attacker who knows which may be in the batch."""
    if isinstance(event, dp.PoissonSampledDpEvent | dp.SampledWithoutReplacementDpEvent
                  | dp.SampledWithReplacementDpEvent):
        return unsampled(event.event)
    if isinstance(event, dp.SelfComposedDpEvent):
        return dp.SelfComposedDpEvent(unsampled(event.event), event.count)
    if isinstance(event, dp.ComposedDpEvent):
        return dp.ComposedDpEvent([unsampled(part) for part in event.events])
    return event
