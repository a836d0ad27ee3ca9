import json
import math
from pathlib import Path

import pytest
from reference_cases import FUNCTIONS, agree, as_numbers, evaluate, main

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


def test_program(tmp_path, capsys):
    assert main(write(tmp_path, GDP)) == 0
    assert "ok   a: expected 4.377178096, got 4.377178096, rtol 1e-06\n1 cases, 0 missed" in capsys.readouterr().out
    assert main(write(tmp_path, GDP, {**GDP, "id": "b", "expected": 4.0})) == 1
    assert "MISS b: expected 4, got 4.377178096" in capsys.readouterr().out
