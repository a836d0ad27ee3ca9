"""Features that are responses to patches of synthetic images, or activations of an encoder trained on such images."""

from dataclasses import replace

import pytest
import torch
import train as module
from mapped import BESIDE, ENCODER, JOINT, PATCHES, mapped
from safetensors.torch import save_file
from train import convolutions, encoder_weights, folded

from pipeline.learning.data.dataset import DataError
from pipeline.learning.data.maps import patches
from pipeline.learning.data.maps.dead_leaves import dead_leaves
from pipeline.learning.data.maps.encoder import EncoderMap
from pipeline.learning.data.maps.patches import IMAGES, LEAST_CONTRAST, LEAST_VARIANCE, PatchMap, filters


def all_patches(images, side):
    """Patches [n, places, channels side^2], by slices."""
    places = range(images.shape[-1] - side + 1)
    return torch.stack([images[..., i:i + side, j:j + side].flatten(1) for i in places for j in places], dim=1)


def normalised(patches):
    patches = patches - patches.mean(-1, keepdim=True)
    return patches / (patches.var(-1, keepdim=True) + LEAST_CONTRAST).sqrt()


def directions(vectors):
    return torch.nn.functional.normalize(vectors, dim=1)


@pytest.mark.parametrize(("channels", "size", "side", "pools"), [(1, 8, 3, 2), (3, 9, 4, 3), (1, 10, 5, 1)])
def test_features_are_soft_thresholds_of_products_averaged_over_pools(channels, size, side, pools, monkeypatch):
    images = torch.rand(5, channels, size, size, generator=torch.Generator().manual_seed(4))
    n, threshold = 7, 0.8
    weights, offsets = filters(channels, size, n, side)
    z = normalised(all_patches(images, side)) @ weights.flatten(1).T + offsets  # [5, places, n]
    places = size - side + 1
    expected = torch.cat([(z - threshold).relu(), (-z - threshold).relu()], dim=-1).transpose(1, 2)
    expected = expected.unflatten(-1, (pools, places // pools, pools, places // pools)).mean((-3, -1))
    apply = PatchMap(channels, size, n, side, threshold, pools)
    found = apply(images)
    assert found.shape == (5, 2 * n, pools, pools)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert (found > 0).float().mean() > 0.1
    monkeypatch.setattr(patches, "CHUNK_ELEMENTS", {"cpu": 2 * n * places**2})  # two images at a time
    torch.testing.assert_close(apply(images), found, atol=1e-6, rtol=1e-5)


def test_pools_overlap_where_places_cannot_be_divided_among_them():
    images = torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(4))  # 5 places in a row
    fine, coarse = PatchMap(1, 7, 3, 3, 0.5, 5)(images), PatchMap(1, 7, 3, 3, 0.5, 2)(images)
    for i, rows in enumerate((slice(0, 3), slice(2, 5))):
        for j, columns in enumerate((slice(0, 3), slice(2, 5))):
            torch.testing.assert_close(coarse[..., i, j], fine[..., rows, columns].mean((-2, -1)))


def test_products_are_those_of_whitened_patches_whatever_their_mean():
    generator = torch.Generator().manual_seed(5)
    mixing = torch.randn(9, 9, generator=generator).double()
    drawn = torch.randn(4000, 9, generator=generator).double() @ mixing
    drawn -= drawn.mean(1, keepdim=True)
    drawn += torch.linspace(-2, 2, 9).double()  # a mean far from 0
    mean, covariance = drawn.mean(0), torch.cov(drawn.T)
    weights, offsets = patches.folded(drawn[:5], mean, covariance)
    regular = covariance + LEAST_VARIANCE * torch.eye(9).double()
    inner = (drawn - mean) @ torch.linalg.inv(regular) @ (drawn[:5] - mean).T  # w(q)^T w(p) for every q
    lengths = inner[:5].diagonal().sqrt()
    torch.testing.assert_close(drawn @ weights.T + offsets, inner / lengths)


def test_faint_patches_of_bright_images_have_the_contrast_that_they_have():
    faint = torch.randint(0, 2, (4, 1, 9, 9), generator=torch.Generator().manual_seed(6)) / 255
    apply = PatchMap(1, 9, 6, 4, 0.0, 6)
    torch.testing.assert_close(apply(faint + 250 / 255), apply(faint), atol=2e-4, rtol=0)
    assert (apply(faint) - apply(faint * 0)).abs().max() > 0.1


def test_filters_are_patches_of_dead_leaves_whitened_by_their_covariance():
    size, side, n = 12, 4, 40
    weights, offsets = filters(1, size, n, side)
    drawn = normalised(all_patches(dead_leaves(IMAGES, 1, size), side)).flatten(0, 1).double()
    mean, covariance = drawn.mean(0), torch.cov(drawn.T)
    z = drawn @ weights.flatten(1).T.double() + offsets
    assert z.mean(0).abs().max() < 0.05
    # Whitened patches have variance 1 along every unit vector but for what is added to the least of them.
    assert 0.6 < z.var(0).min() and z.var(0).max() < 1.05
    plain = drawn @ directions(weights.flatten(1).double()).T
    assert plain.var(0).max() > 2 * plain.var(0).min(), "without whitening, smooth filters respond more"
    # A filter is w(p) S^-1/2 for a patch p of length 1: back through S^1/2 twice it has the direction of p.
    assert weights.flatten(1).sum(1).abs().max() < 1e-4
    back = weights.flatten(1).double() @ (covariance + LEAST_VARIANCE * torch.eye(side**2))
    assert (directions(back) @ directions(drawn - mean).T).max(1).values.min() > 0.999
    many, _ = filters(1, size, 400, size)
    alike = directions(many.flatten(1))
    assert (alike @ alike.T - 2 * torch.eye(400)).max() < 1 - 1e-5, "the same patch twice"
    assert torch.equal(filters(1, size, n, side)[0], weights)
    with pytest.raises(DataError, match=f"patch_filters: must be at most the .* different patches of size {size} that "
                                        "are drawn from synthetic images of size 12, got 1001"):
        filters(1, size, 1001, size)


# an encoder

def test_seed_and_code_give_the_weights_of_the_encoder(monkeypatch):
    for name, value in (("CLASSES", 4), ("BATCH", 16)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("objects.dead_leaves", lambda n, channels, size: torch.rand(n, channels, size, size))
    found, same, other = encoder_weights(3, 4), encoder_weights(3, 4), encoder_weights(4, 4)
    assert {name: tuple(weight.shape) for name, weight in found.items()} == {
        "weight1": (48, 3, 5, 5), "bias1": (48,), "weight2": (96, 48, 3, 3), "bias2": (96,), "weight3": (192, 96, 3, 3),
        "bias3": (192,)}
    assert all(torch.equal(found[name], same[name]) for name in found)
    assert not any(torch.equal(found[name], other[name]) for name in found)


@pytest.mark.parametrize("size", [8, 28])
def test_features_are_activations_of_the_trained_layers_averaged_over_pools(tmp_path, size):
    torch.manual_seed(2)
    layers = convolutions()
    for _, norm, _ in layers:
        for values, low in ((norm.running_mean, -0.5), (norm.running_var, 0.5), (norm.weight.data, 0.5),
                            (norm.bias.data, -0.5)):
            values.uniform_(low, low + 1)
    layers.eval()
    save_file(folded(layers), tmp_path / "weights.safetensors")
    images = torch.rand(70, 3, size, size)
    with torch.no_grad():
        first = layers[0]((images - 0.5) / 0.25)
        second = layers[1](torch.nn.functional.max_pool2d(first, 2))
        third = layers[2](torch.nn.functional.avg_pool2d(second, 2))
    expected = torch.cat([torch.nn.functional.adaptive_avg_pool2d(maps, 2) for maps in (second, third)], dim=1)
    encoder = EncoderMap(2, path=tmp_path / "weights.safetensors")
    torch.testing.assert_close(encoder(images), expected, atol=5e-3, rtol=5e-3)
    grey = images[:3, :1]
    assert torch.equal(encoder(grey), encoder(grey.expand(-1, 3, -1, -1)))


# beside patches

def test_an_encoder_may_stand_beside_patches(cached):
    alone, records = replace(PATCHES, patch_filters=6, feature_groups=0), cached.train_x[:20]
    apart = torch.cat([mapped(cached, trial, records) for trial in (alone, replace(ENCODER, feature_groups=0))], dim=1)
    found = mapped(cached, alone, records, patch_beside="encoder")
    close = torch.isclose(found, apart, atol=2e-2, rtol=2**-6)  # faint channels are divided by a share of the median
    assert close.float().mean() > 0.9


@pytest.mark.parametrize(("changes", "alone"), [
    ({}, ["encoder"]), ({"beside_weight": 2.0, **BESIDE}, ["scattering"]), (BESIDE, ["encoder", "scattering"])],
    ids=["encoder", "scattering", "both"])
def test_features_beside_patches_have_their_pools_and_their_weight(changes, alone, cached):
    joint, records = replace(JOINT, patch_beside="_and_".join(alone), **changes), cached.train_x[:20]
    references = {"scattering": {"feature_reference": "dead_leaves"}}
    together = mapped(cached, joint, records).float()
    apart = [mapped(cached, joint, records, beside_weight=0.0, patch_beside="none", features=name,
                    **references.get(name, {})).float() for name in ("patches", *alone)]
    widths = [part.shape[1] for part in apart]
    assert together.shape == (20, *joint.parts.features.shape(joint)) == (20, sum(widths)) and widths[0] == 12 * 9
    parts = together.split(widths, dim=1)
    assert all(torch.nn.functional.cosine_similarity(*pair).min() > 0.9999 for pair in zip(parts, apart, strict=True))
    for part in parts[1:]:
        ratio = part.norm(dim=1) / parts[0].norm(dim=1)
        torch.testing.assert_close(ratio, torch.full((20,), joint.beside_weight), rtol=0.01, atol=0)
    torch.testing.assert_close(together.square().mean(1), torch.ones(20), rtol=0.02, atol=0)
