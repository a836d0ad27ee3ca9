"""Networks with exact forward and backward products, and their losses: a record's outputs do not depend on its batch.

    z = (H W_q^T) b w + bias,   W_q = round(W/w),   h = table(z)

H has integers of 8 bits; W_q has 7 bits, or 14 in the output layer. Where integers are fine (`steps.is_fine`), H has 15
bits and every W_q 14: a slope of relu follows from the sign of z. w is a power of two that follows from the layer's
largest weight. Weights are released, so rounding them costs no privacy. All other values are computed element by
element, with operations that IEEE 754 defines exactly, or come from a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from pipeline.learning.feedback.losses import LOSSES, OutputLoss
from pipeline.learning.integers.products import (
    LARGEST_FLOAT,
    power_of_two_above,
    product,
    quantised,
    signals,
    split_digits,
    whole_product,
    whole_type,
)
from pipeline.learning.network.layers import Dense
from pipeline.learning.network.stacked import Parameters, StackedNetwork
from pipeline.learning.rows import IntegerRows
from pipeline.trials.config import TrialConfig
from pipeline.trials.shapes import DenseShape, dense_shapes
from pipeline.trials.steps import (
    BACK_STEP,
    BASE,
    ERROR_BITS,
    EXPONENTIAL_BITS,
    LARGEST,
    LARGEST_SECOND,
    hidden_step,
    is_fine,
    largest_integers,
)

ENTRIES, FINE_ENTRIES, REACH = 2**12, 2**16, 8.0  # entries of a table of phi; its range is -REACH <= z <= REACH
PER_UNIT, BELOW = 512, 32  # entries of the table of exp per unit of z, and its range below the largest z


class IntegerDense(Dense):
    """A fully connected layer z = W h + b with exact products; weights have two digits forward, backward or neither."""

    def __init__(self, shape: DenseShape, fine: bool, fine_back: bool = False) -> None:
        super().__init__(shape)
        self.fine, self.fine_back = fine, fine_back

    def forward(self, h: IntegerRows, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return z = W h + b [R, m, n_l], float32, with exact products of integers, to which weights are rounded."""
        outputs = torch.empty(*h.values.shape[:2], self.shape.n_out, device=bias.device)
        for z, values, w in zip(outputs, h.values, weight, strict=True):
            integers, step = quantised(w, LARGEST if self.fine else LARGEST_SECOND)
            if self.fine:
                z.copy_(whole_product(values, split_digits(integers.t().to(torch.int16))))
            else:
                z.copy_(product(values, integers.to(torch.int8).t()))
            z.mul_(step * h.step)
        return h.scaled(outputs).add_(bias.unsqueeze(1))

    def back(self, delta: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return W^T delta [R, m, n_{l-1}], float32, exact; delta is rounded to multiples of `BACK_STEP`."""
        if self.fine_back:
            return torch.stack([self._fine_back(d, w) for d, w in zip(delta, weight, strict=True)])
        result = torch.empty(*delta.shape[:2], self.shape.n_in, device=delta.device)
        for out, d, w in zip(result, delta, weight, strict=True):
            integers, step = quantised(w, LARGEST_SECOND)
            integers = integers.to(torch.int8).contiguous()
            higher_digits, lower_digits = split_digits(signals(d, BACK_STEP).to(torch.int16)).chunk(2, dim=1)
            higher = product(higher_digits.contiguous(), integers)
            lower = product(lower_digits.contiguous(), integers)
            out.copy_(higher.double().mul_(BASE).add_(lower)).mul_(step * BACK_STEP)
        return result

    @staticmethod
    def _fine_back(delta: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return W^T delta [m, n_{l-1}], float32, exact; delta [m, n_l] is rounded to 14 bits of a record's largest."""
        integers, step = quantised(weight, LARGEST)
        sizes = delta.abs().amax(dim=-1, keepdim=True)
        row_steps = power_of_two_above(sizes.clamp_(1 / LARGEST_FLOAT, LARGEST_FLOAT)) / LARGEST  # [m, 1]
        rows = signals(delta, row_steps, LARGEST).to(torch.int16)
        return whole_product(rows, split_digits(integers.to(torch.int16))).float().mul_(row_steps).mul_(step)

    def write_sum(self, delta: torch.Tensor, h: IntegerRows, out_weight: torch.Tensor, out_bias: torch.Tensor) -> None:
        """Write sum_i delta_i h_i^T and sum_i delta_i to the outputs, delta rounded to 14 bits of a trial's largest."""
        for d, scaled, values, weight, bias in zip(delta, h.scaled(delta), h.values, out_weight, out_bias, strict=True):
            integers, step = quantised(scaled, LARGEST)
            sums = whole_product(values.t(), split_digits(integers.to(torch.int16)))
            weight.copy_(sums.t()).mul_(step * h.step)
            if h.scales is not None:
                integers, step = quantised(d, LARGEST)
            bias.copy_(integers.sum(dim=0, dtype=torch.float64)).mul_(step)

    def squared_norms(self, delta: torch.Tensor, h: IntegerRows) -> torch.Tensor:
        """Return ||delta_i||^2 (||h_i||^2 + 1) [R, m, 1], float64."""
        return delta.double().square().sum(dim=-1, keepdim=True) * (h.real_squares() + 1)


class ByInput(Parameters):
    """Weights stored input by input, the memory order of exact products of inputs with contributions."""

    @staticmethod
    def _matrix(numbers: torch.Tensor, n_out: int, n_in: int) -> torch.Tensor:
        return numbers.unflatten(1, (n_in, n_out)).transpose(1, 2)


class IntegerNetwork(StackedNetwork):
    """R fully connected networks with exact products, with the initial weights of their float32 counterparts."""

    layout = ByInput

    def __init__(self, config: TrialConfig, seeds: Sequence[int], device: torch.device) -> None:
        super().__init__(config.layers, [config.activation] * len(config.hidden), seeds, device, init=config.init,
                         gain=config.init_gain)
        self.fine = is_fine(config)
        self.layers = [IntegerDense(shape, self.fine or k == len(config.hidden), self.fine)
                       for k, shape in enumerate(dense_shapes(config.layer_sizes))]
        self.largest, self.hidden_step = largest_integers(config).input, hidden_step(config)
        self.entries = FINE_ENTRIES if self.fine else ENTRIES
        self.table: torch.Tensor | None = None  # phi at equally spaced z, in steps of hidden outputs; relu needs none
        if config.activation != "relu":
            phi = math.tanh if config.activation == "tanh" else lambda z: 1 / (1 + math.exp(-z))  # sigmoid
            values = []
            for k in range(self.entries):
                z = (k - self.entries / 2) * 2 * REACH / self.entries
                values.append(max(-self.largest, min(self.largest, round(phi(z) / self.hidden_step))))
            self.table = function_table(values, device).to(whole_type(self.largest))

    @staticmethod
    def _drawn(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> torch.Tensor:
        """Draw uniformly from +-bound, with operations that round in the same way on every processor."""
        return torch.rand(shape, generator=generator).mul_(2).sub_(1).mul_(bound)  # the first two are exact

    def forward(self, x: IntegerRows) -> tuple[list[IntegerRows], torch.Tensor]:
        """Return (h^0, ..., h^{L-1}), and logits [R, m, n_L], float32."""
        activations = [x]
        *hidden, output = zip(self.layers, self.parameters.weights, self.parameters.biases, strict=True)
        for layer, weight, bias in hidden:
            z = layer.forward(activations[-1], weight, bias)
            activations.append(self._activated(z))
        layer, weight, bias = output
        return activations, layer.forward(activations[-1], weight, bias)

    def _activated(self, z: torch.Tensor) -> IntegerRows:
        """Return the hidden outputs H [R, m, n] for pre-activations z, which are overwritten.

        ReLU is rounded to steps. Other functions are looked up in a table of values from -`REACH` to `REACH`.
        """
        if self.table is None and self.fine:
            # A record's larger outputs are divided by a power of two, and none is clamped. What is above 0 is at least
            # a step, which keeps its slope.
            h = z.nan_to_num(0.0).clamp_(0, LARGEST_FLOAT)
            over = h.amax(dim=-1, keepdim=True) / (self.hidden_step * self.largest)
            scales = power_of_two_above(over).clamp_(min=1.0)
            rounded = torch.where(h > 0, h.div(scales * self.hidden_step).round_().clamp_(1, self.largest), 0.0)
            return IntegerRows(rounded.to(whole_type(self.largest)), self.hidden_step, scales=scales)
        if self.table is None:
            rounded = z.div_(self.hidden_step).round_().nan_to_num_(0.0).clamp_(0, self.largest)
            return IntegerRows(rounded.to(whole_type(self.largest)), self.hidden_step)
        # The index of z is (z + REACH) in entries per unit; adding 0.5 before the cast to an integer rounds it.
        n = self.entries
        indices = z.mul_(n / (2 * REACH)).add_(n / 2 + 0.5).nan_to_num_(0.0).clamp_(0, n - 1)
        values = self.table.index_select(0, indices.to(torch.int32).flatten()).view(z.shape)
        return IntegerRows(values, self.hidden_step)

    def derivative(self, h: IntegerRows, layer: int) -> torch.Tensor:
        """Return phi'(z^l) [R, m, n_l] from h^l; exact, or the exact number rounded once to float32."""
        real = h.real()
        if self.fine and self.table is not None:  # squares need more than 24 bits; some processors would round them
            return super().derivative(real.double(), layer).float()
        return super().derivative(real, layer)


class IntegerLoss(OutputLoss):
    """Error and loss of a `OutputLoss` that defines `targets`."""

    def __init__(self, config: TrialConfig, device: torch.device) -> None:
        """Compute the table of exp(-k/`PER_UNIT`), in steps of 2^-`EXPONENTIAL_BITS`."""
        super().__init__(config)
        self.float_loss = LOSSES[config.parts.loss](config)  # defines the targets
        exponentials = [round(2**EXPONENTIAL_BITS * math.exp(-k / PER_UNIT)) for k in range(BELOW * PER_UNIT)]
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

def function_table(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """Return a table of float64 numbers that Python computed, not a kernel."""
    return torch.from_numpy(np.array(values)).to(device)
