"""`photonic import`: results that others trained, in a store of MLflow's, on frontiers, and in nothing that counts."""

import csv
import io
import math

import pandas as pd
import pytest
from approved import approved

from analysis import api
from analysis.runs import ReportError, load_runs
from pipeline.cli import main
from pipeline.experiment.experiment import parse_experiment
from pipeline.tracking import imports
from pipeline.tracking.backend import Client, TrackingError
from pipeline.tracking.imports import ACCURACY, CELLS, EPSILON, Result, read_results
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.kinds import KINDS
from pipeline.trials.records import EpochRecord, Outcome

FILE = """
name: mine
base: {dataset: digits, mechanism: per_example, sampler: poisson, batch_size: 64, epochs: 1}
grid: {algorithm: [bp, dfa], target_epsilon: [1, 3], seed: [0, 1]}
report: [frontier]
"""
CNN = {"dataset": "digits", "method": "CNN $x_1$", "epsilon": "2", "delta": "1e-5", "relation": "add/remove",
       "seed": "0", "accuracy": "0.80", "source": "Doe 2024, table 2"}
ROWS = [CNN, {**CNN, "seed": "1", "accuracy": "0.84"}, {**CNN, "epsilon": "2.7", "seed": "", "accuracy": "0.861"},
        {**CNN, "delta": "1e-6"}, {**CNN, "relation": "replace-one"}, {**CNN, "dataset": "mnist"}]


def table(rows, names=tuple(CELLS)):
    text = io.StringIO()
    csv.writer(text).writerows([names, *([row[name] for name in names] for row in rows)])
    return text.getvalue()


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(tmp_path, capsys):
    """Run `photonic import` of these rows, or of a text, in place of a person; (exit code, output, errors)."""
    def run(rows, *options, name="papers", root="mlruns"):
        (tmp_path / "results.csv").write_text(rows if isinstance(rows, str) else table(rows), encoding="utf-8")
        code = main(["import", "results.csv", "--as", name, "--mlruns", str(root), *options])
        return code, *capsys.readouterr()
    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A store with a sweep `mine` that has ended, and an import `papers`."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "mine.yaml").write_text(FILE)
    (folder / "results.csv").write_text(table(ROWS))
    store = Store(root=folder)
    store.open_sweep("mine")
    for trial in parse_experiment(FILE, folder / "mine.yaml").trials:
        store.start(trial)
        accuracy = 0.6 + 0.01 * trial.target_epsilon + 0.02 * trial.seed + 0.05 * (trial.algorithm == "bp")
        store.log([EpochRecord(trial.trial_key, 1, {
            "validation/accuracy": accuracy, "test/accuracy": accuracy,
            "epsilon/certified/pld": trial.target_epsilon}, {
            "privacy.certified": "simulated", "privacy.relation": "add/remove", "privacy.delta": "1e-05"},
            Outcome("finished", {}, ()))])
    store.log_experiment(FILE)
    store.close_sweep("FINISHED")
    store.import_results("papers", *read_results(folder / "results.csv"))
    return folder


def runs_of(store, name):
    """(parents, nested runs) of MLflow's experiment of that name."""
    number = store._client.get_experiment_by_name(name).experiment_id
    runs = list(store._client.search_runs([number]))
    return [[run for run in runs if (imports.PARENT in run.data.tags) == nested] for nested in (False, True)]


# The file

def test_columns_come_in_any_order_and_numbers_as_people_write_them(tmp_path):
    rows = [{**CNN, "epsilon": " 2.0 ", "delta": "0.00001", "source": "a\n b"}, {**CNN, "seed": "1", "accuracy": "1"}]
    text = "\ufeff" + table(rows, tuple(reversed(CELLS))) + ",,,,,,,\r\n\r\n"
    (tmp_path / "a.csv").write_bytes(text.encode())
    assert read_results(tmp_path / "a.csv")[0] == [
        Result("digits", "CNN $x_1$", 2.0, 1e-5, "add/remove", 0, 0.8, "a b"),
        Result("digits", "CNN $x_1$", 2.0, 1e-5, "add/remove", 1, 1.0, "Doe 2024, table 2")]


