"""Cells of a table: each is what its owner meant by the declaration, or an error with its line."""

import bz2
import gzip
import lzma
import zipfile

import numpy as np
import pandas as pd
import pytest
import yaml
from registries import forgotten_plugins

from pipeline.api import train
from pipeline.cli import main
from pipeline.experiment.plugins import LOADED, load_plugins
from pipeline.learning.data.dataset import DataError, load
from pipeline.learning.data.numbers import Style
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError

pytestmark = pytest.mark.usefixtures("extensions")
LABELS = ["a", "b"]


def declare(folder, columns, data=b"", name="t.csv", **changes):
    """Declare a table whose records are all in the training and, by a second file, in the test set."""
    for part in ("", "test_"):
        if data:
            (folder / f"{part}{name}").write_bytes(data)
    content = {"dataset": "t", "data_file": name, "label": "y", "classes": LABELS, "columns": columns,
               "records": {"train": 4, "test": 4}, "test": {"file": f"test_{name}"}, "confirmed": True, **changes}
    (folder / "t.yaml").write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    load_plugins(["t.yaml"], folder)


def column(*cells, separator=","):
    """A table with one column of four cells, each in quotes."""
    rows = [f'"{cell}"{separator}{LABELS[place % 2]}\n' for place, cell in enumerate(cells)]
    return f"x{separator}y\n{''.join(rows)}".encode()


def read(folder, columns, data, **changes):
    with forgotten_plugins():
        declare(folder, columns, data, **changes)
        return load("t").train_x.tolist()


def message(folder, columns, data, **changes):
    with forgotten_plugins():
        declare(folder, columns, data, **changes)
        with pytest.raises(DataError) as error:
            load("t")
    assert error.value.of_record
    return str(error.value).removeprefix(str(folder))


def one_hot(width, *places):
    return (255 * np.eye(width, dtype=int)[list(places)]).tolist()


@pytest.mark.parametrize("cells", [("1", "2", "1", ""), ("1.0", "2.0", "01", "NA"), ("1e0", "+2", "1.", "?"),
                                   ("001.00", "20e-1", "0.1e1", "nan")])
def test_a_declared_number_is_a_cell_by_value(tmp_path, cells):
    assert read(tmp_path, {"x": {"values": [1, 2.0]}}, column(*cells)) == one_hot(3, 0, 1, 0, 2)


def test_a_declared_number_is_read_in_the_tables_style(tmp_path):
    columns = {"x": {"values": [1, 2.5, 1000]}}
    assert read(tmp_path, columns, column("1,0", "2,50", "1000,", "1"), decimal=",") == one_hot(4, 0, 1, 2, 0)
    assert read(tmp_path, columns, column("1.000", "2,5", "1", "1,00"), decimal=",", thousands=".") == one_hot(
        4, 2, 1, 0, 0)
    assert "got '1,0'; add it to values, or declare others" in message(tmp_path, columns, column("1,0", "1", "1", "1"))


def test_a_declared_text_is_a_cell_by_its_text_alone(tmp_path):
    columns = {"x": {"values": ["01", "1", "1.0"]}}
    assert read(tmp_path, columns, column("1", "01", "1.0", "")) == one_hot(4, 1, 0, 2, 3)
    said = message(tmp_path, columns, column("1", "01", "001", ""))
    assert said == ("/t.csv, line 4, column 'x': must be one of 01, 1, 1.0, got '001'; a text in quotes is a cell by "
                    "its text alone: declare numbers without quotes")


def test_classes_and_the_column_of_test_records_match_as_categories_do(tmp_path):
    table = b"x,y,part\n1,0.0,1.0\n2,1.0,1.0\n3,0.0,2.0\n4,1.0,2.0\n"
    with forgotten_plugins():
        declare(tmp_path, {"x": {"range": [0, 255]}}, table, classes=[0, 1], records={"train": 2, "test": 2},
                test={"column": "part", "value": 2})
        data = load("t")
        assert data.spec.classes == ("0", "1") and data.test_x.tolist() == [[3], [4]]
        assert data.train_y.tolist() == data.test_y.tolist() == [0, 1]
    assert "line 2, column 'y': must be one of 0, 1, got '0.0'; a text in quotes" in message(
        tmp_path, {"x": {"range": [0, 1]}}, table, classes=["0", "1"])


