"""Feedback: how output errors reach the layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.learning.feedback.algorithms import Feedback, make_feedback, register_feedback
    from pipeline.learning.feedback.projection import Projector

__all__ = ["Feedback", "Projector", "make_feedback", "register_feedback"]

__getattr__, __dir__ = lazy(__name__, {"Feedback": "algorithms", "Projector": "projection",
                                       "make_feedback": "algorithms", "register_feedback": "algorithms"})
