"""Synthetic images of dead leaves (Matheron 1968; Lee, Mumford and Huang 2001): opaque disks that fall on each other,
with radii r of density r^-3. Edges, contrast and scales are distributed nearly as in photographs, and no record of
anybody has a part in them: what is measured on them is public."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from pipeline.learning.data.download import DataError
from pipeline.trials.datasets import DatasetSpec

REFERENCES = 1000  # images by which channels are standardised
LEAST_DEVIATION = 0.3  # of a channel, as a share of the median of all
LEAST_SHARE = 0.1  # of the mean variance, added to that of every direction in which channels are decorrelated
DISKS = 300  # per image, of which the first hide the others; together they leave less than one pixel in 100 free
SMALLEST = 1.5  # pixels: the least radius; the largest is the image's size
FINER = 2  # rows (columns) of samples that are averaged to one of pixels
COLOUR = 0.12  # standard deviation by which the channels of a disk differ from its lightness, uniform on [0, 1]
SEED = 0


def dead_leaves(n: int, channels: int, size: int) -> torch.Tensor:
    """Return n synthetic images [n, channels, size, size] on [0, 1], always the same for the same arguments.

    Disks are drawn from the front to the back: a pixel takes the colour of the first disk that covers it.
    """
    generator = torch.Generator().manual_seed(SEED)
    side = FINER * size
    places = torch.arange(side)
    images, free = torch.full((n, channels, side, side), 0.5), torch.ones(n, side, side, dtype=torch.bool)
    low, high = (FINER * SMALLEST) ** -2, side**-2  # of 1/r^2, which is uniform where radii r have density r^-3
    for _ in range(DISKS):
        radii = (low + (high - low) * torch.rand(n, 1, 1, generator=generator)) ** -0.5
        # Centres lie up to a quarter of the side outside the image.
        rows, columns = (1.5 * torch.rand(2, n, 1, 1, generator=generator) - 0.25) * side
        lightness = torch.rand(n, 1, generator=generator)
        channel_deviations = torch.randn(n, channels, generator=generator)
        colours = (lightness + COLOUR * channel_deviations).clamp(0, 1)[:, :, None, None]
        visible = free & ((places[:, None] - rows) ** 2 + (places - columns) ** 2 <= radii**2)
        images = torch.where(visible[:, None], colours, images)
        free &= ~visible
    return torch.nn.functional.avg_pool2d(images, FINER)


def standardised(apply: Callable[[torch.Tensor], torch.Tensor], spec: DatasetSpec, device: torch.device,
                 chunk_size: int) -> Callable[[torch.Tensor], torch.Tensor]:  # apply: to [n, channels, ...]
    """Return the map `apply`, with each channel of mean 0 and standard deviation 1 over images of dead leaves.

    A channel that hardly varies is divided by a share of the median deviation, so that it does not drown the others.
    """
    features = _reference_features(apply, spec, device, chunk_size)
    axes = (0, *range(2, features.ndim))
    deviation, mean = torch.std_mean(features.double(), axes, correction=0, keepdim=True)
    mean, deviation = mean[0].float(), deviation[0].float()
    min_deviation = LEAST_DEVIATION * deviation.median()
    if not min_deviation:
        raise DataError(f"features: most of the {deviation.numel()} channels are constant on synthetic images, so that "
                        "they say nothing of records; for patches take a lower patch_threshold")
    deviation.clamp_(min=min_deviation)
    return lambda records: (apply(records) - mean) / deviation


def decorrelated(apply: Callable[[torch.Tensor], torch.Tensor], spec: DatasetSpec, device: torch.device,
                 chunk_size: int, degree: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the map `apply`, with the channels x of every place replaced by (S/s + r)^(-degree/2) (x - m).

    S [channels, channels] is the covariance of the channels over places and images of dead leaves, s the mean of its
    diagonal, m the mean of the channels there, and r is LEAST_SHARE. Degree 1 whitens the channels (ZCA; Bell and
    Sejnowski 1997) as far as r allows. With a degree between 0 and 1, directions in which channels vary together keep a
    part of their excess variance.
    """
    samples = _reference_features(apply, spec, device, chunk_size)
    if samples.ndim > 2:  # every position of a map is a sample
        samples = samples.flatten(2).transpose(1, 2).flatten(0, 1)
    mean = samples.double().mean(0)
    covariance = torch.cov(samples.double().T)
    variances, axes = torch.linalg.eigh(covariance / covariance.diagonal().mean())
    whitening = axes * (variances.clamp(min=0) + LEAST_SHARE).pow(-degree / 2) @ axes.T
    weights, offsets = whitening.float(), (whitening @ mean).float()

    def apply_decorrelated(records: torch.Tensor) -> torch.Tensor:
        maps = apply(records)
        shape = (1, -1, *(1,) * (maps.ndim - 2))
        return torch.einsum("ij,nj...->ni...", weights, maps) - offsets.view(shape)

    return apply_decorrelated


def _reference_features(apply: Callable[[torch.Tensor], torch.Tensor], spec: DatasetSpec, device: torch.device,
                        chunk_size: int) -> torch.Tensor:
    """Return the features of `REFERENCES` images of dead leaves by the map `apply`: [REFERENCES, channels, ...]."""
    channels, size, _ = spec.shape
    images = _reference_records(channels, size, spec.scale)
    return torch.cat([apply(chunk) for chunk in images.to(device).split(chunk_size)])


@functools.lru_cache(maxsize=1)
def _reference_records(channels: int, size: int, scale: float) -> torch.Tensor:
    """Return images of dead leaves as records, uint8 [REFERENCES, channels * size * size]; a pixel of 1 is `scale`."""
    return (dead_leaves(REFERENCES, channels, size) * scale).round().to(torch.uint8).flatten(1)
