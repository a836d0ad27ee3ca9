"""Errors e = softmax(z) - q as multiples of 2^-12, from a table of exponentials."""

from __future__ import annotations

import math

import torch

from pipeline.learning.feedback.losses import Loss
from pipeline.learning.integers.inputs import function_table
from pipeline.trials.config import TrialConfig
from pipeline.trials.steps import ERROR_BITS, EXPONENTIAL_BITS

PER_UNIT, REACH = 512, 32  # table entries per unit of z; the range of the table below the largest z


class IntegerLoss(Loss):
    """Error and loss of a `Loss` that defines `targets`."""

    def __init__(self, config: TrialConfig, device: torch.device) -> None:
        """Compute the table of exp(-k/`PER_UNIT`), in steps of 2^-`EXPONENTIAL_BITS`."""
        super().__init__(config)
        self.float_loss = config.parts.loss.load()(config)  # defines the targets
        exponentials = [round(2**EXPONENTIAL_BITS * math.exp(-k / PER_UNIT)) for k in range(REACH * PER_UNIT)]
        self.table = function_table(exponentials, device)

    def of_records(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the error e = p - q [R, m, n_L] and the loss -sum q log p [R, m, 1] of every record, float32.

        p is softmax(logits), with exponentials from a table, so that no bit of e depends on the processor; the loss is
        only reported. q is the target distribution of the label. e is rounded to `ERROR_BITS` bits.
        """
        below_largest = logits.amax(dim=-1, keepdim=True) - logits
        steps = (below_largest * PER_UNIT).nan_to_num_(0.0)  # inf - inf is nan, and counts as the largest
        indices = steps.round_().clamp_(0, len(self.table) - 1).to(torch.int32)
        exponentials = self.table.index_select(0, indices.flatten()).view(logits.shape)
        p = exponentials / exponentials.sum(dim=-1, keepdim=True)
        q = self.float_loss.targets(labels.squeeze(-1), logits.shape[-1])
        losses = -(q * p.clamp(min=2.0**-EXPONENTIAL_BITS).log()).sum(dim=-1, keepdim=True)
        errors = (p - q).mul_(2**ERROR_BITS).round_().mul_(2.0**-ERROR_BITS)
        return errors.float(), losses.float()
