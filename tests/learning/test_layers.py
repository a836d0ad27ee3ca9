"""Convolutions against torch.autograd, layer by layer, in float64; trials of networks with convolutions.

In test_own_network.py they have the updates of torch's layers under every feedback.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flat import train
from stored import sweep_of

from analysis.catalogue import mismatch
from pipeline.accounting.certified import event_of
from pipeline.auditing.row_space import row_space_audit
from pipeline.learning.network import layers
from pipeline.learning.network.layers import Conv, Dense, pool, unpool
from pipeline.learning.network.stacked import make_network
from pipeline.learning.training import Training
from pipeline.tracking.artifacts import write_artifacts
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.shapes import ConvShape, DenseShape

R, M = 2, 5
SHAPES = [ConvShape(1, 8, 8, 4, 5), ConvShape(6, 4, 4, 5, 5), ConvShape(3, 7, 5, 2, 3), ConvShape(2, 2, 3, 3, 5),
          ConvShape(4, 6, 6, 3, 1)]


@pytest.fixture(params=["one by one", "as groups"])
def replicas(request, monkeypatch):
    """How replicas are taken: as on a CPU, or all at once as on a GPU."""
    if request.param == "as groups":
        monkeypatch.setattr(layers, "_each_replica", lambda function, *tensors: list(function(*tensors)))


def drawn(shape, ties=False, dtype=torch.float64, seed=0):
    """A layer, its input, weight, bias and delta; with ties, few different values."""
    generator = torch.Generator().manual_seed(seed)

    def tensor(*size):
        if ties:
            return torch.randint(-1, 2, size, generator=generator).to(dtype)
        return torch.randn(size, generator=generator, dtype=dtype)

    rows = shape.weight_shape[0]
    return (Conv(shape), tensor(R, M, shape.n_in), tensor(R, rows, shape.in_channels * shape.kernel**2),
            tensor(R, rows), tensor(R, M, shape.n_out))


def by_torch(shape, h, weight, bias):
    """z of one replica, from leaves h [m, n_in], weight [C_out, C_in k^2] and bias [C_out]."""
    image = h.view(len(h), shape.in_channels, shape.height, shape.width)
    z = F.conv2d(image, weight.view(shape.weight_shape), bias, padding="same")
    return F.max_pool2d(z, 2).flatten(1)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_convolution_equals_autograd(shape, ties, replicas):
    layer, h, weight, bias, delta = drawn(shape, ties)
    z, back = layer.forward(h, weight, bias), layer.back(delta, weight)
    out_weight, out_bias = torch.empty_like(weight), torch.empty_like(bias)
    layer.write_sum(delta, h, out_weight, out_bias)
    for r in range(R):
        leaves = [x[r].clone().requires_grad_() for x in (h, weight, bias)]
        expected = by_torch(shape, *leaves)
        torch.testing.assert_close(z[r], expected.detach())
        expected.backward(delta[r])
        for ours, leaf in zip((back[r], out_weight[r], out_bias[r]), leaves, strict=True):
            torch.testing.assert_close(ours, leaf.grad)


@pytest.mark.parametrize("chunk", [1, 2**23])
@pytest.mark.parametrize("by_gram", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms_equal_those_of_the_gradient_of_each_record(shape, by_gram, chunk, replicas, monkeypatch):
    monkeypatch.setattr(layers, "CHUNK_ELEMENTS", {"cpu": chunk})
    layer, h, weight, bias, delta = drawn(shape)
    layer.by_gram = by_gram
    layer.forward(h, weight, bias)
    squares = layer.squared_norms(delta, h)
    assert squares.shape == (R, M, 1)
    for r in range(R):
        for i in range(M):
            leaves = [x[r].clone().requires_grad_() for x in (weight, bias)]
            by_torch(shape, h[r, i: i + 1], *leaves).backward(delta[r, i: i + 1])
            torch.testing.assert_close(squares[r, i, 0], sum(leaf.grad.square().sum() for leaf in leaves))


def exact_squares(layer, full, h):
    """Squared norms [m] of the gradients of one replica's weights, from the deltas before the pool, in float64."""
    shape = layer.shape
    images = h[0].double().view(-1, shape.in_channels, shape.height, shape.width)
    patches = F.unfold(images, shape.kernel, padding=shape.kernel // 2)
    return torch.bmm(full[0].double().flatten(2), patches.transpose(1, 2)).flatten(1).square().sum(dim=1)


def test_no_record_is_taken_for_shorter_than_it_is_where_squares_underflow():
    """||delta|| = 2e-23, of which the square is 0 in float32, times ||h|| = 1e19."""
    delta, h = torch.full((1, 2, 4), 1e-23), torch.full((1, 2, 4), 5e18)
    dense = Dense(DenseShape(4, 4))
    exact = dense.squared_norms(delta.double(), h.double())
    assert exact.min() > 1e-8 and (dense.squared_norms(delta, h) >= exact).all()
    for by_gram in (False, True):
        layer = Conv(ConvShape(1, 4, 4, 2, 3))
        layer.by_gram = by_gram
        delta, h = torch.full((1, 2, 2, 2, 2), 1e-23), torch.full((1, 2, 16), 1e18)
        _, layer.places = pool(torch.zeros(1, 2, 2, 4, 4))
        exact = exact_squares(layer, unpool(delta, layer.places, 4, 4), h)
        assert exact.min() > 1e-9 and (layer.squared_norms(delta.flatten(2), h)[0, :, 0] >= exact).all()
    # What underflow may lose changes no bit of an ordinary norm.
    delta, h = (torch.randn(1, 64, n, generator=torch.Generator().manual_seed(0)) for n in (10, 784))
    for scale in (1.0, 1e-10):
        plain = (scale * delta).square().sum(-1, keepdim=True) * (h.square().sum(-1, keepdim=True) + 1)
        assert torch.equal(dense.squared_norms(scale * delta, h), plain)


@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-4])
def test_no_record_is_taken_for_shorter_than_it_is_where_positions_cancel(noise):
    """Equal patches but for noise, with deltas that add up to zero: in float32, what is left is below rounding."""
    layer, generator = Conv(ConvShape(16, 8, 8, 16, 5)), torch.Generator().manual_seed(0)
    assert layer.by_gram
    h = torch.randn(1, 500, 16, 1, generator=generator).expand(-1, -1, -1, 64).flatten(2)
    h = h + noise * torch.randn(h.shape, generator=generator)
    _, layer.places = pool(torch.zeros(1, 500, 16, 8, 8))
    delta = torch.zeros(1, 500, 16, 4, 4)
    delta[..., 1:3, 1] = torch.randn(1, 500, 16, 2, generator=generator)
    delta[..., 1:3, 2] = -delta[..., 1:3, 1]
    exact = exact_squares(layer, unpool(delta, layer.places, 8, 8), h)
    assert (layer.squared_norms(delta.flatten(2), h)[0, :, 0] >= exact * (1 - 1e-5)).all()


