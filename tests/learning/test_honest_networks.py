"""Honest networks: which are mapped and which alone, and that rows are those of plain autograd."""

import pytest
import torch
from honest_networks import NETWORKS

from pipeline.learning.own.alone import Alone
from pipeline.learning.own.mapped import Mapped
from pipeline.learning.own.segments import Segments, blocks_of

CHUNK, RECORDS, LIMIT = 16, 4, 1e-5
# Computed record by record, and why. All others are mapped: that is promised.
ALONE = {
    "branch": "_local_scalar_dense", "top_expert": "_local_scalar_dense", "code_book": "_local_scalar_dense",
    "circular": "new_empty", "slices": "lift_fresh_copy", "numpy": "lift_fresh_copy", "lstm": "mkldnn_rnn_layer",
    "numpy_scale": "other rows", "embedding_scaled": "aten.embedding", "embedding_sparse": "aten.embedding", "embedding_bag": "_embedding_bag",
    "embedding_max_norm": "embedding_renorm", "indexed_table": "aten.index.Tensor", "spectral_norm": "vdot",
    "orthogonal": "linalg_householder_product"}
# `numpy_scale` is traced, with a number of the example in its graph: what trains compares the rows, as `way_of` does.
SHARED = {"module_twice"}  # between blocks
FAST = ["perceptron", "cnn", "depthwise", "group_norm", "squeeze_excite", "torch_attention", "gru", "lstm",
        "embedding_padding", "old_weight_norm", "module_twice", "checkpoint_reentrant", "spectrum"]
EVERY = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]


def built(name, is_random):
    """Build a network, the same at every call, at its initial or at random weights."""
    torch.manual_seed(1)
    network = NETWORKS[name]()
    network(torch.rand(1, 1, 8, 8))  # shapes of lazy layers
    with torch.no_grad():
        for parameter in network.parameters() if is_random else ():
            parameter.copy_(torch.randn(parameter.shape) / max([1, *parameter.shape[1:]]) ** 0.5)
    return network


def signals_for(widths):
    """A function of logits: the output's error, and fixed projections of it for the segments below."""
    generator = torch.Generator().manual_seed(2)
    feedback = [torch.randn(10, n, generator=generator) for n in widths[:-1]]

    def signals_of(logits):
        error = logits.softmax(dim=1) - torch.eye(10, dtype=logits.dtype)[3]
        return [*(error @ matrix.to(logits.dtype) for matrix in feedback), error]
    return signals_of


def plain(network, places, record, signals_of):
    """The logits of a record, and its row by autograd, block by block."""
    outputs, h = [], record
    for block in places:
        h = h.detach().requires_grad_().clone()
        for place in block:
            h = network[place](h)
        outputs.append(h)
    for output, signal in zip(outputs, signals_of(outputs[-1].detach()), strict=True):
        if output.requires_grad:
            output.backward(signal.view_as(output))
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
                 for p in network.parameters() if p.requires_grad]
    return outputs[-1].detach()[0], torch.cat([gradient.flatten() for gradient in gradients])


def computed(way, records, signals_of):
    """The logits and rows of records, by a graph for all or one by one."""
    chunks = [records] if isinstance(way, Mapped) else records.split(1)
    rows = [torch.cat([part.rows() for part in way.gradients(chunk, signals_of)], dim=1) for chunk in chunks]
    return way.logits(records), torch.cat(rows)


def way_of(segments, records, signals_of):
    """The graph of a network, or what computes it record by record and why."""
    alone = Alone(segments, 10)
    try:
        mapped = Mapped(segments, records[:1])
    except Exception as error:
        return alone, str(error)
    rows = [computed(way, records[:2], signals_of)[1] for way in (mapped, alone)]
    return (mapped, "") if far(*rows) <= LIMIT else (alone, "other rows")


def far(found, expected):
    """By how much a vector differs, relative to its norm."""
    return ((found - expected).norm() / expected.norm().clamp(min=1e-30)).item()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore:.*torch.utils.checkpoint|.*None of the inputs|`torch.nn.utils.weight_norm`")
def test_rows_are_those_of_plain_autograd(name):
    """By BP and by DFA, at initial and at random weights."""
    torch.manual_seed(3)
    records = (torch.rand(CHUNK, 1, 8, 8) * 16).round() / 16
    n_blocks = len(blocks_of(built(name, False)))
    for lower in {n_blocks - 1} | ({0} - {0 if name in SHARED else None}):
        for is_random in (False, True):
            network = built(name, is_random)
            segments = Segments(network, lower)
            signals_of = signals_for([output.flatten(1).shape[1] for output in segments(records[:1])])
            way, reason = way_of(Segments(built(name, is_random), lower), records, signals_of)
            assert isinstance(way, Alone) is (name in ALONE), reason
            assert ALONE.get(name, "") in reason
            chosen = [0, 6, 11, 15]
            logits, rows = computed(way, records if isinstance(way, Mapped) else records[chosen], signals_of)
            for n, place in enumerate(chosen):
                at = place if isinstance(way, Mapped) else n
                expected = plain(built(name, is_random), segments.segments, records[place:place + 1], signals_of)
                assert expected[1].norm() > 1e-4, "a row of zeros shows nothing"
                assert far(logits[at], expected[0]) <= LIMIT
                assert far(rows[at], expected[1]) <= LIMIT, (lower, is_random, place)


def test_the_table_names_networks():
    assert len(NETWORKS) >= 60
    assert {*ALONE, *SHARED, *FAST} <= {*NETWORKS}
