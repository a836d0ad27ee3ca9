"""Pareto fronts and dominated areas, in closed form."""

import math

import numpy as np
import pytest

from analysis.exhibits.frontier import pareto


@pytest.mark.parametrize(("epsilon", "expected"), [([0.5, 8], 10), ([10.0], 100), ([0.02], 0.1), ([9.99], 10)])
def test_the_reference_is_the_power_of_ten_above(epsilon, expected):
    assert pareto.reference_epsilon(epsilon) == pytest.approx(expected)


def test_pareto_front():
    epsilon, accuracy = [1, 2, 2, 3, 4, 1], [0.5, 0.7, 0.6, 0.7, 0.8, 0.5]
    assert pareto.pareto_front(epsilon, accuracy).tolist() == [True, True, False, False, True, True]
    assert pareto.pareto_front([], []).tolist() == []
    assert pareto.pareto_front([1, 2, 3], [3, 2, 1]).tolist() == [True, False, False]


def test_hypervolume_of_steps():
    e = math.e
    assert pareto.hypervolume([1.0], [0.8], e**2, 0.5) == pytest.approx(2 * 0.3)
    # Two steps; a dominated point, one beyond the reference and one below it add nothing; order does not matter.
    epsilon, accuracy = [e, 1.0, e**1.5, e**5, 0.1], [0.9, 0.8, 0.85, 0.99, 0.4]
    assert pareto.hypervolume(epsilon, accuracy, e**2, 0.5) == pytest.approx(0.3 + 0.4)
    assert pareto.hypervolume([1.0], [0.4], e, 0.5) == pareto.hypervolume([], [], e, 0.5) == 0
    # Only the front counts, and a log axis does not know the unit of epsilon.
    front = pareto.pareto_front(epsilon, accuracy)
    assert pareto.hypervolume(np.array(epsilon)[front], np.array(accuracy)[front], e**2, 0.5) == pytest.approx(0.7)
    assert pareto.hypervolume(np.array(epsilon) * 7, accuracy, 7 * e**2, 0.5) == pytest.approx(0.7)


@pytest.mark.parametrize(("epsilon", "accuracy", "message"), [
    ([0.0], [0.5], "epsilon: must be finite and > 0"), ([math.inf], [0.5], "epsilon: must be finite"),
    ([1.0], [math.nan], "value: must be finite"), ([1.0, 2.0], [0.5], r"shapes \(2,\) and \(1,\)")])
def test_points_that_have_no_place_are_refused(epsilon, accuracy, message):
    for function in (pareto.pareto_front, lambda e, a: pareto.hypervolume(e, a, 10, 0.1)):
        with pytest.raises(ValueError, match=message):
            function(epsilon, accuracy)
    with pytest.raises(ValueError, match="epsilon: must be finite and > 0"):
        pareto.hypervolume([1.0], [0.5], 0.0, 0.1)
