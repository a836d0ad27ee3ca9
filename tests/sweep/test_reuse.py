"""`reuse` in a file: trials that another sweep has trained are taken over, charged in full, and released once."""

import shutil
from pathlib import Path

import pytest
from search_tools import parse, records, rounds, train
from stored import attached

from analysis import best, load_history, load_runs
from analysis.exhibits.selection import choose
from analysis.report import report
from pipeline import load_model
from pipeline.experiment.experiment import parse_experiment
from pipeline.learning.export import export
from pipeline.sweep import dry_run, status
from pipeline.sweep.estimate import Estimate
from pipeline.sweep.run import run_sweep
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError
from pipeline.trials.records import ACCURACY

FILE = """
name: first
base: {dataset: digits, hidden: [8], epochs: 2, batch_size: 256, algorithm: dfa, mechanism: per_example,
       sampler: poisson, noise_multiplier: 5, private_metrics: noisy, alignment_batches: 0}
grid: {seed: {range: [0, 2]}}
report: [frontier]
"""
SECRET = "noise_multiplier: 5,", "noise_multiplier: 5, noise: secure, arithmetic: integer,"
SEARCH = FILE.partition("grid")[0] + """search:
  algorithm: random
  trials: 3
  space: {learning_rate: {choice: [0.5, 1.0]}, seed: {choice: [0, 1, 2]}}
  seed: 3
  max_concurrent: 1
budget: {epsilon: 8, delta: 1.0e-5}
"""
AFTER_FIRST = ("name: first", "name: second\nreuse: [first]")


@pytest.fixture(autouse=True)
def estimated(monkeypatch):
    """A dry run trains nothing here, and estimates a second for each trial."""
    monkeypatch.setattr(dry_run, "estimate", lambda packs, *a, **k: Estimate(sum(len(pack.trials) for pack in packs)))


def second(*changes, seeds=3, reuse="reuse: [first]"):
    return parse(("name: first", f"name: second\n{reuse}"), ("[0, 2]", f"[0, {seeds}]"), *changes, text=FILE)


def swept(experiment, root, status="finished"):
    """Keys of the trials that a sweep trained."""
    trained = []

    def trainer(pack):
        trained.extend(trial.trial_key for trial in pack.trials)
        for epoch in zip(*(records(trial, trial.epochs, status) for trial in pack.trials), strict=True):
            yield list(epoch)

    run_sweep(experiment, root=root, quiet=True, trainer=trainer)
    return trained


def keys(experiment):
    return [trial.trial_key for trial in experiment.trials]


def pointers(store, name="second"):
    """MLflow's runs of a sweep that point to another, in the trash too."""
    store.attach(name)
    return [run for run in store._client.search([store.experiment_id], deleted=True) if "reused.run" in run.data.tags]


def spent(root, name):
    return status.read(Reader(root=root), name).budget["spent"]


@pytest.mark.slow
def test_what_another_sweep_has_trained_is_read_as_if_it_were_trained_here(tmp_path, in_process, said, only_svg):
    first, then = parse(text=FILE), second()
    run_sweep(first, root=tmp_path / "a", quiet=True)
    before = load_runs("first", tmp_path / "a")
    result = run_sweep(then, root=tmp_path / "a", quiet=True)
    assert (result.skipped, result.finished, result.remaining) == (2, 1, 0)
    assert "taken over, not trained again: 2 trials of first" in said
    root = Path(shutil.move(tmp_path / "a", tmp_path / "moved"))
    assert load_runs("first", root).equals(before), "the other sweep is as it was"
    runs = load_runs(then, root)
    shared = ["trial_key", "run_id", ACCURACY, "test/accuracy", "epsilon/certified/pld", "privacy.notes"]
    assert runs[shared][:2].equals(before[shared])
    assert load_history(runs, ACCURACY, root)[:4].equals(load_history(before, ACCURACY, root))
    row = best(runs, epsilon=100)
    assert row["compared"] == 3 and row["selected_epsilon"] > best(before, epsilon=100)["selected_epsilon"]
    for name in (runs.loc[0, "run_id"], keys(first)[0], pointers(Reader(root=root))[0].info.run_id):
        weights = load_model(name, root).state_dict()
        assert all(value.equal(load_model(before.loc[0], root).state_dict()[at]) for at, value in weights.items())
    assert not export(Reader(root=root), keys(first)[0], tmp_path / "exported").no_program
    found = report.write(then, Store(root=root), tmp_path / "report")
    assert not found.notice and not found.raised
    assert "taken over: 2 trials of first" in status.as_text([status.read(Reader(root=root), "second", then)])


