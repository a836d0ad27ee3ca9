"""One record's forward and backward pass as a graph of ATen operators. `mapped` maps it over records.

The graph is a pure function of the parameters, one record and its learning signals, whatever code it was traced from:
code of an `autograd.Function` or a rule for `vmap` is not in it, and neither is Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, fx, nn
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipeline.learning.own.segments import Segments, copy_of, ends

aten = torch.ops.aten
RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim)


class Passes(NamedTuple):
    """The graphs of a network, which share the inputs (trained parameters, fixed tensors).

    Attributes:
        evaluation: (*parameters, *fixed, record) to [logits].
        forward: (*parameters, *fixed, record) to [logits, *saved], what the backward pass needs of the record.
        backward: (*parameters, *fixed, *saved, *signals) to the gradients, each one or two tensors.
        are_products: for each parameter, whether its gradient is a product of two tensors.
    """

    evaluation: fx.GraphModule
    forward: fx.GraphModule
    backward: fx.GraphModule
    are_products: list[bool]


class _Both(nn.Module):
    """The forward and the backward pass of a record, under `functional_call`: checkpoints compute in both."""

    def __init__(self, segments: Segments) -> None:
        super().__init__()
        self.segments = segments

    def forward(self, record: Tensor, signals: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
        outputs = self.segments(record)
        begins, directions = ends(outputs, signals)
        torch.autograd.backward(begins, directions)  # `grad` would give zeros for a reentrant checkpoint
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        return [outputs[-1].detach(), *gradients]


def trace(segments: Segments, record: Tensor, signals: Sequence[Tensor]) -> fx.GraphModule:
    """Return the graph (*parameters, *fixed, record [1, *shape], *signals [1, n_k]) to [logits, *gradients].

    Raises whatever a network raises that cannot be traced, such as one that branches on a record's numbers.
    """
    both = _Both(copy_of(segments))  # a forward pass may leave tensors of the trace in the module
    trained, fixed = segments.trained, segments.fixed
    names = [f"segments.{name}" for name in (*trained, *fixed)]

    def passes(*inputs: Tensor) -> list[Tensor]:
        leaves = [parameter.detach().requires_grad_() for parameter in inputs[:len(trained)]]
        state = dict(zip(names, [*leaves, *inputs[len(trained):len(names)]], strict=True))
        return functional_call(both, state, (inputs[len(names)], inputs[len(names) + 1:], leaves))

    # Copies, as code that is traced may write into its weights.
    inputs = [tensor.detach().clone() for tensor in (*trained.values(), *fixed.values(), record, *signals)]
    # torch notes the shape of each tensor of a graph in a mode; it makes one for each unless there is one for all.
    described = tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True)))
    with described, torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        recorded = make_fx(passes)(*inputs)
        functional = make_fx(functionalize(recorded))(*inputs)
    _remove_copies(functional)
    return functional


def _remove_copies(functional: fx.GraphModule) -> None:
    """Remove copies, of no use where nothing writes in place, what nobody reads, and gradients at the record."""
    for node in functional.graph.nodes:
        values = [argument.meta["val"] for argument in node.all_input_nodes if "val" in argument.meta]
        is_copy = node.target is aten.clone.default and values[0] is not None and values[0].is_contiguous()
        if is_copy or node.target in (aten.detach.default, aten.alias.default):
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.copy.default and len({(value.shape, value.dtype) for value in values}) == 1:
            node.replace_all_uses_with(node.args[1])
    functional.graph.eliminate_dead_code()
    for node in functional.graph.nodes:
        if node.target is aten.convolution_backward.default and all(user.args[1] for user in node.users):
            *arguments, (_, *mask) = node.args  # nobody asks for the gradient at a record
            node.args = (*arguments, [False, *mask])


def pool_by_channels(traced: fx.GraphModule) -> fx.GraphModule:
    """Lay out images by channels for maximum pools: the same values and places, several times as fast on a CPU."""
    graph = traced.graph
    for pool in graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default):
        image = pool.args[0]
        if image.meta["val"].dim() != 4:
            continue
        with graph.inserting_before(pool):
            by_channels = _contiguous(graph, graph.call_function(aten.permute.default, (image, [0, 2, 3, 1])))
            pool.replace_input_with(image, graph.call_function(aten.permute.default, (by_channels, [0, 3, 1, 2])))
        for output in list(pool.users):
            with graph.inserting_after(output):
                usual = _contiguous(graph, output)
            output.replace_all_uses_with(usual, delete_user_cb=lambda user, usual=usual: user is not usual)
    return traced


def _contiguous(graph: fx.Graph, node: fx.Node) -> fx.Node:
    return graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})


def split(traced: fx.GraphModule, n_state: int) -> Passes:
    """Return the graphs of a trace whose first `n_state` inputs are parameters and fixed tensors."""
    placeholders = traced.graph.find_nodes(op="placeholder")
    state, record, signals = placeholders[:n_state], placeholders[n_state], placeholders[n_state + 1:]
    (output,) = traced.graph.find_nodes(op="output")
    logits, *gradients = output.args[0]
    of_record, of_signals = dependents(traced, [record]), dependents(traced, signals)
    saved = [node for node in traced.graph.nodes if node in of_record - of_signals
             and (of_signals.intersection(node.users) or node in gradients)]
    factors = [_factors(node) for node in gradients]
    return Passes(_graph(traced, [*state, record], [logits]), _graph(traced, [*state, record], [logits, *saved]),
                  _graph(traced, [*state, *saved, *signals], [node for of_one in factors for node in of_one]),
                  [len(of_one) == 2 for of_one in factors])


def dependents(traced: fx.GraphModule, inputs: Sequence[fx.Node]) -> set[fx.Node]:
    """Return these inputs, and all nodes that are computed from them."""
    found = {*inputs}
    for node in traced.graph.nodes:  # in the order in which they are computed
        if node.op != "output" and found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def _graph(traced: fx.GraphModule, inputs: Sequence[fx.Node],
           outputs: Sequence[fx.Node | tuple[fx.Node]]) -> fx.GraphModule:
    """Return the graph from inputs to outputs; an output in a tuple is transposed."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in traced.graph.nodes:
        if node.op in ("call_function", "get_attr") and node not in copies and copies.keys() >= {*node.all_input_nodes}:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([graph.call_function(aten.t.default, (copies[node[0]],)) if isinstance(node, tuple) else copies[node]
                  for node in outputs])
    graph.eliminate_dead_code()
    return fx.GraphModule(traced, graph)


def _factors(gradient: fx.Node) -> list[fx.Node | tuple[fx.Node]]:
    """Return the two factors of a gradient that is a matrix product, with a tuple around one to transpose; else it."""
    node, is_transposed = gradient, False
    while node.target is aten.t.default or (node.target in RESHAPES and not is_transposed):
        is_transposed ^= node.target is aten.t.default
        node = node.all_input_nodes[0]
    if node.target is not aten.mm.default:
        return [gradient]
    left, right = cast("tuple[fx.Node, fx.Node]", node.args)
    return [(right,), (left,)] if is_transposed else [left, right]
