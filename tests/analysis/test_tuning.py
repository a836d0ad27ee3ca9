"""The comparison of ways to choose settings (`experiments/tuning/tuning.py`): each costs in total what it says."""

import pytest
from tuning import METHODS, Way, ways

from pipeline.experiment.prices import epsilon_of_choice

pytestmark = pytest.mark.usefixtures("only_svg")


@pytest.mark.parametrize("epsilon", [3, 8])
@pytest.mark.parametrize("method", ["grid", "stopping"])
def test_the_best_of_a_grid_and_of_random_stopping_costs_the_total(method, epsilon):
    experiment = Way(method, epsilon, "dfa", 1).experiment()
    price = epsilon_of_choice(experiment.plan, experiment.past, experiment.possible, experiment.plan.selection)
    assert 0.98 * epsilon < price.value <= epsilon and price.delta == 1e-5


@pytest.mark.parametrize("epsilon", [3, 8])
def test_a_search_has_the_total_as_its_budget(epsilon):
    plan = Way("search", epsilon, "bp", 2).experiment().plan
    assert plan.budget.epsilon == epsilon and plan.seed == 2


def test_all_ways_are_sweeps_of_their_own_for_both_algorithms():
    found = [way.experiment() for way in ways(2)]
    assert len({experiment.name for experiment in found}) == len(found) == 2 * 2 * 2 * len(METHODS)
    for experiment in found:
        assert {trial.algorithm for trial in experiment.possible} == {"bp" if "_bp" in experiment.name else "dfa"}
