"""Train a pack in integers."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.learning.feedback.algorithms import DirectFeedback, Feedback
from pipeline.learning.integers.inputs import IntegerInputs
from pipeline.learning.integers.loss import IntegerLoss
from pipeline.learning.integers.network import IntegerNetwork
from pipeline.learning.integers.products import kernel, power_of_two_above
from pipeline.learning.training import Training

MATRIX_BITS = 10  # of an entry of B beside its sign: sums of products with e then have less than 24 bits


class IntegerTraining(Training):
    """`Training` whose sums over records are exact. What leaves it has the same bits on every processor, in every pack
    and with any number of threads."""

    inputs = IntegerInputs

    def _network(self, seeds: Sequence[int]) -> IntegerNetwork:
        return IntegerNetwork(self.pack.shared, seeds, self.device)

    def _loss(self) -> IntegerLoss:
        return IntegerLoss(self.pack.shared, self.device)

    def _feedback(self) -> Feedback:
        """With B rounded to 10 bits of its largest entry, so that float32 products with errors are exact."""
        feedback = super()._feedback()
        if isinstance(feedback, DirectFeedback) and feedback.matrices is not None:
            for matrix in feedback.matrices:
                step = power_of_two_above(matrix.abs().amax()) / 2**MATRIX_BITS
                matrix.div_(step).round_().mul_(step)
        return feedback

    def _tags(self) -> dict[str, str]:
        return {"arithmetic.kernel": kernel(self.device)}
