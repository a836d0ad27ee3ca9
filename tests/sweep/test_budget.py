"""The privacy budget of a search: what it costs, that it is paid once, and that it is kept whatever is asked for, gone
on with, deleted, restored or damaged."""

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
from search_tools import FILE, by_hand, name, parse, records, rounds, train

from analysis.report.report import write
from pipeline.accounting import account
from pipeline.accounting.budget import epoch_cost, make_filter
from pipeline.accounting.evaluations import evaluation_noise
from pipeline.experiment.prices import budget_lines, scope
from pipeline.sweep import dry_run
from pipeline.sweep.dry_run import preview
from pipeline.sweep.estimate import Estimate
from pipeline.sweep.ledger import Odometer, filter_of
from pipeline.sweep.rounds import Rounds
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
NOISY = ("noise_multiplier: 20}", "noise_multiplier: 20, private_metrics: noisy}")
LONG = (("trials: 12", "trials: 3"), ("[2, 13]", "[2, 80]"))


def budgeted(*changes):
    return parse(*changes, text=BUDGET)


def filter_for(plan, order=None):
    return make_filter(plan.budget, plan.possible, plan.planned, order)


class Dearest:
    """Always asks for the most expensive trial of the space, another one every time."""

    def __init__(self, search):
        self._numbers, self._epochs = itertools.count(), search.space["epochs"].ends[-1]

    def ask(self):
        return {"learning_rate": 0.05 + 0.01 * next(self._numbers), "batch_size": 128, "epochs": self._epochs}

    def tell(self, number, score):
        pass


class Fixed:
    """Asks for the given settings, one after the other, whatever it is told."""

    def __init__(self, *asks):
        self._asks = [{"batch_size": 128, **settings} for settings in asks]

    def __call__(self, search):
        self._left = iter(self._asks)
        return self

    def ask(self):
        return dict(next(self._left))

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


def test_the_order_is_the_one_at_which_a_trial_takes_the_least_share():
    """As a mean over the corners, at orders at which the cheapest fits."""
    experiment = budgeted()
    filter = filter_for(experiment.plan)

    def shares(order):
        at = filter._replace(order=order)
        whole = [at.spent([Release(trial, trial.epochs)]) for trial in experiment.possible]
        fixed = at.epsilon(1.0) - 1.0
        return np.mean(whole) / (4 - fixed) if fixed + min(whole) <= 4 else math.inf

    alpha = filter.order
    assert alpha == min(range(2, 60), key=shares) and filter_for(experiment.plan, 7).order == 7
    for divergence in (0.1, 1.0):  # Proposition 12 of Canonne, Kamath and Steinke
        by_formula = divergence + math.log((alpha - 1) / alpha) - (math.log(1e-5) + math.log(alpha)) / (alpha - 1)
        assert filter.epsilon(divergence) == pytest.approx(by_formula, rel=1e-12)
    assert filter.epsilon(0.0) == 0


@pytest.mark.parametrize("early", [False, True])
def test_whoever_always_asks_for_the_most_expensive_trial_never_gets_past_the_budget(early, tmp_path):
    """Also with trials that end early, and so leave something for others."""
    experiment, store = budgeted(("trials: 12", "trials: 24")), Store(root=tmp_path)
    search = rounds(experiment, store, Dearest)
    while missing := search.next(store.runs()):
        for number, trial in enumerate(missing):
            train(store, [trial], epochs=1 if early and number % 2 else 0)
    filter, released = search.filter, store.released()
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
    filter = filter_for(budgeted().plan)
    trial = budgeted().possible[0]
    most = next(n for n in itertools.count(1) if not filter.admits([Release(trial, n)])) - 1
    exact = Fraction(epoch_cost(trial, filter.order))
    fixed = filter.epsilon(1.0) - 1.0
    assert float(most * exact) + fixed <= 4 < float((most + 1) * exact) + fixed
    assert filter.spent([Release(trial, most)]) == float(most * exact)


def test_a_trial_of_research_noise_is_paid_once_and_one_of_secret_noise_as_often_as_it_has_names():
    for changes, names, times in (([], ("", ""), 1), ([SECURE], ("a", "b"), 2), ([SECURE], ("a", "a"), 1),
                                  ([SECURE], ("a", ""), 1)):
        experiment = budgeted(*changes)
        filter, trial = filter_for(experiment.plan), experiment.possible[0]
        before, again = (Release(trial, 2, deleted=not n, name=each) for n, each in enumerate(names))
        once = filter.spent([before])
        assert filter.spent([before, again]) == pytest.approx(times * once), "without a name it is still to come"
        assert once > 0, "what was deleted was released"


