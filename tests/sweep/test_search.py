"""Searches: what their files may say, what they ask for and ask for again, and which trials they stop early."""

import functools
import importlib.util
from dataclasses import replace

import pytest
import search_tools
import sweep_stub
import torch
from search_tools import parse, rounds, score, train
from test_budget import BUDGET

from analysis.report.report import write
from pipeline.accounting import account
from pipeline.accounting.budget import Release, epoch_cost
from pipeline.experiment.sections import Halving
from pipeline.learning.data.dataset import load
from pipeline.learning.run import train as train_pack
from pipeline.sweep import worker
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.run import run_sweep
from pipeline.sweep.search import make_searcher
from pipeline.sweep.tuning import Rungs
from pipeline.tracking.artifacts import config_of
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.naming import counted
from pipeline.trials.packs import Pack
from pipeline.trials.records import ACCURACY

OPTUNA = ("algorithm: random", "algorithm: optuna\n  max_concurrent: 3")
STOP = ("resources: {cpu: 2, pack_size: 4}", "stop: {rule: asha, grace: 1, factor: 2}\nresources: {cpu: 1}")
LONG = ("epochs: 2", "epochs: 5")
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
     r"sigma: is not used with mechanism 'per_example'.*, at search.space.sigma \(search.yaml, line 7"),
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
    ("stop", [("rule: asha", "rule: median")], "stop.rule: must be one of asha, got 'median'"),
    ("stop", [("grace: 1", "grace: 0")], "stop.grace: must be a whole number >= 1, got 0"),
    ("stop", [("grace: 1", "grace: 5")],
     "stop.grace: must be less than the 5 epochs of a trial, or none is ever stopped, got 5"),
    ("stop", [("factor: 2", "factor: 1")], "stop.factor: must be a whole number >= 2, got 1"),
    ("stop", [("factor: 2", "brackets: 2")], "stop.brackets: unknown entry"),
    ("stop", [("{cpu: 1}", "{cpu: 1, pack_size: 4}")],
     "resources.pack_size: must be 1 with `stop`, .*got 4; leave it out"),
    ("grid", [("budget: {epsilon: 1, delta: 1.0e-5}", "stop: {rule: asha, grace: 1}")],
     "stop: stops trials of a search, .*without one"),
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
TEXTS = {"search": search_tools.FILE, "stop": search_tools.FILE, "budget": BUDGET,
         "grid": "base: {dataset: digits}\nbudget: {epsilon: 1, delta: 1.0e-5}"}


@pytest.mark.parametrize(("text", "changes", "says"), REFUSED, ids=[says.split(":")[0] for *_, says in REFUSED])
def test_a_search_that_cannot_be_is_refused_in_one_line(text, changes, says):
    with pytest.raises(ConfigError, match=says) as error:
        parse(*([LONG, STOP] if text == "stop" else []), *changes, text=TEXTS[text])
    assert "\n" not in str(error.value)


def test_rungs_lie_at_powers_of_the_factor_and_below_the_last_epoch():
    assert Halving("asha", 3, 3).rungs(81) == (3, 9, 27) and Halving("asha", 3, 3).rungs(82) == (3, 9, 27, 81)
    assert Halving("asha", 5, 2).rungs(5) == ()


def test_on_a_rung_one_in_factor_goes_on():
    rungs = Rungs(Halving("asha", 1, 4))
    came = [(f"trial {k}", accuracy) for k, accuracy in enumerate((0.5, 0.4, 0.6, 0.55, 0.7, 0.3))]
    assert [rungs.is_promoted(key, 1, a) for key, a in came] == [
        True, False, True, True, True, False], "against the upper quartile of those before"
    assert rungs.is_promoted("trial 0", 4, 0.1), "the first on the next rung, with whatever"
    assert not rungs.is_promoted("trial 2", 4, 0.05)


