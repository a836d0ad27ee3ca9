"""Compute what each record contributes to a module's gradient, block by block.

Block k maps h^{k-1} to h^k. A signal is the learning signal at a block's output: B^k e for DFA, and the error e at the
output block. A segment is what back-propagates: one block for DFA, the whole network for BP, and for `hybrid` the lower
blocks with the one above them. The contribution of a record is the gradient, over all segments, of the product of a
segment's output with its signal.

The module sees one record at a time, and `torch.func.vmap` maps that over records. So a contribution depends on its own
record by construction, in real numbers; in float32 the last bits might depend on the other records of a call, which is
tried (`rows_are_separate`).
"""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(frozen=True)
class Gradients:
    """Gradients of n records in one layer, as products of learning signals and inputs, summed over T positions.

    Attributes:
        delta: signals at the layer's output [n, T, n_out].
        h: its inputs [n, T, n_in].
        has_bias: whether the layer has a bias, whose gradient is the sum of the signals.
    """

    delta: Tensor
    h: Tensor
    has_bias: bool

    def __getitem__(self, records: slice) -> Tensor:
        """Return the gradients of some records, [n, d]: those of the weights [n_out, n_in], then those of the bias."""
        delta, h = self.delta[records], self.h[records]
        weight = torch.bmm(delta.transpose(1, 2), h).flatten(1)
        return torch.cat([weight, delta.sum(dim=1)], dim=1) if self.has_bias else weight

    def squares(self) -> Tensor:
        """Return the squared norms of the gradients [n, 1] at T = 1, where they are not formed."""
        return self.delta.square().sum(dim=2) * (self.h.square().sum(dim=2) + self.has_bias)

    def sum(self, factors: Tensor) -> Tensor:
        """Return the sum [d] of the gradients, each times its factor [n, 1], at T = 1."""
        delta = torch.where(factors > 0, self.delta[:, 0] * factors, 0.0)
        weight = (delta.T @ torch.where(factors > 0, self.h[:, 0], 0.0)).flatten()
        return torch.cat([weight, delta.sum(dim=0)]) if self.has_bias else weight


Part = Gradients | Tensor  # of a layer's gradients, as products or as rows [n, d]


