"""Examples of arguments for each operator that may be mapped over records, and for what rules put in their place."""

import torch

from pipeline.learning.own.operators import look_up, one_hot, whole

ATEN = torch.ops.aten
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
        outside = {"nan": -1, "infinite": self.high, "large": HUGE, "minus": -HUGE, "zero": 0}
        return torch.full_like(drawn, outside[kind])


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


def words(text):
    return text.split()


X = R(3, 7)  # an odd number of elements
IMAGE, SMALL = R(1, 4, 6, 6), R(1, 4, 3, 3)
ONE = words("""
    abs neg sign sgn exp expm1 log log1p sqrt rsqrt sin cos tanh atan erf reciprocal round floor ceil trunc
    sigmoid relu silu gelu softplus elu celu hardtanh hardswish hardsigmoid leaky_relu mish log_sigmoid_forward
    softshrink isnan isinf logical_not sum mean amax amin max min clone zeros_like ones_like""")
TWO = words("""
    add.Tensor sub.Tensor mul.Tensor minimum maximum eq.Tensor ne.Tensor gt.Tensor ge.Tensor lt.Tensor le.Tensor
    logical_and logical_or tanh_backward sigmoid_backward silu_backward gelu_backward hardswish_backward
    mish_backward hardsigmoid_backward div.Tensor floor_divide pow.Tensor_Tensor remainder.Tensor""")
BOTH = {name for name in TWO if name.endswith("_backward")}  # of two arguments of one shape
SCALAR = words("""
    add.Scalar sub.Scalar rsub.Scalar mul.Scalar clamp_min clamp_max eq.Scalar ne.Scalar gt.Scalar ge.Scalar
    lt.Scalar le.Scalar div.Scalar remainder.Scalar full_like""")
