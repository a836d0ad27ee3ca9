"""Responses of images to filters that are patches of synthetic images: one layer of convolutions that nothing trains.

The features of Coates and Ng 2011 ("The importance of encoding versus training with sparse coding and vector
quantization") with random patches as dictionary and soft thresholds as code; but patches, and the means and
covariances that whiten them, are those of dead leaves in place of the data's own, which would have to be paid for.
"""

from __future__ import annotations

import torch
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, conv2d, normalize, unfold

from pipeline.learning.data.dead_leaves import dead_leaves
from pipeline.learning.data.download import DataError

IMAGES, PER_IMAGE, SEED = 1000, 100, 1  # synthetic images, patches drawn of each, and by which seed
LEAST_CONTRAST = 10 / 255**2  # added to the variance of a patch's pixels on [0, 1]
LEAST_VARIANCE = 0.1  # added to the variance of every component that is whitened
# Responses at a time; on a CPU few, as the system is slow to give out large memory
CHUNK_ELEMENTS = {"cpu": 2**21, "cuda": 2**28}


def filters(channels: int, size: int, n: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return filters and offsets of whitened patches: z = filter * p/s + offset for a patch p of an image.

    z is the product of the whitened patch with a whitened patch of synthetic images, of length 1. s is the contrast of
    p (see `folded`).

    Args:
        channels: channels of the images.
        size: rows (columns) of the images of dead leaves.
        n: number of filters.
        side: rows (columns) of a patch.

    Returns:
        [n, channels, side, side], each with the sum 0, and [n]; float32.

    Raises:
        DataError: for more filters than there are different patches.
    """
    generator = torch.Generator().manual_seed(SEED)
    found = unfold(dead_leaves(IMAGES, channels, size), side).transpose(1, 2)  # [images, places, d]
    places = torch.rand(found.shape[:2], generator=generator).argsort(dim=1)[:, :PER_IMAGE]
    drawn = found[torch.arange(IMAGES).unsqueeze(1), places].flatten(0, 1).unique(dim=0).double()
    drawn -= drawn.mean(1, keepdim=True)
    drawn /= (drawn.var(1, keepdim=True) + LEAST_CONTRAST).sqrt()
    seen = drawn[drawn.square().sum(1) > 1]  # without flat patches
    if n > len(seen):
        raise DataError(f"patch_filters: must be at most the {len(seen)} different patches of size {side} that are "
                        f"drawn from synthetic images of size {size}, got {n}")
    chosen = seen[torch.randperm(len(seen), generator=generator)[:n]]
    weights, offsets = folded(chosen, drawn.mean(0), torch.cov(drawn.T))
    return weights.view(-1, channels, side, side).float(), offsets.float()


def folded(chosen: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and offsets that whiten a patch and take its product with chosen patches in one step.

    A patch p, with pixels of mean m and variance v, is normalised to q = (p - m)/s, with s^2 = v + LEAST_CONTRAST. It
    is whitened by w(q) = (S + LEAST_VARIANCE)^-1/2 (q - mean), with S the covariance of normalised patches. Let f be w
    of a chosen patch, scaled to length 1. Then f^T w(q) = weights q + offset. The weights have the sum 0, so weights q
    is weights p/s.

    Args:
        chosen: normalised patches [n, d].
        mean: mean of all normalised patches [d].
        covariance: S [d, d].

    Returns:
        Weights [n, d] and offsets [n].
    """
    variances, axes = torch.linalg.eigh(covariance)
    whitening = axes * (variances.clamp(min=0) + LEAST_VARIANCE).rsqrt() @ axes.T
    weights = normalize((chosen - mean) @ whitening, dim=1) @ whitening
    offsets = -weights @ mean
    return weights - weights.mean(1, keepdim=True), offsets


class Patches:
    """max(0, z - a) and max(0, -z - a) of the products z of all patches of an image with all filters, averaged over a
    grid of pools, which overlap where places cannot be divided among them.

    Args:
        channels, size, n, side: as of `filters`.
        threshold: a.
        pools: rows (columns) of the grid.

    Raises:
        DataError: as `filters`.
    """

    def __init__(self, channels: int, size: int, n: int, side: int, threshold: float, pools: int,
                 device: torch.device | str = "cpu") -> None:
        self.weights, self.offsets = (part.to(device) for part in filters(channels, size, n, side))
        self.threshold, self.pools = threshold, pools

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return features [N, 2 n, pools, pools], float32, of images [N, channels, rows, columns] on [0, 1]."""
        places = (images.shape[-1] - self.weights.shape[-1] + 1) ** 2
        at_a_time = max(1, CHUNK_ELEMENTS[images.device.type] // (len(self.weights) * places))
        return torch.cat([self._of(some) for some in images.split(at_a_time)])

    def _of(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of a few images, as `__call__` does for all.

        The variance of a patch's pixels follows from the means of pixels and of their squares, which average pools give
        for all patches at once.
        """
        _, channels, side, _ = self.weights.shape
        d = channels * side**2
        exact = images.double()  # in float32 a faint patch would have no variance
        mean, square = (avg_pool2d(part.mean(1, keepdim=True), side, stride=1) for part in (exact, exact.square()))
        variance = (square - mean.square()).clamp_(min=0) * (d / (d - 1))
        inverse = (variance + LEAST_CONTRAST).rsqrt_().float()
        with torch.backends.cudnn.flags(allow_tf32=False):  # which would round factors to 10 bits
            z = conv2d(images - 0.5, self.weights).mul_(inverse).add_(self.offsets[:, None, None])
        above = adaptive_avg_pool2d((z - self.threshold).relu_(), self.pools)
        below = adaptive_avg_pool2d(z.add_(self.threshold).neg_().relu_(), self.pools)
        return torch.cat([above, below], dim=1)