class Segment:
    """Blocks through which a signal goes back.

    A linear layer or convolution that is called once adds a probe, a zero, to its output: the gradient at the probe is
    the learning signal. Other trained parameters get a copy for each record.

    Args:
        children: the blocks, by name.
        h: one record's input of the first.
        with_probes: whether layers get probes; without, all parameters get copies.
    """

    def __init__(self, children: Sequence[tuple[str, nn.Module]], h: Tensor, with_probes: bool) -> None:
        self.module = nn.Sequential(OrderedDict(children))
        self.order = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        self.layers = {name: layer for name, layer in self.module.named_modules()
                       if with_probes and type(layer) in (nn.Linear, nn.Conv2d) and _has_products(layer)}
        calls: dict[str, list[torch.Size]] = {name: [] for name in self.layers}  # shapes of outputs

        def counted(name: str, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            calls[name] += [output.shape] * (1 if args else 2)  # a hook sees no input that was given by name

        with torch.no_grad(), self._hooked(counted):
            self.output = self.module(h[None])[0]
        self.layers = {name: layer for name, layer in self.layers.items() if len(calls[name]) == 1}
        self.probe_shapes = {name: calls[name][0] for name in self.layers}
        self.copied = {name: parameter for name, parameter in self.module.named_parameters()
                       if parameter.requires_grad and name.rpartition(".")[0] not in self.layers}
        names = {parameter: name for name, parameter in self.copied.items()}
        # Where copies go: a parameter may belong to several layers, and a layer to several blocks.
        self.places = {f"{path}.{name}".lstrip("."): names[parameter] for path, layer in self.module.named_modules()
                       for name, parameter in layer.named_parameters(recurse=False) if parameter in names}

    @contextlib.contextmanager
    def _hooked(self, hook: Callable[..., Any]) -> Iterator[None]:
        """Call `hook(name, layer, inputs, output)` after every call of a layer within the context."""
        handles = [layer.register_forward_hook(partial(hook, name)) for name, layer in self.layers.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _of_one(self, copies: dict[str, Tensor], probes: dict[str, Tensor],
                h: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output of one record's input h, and inputs of layers by name; the module sees a batch of one."""
        inputs: dict[str, Tensor] = {}

        def probed(name: str, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            inputs[name] = args[0].detach()
            return output + probes[name]

        with self._hooked(probed):
            placed = {place: copies[name] for place, name in self.places.items()}
            return functional_call(self.module, placed, (h[None],), tie_weights=False)[0], inputs

    def forward(self, h: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Part]]]:
        """Return the outputs [n, ...] of inputs h [n, ...], and a function from signals [n, n_k] to their gradients."""
        n = len(h)
        copies = {name: parameter.detach().expand(n, *parameter.shape).requires_grad_()
                  for name, parameter in self.copied.items()}
        probes = {name: h.new_zeros(n, *shape).requires_grad_() for name, shape in self.probe_shapes.items()}
        output, inputs = vmap(self._of_one)(copies, probes, h)

        def gradients(signal: Tensor) -> list[Part]:
            wanted = {**copies, **probes}
            found = dict(zip(wanted, torch.autograd.grad(output, list(wanted.values()), signal.view_as(output),
                                                         allow_unused=True, materialize_grads=True), strict=True))
            parts: list[Part] = []
            for name in self.order:
                layer, _, parameter = name.rpartition(".")
                if name in copies:
                    parts.append(found[name].flatten(1))
                elif parameter == "weight":  # its layer's bias follows, and is part of this
                    parts.append(_products(self.layers[layer], found[layer], inputs[layer]))
            return [part[:] if isinstance(part, Gradients) and part.h.shape[1] > 1 else part for part in parts]

        return output.detach(), gradients


@contextlib.contextmanager
def for_vmap() -> Iterator[None]:
    """Choose the kernel of attention that `vmap` has a rule for; what else has none is computed record by record."""
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented")
        yield


def _has_products(layer: nn.Module) -> bool:
    """Whether all gradients in a linear layer or convolution are products of signals and inputs."""
    is_plain = not isinstance(layer, nn.Conv2d) or (
        layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str))
    names = {name for name, parameter in layer.named_parameters() if parameter.requires_grad}
    own = {name for name, _ in layer.named_parameters()}
    return is_plain and names == own and "weight" in names and names <= {"weight", "bias"}


def _products(layer: nn.Module, delta: Tensor, h: Tensor) -> Gradients:
    """Return the gradients in a layer of one call for each of n records, from its signals and inputs."""
    n, has_bias = len(h), layer.bias is not None
    if isinstance(layer, nn.Conv2d):
        padding = cast("tuple[int, ...]", layer.padding)  # `_has_products` refuses texts
        columns = functional.unfold(h.flatten(0, 1), layer.kernel_size, layer.dilation, padding, layer.stride)
        h = columns.transpose(1, 2).reshape(n, -1, columns.shape[1])
        delta = delta.flatten(3).transpose(2, 3)  # [n, images, positions, n_out]
    return Gradients(delta.reshape(n, -1, delta.shape[-1]), h.reshape(n, -1, h.shape[-1]), has_bias)


class Pass(NamedTuple):
    """A forward pass of n records."""

    logits: Tensor
    gradients: list[Callable[[Tensor], list[Part]]]  # of the segments, from the signals at their outputs

    def parts(self, signals: Sequence[Tensor]) -> list[Part]:
        """Return the contributions of the records by layer, from a signal [n, n_k] for each segment."""
        return [part for of_segment, signal in zip(self.gradients, signals, strict=True) for part in of_segment(signal)]


def rows(parts: Sequence[Part], records: slice = slice(None)) -> Tensor:
    """Return contributions of some records as rows [n, d]."""
    return torch.cat([part[records] for part in parts], dim=1)


def norms(parts: Sequence[Part]) -> Tensor:
    """Return the norms of contributions [n, 1]."""
    squares = [part.squares() if isinstance(part, Gradients) else part.square().sum(dim=1, keepdim=True)
               for part in parts]
    return torch.stack(squares).sum(dim=0).sqrt()


def weighted_sum(parts: Sequence[Part], factors: Tensor) -> Tensor:
    """Return the sum [d] of contributions, each times its factor [n, 1]; with factor 0, none of its numbers count."""
    return torch.cat([part.sum(factors) if isinstance(part, Gradients) else
                      torch.where(factors > 0, part * factors, 0.0).sum(dim=0) for part in parts])


class Blocks:
    """A module as segments.

    Args:
        module: the network.
        lower: how many blocks, from the lowest, back-propagate from the block above them; all but the last for BP.
        shape: of a record.
        with_probes: as of `Segment`.
    """

    def __init__(self, module: nn.Sequential, lower: int, shape: Sequence[int], with_probes: bool = True) -> None:
        children, self.segments = list(module.named_children()), []
        h = torch.zeros(*shape, device=next(module.parameters()).device)
        for blocks in (children[:lower + 1], *([child] for child in children[lower + 1:])):
            self.segments.append(Segment(blocks, h, with_probes))
            h = self.segments[-1].output

    def forward(self, records: Tensor) -> Pass:
        """Return the pass of records [n, *shape]."""
        h, gradients = records, []
        with torch.enable_grad(), for_vmap():
            for segment in self.segments:
                h, of_segment = segment.forward(h)
                gradients.append(of_segment)
        return Pass(h, gradients)
