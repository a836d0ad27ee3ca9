"""A table as a data set: what is declared, how rows become records, and what is refused."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from registries import forgotten_plugins
from safetensors.numpy import save_file

from pipeline.cli import main
from pipeline.experiment.experiment import load_experiment
from pipeline.experiment.plugins import LOADED, load_plugins
from pipeline.learning.data.dataset import DataError, load
from pipeline.learning.data.table_reader import table_records
from pipeline.learning.export import _predict
from pipeline.sweep.worker import prepare_node
from pipeline.trials.config import TrialConfig
from pipeline.trials.declared_table import table_inputs
from pipeline.trials.fields import ConfigError
from pipeline.trials.part import PARTS

CSV = """age, income,ward,outcome,part
0,1000,north,well,a
120,1e6,south,ill,b
-7,10,west,well,b
60,,,ill,a
"""
DECLARED = {"dataset": "patients", "data_file": "patients.csv", "label": "outcome", "classes": ["well", "ill"],
            "columns": {"age": {"range": [0, 120]}, "income": {"range": [1e3, 1e6], "scale": "log"},
                        "ward": {"values": ["north", "south"], "others": True}},
            "records": {"train": 2, "test": 2}, "test": {"column": "part", "value": "b"}, "confirmed": True}
TRIAL = dict(dataset="patients", mechanism="per_example", noise_multiplier=1.0, batch_size=2, hidden=(4,),
             validation_fraction=0.0, sampler="poisson")


pytestmark = pytest.mark.usefixtures("extensions")


def declare(folder, csv=CSV, **changes):
    (folder / "patients.csv").write_text(csv, encoding="utf-8")
    content = {name: value for name, value in {**DECLARED, **changes}.items() if value is not None}
    (folder / "patients.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    load_plugins(["patients.yaml"], folder)


def test_a_row_becomes_a_record_by_what_is_declared(tmp_path):
    declare(tmp_path)
    data = load("patients")
    #                                  age, log income, north, south, all others
    assert data.train_x.tolist() == [[0, 0, 255, 0, 0], [128, 128, 0, 0, 255]]  # missing: the middle, and all others
    assert data.test_x.tolist() == [[255, 255, 0, 255, 0], [0, 0, 0, 0, 255]]  # beyond the range: clamped
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 1], [1, 0])


def test_a_seed_draws_the_test_records_or_a_second_file_has_them(tmp_path):
    lines = CSV.splitlines(keepends=True)
    (tmp_path / "test.csv").write_text("".join([lines[0], *lines[2:4]]))
    test = np.sort(np.random.default_rng(3).permutation(4)[2:])
    for csv, declared, ages in ((CSV, {"share": 0.5, "seed": 3}, [[0, 255, 0, 128][row] for row in test]),
                                ("".join([lines[0], lines[1], lines[4]]), {"file": "test.csv"}, [255, 0])):
        with forgotten_plugins():
            declare(tmp_path, csv, test=declared)
            assert load("patients").test_x[:, 0].tolist() == ages
    declare(tmp_path, test={"share": 0.5, "seed": 3}, records={"train": 3, "test": 3})
    with pytest.raises(DataError, match="patients.csv: must have 6 records, the sum that records declares, got 4"):
        load("patients")


def test_the_key_has_what_is_declared_and_not_where_the_file_is(tmp_path):
    columns, keys = DECLARED["columns"], []
    for number, changes in enumerate((
            {}, {"separator": ",", "csv": CSV + "1,1,north,well,c\n"}, {"records": {"train": 3, "test": 2}},
            {"classes": ["ill", "well"]}, {"columns": {**columns, "age": {"range": [0, 121]}}},
            {"columns": {name: columns[name] for name in reversed(columns)}}, {"test": {"share": 0.5, "seed": 0}})):
        folder = tmp_path / str(number)
        folder.mkdir()
        with forgotten_plugins():
            declare(folder, **changes)
            assert LOADED["patients.yaml"] == PARTS["dataset"]["patients"].declared
            keys.append(TrialConfig(**TRIAL).trial_key)
    assert keys[0] == keys[1] and len(set(keys)) == 6
    declare(tmp_path)
    (tmp_path / "patients.yaml").write_text((tmp_path / "patients.yaml").read_text() + "# a comment")
    load_plugins(["patients.yaml"], tmp_path)
    trial = pickle.loads(pickle.dumps(TrialConfig(**TRIAL)))
    assert trial.trial_key == keys[0] and trial.canonical()["table"] == PARTS["dataset"]["patients"].declared
    with pytest.raises(ConfigError, match=r"table: must be \w{16}, which patients.yaml declares, got 0{16}; the file"):
        TrialConfig(**TRIAL, table="0" * 16)


def test_a_proposal_is_refused_until_it_is_confirmed_and_then_the_table_is_read(tmp_path, capsys):
    csv = "".join(CSV.splitlines(keepends=True)[:1] + CSV.splitlines(keepends=True)[1:] * 5).replace("north", "no")
    (tmp_path / "My patients.csv").write_text(csv)
    words = ["init", str(tmp_path / "e.yaml"), "--csv", str(tmp_path / "My patients.csv"), "--label", "outcome"]
    assert main(words) == 0 and "which is a leak" in capsys.readouterr().out
    assert main(words) == 2 and "e.yaml: is there already" in capsys.readouterr().err
    assert main([*words, "--epsilon", "3"]) == 2 and "no other option, got others" in capsys.readouterr().err
    assert main(words[:-2]) == 2 and "--label, got one without the other" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="confirmed: must be true, got False; what was read from the records"):
        load_experiment(tmp_path / "e.yaml")
    file = tmp_path / "my_patients_table.yaml"
    text = file.read_text()
    file.write_text(text.replace("confirmed: false", "confirmed: true"))
    assert len(load_experiment(tmp_path / "e.yaml").trials) == 18
    spec = load("my_patients").spec
    assert (spec.n_train, spec.n_test, spec.classes) == (16, 4, ("ill", "well"))
    assert [(column.name, column.low, column.high, column.values) for column in spec.columns] == [
        ("age", -7, 120, ()), ("income", 10, 1e6, ()), ("ward", 0, 1, ("no", "south", "west")),
        ("part", 0, 1, ("a", "b"))]
    assert text.count("# read from the records") == 5
    other = tmp_path / "other.csv"
    words = ["init", str(tmp_path / "other.yaml"), "--csv", str(other), "--label", "outcome"]
    other.write_text("ward,outcome\nnorth,ill\nNA,\nsouth,well\n")
    assert main(words) == 2 and "line 3, column 'outcome': must have a class, got none" in capsys.readouterr().err
    other.write_text("ward,outcome\nnorth,ill\nNA,well\nsouth,well\n")
    assert main(words) == 0 and 'values: ["NA", "north", "south"]' in (tmp_path / "other_table.yaml").read_text()


@pytest.mark.parametrize(("changes", "message"), [
    ({"confirmed": None}, r"confirmed: must be declared, got nothing"),
    ({"confirmed": False}, r"confirmed: must be true, got False; what was read from the records is a leak"),
    ({"color": 1}, r"color: must be no entry of a table, got 1; entries are dataset, data_file"),
    ({"classes": ["well"]}, r"classes: must be at least two, got well"),
    ({"classes": [True, False]}, r"classes: must be texts or numbers, got True; YAML reads yes, no"),
    ({"columns": {}}, r"columns: must be a mapping of columns, got \{\}"),
    ({"columns": {"age": [0, 120]}}, r"columns.age: must be \{range: \[low, high\]\}.*got \[0, 120\].*line 8"),
    ({"columns": {"age": {"range": [120, 0]}}}, r"columns.age.range: must be two numbers, the smaller first"),
    ({"columns": {"age": {"range": [0, 1], "scale": "log"}}}, r"columns.age.range: must be > 0 with scale log"),
    ({"columns": {"age": {"range": [0, 1], "scale": "ln"}}}, r"columns.age.scale: must be linear or log, got 'ln'"),
    ({"label": "age"}, r"label: must be no column of `columns`, got age"),
    ({"records": 4}, r"records: must be \{train: N, test: N\}, got 4"),
    ({"records": {"train": 0, "test": 4}}, r"records.train: must be a whole number >= 1, got 0"),
    ({"test": {"share": 0.25, "seed": 0}}, r"records.test: must be 1, 0.25 of 4, got 2"),
    ({"test": {"share": 2, "seed": 0}}, r"test.share: must be between 0 and 1, got 2"),
    ({"test": "last"}, r"test: must be \{share: 0.2, seed: 0\}, \{column"),
    ({"dataset": "mnist"}, r"dataset: must be a name that no other data set has in this process, got 'mnist'"),
    ({"label": 1}, r"label: must be text, got 1; in quotes it is text"),
    ({"separator": None, "decimal": ";"}, r"decimal: must be '.' or ',', got ';'"),
    ({"classes": ["well", float("nan")]}, r"classes: must be texts or numbers, got nan"),
    ({"test": {"column": "part", "value": True}}, r"test.value: must be texts or numbers, got True"),
    ({"dataset": "My Table"}, r"dataset: must be small letters, digits and '_'"),
    ({"thousands": "_"}, r"thousands: must be ',', '.', ' ' or an apostrophe, got '_'"),
    ({"thousands": "."}, r"thousands: must be another mark than that of decimals, got '.'; 12,345 is twelve thousand"),
    ({"thousands": ",", "decimal": ","}, r"thousands: must be another mark than that of decimals"),
    ({"separator": ",", "decimal": ","}, r"separator: must be no mark within numbers, got ','; left out"),
    ({"separator": " ", "thousands": " "}, r"separator: must be no mark within numbers, got ' '"),
    ({"separator": ""}, r"separator: must be one character, got ''"),
    ({"encoding": "utf-99"}, r"encoding: must be utf-8, utf-16, cp1252 or another one of Python's, got 'utf-99'"),
    ({"encoding": "rot13"}, r"encoding: must be utf-8"), ({"encoding": 1252}, r"encoding: must be text, got 1252"),
    ({"classes": [1, 1.0]}, r"classes: must differ from each other, got 1, 1.0; 1 and 1.0 are one number"),
    ({"classes": [1, "1"]}, r"classes: must differ from each other, got 1, 1"),
    ({"columns": {"age": {"values": [1, 1.0]}}}, r"columns.age.values: must differ from each other, got 1, 1.0"),
    ({"columns": {"age": {"values": ["a"], "others": False}}}, r"columns.age.others: must be true, got False"),
    ({"columns": {"age": {"range": [0, 1], "others": True}}}, r"columns.age: must be .* with `others: true` beside")])
def test_declarations_that_are_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        declare(tmp_path, **changes)
    assert str(tmp_path / "patients.yaml") in str(error.value)


@pytest.mark.parametrize(("csv", "message"), [
    (CSV.replace(",", ";"), r"cells must be separated by ',', got 'age; income.*declare separator: ';'"),
    (CSV.replace("60,", '"60,5",'), r"line 5, column 'age': must be a number, got '60,5'; declare decimal"),
    (CSV.replace(" income", "age"), r"columns must have different names, got age more than once"),
    (CSV.replace("ward", "room"), r"must have the declared column 'ward', its columns are age, income, room"),
    (CSV.replace("part", "parts"), r"must have the declared column 'part'"),
    (CSV.replace("south,ill", "south,"), r"line 3, column 'outcome': must be one of well, ill, got ''"),
    (CSV.replace("south,ill", "south,Ill"), r"line 3, column 'outcome': must be one of well, ill, got 'Ill'"),
    (CSV.replace("south,ill", "south,well"), r"every class must have test records, got none of ill"),
    (CSV + "1,1,north,well,a\n", r"must have 2 train records, as records.train declares, got 3")])
def test_tables_that_are_refused(tmp_path, csv, message):
    declare(tmp_path, csv)
    with pytest.raises(DataError, match=message) as error:
        load("patients")
    assert not any(word in error.value.public for word in ("patients", "60", "ill", "room"))
    assert ("declared column" in error.value.public) == ("declared column" in message)  # no record has to do with it


def test_a_missing_cell_of_parquet_changes_no_other_record(tmp_path):
    frame = pd.DataFrame({"age": [1, 2, 10**18 + 1, 10**18 + 2], "outcome": ["well", "ill"] * 2, "part": list("aabb")})
    changes = dict(data_file="p.parquet", test={"column": "part", "value": "b"},
                   columns={"age": {"values": [2, 10**18 + 1, 10**18 + 2], "others": True}})
    frame.to_parquet(tmp_path / "p.parquet")
    declare(tmp_path, **changes, classes=["well", "ill"], records={"train": 2, "test": 2})
    whole = load("patients").test_x
    frame.astype({"age": "Int64"}).assign(age=lambda table: table["age"].where(table.index != 0)).to_parquet(
        tmp_path / "p.parquet")
    assert load("patients").test_x.tolist() == whole.tolist() == [[0, 255, 0, 0], [0, 0, 255, 0]]


def test_another_file_of_the_name_is_refused_in_one_process_and_by_a_worker(tmp_path):
    (tmp_path / "other").mkdir()
    declare(tmp_path)
    trial = pickle.dumps(TrialConfig(**TRIAL))
    with pytest.raises(ConfigError, match="dataset: must be a name that no other .* after an edit of the file start"):
        declare(tmp_path / "other")
    with forgotten_plugins():
        for registry in (PARTS["dataset"], LOADED):  # as in another process
            registry.clear()
        declare(tmp_path, columns={"age": {"range": [0, 100]}})
        with pytest.raises(ConfigError, match=r"table: must be \w{16}, which patients.yaml declares, got \w{16}"):
            prepare_node([pickle.loads(trial)], None, tmp_path / "checkpoints", tmp_path / "log")


def test_rows_of_a_feature_file_are_the_records_of_a_table(tmp_path, capsys):
    declare(tmp_path)
    save_file({name: np.zeros((2, 7), np.float32) for name in ("train", "test")}, tmp_path / "x.safetensors")
    (tmp_path / "e.yaml").write_text(yaml.safe_dump({"plugins": ["patients.yaml"], "base": {
        **TRIAL, "hidden": [4], "features": "file", "feature_file": "x.safetensors", "feature_source": "an encoder"}}))
    assert main(["sweep", "--dry-run", str(tmp_path / "e.yaml"), "--mlruns", str(tmp_path)]) == 0
    assert "; the columns of the table 'patients' are not used\n" in capsys.readouterr().out
    assert "A record is a row of 7 features" in _predict(*load_experiment(tmp_path / "e.yaml").trials)


def test_a_missing_declaration_and_a_missing_table_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"plugins: 'patients.yaml' cannot be read .*; it must be the declaration"):
        load_plugins(["patients.yaml"], tmp_path)
    declare(tmp_path)
    (tmp_path / "patients.csv").unlink()
    with pytest.raises(DataError, match=r"patients.csv: must be the file of the table, found none"):
        load("patients")


def test_another_file_becomes_records_by_the_declaration_and_needs_no_label(tmp_path):
    declare(tmp_path)
    (tmp_path / "new.csv").write_text("ward,age,income\nnorth,0,1000\n,60,\neast,-7,10\n")
    records = table_records("patients", tmp_path / "new.csv")
    assert records.dtype == torch.uint8 and records[:2].tolist() == load("patients").train_x.tolist()
    assert records[2].tolist() == [0, 0, 0, 0, 255]
    with pytest.raises(ConfigError, match="file: must be the path of a file, got a DataFrame"):
        table_records("patients", pd.DataFrame())
    (tmp_path / "new.csv").write_text("age,income,Wards\n1,2,north\n")
    with pytest.raises(DataError, match=r"new.csv: must have the declared column 'ward', did you mean 'Wards'\? its "):
        table_records("patients", tmp_path / "new.csv")


def test_the_inputs_of_a_column_are_found_by_its_name(tmp_path):
    declare(tmp_path)
    assert table_inputs("patients") == {"age": slice(0, 1), "income": slice(1, 2), "ward": slice(2, 5)}
    for name in ("digits", "nurses"):
        with pytest.raises(ConfigError, match=f"dataset: must be a table whose declaration is loaded, got '{name}'"):
            table_inputs(name)
