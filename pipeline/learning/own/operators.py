"""The reviewed list of operators: what `mapped` may map over records, and under which conditions.

An operator is on the list if `vmap` computes each record's result from this record alone, and if no number of a record
makes it raise. On one thread, in chunks of one size that `CHUNK_MULTIPLE` divides, that holds to the last bit.
`tests/learning/test_operators.py` tries each one beside records of nan, infinity, 1e30 and indices outside tables.
Look-ups and casts to integers get rules of their own.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pipeline.learning.own.graph import dependents

VERSIONS = {"cpu": ("2.13",)}  # of torch, for which the list was tested, by kind of device
# Whose kernels were tested: maker and instructions. On AMD's, products with 10 columns take rows in pairs, and the last
# bits of a row depend on whether its place is odd.
MAKER, INSTRUCTIONS = "GenuineIntel", ("AVX2", "AVX512")
aten = torch.ops.aten
LARGEST_INTEGER = 2.0**31
# Chunks have a multiple of so many records. The CPU's kernels compute the numbers that do not fill two vectors one by
# one, and `sigmoid`, `silu`, `elu` or `pow` have other last bits then: a record's would depend on its place.
CHUNK_MULTIPLE = 32

# Names with their overloads, `default` left out.
ELEMENTWISE = """
    abs neg sign sgn exp expm1 log log1p sqrt rsqrt sin cos tanh atan erf reciprocal round floor ceil trunc sigmoid
    relu silu gelu softplus elu celu hardtanh hardswish hardsigmoid leaky_relu mish log_sigmoid_forward threshold
    softshrink glu _prelu_kernel add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar
    minimum maximum lerp.Scalar clamp clamp.Tensor clamp_min clamp_max masked_fill.Scalar where.self eq.Scalar
    ne.Scalar gt.Scalar ge.Scalar lt.Scalar le.Scalar eq.Tensor ne.Tensor gt.Tensor ge.Tensor lt.Tensor le.Tensor
    isnan isinf logical_and logical_or logical_not bitwise_and.Tensor bitwise_or.Tensor bitwise_not tanh_backward
    sigmoid_backward threshold_backward silu_backward gelu_backward softplus_backward elu_backward hardtanh_backward
    hardswish_backward hardsigmoid_backward leaky_relu_backward mish_backward log_sigmoid_backward
    softshrink_backward glu_backward _prelu_kernel_backward fake_quantize_per_tensor_affine_cachemask"""
REDUCTIONS = """
    sum sum.dim_IntList mean mean.dim std.correction var.correction amax amin max min max.dim min.dim argmax
    linalg_vector_norm logsumexp cumsum sort topk any.dim all.dim _softmax _safe_softmax _softmax_backward_data
    _log_softmax native_layer_norm native_group_norm native_group_norm_backward"""
PRODUCTS = "mm bmm addmm baddbmm mv dot _trilinear convolution convolution_backward"
SHAPES = """
    view _unsafe_view clone t transpose.int permute expand squeeze.dim unsqueeze select.int slice.Tensor
    split.Tensor split_with_sizes unsafe_split.Tensor unbind.int cat stack repeat flip roll constant_pad_nd diagonal
    tril triu unfold select_backward slice_backward diagonal_backward slice_scatter select_scatter pixel_shuffle
    pixel_unshuffle reflection_pad2d replication_pad2d im2col col2im"""
POOLS = """
    avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d max_pool2d_with_indices
    adaptive_max_pool2d upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d
    upsample_bilinear2d_backward"""
FOURIER = "_fft_r2c _fft_c2r _conj view_as_complex view_as_real"
CONSTANTS = """
    zeros ones full arange arange.start arange.start_step scalar_tensor zeros_like ones_like full_like new_zeros"""
FLOATING = """
    div.Tensor div.Scalar div.Tensor_mode floor_divide pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor
    remainder.Scalar remainder.Tensor copy"""
# The places of indices that depend on no record, or that a maximum or a sort has found.
FIXED_INDICES = {"index.Tensor": 1, "index_select": 2, "index_put": 1, "index_add": 2, "scatter_add": 2}
FOUND_INDICES = {"gather": 2, "scatter.src": 2}
# What finds indices, and where it has the dimension that it searches.
FINDERS = {aten.max.dim: 1, aten.min.dim: 1, aten.sort.default: 1, aten.topk.default: 2}
MOVES = {aten.view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.slice.Tensor, aten.expand.default}
FOUND_BY_POOLS = {"max_pool2d_with_indices_backward": ("max_pool2d_with_indices", 7),
                  "adaptive_max_pool2d_backward": ("adaptive_max_pool2d", 2)}
# Kernels that do not check the shapes of their arguments, which are here in place of the arguments: an author who calls
# one with a shorter tensor would read or write what lies behind it, which may be another record.
FITS: dict[str, Callable[..., bool]] = {
    "_log_softmax_backward_data": lambda gradient, output, *_: gradient == output,
    "native_layer_norm_backward": lambda gradient, x, shape, mean, deviation, weight, bias, _: (
        gradient == x and mean == deviation == x[:-len(shape)] + (1,) * len(shape)
        and {weight, bias} <= {None, x[-len(shape):]} and x[-len(shape):] == tuple(shape)),
    "native_batch_norm": lambda x, weight, bias, mean, variance, of_batch, *_: (  # statistics would be written
        of_batch and mean is variance is None and {weight, bias} <= {None, x[1:2]}),
    "native_batch_norm_backward": lambda gradient, x, weight, _, __, mean, deviation, *___: (
        gradient == x and mean == deviation == x[1:2] and weight in (None, x[1:2])),
    "_weight_norm_interface": lambda v, g, dim=0: g.numel() == v[dim],
    "_weight_norm_interface_backward": lambda gradient, v, g, norms, dim: (
        gradient == v and g.numel() == norms.numel() == v[dim]),
    "unfold_backward": lambda gradient, shape, *window: (
        gradient == torch.empty(shape, device="meta").unfold(*window).shape),
    "reflection_pad2d_backward": lambda gradient, x, padding: (  # a mirror image is no larger than its image
        gradient[:-2] == x[:-2] and max(padding[:2]) < x[-1] and max(padding[2:]) < x[-2]),
    "replication_pad2d_backward": lambda gradient, x, *_: gradient[:-2] == x[:-2],
    "_adaptive_avg_pool2d_backward": lambda gradient, x: gradient[:-2] == x[:-2]}

Node = Any  # fx.Node, whose arguments have every type
Condition = Callable[[Node, set[Node]], bool]  # of a node, and all nodes that depend on the record


class NotMapped(Exception):
    """A network that is not mapped over records; the text says why."""


class DrawsAtRandom(NotMapped):
    """A network with an operator that draws at random."""


def _any(node: Node, of_record: set[Node]) -> bool:
    """Whether the operator makes no integers of floating-point numbers by an argument; casts have a rule."""
    dtype = node.kwargs.get("dtype")
    return dtype is None or dtype.is_floating_point or not node.all_input_nodes


def _floating(node: Node, of_record: set[Node]) -> bool:
    """Whether the operator computes with floating point: an integer divided by 0 raises."""
    return bool(node.meta["val"].is_floating_point())


def _fixed(place: int, node: Node, of_record: set[Node]) -> bool:
    """Whether the argument at a place depends on no record, so that no index of a record is outside."""
    indices = node.args[place]
    return of_record.isdisjoint(indices if isinstance(indices, Sequence) else [indices])


def _found(place: int, node: Node, of_record: set[Node]) -> bool:
    """Whether the indices at a place are fixed or were found by a maximum or a sort, in a dimension no longer."""
    indices = node.args[place]
    while indices.target in MOVES:
        indices = indices.args[0]
    if indices.target is getitem and indices.args[0].target in FINDERS and indices.args[1] == 1:
        finder = indices.args[0]
        (searched,) = finder.args[FINDERS[finder.target]:][:1] or (-1,)
        return bool(_shape(finder.args[0])[searched] <= _shape(node.args[0])[node.args[1]])
    return indices not in of_record


def _found_by_pool(forward: str, place: int, node: Node, of_record: set[Node]) -> bool:
    """Whether the forward operator has found the indices at a place in this image; no kernel checks them."""
    (gradient, x), indices = node.args[:2], node.args[place]
    if indices.target is not getitem or indices.args[0].target is not operator(forward):
        return False
    pool, output = indices.args[0], indices.args[0].meta["val"][0]
    padding, dilation = (*pool.args[3:5], (), ())[:2]
    has_empty_windows = max(padding, default=0) > 0 and max(dilation, default=1) > 1  # their index is behind the image
    return bool(pool.args[0] is x and indices.args[1] == 1 and output.shape == _shape(gradient)
                and not has_empty_windows)


def _fits(shapes_fit: Callable[..., bool], node: Node, of_record: set[Node]) -> bool:
    """Whether the shapes of a node's arguments are those that its kernel relies on."""
    return shapes_fit(*[_shape(value) if isinstance(value, fx.Node) else value for value in node.args])