def test_another_cell_is_an_error_unless_others_are_declared_and_a_missing_one_has_an_input(tmp_path):
    table = column("north", "", "west", "None")
    assert message(tmp_path, {"x": {"values": ["north", "south"]}}, table) == (
        "/t.csv, line 4, column 'x': must be one of north, south, got 'west'; add it to values, or declare others: "
        "true for a category of all others")
    assert read(tmp_path, {"x": {"values": ["north", "south"], "others": True}}, table) == one_hot(3, 0, 2, 2, 2)
    assert read(tmp_path, {"x": {"values": ["north", "west"]}}, table) == one_hot(3, 0, 2, 1, 2)


def test_a_declared_text_wins_over_its_meaning_of_a_missing_cell(tmp_path):
    table = column("None", "NA", "mild", "")
    assert read(tmp_path, {"x": {"values": ["mild", "None", "NA"]}}, table) == one_hot(4, 1, 2, 0, 3)
    assert read(tmp_path, {"x": {"values": ["mild", "None"]}}, table) == one_hot(3, 1, 2, 0, 2)
    labels = table.replace(b",a", b",None").replace(b",b", b",some")
    with forgotten_plugins():
        declare(tmp_path, {"x": {"values": ["mild"], "others": True}}, labels, classes=["None", "some"])
        assert load("t").train_y.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("cell", "marks"), [
    ("1234.5", {}), ("1,234.5", {"thousands": ","}), ("1234.5", {"thousands": ","}), ("1234,5", {"decimal": ","}),
    ("1.234,5", {"decimal": ",", "thousands": "."}), ("1 234,5", {"decimal": ",", "thousands": " "}),
    ("1\u00a0234,5", {"decimal": ",", "thousands": " "}), ("1\u202f234,5", {"decimal": ",", "thousands": " "}),
    ("+1234.5", {}), ("1'234.5", {"thousands": "'"}), ("1\u2019234.5", {"thousands": "'"}),
    ("12345e-1", {"thousands": ","})])
def test_a_number_is_read_in_the_declared_style(tmp_path, cell, marks):
    read_ = read(tmp_path, {"x": {"range": [1234.5 - 255, 1234.5]}}, column(cell, "", "\u22129999", "99999"), **marks)
    assert read_ == [[255], [128], [0], [255]]


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1 000", "€5", "12%", "1_000", "0x10", "1,23", "12,34,567",
                                  "1,2345", "0,125", "1.5.2", "5 kg", "--1", "٣", "1e", "TRUE", "12,3456"])
def test_any_other_text_is_no_number_and_grouping_is_right(tmp_path, cell):
    for marks in ({}, {"thousands": ","}):
        said = message(tmp_path, {"x": {"range": [0, 1]}}, column("1", cell, "2", "3"), **marks)
        assert said.startswith(f"/t.csv, line 3, column 'x': must be a number, got {cell!r}; ")


def test_a_reading_is_advised_that_fits_the_whole_column(tmp_path):
    columns = {"x": {"range": [0, 20000]}}
    for cells, use in ((("5,033", "812", "12,345", ""), "declare decimal: '.' and thousands: ',', by which it is 5033"),
                       (("60,5", "5,033", "1", "2"), "declare decimal: ',', by which it is 60.5"),
                       (("5.033,5", "1", "2", "3"), "declare decimal: ',' and thousands: '.', by which it is 5033.5"),
                       (("5 033,5", "1", "2", "3"), "declare decimal: ',' and thousands: ' ', by which it is 5033.5"),
                       (("5'033.5", "1", "2", "3"), "declare decimal: '.' and thousands: \"'\", by which it is 5033.5"),
                       (("5,033", "many", "1", "2"), "a number has no unit and no other sign; declare values: [...]")):
        assert f"got {cells[0]!r}; {use}" in message(tmp_path, columns, column(*cells))


