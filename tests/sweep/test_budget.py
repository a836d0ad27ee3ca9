"""The privacy budget of a search: what it costs, that it is kept whatever is asked for, and that it is paid once."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant
from search_tools import by_hand, parse, records, rounds, train

from pipeline.accounting.budget import budget_lines, epoch_cost, make_filter
from pipeline.accounting.evaluations import evaluation_noise
from pipeline.sweep.ledger import Ledger, filter_of, released_by
from pipeline.sweep.search import Rounds
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError
from pipeline.trials.records import Release

BUDGET = """
name: search
base: {dataset: digits, hidden: [8], mechanism: per_example, sampler: shuffled, noise_multiplier: 20,
       private_metrics: noisy}
search:
  algorithm: random
  trials: 12
  space: {learning_rate: {loguniform: [0.05, 5]}, batch_size: {choice: [64, 128]}, epochs: {randint: [2, 13]}}
budget: {epsilon: 4, delta: 1.0e-5}
"""
SECURE = ("private_metrics: noisy", "noise: secure, arithmetic: integer")


def budgeted(*changes):
    return parse(*changes, text=BUDGET)


class Dearest:
    """Always asks for the most expensive trial of the space, another one every time."""

    def __init__(self, search):
        self._numbers, self._epochs = itertools.count(), search.space["epochs"].ends[-1]

    def ask(self):
        return {"learning_rate": 0.05 + 0.01 * next(self._numbers), "batch_size": 128, "epochs": self._epochs}

    def tell(self, number, score):
        pass


@pytest.mark.parametrize("sampler", ["poisson", "without_replacement", "shuffled"])
def test_an_epoch_costs_what_dp_accounting_says_of_its_steps_and_of_its_evaluation(sampler):
    """By the events themselves; at order alpha a Gaussian of multiplier z costs alpha/(2 z^2)."""
    experiment = budgeted(("shuffled", sampler))
    trial, order = experiment.possible[0], 5
    n, m, steps = trial.split_sizes[0], trial.batch_size, trial.steps_per_epoch
    scored = order / (2 * evaluation_noise(trial) ** 2)
    if sampler == "poisson":
        event = SelfComposedDpEvent(PoissonSampledDpEvent(m / n, GaussianDpEvent(20)), steps)
        trained = RdpAccountant([order], NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event).rdp[0]
    elif sampler == "shuffled":
        trained = order / (2 * (20 / 2) ** 2)
    else:
        event = SelfComposedDpEvent(SampledWithoutReplacementDpEvent(n, m, GaussianDpEvent(10)), steps)
        trained = RdpAccountant([order], NeighboringRelation.REPLACE_ONE).compose(event).rdp[0]
    assert epoch_cost(trial, order) == pytest.approx(max(trained, scored), rel=1e-9)
    assert trained > 0 and scored > 0


def test_epsilon_is_that_of_one_order_and_one_delta():
    """By Proposition 12 of Canonne, Kamath and Steinke; of nothing it is 0."""
    filter = make_filter(budgeted().plan)
    alpha = filter.order
    for divergence in (0.1, 1.0):
        by_formula = divergence + math.log((alpha - 1) / alpha) - (math.log(1e-5) + math.log(alpha)) / (alpha - 1)
        assert filter.epsilon(divergence) == pytest.approx(by_formula, rel=1e-12)
    assert filter.epsilon(0.0) == 0


def test_the_order_is_the_one_at_which_a_trial_takes_the_least_share():
    """As a mean over the corners, at orders at which the cheapest fits."""
    experiment = budgeted()
    filter = make_filter(experiment.plan)

    def shares(order):
        at = filter._replace(order=order)
        whole = [at.spent([Release(trial, trial.epochs)]) for trial in experiment.possible]
        fixed = at.epsilon(1.0) - 1.0
        return np.mean(whole) / (4 - fixed) if fixed + min(whole) <= 4 else math.inf

    assert filter.order == min(range(2, 60), key=shares) and make_filter(experiment.plan, 7).order == 7


@pytest.mark.parametrize("early", [False, True])
def test_whoever_always_asks_for_the_most_expensive_trial_never_gets_past_the_budget(early, tmp_path):
    """Also with trials that end early, and so leave something for others."""
    experiment, store = budgeted(("trials: 12", "trials: 24")), Store(root=tmp_path)
    search = rounds(experiment, store, Dearest)
    while missing := search.next(store.runs()):
        for number, trial in enumerate(missing):
            train(store, [trial], epochs=1 if early and number % 2 else 0)
    filter, released = search.filter, released_by(store)
    spent, one = filter.epsilon(filter.spent(released)), [Release(experiment.possible[-1], 12)]
    assert 0 < spent <= 4 and len(search.suggestions) == 24 and 0 < len(search.trials) < 24
    assert filter.spent(released) == by_hand(store, filter.order)
    assert not filter.admits([*released, *one]), "another one would have been too much"


def test_a_first_round_that_does_not_fit_is_passed_over_before_there_is_a_sweep(tmp_path):
    """The dearest alone is beyond this budget, the cheapest is not."""
    experiment, store = budgeted(("epsilon: 4", "epsilon: 1.2"), ("[2, 13]", "[1, 200]")), Store(root=tmp_path)
    search = Rounds(experiment.plan, store, Dearest)
    assert search.next(()) == [] and search.passed_over == 12 and not store.is_open


def test_the_filter_judges_exactly_what_was_released():
    filter = make_filter(budgeted().plan)
    trial = budgeted().possible[0]
    most = next(n for n in itertools.count(1) if not filter.admits([Release(trial, n)])) - 1
    exact = Fraction(epoch_cost(trial, filter.order))
    fixed = filter.epsilon(1.0) - 1.0
    assert float(most * exact) + fixed <= 4 < float((most + 1) * exact) + fixed
    assert filter.spent([Release(trial, most)]) == float(most * exact)


def test_a_trial_of_research_noise_is_paid_once_and_one_of_secret_noise_as_often_as_it_was_released():
    for changes, times in (([], 1), ([SECURE], 2)):
        experiment = budgeted(*changes)
        filter, trial = make_filter(experiment.plan), experiment.possible[0]
        once = filter.spent([Release(trial, 2)])
        assert filter.spent([Release(trial, 2, deleted=True), Release(trial, 2)]) == pytest.approx(times * once)
        assert filter.spent([Release(trial, 2, deleted=True)]) == once, "what was deleted was released"


@pytest.mark.parametrize("secure", [False, True])
def test_the_odometer_never_goes_down_whatever_is_deleted_or_trained_again(secure, tmp_path):
    experiment, store = budgeted(*([SECURE] if secure else [])), Store(root=tmp_path)
    search = rounds(experiment, store)
    first, second, *_ = search.next(())
    ledger = Ledger(store, search.filter)
    ledger.begin([first, second])
    for trial in (first, second):
        store.start(trial)
        for record in records(trial, 2):
            store.log([record])
            ledger.add([record])
            ledger.add([record])  # handed in twice
    spent = search.filter.spent(released_by(store))
    (run,) = (run for run in store.runs() if run.trial_key == first.trial_key)
    store._client.delete_run(run.run_id)
    assert search.filter.spent(released_by(store)) == spent == by_hand(store, search.filter.order)
    again = Store(root=tmp_path)
    assert rounds(experiment, again).next(())[0] == first, "what is asked for stays as it was"
    ledger = Ledger(again, search.filter)
    ledger.begin([first])
    again.start(first)
    for record in records(first, 2):
        again.log([record])
        ledger.add([record])
    final = search.filter.spent(released_by(again))
    assert final == by_hand(again, search.filter.order)
    assert (final > spent) if secure else (final == spent)
    points = again._client.get_metric_history(again._parent(), "epsilon/spent")
    values = [point.value for point in sorted(points, key=lambda point: (point.step, point.timestamp))]
    assert values == sorted(values) and values[-1] == search.filter.epsilon(final)


def test_a_trial_that_was_half_trained_goes_on_and_is_counted_once(tmp_path):
    experiment, store = budgeted(), Store(root=tmp_path)
    search = rounds(experiment, store)
    missing = search.next(())
    train(store, missing[:1], epochs=1, status="")
    again = rounds(experiment, Store(root=tmp_path))
    assert again.next(()) == missing and again.suggestions == search.suggestions


@pytest.mark.parametrize(("changes", "says"), [
    ([("budget: {epsilon: 4,", "budget: {epsilon: -1,")], "budget.epsilon: must be a number > 0 and finite, got -1"),
    ([("delta: 1.0e-5", "delta: 1")], "budget.delta: must be a number > 0 and < 1, got 1"),
    ([(", delta: 1.0e-5", "")], "budget: needs delta, got"),
    ([("delta: 1.0e-5", "delta: 1.0e-6")], "budget.delta: must be the delta of the trials, 1e-05, .*got 1e-06"),
    ([(",\n       private_metrics: noisy", "")], "private_metrics: must be 'noisy' under a budget, .*got 'plain'"),
    ([("noise_multiplier: 20,\n       private_metrics: noisy", "noise_multiplier: 0, private_metrics: plain")],
     "mechanism: every trial under a budget must have a certified, finite epsilon .*noise_multiplier 0"),
    ([("batch_size: {choice: [64, 128]}", "sampler: {choice: [poisson, shuffled]}"), ("sampler: shuffled, ", "")],
     "sampler: must be one for all trials under a budget, got poisson, shuffled"),
    ([("search:", "selection: {rule: composition}\nsearch:")], "selection: must not stand beside a search")])
def test_a_budget_that_covers_nothing_is_refused_in_one_line(changes, says):
    with pytest.raises(ConfigError, match=says) as error:
        budgeted(*changes)
    assert "\n" not in str(error.value)


def test_a_budget_needs_a_search():
    text = "base: {dataset: digits}\nbudget: {epsilon: 1, delta: 1.0e-5}"
    with pytest.raises(ConfigError, match="budget: is spent by a search, .*without one; .* fixed grid is `selected`"):
        parse(text=text)


def test_a_budget_too_small_for_one_trial_is_refused_with_what_the_cheapest_costs():
    with pytest.raises(ConfigError, match="budget.epsilon: must be at least ([0-9.]+), which the cheapest") as error:
        make_filter(budgeted(("epsilon: 4", "epsilon: 0.2")).plan)
    least = float(str(error.value).split("at least ")[1].split(",")[0])
    assert make_filter(budgeted(("epsilon: 4", f"epsilon: {1.001 * least:.5g}")).plan)


TARGET = (("noise_multiplier: 20", "target_epsilon: 2"), ("sampler: shuffled", "sampler: poisson"),
          ("epochs: {randint: [2, 13]}", "momentum: {uniform: [0, 0.9]}"), ("epsilon: 4", "epsilon: 6"),
          ("[64, 128]", "[128]"))


def test_why_a_target_costs_more_under_a_budget_is_said_and_which_target_fits():
    lines = list(budget_lines(budgeted(*TARGET)))
    assert any(line.startswith("  target_epsilon 2 is the cost by a trial's own accountant; ") for line in lines)
    (fits,) = re.findall(r"for 12 trials to fit, ask for target_epsilon <= ([\d.]+)$", "\n".join(lines), re.MULTILINE)
    for target, enough in ((fits, True), (f"{1.1 * float(fits):.3g}", False)):
        lines = list(budget_lines(budgeted((TARGET[0][0], f"target_epsilon: {target}"), *TARGET[1:])))
        assert (int(re.search(r"(\d+) of the dearest fit", lines[1])[1]) >= 12) == enough
        assert any("ask for target_epsilon" in line for line in lines) != enough
    with pytest.raises(ConfigError, match="must be at least ([0-9.]+), .* got 1; that is more than its target_epsilon"):
        make_filter(budgeted(*TARGET[:-2], ("epsilon: 4", "epsilon: 1")).plan)


def test_a_budget_is_that_with_which_the_sweep_began(tmp_path):
    store = Store(root=tmp_path)
    store.open_sweep("search", tags={"budget": "[4.0, 1e-05, 9, 1e-05]"})
    assert filter_of(budgeted().plan, store).order == 9 != make_filter(budgeted().plan).order, "fixed beforehand"
    for change, got in ((("epsilon: 4", "epsilon: 5"), "got epsilon 5 at delta 1e-05"),
                        (("budget: {epsilon: 4, delta: 1.0e-5}", ""), "got none")):
        with pytest.raises(ConfigError, match=f"budget: must be the one that the sweep began with, epsilon 4 .*{got}"):
            filter_of(budgeted(change).plan, store)


def test_trials_that_the_sweep_has_already_must_be_covered(tmp_path):
    store, experiment = Store(root=tmp_path), budgeted()
    store.open_sweep("search")
    train(store, [replace(experiment.possible[0], seed=9)], epochs=1)
    with pytest.raises(ConfigError, match="budget: must be there from the beginning, but 1 trial of the sweep began w"):
        filter_of(experiment.plan, store)
    store, other = Store(root=tmp_path / "other"), replace(experiment.possible[0], private_metrics="plain")
    rounds(experiment, store)
    train(store, [other], epochs=1)
    with pytest.raises(ConfigError, match=f"budget: trial {other.trial_key} of this sweep has no finite cost"):
        filter_of(experiment.plan, store)
    store, other = Store(root=tmp_path / "third"), replace(experiment.possible[0], sampler="poisson")
    rounds(experiment, store)
    train(store, [other], epochs=1)
    with pytest.raises(ConfigError, match="sampler: must be that of all trials under a budget, got poisson of trial"):
        filter_of(experiment.plan, store)
