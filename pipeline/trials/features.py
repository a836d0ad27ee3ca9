"""What a network takes in: pixels, or a public map of each record, and what shape that has (no torch)."""

from __future__ import annotations

from typing import Any

from pipeline.trials.datasets import DATASETS
from pipeline.trials.fields import ConfigError

FEATURES = ("pixels", "scattering")
CROPPED = 2  # rows and columns of scattering coefficients that stand for the padding, and are left out


def padded_size(size: int, scales: int) -> int:
    """Rows (columns) of an image that is padded for scattering of J scales: a multiple of 2^J above its own."""
    step = 2**scales
    return ((size + step) // step + 1) * step


def coefficients(scales: int, angles: int) -> int:
    """Scattering channels of one colour up to the second order: 1 + J L + L^2 J (J - 1)/2."""
    return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2


def record_shape(c: Any) -> tuple[int, ...]:
    """Shape of one record of a trial as its network takes it in, channels first."""
    shape = DATASETS[c.dataset].shape
    if c.features == "pixels":
        return shape
    channels, *sizes = shape
    rows, columns = (padded_size(size, c.scattering_scales) // 2**c.scattering_scales - CROPPED for size in sizes)
    return channels * coefficients(c.scattering_scales, c.scattering_angles), rows, columns


def check_features(c: Any) -> None:
    """Refuse maps that a data set has no room for.

    Raises:
        ConfigError: naming the field, its value and what would be accepted.
    """
    if c.features == "pixels":
        return
    shape = DATASETS[c.dataset].shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ConfigError(f"features: scattering takes square images, which {c.dataset} has not, got 'scattering'; use "
                          "'pixels'")
    padding = padded_size(shape[1], c.scattering_scales) - shape[1]
    if 2**c.scattering_scales > shape[1] or -(-padding // 2) >= shape[1]:
        raise ConfigError(f"scattering_scales: averages over 2^J pixels, of which images of {c.dataset} have "
                          f"{shape[1]} in a row, got {c.scattering_scales}")
    channels = record_shape(c)[0]
    if c.feature_groups and channels % c.feature_groups:
        raise ConfigError(f"feature_groups: must divide the {channels} channels of the features, got "
                          f"{c.feature_groups}; 0 normalises nothing")