CASES = {
    **{name: [C(X), C(R(2, 16))] for name in ONE},
    **{name: [C(X, X)] + [C(R(2, 16), R(16)), C(R(1, 5, 1), R(1, 1, 3))] * (name not in BOTH) for name in TWO},
    **{name: [C(X, 0.7)] for name in SCALAR},
    "gelu": [C(X, approximate=kind) for kind in ("none", "tanh")],
    "gelu_backward": [C(X, X, approximate=kind) for kind in ("none", "tanh")],
    "glu": [C(R(1, 6, 3), 1)], "_prelu_kernel": [C(R(1, 5, 3), R(1, 1, 1))], "threshold": [C(X, 0.1, 0.0)],
    "pow.Scalar": [C(X, by=lambda op, x: op(2.0, x))], "pow.Tensor_Scalar": [C(X, n) for n in (2, 3, -1, 0.5, 1.7)],
    "lerp.Scalar": [C(X, X, 0.3)], "clamp": [C(X, -0.5, 0.5), C(R(4, high=9), 0, 5)], "clamp.Tensor": [C(X, X, X)],
    "masked_fill.Scalar": [C(X, X, by=lambda op, x, y: op(x, y > 0, -1.0))], "copy": [C(X, X), C(X, R(7))],
    "where.self": [C(X, X, X, by=lambda op, c, x, y: op(c > 0, x, y)),
                   C(X, X, by=lambda op, c, x: op(c > 0, x, torch.ones([], device=x.device)))],
    "bitwise_and.Tensor": [C(X, X, by=boolean(lambda op, x, y: op(x, y)))],
    "bitwise_or.Tensor": [C(X, X, by=boolean(lambda op, x, y: op(x, y)))],
    "bitwise_not": [C(X, by=boolean(lambda op, x: op(x)))],
    "div.Tensor_mode": [C(X, X, rounding_mode=mode) for mode in ("floor", "trunc")],
    "threshold_backward": [C(X, X, 0)], "softplus_backward": [C(X, X, 1, 20)],
    "elu_backward": [C(X, X, by=lambda op, g, x, is_result=is_result: op(g, 1.0, 1.0, 1.0, is_result, x))
                     for is_result in (False, True)],
    "hardtanh_backward": [C(X, X, -1, 1)], "leaky_relu_backward": [C(X, X, 0.1, False)],
    "log_sigmoid_backward": [C(X, X, by=lambda op, g, x: op(g, x, ATEN.log_sigmoid_forward(x)[1]))],
    "softshrink_backward": [C(X, X, 0.5)], "glu_backward": [C(R(1, 3, 3), R(1, 6, 3), 1)],
    "_prelu_kernel_backward": [C(X, X, R(1, 1))],
    "fake_quantize_per_tensor_affine_cachemask": [C(X, 0.1, 0, -128, 127)],
    # Reductions
    **{name: [C(X, [1]), C(R(1, 5, 33), [2], True), C(R(1, 8, 4), [0, 1])]
       for name in ("sum.dim_IntList", "mean.dim", "logsumexp")},
    **{name: [C(X, [1], correction=1), C(R(1, 8, 4), [1, 2], correction=1, keepdim=True)]
       for name in ("std.correction", "var.correction")},
    **{name: [C(X, 1), C(R(1, 5, 4), 1, True)]
       for name in ("max.dim", "min.dim", "argmax", "sort", "any.dim", "all.dim")},
    "cumsum": [C(X, 1), C(R(1, 5, 4), 1)],
    "topk": [C(R(2, 9), 4), C(R(1, 9, 3), 2, 1)], "linalg_vector_norm": [C(X, n, [1]) for n in (1, 2, 3)] + [C(X)],
    **{name: [C(X, 1, False), C(R(1, 2, 5, 5), -1, False), C(R(1, 5, 3), 1, False)]
       for name in ("_softmax", "_log_softmax")},
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
        g, x, w, None, None, *ATEN.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)[1:],
        True, 1e-5, [True] * 3))],
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
        C(R(1, 2, 1, 3, 3), R(1, 1, 2, 4, 4), R(2, 1, 2, 2, 2), [2], [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1,
          [True] * 3)],
    # Shapes
    "view": [C(X, [7, 3])], "_unsafe_view": [C(X, [21])], "t": [C(X)], "transpose.int": [C(IMAGE, 1, 3)],
    "permute": [C(IMAGE, [0, 2, 3, 1])], "expand": [C(R(1, 5), [4, 5])], "squeeze.dim": [C(IMAGE, 0)],
    "unsqueeze": [C(X, 1)], "select.int": [C(X, 1, 2)], "slice.Tensor": [C(X, 1, 1, 6, 2)],
    "split.Tensor": [C(X, 3, 1)], "split_with_sizes": [C(X, [3, 4], 1)], "unsafe_split.Tensor": [C(X, 3, 1)],
    "unbind.int": [C(X, 1)],
    "cat": [C(X, R(3, 2), by=lambda op, x, y: op([x, y], 1))], "stack": [C(X, X, by=lambda op, x, y: op([x, y], 1))],
    "repeat": [C(X, [2, 1, 3])], "flip": [C(X, [0, 1])], "roll": [C(X, [2], [1])],
    "constant_pad_nd": [C(X, [1, 2], 0.5)], "diagonal": [C(IMAGE, 1, 2, 3)], "tril": [C(X)], "triu": [C(X, 1)],
    "unfold": [C(X, 1, 3, 2)], "select_backward": [C(R(3), [3, 7], 1, 2)],
    "slice_backward": [C(R(3, 3), [3, 7], 1, 1, 6, 2)],
    "diagonal_backward": [C(R(1, 4, 5), [1, 4, 6, 6], 1, 2, 3)], "unfold_backward": [C(R(3, 3, 3), [3, 7], 1, 3, 2)],
    "slice_scatter": [C(X, R(3, 3), 1, 1, 6, 2)], "select_scatter": [C(X, R(3), 1, 2)], "pixel_shuffle": [C(SMALL, 2)],
    "pixel_unshuffle": [C(IMAGE, 2)],
    **{name: [C(IMAGE, [1, 2, 2, 1])] for name in ("reflection_pad2d", "replication_pad2d")},
    **{f"{name}_backward": [C(R(1, 4, 9, 9), IMAGE, [1, 2, 2, 1])]
       for name in ("reflection_pad2d", "replication_pad2d")},
    "im2col": [C(IMAGE, [2, 2], [1, 1], [0, 0], [2, 2])],
    "col2im": [C(R(1, 16, 9), [6, 6], [2, 2], [1, 1], [0, 0], [2, 2])],
    # Pools
    "avg_pool2d": [C(IMAGE, [2, 2], [2, 2]), C(IMAGE, [3, 3], [2, 2], [1, 1], True, False)],
    "avg_pool2d_backward": [C(SMALL, IMAGE, [2, 2], [2, 2], [0, 0], False, True, None)],
    "avg_pool3d": [C(R(1, 1, 4, 4, 4), [2, 1, 1], [1, 1, 1])],
    "avg_pool3d_backward": [C(R(1, 1, 3, 4, 4), R(1, 1, 4, 4, 4), [2, 1, 1], [1, 1, 1], [0, 0, 0], False, True, None)],
    "_adaptive_avg_pool2d": [C(IMAGE, [4, 4]), C(IMAGE, [1, 1])],
    "_adaptive_avg_pool2d_backward": [C(R(1, 4, 4, 4), IMAGE)],
    "max_pool2d_with_indices": [C(IMAGE, [2, 2], [2, 2]), C(IMAGE, [3, 3], [2, 2], [1, 1])],
    "max_pool2d_with_indices_backward": [C(SMALL, IMAGE, by=lambda op, g, x, p=p: op(
        g, x, *p, [1, 1], False, ATEN.max_pool2d_with_indices(x, *p)[1]))
        for p in (([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1]))],
    "adaptive_max_pool2d": [C(IMAGE, [4, 4])],
    "adaptive_max_pool2d_backward": [C(R(1, 4, 4, 4), IMAGE, by=lambda op, g, x: op(
        g, x, ATEN.adaptive_max_pool2d(x, [4, 4])[1]))],
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