@pytest.mark.parametrize(("decimal", "other"), [(",", "."), (".", ",")])
def test_a_mark_that_may_be_of_decimals_or_of_thousands_is_refused_until_both_are_declared(tmp_path, decimal, other):
    columns = {"x": {"range": [0, 20000]}}
    table = column(*(cell.replace(",", decimal) for cell in ("5,033", "812", "-12,345", "")))
    said = message(tmp_path, columns, table, decimal=decimal)
    assert said.endswith(f"declare {Style(decimal, other)} if it is 5.033, {Style(other, decimal)} if it is 5033")
    assert read(tmp_path, columns, table, decimal=decimal, thousands=other)[0] == [0]
    assert read(tmp_path, columns, table, decimal=other, thousands=decimal)[0] == [64]
    # Longer decimals, a whole number without marks, or a range in which thousands cannot be: there is one reading.
    for cell in (f"1{decimal}25", "5258", f"0{decimal}125"):
        assert read(tmp_path, columns, column(f"5{decimal}033", cell, "1", "2"), decimal=decimal)[0] == [0]
    assert read(tmp_path, {"x": {"range": [0, 10]}}, table, decimal=decimal)[0] == [128]


def test_others_belong_to_what_is_declared_and_formats_do_not(tmp_path):
    digests = []
    for values, formats in (({}, {}), ({}, {"thousands": ",", "encoding": "cp1252"}), ({"others": True}, {})):
        with forgotten_plugins():
            declare(tmp_path, {"age": {"range": [0, 120]}, "ward": {"values": ["north", "south"], **values}},
                    records={"train": 480, "test": 120}, test={"share": 0.2, "seed": 0}, **formats)
            digests.append(LOADED["t.yaml"])
    assert digests[0] == digests[1] == DIGEST != digests[2]


DIGEST = "954812c91fd9d88d"  # of what is public of it
TEXT = 'x,y\n1,a\n"two\nlines",b\n\n3,a\n4,b\n'


@pytest.mark.parametrize(("table", "line"), [
    (TEXT, 3), (TEXT.replace("two\nlines", "2\n").replace("3,", "three,"), 6), ("\n\n" + TEXT, 5),
    (TEXT.replace("two\nlines", "2").replace("4,", "four,"), 6), (TEXT.replace("\n", "\r\n"), 3),
    (TEXT.replace("\n", "\r"), 3)])
def test_a_message_has_the_line_of_an_editor_where_the_record_begins(tmp_path, table, line):
    assert message(tmp_path, {"x": {"range": [0, 4]}}, table.encode()).startswith(f"/t.csv, line {line}, column 'x'")


PLAIN = column("1", "2", "3", "4").replace(b'"', b"")
UMLAUT = PLAIN.replace(b"x", "größe".encode())


@pytest.mark.parametrize(("name", "data", "changes"), [
    ("t.csv", PLAIN + b"\n\n", {}), ("t.csv", PLAIN + b" ,\n,\n", {}), ("t.csv", PLAIN.replace(b"\n", b"\r"), {}),
    ("t.csv", b"\xef\xbb\xbf" + PLAIN.replace(b"\n", b"\r\n"), {}), ("t.csv", PLAIN.rstrip(), {}),
    ("t.csv", PLAIN.decode().encode("utf-16"), {"encoding": "utf-16"}),
    ("t.csv", PLAIN.replace(b",", b', "').replace(b"\n", b'"\n').replace(b'"y"', b"y"), {}),
    ("t.tsv", PLAIN.replace(b",", b"\t"), {"separator": "\t"}),
    ("t.csv", b"sep=,\r\n" + PLAIN, {}), ("t.csv", b'"SEP=;"\n' + PLAIN.replace(b",", b";"), {"separator": ";"}),
    ("t.csv", b"x,y\n" + PLAIN[4:].replace(b"\n", b",\n"), {}),
    ("t.csv.bz2", bz2.compress(PLAIN), {}), ("t.csv.xz", lzma.compress(PLAIN), {}),
    ("t.csv.gz", gzip.compress(PLAIN, mtime=0), {})])
