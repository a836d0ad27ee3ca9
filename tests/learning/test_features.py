"""Maps of single records: scattering, and what all maps share: keys, notes, caches, powers, mirror images, groups."""

import hashlib
import math
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from approved import approved
from flat import train
from mapped import BESIDE, ENCODER, JOINT, PATCHES, PRIVATE, SCATTERING, SMALL, leaves, mapped, mirrored
from safetensors.torch import save_file
from scipy.linalg import fractional_matrix_power

from pipeline.accounting import privacy_tags
from pipeline.experiment.experiment import parse_experiment
from pipeline.learning.data.dataset import DataError, Dataset, load
from pipeline.learning.data.inputs import largest_sizes
from pipeline.learning.data.maps import computed as maps
from pipeline.learning.data.maps import registered as computing
from pipeline.learning.data.maps.dead_leaves import LEAST_DEVIATION, LEAST_SHARE, REFERENCES, standardised
from pipeline.learning.data.maps.encoder import WEIGHTS
from pipeline.learning.data.maps.patches import PatchMap
from pipeline.learning.data.maps.registered import MAPS, register_features
from pipeline.learning.data.maps.scattering import scattering
from pipeline.sweep.dry_run import as_lines, preview
from pipeline.trials.config import TrialConfig
from pipeline.trials.datasets import DATASETS
from pipeline.trials.fields import setting
from pipeline.trials.naming import computed_features
from pipeline.trials.packs import Pack
from pipeline.trials.part import PARTS

# Images of Fashion-MNIST and CIFAR-10, and their coefficients by kymatio 0.3 (`Scattering2D`, float32).
REFERENCE = {name: torch.from_numpy(array) for name, array in np.load(
    Path(__file__).parents[1] / "data" / "scattering.npz").items()}
BOTH = replace(JOINT, patch_beside="encoder_and_scattering", **BESIDE)


# scattering

@pytest.mark.parametrize(("images", "expected", "scales"), [
    ("fashion_x", "fashion_J2_L8", 2), ("fashion_x", "fashion_J3_L8", 3), ("cifar_x", "cifar_J2_L8", 2)])
def test_coefficients_are_kymatios(images, expected, scales):
    x = REFERENCE[images].view(-1, *REFERENCE[images].shape[-2:])
    errors = [(scattering(x + shift, scales).view_as(REFERENCE[expected]) - REFERENCE[expected]).abs().max()
              for shift in (0, 1e-3)]
    assert errors[0] < 1e-5 and errors[1] > 1e-4


def test_scattering_takes_each_colour_by_itself():
    pixels = (REFERENCE["cifar_x"] * 255).round().to(torch.uint8).flatten(1)
    data = Dataset(DATASETS["cifar10"].spec, pixels, torch.zeros(3), pixels, torch.zeros(3))
    trial = TrialConfig(dataset="cifar10", features="scattering", feature_groups=0)
    found, expected = mapped(data, trial, pixels), REFERENCE["cifar_J2_L8"]  # [image, colour, 81, 8, 8]
    assert (found.view(expected.shape) - expected).abs().max() < 2**-8
    assert (expected[:, 0] - expected[:, 1]).abs().max() > 0.05
    of_mirrored = mapped(data, trial, pixels.view(3, 3, 32, 32).flip(3).flatten(1))  # colours keep their places
    both = mapped(data, trial, pixels, feature_mirrored=True)
    assert torch.allclose(both, (found + of_mirrored) / 2, atol=2**-8, rtol=2**-7)
    groups = mapped(data, trial, pixels, feature_groups=3)  # one for each colour
    assert groups.view(3, 3, -1).mean(-1).abs().max() < 1e-2


