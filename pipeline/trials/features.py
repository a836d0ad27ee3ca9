"""What a network takes in: pixels, or a public map of each record, what shape that has and why it is public (no
torch). What computes the maps is in `pipeline.learning.data.features`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field
from typing import Any

from pipeline.trials.datasets import DATASETS
from pipeline.trials.feature_file import check_feature_file, known_of_file
from pipeline.trials.fields import ConfigError

CROPPED = 2  # rows and columns of scattering coefficients that stand for the padding, and are left out
MOST_FEATURES = 100_000  # of a record: 14 GB of 70,000
OPTICAL_DEVICES = ("simulated", "hardware")
FEATURE_REFERENCES = ("none", "dead_leaves")
OF_ONE_RECORD = "a map of each record alone that no private record had a part in, which costs nothing"


def _nothing(c: Any) -> None:
    return None


@dataclass(frozen=True)
class FeatureMap:
    """What the configuration knows of a map of single records; all functions take a `TrialConfig`.

    Attributes:
        shape: of one record's features, channels first.
        public_because: what the features are and why they cost no privacy, for `privacy.notes` after `inputs are`.
        settings: fields on which the features depend, in the order in which a cache is named by them.
        own: settings that an extension has for itself, by name.
        groups: in which the features are normalised where `feature_groups` does not say.
        check: raises a ConfigError for settings or a data set that it cannot be computed of.
    """

    shape: Callable[[Any], tuple[int, ...]]
    public_because: Callable[[Any], str]
    settings: Callable[[Any], tuple[str, ...]]
    own: Mapping[str, Field] = field(default_factory=dict)
    groups: int = 0
    check: Callable[[Any], None] = _nothing


def padded_size(size: int, scales: int) -> int:
    """Rows (columns) of an image that is padded for scattering of J scales: a multiple of 2^J above its own."""
    step = 2**scales
    return ((size + step) // step + 1) * step


def coefficients(scales: int, angles: int) -> int:
    """Scattering channels of one colour up to the second order: 1 + J L + L^2 J (J - 1)/2."""
    return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2


def record_shape(c: Any) -> tuple[int, ...]:
    """Shape of one record of a trial as its network takes it in, channels first."""
    return FEATURES[c.features].shape(c)


def map_settings(c: Any) -> tuple[str, ...]:
    """Names of the settings on which a trial's features depend."""
    chosen = FEATURES[c.features]
    return *chosen.settings(c), *(name for name in chosen.own if name not in chosen.settings(c))


def is_standardised(c: Any) -> bool:
    """Whether channels of the features are standardised over synthetic images, which the map's settings must name."""
    return c.feature_reference != "none" and "feature_reference" in map_settings(c)


def is_mirrored(c: Any) -> bool:
    """Whether features are those of a record and its mirror image, which the map's settings must name."""
    return c.feature_mirrored and "feature_mirrored" in map_settings(c)


def treatment(c: Any) -> str:
    """What is done to the features of any map, for notes."""
    both = " of a record and its mirror image" if is_mirrored(c) else ""
    return both + (", standardised over synthetic images of dead leaves" if is_standardised(c) else "")


def settled(c: Any) -> dict[str, Any]:
    """Fields of a trial whose values its map decides, or a file that it names.

    Raises:
        ConfigError: for a file of features that cannot be used.
    """
    values = known_of_file(c) if c.features == "file" else {}
    if c.features != "pixels" and c.feature_groups < 0:
        values["feature_groups"] = FEATURES[c.features].groups if c.feature_reference == "none" else 1
    return values


def check_features(c: Any) -> None:
    """Refuse maps that a data set has no room for, and networks that cannot take what a map gives.

    Raises:
        ConfigError: naming the field, its value and what would be accepted.
    """
    FEATURES[c.features].check(c)
    shape = record_shape(c)
    if c.network == "convnet" and len(shape) != 3:
        what = c.dataset if c.features == "pixels" else f"features '{c.features}'"
        raise ConfigError(f"network: convolutions take images (channels, rows, columns), and records of {what} have "
                          f"the shape {shape}, got 'convnet'; use 'mlp'")
    if c.features == "pixels" or not c.feature_groups:
        return
    if shape[0] % c.feature_groups:
        raise ConfigError(f"feature_groups: must divide the {shape[0]} channels of the features, got "
                          f"{c.feature_groups}; 0 normalises nothing")
    if math.prod(shape) == c.feature_groups:
        raise ConfigError(f"feature_groups: leaves groups of one value, which normalised are all 0, got "
                          f"{c.feature_groups}; 0 normalises nothing")