@pytest.mark.parametrize(("name", "cell", "said"), [
    ("accuracy", "86.1", "a fraction of the test set, from 0 to 1 and not in percent, got '86.1'"),
    ("accuracy", "86.1%", "not in percent, got '86.1%'"), ("accuracy", "-0.1", "a fraction"),
    ("accuracy", "0,861", "a fraction"), ("accuracy", "", "a fraction"), ("accuracy", "nan", "a fraction"),
    ("epsilon", "inf", "a finite number > 0, got 'inf'"), ("epsilon", "1e999", "a finite number"),
    ("epsilon", "nan", "a finite number"), ("epsilon", "-1", "a finite number"), ("epsilon", "0", "a finite number"),
    ("epsilon", "1_0", "a finite number"), ("epsilon", "", "a finite number"),
    ("delta", "", "a number > 0 and < 1"), ("delta", "0", "a pure epsilon holds at any"), ("delta", "1", "< 1"),
    ("relation", "", "relations are add/remove, replace-one, got ''"),
    ("relation", "add-remove", "did you mean 'add/remove'?"), ("relation", "substitute", "relations are"),
    ("dataset", "fmnist", "did you mean 'fashion_mnist'?"), ("dataset", "imagenet", "data sets are fashion_mnist"),
    ("seed", "1.0", "a whole number >= 0, or empty for a single published figure, got '1.0'"),
    ("seed", "-1", "a whole number"), ("seed", "a", "a whole number"),
    ("method", " ", "a text of at most 500 characters"), ("source", "", "a text"), ("source", "x" * 501, "a text")])
def test_a_wrong_cell_is_refused_by_row_and_column_before_anything_is_written(name, cell, said, command, tmp_path):
    code, out, error = command([ROWS[0], {**ROWS[1], name: cell}])
    assert code == 2 and not out and error.count("\n") == 1
    assert error.startswith(f"error: results.csv, row 3, column {name}: must be ") and said in error
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]


@pytest.mark.parametrize(("text", "said"), [
    ("", "must have a row with the names of its columns and one for each result, has nothing"),
    (table([]), "has one row"),
    (table([CNN], tuple(CELLS)[:-1]), "row 1: must have every column once, but not so source"),
    (table([CNN], (*CELLS, "seed")), "not so seed"),
    (table([CNN]).replace("method", "methods"), "row 1: unknown column 'methods'; did you mean 'method'?"),
    (table([CNN]).replace(",", ";"), "row 1: unknown column 'dataset;method;"),
    (table([CNN]) + "digits,CNN\n", "row 3: must have 8 cells, one for each column, has 2"),
    (table([CNN, CNN]), "row 3, column seed: must differ from that of row 2"),
    (table([CNN, {**CNN, "epsilon": "2.0", "seed": "00", "accuracy": "0.9", "source": "another"}]),
     "seed: must differ from that of row 2, as data set, method, epsilon, delta and relation are the same, got 0 "),
    (table([{**CNN, "seed": ""}] * 2), "got none twice"),
    (table([CNN, {**CNN, "seed": ""}]), "row 3, column seed: must be there for all rows"),
    (table([{**CNN, "seed": ""}, CNN]), "got 0 beside row 2"), (table([CNN]) + '"digits', "cannot be read as CSV")])
def test_a_file_that_is_no_table_of_results_is_refused(text, said, command, tmp_path):
    code, _, error = command(text)
    assert code == 2 and error.startswith("error: results.csv") and said in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]


def test_what_cannot_be_read_and_a_name_that_cannot_be_used_are_refused(command, tmp_path, capsys):
    (tmp_path / "latin.csv").write_bytes("é".encode("latin-1"))
    for file in ("none.csv", ".", "latin.csv"):
        assert main(["import", file, "--as", "papers"]) == 2
        assert f"error: {file}: cannot be read as CSV" in capsys.readouterr().err
    code, _, error = command(ROWS, name="a/b")
    assert code == 2 and "--as: must be letters, digits" in error and not (tmp_path / "mlruns").exists()


# The store

