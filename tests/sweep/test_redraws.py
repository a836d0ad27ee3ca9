"""A second draw of secret noise is a second release: it is charged before it begins, or does not begin."""

import contextlib
import functools
import sqlite3

import fault_trainer
import pytest
from commands import load
from prepared import prepared
from ray import cloudpickle
from redraw_tools import BUDGET as EPSILON
from redraw_tools import Attack
from search_tools import FILE, parse, records, rounds

from pipeline.accounting import account, describe
from pipeline.accounting.budget import epochs_by_draw
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.experiment.stopping import Selection
from pipeline.sweep.checkpoints import Checkpoints, PublishedState
from pipeline.sweep.ledger import Ledger, known
from pipeline.sweep.recorder import Recorder
from pipeline.sweep.run import run_sweep
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.packs import Pack
from pipeline.trials.records import Draw, Release

SECRET = ("noise_multiplier: 20}", "noise_multiplier: 20, noise: secure, arithmetic: integer}")
BUDGET = FILE + "budget: {epsilon: EPSILON, delta: 1.0e-5}\n"
OLD = Draw("00000001")


class Sweep:
    """A search whose store is real and whose workers are this process."""

    def __init__(self, root, epsilon=0.0, redraw=False):
        text = BUDGET.replace("EPSILON", str(epsilon)) if epsilon else FILE
        self.experiment = parse(SECRET, text=text)
        self.store = Store(root=root)
        self.search = rounds(self.experiment, self.store)
        self.trials = self.search.next(self.store.runs())
        sweep = prepared(self.trials, root, store=self.store)
        self.result = sweep.result
        self.recorder = Recorder(sweep, Ledger(self.store, self.search.filter, redraw), {})
        self.recorder.begin_round(self.trials)

    def ask(self, trial, draw):
        return self.recorder.begin_draw(Pack((trial,)), draw)

    def hand_in(self, trial, epochs, status=""):
        self.recorder.record(Pack((trial,)), records(trial, epochs, status), 1.0)

    def fail(self, trial):
        self.recorder.fail(Pack((trial,)), "RuntimeError", "a text")

    def run(self, trial):
        (found,) = [run for run in self.store.runs() if run.trial_key == trial.trial_key]
        return found

    @property
    def spent(self):
        filter = self.search.filter
        return filter.epsilon(filter.spent(self.store.released()))


def begun(root, **given):
    """(a sweep, its first trial), of whose first draw one epoch is published."""
    sweep = Sweep(root, **given)
    trial = sweep.trials[0]
    sweep.ask(trial, OLD), sweep.hand_in(trial, 1)
    return sweep, trial


def test_a_first_draw_begins_and_one_that_published_nothing_costs_nothing(tmp_path):
    sweep = Sweep(tmp_path)
    trial = sweep.trials[0]
    assert sweep.ask(trial, OLD) and sweep.run(trial).tags["privacy.draws"] == "1"
    assert sweep.ask(trial, Draw("00000002")), "its worker was killed before it had handed in an epoch"
    assert sweep.run(trial).tags["privacy.draws"] == "1" and sweep.run(trial).tags["draw"] == "00000002"
    assert known(sweep.store) == {trial.trial_key: PublishedState("00000002", 0)}


def test_without_a_budget_nothing_is_drawn_anew_unless_it_is_asked_for(tmp_path):
    sweep, trial = begun(tmp_path)
    assert not sweep.ask(trial, Draw("00000002", reason="it is damaged"))
    run = sweep.run(trial)
    assert run.status == "failed" and "it would need new noise (it is damaged)" in run.tags["failure"]
    assert "--redraw" in run.tags["failure"] and "privacy.lost_epochs" not in run.tags
    again = Sweep(tmp_path)
    assert again.ask(trial, Draw(OLD.name, epoch=1)), "the checkpoint came back"
    allowed = Sweep(tmp_path, redraw=True)
    assert allowed.ask(trial, Draw("00000003"))
    run = allowed.run(trial)
    assert (run.tags["privacy.draws"], run.tags["privacy.earlier_epochs"]) == ("2", "2"), "as if it had ended"
    allowed.hand_in(trial, 2, "finished")
    run = allowed.run(trial)
    expected = {e.metric_name: e.value for e in account(trial, 4)}
    assert {name: value for name, value in run.metrics.items() if name.startswith("epsilon/")} == expected
    assert min(expected.values()) > min(e.value for e in account(trial, 2))
    assert "draw 2 of its noise" in run.tags["privacy.notes"] and f"{min(expected.values()):.4g}" in describe(trial, 2)
    assert sorted((r.epochs, r.deleted) for r in allowed.store.released(trial.trial_key)) == [(1, True), (2, False)]
    assert known(allowed.store)[trial.trial_key] == PublishedState("00000003", 2)


