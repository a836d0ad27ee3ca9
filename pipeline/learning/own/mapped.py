"""Map the graph of one record over chunks of records. `OwnNet` trains and evaluates by it where it can.

`torch.func.vmap` keeps records apart only where an operator's own rule does. So every operator of the graph is on the
reviewed list (`operators.py`), and chunks have a constant size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx
from torch.func import vmap

from pipeline.learning.mechanisms.gradients import GradientRows, Gradients, product_of
from pipeline.learning.own.graph import Passes, pool_by_channels, split, trace
from pipeline.learning.own.operators import CHUNK_MULTIPLE, check_plain, guarded
from pipeline.learning.own.segments import Segments, copy_of


class Mapped:
    """The reviewed graph of a network's segments, for chunks of records.

    Args:
        segments: the network; its parameters are read at every call.
        record: an example [1, *shape], which the network takes.

    Raises:
        NotMapped: naming the first operator that is not reviewed, or what cannot be traced.
    """

    def __init__(self, segments: Segments, record: Tensor) -> None:
        self.state = [tensor.detach() for tensor in (*segments.trained.values(), *segments.fixed.values())]
        for tensor in self.state:
            check_plain(tensor)
        with torch.no_grad():
            signals = [output.flatten(1) for output in copy_of(segments)(record)]
        reviewed = guarded(trace(segments, record, signals), len(self.state))
        self.passes: Passes = split(pool_by_channels(reviewed), len(self.state))

    def chunk(self, records_at_once: int) -> int:
        """Return the size of chunks: at least `records_at_once`."""
        return -(-records_at_once // CHUNK_MULTIPLE) * CHUNK_MULTIPLE

    def logits(self, records: Tensor) -> Tensor:
        """Return the logits [n, n_classes] of records [n, *shape]."""
        (logits,) = self._over_records(self.passes.evaluation, [records[:, None]])
        return logits.flatten(1)

    def gradients(self, records: Tensor, signals_of: Callable[[Tensor], Sequence[Tensor]]) -> list[Gradients]:
        """Return the gradients of records [n, *shape] in each trained parameter.

        `signals_of` gives a signal [n, n_k] for each segment from logits [n, n_classes].
        """
        logits, *saved = self._over_records(self.passes.forward, [records[:, None]])
        signals = [signal[:, None] for signal in signals_of(logits.flatten(1))]
        found = iter(self._over_records(self.passes.backward, [*saved, *signals]))
        return [product_of(next(found), next(found)) if is_product else
                GradientRows(next(found).reshape(len(records), -1))
                for is_product in self.passes.are_products]

    def _over_records(self, graph: fx.GraphModule, of_records: Sequence[Tensor]) -> list[Tensor]:
        in_dims = (None,) * len(self.state) + (0,) * len(of_records)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented")
            found: list[Tensor] = vmap(graph, in_dims=in_dims)(*self.state, *of_records)
            return found