def test_nothing_is_trained_and_ray_is_not_started_where_all_is_taken_over(tmp_path, monkeypatch, in_process, said):
    assert swept(parse(text=FILE), tmp_path) == keys(parse(text=FILE))
    monkeypatch.setattr("pipeline.sweep.run.running_ray", None)
    assert swept(second(seeds=2), tmp_path) == swept(second(seeds=2), tmp_path) == []
    store = Reader(root=tmp_path)
    assert len(pointers(store)) == 2 and status.read(store, "second").counts["done"] == 2
    assert store._client.get_run(store._parent()).info.status == "FINISHED"
    assert second(seeds=2).trials == second(seeds=2, reuse="").trials == parse(text=FILE).trials
    third = parse(("name: first", "name: third\nreuse: [second]"), text=FILE)
    assert swept(third, tmp_path) == [] and said[-2].endswith("2 trials of first"), "which trained them"


def test_runs_say_their_setting_in_the_words_of_their_own_sweep(tmp_path, in_process):
    first = parse(text=FILE)
    rate = first.trials[0].learning_rate
    then = second(("grid: {", f"grid: {{learning_rate: [{rate}, 9], "), seeds=2)
    assert len(swept(first, tmp_path)) == len(swept(then, tmp_path)) == 2
    store = Reader(root=tmp_path)
    for name, settings in (("first", ["dfa z5"]), ("second", [f"dfa z5 lr{rate}", "dfa z5 lr9.0"])):
        store.attach(name)
        runs = store._client.search([store.experiment_id])  # as MLflow's page reads them
        assert sorted(filter(None, (run.data.tags.get("setting") for run in runs))) == sorted(settings * 2)


def test_a_dry_run_estimates_what_is_left_to_train(tmp_path, in_process):
    swept(parse(text=FILE), tmp_path)
    found = dry_run.preview(second(), 1, tmp_path)
    assert found.seconds == 1 and len(found.experiment.trials) == 3
    assert "taken over, not trained again: 2 trials of first" in dry_run.as_lines(found)
    assert '"taken_over": "2 trials of first"' in dry_run.as_json(found)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["random", "optuna"])
def test_a_search_is_charged_in_full_and_asks_for_what_it_would_have_asked_for(algorithm, tmp_path, in_process):
    text = SEARCH.replace("algorithm: random", f"algorithm: {algorithm}")
    trained = swept(parse(("name: first", "name: alone"), text=text), tmp_path / "alone")
    assert swept(parse(text=text), tmp_path) == trained and len(trained) > 1
    again = parse(AFTER_FIRST, text=text)
    assert swept(again, tmp_path) == []
    assert spent(tmp_path, "second") == spent(tmp_path, "first") == spent(tmp_path / "alone", "alone") > 0
    for run in pointers(Store(root=tmp_path)):
        Store(root=tmp_path)._client.delete_run(run.info.run_id)
    assert spent(tmp_path, "second") == spent(tmp_path, "first"), "what is deleted stays paid for"
    assert swept(again, tmp_path) == [], "the same noise is no new release"
    assert spent(tmp_path, "second") == spent(tmp_path, "first")


def test_selected_counts_what_is_taken_over_and_sums_over_sweeps_count_it_once(tmp_path, in_process):
    swept(parse(text=FILE), tmp_path)
    swept(second(), tmp_path)
    own_file = parse(("name: first", "name: own"), ("[0, 2]", "[0, 3]"), text=FILE)
    swept(own_file, tmp_path / "own")
    taken, own = (choose(file, load_runs(file, root)) for file, root in ((second(), tmp_path),
                                                                         (own_file, tmp_path / "own")))
    assert taken.trials == own.trials == 3 and taken.selected.value == own.selected.value
    sums, alone = (Reader(root=root).certified("digits", "add/remove") for root in (tmp_path, tmp_path / "own"))
    assert sum(cost for cost, _ in sums.values()) == pytest.approx(alone["own"][0]) and len(sums) == 2
    assert sums["first"][0] == pytest.approx(2 * sums["second"][0])


