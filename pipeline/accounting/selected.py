"""`selected` epsilon: looking at a whole sweep and publishing its best trial is a query of its own.

There are two ways to pay. Composition charges for every trial of a fixed grid, whatever is done with the results. If
the number of trials was random and only the best is published, the cost is far lower (Papernot & Steinke 2022).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

import numpy as np
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

from pipeline.accounting.curves import improved_conversion
from pipeline.accounting.epsilon import Epsilon, check_delta
from pipeline.accounting.event import NEIGHBOURS, PrivacyEvent, UnsupportedAccounting, composed_epsilon
from pipeline.accounting.repetitions import GEOMETRIC, LOGARITHMIC, POISSON, gamma_of
from pipeline.trials.naming import counted

logging.getLogger("absl").setLevel(logging.ERROR)  # dp_accounting warns about every order that it skips

_NAMES = {LOGARITHMIC: "logarithmic", GEOMETRIC: "geometric", POISSON: "Poisson"}
_SCORES = "scores must come from public data or be private themselves"
_COVERED = "the noisy validation scores of all trials are covered"


def selected_by_composition(events: Sequence[PrivacyEvent], delta: float, scores: Sequence[float] = (),
                            one_split: bool = False) -> Epsilon:
    """Return epsilon of publishing the releases of all `events` together; infinite if one has no noise.

    There is one event for each trial whose results anybody looked at, of its whole run and all of one relation.
    `scores` has mu of each trial's noisy validation scores, 0 if it holds out no record; it is empty if scores are not
    covered. With `one_split`, all trials with scores hold out the same records.
    """
    relation = _common_value(events, "relation")
    check_delta(delta)
    samplers = sorted({event.sampler for event in events})
    note = (f"all of {counted(len(events), 'trial')} composed: any of them may be published, the best for example; "
            f"{_COVERED if scores else _SCORES}")
    scores_mu = math.hypot(*scores)  # Gaussian mechanisms compose to the root of the summed squares
    if one_split and scores_mu:  # no record is in training of one trial and in validation of another
        without_scores = [event for event, mu in zip(events, scores, strict=True) if not mu]
        of_trained_record = composed_epsilon(events, 0.0, delta)
        of_held_out_record = composed_epsilon(without_scores, scores_mu, delta)
        value, conversion = max(of_trained_record, of_held_out_record)
    else:
        value, conversion = composed_epsilon(events, scores_mu, delta)
    return Epsilon(value, kind="selected", variant="composition", relation=relation, sampler=", ".join(samplers),
                   delta=delta, conversion=conversion, note=note)


def selected_by_random_stopping(events: Sequence[PrivacyEvent], delta: float, mean: float,
                                shape: float = GEOMETRIC, scores: Sequence[float] = ()) -> Epsilon:
    """Return epsilon of publishing only the best of K trials, each drawn at random from the candidates.

    K is drawn before any result is seen, from the distribution with this shape and mean (see `repetitions`).
    There is one event per candidate. `scores` has mu (Gaussian DP) of all noisy validation scores of each, in this
    order; it is empty if the guarantee does not cover scores.
    """
    relation, sampler = _common_value(events, "relation"), _common_value(events, "sampler")
    check_delta(delta)
    if not 1 <= mean < math.inf:
        raise ValueError(f"mean: must be >= 1 and finite, got {mean}")
    if not shape >= 0:
        raise ValueError(f"shape: must be >= 0, got {shape}")
    value = math.inf
    if all(event.z > 0 for event in events):
        orders, curve = _worst_candidate(events, max(scores, default=0.0))
        value, _ = improved_conversion(orders, repeated(orders, curve, mean, shape), delta)
    distribution = _NAMES.get(shape, f"negative binomial (shape {shape:g})")
    note = (f"the best of K trials, K {distribution} with mean {mean:g} and drawn beforehand; only the best is "
            f"published; {_COVERED if scores else _SCORES}")
    return Epsilon(value, kind="selected", variant="random_stopping", relation=relation, sampler=sampler, delta=delta,
                   conversion="improved", note=note)


def _worst_candidate(events: Sequence[PrivacyEvent], scores_mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Return orders and, at each, a bound on the Renyi divergence of a trial that is drawn from the candidates."""
    accountants = []
    for event in dict.fromkeys(events):  # each once
        accountant = RdpAccountant(neighboring_relation=NEIGHBOURS[event.relation])
        accountants.append(accountant.compose(event.run))
    orders = accountants[0].orders
    # A record is in training or in validation of a trial, so the larger of the two counts.
    score_curve = np.asarray(orders) * scores_mu ** 2 / 2
    return orders, np.max([score_curve, *(accountant.rdp for accountant in accountants)], axis=0)


def repeated(orders: np.ndarray, curve: np.ndarray, mean: float, shape: float) -> np.ndarray:
    """Return the Renyi curve of the best of K runs, [len(orders)], from the curve of one, with E[K] = `mean`.

    K has a truncated negative binomial or a Poisson distribution (Papernot & Steinke 2022, Theorems 2 and 6). At every
    order lambda > 1, with any lambda' >= 1 and delta'(epsilon) of one run:

        e(lambda) + (1 + eta)((1 - 1/lambda') e(lambda') + log(1/gamma)/lambda') + log(mean)/(lambda - 1)
        Poisson: e(lambda) + mean delta'(log(1 + 1/(lambda - 1))) + log(mean)/(lambda - 1).
    """
    above_1 = orders > 1  # orders increase; at 1 there is no bound
    repeated_curve = np.full(len(orders), np.inf)
    if shape == POISSON:
        second_term = np.array([mean * compute_delta(orders, curve, math.log1p(1 / (order - 1)))[0]
                                for order in orders[above_1]])
    else:  # with the best lambda'
        second_term = (1 + shape) * np.min((1 - 1 / orders) * curve - math.log(gamma_of(mean, shape)) / orders)
    repeated_curve[above_1] = curve[above_1] + second_term + math.log(mean) / (orders[above_1] - 1)
    # A Renyi curve does not decrease with its order, so the bound at a larger order holds at smaller ones too.
    return np.minimum.accumulate(repeated_curve[::-1])[::-1]


def _common_value(events: Sequence[PrivacyEvent], field: str) -> str:
    if not events:
        raise ValueError("events: must be one per trial looked at, got none")
    return common(field, sorted(getattr(event, field) for event in events))


def common(field: str, values: Iterable[object]) -> str:
    """Return, as text, the value of a field that all trials share; refuse several. There is at least one value."""
    distinct = list(dict.fromkeys(map(str, values)))
    if len(distinct) > 1:
        raise UnsupportedAccounting(f"{field}: must be one for all trials, got {' and '.join(distinct)}")
    return distinct[0]