@pytest.mark.parametrize("residual", [1e-5, 1e-6, 1e-7, 0.0])
@pytest.mark.parametrize("shape", [ConvShape(1, 28, 28, 16, 5), ConvShape(3, 16, 16, 64, 5),
                                   ConvShape(16, 8, 8, 16, 5)])
def test_what_is_summed_of_a_clipped_record_stays_within_the_bound_where_positions_cancel(shape, residual):
    """Flat images with deltas that add up to nearly zero, clipped to C = 1: the sum as it is computed, not as it is."""
    layer, generator, m = Conv(shape), torch.Generator().manual_seed(0), 6
    flat = torch.rand(1, m, shape.in_channels, 1, 1, generator=generator) + 0.5
    h = flat.expand(-1, -1, -1, shape.height, shape.width).reshape(1, m, -1).clone()
    weight = 0.1 * torch.randn(1, shape.out_channels, math.prod(shape.weight_shape[1:]), generator=generator)
    layer.forward(h, weight, torch.zeros(1, shape.out_channels))
    mask = torch.zeros(shape.pooled[1:])
    edge = 2 if shape.height > 8 else 1
    mask[edge:-edge, edge:-edge] = 1
    delta = torch.randn(1, m, *shape.pooled, generator=generator, dtype=torch.float64) * mask
    delta = delta - mask * delta.sum((-1, -2), keepdim=True) / mask.sum()
    delta += residual * mask * torch.randn(1, m, shape.out_channels, 1, 1, generator=generator)
    delta = (1e6 * delta).float().reshape(1, m, -1)
    clipped = delta * (1 / layer.squared_norms(delta, h).sqrt()).clamp(max=1)
    for i in range(m):
        alone = torch.zeros_like(clipped)
        alone[:, i] = clipped[:, i]
        out = torch.zeros_like(weight), torch.zeros(1, shape.out_channels)
        layer.write_sum(alone, h, *out)
        assert sum(x.double().square().sum() for x in out).sqrt() <= 1 + 1e-5


