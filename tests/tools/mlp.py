"""Fully connected networks of given sizes, without a trial."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.learning.network.stacked import StackedNetwork
from pipeline.trials.shapes import dense_shapes


class Mlp(StackedNetwork):
    """R fully connected networks of sizes (n_0, ..., n_L), with one activation."""

    def __init__(self, sizes: Sequence[int], activation: str, seeds: Sequence[int],
                 device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dense_shapes(sizes), [activation] * (len(sizes) - 2), seeds, device, dtype)
