"""What people see of a search and its budget: before it runs, while it runs, and in its report."""

import dataclasses
import json
from dataclasses import replace

import pandas as pd
import pytest
from approved import approved
from commands import output
from search_tools import rounds, score, train
from test_budget import BUDGET, budgeted

from analysis import best
from analysis.catalogue import listed
from analysis.exhibits.frontier import by_epsilon as frontier
from analysis.report.report import write
from analysis.runs import MissingTrials, frame_of, load_runs
from pipeline.experiment.experiment import load_experiment
from pipeline.experiment.prices import budget_lines, price_lines
from pipeline.experiment.search import Domain
from pipeline.sweep import dry_run, status
from pipeline.sweep.target import with_past
from pipeline.tracking.store import Store

pytestmark = pytest.mark.usefixtures("only_svg")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """(experiment, store, rounds) of a search that its budget ended, and that is done."""
    store = Store(root=tmp_path_factory.mktemp("swept"))
    experiment = budgeted(("trials: 12", "trials: 24"))
    search = rounds(experiment, store)
    store._client.log_param(store._parent(), "trials", 24)
    while missing := search.next(store.runs()):
        train(store, missing[:1], epochs=1, status="diverged")
        train(store, missing[1:])
        store.log_suggestions(search.suggestions)
    store.log_suggestions(search.suggestions)
    return experiment, store, search


def test_status_says_how_far_search_and_budget_are(swept):
    experiment, store, search = swept
    for known in (experiment, None):
        state = status.read(store, "search", known)
        spent = search.filter.epsilon(search.filter.spent(store.released()))
        assert state.budget == {"epsilon": 4.0, "delta": 1e-5, "spent": spent, "standing": "simulated"}
        assert state.counts["done"] == len(search.trials) and state.counts["missing"] == 0 and not state.go_on
        text = status.as_text([state])
        assert f"  search: 24 of 24 suggestions asked for, {24 - len(search.trials)} passed over" in text
        assert f"  budget: epsilon {spent:.4g} of 4 spent at delta 1e-05, simulated" in text
        assert json.loads(status.as_json([state]))[0]["budget"]["spent"] == spent


def test_a_budget_that_was_edited_is_told_before_the_sweep_refuses_it(swept):
    experiment, store, _ = swept
    edited = replace(experiment, plan=replace(experiment.plan, budget=replace(experiment.plan.budget, epsilon=5.0)))
    state = status.read(store, "search", edited)
    assert state.past[0].startswith("budget: must be the one that the sweep began with, ") and not state.go_on


def test_the_best_of_a_search_costs_its_budget(swept):
    _, store, _ = swept
    runs = load_runs("search", store)
    assert best(runs, epsilon=4)["selected_epsilon"] == 4.0 == runs.attrs["paid"]


def test_a_space_that_was_edited_tells_its_trials_from_those_before(swept):
    experiment, store, search = swept
    assert all(map(experiment.plan.asks_for, search.trials)) and store.as_swept(experiment).past.others == 0
    narrower = replace(experiment, plan=replace(experiment.plan, space={
        **experiment.plan.space, "learning_rate": Domain("loguniform", (0.2, 0.3))}))
    kept = [trial for trial in search.trials if 0.2 <= trial.learning_rate <= 0.3]
    others = len(search.trials) - len(kept)
    assert others and [*store.as_swept(narrower).trials] == kept
    said = f"{len(search.trials)} trials were trained under this name, {len(kept)} "
    assert said in status.as_text([status.read(store, "search", narrower)])
    assert any(line.startswith(said) for line in price_lines(with_past(narrower, store.root)))
    larger = replace(experiment.plan, base={**experiment.plan.base, "clipping_norm": 0.5})
    assert not any(map(larger.asks_for, search.trials))


def test_status_of_a_search_that_has_more_to_ask_for(tmp_path):
    experiment, store = budgeted(), Store(root=tmp_path)
    search = rounds(experiment, store)
    train(store, search.next(())[:1])
    store.log_suggestions(search.suggestions)
    state = status.read(store, "search", experiment)
    assert (state.counts["finished"], state.counts["missing"]) == (1, 11) and state.go_on
    with pytest.raises(MissingTrials, match="8 of 12 suggestions of the search are not asked for yet"):
        load_runs(experiment, store)