def test_on_a_rung_a_trial_says_what_it_would_end_with():
    trial = TrialConfig(dataset="digits", algorithm="dfa", hidden=(8,), epochs=4, batch_size=64, sampler="poisson",
                        mechanism="per_example", noise_multiplier=2.0, private_metrics="noisy", momentum=0.0)
    data = load("digits")
    undisturbed, on_rungs, shorter = ([r for (r,) in train_pack(Pack((t,)), data, rungs=rungs)] for t, rungs in (
        (trial, ()), (trial, (1, 2, 4)), (replace(trial, epochs=2), ())))
    assert [bool(r.if_stopped) for r in on_rungs] == [True, True, False, False]
    metrics, as_before = ([{name: v for name, v in r.metrics.items() if not name.startswith("time/")} for r in found]
                          for found in (on_rungs, undisturbed))
    assert metrics == as_before
    end, weights = on_rungs[1].if_stopped, shorter[-1].outcome.weights
    assert (end.epoch, end.outcome.status, end.trial_key) == (2, "stopped", trial.trial_key)
    assert end.metrics[ACCURACY] == on_rungs[1].metrics[ACCURACY] and 0 <= end.metrics["test/accuracy"] <= 1
    assert end.outcome.weights.keys() == weights.keys()
    assert all(torch.equal(torch.tensor(end.outcome.weights[name]), torch.tensor(weights[name])) for name in weights)
    assert end.metrics["test/accuracy"] == shorter[-1].metrics["test/accuracy"]
    paid = {e.metric_name: e.value for e in account(trial, 4)}
    assert {name: end.metrics[name] for name in paid} == paid, "when it ends was chosen by what it released"
    assert on_rungs[1].metrics.items() & paid.items() == set()


def test_a_stopped_trial_is_a_result_and_the_sweep_has_nothing_more_to_do(tmp_path, in_process, said,
                                                                                   monkeypatch):
    trainer = functools.partial(sweep_stub.train, folder=tmp_path, seconds=0.0, rungs=(1, 2, 4), score=score)
    result = run_sweep(parse(STOP, LONG), root=tmp_path, trainer=trainer)
    assert result.stopped >= 2 and result.finished >= 1 and result.stopped + result.finished == 7
    assert f"{result.stopped} stopped early" in said[-1]
    store = Store(root=tmp_path)
    store.attach("search")
    runs = {run.trial_key: run for run in store.runs()}
    assert {run.status for run in runs.values()} == {"finished", "stopped"}
    suggestions = store.suggestions()
    assert [s.started for s in suggestions] == [True] * 7
    assert {s.trial.trial_key for s in suggestions} == store.done().keys()
    for release in store.released():
        stopped = runs[release.trial.trial_key].status == "stopped"
        assert release.epochs in (1, 2, 4) if stopped else release.epochs == 5
    best = max(runs.values(), key=lambda run: run.metrics[ACCURACY])
    assert best.status == "finished", "what is best on every rung is not stopped"
    monkeypatch.setattr("pipeline.sweep.run.running_ray", lambda *a: pytest.fail("Ray was started for nothing"))
    again = run_sweep(parse(STOP, LONG), root=tmp_path, trainer=trainer)
    assert (again.skipped, again.stopped, again.passed_over, again.remaining) == (7, 0, 0, 0)
    assert said[-1] == "nothing to do: all 7 trials are done"


def test_a_trial_that_went_on_and_is_trained_again_goes_on_again(tmp_path):
    """Whoever came to the rungs before it by then: its epochs beyond them were released."""
    experiment, store = parse(LONG, STOP), Store(root=tmp_path)
    again, at_rung, *others = rounds(experiment, store).next(())
    train(store, [again], epochs=3, status="")
    train(store, [at_rung], epochs=2, status="")
    train(store, others)
    search = rounds(experiment, store)
    assert search.next(store.runs()) == [again, at_rung]
    rungs = Rungs(experiment.plan.stop, search.scores(experiment.plan.stop))
    for trial, rung, goes_on in ((again, 1, True), (again, 2, True), (again, 4, False), (at_rung, 1, True),
                                 (at_rung, 2, False)):
        assert rungs.is_promoted(trial.trial_key, rung, 0.0) == goes_on
    assert not rungs.is_promoted("new", 1, 0.0), "those of rounds before count"


