"""What a report may show of a sweep that is not finished: settings that have all of their seeds, and no best trial."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from analysis.exhibits.catalogue import misfit
from analysis.runs import MissingTrials
from pipeline.experiment.experiment import Experiment

NO_BEST = "selection", "the best trial is chosen, and the choice paid for, once all trials have ended"


class Progress(NamedTuple):
    """How far a sweep is: trials that have ended, that a report shows, and that the experiment has."""

    ended: int
    shown: int
    planned: int

    @property
    def mark(self) -> str:
        """For titles."""
        return f"unfinished: {self.shown} of {self.planned} trials"

    @property
    def notice(self) -> str:
        """A sentence for the head of a page."""
        return (f"Unfinished: {self.ended} of {self.planned} trials have ended. Shown are {self.shown}, of settings "
                "that have all of their seeds; no best trial is chosen.")


def part_of(experiment: Experiment, ended: Collection[str], missing: MissingTrials) -> tuple[Experiment, Progress]:
    """The experiment with those settings alone whose trials, all seeds, have ended, and the exhibits that they fit.

    Args:
        ended: trial_keys of the sweep.
        missing: how the sweep is incomplete.

    Raises:
        MissingTrials: for a search or random stopping, whose best is what they publish, and without such a setting.
    """
    if experiment.search or experiment.candidates:
        raise MissingTrials(f"{missing}; {'a search' if experiment.search else 'random stopping'} publishes its best "
                            "trial, which is not known before all have ended")
    settings = [repr(sorted((trial.canonical() | {"seed": None}).items())) for trial in experiment.trials]
    open_ones = {setting for setting, trial in zip(settings, experiment.trials, strict=True)
                 if trial.trial_key not in ended}
    shown = tuple(trial for setting, trial in zip(settings, experiment.trials, strict=True) if setting not in open_ones)
    if not shown:
        raise MissingTrials(f"{missing}; no setting has all of its seeds yet")
    report = tuple(name for name in experiment.report if not misfit(name, shown))
    count = sum(trial.trial_key in ended for trial in experiment.trials)
    return replace(experiment, trials=shown, report=report), Progress(count, len(shown), len(experiment.trials))