def test_features_are_normalised_in_groups(cached):
    records = cached.train_x[:200]
    coefficients = scattering(records.view(200, 8, 8) / 16, 1)
    groups = coefficients.view(200, 3, -1)
    mean, variance = groups.mean(-1, keepdim=True), groups.var(-1, correction=0, keepdim=True)
    expected = ((groups - mean) / (variance + maps.LEAST_VARIANCE).sqrt()).flatten(1).double()
    assert torch.allclose(mapped(cached, SCATTERING, records), expected, rtol=2**-8, atol=1e-3)
    plain = mapped(cached, SCATTERING, records, feature_groups=0)
    assert torch.allclose(plain, coefficients.flatten(1).double(), rtol=2**-8)


# what all maps share

@pytest.mark.parametrize(("trial", "shape"), [
    (SCATTERING, (9, 4, 4)), (replace(SCATTERING, scattering_scales=2, feature_groups=27), (81, 2, 2)),
    (TrialConfig(features="scattering"), (81, 7, 7)),
    (TrialConfig(features="scattering", scattering_scales=3, feature_groups=7), (217, 3, 3)),
    (TrialConfig(dataset="cifar10", features="scattering"), (243, 8, 8)), (TrialConfig(), (1, 28, 28)),
    (PATCHES, (24, 2, 2)), (TrialConfig(features="patches"), (128, 6, 6)),
    (TrialConfig(dataset="cifar10", features="patches", patch_filters=400, patch_pools=3), (800, 3, 3)),
    (ENCODER, (288, 2, 2)), (replace(JOINT, patch_pools=2, beside_weight=0.0), (12 + 288, 2, 2)),
    (JOINT, (12 * 9 + 288 * 4,))])
def test_shapes_are_known_without_computing_and_features_are_of_one_record_alone(trial, shape, cached):
    assert trial.parts.features.shape(trial) == shape and trial.layer_sizes[0] == np.prod(shape)
    if trial.dataset == "digits":
        some = mapped(cached, trial, cached.train_x[:50])
        assert some.shape == (50, np.prod(shape))
        alone = torch.cat([mapped(cached, trial, cached.train_x[k:k + 1]) for k in (0, 49)])
        torch.testing.assert_close(some[[0, 49]], alone, atol=2e-2 if trial.features != "scattering" else 0, rtol=2**-6)


@pytest.mark.parametrize(("trial", "changes"), [
    (SCATTERING, [{"scattering_angles": 4, "feature_groups": 5}, {"feature_groups": 9}, {"features": "pixels"},
                  {"feature_reference": "dead_leaves"}, {"feature_mirrored": True}, {"feature_power": 0.5},
                  {"feature_reference": "dead_leaves", "feature_mirrored": True},
                  {"feature_reference": "dead_leaves", "feature_decorrelation": 0.5}]),
    (PATCHES, [{"patch_filters": 13}, {"patch_size": 4}, {"patch_threshold": 0.5}, {"patch_pools": 3},
               {"feature_groups": 2}, {"features": "pixels"}, {"feature_mirrored": True}, {"feature_power": 0.5},
               {"feature_power": 0.5, "feature_mirrored": True}, {"feature_decorrelation": 0.5},
               {"feature_decorrelation": 0.25}, {"patch_beside": "encoder"},
               {"patch_beside": "encoder", "feature_mirrored": True}]),
    (ENCODER, [{"encoder_pools": 1}, {"feature_groups": 2}, {"feature_mirrored": True}, {"feature_power": 0.5},
               {"feature_decorrelation": 0.5}, {"features": "patches", "patch_size": 3}]),
    (JOINT, [{"beside_weight": 0.0, "patch_beside": "none"}, {"beside_weight": 0.0, "patch_pools": 2},
             {"beside_weight": 0.7}, {"encoder_pools": 1}])], ids=["scattering", "patches", "encoder", "beside"])
def test_every_setting_is_in_the_key_and_in_that_of_the_cache(trial, changes):
    trials = [trial, *(replace(trial, **change) for change in changes)]
    assert len({trial.trial_key for trial in trials}) == len(trials)
    assert len({trial.parts.features.key(trial) for trial in trials}) == len(trials)
    assert trial.parts.features.key(replace(trial, seed=3, hidden=(8,))) == trial.parts.features.key(trial)


