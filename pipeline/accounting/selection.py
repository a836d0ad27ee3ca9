"""`selected` epsilon: looking at a whole sweep and publishing its best trial is a query of its own.

Two ways to pay for it: every trial that was looked at is composed (a fixed grid, whatever was done with it), or the
number of trials was random and only the best was looked at (Papernot & Steinke 2022), which costs far less.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant

from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.gaussian import PrivacyEvent, UnsupportedAccounting, accountants, loss_distribution

# Shapes of the distribution of the number of trials; any other shape > 0 is a truncated negative binomial.
LOGARITHMIC, GEOMETRIC, POISSON = 0.0, 1.0, math.inf
_NAMES = {LOGARITHMIC: "logarithmic", GEOMETRIC: "geometric", POISSON: "Poisson"}
_SCORES = "scores must come from public data or be private themselves"
_RELATION = {"add/remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace-one": NeighboringRelation.REPLACE_ONE}


def selected_by_composition(events: Sequence[PrivacyEvent], delta: float) -> Epsilon:
    """Epsilon of everything that `events`, one per trial looked at, released together; infinite if one had no noise.

    Raises:
        ValueError: without events, or unless 0 < delta < 1.
        UnsupportedAccounting: where the relations differ, or a trial has no accounting.
    """
    relation = _common(events, "relation")
    _check(delta)
    samplers = sorted({event.sampler for event in events})
    note = f"all of {len(events)} trials composed: any of them, and any choice among them, may be published"
    exact = samplers == ["shuffled"]
    if any(event.noise_multiplier == 0 for event in events):
        value = math.inf
    elif exact:
        value = gdp_eps(math.sqrt(sum(e.epochs / _noise(e) ** 2 for e in events)), delta)
    else:
        total = None
        for event, count in Counter(events).items():
            run = loss_distribution(dataclasses.replace(event, steps=event.steps * count, epochs=event.epochs * count))
            total = run if total is None else total.compose(run)
        value = float(total.get_epsilon_for_delta(delta))
    return Epsilon(value, "selected", "composition", relation, ", ".join(samplers), delta, "exact" if exact else "pld",
                   note)


def selected_by_random_stopping(events: Sequence[PrivacyEvent], delta: float, mean: float,
                                shape: float = GEOMETRIC) -> Epsilon:
    """Epsilon of the best of K trials, each drawn at random from the candidates, and nothing of the others published.

    K is drawn before any result is seen, from the truncated negative binomial distribution of this shape and mean (see
    `GEOMETRIC`, `LOGARITHMIC`, `POISSON`). The cost is that of the least private candidate, taken field by field.

    Args:
        events: one per candidate; all with one sampler and relation.
        mean: expected number of trials, >= 1 (of Poisson: of all draws, those of no trial included).

    Raises:
        ValueError: for no events, mean < 1, shape < 0, or unless 0 < delta < 1.
        UnsupportedAccounting: where samplers or relations differ, or a candidate has no accounting.
    """
    relation, sampler = _common(events, "relation"), _common(events, "sampler")
    _check(delta)
    if not 1 <= mean < math.inf:
        raise ValueError(f"mean: must be >= 1 and finite, got {mean}")
    if not shape >= 0:
        raise ValueError(f"shape: must be >= 0, got {shape}")
    worst = _least_private(events)
    value = math.inf
    if worst.noise_multiplier > 0:
        accountant = RdpAccountant(neighboring_relation=_RELATION[relation])
        accountant.compose(RepeatAndSelectDpEvent(_dp_event(worst), mean, shape))
        value = float(accountant.get_epsilon(delta))
    name = _NAMES.get(shape, f"negative binomial (shape {shape:g})")
    return Epsilon(value, "selected", "random_stopping", relation, sampler, delta, "improved",
                   f"the best of K trials, K {name} with mean {mean:g} and drawn beforehand; only the best is "
                   f"published; {_SCORES}")


def _least_private(events: Sequence[PrivacyEvent]) -> PrivacyEvent:
    """An event at least as revealing as each: epsilon falls with the noise and grows with everything else."""
    rates = {"sampling_rate": max(e.sampling_rate for e in events)} if events[0].sampler == "poisson" else {}
    if events[0].sampler == "without_replacement":
        largest = max(events, key=lambda e: e.q)
        rates = {"N": largest.N, "m": largest.m}
    return dataclasses.replace(events[0], noise_multiplier=min(map(_noise, events)),
                               steps=max(e.steps for e in events), epochs=max(e.epochs for e in events), **rates)


def _dp_event(event: PrivacyEvent) -> SelfComposedDpEvent:
    gaussian = GaussianDpEvent(event.noise_multiplier)
    if event.sampler == "shuffled":
        return SelfComposedDpEvent(gaussian, event.epochs)
    sampled = (PoissonSampledDpEvent(event.q, gaussian) if event.sampler == "poisson"
               else SampledWithoutReplacementDpEvent(event.N, event.m, gaussian))
    return SelfComposedDpEvent(sampled, event.steps)


def _noise(event: PrivacyEvent) -> float:
    if event.noise_multiplier is None:
        raise ValueError("noise_multiplier: not set; noise_multiplier_for calibrates it")
    return event.noise_multiplier


def _common(events: Sequence[PrivacyEvent], field: str) -> str:
    if not events:
        raise ValueError("events: must be one per trial looked at, got none")
    for event in events:
        accountants(event)
    values = sorted({getattr(event, field) for event in events})
    if len(values) > 1:
        raise UnsupportedAccounting(f"{field}: must be one for all trials, got {' and '.join(values)}")
    return values[0]


def _check(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta: must be > 0 and < 1, got {delta}")
