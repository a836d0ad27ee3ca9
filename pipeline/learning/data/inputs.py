"""Records of a data set as a network takes them in."""

from __future__ import annotations

import torch

from pipeline.learning.data.dataset import Dataset
from pipeline.trials.config import TrialConfig

LEAST_NORM = 1e-6  # of an input: one of zeros has no direction, and stays zero


class Inputs:
    """Records resident on the device, handed out as float batches: uint8 pixels on the trial's input scale, features as
    they are."""

    def __init__(self, records: torch.Tensor, config: TrialConfig, data: Dataset) -> None:
        self.records, self.norm = records, config.input_norm
        self.scaled = config.features == "pixels"
        if not self.scaled:
            return
        mean, std = {"unit": ((0.0,), (1.0,)), "centered": ((0.5,), (0.5,)),
                     "standardized": (data.spec.mean, data.spec.std)}[config.inputs]
        per_channel = data.spec.n_features // len(mean)
        columns = [torch.tensor(v, device=records.device).repeat_interleave(per_channel) for v in (mean, std)]
        self.factor, self.shift = 1 / (data.spec.scale * columns[1]), -columns[0] / columns[1]

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        """Float inputs [..., n_0] of the records at `indices` [...]."""
        rows = self.records.index_select(0, indices.flatten()).to(torch.float32)
        inputs = torch.addcmul(self.shift, rows, self.factor) if self.scaled else rows
        if self.norm:
            inputs.mul_(self.norm / torch.linalg.vector_norm(inputs, dim=1, keepdim=True).clamp_(min=LEAST_NORM))
        return inputs.view(*indices.shape, -1)
