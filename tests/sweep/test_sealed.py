"""A trial with secret noise releases one result, at its end: names, drivers that race, deaths, what outlives them."""

import contextlib
import json
import math
import re
import shutil
import time
from types import SimpleNamespace
from unittest.mock import Mock

import flat
import kills
import numpy as np
import pandas as pd
import pytest
import test_promises as promises
import torch
from commands import load
from fault_tools import photonic
from ray.exceptions import RayTaskError
from safetensors.numpy import save_file
from stored import attached, parent

from analysis.report import report
from pipeline.accounting import account
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.learning.train import prepare as prepare_training
from pipeline.learning.training import Training
from pipeline.sweep import cluster, sealed, settle, status, worker
from pipeline.sweep.checkpoints import Checkpoint, Checkpoints
from pipeline.sweep.checks import ResourceError
from pipeline.sweep.lock import SweepRunning
from pipeline.sweep.private import UNFINISHED, UnusableFile, read, write
from pipeline.sweep.recorder import Recorder
from pipeline.sweep.run import run_sweep
from pipeline.sweep.sealed import found, seal, unseal
from pipeline.tracking.artifacts import NAMED, names_of
from pipeline.tracking.store import Store
from pipeline.trials.packs import Pack
from pipeline.trials.records import Hidden, Result, Sealed

GRID = """
name: secret
base: {dataset: digits, hidden: [8], batch_size: 256, epochs: 3, algorithm: dfa, mechanism: per_example,
       sampler: poisson, noise: secure, arithmetic: integer, target_epsilon: 3, alignment_batches: 0}
grid: {seed: {range: [0, 3]}}
resources: {pack_size: 2, checkpoint_seconds: 0}
"""
BUDGET = GRID.replace("grid: {seed: {range: [0, 3]}}", """search:
  algorithm: random
  trials: 3
  space: {learning_rate: {loguniform: [0.05, 5]}}
  max_concurrent: 3
budget: {epsilon: 8, delta: 1.0e-5}""")


ONE_TRIAL = promises.FILE.replace("epochs: 2", "epochs: 3").replace("[0, 2]", "[0, 1]")


class Died(BaseException):
    """In the place of a kill."""


class Odometer:
    """Its own: a draw is all noise of one training to its end, a resumed one with what its checkpoint had."""

    def __init__(self, patch):
        self.drawn = []  # validation accuracies of each draw, by (trial_key, epoch)
        run_epoch = Training.run_epoch

        def watched(training):
            records = run_epoch(training)
            self.drawn.append({(r.trial_key, r.epoch): r.metrics["validation/accuracy"] for r in records})
            return records

        patch.setattr(Training, "run_epoch", watched)


@pytest.fixture
def sweep(tmp_path, in_process):
    """Run the sweep of a text, in this process; it `dies` as `dying` says."""
    def swept(text=GRID, dies=None, **options):
        with dying(*dies) if dies else contextlib.nullcontext():
            return run_sweep(load(tmp_path, text), root=tmp_path / "mlruns", quiet=True, **options)

    return swept


def stored(tmp_path):
    return attached("secret", tmp_path / "mlruns")


def folder_of(tmp_path):
    return tmp_path / "mlruns" / "private" / "checkpoints" / "secret"


@contextlib.contextmanager
def dying(owner, name, before=True):
    """The process dies just before, or just after, the first call of a function that is no rehearsal."""
    call = getattr(owner, name)

    def once(*arguments, **options):
        if str(arguments[0]).count(UNFINISHED):
            return call(*arguments, **options)
        if not before:
            call(*arguments, **options)
        raise Died

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        patch.setattr(owner, name, once)
        yield


def before_second_epoch(patch, disturb):
    """Call `disturb` with every training that has had one epoch."""
    run_epoch = Training.run_epoch

    def disturbed(training):
        if training.epoch == 1:
            disturb(training)
        return run_epoch(training)

    patch.setattr(Training, "run_epoch", disturbed)


def names(tmp_path):
    """trial_key -> names of its runs, those in the trash too."""
    found = {}
    for release in stored(tmp_path).released():
        found.setdefault(release.trial.trial_key, set()).add(release.name)
    return found


