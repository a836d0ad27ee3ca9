"""Records of a data set as a network takes them in."""

from __future__ import annotations

import math

import torch

from pipeline.learning.data.dataset import Dataset
from pipeline.learning.rows import Activation
from pipeline.trials.config import TrialConfig

LEAST_NORM = 1e-6  # of an input: one of zeros has no direction, and stays zero
# Elements that are gathered, scaled and normalised at a time; on a CPU as many as a core's own cache holds.
CHUNK_ELEMENTS = {"cpu": 2**18, "cuda": 2**28}
LARGEST_FEATURE = 2.0**104  # integer arithmetic: below it, steps and norms of a record are finite in float32


def largest_sizes(features: torch.Tensor) -> torch.Tensor:
    """Return the largest size of each record's features [N], float32, from features [N, n_0]; nan if one is nan."""
    n_rows = max(1, CHUNK_ELEMENTS[features.device.type] // features.shape[1])
    return torch.cat([chunk.abs().amax(dim=1) for chunk in features.split(n_rows)]).float()


def representable(sizes: torch.Tensor, config: TrialConfig) -> torch.Tensor:
    """Return which records [N] a trial can use, from their `largest_sizes`: each is decided by its own record."""
    return sizes < (LARGEST_FEATURE if config.exact else math.inf)  # false for nan


class Inputs:
    """Records on the device, handed out as batches of floats: pixels on the trial's input scale, or features."""

    def __init__(self, records: torch.Tensor, config: TrialConfig, data: Dataset,
                 sizes: torch.Tensor | None = None) -> None:  # `largest_sizes` of features, if they are known
        self.records, self.norm = records, config.input_norm
        self.usable = None  # [N], false for records that are not `representable`; None if all are
        self._buffer = torch.empty(0, records.shape[1], device=records.device)  # memory of `batch`
        self.scaled = config.parts.features.raw  # pixels are shifted and scaled; features are taken as they are
        if not self.scaled:
            sizes = largest_sizes(records) if sizes is None else sizes
            usable = representable(sizes, config)
            self.usable = None if bool(usable.all()) else usable
            self.sizes = torch.where(usable, sizes, 0.0)
            return
        scales = {"unit": ((0.0,), (1.0,)), "centered": ((0.5,), (0.5,)),
                  "standardized": (data.spec.mean, data.spec.std)}
        self.channel_scales = scales[config.inputs]  # means and deviations
        per_channel = data.spec.n_features // len(self.channel_scales[0])
        mean, std = (torch.tensor(values, device=records.device).repeat_interleave(per_channel)  # [n_features]
                     for values in self.channel_scales)
        self.factor, self.shift = 1 / (data.spec.scale * std), -mean / std  # x -> (x/scale - mean)/std

    @staticmethod
    def depends_on(config: TrialConfig) -> tuple[object, ...]:
        """Return the settings that decide the inputs of given features."""
        return config.input_norm, config.exact

    def batch(self, indices: torch.Tensor, reuse_buffer: bool = False) -> Activation:
        """Return float inputs [..., n_0] of the records at `indices` [...]; zeros for unusable ones.

        With `reuse_buffer` the next such batch overwrites them. This is faster, as new memory is slow to get.
        """
        places = indices.flatten()
        inputs = self._memory(len(places), reuse_buffer)
        rows = max(1, CHUNK_ELEMENTS[inputs.device.type] // inputs.shape[1])
        for out_chunk, place_chunk in zip(inputs.split(rows), places.split(rows), strict=True):
            out_chunk.copy_(self.records.index_select(0, place_chunk))
            if self.usable is not None:
                out_chunk[~self.usable[place_chunk]] = 0.0
            self._scale(out_chunk)
        return inputs.view(*indices.shape, inputs.shape[1])

    def _memory(self, rows: int, reuse_buffer: bool) -> torch.Tensor:
        """Return uninitialised memory [rows, n_0]: the start of the buffer, which grows as needed, or new memory."""
        memory = self._buffer
        if not reuse_buffer or len(memory) < rows:
            memory = memory.new_empty(rows, memory.shape[1])
        if reuse_buffer:
            self._buffer = memory
        return memory[:rows]

    def of(self, records: torch.Tensor) -> Activation:
        """Return the inputs [1, n, n_0] of other records [n, n_0], each `representable`."""
        return self._scale(records.to(torch.float32, copy=True))[None]

    def _scale(self, x: torch.Tensor) -> torch.Tensor:
        """Scale and normalise floats [n, n_0] in place, and return them."""
        if self.scaled:
            torch.addcmul(self.shift, x, self.factor, out=x)
        if self.norm:
            x.mul_(self.norm / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_(min=LEAST_NORM))
        return x
