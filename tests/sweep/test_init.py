"""`photonic init`: the file that it writes trains, says what it does, and takes no longer than was asked for."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import output

from pipeline.cli import main
from pipeline.experiment.experiment import load_experiment, parse_experiment
from pipeline.experiment.preset import recommended
from pipeline.experiment.yaml_text import as_yaml, parse_yaml
from pipeline.learning.data.dataset import register_dataset
from pipeline.sweep import first_file
from pipeline.sweep.first_file import Answers
from pipeline.trials.config import ConfigError
from pipeline.trials.datasets import DATASETS
from pipeline.trials.naming import counted, duration

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def written(answers, algorithms=("bp", "dfa")):
    return first_file.text(Path("mine.yaml"), answers, algorithms)


def test_its_trials_are_those_that_are_recommended_and_the_readme_shows_it():
    shown = "".join(f"    {line}\n" for line in written(Answers(minutes=3)).splitlines())
    assert shown in README and "photonic init mine.yaml --minutes 3" in README
    trials = parse_experiment(written(Answers()), Path("mine.yaml")).trials
    assert len(trials) == 2 * 3 * 3
    last = {"algorithm": "dfa", "target_epsilon": 8, "seed": 2}
    assert trials[-1] == recommended(dataset="fashion_mnist", mechanism="per_example", **last)
    assert all(len(line) <= 120 for answers in (Answers(), Answers(private="nothing")) for line in
               written(answers, ("bp", "dfa", "tdfa", "pdfa")).splitlines())


@pytest.mark.parametrize(("answers", "algorithms", "fields"), [
    (Answers(private="labels", epsilons=(2, 4.5)), ("pdfa",), {"mechanism": "photonic", "target_label_epsilon": 4.5}),
    (Answers("digits", private="nothing"), ("bp", "dfa"), {"mechanism": "none", "target_epsilon": 0.0}),
    (Answers("mnist", "scattering", epsilons=(3,)), ("dfa",), {"features": "scattering", "target_epsilon": 3.0})])
def test_other_answers_give_other_files(answers, algorithms, fields):
    trial = parse_experiment(written(answers, algorithms), Path("mine.yaml")).trials[-1]
    assert (trial.dataset, trial.algorithm) == (answers.dataset, algorithms[-1])
    assert {name: getattr(trial, name) for name in fields} == fields


@pytest.mark.parametrize(("seconds", "private", "algorithms", "left_out"), [
    (150, "records", {"bp", "dfa", "tdfa", "pdfa"}, []), (100, "records", {"bp", "dfa"}, ["tdfa, pdfa"]),
    (40, "records", {"dfa"}, ["bp, tdfa, pdfa"]), (1, "records", {"dfa"}, ["bp, tdfa, pdfa"]),
    (600, "labels", {"pdfa"}, [])])
def test_as_many_algorithms_are_compared_as_have_settings_and_fit_the_time(tmp_path, monkeypatch, seconds, private,
                                                                           algorithms, left_out):
    """36 trials of four algorithms, of 4 s each here; the others are named."""
    monkeypatch.setattr(first_file, "preview",
                        lambda experiment, *a, **k: SimpleNamespace(seconds=4.0 * len(experiment.trials)))
    answers, file = Answers(private=private, minutes=seconds / 60), tmp_path / "mine.yaml"
    said = "\n".join(first_file.write(file, answers))
    trials = load_experiment(file).trials
    assert {trial.algorithm for trial in trials} == algorithms
    assert said.startswith(f"{file}: {counted(len(trials), 'trial')}, {duration(4 * len(trials))} on this machine")
    assert re.findall(r"^left out for time: (.+); with more", said, re.MULTILINE) == left_out


def test_the_command_writes_a_file_that_loads_and_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = output(capsys, "init", "mine.yaml", "--dataset", "digits", "--epsilon", "8", "--minutes", "30")
    assert re.match(r"mine.yaml: 12 trials, .* on this machine \(an estimate; 30 min at most were ", said)
    assert "`photonic sweep mine.yaml`, then `photonic report mine.yaml`" in said
    assert len(load_experiment("mine.yaml").trials) == 12
    assert output(capsys, "init", "mine.yaml", code=2) == (
        "error: mine.yaml: is there already; name another file, or remove it\n")


@pytest.mark.parametrize(("options", "says"), [
    (["--dataset", "fmnist"], "--dataset: must be one of fashion_mnist, mnist, cifar10, digits, svhn, got 'fmnist'"),
    (["--private", "all"], "--private: must be one of records, labels, nothing, got 'all'"),
    (["--epsilon", "0"], "--epsilon: must be numbers from 0.01 to 1000, got [0.0]"),
    (["--epsilon", "3,3"], "--epsilon: must be different numbers, got [3.0, 3.0]"),
    (["--epsilon", "one"], "--epsilon: must be numbers, got 'one'"),
    (["--private", "nothing", "--epsilon", "2"], "--epsilon: must be left out where nothing is private, got 2"),
    (["--minutes", "-1"], "--minutes: must be > 0, got -1"),
    (["--features", "pixel"], "--features: must be one of pixels, scattering, patches, encoder, file, got "
                              "'pixel'"),
    (["--dataset", "digits", "--private", "labels"], "preset: recommended has no settings for pdfa with")])
def test_wrong_answers_are_refused_and_nothing_is_written(options, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output(capsys, "init", "mine.yaml", *options, code=2).startswith(f"error: {says}")
    assert output(capsys, "init", "nowhere/mine.yaml", code=2) == (
        "error: nowhere/mine.yaml: must be in a folder that is there\n")
    assert not list(tmp_path.iterdir())


NAMES = ("7", "on", "Off", "yes", "no", "null", "true", "1e3", "1_000", "0x1F", "1.5", "2026-01-01", "12.30", "y",
         "nan")
TABLE = "age,outcome\n" + "".join(f"{3 * n % 50},{'well' if n % 2 else 'ill'}\n" for n in range(20))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_read_back_under_the_name_that_it_was_written_by(tmp_path, monkeypatch, name):
    text = first_file.text(Path(f"{name}.yaml"), Answers(), ("bp",))
    assert parse_experiment(text, Path(f"{name}.yaml")).name == name
    monkeypatch.chdir(tmp_path)
    Path("plain.csv").write_text(TABLE)
    list(first_file.write_for_table(Path(f"{name}.yaml"), Path("plain.csv"), "outcome"))
    assert parse_yaml(Path(f"{name}.yaml").read_text(), "f")["name"] == name


@pytest.mark.usefixtures("extensions")
@pytest.mark.parametrize(("table", "dataset"), [
    *((f"{name}.csv", "table_" + re.sub("[^a-z0-9]+", "_", name.lower().partition(".")[0])) for name in NAMES
      if name != "y" and name != "nan"),
    ("mnist.csv", "table_mnist"), ("MNIST.csv", "table_mnist"), ("digits.csv", "table_digits"), ("nan.csv", "nan"),
    ("taken.csv", "table_taken"), ("My: table #1 'x' \"y\".csv", "my_table_1_x_y"), ("two\nlines.csv", "two_lines"),
    ("läuft gut.csv", "l_uft_gut"), ("[a], {b}.csv", "a_b"), ("_.csv", "table")])
def test_what_is_written_for_a_table_is_what_the_next_command_takes(tmp_path, monkeypatch, table, dataset):
    monkeypatch.chdir(tmp_path)
    register_dataset("taken", DATASETS["digits"].spec, lambda spec, folder: None)
    Path(table).write_text(TABLE)
    assert main(["init", "x.yaml", "--csv", table, "--label", "outcome"]) == 0
    declaration = Path(f"{dataset}_table.yaml")
    declaration.write_text(declaration.read_text().replace("confirmed: false", "confirmed: true"))
    assert {trial.dataset for trial in load_experiment("x.yaml").trials} == {dataset}


def test_a_table_of_which_no_column_is_left_gets_no_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("id,outcome\n" + "".join(f"{n},{'well' if n % 2 else 'ill'}\n" for n in range(20)))
    said = output(capsys, "init", "x.yaml", "--csv", "t.csv", "--label", "outcome", code=2)
    assert "must have a column that can be an input, beside 'outcome'; left out are 'id' (row numbers" in said
    assert [path.name for path in Path().iterdir()] == ["t.csv"]


def test_texts_are_written_as_they_are_read():
    for text in (*NAMES, "a b", "a: b", "a #b", "'", '"', "[a", "~", "...", "---", "é", "\x85", "\u2028", "\U0001f600",
                 "\x7f", "\x80\U0001f600", "\ufeff", "", "two\nlines", "- a", "%a", "@a", "&a", "*a", "!a", "a\\b"):
        assert parse_yaml(f"{{x: [{as_yaml(text)}, {as_yaml(text)}]}}", "f") == {"x": [text, text]}
        assert len(as_yaml(text).splitlines()) == 1
    assert as_yaml("plain_table.yaml") == "plain_table.yaml"


def test_who_protects_labels_is_told_of_what_does_it_better(tmp_path, monkeypatch):
    monkeypatch.setattr(first_file, "preview", lambda experiment, *a, **k: SimpleNamespace(seconds=4.0))
    said = list(first_file.write(tmp_path / "mine.yaml", Answers(private="labels")))
    advice = "To protect labels rather than study the device, randomised response is more accurate (docs/privacy.md"
    assert [line for line in said if line.startswith(advice)]
    assert f"\n# {advice}" in (tmp_path / "mine.yaml").read_text(encoding="utf-8")
    assert "randomised" not in written(Answers())


def test_what_no_option_says_is_asked():
    replies = iter(["mnist", "", "", "1 2", ""])
    asked = []
    answers = first_file.read_answers({"dataset": None}, lambda question: (asked.append(question), next(replies))[1])
    assert answers == Answers("mnist", "pixels", "records", (1.0, 2.0), 10.0) and len(asked) == 5
    assert asked[3] == "Epsilons [1,3,8]: "
    asked.clear()
    silent = first_file.read_answers({"private": "nothing", "dataset": "digits", "features": "pixels", "minutes": "2"},
                              lambda question: asked.append(question) or "")
    assert not asked and silent.minutes == 2.0
    with pytest.raises(ConfigError, match="^--minutes: must be a number, got 'soon'"):
        first_file.read_answers({"minutes": "soon"}, lambda question: "")
