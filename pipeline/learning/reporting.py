"""What a trial reports: the record of an epoch, and with its last one its outcome. `Training` calls it every epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from pipeline.accounting import account, describe, privacy_tags
from pipeline.accounting.certified import calibrated
from pipeline.trials.config import TrialConfig
from pipeline.trials.disclosure import check_metrics
from pipeline.trials.records import DESCRIPTION, ClassAccuracy, EpochRecord, Outcome


def record_of(trial: TrialConfig, epoch: int, measured: Mapping[str, float], tags: Mapping[str, str],
              outcome: Outcome | None) -> EpochRecord:
    """Return the record of an epoch. With an outcome its epsilons are of all planned epochs, else of those done.

    The decision to end early used released values, so an early end costs as much as all epochs. Metrics that are not
    finite are left out.
    """
    epsilons = account(trial, trial.epochs if outcome else epoch)
    metrics = {**measured, **{epsilon.metric_name: epsilon.value for epsilon in epsilons}}
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    if trial.disclosure != "plain":
        check_metrics(metrics)
    return EpochRecord(trial.trial_key, epoch, metrics, tags, outcome)


def first_tags(trial: TrialConfig, device: torch.device) -> dict[str, str]:
    """Return the tags of a trial's first epoch: its privacy, its calibrated noise, a description, and the device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {**privacy_tags(trial), **calibrated(trial), DESCRIPTION: describe(trial), "device": name}


def outcome_of(status: str, weights: Mapping[str, np.ndarray], counts: Mapping[str, torch.Tensor]) -> Outcome:
    """Return an outcome, with accuracies by class from counts of (records, correct ones) [2, classes] by part."""
    per_class = [ClassAccuracy(label, part, records, correct) for part, of_part in counts.items()
                 for label, (records, correct) in enumerate(zip(*of_part.tolist(), strict=True))]
    # A file of weights takes the bytes as they lie in memory, so that rows must come first.
    return Outcome(status, {name: np.array(value, order="C") for name, value in weights.items()}, tuple(per_class))