@pytest.mark.parametrize("secure", [False, True])
def test_the_odometer_never_goes_down_whatever_is_deleted_or_trained_again(secure, tmp_path):
    experiment, store = budgeted(*([SECURE] if secure else [])), Store(root=tmp_path)
    search = rounds(experiment, store)
    first, second, *_ = search.next(())

    def trained(store, *trials):
        odometer = Odometer(store, search.filter)
        for trial in trials:
            store.start(trial)
            released = [Release(trial, trial.epochs, name=name(store, trial))] if secure else []
            for record in records(trial, 2):
                store.log([record])
                for _ in range(2):  # handed in twice
                    odometer.add(released or [Release(trial, record.epoch)])

    trained(store, first, second)
    spent = search.filter.spent(store.released())
    (run,) = (run for run in store.runs() if run.trial_key == first.trial_key)
    store._client.delete_run(run.run_id)
    assert search.filter.spent(store.released()) == spent == by_hand(store, search.filter.order)
    again = Store(root=tmp_path)
    resumed = rounds(experiment, again)
    missing = resumed.next(())
    assert resumed.trials[0] == first, "what is asked for stays as it was"
    assert (first in missing) != secure, "what was released of secret noise is not drawn again"
    trained(again, first)  # as another driver may have done meanwhile
    final = search.filter.spent(again.released())
    assert final == by_hand(again, search.filter.order)
    assert (final > spent) if secure else (final == spent)
    points = again._client.get_metric_history(again._parent(), "epsilon/spent")
    values = [point.value for point in sorted(points, key=lambda point: (point.step, point.timestamp))]
    assert values == sorted(values) and values[-1] == search.filter.epsilon(final)


def test_a_budget_too_small_for_one_trial_is_refused_with_what_the_cheapest_costs():
    with pytest.raises(ConfigError, match="budget.epsilon: must be at least ([0-9.]+), which the cheapest") as error:
        filter_for(budgeted(("epsilon: 4", "epsilon: 0.2")).plan)
    least = float(str(error.value).split("at least ")[1].split(",")[0])
    assert filter_for(budgeted(("epsilon: 4", f"epsilon: {1.001 * least:.5g}")).plan)


TARGET = (("noise_multiplier: 20", "target_epsilon: 2"), ("sampler: shuffled", "sampler: poisson"),
          ("epochs: {randint: [2, 13]}", "momentum: {uniform: [0, 0.9]}"), ("epsilon: 4", "epsilon: 6"),
          ("[64, 128]", "[128]"))


@pytest.mark.slow
def test_why_a_target_costs_more_under_a_budget_is_said_and_which_target_fits():
    lines = list(budget_lines(budgeted(*TARGET)))
    assert any(line.startswith("  target_epsilon 2 is the cost by a trial's own accountant; ") for line in lines)
    (fits,) = re.findall(r"for 12 trials to fit, ask for target_epsilon <= ([\d.]+)$", "\n".join(lines), re.MULTILINE)
    for target, enough in ((fits, True), (f"{1.1 * float(fits):.3g}", False)):
        lines = list(budget_lines(budgeted((TARGET[0][0], f"target_epsilon: {target}"), *TARGET[1:])))
        assert (int(re.search(r"(\d+) of the dearest fit", lines[1])[1]) >= 12) == enough
        assert any("ask for target_epsilon" in line for line in lines) != enough
    assert "ask for" not in "".join(budget_lines(budgeted(*TARGET, ("trials: 12", "trials: 100000")))), "none fits"
    with pytest.raises(ConfigError, match="must be at least ([0-9.]+), .* got 1; that is more than its target_epsilon"):
        filter_for(budgeted(*TARGET[:-2], ("epsilon: 4", "epsilon: 1")).plan)


@pytest.mark.parametrize(("other", "begun", "says"), [
    ({"seed": 9}, False, "budget: must be there from the beginning, but 1 trial of the sweep began w"),
    ({"private_metrics": "plain"}, True, "budget: trial {key} of this sweep has no finite cost"),
    ({"sampler": "poisson"}, True, "sampler: must be that of all trials under a budget, got poisson of trial")])
def test_trials_that_the_sweep_has_already_must_be_covered(other, begun, says, tmp_path):
    store, experiment = Store(root=tmp_path), budgeted()
    rounds(experiment, store) if begun else store.open_sweep("search")
    trial = replace(experiment.possible[0], **other)
    train(store, [trial], epochs=1)
    with pytest.raises(ConfigError, match=says.format(key=trial.trial_key)):
        filter_of(experiment.plan, store)


def test_a_search_that_has_begun_and_can_go_on_is_not_said_to_be_done(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "estimate", lambda *a, **k: Estimate(1.0))
    experiment, store = budgeted(), Store(root=tmp_path)
    train(store, rounds(experiment, store).next(())[:1])
    assert not preview(experiment, 2, tmp_path).exhausted


