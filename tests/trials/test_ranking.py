"""A lead below the rounding that is shown is no difference, and nobody is credited with it."""

import pytest

from pipeline.trials.ranking import is_difference, joined, leaders, who_leads


@pytest.mark.parametrize(("lead", "digits", "shows"), [
    (0.0, 2, False), (0.0049, 2, False), (0.0098, 2, False), (0.01, 2, True), (0.57 - 0.56, 2, True),
    (-0.01, 2, True), (96.11 - 96.10, 2, True), (0.04, 1, False), (0.1, 1, True), (float("nan"), 2, False)])
def test_a_difference_is_one_unit_of_the_last_decimal_or_more(lead, digits, shows):
    assert is_difference(lead, digits) is shows


def test_the_first_of_equals_does_not_lead():
    assert who_leads({"BP": 90.001, "DFA": 90.0, "TDFA": 80.0, "PDFA": 90.002}) == (
        "no difference between BP, DFA and PDFA")
    assert who_leads({"BP": 90.0, "DFA": 90.01}) == "DFA" == who_leads({"DFA": 1.0})
    assert leaders({"BP": 90.02, "DFA": 90.06}, digits=1) == ["BP", "DFA"] and leaders({}) == []
    assert joined(["a", "b", "c"], "or") == "a, b or c"