def _shape(node: Node) -> torch.Size:
    shape: torch.Size = node.meta["val"].shape
    return shape


def operator(name: str) -> torch._ops.OpOverload:
    """Return the operator of a name on the list."""
    packet, _, overload = name.partition(".")
    found: torch._ops.OpOverload = getattr(getattr(aten, packet), overload or "default")
    return found


def look_up(weight: Tensor, indices: Tensor) -> Tensor:  # [size, d], [...]
    """Return rows of a table [..., d]; zeros for an index outside it."""
    inside = (indices >= 0) & (indices < len(weight))
    return torch.where(inside[..., None], functional.embedding(indices.clamp(0, len(weight) - 1), weight), 0.0)


def one_hot(indices: Tensor, size: int, padding: int, dtype: torch.dtype) -> Tensor:
    """Return [size, t] with 1 where a row of the table is looked up; the row `padding` is not trained."""
    rows = torch.arange(size, device=indices.device)
    return ((indices.flatten() == rows[:, None]) & (rows != padding)[:, None]).to(dtype)


def whole(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return floating-point numbers as integers; 0 for one that is none or too large, whose cast is undefined."""
    return torch.where(x.abs() < LARGEST_INTEGER, x, 0.0).to(torch.int64).to(dtype)


def _look_up(graph: fx.Graph, node: Node, of_record: set[Node]) -> Node | None:
    (weight, indices), scaled_or_sparse = node.args[:2], node.args[3:]  # `padding_idx` is for the backward pass
    if any(scaled_or_sparse) or weight in of_record:
        return None
    return graph.call_function(look_up, (weight, indices))


def _look_up_backward(graph: fx.Graph, node: Node, of_record: set[Node]) -> Node | None:
    """Return the product of `one_hot` and the gradient at the rows that were looked up."""
    gradient, indices, size, padding, is_scaled = node.args
    if is_scaled:
        return None
    value = node.meta["val"]
    left = graph.call_function(one_hot, (indices, size, padding, value.dtype))
    right = graph.call_function(aten.reshape.default, (gradient, [-1, value.shape[1]]))
    return graph.call_function(aten.mm.default, (left, right))


def _cast(graph: fx.Graph, node: Node, of_record: set[Node]) -> Node | None:
    (x,), dtype = node.args, node.kwargs.get("dtype")
    if set(node.kwargs) - {"dtype"} or dtype is None:
        return None
    is_rounded = x.meta["val"].is_floating_point() and not (dtype.is_floating_point or dtype == torch.bool)
    return graph.call_function(whole if is_rounded else torch.Tensor.to, (x, dtype))


# How an operator is replaced; None where its arguments are not those that a rule is for.
RULES: dict[object, Callable[[fx.Graph, Node, set[Node]], Node | None]] = {
    aten.embedding.default: _look_up, aten.embedding_dense_backward.default: _look_up_backward,
    aten._to_copy.default: _cast}
REVIEWED: dict[object, Condition] = {
    **{operator(name): _any for names in (ELEMENTWISE, REDUCTIONS, PRODUCTS, SHAPES, POOLS, FOURIER, CONSTANTS)
       for name in names.split()},
    **{operator(name): _floating for name in FLOATING.split()},
    **{operator(name): partial(_fixed, place) for name, place in FIXED_INDICES.items()},
    **{operator(name): partial(_found, place) for name, place in FOUND_INDICES.items()},
    **{operator(name): partial(_found_by_pool, *found) for name, found in FOUND_BY_POOLS.items()},
    **{operator(name): partial(_fits, shapes_fit) for name, shapes_fit in FITS.items()},
    getitem: _any}


def is_reviewed_here(device: torch.device) -> bool:
    """Whether the list was tested for this version of torch on this kind of device."""
    if device.type == "cpu" and not (processor_is_of(MAKER)
                                     and torch.backends.cpu.get_cpu_capability() in INSTRUCTIONS):
        return False
    return torch.__version__.startswith(tuple(f"{version}." for version in VERSIONS.get(device.type, ())))


def processor_is_of(maker: str) -> bool:
    """Whether this host's processor says that it is of this maker; False where a system does not tell."""
    listing = Path("/proc/cpuinfo")
    return maker in (listing.read_text(encoding="utf-8") if listing.exists() else platform.processor())


def check_plain(value: object) -> None:
    """Raise `NotMapped` for a tensor of a class of the user's, whose code would see all records of a chunk."""
    if isinstance(value, Tensor) and type(value) not in (Tensor, nn.Parameter):
        raise NotMapped(f"a tensor of class {type(value).__name__}")


def guarded(traced: fx.GraphModule, n_state: int) -> fx.GraphModule:
    """Return a trace in which no number of a record can raise: look-ups and casts to integers get rules of ours.

    Args:
        traced: a graph whose first `n_state` inputs, parameters and fixed tensors, depend on no record.
        n_state: how many these are.

    Raises:
        DrawsAtRandom: naming an operator that draws.
        NotMapped: naming the first operator that is not on the list.
    """
    nodes = [node for node in traced.graph.nodes if node.op == "call_function"]
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise DrawsAtRandom(str(node.target))
    for node in traced.graph.find_nodes(op="get_attr"):
        check_plain(getattr(traced, node.target))
    of_record = dependents(traced, traced.graph.find_nodes(op="placeholder")[n_state:])
    for node in nodes:
        with traced.graph.inserting_before(node):
            replacement = RULES[node.target](traced.graph, node, of_record) if node.target in RULES else None
        if replacement:
            replacement.meta = node.meta
            node.replace_all_uses_with(replacement)
            of_record |= {replacement} if node in of_record else set()
        elif node.target not in REVIEWED or not REVIEWED[node.target](node, of_record):
            raise NotMapped(str(node.target))
    traced.graph.eliminate_dead_code()
    return traced