@pytest.mark.parametrize("change", [("epsilon: 4", "epsilon: 5"), ("budget: {epsilon: 4, delta: 1.0e-5}", "")])
def test_a_budget_is_that_with_which_the_sweep_began_also_if_its_parent_run_is_deleted(change, tmp_path, monkeypatch):
    """Nor is there a dry run or a report of another one."""
    monkeypatch.setattr(dry_run, "estimate", lambda *a, **k: Estimate(1.0))
    one, other = budgeted(), budgeted(change)
    assert preview(other, 2, tmp_path).packs and not list(tmp_path.iterdir()), "nothing has begun, or is created"
    store = Store(root=tmp_path)
    store.open_sweep("search", contents={"budget": "[4.0, 1e-05, 9, 1e-05]"})
    assert preview(one, 2, tmp_path).packs
    got = "none" if other.plan.budget is None else "epsilon 5 at delta 1e-05"
    for refused in (lambda: filter_of(other.plan, store), lambda: preview(other, 2, tmp_path),
                    lambda: write(store.as_swept(other), store, tmp_path)):
        with pytest.raises(ConfigError, match=f"budget: must be the one that the sweep began with, epsilon 4 .*{got}"):
            refused()
    assert filter_of(one.plan, store).order == 9 != filter_for(one.plan).order, "fixed beforehand"
    store._client.delete_run(store._parent())
    store = Store(root=tmp_path)
    assert not store.find("search") and store.has_begun
    assert filter_of(one.plan, store).order == 9
    with pytest.raises(ConfigError, match=f"budget: must be the one that the sweep began with, epsilon 4 .*{got}"):
        filter_of(other.plan, store)


def spent(search, store):
    return search.filter.epsilon(search.filter.spent(store.released()))


def end(search, store):
    """Train whatever it asks for."""
    while missing := search.next(store.runs()):
        train(store, missing)
        store.log_suggestions(search.suggestions)
    assert spent(search, store) == pytest.approx(search.filter.epsilon(by_hand(store, search.filter.order)), abs=1e-12)
    assert spent(search, store) <= 4


def test_epochs_of_a_trial_that_no_longer_fits_count_when_others_are_judged(tmp_path):
    """It was killed one epoch before its end, and what was to come after it is asked for beside it."""
    asks = Fixed({"learning_rate": 1.0, "epochs": 40}, {"learning_rate": 1.1, "epochs": 73},
                 {"learning_rate": 1.2, "epochs": 34})
    store = Store(root=tmp_path)
    search = rounds(budgeted(*LONG, ("  trials: 3", "  trials: 3\n  max_concurrent: 1")), store, asks)
    train(store, search.next(store.runs()), epochs=1, status="diverged")
    train(store, search.next(store.runs()), epochs=72, status="")
    search = rounds(budgeted(*LONG, ("  trials: 3", "  trials: 3\n  max_concurrent: 3")), store, asks)
    end(search, store)
    assert search.suggestions[1].started and not search.suggestions[2].started


def test_a_trial_that_an_earlier_command_began_is_reserved_whole_although_it_is_not_asked_for(tmp_path):
    """A run without its params is of a driver that died before it had written them, and keeps nobody from going on."""
    asks, store = Fixed({"learning_rate": 1.2, "epochs": 34}), Store(root=tmp_path)
    experiment = budgeted(LONG[1], ("trials: 12", "trials: 1"))
    rounds(experiment, store, asks)
    (other,) = rounds(experiment, store, Fixed({"learning_rate": 1.1, "epochs": 73})).next(())
    train(store, [other], epochs=1, status="")
    store._client.create_run(store.experiment_id, tags={"trial_key": "0123456789ab"})
    search = rounds(experiment, store, asks)
    assert search.next(store.runs()) == [] and search.passed_over == 1


def test_a_deleted_trial_of_secret_noise_counts_whole_and_is_not_trained_again(tmp_path):
    """Nor can another one be afforded beside it, which its one published epoch would leave enough for."""
    experiment = budgeted(("trials: 12", "trials: 2"), LONG[1], SECURE)
    asks, store = Fixed(*({"learning_rate": rate, "epochs": 40} for rate in (1.0, 1.1))), Store(root=tmp_path)
    first, *_ = rounds(experiment, store, asks).next(())
    train(store, [first], epochs=1, status="diverged")
    (run,) = store.runs()
    store._client.delete_run(run.run_id)
    search = rounds(experiment, store, asks)
    end(search, store)
    assert store.runs() == [] and search.gone == {first.trial_key} and search.passed_over == 1


