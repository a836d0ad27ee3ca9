"""The parts of a training in integer arithmetic."""

from __future__ import annotations

import math
import sys

import torch

from pipeline.learning.feedback.algorithms import DirectFeedback, FeedbackPath
from pipeline.learning.feedback.projection import GaussianProjector, shape_matrices
from pipeline.learning.integers.contributions import IntegerSum
from pipeline.learning.integers.integer_inputs import IntegerInputs
from pipeline.learning.integers.integer_network import IntegerLoss, IntegerNetwork
from pipeline.learning.integers.products import kernel, power_of_two_above
from pipeline.learning.mechanisms.gaussian import GaussianStep
from pipeline.learning.network.stacked import StackedNetwork
from pipeline.learning.randomness import RoundedNoise
from pipeline.learning.training import ARITHMETICS, FloatingPoint, Training
from pipeline.trials import arithmetic
from pipeline.trials.arithmetic import CLAMPED
from pipeline.trials.steps import GRID_BITS

MATRIX_BITS = 10  # bits of an entry of B without its sign: sums of products with e then have less than 24 bits
N_CHECKED = 1_000  # public test records to check before the first epoch
WARNING_SHARE = 0.1  # warn above this share of records that contribute nothing


def _rounded(x: float) -> float:
    """Round x > 0 to 16 bits: the result then does not depend on a library's order of summation."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(mantissa * 2**16), exponent - 16)


@ARITHMETICS.of(arithmetic.Integer)
class IntegerArithmetic(FloatingPoint):
    """Integers, with exact sums over records.

    Weights have the same bits for any number of threads and in any pack. With the same inputs, they also have the same
    bits for any of the processor's kernels.
    """

    inputs = IntegerInputs
    kernel: str  # of the large products
    truncated: list[float]  # by trial, share of public test records with contributions truncated to 0 at the start
    clamped: list[list[float]]  # by trial and layer, share of these records' components that are clamped at the start

    def network(self) -> IntegerNetwork:
        return IntegerNetwork(self.pack.shared, [trial.seed for trial in self.pack.trials], self.device)

    def loss(self) -> IntegerLoss:
        return IntegerLoss(self.pack.shared, self.device)

    def feedback(self, net: StackedNetwork) -> FeedbackPath:
        """Make the feedback path, with matrices B of `MATRIX_BITS` bits: float32 products with errors are then exact.

        B is drawn from the rounded Gaussian, as torch's normal draws differ between processors.
        """
        feedback = super().feedback(net)
        if not isinstance(feedback, DirectFeedback) or feedback.matrices is None:
            return feedback
        if isinstance(feedback.projector, GaussianProjector):
            seeds = [trial.seed for trial in self.pack.trials]
            drawn = RoundedNoise(seeds, feedback.matrices.shape[1:], self.device, stream="feedback").next()
            feedback.matrices.copy_(drawn.mul_(feedback.projector.std / 2**GRID_BITS))
            shape_matrices(feedback.projector, self.pack.shared, feedback.widths)
        if norm := self.pack.shared.parts.mechanism.feedback_norm:  # beta of every layer
            for layer_matrices in feedback.matrices.split(list(feedback.widths), dim=2):
                for matrix in layer_matrices:
                    matrix.mul_(_rounded(norm / float(torch.linalg.matrix_norm(matrix.double(), ord=2))))
        for matrix in feedback.matrices:
            step = power_of_two_above(matrix.abs().amax()) / 2**MATRIX_BITS
            matrix.div_(step).round_().mul_(step)
        return feedback

    def begin(self, training: Training) -> None:
        """Count what rounding loses of the first `N_CHECKED` test records; warn if many contribute nothing."""
        mechanism = training.mechanism
        assert isinstance(mechanism, GaussianStep) and isinstance(mechanism.sum, IntegerSum)
        test_y = training.data.test_y
        places = torch.arange(min(N_CHECKED, len(test_y)), device=self.device).expand(len(self.pack.trials), -1)
        activations, logits = training.net.forward(training.test_inputs.batch(places))
        error, _ = training.loss(logits, test_y[places])
        signals = training.feedback.signals(error)  # without noise
        deltas = training.feedback.deltas(signals, training.net, activations, training.net.derivative)
        contributions = mechanism.sum.contributions(mechanism.layer_factors, deltas, activations)
        is_zero = [(weights == 0).all(dim=-1) for weights, _ in contributions]  # per layer [R, m]
        self.truncated = torch.stack(is_zero).all(dim=0).double().mean(dim=1).tolist()
        inputs, *outputs = activations
        counted = [inputs, *(h if self.pack.shared.activation == "relu" else None for h in outputs)]  # others end at 1
        self.clamped = mechanism.sum.clamped(counted, deltas, contributions)
        self.kernel = kernel(self.device, training.net.sizes, self.pack.shared.batch_size)
        for trial, bound, share in zip(self.pack.trials, mechanism.bounds, self.truncated, strict=True):
            if share > WARNING_SHARE:
                print(f"warning: clipping norm C = {bound:g}: {share:.0%} of {N_CHECKED:,} test records contribute "
                      f"nothing to trial {trial.trial_key} in integers, as their contributions are far shorter; "
                      "lower it, or use arithmetic 'float32'", file=sys.stderr)

    def tags(self, r: int) -> dict[str, str]:
        by_layer = ", ".join(f"{share:.4g}" for share in self.clamped[r])
        return {"arithmetic.kernel": self.kernel, "arithmetic.truncated_to_zero": f"{self.truncated[r]:.4g}",
                CLAMPED: by_layer}
