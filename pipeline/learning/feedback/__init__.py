"""Feedback paths: carry output errors to the layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.learning.feedback.algorithms import Feedback, register_feedback

__all__ = ["Feedback", "register_feedback"]

__getattr__, __dir__ = lazy(__name__, {"Feedback": "algorithms", "register_feedback": "algorithms"})