def test_a_secure_trial_has_one_name_all_epochs_and_the_epsilon_of_all_that_were_planned(tmp_path, sweep):
    assert sweep().finished == 3
    store = stored(tmp_path)
    for run in store.runs():
        (name,) = names_of(run.tags)
        assert run.tags[f"{NAMED}{name}"].startswith("3 epochs, sealed on ") and run.epoch == 3
        assert [epoch for epoch, _ in store.history(run.run_id, "validation/accuracy")] == [1, 2, 3]
        kept = store.kept(run)
        assert kept[-1].outcome.weights.keys() == store.weights(run).keys()
        assert {r.epoch: r.metrics["test/accuracy"] for r in kept if r.outcome} == dict(
            store.history(run.run_id, "test/accuracy"))
    by_name = [names_of(run.tags)[0] for run in store.runs()]
    assert len(set(by_name)) == 2, "one of each pack"
    assert not list(folder_of(tmp_path).iterdir())
    assert [release.epochs for release in store.released()] == [3, 3, 3]


# Where a driver or a worker dies, and how many trials were stored by then.
PLACES = {
    "before the seal": ((worker, "seal"), 0), "sealed, not named": ((Store, "name"), 0),
    "named, not read again": ((Store, "names"), 0), "named, not asked for": ((worker, "unseal"), 0),
    "asked for, not kept": ((Store, "keep"), 0), "kept, not logged": ((Store, "keep", False), 0),
    "logged in part": ((Store, "_finish"), 0), "one trial stored": ((Store, "_finish", False), 1),
    "stored, not removed": ((worker, "remove"), 2)}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_a_process_dies_one_draw_is_released_and_no_trial_is_lost(tmp_path, sweep, monkeypatch, place):
    dies, n_stored = PLACES[place]
    odometer = Odometer(monkeypatch)
    sweep(dies=dies)
    result = sweep()
    assert not result.failed and not result.lost and result.skipped == n_stored
    store = stored(tmp_path)
    assert len(store.done()) == 3 and all(len(found) == 1 for found in names(tmp_path).values())
    again = 2 if place == "before the seal" else 0
    assert len(odometer.drawn) == 8 + again, "a rehearsal and three epochs of each pack, and what is drawn again"
    public = {(run.trial_key, epoch): value for run in store.runs()
              for epoch, value in store.history(run.run_id, "validation/accuracy")}
    drawn = {}
    for draw in odometer.drawn:
        for of, value in draw.items():
            drawn.setdefault(of, set()).add(value)
    assert len(public) == 9 and all(value in drawn[of] for of, value in public.items())
    assert not list(folder_of(tmp_path).iterdir())


def test_of_two_drivers_that_name_two_results_of_a_trial_one_at_most_releases_its_own(tmp_path, sweep, monkeypatch):
    """The second sleeps after its look at the lease, and writes its name when the first has read."""
    name = Store.name

    def slept(store, key, sealed_, *more):
        name(store, key, sealed_, *more)
        monkeypatch.setattr(Store, "name", name)
        store._client.set_tag(store._run_id(key), f"{NAMED}00other", "3 epochs, sealed on elsewhere")

    monkeypatch.setattr(Store, "name", slept)
    result = sweep()
    assert len(result.failed) == 1 and result.finished == 2, "the other trials are not concerned"
    assert all("another draw of its noise was released, or may have been" in why for why in result.failed.values())
    store = stored(tmp_path)
    twice = [key for key, found in names(tmp_path).items() if len(found) > 1]
    assert len(twice) == 1 and not any(run.epoch for run in store.runs() if run.status != "finished")
    past = store.past(load(tmp_path, GRID), store.runs())
    assert [release.trial.trial_key for release in past.releases] == twice, "both names are paid for"
    result = sweep()
    assert not result.finished and len(result.failed) == 1
    assert not list(folder_of(tmp_path).iterdir()), "the second draw is removed unread"
    pack = Pack(load(tmp_path, GRID).trials[:2])
    Checkpoints(folder_of(tmp_path), 0.0).save(pack, Checkpoint("cpu", {}, {"epoch": 1}, []))
    assert len(sweep(lost=True).lost) == 1 and not list(folder_of(tmp_path).iterdir())
    assert {run.status for run in stored(tmp_path).runs()} == {"finished", "lost"}
    assert sweep().skipped == 3, "and never trained again"


