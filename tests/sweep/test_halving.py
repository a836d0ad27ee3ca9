"""Trials of a search that are stopped early: by whom, what they report, and what they cost."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import search_tools
import sweep_stub
import torch
from ray import cloudpickle
from search_tools import parse, rounds, score, train

from analysis.report.report import write
from pipeline.accounting import account
from pipeline.accounting.budget import Release, epoch_cost
from pipeline.experiment.sections import Halving
from pipeline.learning.data.dataset import load
from pipeline.learning.run import train as train_pack
from pipeline.sweep import worker
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.run import run_sweep
from pipeline.sweep.tuning import Rungs
from pipeline.tracking.artifacts import config_of
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.naming import counted
from pipeline.trials.packs import Pack
from pipeline.trials.records import ACCURACY

cloudpickle.register_pickle_by_value(search_tools)
cloudpickle.register_pickle_by_value(sweep_stub)  # workers cannot import from the folder of the tests
STOP = ("resources: {cpu: 2, pack_size: 4}", "stop: {rule: asha, grace: 1, factor: 2}\nresources: {cpu: 1}")
LONG = ("epochs: 2", "epochs: 5")


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
    again = Rungs(Halving("asha", 1, 4))
    for key, accuracy in came[:-1]:
        again.is_promoted(key, 1, accuracy)
    assert not again.is_promoted("trial 5", 1, 0.3), "those of rounds before count"


@pytest.mark.parametrize("algorithm", ["bp", "dfa"])
def test_on_a_rung_a_trial_says_what_it_would_end_with(algorithm):
    trial = TrialConfig(dataset="digits", algorithm=algorithm, hidden=(8,), epochs=4, batch_size=64, sampler="poisson",
                        mechanism="per_example", noise_multiplier=2.0, private_metrics="noisy", momentum=0.0)
    data = load("digits")
    undisturbed = [r for (r,) in train_pack(Pack((trial,)), data)]
    on_rungs = [r for (r,) in train_pack(Pack((trial,)), data, rungs=(1, 2, 4))]
    assert [bool(r.if_stopped) for r in on_rungs] == [True, True, False, False]
    for record, as_before in zip(on_rungs, undisturbed, strict=True):
        same = {name: v for name, v in record.metrics.items() if not name.startswith("time/")}
        assert same == {name: v for name, v in as_before.metrics.items() if not name.startswith("time/")}
    end = on_rungs[1].if_stopped
    assert (end.epoch, end.outcome.status, end.trial_key) == (2, "stopped", trial.trial_key)
    assert end.metrics[ACCURACY] == on_rungs[1].metrics[ACCURACY] and 0 <= end.metrics["test/accuracy"] <= 1
    shorter = [r for (r,) in train_pack(Pack((replace(trial, epochs=2),)), data)][-1]
    assert all(torch.equal(torch.tensor(a), torch.tensor(b)) for a, b in zip(
        end.outcome.weights.values(), shorter.outcome.weights.values(), strict=True)), "the weights after two epochs"
    assert end.metrics["test/accuracy"] == shorter.metrics["test/accuracy"]
    paid = {e.metric_name: e.value for e in account(trial, 4)}
    assert {name: end.metrics[name] for name in paid} == paid, "when it ends was chosen by what it released"
    assert on_rungs[1].metrics.items() & paid.items() == set()


def test_a_stopped_trial_is_a_result_and_the_sweep_has_nothing_more_to_do(tmp_path, two_cores, said):
    experiment = parse(STOP, LONG)
    trainer = functools.partial(sweep_stub.train, folder=tmp_path, seconds=0.02, rungs=(1, 2, 4), score=score)
    result = run_sweep(experiment, root=tmp_path, trainer=trainer)
    assert result.stopped >= 2 and result.finished >= 1 and result.stopped + result.finished == 7
    assert f"{result.stopped} stopped early" in said[-1]
    store = Store(root=tmp_path)
    store.attach("search")
    runs = {run.trial_key: run for run in store.runs()}
    assert {run.status for run in runs.values()} == {"finished", "stopped"} and len(store.done()) == 7
    for release in store.released():
        stopped = runs[release.trial.trial_key].status == "stopped"
        assert release.epochs in (1, 2, 4) if stopped else release.epochs == 5
    best = max(runs.values(), key=lambda run: run.metrics[ACCURACY])
    assert best.status == "finished", "what is best on every rung is not stopped"
    again = run_sweep(experiment, root=tmp_path, trainer=trainer)
    assert (again.skipped, again.stopped, again.remaining) == (7, 0, 0)


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
    assert rungs.is_promoted(again.trial_key, 1, 0.0) and rungs.is_promoted(again.trial_key, 2, 0.0)
    assert not rungs.is_promoted(again.trial_key, 4, 0.0)
    assert rungs.is_promoted(at_rung.trial_key, 1, 0.0) and not rungs.is_promoted(at_rung.trial_key, 2, 0.0)
    assert not rungs.is_promoted("new", 1, 0.0)


def test_a_stopped_trial_has_weights_and_accuracies_and_leaves_no_checkpoint(tmp_path, in_process, only_svg):
    """Real training, tracking and report; that Ray hands on who is stopped is shown above."""
    changes = ("epochs: 2", "epochs: 4, private_metrics: noisy"), ("trials: 7", "trials: 5")
    resources = "stop: {rule: asha, grace: 1, factor: 2}\nresources: {cpu: 1, checkpoint_seconds: 0}"
    experiment = parse(*changes, (STOP[0], resources))
    result = run_sweep(experiment, root=tmp_path)
    assert result.stopped >= 1 and result.stopped + result.finished == 5
    assert not list((tmp_path / "private" / "checkpoints").rglob("*.safetensors"))
    store = Store(root=tmp_path)
    store.attach("search")
    runs = [run for run in store.runs() if run.status == "stopped"]
    for run in runs:
        assert 0 < run.metrics["test/accuracy"] < 1
        assert run.metrics[ACCURACY] == store.history(run.run_id, ACCURACY)[-1][1]
        whole = {e.metric_name: e.value for e in account(config_of(run), 4)}
        assert {name: run.metrics[name] for name in whole} == whole
        assert {"weights.safetensors"} <= {file.path for file in store._client.list_artifacts(run.run_id)}
    report = write(store.as_swept(experiment), store, tmp_path / "report")
    text = (tmp_path / "report" / "search.md").read_text(encoding="utf-8")
    assert f"{counted(result.stopped, 'trial')} stopped early, by successive halving after 1 epoch, " in text
    assert "| stopped | " in text and report.headline


BUDGET = ("search:\n", "budget: {epsilon: EPSILON, delta: 1.0e-5}\nsearch:\n")


def test_a_stopped_trial_costs_what_it_released_and_a_resumed_search_asks_for_the_same(tmp_path):
    private = ("epochs: 2", "epochs: 4, private_metrics: noisy")
    stop = (STOP[0], "stop: {rule: asha, grace: 1, factor: 2}\nresources: {cpu: 2}")
    experiment = parse(private, stop, ("seed: 3", "seed: 3\n  max_concurrent: 2"),
                       (BUDGET[0], BUDGET[1].replace("EPSILON", "1.4")))
    store = Store(root=tmp_path)
    search = rounds(experiment, store)
    while missing := search.next(store.runs()):
        train(store, missing[:1], epochs=1, status="stopped")
        train(store, missing[1:])
        store.log_suggestions(search.suggestions)
    kept = [(s.trial.trial_key, s.started) for s in search.suggestions]
    assert search.passed_over, "the budget is spent"
    released = store.released()
    assert sorted({release.epochs for release in released}) == [1, 4]
    order = search.filter.order
    spent = sum(r.epochs * epoch_cost(r.trial, order) for r in released)
    assert search.filter.spent(released) == pytest.approx(spent, rel=1e-12)
    assert search.filter.spent(released) < search.filter.spent([Release(r.trial, 4) for r in released])
    again = rounds(experiment, store)
    assert again.next(store.runs()) == [] and [(s.trial.trial_key, s.started) for s in again.suggestions] == kept


@pytest.mark.parametrize(("change", "says"), [
    (("rule: asha", "rule: median"), "stop.rule: must be one of asha, got 'median'"),
    (("grace: 1", "grace: 0"), "stop.grace: must be a whole number >= 1, got 0"),
    (("grace: 1", "grace: 5"), "stop.grace: must be less than the 5 epochs of a trial, or none is ever stopped, got 5"),
    (("factor: 2", "factor: 1"), "stop.factor: must be a whole number >= 2, got 1"),
    (("factor: 2", "brackets: 2"), "stop.brackets: unknown entry"),
    (("{cpu: 1}", "{cpu: 1, pack_size: 4}"), "resources.pack_size: must be 1 with `stop`, .*got 4; leave it out")])
def test_a_rule_that_cannot_be_is_refused_in_one_line(change, says):
    with pytest.raises(ConfigError, match=says) as error:
        parse(LONG, STOP, change)
    assert "\n" not in str(error.value)


def test_without_a_search_nothing_is_stopped():
    with pytest.raises(ConfigError, match="stop: stops trials of a search, .*without one"):
        parse(text="base: {dataset: digits}\nstop: {rule: asha, grace: 1}\n")


def test_a_pack_of_several_trials_passes_its_rungs(tmp_path):
    """It would end as a whole, the best of it too; a checkpoint may hold one from before there was a rule."""
    stop, (one, other) = Halving("asha", 1, 2), sweep_stub.grid(("dfa",), 2, epochs=3)
    for pack, offered in ((Pack((one,)), True), (Pack((one, other)), False)):
        checkpoints = Checkpoints(tmp_path / str(offered), 30)
        first, *_ = worker.train_pack(pack, device="cpu", threads=1, data_folder=None, checkpoints=checkpoints,
                                        stop=stop)
        assert [bool(record.if_stopped) for record in first] == [offered] * len(pack.trials)
