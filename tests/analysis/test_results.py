"""analysis/results: the committed data are those of the experiment files, and pages of docs quote them."""

import functools
import io
import json
import re
import shutil
from pathlib import Path

import committed
import doubts
import left_out
import pandas as pd
import pytest
import results_text
import tuning
from committed import RESULTS, file_of, folder_of, manifests, runs_of, written
from latex_tools import check_all

from analysis.exhibits.exhibit import MAX_WORDS
from analysis.statistics import mean_interval, plus_minus
from pipeline.experiment import experiment as of_files
from pipeline.trials.promises import check_promises

ROOT = Path(__file__).parents[2]
MANIFESTS = manifests()
NAMES = list(MANIFESTS)
# What pages say that were written by hand
QUOTED = "".join(committed.WRITTEN.sub("", path.read_text(encoding="utf-8")) for path in sorted(
    [*(ROOT / "docs").glob("*.md"), *RESULTS.glob("*/README.md")]))
each = pytest.mark.parametrize("name", NAMES)
pytestmark = pytest.mark.slow
load_experiment = functools.cache(of_files.load_experiment)


@pytest.fixture(autouse=True, scope="module")
def files_are_parsed_once():
    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in (doubts, results_text):
            monkeypatch.setattr(module, "load_experiment", load_experiment)
        yield


def tables(text):
    """The lines of every Markdown table."""
    return [block.splitlines() for block in re.findall(r"^\|.*\n(?:\|.*\n)+", text, re.MULTILINE)]


def test_there_are_as_many_as_make_results_trains():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (trained,) = re.findall(r"^RESULTS := (.+)$", makefile, re.MULTILINE)
    assert NAMES == sorted(trained.split()) and len(NAMES) >= 7
    for name in NAMES:
        check_promises(load_experiment(file_of(name)).trials)


@each
def test_data_are_those_of_the_manifest_and_trials_those_of_the_experiment_file(name):
    manifest, experiment, runs = MANIFESTS[name], load_experiment(file_of(name)), pd.read_csv(runs_of(name))
    assert manifest["data"] == results_text.digests(name) and manifest["experiment"] == experiment.name == name
    assert sorted(runs["trial_key"]) == sorted(trial.trial_key for trial in experiment.trials)
    assert manifest["trials"] == runs["status"].value_counts().to_dict()
    assert sum(manifest["commits"].values()) == len(runs) and not any("dirty" in c for c in manifest["commits"])


@each
def test_every_figure_has_its_data_and_a_caption(name):
    figures = list(folder_of(name).glob(f"{name}-*.svg"))
    assert figures or f"{name}-frontier.svg" in results_text.NOT_KEPT
    for figure in figures:
        exhibit = figure.stem.partition("-")[2]
        assert f"{exhibit}.csv" in MANIFESTS[name]["data"] and f"]({figure.name})" in written(name)
        assert "<text" in figure.read_text(encoding="utf-8")


@each
def test_every_column_of_an_exhibit_is_explained(name):
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    for exhibit in results_text.names(name):
        for file, content in results_text.exhibit(name, exhibit).files.items():
            if file.endswith(".csv"):
                missing = [column for column in pd.read_csv(io.BytesIO(content), nrows=0) if f"`{column}`" not in text]
                assert not missing, f"{file}: {missing}"


@pytest.mark.parametrize(("name", "exhibit", "count"), [("table1_seeds", "table1", 1), ("certified", "frontier", 2)])
def test_pages_have_the_tables_as_they_were_measured(name, exhibit, count):
    shown = tables(QUOTED)
    measured = [table for table in tables(results_text.markdown(name, exhibit))
                if table[0].startswith("|  | ") and table[0].count("|") > 6 and "mean" not in table[0]]
    assert len(measured) == count
    for table in measured:
        assert table in shown, "\n".join(table)


@pytest.mark.parametrize(("name", "exhibit"), results_text.everything())
def test_every_exhibit_has_captions_and_tables(name, exhibit):
    drawn = results_text.exhibit(name, exhibit)
    captions = [part for part in (*drawn.texts.body, *drawn.texts.more) if isinstance(part, str)]
    assert captions and all(len(caption.split()) <= MAX_WORDS for caption in captions), captions
    check_all(drawn.files)


@each
def test_the_page_of_a_study_has_the_captions_and_tables_that_the_code_writes_of_its_trials(name):
    exhibits = results_text.names(name)
    text = "\n".join(results_text.markdown(name, exhibit) for exhibit in exhibits)
    assert exhibits and written(name) == text, "`python tests/tools/results_text.py` writes it anew"