def test_of_a_pack_whose_names_were_written_in_part_each_trial_has_one_draw_and_none_is_lost(tmp_path, sweep):
    """The first trial waits for the file while the second is trained anew; then the file comes back."""
    sweep(dies=(Store, "name", False))
    shutil.move(folder_of(tmp_path), tmp_path / "elsewhere")
    result = sweep()
    assert len(result.failed) == 1 and result.finished == 2
    shutil.rmtree(folder_of(tmp_path))
    shutil.move(tmp_path / "elsewhere", folder_of(tmp_path))
    assert sweep().finished == 1 and all(len(found) == 1 for found in names(tmp_path).values())
    assert len(stored(tmp_path).done()) == 3 and not list(folder_of(tmp_path).iterdir())


def test_a_driver_that_lost_the_sweep_writes_nothing_after_the_name(tmp_path, sweep, monkeypatch):
    name = Store.name

    def taken_over(store, *arguments):
        name(store, *arguments)
        store._client.set_tag(store._parent(), "driver", "another@host:folder")

    monkeypatch.setattr(Store, "name", taken_over)
    monkeypatch.setattr(Store, "shared", True)
    monkeypatch.setattr(Store, "keep", lambda *_: pytest.fail("content was asked for"))
    monkeypatch.setattr("pipeline.sweep.lock.SETTLING_SECONDS", 0.0)
    with pytest.raises(SweepRunning):
        sweep()
    assert not any(run.epoch for run in stored(tmp_path).runs())


@pytest.mark.parametrize("lost", [False, True])
def test_a_named_result_that_is_not_to_be_found_waits_counts_and_ends_as_lost_if_it_is_said(tmp_path, sweep, lost):
    sweep(BUDGET, dies=(worker, "unseal"))
    shutil.move(folder_of(tmp_path), tmp_path / "elsewhere")
    result = sweep(BUDGET, lost=lost)
    store = stored(tmp_path)
    reasons = result.lost if lost else result.failed
    assert len(reasons) == 1 and result.finished == 2
    spent = parent(store).metrics["epsilon/spent"]
    for run in store.runs():
        if run.trial_key in reasons:
            assert run.status == ("lost" if lost else "failed") and not run.epoch
            assert min(e.value for e in account(run.trial, 3)) == run.metrics["epsilon/certified/pld"]
    assert len(store.released()) == 3 and spent > 0
    shutil.rmtree(folder_of(tmp_path), ignore_errors=True)
    shutil.move(tmp_path / "elsewhere", folder_of(tmp_path))
    result = sweep(BUDGET)
    assert (result.finished, result.lost, result.failed) == (0 if lost else 1, {}, {}), "its host came back"
    assert not list(folder_of(tmp_path).iterdir())
    store = stored(tmp_path)
    assert parent(store).metrics["epsilon/spent"] == spent


@pytest.mark.parametrize(("dies", "waiting", "says"), [
    ((Store, "name"), 0, "was removed, nothing of it was released"),
    ((worker, "unseal"), 2, "was named, and cannot be read: its content does not have its checksum")])
def test_a_damaged_sealed_file_costs_nothing_and_once_it_is_named_waits(tmp_path, sweep, said, dies, waiting, says):
    sweep(dies=dies)
    (path,) = folder_of(tmp_path).glob("*.sealed")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    result = sweep()
    assert (len(result.failed), result.finished, path.exists()) == (waiting, 3 - waiting, waiting > 0)
    assert any(says in line for line in said)


def test_a_file_that_was_narrowed_gives_up_no_sealed_result(tmp_path, sweep):
    sweep(dies=(Store, "name"))
    result = sweep(GRID.replace("[0, 3]", "[2, 3]"))
    assert result.finished == 1 and not result.remaining
    store = stored(tmp_path)
    assert len(store.done()) == 3 and all(len(found) == 1 for found in names(tmp_path).values())


