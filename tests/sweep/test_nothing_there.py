"""Commands on sweeps without a trial, without a finished one, or of another space: one line, and no traceback."""

import json
from pathlib import Path

import pytest
from search_tools import FILE as SEARCH
from search_tools import rounds, train
from test_budget import BUDGET

from analysis import best, load_runs
from pipeline.cli import main
from pipeline.experiment.experiment import load_experiment
from pipeline.experiment.search import Domain
from pipeline.sweep import dry_run, run
from pipeline.sweep.estimate import Estimate
from pipeline.sweep.status import _left_seconds
from pipeline.tracking.artifacts import TrackedRun
from pipeline.tracking.store import Store

pytestmark = pytest.mark.usefixtures("only_svg")
GRID = ("name: q\nbase: {dataset: digits, mechanism: per_example, sampler: poisson, target_epsilon: 2, epochs: 1, "
        "algorithm: bp, hidden: []}\ngrid: {seed: [0, 1]}\n")
STOPPING = GRID.replace("grid", "selection: {rule: random_stopping, mean: 2, seed: 5}\ngrid").replace(
    "seed: [0, 1]", "learning_rate: [0.1, 0.2]")
COMMANDS = (["sweep", "--dry-run"], ["sweep", "--dry-run", "--json"], ["status"], ["status", "--json"], ["report"],
            ["report", "--where", "seed=0"], ["account"], ["account", "--by-epoch"], ["report", "q", "other"])
STATES = ("no store", "begun", "failed", "running")


def fill(experiment, state):
    if state == "no store":
        return
    store = Store(root=Path("mlruns"))
    store.open_sweep(experiment.name)
    for trial in () if state == "begun" else experiment.trials or experiment.possible[:2]:
        store.start(trial)
        if state == "failed":
            store.fail(trial.trial_key, "RuntimeError: no")


@pytest.mark.parametrize("text", [GRID, SEARCH, BUDGET, STOPPING], ids=["grid", "search", "budget", "stopping"])
@pytest.mark.parametrize("state", STATES)
def test_a_sweep_without_a_finished_trial_is_told_in_one_line(tmp_path, monkeypatch, capsys, text, state):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dry_run, "estimate", lambda *a, **k: Estimate(1.0))  # times trials, `test_estimate`
    Path("q.yaml").write_text(text.replace("name: search", "name: q"))
    fill(load_experiment("q.yaml"), state)
    for first, *options in COMMANDS:
        target = [] if options and options[0] == "q" else ["q.yaml"]
        code = main([first, *target, *options])
        told = capsys.readouterr()
        if code:
            (line,) = told.err.splitlines()
            assert code == 2 and line.startswith("error: "), (first, options)
        else:
            assert told.err == "" and told.out, (first, options)
    for name in ("q", "nobody"):
        assert main(["report", name]) == 2
    with pytest.raises(Exception, match=r"^\S.*") as raised:
        best(load_runs("q"), epsilon=3)
    assert "\n" not in str(raised.value)


def test_a_search_that_spent_its_budget_before_its_space_was_changed_says_that_nothing_fits(
        tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("q.yaml").write_text(BUDGET.replace("name: search", "name: q"))
    experiment, store = load_experiment("q.yaml"), Store(root=Path("mlruns"))
    search = rounds(experiment, store)
    while missing := search.next(store.runs()):
        train(store, missing)
    store.log_suggestions(search.suggestions)
    Path("q.yaml").write_text(Path("q.yaml").read_text().replace("[0.05, 5]", "[6, 9]").replace("[2, 13]", "[12, 13]"))
    changed = len(search.trials)
    says = f"none of 12 suggestions fits the budget: {changed} trials of another space spent a part of it"
    assert main(["report", "q.yaml"]) == 2
    assert f"its {changed} trials were asked for in another space or with another base" in capsys.readouterr().err
    assert run.run_sweep(load_experiment("q.yaml")).passed_over == 12
    assert f"nothing to do: {says}" in capsys.readouterr().err
    assert main(["status", "q.yaml"]) == 0 and f"12 of 12 suggestions asked for; {says}" in capsys.readouterr().out
    assert main(["report", "q.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: q: must have a trial to report; {says}")
    assert main(["sweep", "q.yaml", "--dry-run"]) == 0 and f"nothing to do: {says}" in capsys.readouterr().out
    assert main(["sweep", "q.yaml", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exhausted"].startswith(says)
    assert main(["account", "q.yaml"]) == 0 and main(["sweep", "q.yaml"]) == 0


def test_the_values_of_a_search_lie_in_its_space():
    assert Domain("choice", ([16], 0.5)).has([16]) and not Domain("choice", (1, 2)).has(3)
    assert Domain("randint", (2, 5)).has(4) and not Domain("randint", (2, 5)).has(5)


def test_a_driver_whose_file_has_other_trials_has_no_estimate():
    running = [TrackedRun("id", "key", {}, {}, {"driver": "d"}, "running", 0, None, epoch=3)]
    assert _left_seconds(running, [], 4) is None
