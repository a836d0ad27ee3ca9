"""A privacy budget is kept whatever a search is resumed with, and whatever was deleted, restored or damaged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search_tools import FILE, by_hand, parse, rounds, train
from test_budget import SECURE, budgeted

from pipeline.accounting import account
from pipeline.accounting.budget import scope
from pipeline.sweep import dry_run
from pipeline.sweep.dry_run import preview
from pipeline.sweep.ledger import Ledger, filter_of, released_by
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError
from pipeline.trials.records import Release

NOISY = "noise_multiplier: 20}", "noise_multiplier: 20, private_metrics: noisy}"
LONG = (("trials: 12", "trials: 3"), ("[2, 13]", "[2, 80]"))


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


def spent(search, store):
    return search.filter.epsilon(search.filter.spent(released_by(store)))


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
    train(store, search.next(store.runs()), epochs=1, status="stopped")
    train(store, search.next(store.runs()), epochs=72, status="")
    search = rounds(budgeted(*LONG, ("  trials: 3", "  trials: 3\n  max_concurrent: 3")), store, asks)
    end(search, store)
    assert search.suggestions[1].started and not search.suggestions[2].started


def test_epochs_of_a_deleted_run_count_when_its_trial_no_longer_fits(tmp_path):
    """Of secret noise, whose epochs are paid for again: neither of two trials can be afforded then."""
    experiment = budgeted(("trials: 12", "trials: 2"), LONG[1], SECURE)
    asks, store = Fixed(*({"learning_rate": rate, "epochs": 40} for rate in (1.0, 1.1))), Store(root=tmp_path)
    search = rounds(experiment, store, asks)
    train(store, search.next(store.runs()), epochs=39, status="")
    (run,) = store.runs()
    store._client.delete_run(run.run_id)
    search = rounds(experiment, store, asks)
    end(search, store)
    assert search.passed_over == 2


def test_what_was_passed_over_stays_so_when_the_search_is_resumed(tmp_path):
    """It came again later, when others had been stopped early and so left enough for it."""
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
    train(store, search.next(store.runs()), epochs=1, status="stopped")
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


@pytest.mark.parametrize("epsilon", [4, 6])
def test_a_budget_outlives_the_parent_run_of_its_sweep(epsilon, tmp_path):
    asks, store = Fixed(*({"learning_rate": 1 + k / 10, "epochs": 18} for k in range(8))), Store(root=tmp_path)
    changes = (("trials: 12", "trials: 4"), LONG[1])
    search = rounds(budgeted(*changes), store, asks)
    end(search, store)
    store._client.delete_run(store._parent())
    store = Store(root=tmp_path)
    assert not store.find("search") and store.has_begun
    if epsilon != 4:
        with pytest.raises(ConfigError, match="budget: must be the one that the sweep began with, epsilon 4"):
            filter_of(budgeted(*changes, ("epsilon: 4", "epsilon: 6")).plan, store)
        return
    search = rounds(budgeted(*changes), store, asks)
    assert search.filter.order == filter_of(budgeted(*changes).plan, store).order
    end(search, store)


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
    asks = Fixed({"learning_rate": 1.0, "epochs": 30}, {"learning_rate": 1.1, "epochs": 12})
    store = Store(root=tmp_path)
    search = rounds(experiment, store, asks)
    first, _ = search.next(store.runs())
    train(store, [first])
    (run,) = store.runs()
    store._client.delete_run(run.run_id)
    store = Store(root=tmp_path)
    search = rounds(experiment, store, asks)
    train(store, search.next(store.runs()))
    Ledger(store, search.filter).begin([])
    store._client.restore_run(run.run_id)
    Ledger(store, search.filter).begin([])
    history = store._client.get_metric_history(store._parent(), "epsilon/spent")
    assert {point.value for point in history} == {spent(search, store)}


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


def test_a_dry_run_refuses_another_budget_under_a_name_that_has_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "estimate_seconds", lambda *a, **k: 1.0)
    one, other = (parse(NOISY, text=FILE + f"budget: {{epsilon: {epsilon}, delta: 1.0e-5}}\n") for epsilon in (4, 5))
    assert preview(other, 2, tmp_path).packs, "nothing has begun, and nothing is created"
    assert not list(tmp_path.iterdir())
    store = Store(root=tmp_path)
    train(store, rounds(one, store).next(())[:1])
    assert preview(one, 2, tmp_path).packs
    with pytest.raises(ConfigError, match="budget: must be the one that the sweep began with, epsilon 4"):
        preview(other, 2, tmp_path)
