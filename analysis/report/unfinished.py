"""Restrict the report of an unfinished sweep to settings with all of their seeds, without a best trial."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from analysis.runs import MissingTrials
from pipeline.experiment.exhibits import mismatch
from pipeline.experiment.experiment import Experiment
from pipeline.trials.naming import setting_key

NO_BEST = "selection", "the best trial is chosen, and the choice paid for, once all trials have ended"


class Progress(NamedTuple):
    """Progress of a sweep: numbers of trials that have ended, that a report shows, and that are planned."""

    ended: int
    shown: int
    planned: int

    @property
    def mark(self) -> str:
        """Return the remark on an unfinished sweep that titles of exhibits get."""
        return f"unfinished: {self.shown} of {self.planned} trials"

    @property
    def notice(self) -> str:
        """Return sentences on an unfinished sweep, for the head of a page."""
        return (f"Unfinished: {self.ended} of {self.planned} trials have ended. Shown are {self.shown}, of settings "
                "that have all of their seeds; no best trial is chosen.")


def complete_part(experiment: Experiment, ended: Collection[str],
                  missing: MissingTrials) -> tuple[Experiment, Progress]:
    """Return an unfinished experiment with only its complete settings and the exhibits that fit them, and its progress.

    A setting, all fields except the seed, is complete if the trials of all its seeds have ended. An experiment without
    one is refused, as `missing`, and so are a search and random stopping, which publish only their best trial.
    """
    if rule := experiment.plan.ends_with_best:
        raise MissingTrials(f"{missing}; {rule} publishes its best trial, which is not known before all have ended")
    settings = [setting_key(trial) for trial in experiment.trials]
    incomplete = {setting for setting, trial in zip(settings, experiment.trials, strict=True)
                  if trial.trial_key not in ended}
    shown = tuple(trial for setting, trial in zip(settings, experiment.trials, strict=True)
                  if setting not in incomplete)
    if not shown:
        raise MissingTrials(f"{missing}; no setting has all of its seeds yet")
    report = tuple(name for name in experiment.report if not mismatch(name, shown))
    n_ended = sum(trial.trial_key in ended for trial in experiment.trials)
    part = replace(experiment, plan=experiment.plan.with_trials(shown), report=report)
    return part, Progress(n_ended, len(shown), len(experiment.trials))
