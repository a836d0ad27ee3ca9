"""Restrict the report of an unfinished sweep to settings with all of their seeds, without a best trial."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from analysis.exhibits.catalogue import mismatch
from analysis.runs import MissingTrials
from pipeline.experiment.experiment import Experiment

NO_BEST = "selection", "the best trial is chosen, and the choice paid for, once all trials have ended"


class Progress(NamedTuple):
    """Progress of a sweep: numbers of trials that have ended, that a report shows, and that are planned."""

    ended: int
    shown: int
    planned: int

    @property
    def mark(self) -> str:
        """Text for titles."""
        return f"unfinished: {self.shown} of {self.planned} trials"

    @property
    def notice(self) -> str:
        """Sentences for the head of a page."""
        return (f"Unfinished: {self.ended} of {self.planned} trials have ended. Shown are {self.shown}, of settings "
                "that have all of their seeds; no best trial is chosen.")


def part_of(experiment: Experiment, ended: Collection[str], missing: MissingTrials) -> tuple[Experiment, Progress]:
    """Return the experiment with only complete settings (all seeds have ended) and fitting exhibits, and its progress.

    Args:
        experiment: the experiment.
        ended: trial_keys of the sweep's trials that have ended.
        missing: the error for the incomplete sweep.

    Raises:
        MissingTrials: for a search or random stopping, which publish only their best trial, or without a complete
            setting.
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
    report = tuple(name for name in experiment.report if not mismatch(name, shown))
    count = sum(trial.trial_key in ended for trial in experiment.trials)
    return replace(experiment, trials=shown, report=report), Progress(count, len(shown), len(experiment.trials))
