"""`photonic init --csv`: what is proposed of a table, what is left out and why, and what is marked as a guess."""

import random
import re

import pandas as pd
import pytest
import yaml

from pipeline.cli import main
from pipeline.experiment.plugins import load_plugins
from pipeline.learning.data.dataset import load
from pipeline.learning.data.download import DataError
from pipeline.learning.data.proposal import proposal

pytestmark = pytest.mark.usefixtures("extensions")
N = 100
DRAW = random.Random(0)
Y = ["well", "ill"] * (N // 2)
PLACES = range(N)


def drawn(*cells):
    """A column of N cells, each of these at least once."""
    found = [*cells, *DRAW.choices(cells, k=N - len(cells))]
    DRAW.shuffle(found)
    return found


def written(folder, data, label="y", name="t.csv"):
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return proposal(folder / name, label, folder, "a command")


def text_of(separator=",", **columns):
    """A table of these columns and the label y, all cells in quotes."""
    rows = [[*columns, "y"], *zip(*columns.values(), Y, strict=True)]
    return "".join(separator.join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def proposed(folder, cells, name="x"):
    """The line of one column in the proposal."""
    found = written(folder, text_of(**{name: cells, "else": ["pqr"[n % 3] for n in PLACES]})).text
    (line,) = (line.strip() for line in found.splitlines() if f'"{name}"' in line)
    return line


@pytest.mark.parametrize(("name", "cells", "reason"), [
    ("", [str(n) for n in PLACES], "row numbers or an identifier"),
    ("", [str(n % 50) for n in PLACES], "row numbers or an identifier"),
    ("Unnamed: 0", [f"{n}.0" for n in PLACES], "row numbers or an identifier"),
    ("X", [str(2 * n * n) for n in PLACES], "row numbers or an identifier"),
    ("id", [str(n) for n in DRAW.sample(PLACES, N)], "row numbers or an identifier"),
    ("uid", [f"{n}.0" for n in DRAW.sample(range(10**5), N)], "an identifier: 100 different cells in 100 records"),
    ("visit", [str(n * n) for n in reversed(PLACES)], "row numbers or an identifier"),
    ("visit", [str(n) for n in DRAW.sample(range(500, 500 + N), N)], "row numbers or an identifier"),
    ("patient_id", [str(n) for n in DRAW.sample(range(10**5), N)], "an identifier: 100 different cells in 100 records"),
    ("patientId", [str(n) for n in DRAW.choices(range(10**5), k=N // 2)] * 2, "an identifier: 50 different cells in "
     "100 records; epsilon protects one record: who has several is protected less, "),
    ("mrn", [str(n) for n in DRAW.sample(range(10**7, 10**8), N)], "an identifier: 100 different"),
    ("phone", [str(n) for n in DRAW.sample(range(10**8, 10**9), N)], "an identifier: 100 different"),
    ("who", [f"P{n:03}" for n in PLACES], "an identifier or free text: 100 different cells in 100 records"),
    ("zip", [str(n) for n in DRAW.choices(range(10**4, 10**5), k=N)], "postcodes or other codes, no amounts"),
    ("PLZ", [str(n) for n in DRAW.choices(range(10**4, 10**5), k=N)], "postcodes or other codes"),
    ("code postal", [str(n) for n in DRAW.choices(range(10**4, 10**5), k=N)], "postcodes or other codes"),
    ("place", [f"{n:05}" for n in DRAW.sample(range(10**5), N)], "postcodes or other codes"),
    ("born", [f"19{n % 90 + 10}-0{n % 9 + 1}-1{n % 10}" for n in PLACES], "dates or times"),
    ("born", [f"1{n % 10}.0{n % 9 + 1}.19{n % 90 + 10}" for n in PLACES], "dates or times"),
    ("born", [f"{n % 9 + 1}/1{n % 10}/{n % 90 + 10} 12:30" for n in PLACES], "dates or times"),
    ("born", [f"1{n % 10} March 19{n % 90 + 10}" for n in PLACES], "dates or times"),
    ("born", [f"19{n % 90 + 10}0{n % 9 + 1}1{n % 10}" for n in PLACES], "dates or times"),
    ("notes", drawn(*(f"came by tram {n} and left" for n in range(60))), "free text: it has 60 different texts"),
    ("town", drawn(*(f"town{n}" for n in range(30))), "it has 30 different texts, more than 20"),
    ("unit", ["m"] * N, "it has one value alone"), ("unit", ["", "7"] * (N // 2), "it has one value alone"),
    ("lab", ["", "NaN", "?", "4"] * (N // 4), "75 of 100 cells are missing"),
    ("paid", [f"€{n * 7}" for n in PLACES], "100 of 100 cells are no plain numbers, the first in line 2"),
    ("paid", [f"${n},{n + 100}" for n in PLACES], "100 of 100 cells are no plain numbers"),
    ("share", [f"{n}%" for n in PLACES], "100 of 100 cells are no plain numbers"),
    ("weight", [f"{n}.5 kg" for n in PLACES], "100 of 100 cells are no plain numbers"),
    ("bmi", [f"{n}.5" if n != 8 else "refused" for n in PLACES],
     "1 of 100 cells are no plain numbers, the first in line 10; without words")])
def test_what_is_no_input_is_left_out_with_its_reason(tmp_path, name, cells, reason):
    assert proposed(tmp_path, cells, name).startswith(f'# "{name}" is left out (guessed): {reason}')


@pytest.mark.parametrize(("name", "cells", "rules", "guess"), [
    ("age", drawn(*(str(n) for n in range(20, 80))), "range: [20, 79]", ""),
    ("crp", drawn(*(f"{n}.25" for n in range(60)), "", "NA"), "range: [0.25, 59.25]", ""),
    ("children", drawn("0", "1", "2", "3"), "values: [0, 1, 2, 3]", "codes; if they count or measure something"),
    ("q1", drawn("1", "2", "3", "4", "99"), "values: [1, 2, 3, 4, 99]", "codes; if they count"),
    ("code", drawn("1.0", "2.0", "5.0", ""), "values: [1, 2, 5]", "codes; if they count"),
    ("wardCode", drawn("310", "320", "777"), "values: [310, 320, 777]", "codes; if they count"),
    ("plz", drawn("8001", "8002", "8003"), "values: [8001, 8002, 8003]", "postcodes, which tell where a person lives"),
    ("Code postal", drawn("01000", "75001"), 'values: ["01000", "75001"]', "postcodes, which tell where a person"),
    ("ward", drawn("North", "NORTH", "south"), 'values: ["NORTH", "North", "south"]', "texts that differ in upper and"),
    ("big", drawn("1e999", "p"), 'values: ["1e999", "p"]', ""),
    ("28.8", drawn(*(f"{n}.25" for n in range(60))), "range: [0.25, 59.25]", "its name is a number: has the table"),
    ("dose", drawn("10", "20", "50"), "range: [10, 50]", "an amount; if these are codes, declare values: [...]"),
    ("smokes", drawn("0", "1"), "values: [0, 1]", ""),
    ("ward", drawn("01", "02", "11"), 'values: ["01", "02", "11"]', ""),
    ("kids", drawn("0", "1", "2+"), 'values: ["0", "1", "2+"]', ""),
    ("agree", drawn("yes", "no", ""), 'values: ["no", "yes"]', ""),
    ("harm", drawn("None", "NA", "mild"), 'values: ["NA", "None", "mild"]', "NA and None may mean missing"),
    ("harm", drawn("none", "none", "mild", "mild", "?", ""), 'values: ["mild", "none"]', "none may mean missing"),
    ("crp", drawn(*(f"{n}.125" for n in range(1, 60))), "range: [1.125, 59.125]",
     "'.' marks decimals; if it marks thousands, declare decimal: ',' and thousands: '.'"),
    ("household", [str(n // 3) for n in PLACES], "range: [0, 33]", "an amount; it is sorted in the table"),
    ("card", drawn("1234567890123456789", "1234567890123456790", "5"),
     "range: [5, 1234567890123456790]", "an amount; if these are codes"),
    ("fate", ["out", "dead"] * (N // 2), 'values: ["dead", "out"]', "it tells the class of every record alone")])
def test_an_input_is_proposed_with_what_is_guessed(tmp_path, name, cells, rules, guess):
    line = proposed(tmp_path, cells, name)
    assert line.startswith(f'"{name}": {{{rules}}}  # read from the records')
    assert line.partition("; guessed: ")[2].startswith(guess) and bool(guess) == ("guessed" in line)


PAY = [f"{1000 * n + 5033}" for n in DRAW.sample(PLACES, N)]
WEST = {"age": [f"{n}.5" for n in PLACES], "pay": [f"{int(pay):,}" for pay in PAY]}


def european(cells, mark):
    return [cell.translate(str.maketrans({",": mark, ".": ","})) for cell in cells]


@pytest.mark.parametrize(("data", "said"), [
    (text_of(**WEST), {"thousands": ","}), (text_of("\t", **WEST), {"separator": "\t", "thousands": ","}),
    (text_of("|", pay=WEST["pay"]), {"separator": "|", "thousands": ","}),
    (text_of(";", pay=european(WEST["pay"], ".")), {"separator": ";", "decimal": ",", "thousands": "."}),
    (text_of(";", age=european(WEST["age"], "")), {"separator": ";", "decimal": ","}),
    (text_of(";", age=european(WEST["age"], "")).replace('"', ""), {"separator": ";", "decimal": ","}),
    (text_of(";", pay=european([f"{pay}.5" for pay in WEST["pay"]], "\u202f")).encode("utf-16"),
     {"separator": ";", "decimal": ",", "thousands": " ", "encoding": "utf-16"}),
    (text_of("\t", age=WEST["age"]).encode("utf-16-le"), {"separator": "\t", "encoding": "utf-16-le"}),
    (text_of(" ", age=WEST["age"]), {"separator": " "}),
    (text_of(pay=[cell.replace(",", "\u2019") for cell in WEST["pay"]]), {"thousands": "'"}),
    (text_of(";", größe=european(WEST["age"], "")).encode("cp1252"),
     {"separator": ";", "decimal": ",", "encoding": "cp1252"}),
    (b"\xef\xbb\xbf" + text_of(age=WEST["age"]).encode(), {}), (text_of(";", age=PAY), {"separator": ";"})])
def test_how_a_file_is_written_is_recognised_marked_as_a_guess_and_then_read_so(tmp_path, data, said):
    text = written(tmp_path, data).text
    formats = ("separator", "decimal", "thousands", "encoding")
    assert {entry: value for entry, value in yaml.safe_load(text).items() if entry in formats} == said
    assert len(re.findall(f"^(?:{'|'.join(formats)}): .*  # guessed: ", text, re.MULTILINE)) == len(said)
    (tmp_path / "t_table.yaml").write_text(text.replace("confirmed: false", "confirmed: true"), encoding="utf-8")
    load_plugins(["t_table.yaml"], tmp_path)
    x = load("t")
    inputs = sorted(value for part in (x.train_x, x.test_x) for value in part[:, 0].tolist())
    assert inputs == [round(255 * n / (N - 1)) for n in PLACES]


def test_parquet_is_proposed_by_its_types(tmp_path):
    pd.DataFrame({"code": [1.0, 2.0, None, 3.0] * 25, "zip": [f"{n:05}" for n in PLACES], "bmi": [n + 0.125 for n in
                  PLACES], "harm": ["None", "mild"] * 50, "y": Y}).to_parquet(tmp_path / "t.parquet")
    found = proposal(tmp_path / "t.parquet", "y", tmp_path, "a command")
    assert found.left_out.keys() == {"zip"} and "thousands" not in found.text
    columns = yaml.safe_load(found.text)["columns"]
    assert columns == {"code": {"values": [1, 2, 3]}, "bmi": {"range": [0.125, 99.125]},
                       "harm": {"values": ["None", "mild"]}}


LABELS = {"numbers": [f"{n}.5" for n in PLACES], "ages": [str(20 + n % 70) for n in PLACES],
          "codes": ["1.0", "0.0"] * 50, "names": [f"P{n}" for n in PLACES], "one": ["a"] * N,
          "none": ["a", "NA"] * 50, "zeros": ["01", "02"] * 50,
          "many": [str(n % 4) for n in PLACES], "place": [str(n) for n in PLACES]}


@pytest.mark.parametrize(("label", "said"), [
    ("numbers", "must be a class, has 100 different numbers; put them into bins, such as low and high"),
    ("ages", "must be a class, has 70 different numbers"), ("names", "must be a class, looks like an identifier"),
    ("place", "must be a class, looks like row numbers"), ("one", "must have at least two classes, has 1"),
    ("none", "line 3, column 'none': must have a class, got NA; give it one, or remove the record")])
def test_a_label_that_is_no_class_is_refused_before_anything_is_written(tmp_path, capsys, monkeypatch, label, said):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(LABELS).to_csv("t.csv", index=False)
    assert main(["init", "e.yaml", "--csv", "t.csv", "--label", label]) == 2
    assert said in capsys.readouterr().err and [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_classes_that_are_numbers_are_written_as_numbers(tmp_path):
    table = pd.DataFrame(LABELS).to_csv(index=False)
    assert "\nclasses: [0, 1]  #" in written(tmp_path, table, "codes").text
    assert '\nclasses: ["01", "02"]  #' in written(tmp_path, table, "zeros").text
    assert "\nclasses: [0, 1, 2, 3]  #" in written(tmp_path, table, "many").text


def test_the_screen_names_what_is_left_out_and_no_cell(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = {f"who {n}": [f"Kimberley{n}{place}" for place in PLACES] for n in range(12)}
    (tmp_path / "t.csv").write_text(text_of(**{"": [str(n) for n in PLACES]}, **columns, age=WEST["age"]))
    assert main(["init", "e.yaml", "--csv", "t.csv", "--label", "y"]) == 0
    said = capsys.readouterr().out
    assert "left out: '': row numbers or an identifier, which may tell the class of every record" in said
    assert "left out: 3 more, each with its reason in the declaration" in said
    assert "Kimberley" not in said + (tmp_path / "t_table.yaml").read_text() + (tmp_path / "e.yaml").read_text()


def test_a_name_of_a_column_cannot_leave_its_line(tmp_path):
    found = written(tmp_path, text_of(**{"a\u2028confirmed: true": ["x"] * N, "b\\'\u0085c": drawn("x", "z")}))
    content = yaml.safe_load(found.text)
    assert content["confirmed"] is False and content["columns"] == {"b\\'\u0085c": {"values": ["x", "z"]}}


@pytest.mark.parametrize(("table", "label", "message"), [
    ("x,y\n1,well\n2,ill\n", "y", "must have three records or more, .* has 2"),  # none would be left to test
    ("1,2.5,3\n" * 20, "3", "t.csv: must have a header with the names of the columns")])
def test_what_is_no_table_of_records_is_refused(tmp_path, table, label, message):
    with pytest.raises(DataError, match=message):
        written(tmp_path, table, label)


def test_what_excel_is_told_of_the_separator_is_no_header(tmp_path):
    found = written(tmp_path, "sep=;\n" + text_of(";", x=["1,5", "2,5"] * (N // 2), z=["p", "q", "r", "q"] * (N // 4)))
    assert 'separator: ";"' in found.text and '"z": {values: ["p", "q", "r"]}' in found.text


@pytest.mark.parametrize("end", ["", "E+04"])
def test_what_writes_semicolons_writes_decimal_commas_even_with_three_digits(tmp_path, end):
    cells = [f"{n % 9 + 1},{n:03}{end}" for n in PLACES]
    found = written(tmp_path, text_of(";", x=cells, ward=drawn("a", "b")))
    assert "decimal: \",\"" in found.text and "thousands" not in found.text.split("columns:")[0]
    commas = written(tmp_path, text_of(",", x=cells, ward=drawn("a", "b")))
    assert "thousands: \",\"" in commas.text.split("columns:")[0]


def test_a_long_cell_is_read(tmp_path):
    cells = ["x" * 200_000, *drawn("a", "b")[1:]]
    assert f'"long": {{values: ["a", "b", "{cells[0]}"]}}' in written(tmp_path, text_of(long=cells)).text
