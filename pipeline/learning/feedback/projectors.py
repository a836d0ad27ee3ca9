"""Make the projector of a pack."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.learning.feedback.projection import Projector
from pipeline.learning.randomness import integer_seed
from pipeline.trials.camera import camera_of
from pipeline.trials.config import TrialConfig


def make_projector(trials: Sequence[TrialConfig], n_out_total: int, device: torch.device | str) -> Projector:
    """Make the projector of a pack's trials, to hidden layers of this total width."""
    shared = trials[0]
    options = {}
    if shared.physical:
        options = {"cameras": [camera_of(t) for t in trials], "noise_seeds": [t.seed for t in trials]}
    seeds = [integer_seed(t.seed, "feedback") for t in trials]
    n_classes, projector = shared.layer_sizes[-1], shared.parts.projector.load()
    return projector(n_classes, n_out_total, seeds, shared.feedback_std, device, **options)
