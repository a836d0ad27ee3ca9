"""Inputs and activations as 8-bit integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.inputs import CHUNK_ELEMENTS, LEAST_NORM, Inputs
from pipeline.learning.integers.products import power_of_two_above
from pipeline.learning.rows import Rows, exact_norm
from pipeline.trials.config import TrialConfig
from pipeline.trials.steps import LARGEST_FIRST, input_step

FINE = 2.0**-16  # step of a feature or pixel before normalisation
LARGEST_FINE = 2.0**6
# Limits on a record's largest number: the number of features times its square at most, itself at least.
LARGEST_SQUARES, SMALLEST = 2.0**21, 2.0**-4


class IntegerInputs(Inputs):
    """Records as int8; each is scaled, normalised and quantised once, on its own."""

    def __init__(self, records: torch.Tensor, config: TrialConfig, data: Dataset) -> None:
        """Round all records once to integers (`values`, int8), and store the squared norm of each (`squares`).

        Inputs are first rounded to a fine grid, on which norms are exact. They are then normalised, if asked for, and
        rounded to the grid of the products. Records go chunk by chunk, since their floats need four times the memory.
        """
        super().__init__(records, config, data)
        self.step = input_step(config)
        self.values = torch.empty(records.shape, dtype=torch.int8, device=records.device)
        self._buffer = self.values[:0]
        self.squares = torch.empty(len(records), 1, dtype=torch.float64, device=records.device)
        rows = max(1, CHUNK_ELEMENTS[records.device.type] // records.shape[1])
        table = self._of_pixels(int(data.spec.scale)) if self.scaled else None
        parts = (records, self.values, self.squares, *([] if self.usable is None else [self.usable]))
        for some, values, squares, *usable in zip(*(part.split(rows) for part in parts), strict=True):
            x = self._looked_up(table, some) if table is not None else some.float().div_(FINE)
            if usable:
                x[~usable[0]] = 0.0
            fold = self._fold(x) if self.norm else 1.0
            x.div_(fold).round_().clamp_(-LARGEST_FINE / FINE, LARGEST_FINE / FINE)
            if self.norm:
                x.mul_((self.norm * fold / (exact_norm(x) * FINE * fold).clamp_(min=LEAST_NORM)).float())
            x.mul_(FINE / self.step).round_().clamp_(-LARGEST_FIRST, LARGEST_FIRST)
            values.copy_(x)
            squares.copy_(exact_norm(x).square_().round_())

    def batch(self, indices: torch.Tensor, passing: bool = False) -> Rows:
        """Return the records at `indices` [R, m].

        Shapes: R trials, m records.
        """
        places = indices.flatten()
        values = torch.index_select(self.values, 0, places, out=self._place(len(places), passing))
        squares = self.squares.index_select(0, places).view(*indices.shape, 1)
        return Rows(values.view(*indices.shape, -1), self.step, squares)

    def _fold(self, x: torch.Tensor) -> torch.Tensor:
        """Return the power of two by which each row is divided before normalisation [rows, 1].

        It makes sums of squares exact in float64 and keeps small numbers; normalisation preserves only the direction.
        """
        largest = x.abs().amax(dim=1, keepdim=True).mul_(FINE)
        most = min(LARGEST_FINE, math.sqrt(LARGEST_SQUARES / x.shape[1]))
        wanted = torch.where(largest > most, largest / most, torch.where(largest < SMALLEST, largest / SMALLEST, 0.0))
        return power_of_two_above(wanted)

    def _of_pixels(self, scale: int) -> torch.Tensor:
        """Return the scaled pixels 0, ..., scale per channel in steps of `FINE` [channels, scale + 1], from Python."""
        mean, std = self.of_channels
        return torch.tensor([[round((pixel / scale - m) / s / FINE) for pixel in range(scale + 1)]
                             for m, s in zip(mean, std, strict=True)], dtype=torch.float32)

    def _looked_up(self, table: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
        channels, table = len(table), table.to(records.device)
        places = records.view(len(records), channels, -1).int()
        places += table.shape[1] * torch.arange(channels, dtype=torch.int32, device=records.device).view(-1, 1)
        return table.flatten().index_select(0, places.flatten()).view(records.shape)


def function_table(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """Return a table of float64 numbers that Python computed, not a kernel."""
    return torch.from_numpy(np.array(values)).to(device)
