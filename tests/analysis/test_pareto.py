"""Pareto fronts, in closed form."""

import math

import pytest

from analysis.exhibits.frontier.choice import pareto_front


def test_pareto_front():
    epsilon, accuracy = [1, 2, 2, 3, 4, 1], [0.5, 0.7, 0.6, 0.7, 0.8, 0.5]
    assert pareto_front(epsilon, accuracy).tolist() == [True, True, False, False, True, True]
    assert pareto_front([], []).tolist() == []
    assert pareto_front([1, 2, 3], [3, 2, 1]).tolist() == [True, False, False]


@pytest.mark.parametrize(("epsilon", "accuracy", "message"), [
    ([0.0], [0.5], "epsilon: must be finite and > 0"), ([math.inf], [0.5], "epsilon: must be finite"),
    ([1.0], [math.nan], "value: must be finite"), ([1.0, 2.0], [0.5], r"shapes \(2,\) and \(1,\)")])
def test_points_that_have_no_place_are_refused(epsilon, accuracy, message):
    with pytest.raises(ValueError, match=message):
        pareto_front(epsilon, accuracy)