def test_a_checkpoint_of_an_earlier_draw_or_behind_what_was_published_is_not_gone_on_with(tmp_path):
    for checkpoint, says in ((Draw(OLD.name, epoch=1), "earlier draw"), (Draw("00000002", epoch=1), "older than what")):
        sweep, trial = begun(tmp_path / says.replace(" ", "-"), redraw=True)
        sweep.ask(trial, Draw("00000002")), sweep.hand_in(trial, 2)
        assert not sweep.ask(trial, checkpoint)
        assert says in sweep.result.failed[trial.trial_key]


def test_whatever_is_deleted_and_restored_no_run_is_of_another_draw_than_before(tmp_path):
    """Nor does the clock of a host decide which draw is the latest."""
    sweep, trial = begun(tmp_path, epsilon=8)
    client, old = sweep.store._client, sweep.run(trial).run_id
    sweep.ask(trial, Draw("00000002")), sweep.hand_in(trial, 1)
    spent, second = sweep.spent, sweep.run(trial).run_id
    client.delete_run(second), client.restore_run(old)
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as database:
        database.execute("UPDATE runs SET start_time = start_time - 3600000 WHERE run_uuid = ?", [second])
    again = Sweep(tmp_path, epsilon=8)
    assert known(again.store)[trial.trial_key] == PublishedState("00000002", 1)
    assert not again.ask(trial, Draw(OLD.name, epoch=1)), "its draw was given up"
    again = Sweep(tmp_path, epsilon=8)
    assert again.ask(trial, Draw("00000002", epoch=1)) and again.spent == spent
    assert sorted((r.draw, r.deleted, r.epochs) for r in again.store.released(trial.trial_key)) == [
        (OLD.name, True, 1), ("00000002", False, 0), ("00000002", True, 1)]
    again.hand_in(trial, 2, "finished")
    assert again.spent > spent


def test_a_failure_is_paid_for_before_it_is_seen(tmp_path, monkeypatch):
    sweep, seen = Sweep(tmp_path, epsilon=8), []
    trial = sweep.trials[0]
    sweep.ask(trial, OLD)
    monkeypatch.setattr(sweep.recorder._progress, "fail", lambda *_: seen.append(sweep.spent))
    sweep.fail(trial)
    filter = sweep.search.filter
    assert seen == [filter.epsilon(filter.spent([Release(trial, 2)]))]


def test_a_run_that_was_deleted_goes_on_from_its_checkpoint_as_the_same_draw(tmp_path):
    sweep, trial = begun(tmp_path)
    sweep.store._client.delete_run(sweep.run(trial).run_id)
    refused = Sweep(tmp_path)
    assert not refused.ask(trial, Draw("00000002")), "without a checkpoint it is another draw"
    again = Sweep(tmp_path)
    assert again.ask(trial, Draw(OLD.name, epoch=1)) and again.run(trial).tags["privacy.draws"] == "1"
    again.hand_in(trial, 2, "finished")
    assert epochs_by_draw(again.store.released(trial.trial_key)) == [2], "one draw, whose epochs two runs have"


def test_within_a_budget_another_draw_is_charged_at_its_worst_or_passed_over(tmp_path):
    sweep, first = begun(tmp_path, epsilon=1.4)
    others, filter = sweep.trials[1:], sweep.search.filter
    spent, number = sweep.spent, 1
    while sweep.ask(first, Draw(f"{number + 1:08}")):
        number += 1
        whole = [*sweep.store.released(), *(Release(trial, trial.epochs) for trial in others),
                 Release(first, first.epochs, draw="next")]
        assert filter.admits(whole), "it was let begin because all of it fits, and all that others may release yet"
        assert sweep.spent == spent, "nothing was released of it"
        sweep.hand_in(first, 1)
        assert sweep.spent > spent
        spent = sweep.spent
        assert number < 50
    assert number > 1 and spent <= 1.4
    one_more = [Release(first, 1, draw=str(n)) for n in range(number)] + [Release(first, first.epochs, draw="next")]
    assert not filter.admits([*one_more, *(Release(trial, trial.epochs) for trial in others)])
    run = sweep.run(first)
    assert "does not fit the budget" in run.tags["failure"] and run.tags["privacy.draws"] == str(number)
    points = [p.value for p in sweep.store._client.get_metric_history(sweep.store._parent(), "epsilon/spent")]
    assert points == sorted(points) and points[-1] == sweep.spent
    again = Sweep(tmp_path, epsilon=1.4)
    assert first not in again.trials and again.trials == others, "the search goes on without it"
    assert again.spent == spent


