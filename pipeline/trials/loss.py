"""What is minimized, and so what error the feedback starts from."""

from __future__ import annotations

from pipeline.trials.part import Part, part, setting


class Loss(Part):
    """A loss of softmax outputs whose gradient at the logits is p - q, both on the simplex: its norm is sqrt 2 at most,
    on which bounds rest."""


@part("loss", "cross_entropy")
class CrossEntropy(Loss):
    """q is 1 for the label."""

    works = "pipeline.learning.feedback.losses:CrossEntropy"


@part("loss", "label_smoothing")
class LabelSmoothing(Loss):
    """A share of q is spread over all classes (Szegedy et al. 2016, section 7)."""

    works = "pipeline.learning.feedback.losses:LabelSmoothing"
    smoothing: float = setting(
        0.1, "share of a target that is spread equally over all classes", low=0, high=1, open_high=True)