def test_a_run_with_a_name_counts_in_the_trash_and_is_not_trained_again(tmp_path, sweep, said):
    sweep(BUDGET)
    store = stored(tmp_path)
    run = store.runs()[0]
    before = parent(store).metrics["epsilon/spent"]
    Store(root=tmp_path / "mlruns")._client.delete_run(run.run_id)
    result = sweep(BUDGET)
    assert (result.finished, result.skipped) == (0, 3)
    assert any("MLflow's trash counts, so they are not trained again" in line for line in said)
    state = status.read(stored(tmp_path), "secret", load(tmp_path, BUDGET))
    assert state.counts["lost"] == 1 and not state.go_on and "lies in MLflow's trash" in status.as_text([state])
    assert parent(stored(tmp_path)).metrics["epsilon/spent"] == before


def test_what_fails_in_training_is_an_outcome_that_counts(tmp_path, sweep, monkeypatch, said):
    def fails(training):
        raise ValueError(f"a weight of {float(training.net.parameters.flat.sum())}")

    before_second_epoch(monkeypatch, fails)
    result = sweep()
    assert len(result.lost) == 3 and not result.failed
    assert all(why.endswith("; it was released and counts, and is trained no more") for why in result.lost.values())
    public = " ".join([*said, (tmp_path / "mlruns" / "failures" / "secret.log").read_text()])
    assert "a weight" not in public and "ValueError" in public
    store = stored(tmp_path)
    for run in store.runs():
        assert run.status == "lost" and len(names_of(run.tags)) == 1 and not run.epoch
        assert run.tags["failure"].startswith("ValueError (test_sealed.py:") and "a weight" not in run.tags["failure"]
    assert "a weight" in (tmp_path / "mlruns" / "private" / "failures" / "secret.log").read_text()
    assert sweep().skipped == 3
    assert not list(folder_of(tmp_path).iterdir())


def test_a_rehearsal_fails_on_public_records_and_releases_nothing(tmp_path, sweep, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(worker, "seal", Mock(side_effect=OSError(28, "No space left on device")))
        result = sweep()
    assert len(result.failed) == 3 and not stored(tmp_path).released()
    assert all("must take checkpoints and sealed results, and does not" in why for why in result.failed.values())
    assert sweep().finished == 3


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left"), torch.OutOfMemoryError("of memory"),
                                   RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_want_of_memory_or_disk_is_a_death_of_the_worker(tmp_path, monkeypatch, digits, error):
    before_second_epoch(monkeypatch, Mock(side_effect=error))
    pack = Pack((load(tmp_path, GRID).trials[0],))
    items = worker.epochs(pack, lambda pack: flat.items(pack, tmp_path / "c"))
    assert next(items)["item"] == Hidden(1)
    with pytest.raises(worker.WorkerDeath, match=f"^{type(error).__name__} "):
        next(items)
    assert not found(tmp_path / "c") and Checkpoints(tmp_path / "c", 0.0).found(), "it goes on from its checkpoint"


def test_a_seal_that_cannot_be_written_is_tried_again_and_then_a_death(tmp_path, monkeypatch, digits):
    monkeypatch.setattr(sealed, "PAUSE_SECONDS", 0.0)
    trial, write, tries = load(tmp_path, GRID).trials[0], sealed.write, []

    def full(path, *content):
        if path.parent.name == "c":
            tries.append(path)
            if len(tries) < limit:
                raise OSError(28, "No space left on device")
        write(path, *content)

    monkeypatch.setattr(sealed, "write", full)
    for limit in (3, 4):
        tries.clear()
        kinds = []
        with contextlib.nullcontext() if limit == 3 else pytest.raises(worker.WorkerDeath):
            for item in flat.items(Pack((trial,)), tmp_path / "c", 1e9):
                kinds.append(type(item))
        assert len(tries) == 3 and kinds[3:] == ([Sealed, Result] if limit == 3 else [])


def test_of_several_sealed_files_the_first_by_name_is_sent_and_the_others_are_removed(tmp_path, digits):
    pack = Pack((load(tmp_path, GRID).trials[0],))
    files = [seal(tmp_path / "c", pack, Result(failure=str(number))) for number in range(3)]
    first = min(files, key=lambda file: file.sealed.name)
    items = list(flat.items(pack, tmp_path / "c", 1e9))
    assert items == [first.sealed, Result([], failure=str(files.index(first)))] and not found(tmp_path / "c")


def test_a_sealed_file_is_read_whatever_wrote_it_and_refused_if_a_byte_is_another(tmp_path, monkeypatch, digits):
    """Another torch, code or device: its format and checksum alone decide."""
    experiment = load(tmp_path, GRID)
    pack = Pack((experiment.trials[0].with_recorded_noise({"noise_multiplier": 1.25}),))
    training = prepare_training(pack, digits, "cpu")
    records = [record for _ in range(3) for record in training.run_epoch()]
    file = seal(tmp_path, pack, Result(records))
    monkeypatch.setattr("pipeline.sweep.checkpoints.SOFTWARE", {"format": 2, "torch": "another"})
    (again,) = found(tmp_path)
    assert again.sealed == file.sealed and not again.problem and again.pack == pack
    assert dict(again.pack.shared.recorded_noise) == {"noise_multiplier": 1.25}
    result = unseal(again.path)
    assert [r.as_entry() for r in result.records] == [json.loads(json.dumps(r.as_entry())) for r in records]
    weights = result.records[-1].outcome.weights
    assert all(np.array_equal(weights[name], array) for name, array in records[-1].outcome.weights.items())
    content = file.path.read_bytes()
    for place in (8, len(content) // 2, len(content) - 1):
        file.path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1:])
        with pytest.raises(UnusableFile):
            unseal(file.path)


