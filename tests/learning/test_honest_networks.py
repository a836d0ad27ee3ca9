"""Honest networks: which are mapped and which alone, and that rows are those of plain autograd."""

import copy
import warnings

import pytest
import torch
from honest_networks import NETWORKS
from torch import nn

from pipeline.learning.own.alone import Alone
from pipeline.learning.own.gradients import rows_of
from pipeline.learning.own.mapped import Mapped
from pipeline.learning.own.segments import Segments, blocks_of

CHUNK, RECORDS, LIMIT = 16, 4, 1e-5
# Computed record by record, and why. All others are mapped: that is promised.
ALONE = {
    "branch": "_local_scalar_dense", "top_expert": "_local_scalar_dense", "code_book": "_local_scalar_dense",
    "circular": "new_empty", "slices": "lift_fresh_copy", "numpy": "lift_fresh_copy", "lstm": "mkldnn_rnn_layer",
    "embedding_scaled": "aten.embedding", "embedding_sparse": "aten.embedding", "embedding_bag": "_embedding_bag",
    "embedding_max_norm": "embedding_renorm", "indexed_table": "aten.index.Tensor", "spectral_norm": "vdot",
    "orthogonal": "linalg_householder_product"}
SHARED = {"module_twice"}  # between blocks
FAST = ["perceptron", "cnn", "depthwise", "group_norm", "squeeze_excite", "torch_attention", "gru", "lstm",
        "embedding_padding", "old_weight_norm", "module_twice", "checkpoint_reentrant", "spectrum"]
EVERY = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]


def built(name, is_random=False):
    """Build a network; its records are the first ones of a generator of the test's own."""
    torch.manual_seed(1)
    with torch.random.fork_rng():
        network = NETWORKS[name]()
        network(torch.rand(1, 1, 8, 8))  # lazy layers
    if is_random:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.randn(parameter.shape) / max(parameter.shape[-1:] or [1]) ** 0.5)
    return network


def signals_for(widths):
    """The output's error for the last segment, and fixed projections of it for the others."""
    feedback = [torch.randn(10, n) for n in widths[:-1]]

    def signals_of(logits):
        error = logits.softmax(dim=1) - torch.eye(10)[3]
        return [*(error @ matrix for matrix in feedback), error]
    return signals_of


def plain(network, places, record, signals_of):
    """The row of a record by autograd, block by block, on a copy of the network."""
    outputs, h = [], record
    for block in places:
        h = h.detach().requires_grad_().clone()
        for place in block:
            h = network[place](h)
        outputs.append(h)
    for output, signal in zip(outputs, signals_of(outputs[-1].detach()), strict=True):
        if output.requires_grad:
            output.backward(signal.view_as(output))
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.to_dense().flatten()
                      for p in network.parameters() if p.requires_grad])
