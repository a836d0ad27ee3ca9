"""Restrict the report of an unfinished sweep to trials that can be compared, without a best trial."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from analysis.catalogue import listed, refusal
from analysis.runs import MissingTrials
from pipeline.experiment.experiment import Experiment
from pipeline.trials.naming import setting_key

NO_BEST = "selection", "the best trial is chosen, and the choice paid for, once all trials have ended"


class Progress(NamedTuple):
    """Progress of a sweep: numbers of trials that have ended, that a report shows, and that are planned."""

    ended: int
    shown: int
    planned: int
    which: str  # are shown

    @property
    def mark(self) -> str:
        """Return the remark on an unfinished sweep that titles of exhibits get."""
        return f"unfinished: {self.shown} of {self.planned} trials"

    @property
    def notice(self) -> str:
        """Return sentences on an unfinished sweep, for the head of a page."""
        return (f"Unfinished: {self.ended} of {self.planned} trials have ended. Shown are {self.shown}, {self.which}; "
                "no best trial is chosen.")


def complete_part(experiment: Experiment, ended: Collection[str],
                  missing: MissingTrials) -> tuple[Experiment, Progress]:
    """Return an unfinished experiment with the trials that can be compared and exhibits that fit them; its progress.

    They are those of settings, all fields except the seed, whose trials have all ended; if there is none, as after a
    seed was added to all, those that have ended. An experiment without one is refused, as `missing`, and so are a
    search and random stopping, which publish only their best trial.
    """
    if rule := experiment.plan.ends_with_best:
        raise MissingTrials(f"{missing}; {rule} publishes its best trial, which is not known before all have ended")
    have_ended = [trial for trial in experiment.trials if trial.trial_key in ended]
    if not have_ended:
        raise missing
    incomplete = {setting_key(trial) for trial in experiment.trials if trial.trial_key not in ended}
    shown = [trial for trial in have_ended if setting_key(trial) not in incomplete]
    which = "of settings that have all of their seeds"
    if not shown:
        shown, which = have_ended, "with the seeds that each setting has, as none has all"
    part = replace(experiment, plan=experiment.plan.with_trials(shown))
    fitting = tuple(name for name in listed(experiment) if not refusal(name, part))
    part = replace(part, report=replace(part.report, exhibits=fitting))
    return part, Progress(len(have_ended), len(shown), len(experiment.trials), which)
