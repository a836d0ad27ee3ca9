"""Each operator on the reviewed list keeps records apart: one record of a chunk has the same bits beside any others."""

import itertools
from operator import getitem

import pytest
import torch
from operator_cases import CASES, KINDS, RULE_CASES, Case, Fixed, Record
from torch import fx, nn
from torch.func import functionalize, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from pipeline.learning.own.operators import (
    CHUNK_MULTIPLE,
    FITS,
    REVIEWED,
    RULES,
    NotMapped,
    guarded,
    is_reviewed_here,
    operator,
)

ATEN = torch.ops.aten
CHUNK, PLACES = CHUNK_MULTIPLE, (0, 7, 15, CHUNK_MULTIPLE - 1)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


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
    """What went wrong with a record, if anything: other bits beside other records, or an error.

    By a processor that was not reviewed its bits may depend on its place, but not on other records.
    """
    for number, case in enumerate(cases):
        able = [n for n, arg in enumerate(case.args) if type(arg) is Record]
        for dependent in (chosen for size in range(1, len(able) + 1) for chosen in itertools.combinations(able, size)):
            generator, firsts = torch.Generator().manual_seed(0), {}
            for kind, place, args, dims in chunks(case, dependent, generator):
                args = [arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in args]
                try:
                    values = vmap(lambda *args, case=case: case.run(op, *args), dims)(*args)
                except Exception as error:
                    return f"case {number} raises beside {kind}: {error}"
                values = values if isinstance(values, tuple | list) else [values]
                found = bits([value[place] for value in values])
                where = None if is_reviewed_here(torch.device(device)) else place
                if found != firsts.setdefault(where, found):
                    return f"case {number}, of the record {dependent}: other bits at {place} beside {kind}"
    return ""


@pytest.mark.slow
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
    index = Case(Fixed(7), Record(3, high=7), by=lambda op, x, i: op(x, [i]))
    table = Case(Record(6, 3), Record(5, high=6))
    assert "other bits" in mixed(ByLargest.apply, [Case(Record(3, 7))], "cpu")
    assert "other bits" in mixed(by_largest, [Case(Record(3, 7))], "cpu")
    assert "raises beside infinite: index 7 is out of bounds" in mixed(ATEN.index.Tensor, [index], "cpu")
    assert "raises beside nan: index out of range" in mixed(ATEN.embedding.default, [table], "cpu")


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
    "empty memory": ("new_empty", lambda w, x: x.new_empty(3)),
    "strides": ("as_strided", lambda w, x: x.as_strided([2], [1])),
    "an inverse, which may raise": ("linalg", lambda w, x: torch.linalg.inv(x.T * x + w[:3] ** 2)),
    "a write into the state": ("copy_", lambda w, x: w.add_(x))}


@pytest.mark.parametrize("what", REFUSED)
def test_a_graph_is_refused(what):
    operator_named, function = REFUSED[what]
    assert operator_named in refused(function, W, RECORD)


MAPPED = {
    "division of numbers": lambda w, x: x / w // 2, "a fixed index": lambda w, x: x[:, integers(w[0])],
    "a weight's index": lambda w, x: x.gather(1, integers(w[:1])), "a sort": lambda w, x: x.gather(1, x.argsort()),
    "a part of a sort": lambda w, x: x.gather(1, x.sort()[1][:, :2]),
    "a maximum": lambda w, x: x.gather(1, x.max(1, True)[1])}


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
    sums = gradients.sum(dim=2).tolist()
    assert sums == [[0, 3, 0, 0, 0], [0] * 5, [3, 0, 0, 0, 0], [0] * 5]


def by_hand(name, shapes, args):
    """The graph of one operator whose arguments that are letters are inputs with shapes; nothing is computed."""
    graph, inputs = fx.Graph(), {}
    for letter, shape in shapes.items():
        inputs[letter] = graph.placeholder(letter)
        inputs[letter].meta["val"] = torch.empty(shape, device="meta")
    args = tuple(inputs[arg] if isinstance(arg, str) else arg for arg in args)
    node = graph.call_function(operator(name), args)
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


@pytest.mark.parametrize(("name", "shapes", "args"), [
    ("reflection_pad2d_backward", dict(g=(1, 1, 8, 4), x=(1, 1, 4, 4)), ("g", "x", [0, 0, 4, 0])),
    ("native_batch_norm", dict(x=G, w=WEIGHT, b=WEIGHT), ("x", "w", "b", None, None, False, 0.1, 1e-5))])
def test_arguments_that_a_kernel_does_not_check_must_fit(name, shapes, args):
    """A mirror image as large as its image is written behind it; statistics that are missing are read."""
    with pytest.raises(NotMapped, match=name):
        guarded(by_hand(name, shapes, args), 0)