@pytest.mark.slow
def test_a_stopped_trial_has_weights_and_accuracies_and_leaves_no_checkpoint(tmp_path, in_process, only_svg):
    """Real training, tracking and report; that Ray hands on who is stopped is shown by test_chaos.py."""
    experiment = parse(("epochs: 2", "epochs: 3, private_metrics: noisy"), ("trials: 7", "trials: 4"), (
        STOP[0], "stop: {rule: asha, grace: 1, factor: 2}\nresources: {cpu: 1, checkpoint_seconds: 0}"))
    result = run_sweep(experiment, root=tmp_path)
    assert result.stopped >= 1 and result.stopped + result.finished == 4
    assert not list((tmp_path / "private" / "checkpoints").rglob("*.safetensors"))
    store = Store(root=tmp_path)
    store.attach("search")
    for run in (run for run in store.runs() if run.status == "stopped"):
        assert 0 < run.metrics["test/accuracy"] < 1
        assert run.metrics[ACCURACY] == store.history(run.run_id, ACCURACY)[-1][1]
        whole = {e.metric_name: e.value for e in account(config_of(run), 3)}
        assert {name: run.metrics[name] for name in whole} == whole
        assert {"weights.safetensors"} <= {file.path for file in store._client.list_artifacts(run.run_id)}
    report = write(store.as_swept(experiment), store, tmp_path / "report")
    text = (tmp_path / "report" / "search.md").read_text(encoding="utf-8")
    assert f"{counted(result.stopped, 'trial')} stopped early, by successive halving after 1 epoch, " in text
    assert "| stopped | " in text and report.headline


def test_a_stopped_trial_costs_what_it_released_and_a_resumed_search_asks_for_the_same(tmp_path):
    experiment = parse(("epochs: 2", "epochs: 4, private_metrics: noisy"),
                       (STOP[0], "stop: {rule: asha, grace: 1, factor: 2}\nresources: {cpu: 2}"),
                       ("seed: 3", "seed: 3\n  max_concurrent: 2"),
                       ("search:\n", "budget: {epsilon: 1.4, delta: 1.0e-5}\nsearch:\n"))
    store = Store(root=tmp_path)
    search = rounds(experiment, store)
    while missing := search.next(store.runs()):
        train(store, missing[:1], epochs=1, status="stopped")
        train(store, missing[1:])
        store.log_suggestions(search.suggestions)
    kept = [(s.trial.trial_key, s.started) for s in search.suggestions]
    assert search.passed_over, "the budget is spent"
    released, order = store.released(), search.filter.order
    assert sorted({release.epochs for release in released}) == [1, 4]
    spent = sum(r.epochs * epoch_cost(r.trial, order) for r in released)
    assert search.filter.spent(released) == pytest.approx(spent, rel=1e-12)
    assert search.filter.spent(released) < search.filter.spent([Release(r.trial, 4) for r in released])
    again = rounds(experiment, store)
    assert again.next(store.runs()) == [] and [(s.trial.trial_key, s.started) for s in again.suggestions] == kept


def test_a_pack_of_several_trials_passes_its_rungs(tmp_path):
    """It would end as a whole, the best of it too; a checkpoint may hold one from before there was a rule."""
    stop, (one, other) = Halving("asha", 1, 2), sweep_stub.grid(("dfa",), 2, epochs=3)
    for pack, offered in ((Pack((one,)), True), (Pack((one, other)), False)):
        checkpoints = Checkpoints(tmp_path / str(offered), 30)
        first, *_ = worker.train_pack(pack, device="cpu", threads=1, data_folder=None, checkpoints=checkpoints,
                                      stop=stop)
        assert [bool(record.if_stopped) for record in first] == [offered] * len(pack.trials)