def test_a_draw_that_failed_counts_as_released_to_its_end_and_the_rest_of_it_is_drawn_anew(tmp_path):
    """Every failure may have told of what was drawn until then, the checkpoint that it goes on from or not."""
    sweep, trial = begun(tmp_path, epsilon=1.4)
    spent, failures = sweep.spent, 0
    while True:
        sweep.fail(trial)
        failures += 1
        assert spent < sweep.spent <= 1.4
        spent = sweep.spent
        (release,) = sweep.store.released(trial.trial_key)
        assert (release.epochs, release.published, release.lost) == (1 + failures, 1, failures)
        assert known(sweep.store)[trial.trial_key].published == 1, "its checkpoint is not behind"
        sweep = Sweep(tmp_path, epsilon=1.4)
        if trial not in sweep.trials or not sweep.ask(trial, Draw(OLD.name, epoch=1)):
            break
        assert sweep.run(trial).tags["privacy.earlier_epochs"] == str(failures)
        assert failures < 50
    assert failures > 1 and sweep.spent == spent <= 1.4


def test_the_odometer_counts_what_a_failed_attempt_lost_beside_what_is_published_after_it(tmp_path):
    sweep, trial = begun(tmp_path, epsilon=1.4)
    sweep.fail(trial)
    again = Sweep(tmp_path, epsilon=1.4)
    assert again.ask(trial, Draw(OLD.name, epoch=1))
    again.hand_in(trial, 2)
    assert [release.epochs for release in again.store.released(trial.trial_key)] == [3]
    assert again.store._client.get_run(again.store._parent()).data.metrics["epsilon/spent"] == again.spent


def test_a_failure_of_a_trial_whose_run_was_deleted_is_an_error_of_the_store_and_the_next_draw_costs_all(tmp_path):
    sweep, trial = begun(tmp_path, epsilon=1.4)
    sweep.store._client.delete_run(sweep.run(trial).run_id)
    with pytest.raises(TrackingError, match=f"trial {trial.trial_key}: its run was deleted while it trained"):
        sweep.fail(trial)
    again = Sweep(tmp_path, epsilon=1.4)
    assert again.recorder._ledger.before(trial, Draw("another")) == [trial.epochs]


def test_without_a_budget_a_draw_that_failed_goes_on_if_that_is_asked_for_and_composes_what_was_lost(tmp_path):
    sweep, trial = begun(tmp_path)
    sweep.fail(trial)
    refused = Sweep(tmp_path)
    assert not refused.ask(trial, Draw(OLD.name, epoch=1))
    assert "it failed, so it counts as released to its end" in refused.result.failed[trial.trial_key]
    allowed = Sweep(tmp_path, redraw=True)
    assert allowed.ask(trial, Draw(OLD.name, epoch=1))
    again = Sweep(tmp_path)
    assert again.ask(trial, Draw(OLD.name, epoch=1)), "its worker was killed, which tells nothing"
    again.hand_in(trial, 2, "finished")
    expected = {e.metric_name: e.value for e in account(trial, 3)}
    metrics = again.run(trial).metrics
    assert {name: value for name, value in metrics.items() if name.startswith("epsilon/")} == expected


def test_no_trial_is_refused_for_another_of_its_pack(tmp_path):
    sweep, first = begun(tmp_path, epsilon=1.4)
    second = sweep.trials[1]
    number = 1
    while sweep.ask(first, Draw(f"{number + 1:08}")):
        number += 1
        sweep.hand_in(first, 1)
    together = Sweep(tmp_path, epsilon=1.4)
    assert first not in together.trials and second in together.trials
    checkpoints = Checkpoints(tmp_path, 0, known(together.store))
    assert [pack.trials for pack in checkpoints.drawn_anew((first, second), [])] == [(first,)]
    assert together.ask(second, Draw("0000000f"))


def test_what_is_shown_is_in_the_store_before(tmp_path, monkeypatch):
    """So that a driver that dies knows from the store what was seen."""
    sweep, events = Sweep(tmp_path), []
    trial = sweep.trials[0]
    sweep.ask(trial, OLD)
    log, show = sweep.store.log, sweep.recorder._progress.record
    monkeypatch.setattr(sweep.store, "log", lambda found: events.append("store") or log(found))
    monkeypatch.setattr(sweep.recorder._progress, "record", lambda record: events.append("shown") or show(record))
    sweep.hand_in(trial, 1)
    assert events == ["store", "shown"]


