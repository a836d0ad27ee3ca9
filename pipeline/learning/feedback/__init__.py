"""Feedback paths: carry output errors to the layers."""

from pipeline.learning.feedback.algorithms import Feedback, register_feedback

__all__ = ["Feedback", "register_feedback"]
