"""Results that others trained: their CSV file, on frontiers, and in nothing that counts."""

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest
import yaml
from approved import approved
from stored import records, stored

from analysis.report.report import write
from pipeline.cli import main
from pipeline.experiment.experiment import parse_experiment
from pipeline.experiment.results import CELLS, Cited, read_results
from pipeline.tracking.store import Store
from pipeline.trials.fields import ConfigError
from pipeline.trials.kinds import KINDS

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
def refusals(root, tmp_path, capsys):
    """What is said of a file with these rows, or this text: by `report --with`, and of a file that names it."""
    def run(rows):
        (tmp_path / "results.csv").write_text(rows if isinstance(rows, str) else table(rows), encoding="utf-8")
        (tmp_path / "mine.yaml").write_text(f"{FILE}references: results.csv\n")
        (tmp_path / "plain.yaml").write_text(FILE)
        said = []
        for words in (["report", "plain.yaml", "--with", "results.csv", "--mlruns", str(root)],
                      ["sweep", "mine.yaml"], ["account", "mine.yaml"]):
            assert main(words) == 2
            out, error = capsys.readouterr()
            assert not out and error.count("\n") == 1
            said.append(error.removesuffix("\n"))
        assert said[1] == said[2] == f"{said[0]} (mine.yaml)" or " It stands" in said[1]
        assert {path.name for path in tmp_path.iterdir()} == {"results.csv", "mine.yaml", "plain.yaml"}
        return said[0]
    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A store with a sweep `mine` that has ended, and results of others in `papers.csv`."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "mine.yaml").write_text(FILE)
    (folder / "papers.csv").write_text(table(ROWS))

    def records_of(trial):
        accuracy = 0.6 + 0.01 * trial.target_epsilon + 0.02 * trial.seed + 0.05 * (trial.algorithm == "bp")
        return records(trial, [{"validation/accuracy": accuracy, "test/accuracy": accuracy,
                                "epsilon/certified/pld": trial.target_epsilon}], {
            "privacy.certified": "simulated", "privacy.relation": "add/remove", "privacy.delta": "1e-05"})

    store = stored(folder, "mine", parse_experiment(FILE, folder / "mine.yaml").trials, records_of)
    store.log_experiment(FILE)
    store.close_sweep("FINISHED")
    return folder


# The file

def test_columns_come_in_any_order_and_numbers_as_people_write_them(tmp_path):
    rows = [{**CNN, "epsilon": " 2.0 ", "delta": "0.00001", "source": "a\n b"}, {**CNN, "seed": "1", "accuracy": "1"}]
    text = "\ufeff" + table(rows, tuple(reversed(CELLS))) + ",,,,,,,\r\n\r\n"
    (tmp_path / "a.csv").write_bytes(text.encode())
    assert read_results(tmp_path / "a.csv") == (
        Cited("digits", "CNN $x_1$", 2.0, 1e-5, "add/remove", 0, 0.8, "a b"),
        Cited("digits", "CNN $x_1$", 2.0, 1e-5, "add/remove", 1, 1.0, "Doe 2024, table 2"))


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
    ("method", " ", "a text"), ("source", "", "a text"), ("method", "a\x1b[31mb", "printable")])
def test_a_wrong_cell_is_refused_by_row_and_column_before_anything_is_done(name, cell, said, refusals):
    error = refusals([ROWS[0], {**ROWS[1], name: cell}])
    assert error.startswith(f"error: results.csv, row 3, column {name}: must be ") and said in error


@pytest.mark.parametrize(("text", "said"), [
    ("", "must have a row with the names of its columns and one for each result, has nothing"),
    (table([]), "has one row"),
    (table([CNN], tuple(CELLS)[:-1]), "row 1: must have every column once, but not so source"),
    (table([CNN], (*CELLS, "seed")), "not so seed"),
    (table([CNN]).replace("method", "methods"), "row 1: unknown column 'methods'; did you mean 'method'?"),
    (table([CNN]).replace(",", ";"), "row 1: unknown column 'dataset;method;"),
    (table([CNN]) + "digits,CNN\n", "row 3: must have 8 cells, one for each column, has 2"),
    (table([CNN, CNN]), "row 3, column seed: must differ from that of results.csv, row 2"),
    (table([CNN, {**CNN, "epsilon": "2.0", "seed": "00", "accuracy": "0.9", "source": "another"}]),
     "row 2, as data set, method, epsilon, delta and relation are the same, got 0 "),
    (table([{**CNN, "seed": ""}] * 2), "got none twice"),
    (table([CNN, {**CNN, "seed": ""}]), "row 3, column seed: must be there for all rows"),
    (table([{**CNN, "seed": ""}, CNN]), "got 0 beside results.csv, row 2"),
    (table([CNN]) + '"digits', "cannot be read as CSV")])
