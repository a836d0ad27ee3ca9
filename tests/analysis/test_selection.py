"""The best trial of a sweep is reported at the price of the choice, never at its own."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from approved import approved
from stored import parent, records, stored

from analysis.exhibits import selection
from analysis.report.report import write
from analysis.runs import ReportError, frame_of
from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.plan import RandomStopping
from pipeline.experiment.prices import choice_statement
from pipeline.experiment.sections import Shown
from pipeline.experiment.stopping import Selection
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Resources

pytestmark = pytest.mark.usefixtures("only_svg")
# z = 20 on the sum, sensitivity 2 C, two epochs: mu = 2 sqrt(2)/20.
BASE = TrialConfig(dataset="digits", mechanism="per_example", sampler="shuffled", noise_multiplier=20.0, epochs=2,
                   batch_size=64)
MU = 2 * math.sqrt(2) / 20
GRID = tuple(replace(BASE, learning_rate=rate, seed=seed) for rate in (0.1, 0.2) for seed in (0, 1))
PLAIN = replace(BASE, mechanism="none")
POISSON = replace(BASE, sampler="poisson", noise_multiplier=2.0)
STOPPING = Selection("random_stopping", 9, 1, 5)
# Epoch by epoch: the best of the last epoch is GRID[2], which is neither best before nor best on test records.
VALIDATION = {GRID[0]: (0.9, 0.5), GRID[1]: (0.1, 0.6), GRID[2]: (0.1, 0.7), GRID[3]: (0.8, 0.65), PLAIN: (0.9, 0.99),
              POISSON: (0.2, 0.3)}
TEST = {GRID[0]: 0.95, GRID[1]: 0.4, GRID[2]: 0.55, GRID[3]: 0.8, PLAIN: 0.98, POISSON: 0.3}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("store"), "best", [*VALIDATION], lambda trial: records(trial, [
        {"validation/accuracy": VALIDATION[trial][0]},
        {"validation/accuracy": VALIDATION[trial][1], "test/accuracy": TEST[trial]}]))


def experiment(plan):
    return Experiment("best", "", plan, Resources(), Shown(()), Path("some.yaml"))


def test_a_fixed_grid_is_composed_seeds_included_and_trials_without_a_guarantee_are_no_candidates(store, tmp_path):
    files = write(experiment((*GRID, PLAIN)), store, tmp_path).files
    assert [path.name for path in files] == ["runs.csv", "selection.csv", "selection.md", "selection.tex",
                                             "manifest.json", "index.html"]
    row = pd.read_csv(files[1]).iloc[0]
    assert row["trial_key"] == GRID[2].trial_key
    assert (row["validation/accuracy"], row["test/accuracy"]) == (0.7, 0.55)
    assert row["selected_epsilon"] == pytest.approx(gdp_eps(2 * MU, 1e-5)) and row["certified_trials"] == 4
    assert row["epsilon_had_it_been_the_only_one"] == pytest.approx(gdp_eps(MU, 1e-5))
    logged = parent(store)
    approved("selection_of_a_grid", files[2].read_text(encoding="utf-8") + logged.tags["privacy.notes"])
    assert logged.metrics["epsilon/selected/composition"] == pytest.approx(gdp_eps(2 * MU, 1e-5))
    assert {name: logged.tags[name] for name in ("privacy.relation", "privacy.sampler", "privacy.delta")} == {
        "privacy.relation": "replace-one", "privacy.sampler": "shuffled", "privacy.delta": "1e-05"}
    page = files[-1].read_text(encoding="utf-8")
    assert page.count("trials of one seed share noise") == page.count("Neighbours differ in one record, replaced.") == 1
    assert page.count("<small>simulated</small>") == 1  # of `selected`: these trials log no epsilon of their own


def test_random_stopping_costs_what_its_candidates_do_and_its_report_does_not_tell_how_many_were_drawn(store, tmp_path):
    louder = replace(BASE, noise_multiplier=10.0, learning_rate=0.4)  # a candidate that was never drawn
    found = {}
    for trials in (GRID[:3], GRID):
        for candidates in ((BASE,), (BASE, louder)):
            drawn = replace(experiment(RandomStopping(trials, candidates, STOPPING)), text="selection: {seed: 12345}")
            report = write(drawn, store, tmp_path)
            (said,), files = report.headline.brief, report.files
            assert said.startswith("The best trial by validation is dfa z=20 ") and "ε (random stopping) " in said
            texts = [path.read_text(encoding="utf-8") for path in files[1:]]
            found[len(trials), len(candidates)] = texts
            row = pd.read_csv(files[1]).iloc[0]
            assert row["trial_key"] == GRID[2].trial_key and math.isnan(row["certified_trials"])
            assert row["selected_epsilon"] == pytest.approx(selected_epsilon(candidates, STOPPING.distribution).value)
            assert row["selected_epsilon"] > row["epsilon_had_it_been_the_only_one"]
    assert found[3, 1] == found[4, 1] and found[3, 2] == found[4, 2] != found[3, 1]
    assert not any("12345" in text for text in found[4, 2])
    assert "Random stopping: only the best trial" in found[4, 2][-1]
    assert "A reviewer gets index.html alone" in found[4, 2][-1] and "A reviewer needs" not in found[4, 2][-1]
    assert not any("share noise" in text for text in found[4, 2]), "every drawn trial has a seed of its own"
    approved("selection_of_random_stopping", found[4, 2][1])
    price = selected_epsilon((BASE, louder), STOPPING.distribution).value
    assert parent(store).metrics["epsilon/selected/random_stopping"] == price


def test_a_grid_that_nothing_covers_says_so_and_logs_no_number(store, tmp_path):
    before = dict(parent(store).metrics)
    files = write(experiment((*GRID, POISSON)), store, tmp_path).files
    row = pd.read_csv(files[1]).iloc[0]
    reason = "relation: must be one for all trials, got add/remove and replace-one"
    assert row["reason"] == reason and math.isnan(row["selected_epsilon"])
    approved("selection_that_nothing_covers", files[2].read_text(encoding="utf-8"))
    assert parent(store).metrics == before and reason in parent(store).tags["privacy.notes"]


def test_an_infinite_price_is_no_metric(store, tmp_path, monkeypatch):
    endless = replace(selected_epsilon(GRID), value=math.inf)
    monkeypatch.setattr(selection, "epsilon_of_choice", lambda *arguments: endless)
    before = dict(parent(store).metrics)
    text = write(experiment(GRID), store, tmp_path).files[2].read_text(encoding="utf-8")
    assert "| inf |" in text and parent(store).metrics == before
    assert parent(store).tags["privacy.notes"] == "infinite: no guarantee"
    with pytest.raises(ValueError, match="epsilon/selected/composition: must be finite, got inf"):
        store.log_sweep({"epsilon/selected/composition": math.inf}, {"privacy.notes": "written"})
    assert parent(store).tags["privacy.notes"] != "written"


def test_the_chosen_of_equals_is_said_to_be_one_of_them(store):
    runs = frame_of(store.runs(), GRID)
    level = runs.assign(**{"validation/accuracy": [0.7, 0.70004, 0.6, 0.5]})
    chosen = selection.choose(experiment(GRID), level)
    assert chosen.trial_key == GRID[1].trial_key and chosen.equals == 1
    assert "No difference in validation accuracy to 1 other trial: any of" in selection.texts(chosen).markdown
    assert selection.choose(experiment(RandomStopping(GRID, GRID, STOPPING)), level).equals == 0


def test_no_certified_trial_no_selection(store, tmp_path):
    files = write(experiment((PLAIN,)), store, tmp_path).files
    assert [path.name for path in files] == ["runs.csv", "manifest.json", "index.html"]


def test_trial_that_holds_no_record_out_is_priced_but_not_compared(store):
    store.attach("best")
    last = replace(GRID[3], validation_fraction=0.0)
    runs = frame_of(store.runs(), GRID)
    runs.loc[3, ["trial_key", "validation/accuracy"]] = last.trial_key, math.nan
    choice = selection.choose(experiment((*GRID[:3], last)), runs)
    assert (choice.trial_key, choice.trials, choice.unscored) == (GRID[2].trial_key, 4, 1)
    assert choice.selected.value == pytest.approx(selected_epsilon((*GRID[:3], last)).value)
    approved("selection_of_trials_that_hold_no_record_out", selection.texts(choice).markdown)
    with pytest.raises(ReportError, match="validation/accuracy: missing for 1 of 1 trials"):
        selection.choose(experiment([last]), runs)


@pytest.mark.parametrize(("sources", "standing"), [
    (["research"] * 4, "simulated"), (["secure"] * 4, "certified"),
    (["secure", "research", "secure", "secure"], "partly simulated")])
def test_a_choice_is_simulated_by_the_noise_of_all_that_was_looked_at(store, sources, standing):
    store.attach("best")
    exact = {"secure": "integer", "research": "float32"}
    trials = [replace(trial, noise=noise, arithmetic=exact[noise]) for trial, noise in zip(GRID, sources, strict=True)]
    runs = frame_of(store.runs(), GRID).assign(trial_key=[trial.trial_key for trial in trials])
    choice = selection.choose(experiment(trials), runs)
    assert choice.trial_key == trials[2].trial_key and choice.standing == standing
    assert choice.findings[1]["privacy.notes"].endswith(choice_statement(trials, Selection()))
    assert f"({standing}; " in selection.caption(choice) or standing == "certified"


@pytest.mark.parametrize(("other", "message"), [
    ({"dataset": "mnist"}, "dataset: must be one for all trials, got digits and mnist"),
    ({"delta": 1e-6}, "delta: must be one for all trials, got 1e-05 and 1e-06")])
def test_what_cannot_be_composed(other, message):
    with pytest.raises(UnsupportedAccounting, match=message):
        selected_epsilon((BASE, replace(BASE, **other)))
    with pytest.raises(ValueError, match="trials: must be at least one with a certified epsilon, got none"):
        selected_epsilon((PLAIN, replace(BASE, noise_multiplier=0.0)))