def test_a_file_is_read_however_it_is_written(tmp_path, name, data, changes):
    assert read(tmp_path, {"x": {"range": [0, 255]}}, data, name=name, **changes) == [[1], [2], [3], [4]]


def test_a_zip_and_the_encodings_of_windows_are_read(tmp_path):
    for name in ("t.zip", "test_t.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("t.csv", PLAIN)
    assert read(tmp_path, {"x": {"range": [0, 255]}}, b"", name="t.zip") == [[1], [2], [3], [4]]
    columns = {"größe": {"range": [0, 255]}}
    assert read(tmp_path, columns, UMLAUT.decode().encode("cp1252"), encoding="cp1252") == [[1], [2], [3], [4]]


@pytest.mark.parametrize(("data", "said", "changes"), [
    (b"\n \n", "/t.csv: must have a header and a row per record, is empty", {}),
    (b"x,y\n", "/t.csv: must have a row per record below the header, has none", {}),
    (PLAIN.replace(b"2,b", b"2"), "/t.csv, line 3: must have 2 cells separated by ',', as the header has, got 1", {}),
    (PLAIN.replace(b"2,b", b"2,5,b"), "/t.csv, line 3: must have 2 cells separated by ',', as the header has, got 3",
     {}),
    (PLAIN.replace(b"1,", b"8,1,").replace(b"2,", b"8,2,").replace(b"3,", b"8,3,").replace(b"4,", b"8,4,"),
     "/t.csv: its header must name every column, has 2 names, and every row one cell more; if R wrote", {}),
    (b"# made by hand\n" + PLAIN, "/t.csv: its first line with text must name the columns, has one cell; remove", {}),
    (PLAIN.replace(b"3,", b'"3,'), "/t.csv, line 4: has a quotation mark that is not closed", {}),
    (PLAIN.replace(b"3,", b'"3"secret,'), "/t.csv, line 4: has a quotation mark that is not closed, or text", {}),
    (PLAIN.replace(b"2,", b"\xfc,"), "/t.csv, line 3: must be text in utf-8, has a byte that is none; declare encoding:"
                                     " cp1252", {}),
    (PLAIN.replace(b"2,", b"\x81,"), "/t.csv, line 3: must be text in cp1252, has a byte that is none",
     {"encoding": "cp1252"}),
    (PLAIN.decode().encode("utf-16"), "/t.csv: must be in utf-8, begins as utf-16 does; declare encoding: utf-16", {}),
    (PLAIN.decode().encode("utf-16-le"), "/t.csv: must be in utf-8, has zero bytes; declare encoding: utf-16-le", {}),
    (b"\xef\xbb\xbf" + PLAIN, "/t.csv: must be in cp1252, begins as utf-8 does; declare encoding: utf-8",
     {"encoding": "cp1252"}),
    (gzip.compress(PLAIN, mtime=0)[:-9],
     "/t.csv.gz: cannot be read (EOFError); it must be text, or one such file as its name", {"name": "t.csv.gz"}),
    (PLAIN, "/t.parquet: cannot be read as Parquet (ArrowInvalid)", {"name": "t.parquet"})])
def test_what_is_no_table_is_said_in_own_words_without_a_byte_of_a_record(tmp_path, data, said, changes):
    found = message(tmp_path, {"x": {"range": [0, 255]}}, data, **changes)
    assert found.startswith(said)
    assert not any(byte in found for byte in ("secret", "\xfc", "0xfc", "0x81", "pandas", "Parser"))


def test_parquet_has_numbers_by_value_and_texts_in_the_declared_style(tmp_path):
    frame = pd.DataFrame({"code": [1.0, 2.0, None, 1.0], "small": np.array([0.1, 0.2, 0.1, 0.2], np.float32),
                          "pay": ["1.234,5", "", "1.234,5", "0"], "exact": [12.345, 1.5, 12.345, 1.5],
                          "y": pd.Categorical([True, False, True, False])})
    for name in ("t.parquet", "test_t.parquet"):
        frame.to_parquet(tmp_path / name)
    columns = {"code": {"values": [1, 2]}, "small": {"values": [0.1, 0.2]}, "pay": {"range": [0, 1234.5]},
               "exact": {"range": [1.5, 12.345]}}
    assert read(tmp_path, columns, b"", name="t.parquet", classes=["True", "False"], decimal=",", thousands=".") == [
        [255, 0, 0, 255, 0, 0, 255, 255], [0, 255, 0, 0, 255, 0, 128, 0], [0, 0, 255, 255, 0, 0, 255, 255],
        [255, 0, 0, 0, 255, 0, 0, 0]]
    assert "t.parquet, row 1, column 'code': must be one of 3, got '1'" in message(
        tmp_path, {"code": {"values": [3]}}, b"", name="t.parquet", classes=["True", "False"])


@pytest.mark.parametrize("fault", [b"\xfc\xfd,a\n", b'"Kimberley,a\n', b"Kimberley,a,b\n", b"Kimberley,a\n",
                                   b"1,Kimberley\n"])
@pytest.mark.parametrize("command", [["sweep", "e.yaml"], ["sweep", "e.yaml", "--dry-run"], ["audit", "e.yaml"]])
def test_no_command_shows_a_byte_of_a_record_of_secure_trials(tmp_path, monkeypatch, capfd, fault, command):
    declare(tmp_path, {"x": {"range": [0, 255]}}, PLAIN.replace(b"2,b\n", fault))
    base = {"dataset": "t", "mechanism": "per_example", "noise_multiplier": 1.0, "batch_size": 1, "hidden": [4],
            "epochs": 1, "sampler": "poisson", "noise": "secure", "arithmetic": "integer", "validation_fraction": 0.25}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump({"name": "e", "plugins": ["t.yaml"], "base": base}))
    monkeypatch.chdir(tmp_path)
    assert main(command) == (0 if "--dry-run" in command else 2)
    said = "".join(capfd.readouterr())
    assert not any(byte in said for byte in ("Kimberley", "0xfc", "\xfc", "line 3", "column '", "Traceback")), said
    assert "--dry-run" in command or "error: a record of the data set cannot be used" in said
    private = tmp_path / "mlruns" / "private"
    assert command != ["sweep", "e.yaml"] or "t.csv, line 3" in (private / "failures" / "e.log").read_text()
    others = [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".csv"
              and not file.is_relative_to(private)]
    assert not any(b"Kimberley" in file.read_bytes() or b"0xfc" in file.read_bytes() for file in others)


def test_train_shows_no_record_of_secure_trials_and_load_dataset_does(tmp_path):
    declare(tmp_path, {"x": {"range": [0, 255]}}, PLAIN.replace(b"2,b", b"Kimberley,b"))
    trial = dict(dataset="t", mechanism="per_example", noise_multiplier=1.0, batch_size=1, hidden=(4,), epochs=1,
                 sampler="poisson", validation_fraction=0.25)
    with pytest.raises(UserError, match=r"^a record of the data set cannot be used; `photonic sweep` writes") as error:
        train(TrialConfig(**trial, noise="secure", arithmetic="integer"))
    assert error.value.__context__ is None  # which a traceback would show
    for act in (lambda: train(TrialConfig(**trial)), lambda: load("t")):
        with pytest.raises(DataError, match="line 3, column 'x': must be a number, got 'Kimberley'"):
            act()
