"""A user's network in segments, through which learning signals go back. `mapped` and `alone` both train by it.

The blocks of a network are its children. A child without trained parameters belongs to the block below it; the first
ones belong to the first block. A block's learning signal is B e for DFA, and the error e for the output block, both at
the block's output. A segment is what back-propagates: the whole network for BP, one block for DFA, and for `hybrid` the
lower blocks with the one above them. A record's contribution is the gradient, over all segments, of the product of a
segment's output with its signal.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

EMPTY = (dict, OrderedDict, set, list)


def children_of(network: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """Return the children by name, in order; a module that stands twice is there twice."""
    return [(name, child) for name, child in network.named_modules(remove_duplicate=False) if name and "." not in name]


def blocks_of(network: nn.Sequential) -> list[range]:
    """Return the places of each block's children."""
    children = [child for _, child in children_of(network)]
    trained = [place for place, child in enumerate(children) if any(p.requires_grad for p in child.parameters())]
    begins = [0, *trained[1:]]
    return [range(begin, end) for begin, end in zip(begins, [*begins[1:], len(children)], strict=True)]


class Segments(nn.Module):
    """A network that returns the outputs of its segments; no gradient goes from one segment to another.

    Args:
        network: the user's module; parameters and buffers keep their names, after `network.`.
        lower: how many blocks, from the lowest, back-propagate from the block above them; all but the last for BP.
    """

    def __init__(self, network: nn.Sequential, lower: int) -> None:
        super().__init__()
        self.network, blocks = network, blocks_of(network)
        self.segments = [range(blocks[0].start, blocks[lower].stop), *blocks[lower + 1:]]

    def forward(self, records: Tensor) -> list[Tensor]:  # [n, *shape]
        outputs, h = [], records
        for segment in self.segments:
            # The input requires a gradient for checkpoints, and is copied as a layer may overwrite it.
            h = h.detach().requires_grad_().clone()
            for place in segment:
                h = self.network[place](h)
            outputs.append(h)
        return outputs

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name, each once."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    @property
    def fixed(self) -> dict[str, Tensor]:
        """Return parameters that are not trained, and buffers, by name."""
        frozen = {name: parameter for name, parameter in self.named_parameters() if not parameter.requires_grad}
        return frozen | dict(self.named_buffers())


def ends(outputs: Sequence[Tensor],
         signals: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:  # each [n, n_k]
    """Return the outputs that a gradient goes back from, and their signals in the shape of the outputs."""
    pairs = [(output, signal.view_as(output)) for output, signal in zip(outputs, signals, strict=True)
             if output.requires_grad]
    return [output for output, _ in pairs], [signal for _, signal in pairs]


def copy_of(segments: Segments) -> Segments:
    """Return a fresh copy, also of modules that hold what an earlier layer computed, such as a normalised weight."""
    values = [value for module in segments.modules() for value in vars(module).values()]
    # `deepcopy` refuses tensors that were computed, and takes most of its time for empty dictionaries of hooks.
    ready: dict[int, Any] = {id(value): type(value)() for value in values if type(value) in EMPTY and not value}
    ready |= {id(value): value.detach().clone() for value in values if isinstance(value, Tensor) and not value.is_leaf}
    return copy.deepcopy(segments, ready)
