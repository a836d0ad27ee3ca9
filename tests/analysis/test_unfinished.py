"""A report of a sweep that is not finished: what has ended, marked, and nothing of it in the store."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from approved import approved
from mlflow.tracking import MlflowClient
from stored import records

from analysis.report.report import complete_part, write
from analysis.runs import MissingTrials
from pipeline.cli import main
from pipeline.experiment.experiment import parse_experiment
from pipeline.experiment.plan import RandomStopping
from pipeline.experiment.search import Search
from pipeline.experiment.stopping import Selection
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig

FILE = """
name: part
base: {dataset: digits, mechanism: per_example, sampler: shuffled, epochs: 2, batch_size: 64}
grid: {algorithm: [bp, dfa], noise_multiplier: [20, 40], seed: [0, 1]}
report: [frontier, means]
"""
EXPERIMENT = parse_experiment(FILE, Path("part.yaml"))
pytestmark = pytest.mark.usefixtures("only_svg")


def train(store, trials):
    for trial in trials:
        store.start(trial)
        score = 0.5 + 0.1 * (trial.algorithm == "bp") + trial.seed / 100 - trial.noise_multiplier / 1000
        store.log(records(trial, [{
            "validation/accuracy": score, "test/accuracy": score, "test/worst_class_accuracy": score / 2,
            "epsilon/certified/gdp": epoch * 10 / trial.noise_multiplier} for epoch in (1, 2)],
            {"privacy.relation": "replace-one"}))


@pytest.fixture
def store(tmp_path):
    store = Store(root=tmp_path / "mlruns")
    store.open_sweep("part")
    return store


def trials(algorithm, noise=None, seed=None):
    return [t for t in EXPERIMENT.trials if t.algorithm == algorithm and noise in (None, t.noise_multiplier)
            and seed in (None, t.seed)]


def parent(store):
    run = store._client.get_run(store._parent())
    artifacts = [item.path for item in store._client.list_artifacts(store._parent(), "report")]
    return run.data.metrics, run.data.tags, artifacts


def test_settings_with_all_of_their_seeds_are_shown_and_marked_and_the_store_stays_as_it_was(store, tmp_path):
    train(store, [*trials("bp"), *trials("dfa", 20)])
    store.start(trials("dfa", 40)[0])
    before = parent(store)
    report = write(EXPERIMENT, store, tmp_path / "out")
    assert report.notice == ("Unfinished: 6 of 8 trials have ended. Shown are 6, of settings that have all of their "
                             "seeds; no best trial is chosen.")
    assert [e.title for e in report.exhibits] == ["Accuracy against ε (unfinished: 6 of 8 trials)",
                                                  "Means over seeds of every setting (unfinished: 6 of 8 trials)"]
    assert "once all trials have ended" in dict(report.left_out)["selection"]
    assert not any(path.name.startswith("selection") for path in report.files)
    page, svg = ((tmp_path / "out" / name).read_text(encoding="utf-8") for name in ("index.html", "frontier.svg"))
    assert f'<p class="notice">{report.notice}</p>' in page and page.index("notice") < page.index("<h2>")
    assert ">unfinished: 6 of 8 trials<" in svg and page.count('style="--drawn: ') == 1
    assert (tmp_path / "out" / "frontier.md").read_text(encoding="utf-8").startswith(
        "## Accuracy against ε (unfinished: 6 of 8 trials)\n")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["unfinished"] == {
        "ended": 6, "shown": 6, "planned": 8, "which": "of settings that have all of their seeds"}
    assert parent(store) == before and before[0] == {} and before[2] == []


def test_a_setting_that_lacks_a_seed_is_not_shown(store, tmp_path):
    train(store, [*trials("bp"), *trials("dfa", 20, 0)])
    report = write(EXPERIMENT, store, tmp_path / "out")
    assert report.notice.startswith("Unfinished: 5 of 8 trials have ended. Shown are 4,")
    runs = pd.read_csv(tmp_path / "out" / "runs.csv")
    assert set(runs["algorithm"]) == {"bp"} and len(runs) == 4
    assert set(pd.read_csv(tmp_path / "out" / "frontier.csv")["n"]) == {2}


def test_what_is_finished_is_reported_in_full(store, tmp_path):
    train(store, EXPERIMENT.trials)
    report = write(EXPERIMENT, store, tmp_path / "out")
    assert not report.notice and [e.name for e in report.exhibits] == ["frontier", "means", "selection"]
    assert "unfinished" not in "".join(path.read_text(encoding="utf-8") for path in report.files if path.suffix in (
        ".html", ".json", ".md", ".svg")).lower()
    metrics, tags, artifacts = parent(store)
    assert "epsilon/selected/composition" in metrics and "privacy.notes" in tags and len(artifacts) == len(report.files)


def test_a_sweep_without_a_trial_is_refused(store, tmp_path):
    with pytest.raises(MissingTrials, match=r"^0 of 8 trials are finished; missing: .*sweep part.yaml`"):
        write(EXPERIMENT, store, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_widened_sweep_is_shown_with_the_seeds_that_it_has(store, tmp_path):
    train(store, EXPERIMENT.trials)
    wider = parse_experiment(FILE.replace("seed: [0, 1]", "seed: [0, 1, 2]"), Path("part.yaml"))
    report = write(wider, store, tmp_path / "out")
    assert report.notice == ("Unfinished: 8 of 12 trials have ended. Shown are 8, with the seeds that each setting "
                             "has, as none has all; no best trial is chosen.")
    assert set(pd.read_csv(tmp_path / "out" / "frontier.csv")["n"]) == {2}


def test_what_publishes_its_best_alone_is_refused_until_all_have_ended(store, tmp_path):
    missing = MissingTrials("1 of 2 trials are finished")
    drawn = RandomStopping(EXPERIMENT.trials, (TrialConfig(),), Selection("random_stopping", 9, 1, 5))
    stopping = replace(EXPERIMENT, plan=drawn)
    with pytest.raises(MissingTrials, match="finished; a search publishes its best trial, which is not known before"):
        complete_part(replace(EXPERIMENT, plan=Search("random", 2, {}, {})), [], missing)
    train(store, trials("bp"))
    with pytest.raises(MissingTrials, match="4 of 8 trials are finished; .*; random stopping publishes its best trial"):
        write(stopping, store, tmp_path / "out")


@pytest.mark.slow
def test_the_terminal_has_some_ten_lines_the_answer_first(store, tmp_path, capsys):
    file = tmp_path / "part.yaml"
    file.write_text(FILE)
    train(store, [*trials("bp"), *trials("dfa", 20)])
    command = ["report", str(file), "--mlruns", str(tmp_path / "mlruns"), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    train(store, trials("dfa", 40))
    assert main(command) == 0
    approved("report", capsys.readouterr().out.replace(str(tmp_path), "FOLDER"))


def test_a_report_is_written_where_the_store_does_not_take_it(store, tmp_path, capsys, monkeypatch):
    """The store can only be read."""
    monkeypatch.chdir(tmp_path)
    train(store, EXPERIMENT.trials)
    Path("part.yaml").write_text(FILE)
    shutil.rmtree(tmp_path / "mlruns" / "artifacts", ignore_errors=True)
    (tmp_path / "mlruns" / "artifacts").write_text("no folder can be made here")
    assert main(["report", "part.yaml"]) == 0
    *_, page, beside, refused = capsys.readouterr().out.splitlines()
    assert page == "page: reports/part/index.html" and beside.startswith("beside it: runs.csv, ")
    assert re.search(r"^not logged: tracking store .*artifacts", refused) and "selection.csv" in beside


def test_a_report_lists_the_runs_once(store, tmp_path, monkeypatch):
    train(store, trials("bp"))
    conditions, search = [], MlflowClient.search_runs
    monkeypatch.setattr(MlflowClient, "search_runs",
                        lambda client, ids, condition, *a, **k: conditions.append(condition) or search(
                            client, ids, condition, *a, **k))
    write(EXPERIMENT, store, tmp_path / "out")
    assert conditions == ["tags.sweep LIKE '%'", "", ""]  # the sweep's own run, those of its trials, and the trash