def test_a_file_that_is_no_table_of_results_is_refused(text, said, refusals):
    error = refusals(text)
    assert error.startswith("error: results.csv") and said in error


@pytest.mark.parametrize("file", ["none.csv", ".", "latin.csv", '"a\\0b"'])
def test_what_cannot_be_read_is_refused_where_it_is_named(file, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "latin.csv").write_bytes("é".encode("latin-1"))
    path = tmp_path / "folder" / yaml.safe_load(file)
    with pytest.raises(ConfigError, match=rf"^{path}: cannot be read as CSV .*e.yaml"):
        parse_experiment(f"{FILE}references: {file}", tmp_path / "folder" / "e.yaml")


# The report

@pytest.fixture(scope="module")
def reports(root):
    """Folders of the sweep's report without and with results of others, and of a file that names them."""
    (root / "named.yaml").write_text(f"{FILE}references: papers.csv\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for file, *words in (["mine", "--out", "without"], ["mine", "--with", "papers.csv", "--out", "with"],
                             ["named", "--out", "named"],
                             ["named", "--with", "papers.csv", "--with", "papers.csv", "--out", "twice"]):
            assert main(["report", f"{file}.yaml", "--mlruns", ".", "--format", "svg", *words]) == 0
    return [root / name for name in ("without", "with", "named", "twice")]


def test_they_stand_on_the_frontier_with_seeds_and_intervals_and_in_nothing_else(reports):
    without, shown, *_ = reports
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
    assert {"runs.csv", "selection.csv", "selection.md"} <= same
    assert {path.name for path in shown.iterdir()} - {path.name for path in without.iterdir()} == {
        "frontier-2.tex", "references.csv"}  # a table more, in a file of its own


def test_notes_name_sources_and_what_is_left_out_and_why(reports):
    approved("results_of_others", (reports[1] / "frontier.md").read_text(encoding="utf-8"))
    page = (reports[1] / "index.html").read_text(encoding="utf-8")
    assert KINDS["imported"][1] in page and KINDS["imported"][1] not in (
        reports[0] / "index.html").read_text(encoding="utf-8")


def test_a_file_that_names_them_or_rows_named_twice_show_the_same_and_what_shows_them_again_is_there(reports, root):
    _, shown, *others = reports
    for folder in others:
        for name in ("frontier.csv", "frontier.md", "references.csv"):
            assert (folder / name).read_bytes() == (shown / name).read_bytes()
    assert read_results(reports[1] / "references.csv") == read_results(root / "papers.csv")
    assert "photonic report mine.yaml --with references.csv" in (reports[1] / "manifest.json").read_text()


def test_references_that_a_file_lists_are_rows_without_data_set_and_seed(root):
    text = "{source: They 2021, epsilon: 3, delta: 1.0e-5, accuracy: 90}"
    result, = parse_experiment(f"{FILE}references: [{text}]", root / "e.yaml").references
    assert result == Cited("", "They 2021", 3, 1e-5, "", None, 0.9, "They 2021") and result.is_listed
    twice = f"{text}, {text}, {text.replace('90', '91')}"
    references = parse_experiment(f"{FILE}references: [{twice}]", root / "e.yaml").references
    assert [reference.accuracy for reference in references] == [0.9, 0.91], "each is marked by itself, and once"


def test_a_path_that_a_store_names_is_not_read(root, monkeypatch):
    """Another file may lie there by now."""
    monkeypatch.chdir(root)
    stored = parse_experiment(f"{FILE}references: papers.csv", Path("mine.yaml"), stored=True)
    assert stored.references == () and len(stored.trials) > 1
    with pytest.raises(ConfigError, match="references: are results in a CSV file, which the store does not keep, got "
                                          "papers.csv; name the experiment file, or give them by --with"):
        write(stored, Store(root=root, create=False), root / "stored")


@pytest.mark.parametrize(("words", "said"), [
    (["mine.yaml", "--with", "paper"], "error: paper: cannot be read as CSV"),
    (["mine.yaml", "--with", "papers.csv", "--with", "other.csv"],
     "error: other.csv, row 2, column seed: must differ from that of papers.csv, row 2"),
    (["mine.yaml", "mine.yaml", "--with", "papers.csv"], "--with: is of one experiment, got it with two: papers.csv"),
    (["bare.yaml", "--with", "papers.csv"], "--with: results of others are shown in the exhibit frontier of certified "
                                            "trials, and the report of mine has none, got papers.csv")])
def test_a_report_that_cannot_show_them_says_so(words, said, root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    (root / "other.csv").write_text(table([{**CNN, "accuracy": "0.9"}]))
    (root / "bare.yaml").write_text(FILE.replace("[frontier]", "[means]"))
    assert main(["report", *words, "--mlruns", ".", "--out", "none"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (root / "none").exists()
