import json
import math
from pathlib import Path

import pytest
from reference_cases import FUNCTIONS, CheckError, agree, as_numbers, evaluate, main

REFERENCE = Path(__file__).parents[1] / "data" / "accounting_reference.json"
CASES = json.loads(REFERENCE.read_text())["cases"]
GDP = dict(id="a", function="gdp_eps", inputs=dict(mu=1.0, delta=1e-5), expected=4.377178095681235, rtol=1e-6)


def write(tmp_path, *cases):
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"readme": "", "cases": cases}))
    return file


RESULTS = {result.id: result for result in evaluate(REFERENCE)}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_reference(case):
    """And every number of it, moved by three tolerances (or infinity made finite), is noticed."""
    result = RESULTS[case["id"]]
    assert result.ok, result
    values = result.got if isinstance(result.got, dict) else {"": result.got}
    for key, value in values.items():
        if isinstance(result.got, dict) and key not in case["expected"]:
            continue
        moved = 1.0 if value is None or math.isinf(value) else value * (1 + 3 * case["rtol"])
        expected = {**case["expected"], key: moved} if isinstance(result.got, dict) else moved
        assert not agree(result.got, as_numbers(expected), case["rtol"])


def test_every_function_has_a_case():
    assert len(RESULTS) == len(CASES) == 97 and {case["function"] for case in CASES} == set(FUNCTIONS)


def test_published_numbers_are_checked_to_their_last_digit(tmp_path):
    case = next(c for c in CASES if c["id"] == "audit_one_run_01")
    for published, ok in ((0.673, True), (0.672, True), (0.671, False), (0.675, False), (None, True)):
        file = write(tmp_path, {**case, "expected": {**case["expected"], "published": published}})
        assert evaluate(file)[0].ok is ok


def test_malformed_cases_and_files_are_named(tmp_path):
    for change, message in (
            (dict(function="gdp_epsilon"), r"a: no function 'gdp_epsilon'; there are a1_alt, "),
            (dict(inputs=dict(mu=1.0)), "a: gdp_eps: .*delta"),
            (dict(expected=dict(epsilon=1.0)), r"a: gdp_eps: expects \{'epsilon': 1.0\}, and the function gives 4.37"),
            (dict(expected="large"), "a: gdp_eps: could not convert")):
        with pytest.raises(CheckError, match=message):
            evaluate(write(tmp_path, {**GDP, **change}))
    for name, change, message in (
            ("leekifer_epsilon_01", {"T": 5851}, "T: the other inputs give 5850, got 5851"),
            ("joint_column_counterexample", {"neighbour": "any"}, "neighbour: must be 'label of record I only'")):
        case = next(c for c in CASES if name in (c["id"], c["function"]))
        with pytest.raises(CheckError, match=message):
            evaluate(write(tmp_path, {**case, "inputs": {**case["inputs"], **change}}))
    with pytest.raises(CheckError, match="none.json: No such file"):
        evaluate(tmp_path / "none.json")
    file = tmp_path / "cases.json"
    for content, message in (("{", "not JSON"), ("[]", "must have a list `cases`"), ('{"cases": []}', "must have a"),
                             ('{"cases": [{"id": "a"}]}', "a: lacks function, inputs, expected, rtol")):
        file.write_text(content)
        with pytest.raises(CheckError, match=message):
            evaluate(file)


def test_program(tmp_path, capsys):
    assert main(write(tmp_path, GDP)) == 0
    assert "ok   a: expected 4.377178096, got 4.377178096, rtol 1e-06\n1 cases, 0 missed" in capsys.readouterr().out
    assert main(write(tmp_path, GDP, {**GDP, "id": "b", "expected": 4.0})) == 1
    assert "MISS b: expected 4, got 4.377178096" in capsys.readouterr().out
    assert main(write(tmp_path, {**GDP, "function": "f"})) == 2
    assert "no function 'f'" in capsys.readouterr().err