def test_rows_become_nested_runs_that_say_what_they_are(root):
    store = Reader(root=root)
    (parent,), nested = runs_of(store, "papers")
    assert parent.data.tags["imported"] == "papers" and "sweep" not in parent.data.tags
    assert parent.info.status == "FINISHED" and len(nested) == len(ROWS)
    run = next(run for run in nested if run.data.metrics[EPSILON] == 2.7)
    assert run.data.metrics == {ACCURACY: 0.861, EPSILON: 2.7} and run.info.run_name == "CNN $x_1$ eps2.7"
    assert run.data.params == {"dataset": "digits", "method": "CNN $x_1$", "delta": "1e-05", "relation": "add/remove",
                               "source": "Doe 2024, table 2"}
    own = {name: text for name, text in run.data.tags.items() if not name.startswith("mlflow.")}
    assert own == {"imported": "papers", "privacy.certified": "false", "privacy.relation": "add/remove",
                   "privacy.delta": "1e-05",
                   "privacy.notes": "imported: said by its source; nothing was trained or accounted for here (Doe "
                                    "2024, table 2)"}
    assert run.data.tags[imports.PARENT] == parent.info.run_id
    assert EPSILON == "epsilon/imported" and KINDS["imported"][:2] == (
        False, "Said by its source; nothing was trained or accounted for here.")
    assert set(store.imported("papers")) == set(read_results(root / "results.csv")[0])


def test_the_same_file_again_changes_nothing_and_another_one_needs_to_be_told_to(command):
    assert command(ROWS)[:2] == (0, "papers: 6 results imported\n" "to show them: photonic report FILE --with papers\n")
    store = Reader(root="mlruns")
    ids = {run.info.run_id for runs in runs_of(store, "papers") for run in runs}
    for rows in (ROWS, list(reversed(ROWS))):
        code, out, _ = command(rows)
        assert code == 0 and out.startswith("papers: nothing to do, it has all 6 results\n")
    changed = [{**CNN, "accuracy": "0.81"}, *ROWS[1:-1]]
    code, _, error = command(changed)
    assert code == 2 and "--as: must be a new name or that of the same results, got 'papers'" in error
    assert {run.info.run_id for runs in runs_of(store, "papers") for run in runs} == ids
    code, out, _ = command(changed, "--replace")
    assert code == 0 and out.startswith("papers: 1 result imported, 2 deleted\n")
    assert {result.accuracy for result in store.imported("papers")} == {0.8, 0.81, 0.84, 0.861}
    assert len(ids & {run.info.run_id for runs in runs_of(store, "papers") for run in runs}) == 5


def test_an_import_that_broke_off_is_not_shown_and_the_same_command_completes_it(command, monkeypatch):
    def broken(client, run_id, points=(), params=None, tags=None):
        if points and points[0][1] == 0.84:
            raise KeyboardInterrupt
        whole(client, run_id, points, params, tags)

    whole = Client.write
    with monkeypatch.context() as patch:
        patch.setattr(Client, "write", broken)
        assert command(ROWS)[0] == 130
    store = Reader(root="mlruns")
    with pytest.raises(TrackingError, match="'papers' has 1 of the 6 results of its file; import it again"):
        store.imported("papers")
    code, out, _ = command(ROWS)
    assert code == 0 and out.startswith("papers: 5 results imported, 1 deleted\n")
    assert len(store.imported("papers")) == 6