@pytest.mark.parametrize(("trial", "absent"), [
    (TrialConfig(), {"feature_groups", "feature_power", "patch_beside"}), (SCATTERING, {"inputs", "patch_filters"}),
    (PATCHES, {"inputs", "beside_weight", "encoder_pools", "scattering_scales"})])
def test_what_a_map_does_not_use_is_not_in_its_key(trial, absent):
    assert not absent & trial.canonical().keys()


def test_keys_and_caches_are_what_they_were():
    trial = replace(SCATTERING, epochs=2)
    assert trial.trial_key == "157ca5a5768aca90"
    assert maps._digest(load("digits"), trial) == "0a33f0dc61864891d33091964ee8caed"
    assert TrialConfig(features="scattering").canonical()["feature_groups"] == 27
    assert replace(SCATTERING, feature_reference="dead_leaves", feature_groups=-1).feature_groups == 1
    assert PATCHES == replace(PATCHES, feature_power=1.0) and PATCHES.trial_key == "f9e9ed769832d8d4"
    assert PATCHES.parts.features.key(PATCHES) == (
        "patches", ("patch_filters", 12), ("patch_size", 3), ("patch_threshold", 1.0), ("patch_pools", 2),
        ("patch_beside", "none"), ("feature_groups", 1), ("feature_mirrored", False), ("feature_power", 1.0),
        ("feature_decorrelation", 0.0))
    assert {"encoder_pools", "scattering_scales", "beside_weight"} < set(BOTH.canonical())
    assert ENCODER.feature_groups == 1
    assert WEIGHTS.stat().st_size < 2_000_000
    assert hashlib.sha256(WEIGHTS.read_bytes()).hexdigest() == (
        "7d525202db0cfa93b051221603c3ebbaafc13219e9a87449119197fa247c300a")


OF_LEAVES = {"feature_reference": "dead_leaves"}
NOTED = [(SCATTERING, {}), (SCATTERING, {"feature_mirrored": True}), (SCATTERING, OF_LEAVES),
         (SCATTERING, {**OF_LEAVES, "feature_decorrelation": 0.5}), (PATCHES, {}),
         (PATCHES, {"feature_decorrelation": 0.5}), (PATCHES, {"feature_power": 0.5, "feature_mirrored": True}),
         (ENCODER, {}), (PATCHES, {"patch_beside": "encoder"}), (JOINT, {}),
         (JOINT, {"patch_beside": "scattering", "beside_weight": 2.0, **BESIDE}), (BOTH, {})]


def test_the_notes_say_why_features_are_public():
    text = []
    for trial, changes in NOTED:
        trial = replace(trial, **changes, **PRIVATE)
        said = privacy_tags(trial)["privacy.notes"].rpartition("; inputs are")
        assert said[0] == privacy_tags(TrialConfig(**SMALL, **PRIVATE))["privacy.notes"]
        text += ["# " + trial.features + "".join(f" {name}={value}" for name, value in changes.items()),
                 *textwrap.wrap("".join(said[1:])[2:], 118), ""]
    approved("feature_notes", "\n".join(text))


def test_channels_are_standardised_over_public_images(cached):
    by_leaves = replace(SCATTERING, feature_reference="dead_leaves", feature_groups=0)
    found = mapped(cached, by_leaves, leaves()).view(-1, 9, 16)
    assert found.mean((0, 2)).abs().max() < 5e-3 and (found.std((0, 2)) - 1).abs().max() < 5e-3
    of_digits = mapped(cached, by_leaves, cached.train_x[:300]).view(-1, 9, 16)
    assert of_digits.mean((0, 2)).abs().max() > 0.3, "nothing is measured on the records"
    records = cached.train_x[:50]
    assert torch.equal(mapped(cached, PATCHES, records), mapped(
        cached, PATCHES, records, feature_reference="dead_leaves")), "patches have theirs anyway"
    with pytest.raises(DataError, match="most of the 24 channels are constant on synthetic images, .* lower patch_"):
        mapped(cached, PATCHES, records, patch_threshold=100.0)


