"""Each operator on the reviewed list keeps records apart: one record of a chunk has the same bits beside any others."""

import itertools
import zlib
from operator import getitem

import pytest
import torch
from torch import fx, nn
from torch.func import functionalize, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from pipeline.learning.own.operators import (
    CHUNK_MULTIPLE,
    FITS,
    REVIEWED,
    RULES,
    DrawsAtRandom,
    NotMapped,
    guarded,
    look_up,
    one_hot,
    operator,
    whole,
)

ATEN = torch.ops.aten

CHUNK, PLACES = CHUNK_MULTIPLE, (0, 7, 15, CHUNK_MULTIPLE - 1)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
HUGE = 2**31 - 1


class Record:
    """An argument that depends on the record: its shape, and numbers below `high` if it has integers."""

    def __init__(self, *shape, high=None):
        self.shape, self.high = shape, high

    def draw(self, generator):
        if self.high is None:
            return torch.randn(self.shape, generator=generator)
        return torch.randint(self.high, self.shape, generator=generator)

    def neighbours(self, n, kind, generator):
        """Numbers of n other records."""
        drawn = torch.stack([self.draw(generator) for _ in range(n)])
        if kind == "ordinary":
            return drawn
        if self.high is None:
            return torch.full_like(drawn, NUMBERS[kind])
        return torch.full_like(drawn, {"nan": -1, "infinite": self.high, "large": HUGE, "minus": -HUGE, "zero": 0}[kind])


class Fixed(Record):
    """An argument of all records, such as a weight."""


class Case:
    """Arguments of an operator, or of a function `by` that calls it with them."""

    def __init__(self, *args, by=None, **kwargs):
        self.args, self.by, self.kwargs = args, by, kwargs

    def run(self, op, *args):
        return self.by(op, *args) if self.by else op(*args, **self.kwargs)


NUMBERS = {"nan": float("nan"), "infinite": float("inf"), "large": 1e30, "minus": -1e30, "zero": 0.0}
KINDS = ["ordinary", *NUMBERS]
R, F, C = Record, Fixed, Case


def boolean(function):
    """Call an operator with comparisons of its arguments."""
    return lambda op, *tensors: function(op, *(tensor > 0 for tensor in tensors))


def complex_numbers(op, x, *args):
    return op(torch.view_as_complex(x), *args)


X = R(3, 7)  # an odd number of elements
IMAGE, SMALL = R(1, 4, 6, 6), R(1, 4, 3, 3)
ONE = """abs neg sign sgn exp expm1 log log1p sqrt rsqrt sin cos tanh atan erf reciprocal round floor ceil trunc sigmoid relu
    silu gelu softplus elu celu hardtanh hardswish hardsigmoid leaky_relu mish log_sigmoid_forward softshrink isnan isinf
    logical_not sum mean amax amin max min clone zeros_like ones_like""".split()
TWO = """add.Tensor sub.Tensor mul.Tensor minimum maximum eq.Tensor ne.Tensor gt.Tensor ge.Tensor lt.Tensor le.Tensor
    logical_and logical_or tanh_backward sigmoid_backward silu_backward gelu_backward hardswish_backward mish_backward
    hardsigmoid_backward div.Tensor floor_divide pow.Tensor_Tensor remainder.Tensor""".split()
BOTH = {name for name in TWO if name.endswith("_backward")}  # of two arguments of one shape
SCALAR = """add.Scalar sub.Scalar rsub.Scalar mul.Scalar clamp_min clamp_max eq.Scalar ne.Scalar gt.Scalar ge.Scalar
    lt.Scalar le.Scalar div.Scalar remainder.Scalar full_like""".split()
