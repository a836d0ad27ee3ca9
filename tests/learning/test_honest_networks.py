"""Honest networks: which are mapped and which alone, and that rows are those of plain autograd."""

import runpy
from pathlib import Path

import pytest
import torch

from pipeline.learning.own.alone import Alone
from pipeline.learning.own.mapped import Mapped
from pipeline.learning.own.operators import CHUNK_MULTIPLE
from pipeline.learning.own.segments import Segments, blocks_of

NETWORKS = runpy.run_path(str(Path(__file__).parents[1] / "data" / "honest_networks.py"))["NETWORKS"]
LIMIT = 1e-5
PLACES = [0, 6, 11, CHUNK_MULTIPLE - 1]  # of the records that are compared
# Computed record by record, and why. All others are mapped: that is promised.
ALONE = {
    "branch": "_local_scalar_dense", "circular": "new_empty", "numpy_scale": "other rows",
    "lstm": "mkldnn_rnn_layer", "embedding_scaled": "aten.embedding", "embedding_sparse": "aten.embedding",
    "embedding_max_norm": "embedding_renorm", "spectral_norm": "vdot", "orthogonal": "linalg_householder_product"}
# `numpy_scale` has a graph with a number of the example in it, so that ways are compared before one is taken.
SHARED = {"module_twice"}  # between blocks
FAST = ["perceptron", "cnn", "depthwise", "group_norm", "squeeze_excite", "torch_attention", "gru", "lstm",
        "embedding_padding", "old_weight_norm", "module_twice", "checkpoint_reentrant", "spectrum"]
EVERY = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]


def built(name):
    """Build a network, the same at every call."""
    torch.manual_seed(1)
    network = NETWORKS[name]()
    network(torch.rand(1, 1, 8, 8))  # shapes of lazy layers
    return network


def randomised(network):
    """A network with random weights, in place of its own."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in network.parameters():
            width = max([1, *parameter.shape[1:]])
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / width ** 0.5)
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


def compare(way, records, expected, signals_of):
    """Compare the logits and rows of some records with the expected ones, relative to their norms."""
    chunk = records if isinstance(way, Mapped) else records[PLACES]
    places = PLACES if isinstance(way, Mapped) else range(len(PLACES))
    logits, rows = computed(way, chunk, signals_of)
    for place, (expected_logits, expected_row) in zip(places, expected, strict=True):
        assert expected_row.norm() > 1e-4, "a row of zeros shows nothing"
        assert far(logits[place], expected_logits) <= LIMIT
        assert far(rows[place], expected_row) <= LIMIT


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore:.*torch.utils.checkpoint|.*None of the inputs|`torch.nn.utils.weight_norm`")
def test_rows_are_those_of_plain_autograd(name):
    """By BP and by DFA. A graph is traced at initial weights, and must hold at random ones too."""
    torch.manual_seed(3)
    records = (torch.rand(CHUNK_MULTIPLE, 1, 8, 8) * 16).round() / 16
    highest = len(blocks_of(built(name))) - 1
    for lower in {highest} if name in SHARED else {0, highest}:
        segments = Segments(built(name), lower)
        outputs = Segments(built(name), lower)(records[:1])
        signals_of = signals_for([output.flatten(1).shape[1] for output in outputs])
        way, reason = way_of(segments, records, signals_of)
        assert isinstance(way, Alone) is (name in ALONE), reason
        assert ALONE.get(name, "") in reason
        for at in (lambda network: network, randomised):
            at(segments.network)
            expected = [plain(at(built(name)), segments.segments, records[place:place + 1], signals_of)
                        for place in PLACES]
            compare(way, records, expected, signals_of)


@pytest.mark.parametrize("name", [case for case in EVERY if getattr(case, "values", [case])[0] not in ALONE])
@pytest.mark.filterwarnings("ignore:.*torch.utils.checkpoint|.*None of the inputs|`torch.nn.utils.weight_norm`")
def test_a_mapped_row_has_the_same_bits_beside_any_records(name):
    segments = Segments(randomised(built(name)), len(blocks_of(built(name))) - 1)
    mapped, signals_of, found = Mapped(segments, torch.rand(1, 1, 8, 8)), signals_for([10]), set()
    record = (torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(5)) * 16).round() / 16
    for number in (0.3, 0.0, 1e30, float("inf"), float("nan")):
        for place in PLACES:
            others = torch.full([CHUNK_MULTIPLE, 1, 8, 8], number)
            others[place] = record
            logits, rows = computed(mapped, others, signals_of)
            found.add(torch.cat([logits[place], rows[place]]).numpy().tobytes())
    assert len(found) == 1


def test_the_table_names_networks():
    assert len(NETWORKS) >= 100
    assert {*ALONE, *SHARED, *FAST} <= {*NETWORKS}


def test_images_by_channels_give_pools_the_same_bits(monkeypatch):
    """Maxima, their places among equals and gradients, of windows that overlap and of windows that do not."""
    network = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2, 1)),
        torch.nn.Sequential(torch.nn.Conv2d(4, 3, 2), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        torch.nn.Flatten(), torch.nn.Linear(12, 10))
    segments = Segments(randomised(network), 2)
    records = torch.randn(CHUNK_MULTIPLE, 1, 8, 8, generator=torch.Generator().manual_seed(6)).round()
    assert (records == 0).any(), "equal numbers, so that places among them are compared"
    laid_out = Mapped(segments, records[:1])
    monkeypatch.setattr("pipeline.learning.own.mapped.pool_by_channels", lambda traced: traced)
    usual = Mapped(segments, records[:1])
    written = [str(way.passes.forward.graph).count("aten.permute.default") for way in (laid_out, usual)]
    assert written == [4, 0]  # one before and one after the copy, for each pool
    widths = [output.flatten(1).shape[1] for output in segments(records[:1])]
    for found, expected in zip(computed(laid_out, records, signals_for(widths)),
                               computed(usual, records, signals_for(widths)), strict=True):
        assert torch.equal(found, expected)
