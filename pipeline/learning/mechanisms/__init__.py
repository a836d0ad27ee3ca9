"""Mechanisms: turn learning signals and activations into the applied update (see `base.Mechanism`)."""

from pipeline.learning.mechanisms.base import Mechanism
from pipeline.learning.mechanisms.registry import (
    contribution_bound,
    make_mechanism,
    noise_deviation,
    register_mechanism,
)

__all__ = ["Mechanism", "contribution_bound", "make_mechanism", "noise_deviation", "register_mechanism"]
