"""The privacy budget of a search: one epsilon for everything that its sweep releases.

    budget: {epsilon: 8, delta: 1.0e-5}

`pipeline.accounting.budget` spends it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.experiment.grid import read_mapping
from pipeline.experiment.search import Search
from pipeline.experiment.stopping import check_alike
from pipeline.trials.config import ConfigError, TrialConfig


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) of all trials of a sweep together, however each trial was chosen.

    Raises:
        ConfigError: unless 0 < epsilon < infinity and 0 < delta < 1.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse an epsilon or delta out of range; store both as floats."""
        for name, high in (("epsilon", math.inf), ("delta", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < high:
                limit = "finite" if name == "epsilon" else "< 1"
                raise ConfigError(f"budget.{name}: must be a number > 0 and {limit}, got {value!r}")
            object.__setattr__(self, name, float(value))

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"


def read_budget(top: Mapping[str, Any], search: Search | None, corners: Sequence[TrialConfig]) -> Budget | None:
    """Return the privacy budget of an experiment file's search; None if the file has no entry `budget`.

    Args:
        top: content of the file.
        search: the file's search; None for a grid.
        corners: trials at the corners of the search space.

    Raises:
        ConfigError: also for trials that log a private value without noise, or whose epsilons do not compose.
    """
    if "budget" not in top:
        return None
    if search is None:
        raise ConfigError(f"budget: is spent by a search, which asks for its trials one round after the other, got "
                          f"{top['budget']!r} without one; the price of a fixed grid is `selected`")
    names = ("epsilon", "delta")
    budget = Budget(**read_mapping(top["budget"], "budget", names, needed=names))
    check_alike(corners, "trial", "under a budget")
    for trial in corners:
        if trial.delta != budget.delta:
            raise ConfigError(f"budget.delta: must be the delta of the trials, {trial.delta:g}, as there is one delta "
                              f"for all, got {budget.delta:g}")
        if trial.disclosure != "noisy":
            raise ConfigError(f"private_metrics: must be 'noisy' under a budget, as validation accuracy without noise "
                              f"is not private, and without validation accuracy nothing can be chosen, got "
                              f"'{trial.disclosure}'")
    return budget
