"""Inputs as integers of 8 bits or, with two digits, of 16."""

from __future__ import annotations

import math

import torch

from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.inputs import CHUNK_ELEMENTS, LEAST_NORM, Inputs
from pipeline.learning.integers.products import power_of_two_above, whole_type
from pipeline.learning.rows import IntegerRows, exact_norm
from pipeline.trials.config import TrialConfig
from pipeline.trials.steps import input_step, largest_integers

FINE = 2.0**-16  # step of a feature or pixel before normalisation
LARGEST_FINE = 2.0**6
# Limits on a record's largest number: the number of features times its square at most, itself at least.
LARGEST_SQUARES, SMALLEST = 2.0**21, 2.0**-4


class IntegerInputs(Inputs):
    """Records as integers (`values`, with `squares` of norms), each scaled, normalised and quantised once, on its own.

    Inputs are first rounded to a fine grid, on which norms are exact. They are then normalised, if asked for, and
    rounded to the grid of the products. Records go chunk by chunk, since their floats need four times the memory.
    """

    def __init__(self, records: torch.Tensor, config: TrialConfig, data: Dataset,
                 sizes: torch.Tensor | None = None) -> None:
        super().__init__(records, config, data, sizes)
        self.step = input_step(config)
        self.largest = largest_integers(config).input
        self.values = torch.empty(records.shape, dtype=whole_type(self.largest), device=records.device)
        self._buffer = self.values[:0]
        self.squares = torch.empty(len(records), 1, dtype=torch.float64, device=records.device)
        n_rows = max(1, CHUNK_ELEMENTS[records.device.type] // records.shape[1])
        self._table = self._pixel_table(int(data.spec.scale)) if self.scaled else None
        for start in range(0, len(records), n_rows):
            chunk = slice(start, start + n_rows)
            usable = None if self.usable is None else self.usable[chunk]
            x = self._rounded(records[chunk], usable, None if self.scaled else self.sizes[chunk, None])
            self.values[chunk].copy_(x)
            self.squares[chunk].copy_(exact_norm(x).square_().round_())

    @staticmethod
    def depends_on(config: TrialConfig) -> tuple[object, ...]:
        return config.input_norm, input_step(config), largest_integers(config).input

    def of(self, records: torch.Tensor) -> IntegerRows:
        """Return the inputs of other records, pixels or bfloat16 features [n, n_0], each `representable`."""
        return IntegerRows(self._rounded(records).to(self.values.dtype)[None], self.step)

    def _rounded(self, records: torch.Tensor, usable: torch.Tensor | None = None,
                 sizes: torch.Tensor | None = None) -> torch.Tensor:  # of features [n, 1], if they are known
        """Return records [n, n_0], normalised if asked for, in steps of `step`, float32; zeros if not `usable` [n]."""
        x = records.float() if self._table is None else self._looked_up(self._table, records)
        if usable is not None:
            x[~usable] = 0.0  # before anything is computed from it
        if self._table is None:
            x.mul_(1 / FINE)
        divisor: torch.Tensor | float = 1.0
        if self.norm:
            largest = x.abs().amax(dim=1, keepdim=True).mul_(FINE) if sizes is None else sizes
            divisor = self._divisor(largest, x.shape[1])
        x.div_(divisor).round_().clamp_(-LARGEST_FINE / FINE, LARGEST_FINE / FINE)
        if self.norm:
            norms = (exact_norm(x) * FINE * divisor).clamp_(min=LEAST_NORM)
            x.mul_((self.norm * divisor / norms).float())
        return x.mul_(FINE / self.step).round_().clamp_(-self.largest, self.largest)

    def batch(self, indices: torch.Tensor, reuse_buffer: bool = False) -> IntegerRows:
        flat = indices.flatten()
        values = torch.index_select(self.values, 0, flat, out=self._memory(len(flat), reuse_buffer))
        squares = self.squares.index_select(0, flat).view(*indices.shape, 1)
        return IntegerRows(values.view(*indices.shape, -1), self.step, squares)

    def _divisor(self, largest: torch.Tensor, n_features: int) -> torch.Tensor:
        """Return the power of two by which each row is divided before normalisation [rows, 1], from its largest number.

        It brings the row's largest number between `SMALLEST` and a limit at which sums of squares are still exact in
        float64. Normalisation preserves only the direction, so the division changes nothing else.
        """
        limit = min(LARGEST_FINE, math.sqrt(LARGEST_SQUARES / n_features))
        unchanged = torch.zeros_like(largest)  # `power_of_two_above` maps 0 to 1
        ratio = torch.where(largest < SMALLEST, largest / SMALLEST, unchanged)
        ratio = torch.where(largest > limit, largest / limit, ratio)
        return power_of_two_above(ratio)

    def _pixel_table(self, scale: int) -> torch.Tensor:
        """Return the standardised value of each pixel 0, ..., scale, in steps of `FINE` [channels, scale + 1].

        Python computes it, not a kernel, so that it is the same on every processor.
        """
        means, deviations = self.channel_scales
        table = []
        for mean, deviation in zip(means, deviations, strict=True):
            table.append([round((pixel / scale - mean) / deviation / FINE) for pixel in range(scale + 1)])
        return torch.tensor(table, dtype=torch.float32)

    def _looked_up(self, table: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
        """Return table[channel, pixel] of every pixel, float32 [n, n_features].

        Records, uint8 [n, n_features], have one channel after the other.
        """
        n_channels, n_values = table.shape
        starts = n_values * torch.arange(n_channels, dtype=torch.int32, device=records.device)  # in the flat table
        indices = records.view(records.shape[0], n_channels, -1).int()
        indices += starts.view(-1, 1)
        return table.to(records.device).flatten().index_select(0, indices.flatten()).view(records.shape)
