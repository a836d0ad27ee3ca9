"""No mechanism: apply the plain mean of the records' updates (Ohana et al. Eq. 3 and 4). No privacy."""

from __future__ import annotations

import torch

from pipeline.learning.mechanisms.base import Mechanism, mean_outer_products
from pipeline.learning.network.network import Parameters


class NoMechanism(Mechanism):
    """Does not change error, signals or derivatives."""

    def update(self, deltas: list[torch.Tensor], activations: list[torch.Tensor], out: Parameters) -> None:
        mean_outer_products(self.net, deltas, activations, self.batch_size, out)