def test_the_page_of_networks_has_the_means_of_its_trials():
    runs, page = pd.read_csv(runs_of("networks")), (ROOT / "docs" / "networks.md").read_text(encoding="utf-8")
    for (network, epochs), part in runs.groupby(["network", "epochs"]):
        means = []
        for algorithm in ("bp", "dfa", "hybrid"):
            accuracies = 100 * part.loc[part["algorithm"] == algorithm, "test/accuracy"]
            found = mean_interval(accuracies) if len(accuracies) else None
            means.append(plus_minus(found.mean, half_width=found.half_width) if found else "–")
        assert f" | {epochs} | {' | '.join(means)} |" in page, network


def test_a_report_is_taken_over_as_it_was_written(tmp_path, monkeypatch):
    report, old = tmp_path / "report", folder_of("quickstart")
    report.mkdir()
    for path in old.glob("quickstart*.*"):
        shutil.copy(path, report / (path.name.partition("-")[2] or "runs.csv"))
    (report / "manifest.json").write_text(json.dumps(MANIFESTS["quickstart"]))
    monkeypatch.setattr(committed, "RESULTS", tmp_path / "results")
    committed.RESULTS.mkdir()
    results_text.main([report])
    new = folder_of("quickstart")
    assert {path.name for path in new.iterdir()} == {path.name for path in old.iterdir()}
    assert all(path.read_bytes() == (old / path.name).read_bytes() for path in new.iterdir() if path.suffix != ".md")
    assert written("quickstart") in (old / "README.md").read_text(encoding="utf-8")


def test_the_comparison_of_ways_to_tune_is_that_of_its_data_and_quoted():
    text = (RESULTS / "tuning" / "tuning.md").read_text(encoding="utf-8")
    rows = pd.read_csv(RESULTS / "tuning" / "tuning.csv")
    assert tuning.table(rows) == text
    cells = set(re.findall(r"\d+\.\d+ ± \d+\.\d+", text))
    assert len(cells) == 12 and all(cell in QUOTED for cell in cells)
    assert len(rows) == 36 and (rows["epsilon of the choice"] <= rows["epsilon"]).all()


def test_settings_chosen_on_other_data_sets_are_those_of_the_trials_of_the_experiment_file():
    trials = pd.read_csv(RESULTS / "left_out" / "validation.csv")
    ways = {way: pd.read_csv(RESULTS / "left_out" / f"{file}.csv")
            for way, file in (("two full trials", "paid"), ("three cheap pilots", "pilots"))}
    rules = pd.read_csv(RESULTS / "left_out" / "rules.csv")
    assert (RESULTS / "left_out" / "choices.md").read_text(encoding="utf-8") == left_out.page(trials, rules, ways)
    three_ways = tables("\n".join(left_out.three_ways(ways["three cheap pilots"])) + "\n")
    assert len(three_ways) == 2 and all(table in tables(QUOTED) for table in three_ways)
    assert "| CIFAR-10 | joint map | 1.33 ± 0.53 | 1.31 ± 0.46 | 1.36 ± 0.66 |" in three_ways[1]
    assert "| MNIST | earlier maps | -0.35 ± 0.53 | -0.24 ± 0.58 | -0.25 ± 0.17 |" in three_ways[1]
    for sweeps in ways.values():
        assert (sweeps["selected_epsilon"] <= sweeps["total"]).all()
        assert set(sweeps.groupby(["dataset", "total"])["seed"].agg(tuple)) == {(0, 1, 2)}
    for name, table in ("left_out", trials), ("pilots_rules", rules):
        experiment = load_experiment(file_of(name))
        assert sorted(table["trial_key"]) == sorted(trial.trial_key for trial in experiment.trials)


def test_of_several_settings_the_one_with_the_least_mean_regret_on_the_others_is_chosen():
    table = pd.DataFrame({"a": [90.0, 95.0, None], "b": [99.0, 90.0, 98.9], "c": [70.0, 69.0, 80.0]},
                         index=["x", "y", "z"])
    assert left_out.chosen(table) == {"a": ("z", "y"), "b": ("y", "x"), "c": ("x", "z")}


def test_the_page_of_doubts_is_what_the_checks_say_of_the_trials_and_every_alarm_is_judged(monkeypatch):
    assert doubts.FILE.read_text(encoding="utf-8") == doubts.page()
    judged = {**doubts.JUDGED, ("certified", "flat"): (doubts.HOLDS, "it does not fire")}
    monkeypatch.setattr(doubts, "JUDGED", judged)
    monkeypatch.setattr(doubts, "manifests", dict)  # no sweep, and so no alarm
    with pytest.raises(ValueError, match="JUDGED: must have the alarms .*, differs in .*'certified', 'flat'"):
        doubts.page()