def test_the_clock_is_written_first(tmp_path, monkeypatch):
    """A call that breaks off after some of the metrics leaves an epoch that counts."""
    sweep, sent = Sweep(tmp_path), []
    trial = sweep.trials[0]
    sweep.ask(trial, OLD)
    batch = sweep.store._client.log_batch
    monkeypatch.setattr(sweep.store._client, "log_batch",
                        lambda run, metrics, *rest: sent.extend(m.key for m in metrics) or batch(run, metrics, *rest))
    sweep.hand_in(trial, 2)
    assert sent[:2] == ["time/epoch_seconds"] * 2 and len(sent) > 4


def test_draws_are_composed_in_the_price_of_a_choice():
    trial = parse(SECRET).possible[0]
    alone, twice = (selected_epsilon([trial], Selection(), earlier).value for earlier in ({}, {trial.trial_key: 2}))
    assert twice > alone
    same = account(trial, 4)
    assert twice == pytest.approx(next(e.value for e in same if e.kind == "certified"), rel=1e-6)


GRID = """
name: secret
base: {dataset: digits, hidden: [16], batch_size: 128, epochs: 8, algorithm: dfa, mechanism: per_example,
       sampler: poisson, noise: secure, arithmetic: integer, target_epsilon: 3, alignment_batches: 0}
grid: {seed: {range: [0, 2]}}
resources: {pack_size: 2}
"""


@pytest.mark.slow
@pytest.mark.parametrize("redraw", [False, True])
def test_a_worker_that_starts_again_where_no_checkpoint_is_asks_before_it_draws(tmp_path, two_cores, said, redraw):
    experiment = load(tmp_path, GRID)
    cloudpickle.register_pickle_by_value(fault_trainer)
    result = run_sweep(experiment, root=tmp_path, redraw=redraw,
                       trainer=functools.partial(fault_trainer.on_two_hosts, root=tmp_path))
    store = Reader(root=tmp_path)
    store.attach("secret")
    assert (len(result.failed), result.finished) == ((0, 2) if redraw else (2, 0))
    for trial, run in zip(experiment.trials, store.runs(), strict=True):
        epochs = sorted((release.epochs, release.deleted) for release in store.released(trial.trial_key))
        assert epochs == ([(3, True), (8, False)] if redraw else [(3, False)])
        assert run.tags["privacy.draws"] == ("2" if redraw else "1")
        if redraw:
            expected = next(e for e in account(trial, 16) if e.metric_name == "epsilon/certified/pld")
            assert run.metrics[expected.metric_name] == expected.value > 3


@pytest.mark.slow
def test_a_driver_that_dies_between_the_charge_and_the_first_step_leaves_a_draw_that_counts_for_nothing(
        tmp_path, two_cores, monkeypatch):
    experiment = load(tmp_path, GRID)

    class Died(BaseException):
        pass

    def dies(self, trial_key, name, earlier, begin=Store.begin_draw):
        begin(self, trial_key, name, earlier)
        raise Died

    with monkeypatch.context() as patch, contextlib.suppress(Died):
        patch.setattr(Store, "begin_draw", dies)
        run_sweep(experiment, root=tmp_path, quiet=True)
    store = Reader(root=tmp_path)
    store.attach("secret")
    assert {run.tags["privacy.draws"] for run in store.runs() if "draw" in run.tags} == {"1"}
    assert [release.epochs for release in store.released()] == [0]
    result = run_sweep(experiment, root=tmp_path, quiet=True)
    assert result.finished == 2 and {run.tags["privacy.draws"] for run in store.runs()} == {"1"}


@pytest.mark.slow
def test_whatever_is_done_between_two_commands_no_more_is_public_than_the_budget_says(tmp_path):
    one = Attack(tmp_path)
    try:
        for between in (one.delete_checkpoints, one.delete_runs):
            one.start()
            assert one.wait(epochs=2)
            one.kill()
            between()
        one.start()
        assert one.process.wait(timeout=600) == 0
    finally:
        one.kill()
    public, said = one.epsilons()
    assert max(one.published().values()) > 1, "an epoch was drawn again"
    assert public <= said * (1 + 1e-9) <= EPSILON * (1 + 1e-9)