def test_a_pack_shows_the_same_progress_whichever_of_its_trials_diverge_or_fail(tmp_path, digits, monkeypatch):
    def disturb(training):
        training.net.parameters.flat[list(diverged)] = math.nan
        if fails:
            raise ValueError

    pack = Pack(load(tmp_path, GRID).trials)
    before_second_epoch(monkeypatch, disturb)
    for diverged, fails in (((), False), ((0,), False), ((1, 2), False), ((0, 1, 2), False), ((), True)):
        items = list(flat.items(pack, tmp_path / "c"))
        assert items[:3] == [Hidden(1), Hidden(2), Hidden(3)] and len(items) == 5
        ended = [(r.outcome.status, r.epoch) for key in pack.trial_keys for r in items[-1].records
                 if r.outcome and r.trial_key == key]
        assert ended == ([] if fails else [("diverged", 2) if seed in diverged else ("finished", 3)
                                           for seed in range(3)])


def test_a_file_that_a_driver_wrote_in_part_is_none_that_was_kept(tmp_path, sweep):
    sweep(dies=(Store, "_finish"))
    for path in (tmp_path / "mlruns" / "artifacts").rglob("released.json"):
        path.write_text(path.read_text()[:100])
    shutil.move(folder_of(tmp_path), tmp_path / "elsewhere")
    assert len(sweep().failed) == 2
    shutil.rmtree(folder_of(tmp_path))
    shutil.move(tmp_path / "elsewhere", folder_of(tmp_path))
    assert sweep().finished == 2 and sweep().skipped == 3


def test_a_sealed_result_that_nothing_reserves_is_not_released_beyond_the_budget(tmp_path, sweep, said):
    """Its run was deleted before it was named, and the edited space asks for as much as the budget covers."""
    asked = BUDGET.replace("trials: 3", "trials: 30").replace("max_concurrent: 3", "max_concurrent: 30")
    sweep(asked, dies=(Store, "name"))
    store = Store(root=tmp_path / "mlruns")
    for run in stored(tmp_path).runs():
        store._client.delete_run(run.run_id)
    edited = asked.replace("[0.05, 5]", "[0.06, 4]")
    result = sweep(edited)
    assert result.finished and result.passed_over and not result.failed
    assert any("was removed, and nothing of it is released now: " in line for line in said)
    assert len(stored(tmp_path).released()) == result.finished and sweep(edited).skipped == result.finished


def test_a_sealed_result_of_a_grid_that_the_budget_of_the_same_name_cannot_cover_is_not_released(tmp_path, sweep):
    sweep(GRID.replace("base: {", "base: {delta: 1.0e-6, "), dies=(Store, "name"))
    assert sweep(BUDGET).finished == 3 and sweep(BUDGET).skipped == 3
    assert {release.trial.delta for release in stored(tmp_path).released()} == {1e-5}


