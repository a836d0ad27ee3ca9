"""Feedback paths: carry output errors to the layers."""

from pipeline.learning.feedback.algorithms import FeedbackPath, register_feedback

__all__ = ["FeedbackPath", "register_feedback"]