def test_a_channel_that_hardly_varies_on_synthetic_images_does_not_drown_the_others(cached):
    def apply(records):
        last = 0.0 if len(records) > 9 else 1.0  # of synthetic images, and of records
        return records.float()[:, :9].view(-1, 9, 1) * torch.tensor([1.0] * 8 + [last]).view(9, 1)

    found = standardised(apply, cached.spec, torch.device("cpu"), REFERENCES)(cached.train_x[:9])
    deviations = leaves()[:, :8].double().std(0, correction=0).sort().values
    torch.testing.assert_close(found[:, 8, 0].double(), cached.train_x[:9, 8] / (LEAST_DEVIATION * deviations[3]),
                               rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trial", [SCATTERING, replace(SCATTERING, feature_reference="dead_leaves"), PATCHES],
                         ids=["scattering", "standardised", "patches"])
def test_features_may_be_the_mean_of_those_of_an_image_and_of_its_mirror_image(cached, trial):
    trial, records = replace(trial, feature_groups=0), cached.train_x[:40]
    both = replace(trial, feature_mirrored=True)
    found = mapped(cached, both, records)
    assert torch.equal(found, mapped(cached, both, mirrored(records))), "left and right make no difference"
    parts = [mapped(cached, trial, x) for x in (records, mirrored(records))]
    assert not torch.allclose(*parts, atol=0.1)
    torch.testing.assert_close(found, (parts[0] + parts[1]) / 2, atol=2e-2, rtol=2**-6)
    grouped = mapped(cached, both, records, feature_groups=1)
    assert grouped.mean(1).abs().max() < 1e-2 and (grouped.std(1) - 1).abs().max() < 2e-2


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_responses_are_raised_to_a_power_before_channels_are_standardised(cached, power):
    trial, records = replace(PATCHES, feature_power=power, feature_groups=0), cached.train_x[:50]
    raised, reference = (PatchMap(1, 8, 12, 3, 1.0, 2)(images.view(-1, 1, 8, 8) / 16).double() ** power
                         for images in (records, leaves()))
    mean, deviation = (of(reference, (0, 2, 3), keepdim=True) for of in (torch.mean, torch.std))
    found = mapped(cached, trial, records)
    torch.testing.assert_close(found, ((raised - mean) / deviation).flatten(1), rtol=2**-7, atol=2e-3)
    assert (found - mapped(cached, trial, records, feature_power=1.0)).abs().max() > 0.2
    both = (found + mapped(cached, trial, mirrored(records))) / 2
    torch.testing.assert_close(mapped(cached, trial, records, feature_mirrored=True), both, atol=2e-2, rtol=2**-6)


@pytest.mark.parametrize(("mirror", "degree"), [(False, 0.5), (True, 1.0)])
def test_channels_are_decorrelated_by_their_covariance_over_synthetic_images(cached, degree, mirror):
    plain, records = replace(PATCHES, feature_groups=0, feature_mirrored=mirror), cached.train_x[:30]
    trial = replace(plain, feature_decorrelation=degree)
    reference, of_records, of_leaves, found = (mapped(cached, t, x).view(-1, 24, 4) for t in (plain, trial)
                                               for x in (leaves(), records))
    covariance, decorrelated = (np.cov(x.transpose(1, 2).reshape(-1, 24).T) for x in (reference, of_leaves))
    regular = covariance / np.trace(covariance) * 24 + LEAST_SHARE * np.eye(24)
    weights = torch.from_numpy(fractional_matrix_power(regular, -degree / 2))
    expected = torch.einsum("ij,njk->nik", weights, of_records - reference.mean((0, 2))[:, None])
    torch.testing.assert_close(found, expected, rtol=2**-5, atol=6e-2)
    spread, before = np.linalg.eigvalsh(decorrelated), np.linalg.eigvalsh(covariance)
    assert spread[-1] / spread[12] < 0.5 * before[-1] / before[12]