def test_a_worker_that_finds_another_sealed_result_than_was_named_adds_no_second_name(tmp_path, sweep, monkeypatch):
    unsealed = worker.unseal

    def renamed(path):
        """The worker dies, its file goes, and one of a worker that outlived its driver is there for the next one."""
        if UNFINISHED in str(path):
            return unsealed(path)
        monkeypatch.setattr(worker, "unseal", unsealed)
        path.rename(path.with_name(f"{path.name.split('.')[0]}.other.sealed"))
        return Hidden(0)

    monkeypatch.setattr(worker, "unseal", renamed)
    recorder_name, asked = Recorder.name, []

    def named(recorder, pack, sealed_):
        asked.append(recorder_name(recorder, pack, sealed_))
        if len(asked) == 1:
            asked.append(recorder_name(recorder, pack, Sealed("other", sealed_.host)))
        return asked[0]

    monkeypatch.setattr(Recorder, "name", named)
    assert len(sweep().failed) == 2 and asked[:2] == [True, False]
    assert all(len(found) == 1 for found in names(tmp_path).values())


def test_a_pack_whose_workers_died_after_its_name_waits_and_counts(tmp_path, sweep, monkeypatch):
    release = Recorder.release

    def died(recorder, pack, result):
        monkeypatch.setattr(Recorder, "release", release)
        recorder.died(pack, "its worker died 3 times", "")

    monkeypatch.setattr(Recorder, "release", died)
    reasons = sweep().failed.values()
    assert len(reasons) == 2 and all(why.startswith("it counts, and nothing of it was shown") for why in reasons)


def test_a_sealed_result_that_goes_while_it_is_named_waits(tmp_path, sweep, monkeypatch):
    sweep(dies=(Store, "name"))
    with monkeypatch.context() as patch:
        patch.setattr(settle, "unseal", lambda path: shutil.move(path, tmp_path / path.name) and unseal(path))
        result = sweep()
    assert len(result.failed) == 2 and result.finished == 1
    assert all(len(found) == 1 for found in names(tmp_path).values())
    (away,) = tmp_path.glob("*.sealed")
    shutil.move(away, folder_of(tmp_path) / away.name)
    assert sweep().finished == 2


def test_a_sealed_result_of_another_node_of_which_the_file_has_a_part_is_released_once(tmp_path, sweep, monkeypatch):
    sweep(dies=(Store, "name"))
    away = shutil.move(folder_of(tmp_path), tmp_path / "away")
    monkeypatch.setattr("pipeline.sweep.run.sealed_elsewhere", lambda *_: [(found(away), settle.call_here)])
    assert not sweep(GRID.replace("[0, 3]", "[1, 3]"), address="auto").remaining
    assert len(stored(tmp_path).done()) == 3 and all(len(found) == 1 for found in names(tmp_path).values())


def test_a_node_that_is_lost_before_it_is_asked_is_left_out_and_one_that_is_lost_later_is_one_line(monkeypatch):
    nodes = {name: SimpleNamespace(name=f"{name} (host)") for name in ("a", "b", "c")}
    answers, told = {"a": lambda: ["file"], "b": None, "c": lambda: 1 / 0}, []

    def get(task):
        try:
            return task()
        except ZeroDivisionError as error:
            raise RayTaskError("found", "traceback", error) from None

    monkeypatch.setattr(cluster, "others", lambda: nodes)
    monkeypatch.setattr(cluster, "task_on", lambda node_id, *_: answers[node_id])
    monkeypatch.setattr(cluster, "ended", lambda tasks, watch: tasks.items())
    monkeypatch.setattr(cluster.ray, "get", get)
    ((files, call),) = cluster.sealed_elsewhere("folder", SimpleNamespace(say=told.append))
    assert files == ["file"] == call(unseal, "path")
    assert told == ["node b (host) could not be asked for sealed results (it was lost); going on without it",
                    "node c (host) could not be asked for sealed results (ZeroDivisionError: division by zero); going "
                    "on without it"]
    answers["a"] = None
    with pytest.raises(ResourceError, match=r"^node a \(host\): was lost while its sealed results were released"):
        call(unseal, "path")
    answers["a"] = answers["c"]
    with pytest.raises(ZeroDivisionError):
        call(unseal, "path")


