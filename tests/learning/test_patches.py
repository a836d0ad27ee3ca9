"""Features that are responses to patches of synthetic images."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power

from pipeline.accounting import privacy_tags
from pipeline.learning.data import features as maps
from pipeline.learning.data import patches as module
from pipeline.learning.data.dataset import DataError
from pipeline.learning.data.dead_leaves import LEAST_DEVIATION, LEAST_SHARE, REFERENCES, dead_leaves, standardised
from pipeline.learning.data.patches import IMAGES, LEAST_CONTRAST, LEAST_VARIANCE, Patches, filters, folded
from pipeline.trials.config import ConfigError, TrialConfig

TRIAL = TrialConfig(dataset="digits", hidden=(16,), batch_size=64, epochs=3, input_norm=2.0, learning_rate=0.5,
                    features="patches", patch_filters=12, patch_size=3, patch_pools=2)


def all_patches(images, side):
    """Patches [n, places, channels side^2], by slices."""
    places = range(images.shape[-1] - side + 1)
    return torch.stack([images[..., i:i + side, j:j + side].flatten(1) for i in places for j in places], dim=1)


def normalised(patches):
    patches = patches - patches.mean(-1, keepdim=True)
    return patches / (patches.var(-1, keepdim=True) + LEAST_CONTRAST).sqrt()


@pytest.mark.parametrize(("channels", "size", "side", "pools"), [(1, 8, 3, 2), (3, 9, 4, 3), (1, 10, 5, 1)])
def test_features_are_soft_thresholds_of_products_averaged_over_pools(channels, size, side, pools, monkeypatch):
    images = torch.rand(5, channels, size, size, generator=torch.Generator().manual_seed(4))
    n, threshold = 7, 0.8
    weights, offsets = filters(channels, size, n, side)
    z = normalised(all_patches(images, side)) @ weights.flatten(1).T + offsets  # [5, places, n]
    places = size - side + 1
    expected = torch.cat([(z - threshold).relu(), (-z - threshold).relu()], dim=-1).transpose(1, 2)
    expected = expected.unflatten(-1, (pools, places // pools, pools, places // pools)).mean((-3, -1))
    found = Patches(channels, size, n, side, threshold, pools)(images)
    assert found.shape == (5, 2 * n, pools, pools)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert (found > 0).float().mean() > 0.1
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", {"cpu": 2 * n * places**2})  # two images at a time
    torch.testing.assert_close(Patches(channels, size, n, side, threshold, pools)(images), found, atol=1e-6, rtol=1e-5)


def test_pools_overlap_where_places_cannot_be_divided_among_them():
    images = torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(4))  # 5 places in a row
    fine, coarse = Patches(1, 7, 3, 3, 0.5, 5)(images), Patches(1, 7, 3, 3, 0.5, 2)(images)
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
    weights, offsets = folded(drawn[:5], mean, covariance)
    regular = covariance + LEAST_VARIANCE * torch.eye(9).double()
    inner = (drawn - mean) @ torch.linalg.inv(regular) @ (drawn[:5] - mean).T  # w(q)^T w(p) for every q
    lengths = inner[:5].diagonal().sqrt()
    torch.testing.assert_close(drawn @ weights.T + offsets, inner / lengths)


def test_faint_patches_of_bright_images_have_the_contrast_that_they_have():
    generator = torch.Generator().manual_seed(6)
    faint = torch.randint(0, 2, (4, 1, 9, 9), generator=generator) / 255
    maps = Patches(1, 9, 6, 4, 0.0, 6)
    torch.testing.assert_close(maps(faint + 250 / 255), maps(faint), atol=2e-4, rtol=0)
    assert (maps(faint) - maps(faint * 0)).abs().max() > 0.1


def test_filters_are_patches_of_dead_leaves_whitened_by_their_covariance():
    size, side, n = 12, 4, 40
    weights, offsets = filters(1, size, n, side)
    patches = normalised(all_patches(dead_leaves(IMAGES, 1, size), side)).flatten(0, 1).double()
    mean, covariance = patches.mean(0), torch.cov(patches.T)
    z = patches @ weights.flatten(1).T.double() + offsets
    assert z.mean(0).abs().max() < 0.05
    # Whitened patches have variance 1 along every unit vector but for what is added to the least of them.
    assert 0.6 < z.var(0).min() and z.var(0).max() < 1.05
    plain = patches @ torch.nn.functional.normalize(weights.flatten(1).double(), dim=1).T
    assert plain.var(0).max() > 2 * plain.var(0).min(), "without whitening, smooth filters respond more"
    # A filter is w(p) S^-1/2 for a patch p of length 1: back through S^1/2 twice it has the direction of p.
    assert weights.flatten(1).sum(1).abs().max() < 1e-4
    back = weights.flatten(1).double() @ (covariance + LEAST_VARIANCE * torch.eye(side**2))
    cosines = torch.nn.functional.normalize(back, dim=1) @ torch.nn.functional.normalize(patches - mean, dim=1).T
    assert cosines.max(1).values.min() > 0.999
    many, _ = filters(1, size, 400, size)
    alike = torch.nn.functional.normalize(many.flatten(1), dim=1)
    assert (alike @ alike.T - 2 * torch.eye(400)).max() < 1 - 1e-5, "the same patch twice"
    assert torch.equal(filters(1, size, n, side)[0], weights)
    with pytest.raises(DataError, match=f"patch_filters: must be at most the .* different patches of size {size} that "
                                        "are drawn from synthetic images of size 12, got 1001"):
        filters(1, size, 1001, size)


def test_a_threshold_that_nothing_reaches_is_refused(cached):
    with pytest.raises(DataError, match="most of the 24 channels are constant on synthetic images, .* lower patch_"):
        maps.compute((cached.train_x[:20],), cached, dataclasses.replace(TRIAL, patch_threshold=100.0))


def test_a_channel_that_hardly_varies_on_synthetic_images_does_not_drown_the_others(cached):
    def apply(records):
        last = 0.0 if len(records) > 9 else 1.0  # of synthetic images, and of records
        return records.float()[:, :9].view(-1, 9, 1) * torch.tensor([1.0] * 8 + [last]).view(9, 1)

    found = standardised(apply, cached.spec, torch.device("cpu"), REFERENCES)(cached.train_x[:9])
    leaves = (dead_leaves(REFERENCES, 1, 8) * 16).round().to(torch.uint8).flatten(1)[:, :8].double()
    torch.testing.assert_close(found[:, 8, 0].double(), cached.train_x[:9, 8] / (
        LEAST_DEVIATION * leaves.std(0, correction=0).sort().values[3]), rtol=1e-5, atol=1e-6)


def test_a_reference_that_the_map_does_not_use_changes_nothing(cached):
    (found,) = maps.compute((cached.train_x[:50],), cached, TRIAL)
    (other,) = maps.compute((cached.train_x[:50],), cached, dataclasses.replace(TRIAL, feature_reference="dead_leaves"))
    assert torch.equal(found, other)


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_responses_are_raised_to_a_power_before_channels_are_standardised(cached, power):
    trial = dataclasses.replace(TRIAL, feature_power=power, feature_groups=0)
    apply, records = Patches(1, 8, 12, 3, 1.0, 2), cached.train_x[:50]
    leaves = (dead_leaves(REFERENCES, 1, 8) * 16).round()
    raised, reference = (apply(images.view(-1, 1, 8, 8) / 16).double() ** power for images in (records.float(), leaves))
    mean, deviation = (of(reference, (0, 2, 3), keepdim=True) for of in (torch.mean, torch.std))
    expected = ((raised - mean) / deviation).flatten(1)
    (found,) = maps.compute((records,), cached, trial)
    torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=2e-3)
    (plain,) = maps.compute((records,), cached, dataclasses.replace(trial, feature_power=1.0))
    assert (found - plain).abs().max() > 0.2
    (of_mirrored,) = maps.compute((records.view(-1, 8, 8).flip(2).flatten(1),), cached, trial)
    (mirrored,) = maps.compute((records,), cached, dataclasses.replace(trial, feature_mirrored=True))
    torch.testing.assert_close(mirrored.float(), (found.float() + of_mirrored.float()) / 2, atol=2e-2, rtol=2**-6)


@pytest.mark.parametrize(("mirrored", "degree"), [(False, 0.5), (True, 1.0)])
def test_channels_are_decorrelated_by_their_covariance_over_synthetic_images(cached, degree, mirrored):
    plain = dataclasses.replace(TRIAL, feature_groups=0, feature_mirrored=mirrored)
    leaves = (dead_leaves(REFERENCES, 1, 8) * 16).round().to(torch.uint8).flatten(1)
    reference, records = (part.double().view(-1, 24, 4) for part in
                          maps.compute((leaves, cached.train_x[:30]), cached, plain))
    mean, covariance = reference.mean((0, 2)), np.cov(reference.transpose(1, 2).reshape(-1, 24).T)
    regular = covariance / np.trace(covariance) * 24 + LEAST_SHARE * np.eye(24)
    weights = torch.from_numpy(fractional_matrix_power(regular, -degree / 2))
    trial = dataclasses.replace(plain, feature_decorrelation=degree)
    of_leaves, found = (part.double().view(-1, 24, 4) for part in
                        maps.compute((leaves, cached.train_x[:30]), cached, trial))
    expected = torch.einsum("ij,njk->nik", weights, records - mean[:, None])
    torch.testing.assert_close(found, expected, rtol=2**-5, atol=6e-2)
    (as_one,) = maps.compute((cached.train_x[:1],), cached, trial)
    torch.testing.assert_close(as_one.double().view(24, 4), found[0])
    spread = np.linalg.eigvalsh(np.cov(of_leaves.transpose(1, 2).reshape(-1, 24).T))
    before = np.linalg.eigvalsh(covariance)
    assert spread[-1] / spread[12] < 0.5 * before[-1] / before[12]


def test_decorrelated_channels_are_few_and_standardised(cached):
    for features in ("scattering", "patches"):
        trial = dataclasses.replace(TRIAL, features=features, scattering_scales=1, feature_reference="dead_leaves",
                                    feature_decorrelation=0.5, mechanism="per_example", noise_multiplier=1.0)
        before = "whitened and standardised over these" if features == "patches" else "standardised over synthetic " \
                 "images of dead leaves"
        assert (f"{before}, channels decorrelated over these to the degree 0.5, a map of each"
                in privacy_tags(trial)["privacy.notes"])
        assert trial.trial_key != dataclasses.replace(trial, feature_decorrelation=0.25).trial_key
        (found,) = maps.compute((cached.train_x[:20],), cached, trial)
        assert found.float().mean(1).abs().max() < 1e-2 and (found.float().std(1) - 1).abs().max() < 3e-2
    with pytest.raises(ConfigError, match="feature_decorrelation: takes channels that are standardised .* got 0.5 with "
                                          "feature_reference 'none'; use 'dead_leaves', or 0"):
        dataclasses.replace(TRIAL, features="scattering", scattering_scales=1, feature_decorrelation=0.5)
    with pytest.raises(ConfigError, match="feature_decorrelation: takes at most 4,096 channels, got 0.5 with 4,098; "):
        dataclasses.replace(TRIAL, patch_filters=2049, feature_decorrelation=0.5)


def test_without_a_power_keys_and_caches_are_what_they_were():
    assert not {"feature_power", "feature_decorrelation"} & TRIAL.canonical().keys()
    assert TRIAL == dataclasses.replace(TRIAL, feature_power=1.0)
    assert TRIAL.parts.features.key(TRIAL) == ("patches", 12, 3, 1.0, 2, 1)
    assert TRIAL.trial_key == "76be12f79538b947"
    assert "feature_power" not in TrialConfig(features="optical", feature_power=0.5).canonical()


def test_the_notes_say_why_they_are_public_and_the_key_has_every_setting():
    private = dataclasses.replace(TRIAL, mechanism="per_example", sampler="poisson", noise_multiplier=1.0)
    because = "patches of synthetic images of dead leaves, whitened and standardised over these, a map of each record"
    assert because in privacy_tags(private)["privacy.notes"]
    changes = ({}, {"patch_filters": 13}, {"patch_size": 4}, {"patch_threshold": 0.5}, {"patch_pools": 3},
               {"feature_groups": 2}, {"features": "pixels"}, {"feature_mirrored": True}, {"feature_power": 0.5},
               {"feature_power": 0.5, "feature_mirrored": True}, {"feature_decorrelation": 0.5})
    trials = [dataclasses.replace(TRIAL, **change) for change in changes]
    assert len({trial.trial_key for trial in trials}) == len(trials) == 11
    assert len({trial.parts.features.key(trial) for trial in trials}) == 11
    both = privacy_tags(dataclasses.replace(private, feature_power=0.5, feature_mirrored=True))["privacy.notes"]
    assert "responses (to the power 0.5) of a record and its mirror image to patches of synthetic images" in both
    assert "patch_filters" not in TrialConfig(features="scattering").canonical()
