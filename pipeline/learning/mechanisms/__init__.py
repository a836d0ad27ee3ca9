"""Mechanisms: turn learning signals and activations into the applied update (see `base.Mechanism`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.learning.mechanisms.base import Mechanism
    from pipeline.learning.mechanisms.registry import (
        contribution_bound,
        make_mechanism,
        noise_deviation,
        register_mechanism,
    )

__all__ = ["Mechanism", "contribution_bound", "make_mechanism", "noise_deviation", "register_mechanism"]

__getattr__, __dir__ = lazy(__name__, {"Mechanism": "base", "contribution_bound": "registry",
                                       "make_mechanism": "registry", "noise_deviation": "registry",
                                       "register_mechanism": "registry"})
