"""One epsilon for all that an adaptive sweep releases: a privacy filter, and its odometer.

A search chooses each trial, and so the trial's privacy loss, by the releases of earlier trials: a fully adaptive
composition. Feldman & Zrnic 2021, "Individual privacy accounting via a Renyi filter" (for all records at once: Lecuyer
2021, "Practical privacy filters and odometers with Renyi differential privacy"), cover it. Let mechanisms M_1, M_2, ...
be chosen from earlier outputs, with Renyi divergences rho_1, rho_2, ... at one order alpha. If no mechanism is run with
which rho_1 + ... + rho_t would exceed B, all of them together are (alpha, B)-Renyi private. alpha and B are fixed
beforehand. B gives epsilon at delta by Canonne, Kamath & Steinke 2020, Proposition 12:

    epsilon = B + log((alpha - 1)/alpha) - (log delta + log alpha)/(alpha - 1)

The mechanism is one epoch of a trial, or with secret noise a whole trial, which releases nothing before its end. A
training record pays for the steps of an epoch. A validation record pays alpha/(2 s^2) for the count with noise s
(`evaluations`). The split does not look at the records, so an epoch costs the larger of the two. A trial starts only if
all its epochs fit; it is charged for the epochs that it released, and for all of them with secret noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipeline.accounting.certified import event_of, with_noise
from pipeline.accounting.curves import ORDERS, improved_conversion
from pipeline.accounting.epsilon import Budget, Epsilon
from pipeline.accounting.evaluations import evaluation_noise, is_noisy
from pipeline.accounting.finite_precision import accounted_delta, within_delta
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.kinds import is_certified
from pipeline.trials.records import Release


class Filter(NamedTuple):
    """A Renyi filter: the budget that all releases of a sweep share."""

    budget: Budget  # (epsilon, delta) of all releases together
    order: int  # alpha, one of `curves.ORDERS`
    delta: float  # for the accountant; with secure noise it is less than the budget's delta (`finite_precision`)

    @property
    def initial_state(self) -> list[float]:
        """Return [epsilon, delta, order, accountant's delta], which the store keeps; `restored_filter` reads it."""
        return [self.budget.epsilon, self.budget.delta, self.order, self.delta]

    def spent(self, released: Iterable[Release]) -> float:
        """Return the Renyi divergence, of order `order`, that all epochs of all releases have spent together."""
        costs = ([epoch_cost(trial, self.order)] * epochs for trial, epochs in epochs_released(released))
        return math.fsum(itertools.chain.from_iterable(costs))  # rounds once, so the trials' order does not matter

    def epsilon(self, divergence: float) -> float:
        """Convert a spent divergence to epsilon at `delta`; no divergence gives 0."""
        if divergence == 0:
            return 0.0
        epsilon, _ = improved_conversion((self.order,), np.array([divergence]), self.delta)
        return epsilon

    def admits(self, released: Iterable[Release]) -> bool:
        """Whether all releases of a sweep together are within its budget."""
        return self.epsilon(self.spent(released)) <= self.budget.epsilon

    def stated(self, released: Sequence[Release]) -> Epsilon:
        """Return the whole budget as an `Epsilon` of all releases and of the choice; infinite if they exceed it."""
        spent = f"{self.epsilon(self.spent(released)):.4g}"
        if self.admits(released):
            value = self.budget.epsilon
            note = (f"a Renyi filter of order {self.order}, fixed beforehand, let trials start whose whole cost "
                    f"fitted; {spent} of it was spent; that trials were asked for by the scores of those before is "
                    "covered, and so is the choice of the best by them")
        else:
            value = math.inf
            note = f"{spent} was spent, more than the budget of {self.budget.epsilon:g}, which then covers nothing"
        any_trial = released[0].trial  # all trials of a search have one sampler
        return Epsilon(value, kind="selected", variant="budget", relation=any_trial.parts.sampler.relation,
                       sampler=any_trial.sampler, delta=self.budget.delta, conversion="improved", note=note)


def restored_filter(initial_state: Sequence[float]) -> Filter:
    """Return the filter with which a sweep began, from [epsilon, delta, order, accountant's delta] in the store."""
    epsilon, delta, order, accountant_delta = initial_state
    return Filter(Budget(epsilon, delta), int(order), accountant_delta)


def require_unchanged(budget: Budget | None, initial_state: Sequence[float] | None) -> None:
    """Refuse a budget other than the one in `initial_state`, of the sweep's beginning; None stands for no budget."""
    initial = Budget(*initial_state[:2]) if initial_state else None
    if budget != initial:
        raise ConfigError(f"budget: must be the one that the sweep began with, {initial or 'none'}, because a budget "
                          f"that was changed after results were seen covers nothing, got {budget or 'none'}; copy the "
                          "experiment under another name, whose budget does not count what this sweep released")


def make_filter(budget: Budget, corners: Sequence[TrialConfig], planned: int, order: int | None = None) -> Filter:
    """Return the Renyi filter of at most `planned` trials; refuse a budget that not even the cheapest trial fits.

    The corners of the search space stand for all trials. `order` is that of a sweep that has begun. Without it, it is
    the order at which a corner spends the smallest share of the budget, on average.
    """
    if not all(within_delta(trial, budget.epsilon, planned) for trial in corners):
        raise ConfigError("budget.epsilon: must be at most some 130 with noise 'secure', above which the sampler "
                          f"of the noise takes more than its share of delta, got {budget.epsilon:g}")
    delta = min(accounted_delta(trial) for trial in corners)
    orders = np.array(ORDERS)
    run_costs = np.array([trial.epochs * _epoch_costs(trial) for trial in corners])  # divergence [corners, orders]
    # At every order, epsilon is the divergence plus a constant (Canonne, Kamath & Steinke 2020, Proposition 12).
    conversion = np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    min_epsilons = np.min(run_costs, axis=0) + conversion  # [orders], of the cheapest corner
    if min_epsilons.min() > budget.epsilon:
        hint = ""
        if targets := [trial.target_epsilon for trial in corners if trial.target_epsilon]:
            hint = (f"; that is more than its target_epsilon of {min(targets):g}, as a filter adds up Renyi "
                    "divergences of one order, which bound epsilon less tightly; ask for a smaller target or a larger "
                    "budget")
        raise ConfigError(f"budget.epsilon: must be at least {min_epsilons.min():.4g}, which the cheapest trial of the "
                          f"search costs, got {budget.epsilon:g}{hint}")
    if order is None:
        affordable = min_epsilons <= budget.epsilon  # orders at which at least the cheapest corner fits
        max_divergences = budget.epsilon - conversion[affordable]
        mean_shares = np.mean(run_costs[:, affordable] / max_divergences, axis=0)
        order = int(orders[affordable][np.argmin(mean_shares)])
    return Filter(budget, order, delta)


@lru_cache(maxsize=4096)
def epoch_cost(trial: TrialConfig, order: int) -> float:
    """Return the Renyi divergence, of one order, of a trial's epoch with noisy accuracy; refuse an infinite cost."""
    if not is_certified(trial) or not is_noisy(trial):
        raise ConfigError(f"budget: trial {trial.trial_key} of this sweep has no finite cost (mechanism "
                          f"'{trial.mechanism}', private_metrics '{trial.disclosure}'), so that nothing covers the "
                          "sweep; give the experiment another name")
    return float(_epoch_costs(trial)[ORDERS.index(order)])


def _epoch_costs(trial: TrialConfig) -> np.ndarray:
    """Return `epoch_cost` at all orders, [len(ORDERS)]."""
    # A record is in training or in validation, so the larger of the two costs counts.
    training = event_of(with_noise(trial), 1).renyi()
    return np.maximum(training, np.array(ORDERS) / (2 * evaluation_noise(trial) ** 2))


def epochs_released(released: Iterable[Release]) -> Iterator[tuple[TrialConfig, int]]:
    """Yield (trial, released epochs) for every trial with a release.

    With noise from a recorded seed, a trial that is trained again releases the same values again, so only its longest
    release counts. With secret noise every name is a release of its own, and a release without a name is still to come:
    it counts only for a trial that has no other.
    """
    by_key: dict[str, dict[str, Release]] = {}  # trial_key -> name -> the longest release
    for release in released:
        by_name = by_key.setdefault(release.trial.trial_key, {})
        by_name[release.name] = max(release, by_name.get(release.name, release), key=lambda each: each.epochs)
    for by_name in by_key.values():
        if len(by_name) > 1:
            by_name.pop("", None)
        trial = next(iter(by_name.values())).trial
        yield trial, sum(release.epochs for release in by_name.values())
