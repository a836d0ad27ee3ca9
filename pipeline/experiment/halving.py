"""Successive halving: trials of a search are stopped early if others were better after as many epochs.

    stop: {rule: asha, grace: 3, factor: 3}

The rungs are at grace, grace factor, grace factor^2, ... epochs. A trial is promoted at a rung if it is among the best
1/factor of the trials that have reached the rung so far (ASHA; Li et al. 2020, "A system for massively parallel
hyperparameter tuning").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.experiment.grid import read_mapping
from pipeline.experiment.search import Search
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import check_whole

RULES = ("asha",)


@dataclass(frozen=True)
class Halving:
    """When trials of a search are stopped.

    Attributes:
        rule: `asha`.
        grace: epochs of every trial before the first rung.
        factor: one in `factor` trials is promoted at a rung.

    Raises:
        ConfigError: unless grace >= 1 and factor >= 2 are whole.
    """

    rule: str = "asha"
    grace: int = 1
    factor: int = 3

    def __post_init__(self) -> None:
        """Refuse an unknown rule, and a grace period or factor that is too small."""
        if self.rule not in RULES:
            raise ConfigError(f"stop.rule: must be one of {', '.join(RULES)}, got {self.rule!r}")
        check_whole("stop.grace", self.grace, 1)
        check_whole("stop.factor", self.factor, 2)

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return the rungs of successive halving: the epochs after which a trial may be stopped.

        They are grace, grace factor, grace factor^2, ... below `epochs`, the trial's number of epochs.
        """
        rungs = []
        rung = self.grace
        while rung < epochs:
            rungs.append(rung)
            rung *= self.factor
        return tuple(rungs)


def read_halving(top: Mapping[str, Any], search: Search | None, corners: Sequence[TrialConfig],
                 pack_size: int) -> Halving | None:
    """Return the early stopping of an experiment file's search; None if the file has no entry `stop`.

    Args:
        top: content of the file.
        search: the file's search; None for a grid.
        corners: trials at the corners of the search space.
        pack_size: number of trials that train together, from the file's resources.

    Raises:
        ConfigError: naming the entry, its value and what is accepted.
    """
    if "stop" not in top:
        return None
    if search is None:
        raise ConfigError(f"stop: stops trials of a search, whose accuracies are compared as they come, got "
                          f"{top['stop']!r} without one")
    stop = Halving(**read_mapping(top["stop"], "stop", ("rule", "grace", "factor"), needed=("rule", "grace")))
    max_epochs = max(trial.epochs for trial in corners)
    if stop.grace >= max_epochs:
        raise ConfigError(f"stop.grace: must be less than the {max_epochs} epochs of a trial, or none is ever stopped, "
                          f"got {stop.grace}")
    if pack_size > 1:
        raise ConfigError(f"resources.pack_size: must be 1 with `stop`, as trials of a pack cannot end one by one, got "
                          f"{pack_size}; leave it out")
    return stop
