"""Losses, which define the error at the output."""

from __future__ import annotations

from typing import ClassVar

from pipeline.trials.part import Part, part, setting


class Loss(Part):
    """A loss of softmax outputs; its error is p - q."""

    # Why p and q are on the simplex, so that the error's norm is at most sqrt 2, and why it depends on no other record.
    # Certified mechanisms assume this. Empty if this package states it, None if nobody does.
    per_record: ClassVar[str | None] = None
    not_integer = "its error is not softmax minus a target that it states"


@part("loss", "cross_entropy")
class CrossEntropy(Loss):
    """q is 1 for the label."""

    per_record, not_integer = "", ""

@part("loss", "label_smoothing")
class LabelSmoothing(Loss):
    """A share of q is spread over all classes (Szegedy et al. 2016, section 7)."""

    per_record, not_integer = "", ""
    smoothing: float = setting(
        0.1, "share of a target that is spread equally over all classes", low=0, high=1, open_high=True)
