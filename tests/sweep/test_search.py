"""Searches: what their files may say, what they ask for, and that they ask for the same again."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import replace

import pytest
import sweep_stub
from search_tools import parse, rounds, score, train

from pipeline.sweep import run as sweep
from pipeline.sweep.run import run_sweep
from pipeline.sweep.search import make_searcher
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError

OPTUNA = ("algorithm: random", "algorithm: optuna\n  max_concurrent: 3")
needs_optuna = pytest.mark.skipif(not importlib.util.find_spec("optuna"), reason="Optuna is not installed")
both = pytest.mark.parametrize("algorithm", [("seed: 3", "seed: 3"), pytest.param(OPTUNA, marks=needs_optuna)])


def test_a_space_has_a_corner_for_every_combination_of_choices_and_ends():
    experiment = parse(("momentum: {uniform: [0, 0.9]}", "epochs: {randint: [2, 5]}"), (", epochs: 2", ""))
    assert {(t.learning_rate, t.batch_size, t.epochs) for t in experiment.plan.corners} == {
        (rate, m, epochs) for rate in (0.05, 5) for m in (64, 128) for epochs in (2, 4)}
    assert experiment.trials == () and experiment.possible == experiment.plan.corners and experiment.planned == 7
    assert experiment.varied == ("batch_size", "epochs", "learning_rate")


@both
def test_what_is_asked_for_lies_in_the_space_and_begins_alike_whatever_number(algorithm):
    experiment = parse(algorithm)
    searcher, again = make_searcher(experiment.plan), make_searcher(replace(experiment.plan, most=99))
    other = make_searcher(replace(experiment.plan, seed=4))
    asked = [searcher.ask() for _ in range(7)]
    assert asked == [again.ask() for _ in range(7)] != [other.ask() for _ in range(7)]
    for values in asked:
        trial = experiment.plan.trial(values)
        assert 0.05 <= trial.learning_rate <= 5 and trial.batch_size in (64, 128) and 0 <= trial.momentum <= 0.9
        assert float(f"{trial.learning_rate:.4g}") == trial.learning_rate, "four digits"
    assert len({values["learning_rate"] for values in asked}) == 7


def test_lists_may_be_chosen_among():
    experiment = parse((", hidden: [8]", ""), ("momentum: {uniform: [0, 0.9]}", "hidden: {choice: [[8], [16, 16]]}"))
    searcher = make_searcher(experiment.plan)
    asked = {experiment.plan.trial(searcher.ask()).hidden for _ in range(7)}
    assert asked == {(8,), (16, 16)}


@both
def test_a_search_that_is_run_again_asks_for_the_same(algorithm, tmp_path):
    """Whatever was done by then; an undisturbed one is the measure."""
    experiment, stores = parse(algorithm), [Store(root=tmp_path / name) for name in ("undisturbed", "disturbed")]
    undisturbed = rounds(experiment, stores[0])
    while missing := undisturbed.next(stores[0].runs()):
        train(stores[0], missing)
    keys = [s.trial.trial_key for s in undisturbed.suggestions]
    assert len(keys) == 7 and undisturbed.later == undisturbed.passed_over == 0
    for number in range(20):
        again = rounds(experiment, stores[1])  # what a new process would have
        if not (missing := again.next(stores[1].runs())):
            break
        assert [s.trial.trial_key for s in again.suggestions] == keys[:len(again.suggestions)]
        train(stores[1], missing[number % 2:][-1:])  # the last alone, out of order
    assert [s.trial.trial_key for s in again.suggestions] == keys and again.later == 0
    assert {run.trial_key for run in stores[1].runs()} == set(keys)


@needs_optuna
def test_scores_decide_what_is_asked_for_next(tmp_path):
    experiment, store = parse(OPTUNA, ("trials: 7", "trials: 36")), Store(root=tmp_path)
    search = rounds(experiment, store)
    while missing := search.next(store.runs()):
        train(store, missing, epochs=1)
    scores = [score(s.trial) for s in search.suggestions]
    assert sum(scores[-12:]) / 12 > sum(scores[:12]) / 12 + 0.1


def test_the_same_trial_asked_for_twice_is_trained_once(tmp_path):
    experiment = parse(("learning_rate: {loguniform: [0.05, 5]}, ", ""), (", momentum: {uniform: [0, 0.9]}", ""))
    store = Store(root=tmp_path)
    search = rounds(experiment, store)
    missing = search.next(())
    assert len(missing) == 2 and search.passed_over == 5 and len(search.suggestions) == 7
    train(store, missing)
    assert search.next(store.runs()) == []


def test_a_swept_search_tracks_its_trials_and_then_has_nothing_to_do(tmp_path, in_process, monkeypatch, said):
    experiment = parse(("trials: 7", "trials: 4"))
    options = {"root": tmp_path, "trainer": functools.partial(sweep_stub.train, folder=tmp_path)}
    result = run_sweep(experiment, **options)
    assert (result.planned, result.finished, result.passed_over, result.remaining) == (4, 4, 0, 0)
    store = Store(root=tmp_path)
    store.attach("search")
    suggestions = store.suggestions()
    assert [s.started for s in suggestions] == [True] * 4
    assert {s.trial.trial_key for s in suggestions} == store.done().keys()
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "running_ray", lambda *a: pytest.fail("Ray was started for nothing"))
        again = run_sweep(experiment, **options)
    assert (again.skipped, again.finished, again.remaining) == (4, 0, 0)
    assert said[-1] == "nothing to do: all 4 trials are done"


@pytest.mark.parametrize(("change", "says"), [
    (("algorithm: random", "algorithm: grid"), "search.algorithm: must be one of random, optuna, got 'grid'"),
    (("trials: 7", "trials: 0"), "search.trials: must be a whole number >= 1, got 0"),
    (("  trials: 7\n", ""), "search: needs trials, got"),
    (("seed: 3", "metric: train/loss"), "search.metric: must be validation/accuracy, .*got 'train/loss'"),
    (("resources:", "grid: {seed: [0, 1]}\nresources:"), "grid: must not stand beside a search, .*leave one"),
    (("resources:", "report: [means]\nresources:"), "report: must be left out beside a search, .*got \\['means'\\]"),
    (("momentum: {uniform: [0, 0.9]}", "momentun: {uniform: [0, 0.9]}"),
     "search.space.momentun: unknown field, .*did you mean 'momentum'"),
    (("base: {", "base: 3  # {"), "base: must be a mapping from field to value, got 3 "),
    (("epochs: 2", "epochs: 2, arithmetic: exact"), "arithmetic: must be one of .*, at base.arithmetic .*, line 3"),
    (("epochs: 2", "epochs: 2, momentum: 0.5"), "search.space.momentum: also stands in base; give it once"),
    (("momentum: {uniform: [0, 0.9]}", "sigma: {uniform: [0, 0.9]}"),
     "sigma: is not used with mechanism 'per_example'.*, at search.space.sigma \\(search.yaml, line 7"),
    (("{uniform: [0, 0.9]}", "{uniform: [0, 1.5]}"), "momentum: must be < 1, got 1.5, at search.space.momentum"),
    (("{uniform: [0, 0.9]}", "{uniform: [0.9, 0]}"),
     "search.space.momentum.uniform: must be \\[low, high\\], the first below the second, got \\[0.9, 0\\]"),
    (("{uniform: [0, 0.9]}", "{loguniform: [0, 0.9]}"), "momentum.loguniform: .* and above 0, got \\[0, 0.9\\]"),
    (("{uniform: [0, 0.9]}", "0.9"), "search.space.momentum: must be one of uniform, loguniform, randint, choice with"),
    (("momentum: {uniform: [0, 0.9]}", "seed: {choice: [" + ", ".join(map(str, range(400))) + "]}"),
     "search.space: must have at most 1024 combinations of choices and ends of ranges, .*got 1600"),
    (("epochs: 2", "epochs: 2, validation_fraction: 0"), "validation_fraction: must leave a validation accuracy"),
    (("epochs: 2", "epochs: 2, private_metrics: withheld"), "private_metrics: must leave a validation accuracy")])
def test_a_search_that_cannot_be_is_refused_in_one_line(change, says):
    with pytest.raises(ConfigError, match=says) as error:
        parse(change)
    assert "\n" not in str(error.value)
