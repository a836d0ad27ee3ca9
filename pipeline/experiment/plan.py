"""What an experiment trains: a grid, trials drawn at random, or a search (`pipeline.experiment.search`).

Callers ask the plan, and need not know which of the three it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

from pipeline.accounting.epsilon import Budget
from pipeline.experiment.stopping import Selection
from pipeline.experiment.yaml_text import Place
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import digest


class Plan:
    """The answers of a grid, which the other plans replace where theirs differ; a plan is a frozen dataclass."""

    trials: tuple[TrialConfig, ...]  # to train; of a search the suggestions so far
    noun: str = "trial"  # what `possible` are called
    publishes_all: bool = True  # whether all trials may be published, not the best alone
    ends_with_best: str = ""  # the rule that publishes its best trial, known once all have ended; empty for a grid
    asks: bool = False  # whether trials are asked for round by round, and the store keeps what was suggested
    selection: Selection = Selection()  # how the best trial is chosen, and paid for
    budget: Budget | None = None  # of all trials together
    places: Mapping[str, Place] = MappingProxyType({})  # of the settings in the file, if they are those of all trials

    @property
    def possible(self) -> tuple[TrialConfig, ...]:
        """The trials that stand for all in checks: the candidates of random stopping, the corners of a search."""
        return self.trials

    @property
    def planned(self) -> int:
        """The number of trials; for a search the maximum."""
        return len(self.trials)

    @property
    def by_scores(self) -> bool:
        """Whether trials are asked for by the results of earlier ones: their scores, or what they left of a budget."""
        return False

    @property
    def rule(self) -> str:
        """A digest of what is public of random stopping: its distribution and candidates; empty for another plan."""
        return ""

    def lines(self) -> Iterator[str]:
        """Yield lines for people on how its trials are asked for; none for what is known beforehand."""
        return iter(())

    def with_trials(self, trials: Sequence[TrialConfig]) -> Self:
        """Return the plan with these trials: a part of a grid, or what a search has asked for so far."""
        return replace(self, trials=tuple(trials))  # type: ignore[type-var]  # every plan is a dataclass


@dataclass(frozen=True)
class Grid(Plan):
    """Trials that are all listed beforehand."""

    trials: tuple[TrialConfig, ...]


@dataclass(frozen=True)
class RandomStopping(Plan):
    """Trials drawn at random from candidates, of which the best alone is published: their number stays secret."""

    trials: tuple[TrialConfig, ...]  # as `stopping.draw` returns them
    candidates: tuple[TrialConfig, ...]
    selection: Selection
    publishes_all = False
    ends_with_best = "random stopping"

    @property
    def possible(self) -> tuple[TrialConfig, ...]:
        return self.candidates

    @property
    def rule(self) -> str:
        return digest({"rule": list(map(str, self.selection.distribution)),
                       "candidates": [trial.trial_key for trial in self.candidates]})
