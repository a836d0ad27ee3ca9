"""Make the projector of a pack."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.learning.feedback.projection import Projector
from pipeline.learning.randomness import integer_seed
from pipeline.trials.camera import camera_of
from pipeline.trials.config import TrialConfig


def make_projector(trials: Sequence[TrialConfig], n_out_total: int, device: torch.device | str) -> Projector:
    """Make the projector of a pack's trials, to hidden layers of this total width.

    Raises:
        OpuUnavailable: if the device does not exist on this host.
    """
    c = trials[0]
    own = {}
    if c.physical:
        own = {"cameras": [camera_of(t) for t in trials], "noise_seeds": [t.seed for t in trials]}
    seeds = [integer_seed(t.seed, "feedback") for t in trials]
    return c.parts.projector.load()(c.layer_sizes[-1], n_out_total, seeds, c.feedback_std, device, **own)
