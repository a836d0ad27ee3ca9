"""One epsilon for all that an adaptive sweep releases: a privacy filter, and its odometer.

A search chooses each trial, and so the trial's privacy loss, by the releases of earlier trials: a fully adaptive
composition. Feldman & Zrnic 2021, "Individual privacy accounting via a Renyi filter" (for all records at once: Lecuyer
2021, "Practical privacy filters and odometers with Renyi differential privacy"), cover it. Let mechanisms M_1, M_2, ...
be chosen from earlier outputs, with Renyi divergences rho_1, rho_2, ... at one order alpha. If no mechanism is run with
which rho_1 + ... + rho_t would exceed B, all of them together are (alpha, B)-Renyi private. alpha and B are fixed
beforehand. B gives epsilon at delta by Canonne, Kamath & Steinke 2020, Proposition 12:

    epsilon = B + log((alpha - 1)/alpha) - (log delta + log alpha)/(alpha - 1)

The mechanism is one epoch of a trial. A training record pays for the steps of the epoch. A validation record pays
alpha/(2 s^2) for the count with noise s (`evaluations`). The split does not look at the records, so an epoch costs the
larger of the two. A trial starts only if all its epochs fit, and it is charged for the epochs that it released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from dp_accounting.rdp import RdpAccountant

from pipeline.accounting.certified import event_of, with_noise
from pipeline.accounting.curves import ORDERS, improved_conversion, without_replacement_rdp
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.evaluations import evaluation_noise, is_noisy
from pipeline.accounting.event import PrivacyEvent
from pipeline.accounting.finite_precision import accounted_delta, within_delta
from pipeline.accounting.noise import noise_statement, sentence
from pipeline.accounting.selected import dp_event
from pipeline.accounting.stated import RELATIONS, StatedEvent
from pipeline.experiment.budget import Budget
from pipeline.experiment.experiment import Experiment
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.naming import composable, counted, guarantee
from pipeline.trials.records import Release


class Filter(NamedTuple):
    """A Renyi filter: the budget that all releases of a sweep share.

    Attributes:
        budget: (epsilon, delta) of all releases together.
        order: alpha, one of `curves.ORDERS`.
        delta: for the accountant; with secure noise it is less than the budget's delta (`finite_precision`).
    """

    budget: Budget
    order: int
    delta: float

    @property
    def kept(self) -> list[float]:
        """Return the numbers that a store keeps for `begun`."""
        return [self.budget.epsilon, self.budget.delta, self.order, self.delta]

    def spent(self, released: Iterable[Release]) -> float:
        """Return the Renyi divergence, of order alpha = `self.order`, of all released epochs together.

        Divergences of one order add up over the epochs of all trials.

        Raises:
            ConfigError: for a trial whose epochs have no finite cost.
        """
        costs: list[float] = []  # one entry for each epoch
        for trial, epochs in epochs_released(released):
            cost = epoch_cost(trial, self.order)
            costs.extend(cost for _ in range(epochs))
        return math.fsum(costs)  # rounds once, so the order of the trials does not matter

    def epsilon(self, divergence: float) -> float:
        """Convert a spent divergence to epsilon at `delta`; no divergence gives 0."""
        if divergence == 0:
            return 0.0
        return improved_conversion((self.order,), np.array([divergence]), self.delta)[0]

    def admits(self, released: Iterable[Release]) -> bool:
        """Whether these releases are within the budget."""
        return self.epsilon(self.spent(released)) <= self.budget.epsilon

    def stated(self, released: Sequence[Release]) -> Epsilon:
        """Return the budget as the epsilon of all releases, the choice of the best trial included.

        It is infinite if the releases exceed the budget.

        Args:
            released: at least one release.
        """
        first, spent = released[0].trial, f"{self.epsilon(self.spent(released)):.4g}"
        value = self.budget.epsilon
        if self.admits(released):
            note = (f"a Renyi filter of order {self.order}, fixed beforehand, let trials start whose whole cost "
                    f"fitted; {spent} of it was spent; that trials were asked for by the scores of those before is "
                    "covered, and so is the choice of the best by them")
        else:
            value, note = math.inf, f"{spent} was spent, more than the budget of {value:g}, which then covers nothing"
        kind = guarantee([release.trial for release in released])
        return Epsilon(value, "selected" if kind == "certified" else kind, "budget", first.parts.sampler.relation,
                       first.sampler, self.budget.delta, "improved", note)


def begun(kept: Sequence[float]) -> Filter:
    """Return the filter with which a sweep began.

    Args:
        kept: its `Filter.kept`, from the tracking store.
    """
    epsilon, delta, order, accounted = kept
    return Filter(Budget(epsilon, delta), int(order), accounted)


def require_unchanged(budget: Budget | None, kept: Sequence[float] | None) -> None:
    """Refuse a budget that changed after the sweep began: a budget covers only what was released under it.

    Args:
        budget: from the experiment file.
        kept: `Filter.kept` of the sweep as it began; None if it began without a budget.

    Raises:
        ConfigError: if the two differ.
    """
    before = Budget(*kept[:2]) if kept else None
    if budget != before:
        raise ConfigError(f"budget: must be the one that the sweep began with, {before or 'none'}, because a budget "
                          f"that was changed after results were seen covers nothing, got {budget or 'none'}; copy the "
                          "experiment under another name, whose budget does not count what this sweep released")


def make_filter(experiment: Experiment, order: int | None = None) -> Filter:
    """Return the filter for a search with a budget.

    Args:
        order: the order with which the sweep began. None chooses the order at which a trial takes the least share of
            the budget, averaged over the corners of the space.

    Raises:
        ConfigError: if the budget is less than the cost of the cheapest corner, or too large for secure noise.
    """
    budget, search, corners = experiment.budget, experiment.search, experiment.corners
    if budget is None or search is None:
        raise ConfigError("budget: must be that of a search, which a filter is made for, got an experiment without")
    delta = min(accounted_delta(trial) for trial in corners)
    for trial in corners:
        if not within_delta(trial, budget.epsilon, search.trials):
            raise ConfigError("budget.epsilon: must be at most some 130 with noise 'secure', above which the sampler "
                              f"of the noise takes more than its share of delta, got {budget.epsilon:g}")
    run_costs = np.array([trial.epochs * _curve(trial) for trial in corners])  # [corners, orders]
    orders = np.array(ORDERS)
    # At every order, epsilon is a divergence plus this constant (Canonne, Kamath & Steinke 2020, Proposition 12).
    conversion = np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    cheapest = np.min(run_costs, axis=0) + conversion
    if cheapest.min() > budget.epsilon:
        targets = [trial.target_epsilon for trial in corners if trial.target_epsilon]
        why = (f"; that is more than its target_epsilon of {min(targets):g}, as a filter adds up Renyi divergences of "
               "one order, which bound epsilon less tightly; ask for a smaller target or a larger budget"
               if targets else "")
        raise ConfigError(f"budget.epsilon: must be at least {cheapest.min():.4g}, which the cheapest trial of the "
                          f"search costs, got {budget.epsilon:g}{why}")
    if order is None:
        possible = cheapest <= budget.epsilon
        shares = np.mean(run_costs[:, possible] / (budget.epsilon - conversion[possible]), axis=0)
        order = int(orders[possible][np.argmin(shares)])
    return Filter(budget, order, delta)


@lru_cache(maxsize=4096)
def epoch_cost(trial: TrialConfig, order: int) -> float:
    """Return the Renyi divergence of one epoch with its evaluation.

    It is the larger of the costs to a training record and to a validation record.

    Raises:
        ConfigError: for a trial whose epochs have no finite cost, or that does not log validation accuracy with noise.
    """
    if not composable([trial]) or not is_noisy(trial):
        raise ConfigError(f"budget: trial {trial.trial_key} of this sweep has no finite cost (mechanism "
                          f"'{trial.mechanism}', private_metrics '{trial.disclosure}'), so that nothing covers the "
                          "sweep; give the experiment another name")
    return float(_curve(trial)[ORDERS.index(order)])


def _curve(trial: TrialConfig) -> np.ndarray:
    """Return `epoch_cost` at all `ORDERS`."""
    of_training = renyi(event_of(with_noise(trial), 1))
    return np.maximum(of_training, np.array(ORDERS) / (2 * evaluation_noise(trial) ** 2))


@lru_cache(maxsize=1024)
def renyi(event: PrivacyEvent | StatedEvent) -> np.ndarray:
    """Return the Renyi divergence of an event at all orders of `ORDERS`, [len(ORDERS)], read-only."""
    if isinstance(event, StatedEvent):
        curve = event.renyi()
    elif event.drawn.amplified and event.drawn.full:  # `dp_accounting` takes seconds for it
        curve = event.steps * without_replacement_rdp(event.q, event.z)
    else:
        curve = np.array(RdpAccountant(ORDERS, RELATIONS[event.relation]).compose(dp_event(event)).rdp)
    curve.setflags(write=False)
    return curve


def epochs_released(released: Iterable[Release]) -> Iterable[tuple[TrialConfig, int]]:
    """Return (trial, released epochs) for every trial with a release.

    A research trial that is trained again draws the same noise from its seed, so it releases the same values again, and
    the longest release counts. With secret noise every draw is a separate release, and their epochs add up.
    """
    trials: dict[str, tuple[TrialConfig, list[Release]]] = {}
    for release in released:
        trials.setdefault(release.trial.trial_key, (release.trial, []))[1].append(release)
    found = []
    for trial, releases in trials.values():
        epochs = sum(draws_of(releases)) if trial.draws_fresh_noise else max(release.epochs for release in releases)
        found.append((trial, epochs))
    return found


def draws_of(released: Iterable[Release]) -> list[int]:
    """Return the epochs that each draw of one trial's secret noise released, the oldest draw first.

    A release without a draw's name counts as a draw of its own.
    """
    found: dict[tuple[str, int], tuple[int, int]] = {}  # by draw: (published epochs, lost epochs)
    for number, release in enumerate(released):
        key = release.draw, 0 if release.draw else number
        published, lost = found.get(key, (0, 0))
        found[key] = max(published, release.published), lost + release.lost
    return [sum(epochs) for epochs in found.values() if any(epochs)]


def scope(experiment: Experiment, certified: Callable[[str, str], Mapping[str, tuple[float, float]]]) -> list[str]:
    """Return sentences on what the budget does not cover: other names, copied stores and other sweeps.

    The list is empty without a budget.

    Args:
        certified: `Reader.certified`; maps a data set and a relation to (epsilon, delta) of each sweep in the store
            that has certified trials with both.
    """
    if not experiment.budget:
        return []
    dataset, relation = experiment.corners[0].dataset, experiment.corners[0].parts.sampler.relation
    lines = [f"The budget belongs to the name '{experiment.name}' in this tracking store: another name, a copy of the "
             "store, a tag that was edited or an MLflow experiment that was renamed begins anew, and the records pay "
             "again."]
    if others := {name: cost for name, cost in certified(dataset, relation).items() if name != experiment.name}:
        own = experiment.budget.epsilon, experiment.budget.delta
        epsilons, deltas = zip(own, *others.values(), strict=True)
        lines.append(
            f"With the certified trials of {counted(len(others), 'other sweep')} on {dataset} in this store "
            f"({', '.join(sorted(others))}; relation {relation}) that is epsilon "
            f"{' + '.join(f'{epsilon:.4g}' for epsilon in epsilons)} = {sum(epsilons):.4g} at delta {sum(deltas):.3g}, "
            "which no budget bounds.")
    return lines


def budget_lines(experiment: Experiment) -> Iterator[str]:
    """Yield lines on the filter of a search with a budget, and on the costs of its cheapest and dearest trial."""
    search = experiment.search
    if not experiment.budget or not search:
        return
    filter = make_filter(experiment)
    costs = {trial: filter.spent([Release(trial, trial.epochs)]) for trial in experiment.corners}
    dearest = max(costs, key=costs.__getitem__)
    least_cost, largest_cost = min(costs.values()), max(costs.values())
    conversion = filter.epsilon(1.0) - 1.0  # epsilon is a divergence plus this constant
    largest_divergence = filter.budget.epsilon - conversion
    most_of_dearest, most_of_cheapest = int(largest_divergence / largest_cost), int(largest_divergence / least_cost)
    yield (f"budget: epsilon {filter.budget.epsilon:g} at delta {filter.budget.delta:g} for all that the sweep "
           f"releases, by a Renyi filter of order {filter.order}")
    yield (f"  the cheapest trial alone is epsilon {filter.epsilon(least_cost):.4g}, the dearest "
           f"{filter.epsilon(largest_cost):.4g}; {most_of_dearest} of the dearest fit, or {most_of_cheapest} of the "
           "cheapest")
    yield (f"  {conversion:.4g} of that is paid once by the whole sweep, however many trials there are; the cheapest "
           f"adds {least_cost:.4g}, the dearest {largest_cost:.4g}")
    if dearest.target_epsilon:
        yield (f"  target_epsilon {dearest.target_epsilon:g} is the cost by a trial's own accountant; the filter "
               "covers all trials together and adds up Renyi divergences of one order in its place")
        if most_of_dearest < search.trials and (fits := _target_that_fits(dearest, filter, search.trials)):
            yield f"  for {counted(search.trials, 'trial')} to fit, ask for target_epsilon <= {fits:.2g}"
    yield f"  {sentence(noise_statement(trial.noise for trial in experiment.corners))}"


def _target_that_fits(trial: TrialConfig, filter: Filter, many: int) -> float:
    """Return about the largest target_epsilon at which `many` trials like this one fit into the budget.

    It is found by bisection below the trial's own target, and rounded down to two digits. Return 0 if not even 1/64 of
    the trial's target fits.
    """
    def fits(target: float) -> bool:
        cost = filter.spent([Release(TrialConfig(trial.given, target_epsilon=target), trial.epochs)])
        return filter.epsilon(many * cost) <= filter.budget.epsilon

    low, high = trial.target_epsilon / 64, trial.target_epsilon
    if not fits(low):
        return 0.0
    while high / low > 1.01:  # finer than the two digits that are kept
        middle = math.sqrt(low * high)
        if fits(middle):
            low = middle
        else:
            high = middle
    second_digit = 10 ** (math.floor(math.log10(low)) - 1)
    return math.floor(low / second_digit) * second_digit