def test_features_are_computed_once_and_a_damaged_cache_anew(cached, tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(computing, "scattering", lambda *a: calls.append(a) or scattering(*a))
    reports = [(report.features, report.done, report.total) for report in maps.steps(cached, SCATTERING)]
    assert reports[0] == ("scattering of digits", 64, 1797) and reports[-1][1:] == (1797, 1797), "test records too"
    first = maps.features(cached, SCATTERING)
    n = len(calls)
    assert n > 0 and maps.features(cached, SCATTERING) is first and len(calls) == n
    assert not list(maps.steps(cached, SCATTERING)) and not list(maps.steps(load("digits"), SCATTERING))
    again = maps.features(load("digits"), SCATTERING)
    assert len(calls) == n and all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    (file,) = (tmp_path / "cache" / "features").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    for damaged in (bytes(content), bytes(content[:100])):
        file.write_bytes(damaged)
        assert all(torch.equal(a, b) for a, b in zip(first, maps.features(load("digits"), SCATTERING), strict=True))
        assert "computed anew" in capsys.readouterr().err
    assert len(calls) == 3 * n
    maps.features(load("digits"), replace(SCATTERING, feature_groups=9))
    assert len(calls) == 4 * n and len(list((tmp_path / "cache" / "features").glob("*.safetensors"))) == 2


def test_features_are_read_through_once_for_all_processes(cached, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(maps, "largest_sizes", lambda part: read.append(len(part)) or largest_sizes(part))
    parts = maps.features(cached, SCATTERING)
    for _ in range(2):
        data = load("digits")
        assert all(map(torch.equal, maps.features(data, SCATTERING), parts)) and read == [1437, 360]
        sizes = data.mapped[maps.key_of(SCATTERING)].sizes
        assert all(map(torch.equal, sizes, (part.abs().amax(1).float() for part in parts)))


def test_sizes_of_other_features_are_not_believed(cached, tmp_path, capsys):
    parts = maps.features(cached, SCATTERING)
    (stored,) = (tmp_path / "cache" / "features").glob("*.safetensors")
    parts[0][3, 1] = math.nan
    tensors = (*parts, *cached.mapped[maps.key_of(SCATTERING)].sizes)
    save_file(dict(zip(maps.TENSORS, tensors, strict=True)), stored, {"sha256": maps._checksum(parts)})
    assert maps.features(load("digits"), SCATTERING)[0].isfinite().all()
    assert "computed anew" in capsys.readouterr().err


def test_a_dry_run_tells_of_maps():
    text = "base: {dataset: digits, hidden: [8]}\ngrid: {features: [pixels, scattering]}\nreport: []"
    assert ("features: scattering of digits, computed before training or read from the cache, once for each setting, "
            "and not in the estimate") in list(as_lines(preview(parse_experiment(text, Path("e.yaml")), 1)))
    of_file = TrialConfig(dataset="digits", features="file", feature_name="any", feature_width=4, feature_source="any")
    assert computed_features([SCATTERING, of_file]) == ["scattering of digits"]


# an extension's

def tiles(records, trial):
    """Means over squares of `tile` x `tile` pixels."""
    return torch.nn.functional.avg_pool2d(records, trial.tile)


OF_TILES = dict(shape=lambda c: (1, 8 // c.tile, 8 // c.tile), public_because="means of fixed squares",
                settings={"tile": setting(2, "rows and columns of a square", low=1, high=8), "feature_mirrored": None,
                          "feature_power": None})


def test_an_extension_maps_records(cached, tmp_path, extensions):
    register_features("tiles", tiles, **OF_TILES)
    trial, records = TrialConfig(**SMALL, features="tiles"), cached.train_x[:9]
    expected = records.view(9, 4, 2, 4, 2).double().mean((2, 4)) / 16
    assert torch.allclose(mapped(cached, trial, records), expected.flatten(1), rtol=2**-8)
    both = ((expected + expected.flip(2)) / 2).flatten(1)
    assert torch.allclose(mapped(cached, trial, records, feature_mirrored=True), both, rtol=2**-8)
    assert "tile" not in SCATTERING.canonical()
    assert trial.layer_sizes[0] == 16 and trial.canonical()["tile"] == 2 and trial.canonical()["feature_groups"] == 0
    changes = ({}, {"tile": 4}, {"feature_mirrored": True}, {"feature_power": 0.5})
    assert len({replace(trial, **change).trial_key for change in changes}) == 4
    plain, changed = (privacy_tags(replace(trial, **PRIVATE, **change))["privacy.notes"]
                      for change in ({}, {"feature_mirrored": True, "feature_power": 0.5}))
    assert plain.endswith("inputs are features 'tiles', a map of each record alone that no private record had a part "
                          "in, which costs nothing, as the extension states: means of fixed squares")
    assert "'tiles' (to the power 0.5) of a record and its mirror image, a map of each" in changed
    assert list(train(Pack((trial,)), cached))[-1].metrics["test/accuracy"] > 0.4
    maps.features(cached, replace(trial, tile=4))
    assert len(list(tmp_path.rglob("features/*.safetensors"))) == 2


def test_flat_features_of_an_extension_keep_their_signs_and_are_decorrelated(cached, extensions):
    register_features("signed", lambda records, trial: records.flatten(1)[:, 24:40] - 0.5, shape=(16,),
                      public_because="pixels",
                      settings=dict.fromkeys(("feature_power", "feature_reference", "feature_decorrelation")))
    trial, records = TrialConfig(**SMALL, features="signed", feature_groups=0), cached.train_x[:9]
    expected = records[:, 24:40].double() / 16 - 0.5
    found = mapped(cached, trial, records, feature_power=0.5)
    torch.testing.assert_close(found, expected.sign() * expected.abs().sqrt(), rtol=2**-8, atol=1e-6)
    before, after = (torch.cov(mapped(cached, trial, leaves(), feature_reference="dead_leaves",
                                      feature_decorrelation=degree).T) for degree in (0.0, 1.0))
    expected = torch.linalg.solve(before + LEAST_SHARE * torch.eye(16, dtype=torch.float64), before)  # S (S + r)^-1
    torch.testing.assert_close(after, expected, atol=2e-2, rtol=0)


def test_a_cache_of_an_extension_is_that_of_its_code_and_a_notebook_has_none(cached, tmp_path, extensions):
    paths, function = [], "def tiles(records, trial): return records.flatten(1)[:, :16] * {}"
    for version in (1, 2, "a cell"):
        file = tmp_path / "version.py"  # as a module that was edited since
        file.write_text(function.format(3) if version == "a cell" else function.format(version))
        exec(compile(file.read_text(), version if version == "a cell" else str(file), "exec"),
             space := {"__name__": "version"})
        register_features("tiles", space["tiles"], **OF_TILES | {"shape": (16,)})
        trial = TrialConfig(**SMALL, features="tiles")
        if version != "a cell":
            paths.append(maps._digest(cached, trial))
            assert MAPS[PARTS["features"]["tiles"]].is_cached
    maps.features(cached, trial)
    assert paths[0] != paths[1] and not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(("function", "message"), [
    (lambda x, c: x.mean(0, keepdim=True), r"'tiles' must give floating point numbers of shape \(9, 1, 4, 4\), got"),
    (lambda x, c: tiles(x, c).int(), r"'tiles' must give floating point numbers .*, got torch.int32 of shape")])
def test_what_an_extension_gives_is_checked(cached, function, message, extensions):
    register_features("tiles", function, **OF_TILES)
    with pytest.raises(DataError, match="^features: " + message):
        mapped(cached, TrialConfig(**SMALL, features="tiles"), cached.train_x[:9])


def test_a_record_with_one_feature_that_is_not_finite_is_marked_as_a_whole():
    unusable = torch.ones(2, 3), torch.tensor([[1.0, 1.0], [math.nan, 1.0]])
    assert maps._side_by_side(unusable, [1.0, 2.0]).isfinite().all(1).tolist() == [True, False]
    assert maps._side_by_side(unusable, [1.0, 2.0])[1].isnan().all()
