"""Synthetic objects: each is made of textured ellipses and boxes, and drawn in many poses and lights before dead
leaves. Whoever tells them apart needs shapes, and no record of anybody has a part in them."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import avg_pool2d, pad

from pipeline.learning.data.maps.dead_leaves import dead_leaves

SIDE = 32  # rows (columns) of an image
PARTS = 5  # of an object, each before those that come earlier
BACKGROUNDS, ROOM = 800, 8  # images of dead leaves, and rows (columns) by which they are larger
SOFTEST = 0.12  # least half axis of a part; its edge is as soft as 1/8 of that


class Objects:
    """Images of n objects, drawn by seed.

    Args:
        n: classes.
        seed: of the objects and of all that is drawn of them.
        backgrounds: images of dead leaves behind them.
    """

    def __init__(self, n: int, seed: int, backgrounds: int = BACKGROUNDS) -> None:
        """Draw each object's parts: centre, half axes, angle, shape (ellipse or box), colour, texture and shading.

        An image spans [-1, 1] in both directions, so lengths are in half images.
        """
        self.n, self.generator = n, torch.Generator().manual_seed(seed)
        self.centres = 1.1 * (self._uniform(n, PARTS, 2) - 0.5)
        self.centres[:, 0] *= 0.3
        self.axes = SOFTEST + 0.45 * self._uniform(n, PARTS, 2) ** 1.5
        self.axes[:, 0] += 0.2
        self.angles, self.directions = math.pi * self._uniform(2, n, PARTS)
        self.exponents = 2 + 6 * (self._uniform(n, PARTS) < 0.35).float()  # 2 of an ellipse, 8 nearly of a box
        self.colours = 0.55 * self._uniform(n, 1, 3) + 0.45 * self._uniform(n, PARTS, 3)
        self.frequencies = 2 + 14 * self._uniform(n, PARTS) ** 1.5
        self.amplitudes = 0.35 * (self._uniform(n, PARTS) < 0.6).float() * self._uniform(n, PARTS)
        self.shades = 0.25 * (self._uniform(n, PARTS, 2) - 0.5)
        self.backgrounds = dead_leaves(backgrounds, 3, SIDE + ROOM)
        line = (torch.arange(SIDE) + 0.5) / (SIDE / 2) - 1
        self.rows, self.columns = torch.meshgrid(line, line, indexing="ij")

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next images [size, 3, SIDE, SIDE] on [0, 1], and the object on each [size].

        Parts are painted one over the other. In the coordinates p, q of a part, |p|^k + |q|^k <= 1 is its inside.
        """
        labels = torch.randint(self.n, (size,), generator=self.generator)
        x, y = self._posed_coordinates(size)
        images = self._random_backgrounds(size)
        wobble, shift = 1 + 0.2 * self._centred(size, PARTS, 2), 0.08 * self._centred(size, PARTS, 2)
        phases = 2 * math.pi * self._uniform(size, PARTS)
        for k in range(PARTS):
            centre, axes = self.centres[labels, k] + shift[:, k], self.axes[labels, k] * wobble[:, k]
            angle, direction, frequency, amplitude, exponent = (
                values[labels, k].view(-1, 1, 1)
                for values in (self.angles, self.directions, self.frequencies, self.amplitudes, self.exponents))
            across, down = x - centre[:, 0].view(-1, 1, 1), y - centre[:, 1].view(-1, 1, 1)
            p = (angle.cos() * across + angle.sin() * down) / axes[:, 0].view(-1, 1, 1)
            q = (angle.cos() * down - angle.sin() * across) / axes[:, 1].view(-1, 1, 1)
            edge = 8 * axes.min(1).values.view(-1, 1, 1) / SOFTEST
            covered = torch.sigmoid((1 - p.abs() ** exponent - q.abs() ** exponent) * edge)
            wave = torch.sin(math.pi * frequency * (direction.cos() * across + direction.sin() * down)
                             + phases[:, k].view(-1, 1, 1))
            slope = self.shades[labels, k].view(-1, 2, 1, 1)
            tone = amplitude * wave + slope[:, 0] * p + slope[:, 1] * q
            colour = self.colours[labels, k].view(-1, 3, 1, 1)
            images = images + covered.unsqueeze(1) * (colour + tone.unsqueeze(1) - images)
        return self._with_light_and_noise(images), labels

    def _posed_coordinates(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return coordinates x, y of an object at all pixels, each [size, SIDE, SIDE], in a random pose per image.

        An object is moved, turned, zoomed, stretched and perhaps mirrored.
        """
        # Zoom 0.75 to 1.35, turn up to 0.25 rad, shift up to a quarter of the half side, stretch up to 15%.
        zoom, turn = 0.75 + 0.6 * self._uniform(size, 1, 1), 0.5 * self._centred(size, 1, 1)
        shift_x, shift_y = 0.5 * self._centred(2, size, 1, 1)
        stretch = 1 + 0.3 * self._centred(size, 1, 1)
        mirror = 2 * (self._uniform(size, 1, 1) < 0.5).float() - 1
        x, y = self.columns - shift_x, self.rows - shift_y
        return (mirror * (turn.cos() * x + turn.sin() * y) / zoom * stretch,
                (turn.cos() * y - turn.sin() * x) / zoom / stretch)

    def _random_backgrounds(self, size: int) -> torch.Tensor:
        """Return backgrounds [size, 3, SIDE, SIDE]: random parts of dead leaves, with random contrast and light."""
        indices = torch.randint(len(self.backgrounds), (size,), generator=self.generator)
        first = torch.randint(ROOM + 1, (2, size, 1), generator=self.generator)
        rows, columns = first + torch.arange(SIDE)
        columns = torch.where(self._uniform(size, 1) < 0.5, columns, columns.flip(1))
        crops = self.backgrounds[indices.view(-1, 1, 1, 1), torch.arange(3).view(-1, 1, 1), rows[:, None, :, None],
                                 columns[:, None, None, :]]
        return 0.5 + (crops - 0.5) * (0.4 + 0.6 * self._uniform(size, 1, 1, 1)) + 0.25 * self._centred(size, 3, 1, 1)

    def _with_light_and_noise(self, images: torch.Tensor) -> torch.Tensor:
        """Return images with random contrast, light, saturation, tint, focus and noise, on [0, 1]."""
        size = len(images)
        images = (images - 0.5) * (0.7 + 0.6 * self._uniform(size, 1, 1, 1)) + 0.5
        images = images + 0.3 * self._centred(size, 1, 1, 1) + 0.12 * self._centred(size, 3, 1, 1)
        grey = images.mean(1, keepdim=True)
        images = grey + 1.1 * self._uniform(size, 1, 1, 1) * (images - grey)
        mixing = torch.eye(3) + 0.35 * self._centred(size, 3, 3)
        images = (mixing @ (images - 0.5).flatten(2)).view(images.shape) + 0.5
        blurred = avg_pool2d(pad(images, (1, 1, 1, 1), mode="replicate"), 3, 1)
        images = images + 0.9 * self._uniform(size, 1, 1, 1) ** 2 * (blurred - images)
        return (images + 0.03 * torch.randn(images.shape, generator=self.generator)).clamp(0, 1)

    def _uniform(self, *shape: int) -> torch.Tensor:
        """Return random numbers of this shape, uniform on [0, 1)."""
        return torch.rand(*shape, generator=self.generator)

    def _centred(self, *shape: int) -> torch.Tensor:
        """Return random numbers of this shape, uniform on [-0.5, 0.5]."""
        return self._uniform(*shape) - 0.5