def test_a_sum_over_sweeps_charges_what_a_budget_covers_to_the_budget(tmp_path, in_process, monkeypatch):
    searched = parse(AFTER_FIRST, text=SEARCH)
    trial = rounds(parse(text=SEARCH), Store(root=tmp_path / "asked")).next(())[0]
    rate = f"dfa,\n       learning_rate: {trial.learning_rate}"
    grid = parse(("algorithm: dfa", f"algorithm: {rate}"), ("[0, 2]", "[0, 3]"), text=FILE)
    swept(grid, tmp_path)
    alone = Reader(root=tmp_path).certified("digits", "add/remove")["first"][0]
    start = Store.start

    def dies(*arguments):
        start(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "start", dies)
        run_sweep(searched, root=tmp_path, quiet=True)
    assert spent(tmp_path, "second") == 0
    assert Reader(root=tmp_path).certified("digits", "add/remove")["first"][0] == alone, "what no budget was charged"
    swept(searched, tmp_path)
    n_taken = len(pointers(Reader(root=tmp_path))) - 1  # the half-taken one lies in the trash
    sums = Reader(root=tmp_path).certified("digits", "add/remove")
    assert n_taken >= 1 and sums["second"] == (8.0, 1e-5)
    assert sums.get("first", (0.0,))[0] == pytest.approx(alone * (3 - n_taken) / 3)


def test_a_budget_admits_what_is_taken_over_by_the_noise_that_its_run_records(tmp_path, in_process):
    """Another version may have calibrated less noise."""
    text = SEARCH.replace("noise_multiplier: 5", "target_epsilon: 2")
    swept(parse(text=text), tmp_path)
    store = attached("first", tmp_path)
    for run in store.runs():
        store._client.set_tag(run.run_id, "calibrated.noise_multiplier", "1.0")
    then = parse(AFTER_FIRST, text=text)
    assert swept(then, tmp_path) == [] and 0 < len(pointers(store)) < 3
    assert 2 < spent(tmp_path, "second") <= 8
    assert swept(then, tmp_path) == []


def test_what_the_sweep_has_begun_or_released_with_other_noise_than_the_source_is_not_taken_over(tmp_path, in_process):
    swept(parse(text=FILE), tmp_path)
    store = Store(root=tmp_path)
    store.open_sweep("second")
    trial = parse(text=FILE).trials[0]
    train(store, [trial], epochs=1, status="")
    store.fail(trial.trial_key, "no")
    assert dry_run.preview(second(), 1, tmp_path).taken_over == "1 trial of first", "the other it trains itself"
    (run,) = store.runs()
    store._client.delete_run(run.run_id)
    assert dry_run.preview(second(), 1, tmp_path).taken_over == "2 trials of first", "the same noise from the same seed"
    store._client.restore_run(run.run_id)
    store._client.set_tag(run.run_id, "calibrated.noise_multiplier", "4.0")
    store._client.delete_run(run.run_id)
    assert dry_run.preview(second(), 1, tmp_path).taken_over == "1 trial of first"


def test_only_trials_that_ended_by_themselves_are_taken_over(tmp_path, in_process):
    swept(parse(text=FILE), tmp_path, "diverged")
    store = attached("first", tmp_path)
    run = store.runs()[0]
    for end in ("failed", "running"):
        store._client.set_tag(run.run_id, "status", end)
        then = parse(("name: first", f"name: {end}\nreuse: [first]"), text=FILE)
        assert swept(then, tmp_path) == [run.trial_key]


@pytest.mark.parametrize(("changes", "message"), [
    ([("reuse: [first]", "reuse: first")], "reuse: must be a list of names of other sweeps, got 'first'"),
    ([("reuse: [first]", "reuse: [1]")], r"reuse: must be a list of names of other sweeps, got \[1\]"),
    ([("reuse: [first]", "reuse: [second]")], "reuse: must name other sweeps, as .* got 'second'.*leave it out"),
    ([("report: [frontier]", "selection: {rule: random_stopping, mean: 2}"),
      ("seed: {range: [0, 3]}", "learning_rate: [1]")],
     r"reuse: must not stand beside random stopping, whose price needs a fresh draw .* \['first'\]; leave one of")])