def test_a_sealed_result_whose_trials_are_no_longer_one_pack_is_said_and_stays(tmp_path, sweep, said):
    trials = load(tmp_path, GRID).trials[1:]
    file = seal(folder_of(tmp_path), Pack(trials), Result())
    text, arrays = read(file.path)
    other = json.loads(text)
    other["trials"][1]["settings"]["batch_size"] = 128
    write(file.path, json.dumps(other), arrays)
    assert sweep().finished == 3
    assert any("cannot be released: trials: a pack needs trials of one pack_key" in line for line in said)


def test_a_checkpoint_goes_on_with_fresh_noise_and_one_of_other_software_costs_nothing(tmp_path, sweep, monkeypatch):
    sweep(dies=(worker, "seal"))
    assert list(folder_of(tmp_path).glob("*.safetensors"))
    (folder_of(tmp_path) / "rehearsal.tmp").mkdir()
    (folder_of(tmp_path) / "rehearsal.tmp" / "of a worker that was killed").touch()
    monkeypatch.setitem(worker.Checkpoints.load.__globals__["SOFTWARE"], "torch", "another")
    assert sweep().finished == 3 and all(len(found) == 1 for found in names(tmp_path).values())


@pytest.mark.slow
@pytest.mark.parametrize("text", [GRID, BUDGET])
def test_a_report_has_a_lost_trial_in_its_price_and_in_no_mean(tmp_path, sweep, text):
    sweep(text, dies=(worker, "unseal"))
    shutil.move(folder_of(tmp_path), tmp_path / "elsewhere")
    lost = len(sweep(text, lost=True).lost)
    experiment, store = load(tmp_path, text), Store(root=tmp_path / "mlruns")
    report.write(experiment, store, tmp_path / "report")
    assert len(pd.read_csv(tmp_path / "report" / "runs.csv")) == 3 - lost
    (row,) = pd.read_csv(tmp_path / "report" / "selection.csv").to_dict("records")
    if text == GRID:
        assert row["selected_epsilon"] == selected_epsilon(experiment.trials).value
    else:
        statuses = list(pd.read_csv(tmp_path / "report" / "search.csv")["status"])
        assert sorted(statuses) == ["finished", "finished", "lost"] and row["selected_epsilon"] == 8


@pytest.mark.parametrize(("fails", "kills_of", "codes_of"), [
    pytest.param("[]", (("epoch", "sealed", "keep"), ("ended",), ()), [-9, -9, 0], marks=pytest.mark.slow),
    pytest.param("[0]", (("epoch", "name"), ()), [-9, 1], marks=pytest.mark.nightly)])
def test_neighbours_under_the_same_kills_leave_the_same_behind(tmp_path, fails, kills_of, codes_of):
    """Of a trial each: a record's features differ, and what a plugin's source has of it. Only scores may differ."""
    left = []
    for number, neighbour in enumerate((None, 5)):
        folder = tmp_path / str(number)
        (folder / "orders").mkdir(parents=True)
        save_file(promises.rows(other=neighbour), folder / "features.safetensors")
        (folder / "some_plugin.py").write_text(promises.PLUGIN.format(content=neighbour) + kills.INTERCEPTOR)
        (folder / "private.yaml").write_text(ONE_TRIAL)
        codes, lines = [], []
        for orders in kills_of:
            for order in orders:
                (folder / "orders" / order).write_text("kill")
            command = photonic("sweep", "private.yaml", "--workers", "1", cwd=folder, KILLS=str(folder),
                               DIVERGES="{}", FAILS=fails)
            out, err = command.communicate(timeout=300)
            codes.append(command.returncode)
            lines += [re.sub(r"-?\d+(\.\d+)?", "#", line.replace(str(folder), "")) for line in (out + err).splitlines()
                      if "Ray's own messages" not in line]  # comes when Ray speaks, sooner or later
        logs = [path.read_text() for path in (folder / "mlruns" / "failures").glob("*")]
        left.append((codes, lines, promises.texts(folder / "mlruns"), logs, (folder / "killed").read_text()))
    assert left[0] == left[1] and left[0][0] == codes_of


@pytest.mark.slow
def test_whatever_is_killed_and_tampered_with_one_draw_is_public_and_counted(tmp_path):
    kills.campaign(tmp_path, kills=4, seed=3)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(2))
def test_a_hundred_kills_release_one_draw_of_each_trial(tmp_path, part):
    kills.campaign(tmp_path, kills=50, seed=2 * int(time.time()) + part)
