"""Synthetic images of dead leaves (Matheron 1968; Lee, Mumford and Huang 2001): opaque disks that fall on each other,
with radii r of density r^-3. Edges, contrast and scales are distributed nearly as in photographs, and no record of
anybody has a part in them: what is measured on them is public."""

from __future__ import annotations

import torch

DISKS = 300  # per image, of which the first hide the others; together they leave less than one pixel in 100 free
SMALLEST = 1.5  # pixels: the least radius; the largest is the image's size
FINER = 2  # rows (columns) of samples that are averaged to one of pixels
COLOUR = 0.12  # standard deviation by which the channels of a disk differ from its lightness, uniform on [0, 1]
SEED = 0


def dead_leaves(n: int, channels: int, size: int) -> torch.Tensor:
    """The first n images [n, channels, size, size] on [0, 1], always the same for the same arguments."""
    generator = torch.Generator().manual_seed(SEED)
    side = FINER * size
    places = torch.arange(side)
    images, free = torch.full((n, channels, side, side), 0.5), torch.ones(n, side, side, dtype=torch.bool)
    low, high = (FINER * SMALLEST) ** -2, side**-2
    for _ in range(DISKS):
        radii = (low + (high - low) * torch.rand(n, 1, 1, generator=generator)) ** -0.5
        rows, columns = (1.5 * torch.rand(2, n, 1, 1, generator=generator) - 0.25) * side
        lightness, differing = torch.rand(n, 1, generator=generator), torch.randn(n, channels, generator=generator)
        colours = (lightness + COLOUR * differing).clamp(0, 1)[:, :, None, None]
        seen = free & ((places[:, None] - rows) ** 2 + (places - columns) ** 2 <= radii**2)
        images = torch.where(seen[:, None], colours, images)
        free &= ~seen
    return torch.nn.functional.avg_pool2d(images, FINER)