@pytest.mark.slow
def test_the_report_draws_search_and_budget_and_publishes_the_best_at_the_budget(swept, tmp_path):
    experiment, store, search = swept
    report = write(experiment, store, tmp_path)
    assert [exhibit.name for exhibit in report.exhibits][:2] == ["search", "search_space"]
    rows = pd.read_csv(tmp_path / "search.csv")
    assert list(rows["number"]) == list(range(1, 25)) and rows["ε spent"].is_monotonic_increasing
    assert rows["ε spent"].iloc[-1] == pytest.approx(search.filter.epsilon(search.filter.spent(store.released())))
    assert (rows["status"] == "passed over").sum() == search.passed_over > 0
    space = pd.read_csv(tmp_path / "search_space.csv")
    shares = space.groupby("setting")["importance"].first()
    assert set(shares.index) == set(experiment.plan.space) and shares.sum() == pytest.approx(1)
    assert shares.idxmax() == "learning_rate", "on which alone the scores of these trials depend"
    best = pd.read_csv(tmp_path / "selection.csv").iloc[0]
    assert (best["selected_epsilon"], best["selected_rule"], best["selected_delta"]) == (4, "budget", 1e-5)
    trials = {trial.trial_key: trial for trial in search.trials}
    assert best["test/accuracy"] == score(trials[best["trial_key"]])
    # and not of a trial that looked best in the test, at an epsilon of its own
    approved("search_report", "\n\n".join(["\n".join(report.headline.brief), *(
        (tmp_path / f"{name}.md").read_text(encoding="utf-8") for name in ("search", "selection"))]))
    assert store._client.get_run(store._parent()).data.metrics["epsilon/selected/budget"] == 4


def test_what_fits_is_told_before_anything_is_trained():
    experiment = budgeted()
    adaptive = budgeted(("algorithm: random", "algorithm: optuna"))
    approved("budget_lines", "\n".join([*budget_lines(experiment), *experiment.plan.lines(), *adaptive.plan.lines()]))
    drawn = dry_run._with_drawn_trials(experiment)
    assert 0 < len(drawn.trials) <= 12 and listed(drawn)
    optuna = dry_run._with_drawn_trials(adaptive)
    assert drawn.trials == optuna.trials, "nobody knows what Optuna will ask for"


def test_frontiers_of_trials_that_were_asked_for_by_scores_state_no_price_by_composition(swept, tmp_path):
    experiment, store, _search = swept
    runs = frame_of(store.runs(), store.as_swept(experiment).trials)
    for by_scores in (False, True):
        plan = experiment.plan if by_scores else dataclasses.replace(experiment.plan, budget=None)
        found = frontier.of_experiment(runs, "frontier", dataclasses.replace(experiment, plan=plan))
        text = found.files["frontier.md"].decode()
        assert ("selected ε composes all trials" in text) != by_scores
        assert ("budget, ε = 4 at δ = 1e-05, covers all" in text) == by_scores


def test_another_name_seed_and_budget_are_another_sweep_of_the_file(tmp_path, capsys):
    file = tmp_path / "file.yaml"
    file.write_text(BUDGET)
    changes = {"name": "other", "search.seed": 5, "budget.epsilon": 3, "search.space.epochs": {"choice": [4, 8]},
               "momentum": 0.5}
    experiment = load_experiment(file, changes)
    assert (experiment.name, experiment.plan.seed, experiment.plan.budget.epsilon) == ("other", 5, 3)
    assert {(t.epochs, t.momentum) for t in experiment.possible} == {(4, 0.5), (8, 0.5)}
    assert "--set name=other --set search.seed=5" in experiment.text
    for wrong, says in (("budgets.epsilon=3", "--set budgets.epsilon: must be an entry of its selection, search, "),
                        ("search.spice.epochs=3", "--set search.spice.epochs: must be an entry of its selection"),
                        ("grid.seed=3", "budget, got 3; give a setting of base by its name alone, and"),
                        ("epochs=3", "--set epochs: must be a field that no grid, zip, case or space sets, got one"),
                        ("selection.seed=3", "search, budget, got 3; the file has no selection, add it there"),
                        ("search.sead=3", "search.sead: unknown entry")):
        assert says in output(capsys, "account", str(file), "--set", wrong, code=2)