CASES = {
    **{name: [C(X), C(R(2, 16))] for name in ONE},
    **{name: [C(X, X)] + [C(R(2, 16), R(16)), C(R(1, 5, 1), R(1, 1, 3))] * (name not in BOTH) for name in TWO},
    **{name: [C(X, 0.7)] for name in SCALAR},
    "glu": [C(R(1, 6, 3), 1)], "_prelu_kernel": [C(R(1, 5, 3), R(1, 1, 1))], "threshold": [C(X, 0.1, 0.0)],
    "pow.Scalar": [C(X, by=lambda op, x: op(2.0, x))], "pow.Tensor_Scalar": [C(X, n) for n in (2, 3, -1, 0.5, 1.7)],
    "lerp.Scalar": [C(X, X, 0.3)], "clamp": [C(X, -0.5, 0.5), C(R(4, high=9), 0, 5)], "clamp.Tensor": [C(X, X, X)],
    "masked_fill.Scalar": [C(X, X, by=lambda op, x, y: op(x, y > 0, -1.0))], "copy": [C(X, X), C(X, R(7))],
    "where.self": [C(X, X, X, by=lambda op, c, x, y: op(c > 0, x, y)), C(X, X, by=lambda op, c, x: op(c > 0, x, torch.ones([])))],
    "bitwise_and.Tensor": [C(X, X, by=boolean(lambda op, x, y: op(x, y)))],
    "bitwise_or.Tensor": [C(X, X, by=boolean(lambda op, x, y: op(x, y)))], "bitwise_not": [C(X, by=boolean(lambda op, x: op(x)))],
    "div.Tensor_mode": [C(X, X, rounding_mode=mode) for mode in ("floor", "trunc")],
    "threshold_backward": [C(X, X, 0)], "softplus_backward": [C(X, X, 1, 20)],
    "elu_backward": [C(X, X, by=lambda op, g, x, is_result=is_result: op(g, 1.0, 1.0, 1.0, is_result, x)) for is_result in (False, True)],
    "hardtanh_backward": [C(X, X, -1, 1)], "leaky_relu_backward": [C(X, X, 0.1, False)],
    "log_sigmoid_backward": [C(X, X, by=lambda op, g, x: op(g, x, ATEN.log_sigmoid_forward(x)[1]))],
    "softshrink_backward": [C(X, X, 0.5)], "glu_backward": [C(R(1, 3, 3), R(1, 6, 3), 1)],
    "_prelu_kernel_backward": [C(X, X, R(1, 1))],
    "fake_quantize_per_tensor_affine_cachemask": [C(X, 0.1, 0, -128, 127)],
    # Reductions
    **{name: [C(X, [1]), C(R(1, 5, 33), [2], True), C(R(1, 8, 4), [0, 1])] for name in ("sum.dim_IntList", "mean.dim", "logsumexp")},
    **{name: [C(X, [1], correction=1), C(R(1, 8, 4), [1, 2], correction=1, keepdim=True)] for name in ("std.correction", "var.correction")},
    **{name: [C(X, 1), C(R(1, 5, 4), 1, True)] for name in ("max.dim", "min.dim", "argmax", "sort", "any.dim", "all.dim")},
    "cumsum": [C(X, 1), C(R(1, 5, 4), 1)],
    "topk": [C(R(2, 9), 4), C(R(1, 9, 3), 2, 1)], "linalg_vector_norm": [C(X, n, [1]) for n in (1, 2, 3)] + [C(X)],
    **{name: [C(X, 1, False), C(R(1, 2, 5, 5), -1, False), C(R(1, 5, 3), 1, False)] for name in ("_softmax", "_log_softmax")},
    "_safe_softmax": [C(X, 1), C(R(1, 2, 5, 5), -1)],
    **{name: [C(X, X, 1, torch.float32), C(R(1, 5, 3), R(1, 5, 3), 1, torch.float32)]
       for name in ("_softmax_backward_data", "_log_softmax_backward_data")},
    "native_layer_norm": [C(R(1, 5, 8), [8], R(8), R(8), 1e-5), C(R(1, 7), [7], None, None, 1e-5)],
    "native_layer_norm_backward": [C(R(1, 5, 8), R(1, 5, 8), R(8), R(8), by=lambda op, g, x, w, b: op(
        g, x, [8], *ATEN.native_layer_norm(x, [8], w, b, 1e-5)[1:], w, b, [True] * 3))],
    "native_group_norm": [C(IMAGE, R(4), R(4), 1, 4, 36, 2, 1e-5), C(R(1, 3, 5), None, None, 1, 3, 5, 1, 1e-5)],
    "native_group_norm_backward": [C(IMAGE, IMAGE, R(4), R(4), by=lambda op, g, x, w, b: op(
        g, x, *ATEN.native_group_norm(x, w, b, 1, 4, 36, 2, 1e-5)[1:], w, 1, 4, 36, 2, [True] * 3))],
    "native_batch_norm": [C(IMAGE, R(4), R(4), None, None, True, 0.1, 1e-5)],
    "native_batch_norm_backward": [C(IMAGE, IMAGE, R(4), by=lambda op, g, x, w: op(
        g, x, w, None, None, *ATEN.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)[1:], True, 1e-5, [True] * 3))],
    "_weight_norm_interface": [C(R(6, 5), R(6, 1), 0)],
    "_weight_norm_interface_backward": [C(R(6, 5), F(6, 5), F(6, 1), by=lambda op, g, v, s: op(
        g, v, s, ATEN._weight_norm_interface(v, s, 0)[1], 0))],
    # Products
    "mm": [C(R(n, k), R(k, m)) for n, k, m in ((1, 64, 10), (10, 1, 64), (8, 8, 24), (3, 5, 2), (1, 300, 33))],
    "bmm": [C(R(n, 8, 4), R(n, 4, 8)) for n in (1, 2)] + [C(R(1, 3, 70), R(1, 70, 5))],
    "addmm": [C(R(10), R(1, 64), R(64, 10)), C(R(24), R(8, 8), R(8, 24))],
    "baddbmm": [C(R(2, 3, 5), R(2, 3, 4), R(2, 4, 5))], "mv": [C(X, R(7))], "dot": [C(R(33), R(33))],
    "_trilinear": [C(R(1, 8), R(16, 8, 9), R(1, 9), [1, 3], [0], [1, 2], [2, 3])],
    "convolution": [
        C(R(1, 1, 8, 8), R(4, 1, 3, 3), R(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        C(IMAGE, R(6, 2, 3, 3), None, [2, 2], [0, 1], [1, 2], False, [0, 0], 2),
        C(R(1, 3, 6, 6), R(3, 1, 3, 3), R(3), [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
        C(SMALL, R(4, 3, 3, 3), R(3), [2, 2], [0, 0], [1, 1], True, [1, 1], 1),
        C(R(1, 8, 8), R(8, 8, 3), R(8), [1], [1], [1], False, [0], 1),
        C(R(1, 1, 2, 4, 4), R(2, 1, 2, 2, 2), R(2), [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)],
    "convolution_backward": [
        C(R(1, 4, 8, 8), R(1, 1, 8, 8), R(4, 1, 3, 3), [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3),
        C(R(1, 6, 2, 2), IMAGE, R(6, 2, 3, 3), [6], [2, 2], [0, 1], [1, 2], False, [0, 0], 2, [True] * 3),
        C(R(1, 3, 6, 6), R(1, 3, 6, 6), R(3, 1, 3, 3), [3], [1, 1], [1, 1], [1, 1], False, [0, 0], 3, [True] * 3),
        C(R(1, 3, 8, 8), SMALL, R(4, 3, 3, 3), [3], [2, 2], [0, 0], [1, 1], True, [1, 1], 1, [True] * 3),
        C(R(1, 8, 8), R(1, 8, 8), R(8, 8, 3), [8], [1], [1], [1], False, [0], 1, [True] * 3),
        C(R(1, 2, 1, 3, 3), R(1, 1, 2, 4, 4), R(2, 1, 2, 2, 2), [2], [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1, [True] * 3)],
    # Shapes
    "view": [C(X, [7, 3])], "_unsafe_view": [C(X, [21])], "t": [C(X)], "transpose.int": [C(IMAGE, 1, 3)],
    "permute": [C(IMAGE, [0, 2, 3, 1])], "expand": [C(R(1, 5), [4, 5])], "squeeze.dim": [C(IMAGE, 0)],
    "unsqueeze": [C(X, 1)], "select.int": [C(X, 1, 2)], "slice.Tensor": [C(X, 1, 1, 6, 2)], "split.Tensor": [C(X, 3, 1)],
    "split_with_sizes": [C(X, [3, 4], 1)], "unsafe_split.Tensor": [C(X, 3, 1)], "unbind.int": [C(X, 1)],
    "cat": [C(X, R(3, 2), by=lambda op, x, y: op([x, y], 1))], "stack": [C(X, X, by=lambda op, x, y: op([x, y], 1))],
    "repeat": [C(X, [2, 1, 3])], "flip": [C(X, [0, 1])], "roll": [C(X, [2], [1])],
    "constant_pad_nd": [C(X, [1, 2], 0.5)], "diagonal": [C(IMAGE, 1, 2, 3)], "tril": [C(X)], "triu": [C(X, 1)],
    "unfold": [C(X, 1, 3, 2)], "select_backward": [C(R(3), [3, 7], 1, 2)], "slice_backward": [C(R(3, 3), [3, 7], 1, 1, 6, 2)],
    "diagonal_backward": [C(R(1, 4, 5), [1, 4, 6, 6], 1, 2, 3)], "unfold_backward": [C(R(3, 3, 3), [3, 7], 1, 3, 2)],
    "slice_scatter": [C(X, R(3, 3), 1, 1, 6, 2)], "select_scatter": [C(X, R(3), 1, 2)], "pixel_shuffle": [C(SMALL, 2)],
    "pixel_unshuffle": [C(IMAGE, 2)],
    **{name: [C(IMAGE, [1, 2, 2, 1])] for name in ("reflection_pad2d", "replication_pad2d")},
    **{f"{name}_backward": [C(R(1, 4, 9, 9), IMAGE, [1, 2, 2, 1])] for name in ("reflection_pad2d", "replication_pad2d")},
    "im2col": [C(IMAGE, [2, 2], [1, 1], [0, 0], [2, 2])], "col2im": [C(R(1, 16, 9), [6, 6], [2, 2], [1, 1], [0, 0], [2, 2])],
    # Pools
    "avg_pool2d": [C(IMAGE, [2, 2], [2, 2]), C(IMAGE, [3, 3], [2, 2], [1, 1], True, False)],
    "avg_pool2d_backward": [C(SMALL, IMAGE, [2, 2], [2, 2], [0, 0], False, True, None)],
    "avg_pool3d": [C(R(1, 1, 4, 4, 4), [2, 1, 1], [1, 1, 1])],
    "avg_pool3d_backward": [C(R(1, 1, 3, 4, 4), R(1, 1, 4, 4, 4), [2, 1, 1], [1, 1, 1], [0, 0, 0], False, True, None)],
    "_adaptive_avg_pool2d": [C(IMAGE, [4, 4]), C(IMAGE, [1, 1])], "_adaptive_avg_pool2d_backward": [C(R(1, 4, 4, 4), IMAGE)],
    "max_pool2d_with_indices": [C(IMAGE, [2, 2], [2, 2]), C(IMAGE, [3, 3], [2, 2], [1, 1])],
    "max_pool2d_with_indices_backward": [C(SMALL, IMAGE, by=lambda op, g, x, p=p: op(
        g, x, *p, [1, 1], False, ATEN.max_pool2d_with_indices(x, *p)[1])) for p in (([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1]))],
    "adaptive_max_pool2d": [C(IMAGE, [4, 4])],
    "adaptive_max_pool2d_backward": [C(R(1, 4, 4, 4), IMAGE, by=lambda op, g, x: op(g, x, ATEN.adaptive_max_pool2d(x, [4, 4])[1]))],
    "upsample_nearest2d": [C(SMALL, [6, 6], None, None)], "upsample_bilinear2d": [C(SMALL, [5, 5], False, None, None)],
    "upsample_nearest2d_backward": [C(IMAGE, [6, 6], [1, 4, 3, 3], None, None)],
    "upsample_bilinear2d_backward": [C(IMAGE, [6, 6], [1, 4, 3, 3], False, None, None)],
    # Fourier transforms
    "_fft_r2c": [C(IMAGE, [2, 3], 0, True), C(R(1, 7), [1], 0, True), C(IMAGE, [2], 0, False)],
    "_fft_c2r": [C(R(1, 4, 6, 4, 2), [2, 3], 2, 6, by=complex_numbers)], "_conj": [C(R(3, 2), by=complex_numbers)],
    "view_as_complex": [C(R(3, 2))], "view_as_real": [C(R(3, 2), by=complex_numbers)],
    # Constants, with a record beside them as vmap needs one
    **{name: [C(X, by=lambda op, x, args=args: op(*args) + x[0, 0])] for name, args in {
        "zeros": ([3],), "ones": ([3],), "full": ([3], 0.5), "arange": (5,), "arange.start": (1, 5),
        "arange.start_step": (1, 9, 2), "scalar_tensor": (0.5,)}.items()},
    "new_zeros": [C(X, [4])],
    # Indices, which are fixed or found
    "index.Tensor": [C(X, F(4, high=7), by=lambda op, x, i: op(x, [None, i]))], "index_select": [C(X, 1, F(4, high=7))],
    "index_put": [C(X, F(5, high=3), R(5, 7), by=lambda op, x, i, y: op(x, [i], y, True))],
    "index_add": [C(X, 0, F(5, high=3), R(5, 7))], "scatter_add": [C(X, 1, F(3, 4, high=7), R(3, 4))],
    "gather": [C(X, 1, F(3, 4, high=7)), C(X, X, by=lambda op, x, y: op(x, 1, y.sort(1)[1]))],
    "scatter.src": [C(X, R(3, 4), F(3, 7), by=lambda op, x, y, z: op(z, 1, x.topk(4, 1)[1], y)),
                    C(X, R(3, 1), F(3, 7), by=lambda op, x, y, z: op(z, 1, x.max(1, True)[1], y))]}
# What the rules put in place of operators.
RULE_CASES = {
    ATEN.embedding.default: (look_up, [C(F(6, 3), R(2, 5, high=6)), C(F(6, 3), R(1, high=9))]),
    ATEN.embedding_dense_backward.default: (one_hot, [C(R(1, 5, high=6), 6, n, torch.float32) for n in (-1, 2)]),
    ATEN._to_copy.default: (whole, [C(X, torch.int64), C(X, torch.uint8)])}


def bits(values):
    """The bytes of the values of an operator that has one or several."""
    values = values if isinstance(values, tuple | list) else [values]
    return [value.resolve_conj().contiguous().cpu().numpy().tobytes() for value in values if value is not None]


def chunks(case, dependent, generator):
    """A record among others, for each place and each kind of others: the place, and the arguments with their dims."""
    records = [arg.draw(generator) if isinstance(arg, Record) else arg for arg in case.args]
    dims = [0 if n in dependent else None for n in range(len(records))]
    for kind, place in itertools.product(KINDS, PLACES):
        args = list(records)
        for n in dependent:
            others = case.args[n].neighbours(CHUNK, kind, generator)
            others[place] = records[n]
            args[n] = others
        yield kind, place, args, tuple(dims)


def mixed(op, cases, device):
    """What went wrong with a record, if anything: other bits beside other records, or an error."""
    for number, case in enumerate(cases):
        able = [n for n, arg in enumerate(case.args) if type(arg) is Record]
        for dependent in (chosen for size in range(1, len(able) + 1) for chosen in itertools.combinations(able, size)):
            generator, first = torch.Generator().manual_seed(zlib.crc32(str(op).encode())), None
            for kind, place, args, dims in chunks(case, dependent, generator):
                args = [arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in args]
                try:
                    values = vmap(lambda *args, case=case: case.run(op, *args), dims)(*args)
                except Exception as error:
                    return f"case {number} raises beside {kind}: {error}"
                values = values if isinstance(values, tuple | list) else [values]
                found = bits([value[place] for value in values])
                first = first or found
                if found != first:
                    return f"case {number}, of the record {dependent}: other bits at {place} beside {kind}"
    return ""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_every_operator_keeps_records_apart(device):
    failed = {name: mixed(operator(name), cases, device) for name, cases in CASES.items()}
    failed |= {rule.__name__: mixed(rule, cases, device) for rule, cases in RULE_CASES.values()}
    assert {name: text for name, text in failed.items() if text} == {}


def test_every_operator_has_a_case():
    assert {operator(name) for name in CASES} | {getitem} == {*REVIEWED}
    assert {*RULE_CASES} == {*RULES}
    assert all(CASES.values())


# What the table would notice

class ByLargest(torch.autograd.Function):
    """Divides by the largest number of all records."""

    @staticmethod
    def forward(x):
        return x / x.abs().max()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x):
        return x / x.abs().max(), 0


@torch.library.custom_op("tests::by_largest", mutates_args=())
def by_largest(x: torch.Tensor) -> torch.Tensor:
    return x / x.abs().max()


by_largest.register_vmap(lambda info, in_dims, x: (x / x.abs().max(), 0))
by_largest.register_fake(torch.empty_like)


def test_the_table_notices_what_mixes_records():
    look_up_in = C(F(7), R(3, high=7), by=lambda op, x, i: op(x, [i]))
    assert "other bits" in mixed(ByLargest.apply, [C(X)], "cpu")
    assert "other bits" in mixed(by_largest, [C(X)], "cpu")
    assert "raises beside infinite: index 7 is out of bounds" in mixed(ATEN.index.Tensor, [look_up_in], "cpu")
    assert "raises beside nan: index out of range" in mixed(ATEN.embedding.default, [C(R(6, 3), R(5, high=6))], "cpu")


def test_the_table_notices_a_look_up_in_the_tables_of_others():
    """Torch's rule for tables of records: an index outside reads the next record's table."""
    tables = torch.randn(CHUNK, 6, 3)
    found = vmap(ATEN.embedding.default)(tables, torch.full([CHUNK, 1], 5).index_fill(0, torch.tensor([7]), 6))
    assert torch.equal(found[7, 0], tables[8, 0])


# Conditions of graphs

def guarded_graph(function, *inputs, n_state=1):
    """The guarded graph of a function whose first inputs are the state."""
    graph = make_fx(functionalize(make_fx(function)(*inputs)))(*inputs)
    for node in graph.graph.nodes:
        if node.target in (ATEN.alias.default, ATEN.detach.default):  # as `trace` does
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    guarded(graph, n_state).recompile()
    return graph


def refused(function, *inputs, n_state=1):
    """Why a function is not mapped."""
    with pytest.raises(NotMapped) as caught:
        guarded_graph(function, *inputs, n_state=n_state)
    return str(caught.value)


W, RECORD = torch.arange(15.0).view(5, 3), torch.tensor([[0.5, -1.0, 2.0]])


def integers(x):
    return (x > 0).long()


REFUSED = {
    "an integer that a record's number divides": ("floor_divide", lambda w, x: integers(x) // (1 + integers(x))),
    "a remainder of integers": ("remainder.Tensor", lambda w, x: integers(x) % (1 + integers(x))),
    "a power of integers": ("pow.Tensor_Tensor", lambda w, x: integers(x) ** integers(x)),
    "a record's index": ("index.Tensor", lambda w, x: w[integers(x)]),
    "a record's index, to select": ("index_select", lambda w, x: w.index_select(0, integers(x)[0])),
    "a record's index, to add": ("index_add", lambda w, x: w.index_add(0, integers(x)[0], torch.ones(3, 3))),
    "a record's index, to put": ("index_put", lambda w, x: w.index_put((integers(x)[0],), x, True)),
    "a record's index, to gather": ("gather", lambda w, x: w.gather(1, integers(x))),
    "a record's index, to scatter": ("scatter.src", lambda w, x: w.scatter(1, integers(x), x)),
    "indices of a longer dimension": ("gather", lambda w, x: x[:, :2].gather(1, x.argsort()[:, :2])),
    "indices of another dimension": ("gather", lambda w, x: (x.T * x[:, :2]).gather(1, (x.T.sort(0)[1] * 0)[:, :1])),
    "sorted integers as indices": ("gather", lambda w, x: x.gather(1, integers(x).sort()[0])),
    "indices that were computed": ("gather", lambda w, x: x.gather(1, (x.sort()[1] + 3) * 0)),
    "a table of the record": ("embedding", lambda w, x: functional.embedding(integers(w), x.T)),
    "a table that is scaled": ("embedding", lambda w, x: functional.embedding(integers(x), w, scale_grad_by_freq=True)),
    "a sparse table": ("embedding", lambda w, x: functional.embedding(integers(x), w, sparse=True)),
    "a sum of looked-up rows": ("_embedding_bag", lambda w, x: functional.embedding_bag(integers(x), w)),
    "a cast to another layout": ("_to_copy", lambda w, x: ATEN._to_copy(x[..., None, None], dtype=torch.int64,
                                                                        memory_format=torch.channels_last)),
    "statistics of earlier records": ("native_batch_norm", lambda w, x: ATEN.native_batch_norm(
        x.T, None, None, w[0, :1].clone(), w[1, :1].clone(), True, 0.1, 1e-5)[0]),
    "numbers drawn at random": ("rand_like", lambda w, x: torch.rand_like(x)),
    "dropout": ("bernoulli", lambda w, x: functional.dropout(x)),
    "another namespace": ("tests.by_largest", lambda w, x: by_largest(x)),
    "places that are not zero": ("nonzero", lambda w, x: x.nonzero() + 0),
    "empty memory": ("new_empty", lambda w, x: x.new_empty(3)), "strides": ("as_strided", lambda w, x: x.as_strided([2], [1])),
    "an inverse, which may raise": ("linalg", lambda w, x: torch.linalg.inv(x.T * x + w[:3] ** 2)),
    "a write into the state": ("copy_", lambda w, x: w.add_(x))}


@pytest.mark.parametrize("what", REFUSED)
def test_a_graph_is_refused(what):
    operator_named, function = REFUSED[what]
    assert operator_named in refused(function, W, RECORD)


def test_what_draws_at_random_is_told_apart():
    with pytest.raises(DrawsAtRandom, match="rand_like"):
        guarded_graph(lambda w, x: torch.rand_like(x), W, RECORD)


MAPPED = {
    "division of numbers": lambda w, x: x / w // 2, "a fixed index": lambda w, x: x[:, integers(w[0])],
    "a weight's index": lambda w, x: x.gather(1, integers(w[:1])), "a sort": lambda w, x: x.gather(1, x.argsort()),
    "a part of a sort": lambda w, x: x.gather(1, x.sort()[1][:, :2]), "a maximum": lambda w, x: x.gather(1, x.max(1, True)[1])}


@pytest.mark.parametrize("what", MAPPED)
def test_a_graph_is_mapped(what):
    graph = guarded_graph(MAPPED[what], W, RECORD)
    records = torch.stack([RECORD, RECORD.flip(1), -RECORD])
    found = vmap(graph, (None, 0))(W, records)
    assert torch.equal(found, torch.stack([MAPPED[what](W, record) for record in records]))


def test_a_cast_of_what_is_no_number_is_zero():
    graph = guarded_graph(lambda w, x: x.long(), W, RECORD)
    records = torch.tensor([[float("nan"), 1e30, -1e30], [float("inf"), 2.7, -3.2]])[:, None]
    assert vmap(graph, (None, 0))(W, records).tolist() == [[[0, 0, 0]], [[0, 2, -3]]]


def test_a_look_up_has_a_rule_of_its_own():
    """An index outside contributes nothing, and padding holds at every place."""
    def passes(w, x, signal):
        weight = w.clone().requires_grad_()
        rows = functional.embedding(x, weight, padding_idx=2)
        return rows.detach(), torch.autograd.grad(rows, weight, signal)[0]

    signal = torch.ones(1, 2, 3)
    with torch.enable_grad():
        graph = guarded_graph(passes, W, torch.tensor([[1, 2]]), signal)
    indices = torch.tensor([[1, 2], [2, 2], [5, 0], [-1, 2**40]])[:, None]
    rows, gradients = vmap(graph, (None, 0, None))(W, indices, signal)
    assert torch.equal(rows[:2, 0], W[indices[:2, 0]])
    assert rows[2, 0, 0].tolist() == rows[3, 0, 0].tolist() == [0, 0, 0]
    assert [gradient.sum(dim=1).tolist() for gradient in gradients] == [[0, 3, 0, 0, 0], [0] * 5, [3, 0, 0, 0, 0], [0] * 5]


def by_hand(name, shapes, args):
    """The graph of one operator whose arguments that are letters are inputs with shapes; nothing is computed."""
    graph, inputs = fx.Graph(), {}
    for letter, shape in shapes.items():
        inputs[letter] = graph.placeholder(letter)
        inputs[letter].meta["val"] = torch.empty(shape, device="meta")
    node = graph.call_function(operator(name), tuple(inputs.get(arg, arg) if isinstance(arg, str) else arg for arg in args))
    node.meta["val"] = None
    graph.output(node)
    return fx.GraphModule(nn.Module(), graph)


G, WEIGHT = (1, 4, 6, 6), (4,)
# Shapes that fit, and for each letter a shape that does not.
FITTING = {
    "_log_softmax_backward_data": ("gy", dict(g=(1, 5), y=(1, 5)), ("g", "y", 1, torch.float32)),
    "native_layer_norm_backward": ("gmdwb", dict(g=(1, 5, 8), x=(1, 5, 8), m=(1, 5, 1), d=(1, 5, 1), w=(8,), b=(8,)),
                                   ("g", "x", [8], "m", "d", "w", "b", [True] * 3)),
    "native_batch_norm": ("wb", dict(x=G, w=WEIGHT, b=WEIGHT), ("x", "w", "b", None, None, True, 0.1, 1e-5)),
    "native_batch_norm_backward": ("gwmd", dict(g=G, x=G, w=WEIGHT, m=WEIGHT, d=WEIGHT),
                                   ("g", "x", "w", None, None, "m", "d", True, 1e-5, [True] * 3)),
    "_weight_norm_interface": ("s", dict(v=(6, 5), s=(6, 1)), ("v", "s", 0)),
    "_weight_norm_interface_backward": ("gsn", dict(g=(6, 5), v=(6, 5), s=(6, 1), n=(6, 1)), ("g", "v", "s", "n", 0)),
    "unfold_backward": ("g", dict(g=(3, 3, 3)), ("g", [3, 7], 1, 3, 2)),
    "reflection_pad2d_backward": ("g", dict(g=(1, 4, 9, 9), x=G), ("g", "x", [1, 2, 2, 1])),
    "replication_pad2d_backward": ("g", dict(g=(1, 4, 9, 9), x=G), ("g", "x", [1, 2, 2, 1])),
    "_adaptive_avg_pool2d_backward": ("g", dict(g=(1, 4, 3, 3), x=G), ("g", "x"))}


@pytest.mark.parametrize("name", FITS)
def test_shapes_that_a_kernel_does_not_check_must_fit(name):
    letters, shapes, args = FITTING[name]
    guarded(by_hand(name, shapes, args), 0)
    for letter in letters:
        for place in [place for place, size in enumerate(shapes[letter]) if size > 1][:1]:
            short = list(shapes[letter])
            short[place] -= 1
            with pytest.raises(NotMapped, match=name):
                guarded(by_hand(name, shapes | {letter: short}, args), 0)


@pytest.mark.parametrize(("size", "place", "fits"), [(6, 1, True), (4, 1, False), (6, 0, False)])
def test_indices_of_a_pool_are_for_its_own_image(size, place, fits):
    """They would be written behind a smaller image."""
    traced = by_hand("max_pool2d_with_indices_backward", dict(x=(1, 1, 6, 6), y=(1, 1, size, size), g=(1, 1, 3, 3)),
                     ("g", "x" if size == 6 else "y", [2, 2], [2, 2], [0, 0], [1, 1], False, "g"))
    g, x = (next(node for node in traced.graph.nodes if node.name == name) for name in "gx")
    (backward,) = traced.graph.find_nodes(op="call_function", target=operator("max_pool2d_with_indices_backward"))
    with traced.graph.inserting_before(backward):
        pool = traced.graph.call_function(operator("max_pool2d_with_indices"), (x, [2, 2], [2, 2]))
        pool.meta["val"] = (g.meta["val"], g.meta["val"].long())
        indices = traced.graph.call_function(getitem, (pool, place))
    backward.update_arg(7, indices)
    if fits:
        guarded(traced, 0)
    else:
        with pytest.raises(NotMapped, match="max_pool2d_with_indices_backward"):
            guarded(traced, 0)