def test_sweeps_and_imports_take_no_name_from_each_other(root, command, capsys, tmp_path):
    for name in ("mine", "Default"):
        code, _, error = command(ROWS, name=name, root=root)
        assert code == 2 and f"--as: must be a name that no sweep has, got '{name}'" in error
    (tmp_path / "other.yaml").write_text(FILE.replace("mine", "papers"))
    for words in (["sweep", "other.yaml"], ["status", "other.yaml"], ["status", "papers"], ["report", "papers"],
                  ["report", "other.yaml"], ["sweep", "papers"]):
        assert main([*words, "--mlruns", str(root)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: 'papers': must be a sweep, has imported results") and error.count("\n") == 1
    with pytest.raises(TrackingError, match="has imported results"):
        Store(root=root).open_sweep("papers")
    with pytest.raises(TrackingError, match="has imported results"):
        api.load_runs("papers", root)


def test_what_lists_sweeps_and_what_counts_passes_imports_over(root, capsys):
    store = Reader(root=root)
    assert store.sweeps() == ["mine"]
    assert main(["status", "--mlruns", str(root)]) == 0
    assert "papers" not in capsys.readouterr().out
    assert store.certified("digits", "add/remove") == {"mine": (16.0, pytest.approx(8e-5))}
    assert store.certified("mnist", "add/remove") == {}
    store.attach("mine")
    assert len(store.runs()) == len(store.done()) == 8
    with pytest.raises(ReportError, match="kind: must be one of certified, label, got 'imported'"):
        api.best(load_runs(store), 3, kind="imported")
    run_id = runs_of(store, "papers")[1][0].info.run_id
    for words in (["export", run_id], ["audit", run_id]):
        assert main([*words, "--mlruns", str(root)]) == 2
        assert f"no trial has the trial_key or run id '{run_id}'" in capsys.readouterr().err


# The report

@pytest.fixture(scope="module")
def reports(root):
    """Folders of the sweep's report without and with the import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for words in (["--out", "without"], ["--with", "papers", "--out", "with"]):
            assert main(["report", "mine.yaml", "--mlruns", ".", "--format", "svg", *words]) == 0
    return root / "without", root / "with"


def test_they_stand_on_the_frontier_with_seeds_and_intervals_and_in_nothing_else(reports):
    without, shown = reports
    frontier = pd.read_csv(shown / "frontier.csv")
    own = frontier[frontier["kind"] == "imported"].set_index("epsilon")
    assert list(own.index) == [2.0, 2.7] and (own["source"] == "Doe 2024, table 2").all()
    half = 12.7062 * 2  # the t quantile with one degree of freedom; 80 and 84 have s/sqrt(2) = 2
    assert own.loc[2.0, ["mean", "half_width", "n"]].tolist() == pytest.approx([82, half, 2], abs=1e-3)
    assert own.loc[2.7, "mean"] == pytest.approx(86.1) and math.isnan(own.loc[2.7, "low"])
    assert own[["on_front", "on_overall_front", "chosen"]].isna().all(axis=None)
    pd.testing.assert_frame_equal(frontier[frontier["kind"] == "certified"].drop(columns="source"),
                                  pd.read_csv(without / "frontier.csv"), check_dtype=False)
    same = {path.name for path in without.iterdir() if path.read_bytes() == (shown / path.name).read_bytes()}
    assert {"runs.csv", "frontier_hypervolume.csv", "selection.csv", "selection.md"} <= same
    assert {path.name for path in shown.iterdir()} - {path.name for path in without.iterdir()} == {
        "frontier-3.tex", "imported-papers.csv"}  # a table more, in a file of its own


def test_notes_name_sources_and_what_is_left_out_and_why(reports):
    approved("imported", (reports[1] / "frontier.md").read_text(encoding="utf-8"))
    page = (reports[1] / "index.html").read_text(encoding="utf-8")
    assert KINDS["imported"][1] in page and KINDS["imported"][1] not in (
        reports[0] / "index.html").read_text(encoding="utf-8")


def test_the_report_has_what_it_takes_to_import_them_again(reports, root):
    assert sorted(map(repr, read_results(reports[1] / "imported-papers.csv")[0])) == sorted(
        map(repr, read_results(root / "results.csv")[0]))
    manifest = (reports[1] / "manifest.json").read_text()
    assert "photonic import imported-papers.csv --as papers" in manifest
    assert "photonic report mine.yaml --with papers" in manifest


@pytest.mark.parametrize(("words", "said"), [
    (["mine.yaml", "--with", "paper"], "no imported results named 'paper' (`photonic import FILE --as paper`); it has "
                                       "papers"),
    (["mine.yaml", "--with", "mine"], "no imported results named 'mine'"),
    (["mine.yaml", "mine.yaml", "--with", "papers"], "--with: is of one experiment, got it with two: papers"),
    (["bare.yaml", "--with", "papers"], "--with: imported results are shown in the exhibit frontier of certified "
                                        "trials, and the report of mine has none, got papers")])
def test_a_report_that_cannot_show_them_says_so(words, said, root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    (root / "bare.yaml").write_text(FILE.replace("[frontier]", "[means]"))
    assert main(["report", *words, "--mlruns", ".", "--out", "none"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (root / "none").exists()