def test_what_was_passed_over_stays_so_when_the_search_is_resumed(tmp_path):
    """It came again later, when others had diverged and so left enough for it."""
    class Adaptive(Fixed):
        def __call__(self, search):
            self.told = []
            return super().__call__(search)

        def tell(self, number, score):
            self.told.append(score)

    a, b = ({"learning_rate": rate, "epochs": epochs} for rate, epochs in ((1.0, 40), (1.1, 50)))
    experiment = budgeted(("trials: 12", "trials: 4"), LONG[1], ("  trials: 4", "  trials: 4\n  max_concurrent: 2"))
    asks, store = Adaptive(a, b, b, {"learning_rate": 1.3, "epochs": 5}), Store(root=tmp_path)
    search = rounds(experiment, store, asks)
    train(store, search.next(store.runs()), epochs=1, status="diverged")
    store.log_suggestions(search.suggestions)
    end(search, store)
    assert [s.started for s in search.suggestions] == [True, False, True, True] and asks.told[1] is None
    again = rounds(experiment, store, asks)
    assert not again.next(store.runs()) and again.suggestions == search.suggestions and asks.told[1] is None


@pytest.mark.parametrize("text", ["[", '{"trial_key": 1}', '[{"settings": {"gone": 1}}]'])
def test_suggestions_that_cannot_be_read_do_not_keep_a_search_from_going_on(text, tmp_path):
    experiment, store = budgeted(), Store(root=tmp_path)
    search = rounds(experiment, store)
    train(store, search.next(store.runs()))
    store._client.log_text(store._parent(), text, "search.json")
    end(rounds(experiment, store), store)


def test_what_exceeds_the_budget_is_covered_by_nothing_and_not_gone_on_with(tmp_path):
    """As none is let start that does not fit, by runs that came there by another way."""
    experiment, store = budgeted(), Store(root=tmp_path)
    search = rounds(experiment, store)
    within = [Release(experiment.possible[-1], 1)]
    assert search.filter.stated(within).value == 4
    beyond = search.filter.stated([Release(experiment.possible[-1], 10_000)])
    assert math.isinf(beyond.value) and "more than the budget" in beyond.note
    for k in range(9):
        train(store, [replace(experiment.possible[-1], learning_rate=1 + k / 10)])
    with pytest.raises(ConfigError, match=r"budget: of epsilon 4 .*, 5.002 was spent"):
        filter_of(experiment.plan, store)


def test_a_run_that_is_restored_beside_another_of_its_trial_is_paid_for_and_the_odometer_does_not_go_down(tmp_path):
    experiment = budgeted(("trials: 12", "trials: 2"), LONG[1], SECURE)
    asks = Fixed({"learning_rate": 1.0, "epochs": 20}, {"learning_rate": 1.1, "epochs": 12})
    store = Store(root=tmp_path)
    search = rounds(experiment, store, asks)
    first, second = search.next(store.runs())
    train(store, [first])
    (run,) = store.runs()
    store._client.delete_run(run.run_id)
    store = Store(root=tmp_path)
    search = rounds(experiment, store, asks)
    assert search.next(store.runs()) == [second]
    train(store, [first, second])  # the first by a driver that had not seen the run
    Odometer(store, search.filter)
    store._client.restore_run(run.run_id)
    Odometer(store, search.filter)
    history = store._client.get_metric_history(store._parent(), "epsilon/spent")
    assert {point.value for point in history} == {spent(search, store)}
    assert search.filter.spent(store.released()) == by_hand(store, search.filter.order)


def test_what_a_budget_does_not_know_is_said_and_other_sweeps_are_added_up(tmp_path):
    one = parse(("name: search", "name: one"), NOISY, text=FILE + "budget: {epsilon: 4, delta: 1.0e-5}\n")
    store = Store(root=tmp_path)
    search = rounds(one, store)
    train(store, search.next(store.runs())[:2])
    (alone,) = scope(one.name, one.plan, store.certified)
    assert "belongs to the name 'one' in this tracking store" in alone and "begins anew" in alone
    grid = Store(root=tmp_path)
    grid.open_sweep("grid")
    trials = parse(("name: search", "name: other")).possible[:2]
    train(grid, trials)
    grid._client.delete_run(grid.runs()[0].run_id)
    costs = [min(e.value for e in account(trial, trial.epochs) if e.kind == "certified") for trial in trials]
    assert grid.certified("digits", "replace-one") == {"one": (4.0, 1e-5), "grid": pytest.approx((sum(costs), 2e-5))}
    assert grid.certified("digits", "add/remove") == grid.certified("mnist", "replace-one") == {}
    _, beside = scope(one.name, one.plan, grid.certified)
    assert f"epsilon 4 + {sum(costs):.4g} = {4 + sum(costs):.4g} at delta 3e-05" in beside and "(grid; " in beside
    assert scope("search", parse().plan, grid.certified) == []
