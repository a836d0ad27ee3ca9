"""What a sweep would train: its packs, what they occupy, how long they will take and what the best trial costs."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pipeline.accounting.statement import price_lines
from pipeline.learning.feedback.projection import check_opu
from pipeline.sweep.estimate import estimate_seconds
from pipeline.sweep.resources import bundle, check_resources, local_offer, slots
from pipeline.trials.config import TrialConfig, settings
from pipeline.trials.experiment import Experiment
from pipeline.trials.naming import duration
from pipeline.trials.packs import plan


def plan_lines(experiment: Experiment, workers: int | None) -> Iterator[str]:
    """For people, line by line; nothing is trained but a few timed steps on made-up records, and nothing is tracked.

    Args:
        workers: cores to use on this machine; None takes all.

    Raises:
        ResourceError: if this machine cannot give what a pack asks for.
        OpuUnavailable: if a trial needs an OPU and there is none.
    """
    asked, offer = experiment.resources, {**local_offer(workers), "GPU": torch.cuda.device_count()}
    check_resources(experiment.trials, asked, [offer])
    if any(trial.projector == "opu_hardware" for trial in experiment.trials):
        check_opu()
    at_once = slots(bundle(asked, False), offer)
    packs = plan(experiment.trials, asked, at_once)
    yield f"{experiment.name}: {len(experiment.trials)} trials in {len(packs)} packs, {at_once} packs at a time"
    for number, pack in enumerate(packs, start=1):
        opu = f", {asked.opu:g} OPU" if pack.needs_opu else ""
        yield f"pack {number}: {asked.cpu:g} CPU, {asked.gpu:g} GPU{opu}"
        for trial in pack.trials:
            yield f"  {trial.trial_key}  {_differences(trial, experiment)}"
    seconds = estimate_seconds(packs, at_once, opus=1, threads=max(1, int(asked.cpu)),
                               device="cuda" if asked.gpu else "cpu")
    yield (f"estimate: {duration(seconds)} of training on this machine as busy as it is now, and start-up; "
           "data sets were not looked for")
    if experiment.ignored:
        yield f"ignored: {experiment.ignored}"
    if experiment.candidates:
        yield from price_lines(experiment)


def _differences(trial: TrialConfig, experiment: Experiment) -> str:
    """The settings in which the experiment's trials differ, as this trial has them."""
    own, compared = trial.canonical(), (*experiment.trials, *experiment.candidates)
    return " ".join(f"{f.name}={own[f.name]}" for f in settings()
                    if f.name in own and len({getattr(t, f.name) for t in compared}) > 1)