def test_bfloat16_convolutions_round_factors_and_results_only():
    layer, h, weight, bias, delta = drawn(SHAPES[1], dtype=torch.float32)
    rounded = Conv(SHAPES[1], torch.bfloat16)
    for ours, exact in ((rounded.forward(h, weight, bias), layer.forward(h, weight, bias)),
                        (rounded.back(delta, weight), layer.back(delta, weight))):
        assert ours.dtype == torch.float32
        assert 1e-4 < (ours - exact).norm() / exact.norm() < 0.01


# --- trials with convolutions: bounds that no record exceeds, certificates, packs, and the real training loop

CPU = torch.device("cpu")
PLAIN = TrialConfig(dataset="digits", network="convnet", channels=(4, 6), kernel=3, hidden=(16,), algorithm="hybrid",
                    batch_size=32, epochs=2, learning_rate=0.1, feedback_std=0.3)
CLIPPED = dataclasses.replace(PLAIN, mechanism="per_example", clipping_norm=0.5)
PARTS = dataclasses.replace(PLAIN, mechanism="component", target_norm=1.5, tau_e=0.4)
MECHANISMS = {"none": PLAIN, "per_example": CLIPPED, "component": PARTS}


def of(config, algorithm, **changes):
    return dataclasses.replace(config, algorithm=algorithm, projector="", **changes)


@pytest.mark.parametrize(("algorithm", "mechanism"), [
    *((algorithm, "per_example") for algorithm in ("bp", "dfa", "tdfa", "pdfa")),
    *(("hybrid", mechanism) for mechanism in MECHANISMS)])
def test_every_algorithm_and_mechanism_trains_every_layer(algorithm, mechanism, digits, tmp_path):
    config = of(MECHANISMS[mechanism], algorithm, train_records=320, noise_multiplier=0.5 * (mechanism != "none"))
    start = make_network(config, [config.seed]).parameters
    first, last = train(Pack((config,)), digits)
    assert last.outcome.status == "finished"
    assert {f"alignment/layer_{k}" for k in (1, 2, 3, 4)} <= set(first.metrics)
    assert ("epsilon/certified/gdp" in last.metrics) == (mechanism != "none")
    for k, shape in enumerate([(4, 1, 3, 3), (6, 4, 3, 3), (16, 24), (10, 16)]):
        weight = last.outcome.weights[f"layer_{k + 1}.weight"]
        assert weight.shape == shape
        assert not np.array_equal(weight.ravel(), start.weights[k][0].flatten().numpy())
    write_artifacts(tmp_path, config, last.outcome)
    assert (tmp_path / "weights.safetensors").stat().st_size > 4 * sum(w.size for w in last.outcome.weights.values())


def test_row_space_attack_is_for_fully_connected_layers_and_needs_held_out_records(digits):
    config = dataclasses.replace(PLAIN, batch_size=8)
    assert row_space_audit(config, digits, layer=3).auc > 0.99
    with pytest.raises(ValueError, match="layer: must be fully connected .* got 2"):
        row_space_audit(config, digits, layer=2)
    with pytest.raises(ValueError, match="validation_fraction: must be > 0"):
        row_space_audit(dataclasses.replace(config, validation_fraction=0), digits, layer=3)


def test_a_subset_of_training_records_is_split_like_all_of_them(digits):
    config = dataclasses.replace(PLAIN, train_records=400, seed=3)
    training = Training(Pack((config,)), digits, CPU)
    trained = {i for _ in range(12) for i in training.sampler.epoch().flatten().tolist()}
    held_out = set(training.validation[0].tolist())
    assert (len(trained), len(held_out)) == (360, 40) and not trained & held_out
    event = event_of(dataclasses.replace(config, mechanism="per_example", sampler="poisson", noise_multiplier=1.0), 1)
    assert event.sampling_rate == 32 / 360 and event.steps == 11
    whole = dataclasses.replace(PLAIN, validation_fraction=0, train_records=640)
    training = Training(Pack((whole, dataclasses.replace(whole, seed=1))), digits, CPU)
    first, second = (set(training.sampler.epoch()[:, r].flatten().tolist()) for r in (0, 1))
    assert len(first) == len(second) == 640 and first != second
    assert "validation_fraction 0" in mismatch("figure2", sweep_of([of(whole, "bp")]))