def _scattering_shape(c: Any) -> tuple[int, ...]:
    channels, *sizes = DATASETS[c.dataset].shape
    rows, columns = (padded_size(size, c.scattering_scales) // 2**c.scattering_scales - CROPPED for size in sizes)
    return channels * coefficients(c.scattering_scales, c.scattering_angles), rows, columns


def _scattering_settings(c: Any) -> tuple[str, ...]:
    fixed = ("scattering_scales", "scattering_angles", "feature_groups")
    return *fixed, *(("feature_reference",) if c.feature_reference != "none" else ()), *_mirroring(c)


def _patches_settings(c: Any) -> tuple[str, ...]:
    return "patch_filters", "patch_size", "patch_threshold", "patch_pools", "feature_groups", *_mirroring(c)


def _mirroring(c: Any) -> tuple[str, ...]:
    return ("feature_mirrored",) if c.feature_mirrored else ()


def _size_of_square(c: Any) -> int:
    """Rows (columns) of the images of a trial's data set, whose map takes square ones."""
    shape = DATASETS[c.dataset].shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ConfigError(f"features: {c.features} takes square images, which {c.dataset} has not, got '{c.features}'; "
                          "use 'pixels'")
    return shape[1]


def _check_scattering(c: Any) -> None:
    size = _size_of_square(c)
    padding = padded_size(size, c.scattering_scales) - size
    if 2**c.scattering_scales > size or -(-padding // 2) >= size:
        raise ConfigError(f"scattering_scales: averages over 2^J pixels, of which images of {c.dataset} have "
                          f"{size} in a row, got {c.scattering_scales}")


def _check_patches(c: Any) -> None:
    size = _size_of_square(c)
    if c.patch_size > size:
        raise ConfigError(f"patch_size: must be at most the {size} rows of images of {c.dataset}, got "
                          f"{c.patch_size}")
    if c.patch_pools > (places := size - c.patch_size + 1):
        raise ConfigError(f"patch_pools: must be at most the {places} places in a row of patches of size "
                          f"{c.patch_size} in images of {c.dataset}, got {c.patch_pools}; smaller patches (patch_size) "
                          "have more places")
    if (features := 2 * c.patch_filters * c.patch_pools**2) > MOST_FEATURES:
        raise ConfigError(f"patch_filters: with {c.patch_pools} x {c.patch_pools} pools (patch_pools) must give at "
                          f"most {MOST_FEATURES:,} features of a record, got {c.patch_filters:,}, which give "
                          f"{features:,}")


def _optical_settings(c: Any) -> tuple[str, ...]:
    fixed = ("optical_device", "optical_width", "optical_thresholds", "feature_groups")
    return (*fixed, "optical_seed") if c.optical_device == "simulated" else fixed  # a real device has its own matrix


def _optical_note(c: Any) -> str:
    note = f"optical random features |R x|^2 of pixels compared with {c.optical_thresholds} thresholds, {OF_ONE_RECORD}"
    if c.optical_device == "hardware":
        note += "; presupposes that the device maps every record without crosstalk from others"
    return note


def _check_optical(c: Any) -> None:
    if c.optical_thresholds > (most := DATASETS[c.dataset].scale):
        raise ConfigError(f"optical_thresholds: must be at most the {most:g} steps of a pixel of {c.dataset}, got "
                          f"{c.optical_thresholds}")


def _said_of_file(c: Any) -> str:
    return f"called {c.feature_name}" if c.feature_name else f"SHA-256 {c.feature_sha256}"


FEATURES: dict[str, FeatureMap] = {
    "pixels": FeatureMap(lambda c: DATASETS[c.dataset].shape, lambda c: "the records themselves", lambda c: ()),
    "scattering": FeatureMap(
        _scattering_shape, lambda c: f"scattering coefficients{treatment(c)}, {OF_ONE_RECORD}",
        _scattering_settings, groups=27, check=_check_scattering),
    "patches": FeatureMap(
        lambda c: (2 * c.patch_filters, c.patch_pools, c.patch_pools),
        lambda c: (f"responses{treatment(c)} to patches of synthetic images of dead leaves, whitened and standardised "
                   f"over these, {OF_ONE_RECORD}"),
        _patches_settings, groups=1, check=_check_patches),
    "optical": FeatureMap(
        lambda c: (c.optical_width,), _optical_note, _optical_settings, groups=1, check=_check_optical),
    "file": FeatureMap(
        lambda c: (c.feature_width,),
        lambda c: (f"features from a file ({_said_of_file(c)}), row by row those of one record, which costs nothing "
                   f"if their encoder is public; whoever runs the trial states of it: {c.feature_source}"),
        lambda c: ("feature_file", "feature_name" if c.feature_name else "feature_sha256", "feature_width",
                   "feature_source", "feature_groups"),
        check=check_feature_file),
}
