"""Mechanisms: turn learning signals and activations into the applied update (see `base.MechanismStep`)."""

from pipeline.learning.mechanisms.base import MechanismStep
from pipeline.learning.mechanisms.registry import (
    contribution_bound,
    make_mechanism,
    noise_deviation,
    register_mechanism,
)

__all__ = ["MechanismStep", "contribution_bound", "make_mechanism", "noise_deviation", "register_mechanism"]