def test_what_cannot_be_taken_over_is_refused_in_the_file(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(*changes, text=FILE.replace(*AFTER_FIRST).replace("[0, 2]", "[0, 3]"))


def test_sweeps_that_are_not_there_or_may_not_be_published_are_refused(tmp_path, in_process):
    with pytest.raises(TrackingError, match="run the sweep first"):
        dry_run.preview(second(), 1, tmp_path / "nothing")
    text = FILE.replace("grid: {seed: {range: [0, 2]}}", "").replace("report: [frontier]", "")
    drawn = parse_experiment(text + "selection: {rule: random_stopping, mean: 2, seed: 1}", Path("drawn.yaml"))
    swept(drawn, tmp_path)
    unknown = "reuse: must name other sweeps of this store, first, got '{}'; leave it out, or train that"
    chosen = "reuse: must name sweeps with a file in the store, which never had .* got '{}'; leave it out"
    for refused in (swept, lambda experiment, root: dry_run.preview(experiment, 1, root)):
        for name, message in (("gone", unknown), ("first", chosen)):
            with pytest.raises(ConfigError, match=message.format(name)):
                refused(second(reuse=f"reuse: [{name}]"), tmp_path)
        with pytest.raises(ConfigError, match="reuse: is for trials with recorded noise, got first with .* 'secure'"):
            refused(second(SECRET), tmp_path)
    assert Reader(root=tmp_path).sweeps() == ["first"], "nothing was written"
    swept(parse(text=FILE), tmp_path)
    with pytest.raises(ConfigError, match=chosen.format("first")):
        swept(second(reuse="reuse: [first]"), tmp_path)


def test_where_the_source_is_deleted_the_reader_says_so_and_the_sweep_trains_the_trial(tmp_path, in_process):
    swept(parse(text=FILE), tmp_path)
    then = second(seeds=2)
    swept(then, tmp_path)
    store = attached("first", tmp_path)
    gone, kept = store.runs()
    store._client.delete_run(gone.run_id)
    store.attach("second")
    by_key = {run.trial_key: run for run in store.runs()}
    broken = by_key[gone.trial_key]
    assert broken.status == "failed" and not broken.metrics and by_key[kept.trial_key].run_id == kept.run_id
    says = f"taken over from run {gone.run_id} of 'first', which was deleted; restore that run"
    assert says in status.as_text([status.read(store, "second", then)])
    with pytest.raises(TrackingError, match=says):
        load_model(gone.trial_key, tmp_path)
    writer = Store(root=tmp_path)
    writer.open_sweep("second")
    assert sorted(run.status for run in writer.close_sweep("KILLED")) == ["failed", "finished"]
    store._client.restore_run(gone.run_id)
    assert swept(then, tmp_path) == []
    store._client.delete_run(gone.run_id)
    assert swept(then, tmp_path) == [gone.trial_key]
    store.attach("second")
    assert {run.status for run in store.runs()} == {"finished"} and len(pointers(store)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("write", ["create_run", "write", "set_terminated"])
def test_a_driver_that_dies_while_it_takes_over_leaves_no_trial_half_taken(write, tmp_path, in_process, monkeypatch):
    swept(parse(text=SEARCH), tmp_path)
    then = parse(AFTER_FIRST, text=SEARCH)
    take_over = Store.take_over

    def dies(self, config, other, also):
        with monkeypatch.context() as patch:
            method = getattr(self._client, write)

            def last(*arguments, **named):
                method(*arguments, **named)
                raise KeyboardInterrupt

            patch.setattr(self._client, write, last, raising=False)
            take_over(self, config, other, also)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "take_over", dies)
        run_sweep(then, root=tmp_path, quiet=True)
    store = Reader(root=tmp_path)
    (run,) = pointers(store)
    done = run.info.status == "FINISHED"
    assert done == (write == "set_terminated")
    if done:
        assert spent(tmp_path, "second") > 0, "it was charged before"
    assert swept(then, tmp_path) == [] and spent(tmp_path, "second") == spent(tmp_path, "first")
    n_trials = len({run.trial_key for run in store.runs()})
    assert n_trials == len(store.runs()) == len(pointers(store)) - (not done), "what was half taken is in the trash"
