"""Who edits a file after its sweep, under the same name, still pays for every trial that was looked at."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow.tracking import MlflowClient
from stored import parent, records, stored

from analysis import best, load_runs
from analysis.exhibits.frontier.points import frontiers
from analysis.exhibits.headline import NO_CHOICE
from analysis.exhibits.selection import choose
from analysis.report.report import write
from pipeline.accounting import account
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.accounting.statement import privacy_tags
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.past import Past
from pipeline.experiment.plan import RandomStopping
from pipeline.experiment.prices import price_lines
from pipeline.experiment.sections import Shown
from pipeline.experiment.stopping import Selection
from pipeline.sweep.dry_run import as_lines, preview
from pipeline.sweep.rounds import Rounds
from pipeline.sweep.run import run_sweep
from pipeline.sweep.status import as_text, read
from pipeline.sweep.target import with_past
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import to_ascii
from pipeline.trials.packs import Resources
from pipeline.trials.records import CLOCK, Release, Sealed

pytestmark = pytest.mark.usefixtures("only_svg")
BASE = TrialConfig(dataset="digits", mechanism="per_example", sampler="shuffled", noise_multiplier=20.0, epochs=1,
                   batch_size=64, hidden=(8,))
WIDE = tuple(replace(BASE, learning_rate=rate, seed=seed) for rate in (0.5, 1.0) for seed in (0, 1))
NARROW = WIDE[2:]
SAID = ("4 trials were trained under this name, 2 are in the file (learning_rate 0.5 there, 1 here); selected "
        "epsilon counts them all, and another name starts another count, which does not cover them")
FRONTIER = Shown(("frontier",), best_of=("learning_rate", "clipping_norm"))


def of(trials, **other):
    return Experiment("edited", "", trials, Resources(), Shown(()), Path("edited.yaml"), **other)


def trained(folder, trials=WIDE):
    """A store in which these trials have ended."""
    def epochs(trial):
        accuracy = {"validation/accuracy": 0.5 + trial.learning_rate / 10, "test/accuracy": 0.5, CLOCK: 1.0}
        certified = {epsilon.metric_name: epsilon.value for epsilon in account(trial, 1)}
        return records(trial, [{**accuracy, **certified}], privacy_tags(trial))

    return stored(folder, "edited", trials, epochs)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("past"))


def price_in(lines):
    return next(line for line in lines if line.startswith("  epsilon = "))


def test_what_was_looked_at_stays_paid_for_in_report_account_notebook_and_mlflow(store, tmp_path):
    whole = selected_epsilon(WIDE).value
    assert selected_epsilon(NARROW).value < 0.8 * whole
    for trials in (WIDE, NARROW, NARROW[:1]):
        report = write(of(trials), store, tmp_path / "out")
        assert parent(store).metrics["epsilon/selected/composition"] == pytest.approx(whole)
        assert pd.read_csv(tmp_path / "out" / "selection.csv")["selected_epsilon"][0] == pytest.approx(whole)
        assert best(load_runs(of(trials), store), epsilon=10)["selected_epsilon"] == pytest.approx(whole)
        lines = list(price_lines(with_past(of(trials), store.root)))
        assert price_in(lines) == price_in(price_lines(of(WIDE))) and lines[0] == "the best of 4 certified trials"
        told = [line for line in (*report.headline.brief, *lines) if "trained under this name" in line]
        assert len(told) == (0 if trials == WIDE else 2)
    assert "learning_rate 0.5, 1 there, 1 here; seed 0, 1 there, 0 here" in told[0]
    text = (tmp_path / "out" / "selection.md").read_text(encoding="utf-8")
    assert "Selected ε composes all 4 trials, seeds included, 3 of them not in the file any more" in text
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "4 trials were trained under this name, 1 is in the file" in page


def test_status_dry_run_and_sweep_tell_it_with_what_differs(store, tmp_path, in_process, said):
    narrow, wide = (as_text([read(store, "edited", of(trials))]) for trials in (NARROW, WIDE))
    assert SAID in narrow and "trained under this name" not in wide
    slower = tuple(replace(trial, learning_rate=0.1) for trial in WIDE[:2])
    assert "2 waiting" in (text := as_text([read(store, "edited", of(slower))]))
    assert "4 trials were trained under this name, 0 are in the file (learning_rate 0.5, 1 there, 0.1 here)" in text
    assert SAID in list(as_lines(preview(of(NARROW), 1, store.root)))
    run_sweep(of(NARROW), root=store.root)
    assert SAID in said


def test_trials_that_are_added_raise_the_price_that_a_report_has_logged(tmp_path, in_process):
    store = trained(tmp_path, NARROW)
    run_sweep(of(NARROW), root=tmp_path)
    assert "epsilon/selected/composition" not in parent(store).metrics, "as nobody has asked for it"
    write(of(NARROW), store, tmp_path / "out")
    run_sweep(of(WIDE), root=tmp_path)
    whole = selected_epsilon(WIDE)
    assert parent(store).metrics["epsilon/selected/composition"] == pytest.approx(whole.value)
    by_sweep = parent(store).tags["privacy.notes"]
    assert by_sweep.startswith(f"{whole.note}. The noise comes from a recorded seed")
    write(of(WIDE), store, tmp_path / "out")
    assert parent(store).tags["privacy.notes"] == by_sweep, "as a report writes it"
    other = replace(BASE, sampler="poisson", noise_multiplier=2.0)
    run_sweep(of((*WIDE, other)), root=tmp_path)
    assert "no epsilon covers the choice" in parent(store).tags["privacy.notes"]


def test_deleted_runs_count_too(tmp_path):
    store = trained(tmp_path / "runs")
    run = next(run for run in store.runs() if run.trial_key == WIDE[0].trial_key)
    MlflowClient(tracking_uri=store.uri).delete_run(run.run_id)
    lines = list(price_lines(with_past(of(NARROW), store.root)))
    assert price_in(lines) == price_in(price_lines(of(WIDE))) and SAID in lines
    store._client.set_tag(store.runs()[0].run_id, "status", "interrupted")
    found = best(load_runs("edited", store), epsilon=10)
    assert found["compared"] == 2, "one run was deleted, and one has not ended"
    assert found["selected_epsilon"] == pytest.approx(selected_epsilon(WIDE).value)


def test_a_point_whose_rivals_left_the_file_was_chosen(store, tmp_path):
    report = write(replace(of(NARROW), report=FRONTIER), store, tmp_path)
    assert NO_CHOICE not in "".join(report.headline.brief)
    (costs,) = set(pd.read_csv(tmp_path / "frontier.csv")["selected_epsilon"])
    assert costs == pytest.approx(selected_epsilon(WIDE).value, abs=1e-4)
    runs = load_runs(of(NARROW), store)
    (points,) = frontiers(runs, of(WIDE[2:]))
    assert "selected_epsilon" not in points and NO_CHOICE in "".join(
        write(replace(of(WIDE[2:]), report=FRONTIER), trained(tmp_path / "runs", NARROW), tmp_path).headline.brief)


def test_random_stopping_tells_no_number_and_has_no_price_after_an_edit(tmp_path):
    drawn = of(RandomStopping(NARROW, (BASE,), Selection("random_stopping", 9, 1, 5)))
    unedited = write(drawn, trained(tmp_path / "a", NARROW), tmp_path / "out")
    assert "ε (random stopping) " in unedited.headline.verdict
    (experiment,) = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'a' / 'mlflow.db'}").search_experiments(
        filter_string="name = 'edited'")
    assert to_ascii(unedited.headline.verdict) in experiment.tags["mlflow.note.content"]
    store = trained(tmp_path / "b")
    edited = write(drawn, store, tmp_path / "out")
    assert edited.headline.verdict.endswith("no ε covers the choice.")
    (reason,) = pd.read_csv(tmp_path / "out" / "selection.csv")["reason"]
    assert "the file has changed since" in reason and not any(digit in reason for digit in "0123456789")
    shown = "".join(path.read_text(encoding="utf-8") for path in edited.files if path.suffix in (".md", ".html"))
    assert "trained under this name" not in shown + as_text([read(store, "edited", drawn)])


@pytest.mark.parametrize(("rule", "says", "files"), [
    ("chosen_by_scores", "selection: random stopping", (NARROW,)),
    ("asked_by_scores", "private_metrics: must be 'noisy'", (WIDE, NARROW, NARROW[:1]))])
def test_after_random_stopping_or_a_search_by_scores_a_grid_of_its_name_has_no_price(rule, says, files, tmp_path):
    store = trained(tmp_path)
    store.open_sweep("edited", contents={rule: "true"})
    for trials in files:
        experiment = with_past(of(trials), store.root)
        lines = "\n".join(price_lines(experiment))
        assert f"no epsilon covers the choice: {says}" in lines and "epsilon = " not in lines
        assert experiment.past == Past(no_price=experiment.past.no_price) or rule == "asked_by_scores"
        report = write(replace(of(trials), report=FRONTIER), store, tmp_path / "out")
        assert "with the choice" not in "".join(report.headline.brief) and np.isnan(
            pd.read_csv(tmp_path / "out" / "selection.csv")["selected_epsilon"][0])


def test_who_edits_the_rule_of_random_stopping_has_no_price_even_if_it_draws_the_same_trials(tmp_path):
    plan, store = RandomStopping(NARROW, (BASE,), Selection("random_stopping", 9, 1, 5)), trained(tmp_path, NARROW)
    other = replace(plan, selection=Selection("random_stopping", 2, 1, 5))
    for swept, priced in ((plan, True), (plan, True), (other, False), (plan, False)):
        store.open_sweep("edited", contents=Rounds(swept, store).tags)
        for edited in (plan, other):
            past = with_past(of(edited), store.root).past
            assert bool(past.no_price) != (priced and edited is plan)
            assert not any(digit in past.no_price for digit in "0123456789")


def test_a_trial_that_cannot_be_read_is_counted_and_leaves_no_price(tmp_path):
    store = trained(tmp_path)
    run = store.runs()[0]
    store._client.set_tag(run.run_id, "trial_key", "0" * 16)
    past = with_past(of(NARROW), store.root).past
    assert (past.in_file, past.others, past.trials) == (2, 2, ()) and "its params must be those of" in past.no_price
    (one,) = [line for line in price_lines(with_past(of(NARROW[:1]), store.root)) if "no epsilon covers" in line]
    assert "the choice" in one, "of one trial beside it, too"
    report = write(of(NARROW), store, tmp_path / "out")
    assert "no price" not in "".join(report.headline.brief) and np.isnan(
        pd.read_csv(tmp_path / "out" / "selection.csv")["selected_epsilon"][0])


def test_secret_noise_counts_every_name_also_of_a_trial_that_is_lost(tmp_path):
    """Of the file one trial has two names, and one has a name and no result."""
    twice, once = (replace(trial, noise="secure", arithmetic="integer") for trial in NARROW)
    store = trained(tmp_path, ())
    for trial, names in ((twice, "ab"), (once, "c")):
        store.start(trial)
        for name in names:
            store.name(trial.trial_key, Sealed(name, "here"), {}, privacy_tags(trial))
    certified = {epsilon.metric_name: epsilon.value for epsilon in account(twice, 1)}
    store.log(records(twice, [{"validation/accuracy": 0.5, "test/accuracy": 0.5, CLOCK: 1.0, **certified}]))
    store.fail(once.trial_key, "given up", "lost")
    experiment, runs = with_past(of((twice, once)), store.root), load_runs("edited", tmp_path)
    assert experiment.past.trials == (twice,) and experiment.past.lost == (once,)
    price = selected_epsilon([twice, twice, once]).value
    assert best(runs, epsilon=100)["selected_epsilon"] == price
    assert choose(experiment, runs[runs["status"] == "finished"]).selected.value == price
    assert list(load_runs(experiment, tmp_path)["trial_key"]) == [twice.trial_key], "a lost trial has no row"
    (line,) = experiment.past.lines(experiment.trials)
    assert line.startswith("1 trial of the file was released and lost, without a result")


def test_many_values_and_settings_are_told_in_short():
    there = [replace(BASE, learning_rate=rate, momentum=rate, epochs=int(100 * rate), batch_size=rate_size, seed=9)
             for rate, rate_size in ((0.1, 8), (0.2, 16), (0.3, 32), (0.4, 64), (0.5, 128))]
    past = Past(tuple(Release(trial, 1) for trial in there), 0, 5)
    (line,) = past.lines([BASE])
    assert "(batch_size 5 values there, 64 here; epochs 5 values there, 1 here; learning_rate 5 values there, 0.01 " \
        "here; and momentum, seed)" in line


def test_a_new_store_is_said_once_training_begins(tmp_path, in_process, said):
    tiny = of((replace(BASE, mechanism="none", noise_multiplier=0.0),))
    run_sweep(tiny, root=tmp_path / "here")
    run_sweep(tiny, root=tmp_path / "here")
    assert [line for line in said if line.startswith("new tracking store: ")] == [
        f"new tracking store: {tmp_path / 'here' / 'mlflow.db'}; what was trained under this name in another store is "
        "neither taken over nor counted"]
