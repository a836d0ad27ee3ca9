"""Searches: what their files may say, what they ask for and ask for again."""

import importlib.util
from dataclasses import replace

import pytest
import search_tools
from search_tools import parse, rounds, score, train
from test_budget import BUDGET

from pipeline.sweep.rounds import make_searcher
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError

OPTUNA = ("algorithm: random", "algorithm: optuna\n  max_concurrent: 3")
MOMENTUM = "momentum: {uniform: [0, 0.9]}"
needs_optuna = pytest.mark.skipif(not importlib.util.find_spec("optuna"), reason="Optuna is not installed")
both = pytest.mark.parametrize("algorithm", [("seed: 3", "seed: 3"), pytest.param(OPTUNA, marks=needs_optuna)])


def test_a_space_has_a_corner_for_every_combination_of_choices_and_ends():
    experiment = parse((MOMENTUM, "epochs: {randint: [2, 5]}"), (", epochs: 2", ""))
    assert {(t.learning_rate, t.batch_size, t.epochs) for t in experiment.plan.corners} == {
        (rate, m, epochs) for rate in (0.05, 5) for m in (64, 128) for epochs in (2, 4)}
    assert experiment.trials == () and experiment.possible == experiment.plan.corners and experiment.planned == 7
    assert experiment.varied == ("batch_size", "epochs", "learning_rate")


@both
def test_what_is_asked_for_lies_in_the_space_and_begins_alike_whatever_number(algorithm):
    experiment = parse(algorithm, (", hidden: [8]", ""), (MOMENTUM, f"{MOMENTUM}, hidden: {{choice: [[8], [16, 16]]}}"))
    asked, again, other = ([searcher.ask() for _ in range(7)] for searcher in map(make_searcher, (
        experiment.plan, replace(experiment.plan, most=99), replace(experiment.plan, seed=4))))
    assert asked == again != other
    trials = [experiment.plan.trial(values) for values in asked]
    for trial in trials:
        assert 0.05 <= trial.learning_rate <= 5 and trial.batch_size in (64, 128) and 0 <= trial.momentum <= 0.9
        assert float(f"{trial.learning_rate:.4g}") == trial.learning_rate, "four digits"
    assert {trial.hidden for trial in trials} == {(8,), (16, 16)}
    assert len({trial.learning_rate for trial in trials}) == 7


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
    experiment = parse(("learning_rate: {loguniform: [0.05, 5]}, ", ""), (f", {MOMENTUM}", ""))
    store = Store(root=tmp_path)
    search = rounds(experiment, store)
    missing = search.next(())
    assert len(missing) == 2 and search.passed_over == 5 and len(search.suggestions) == 7
    train(store, missing)
    assert search.next(store.runs()) == []


REFUSED = [  # (which text, changes, says)
    ("search", [("algorithm: random", "algorithm: grid")],
     "search.algorithm: must be one of random, optuna, got 'grid'"),
    ("search", [("trials: 7", "trials: 0")], "search.trials: must be a whole number >= 1, got 0"),
    ("search", [("  trials: 7\n", "")], "search: needs trials, got"),
    ("search", [("seed: 3", "metric: train/loss")], "search.metric: must be validation/accuracy, .*got 'train/loss'"),
    ("search", [("resources:", "grid: {seed: [0, 1]}\nresources:")], "grid: must not stand beside a search, .*leave"),
    ("search", [("resources:", "report: [means]\nresources:")],
     r"report: must be left out beside a search, .*got \['means'\]"),
    ("search", [(MOMENTUM, "momentun: {uniform: [0, 0.9]}")],
     "search.space.momentun: unknown field, .*did you mean 'momentum'"),
    ("search", [("base: {", "base: 3  # {")], "base: must be a mapping from field to value, got 3 "),
    ("search", [("epochs: 2", "epochs: 2, arithmetic: exact")],
     "arithmetic: must be one of .*, at base.arithmetic .*, line 3"),
    ("search", [("epochs: 2", "epochs: 2, momentum: 0.5")],
     "search.space.momentum: also stands in base; give it once"),
    ("search", [(MOMENTUM, "sigma: {uniform: [0, 0.9]}")],
     r"sigma: is of mechanism .* with mechanism 'per_example'.*, at search.space.sigma \(search.yaml, line 7"),
    ("search", [("{uniform: [0, 0.9]}", "{uniform: [0, 1.5]}")],
     "momentum: must be < 1, got 1.5, at search.space.momentum"),
    ("search", [("{uniform: [0, 0.9]}", "{uniform: [0.9, 0]}")],
     r"search.space.momentum.uniform: must be \[low, high\], the first below the second, got \[0.9, 0\]"),
    ("search", [("{uniform: [0, 0.9]}", "{loguniform: [0, 0.9]}")],
     r"momentum.loguniform: .* and above 0, got \[0, 0.9\]"),
    ("search", [("{uniform: [0, 0.9]}", "0.9")],
     "search.space.momentum: must be one of uniform, loguniform, randint, choice with"),
    ("search", [(MOMENTUM, f"seed: {{choice: {list(range(400))}}}")],
     "search.space: must have at most 1024 combinations of choices and ends of ranges, .*got 1600"),
    ("search", [("epochs: 2", "epochs: 2, validation_fraction: 0")],
     "validation_fraction: must leave a validation accuracy"),
    ("search", [("epochs: 2", "epochs: 2, private_metrics: withheld")],
     "private_metrics: must leave a validation accuracy"),
    ("grid", [], "budget: is spent by a search, .*without one; .* fixed grid is `selected`"),
    ("budget", [("budget: {epsilon: 4,", "budget: {epsilon: -1,")],
     "budget.epsilon: must be a number > 0 and finite, got -1"),
    ("budget", [("delta: 1.0e-5", "delta: 1")], "budget.delta: must be a number > 0 and < 1, got 1"),
    ("budget", [(", delta: 1.0e-5", "")], "budget: needs delta, got"),
    ("budget", [("delta: 1.0e-5", "delta: 1.0e-6")],
     "budget.delta: must be the delta of the trials, 1e-05, .*got 1e-06"),
    ("budget", [(",\n       private_metrics: noisy", "")],
     "private_metrics: must be 'noisy' under a budget, .*got 'plain'"),
    ("budget", [("noise_multiplier: 20,\n       private_metrics: noisy",
                 "noise_multiplier: 0, private_metrics: plain")],
     "mechanism: every trial under a budget must have a certified, finite epsilon .*noise_multiplier 0"),
    ("budget", [("batch_size: {choice: [64, 128]}", "sampler: {choice: [poisson, shuffled]}"),
                ("sampler: shuffled, ", "")],
     "sampler: must be one for all trials under a budget, got poisson, shuffled"),
    ("budget", [("search:", "selection: {rule: composition}\nsearch:")], "selection: must not stand beside a search")]
TEXTS = {"search": search_tools.FILE, "budget": BUDGET,
         "grid": "base: {dataset: digits}\nbudget: {epsilon: 1, delta: 1.0e-5}"}


@pytest.mark.parametrize(("text", "changes", "says"), REFUSED, ids=[says.split(":")[0] for *_, says in REFUSED])
def test_a_search_that_cannot_be_is_refused_in_one_line(text, changes, says):
    with pytest.raises(ConfigError, match=says) as error:
        parse(*changes, text=TEXTS[text])
    assert "\n" not in str(error.value)
