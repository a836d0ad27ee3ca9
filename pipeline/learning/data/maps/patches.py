"""Responses of images to filters that are patches of synthetic images: one layer of convolutions that nothing trains.

The features of Coates and Ng 2011 ("The importance of encoding versus training with sparse coding and vector
quantization") with random patches as dictionary and soft thresholds as code; but patches, and the means and
covariances that whiten them, are those of dead leaves in place of the data's own, which would have to be paid for.
"""

from __future__ import annotations

import torch
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, conv2d, normalize, unfold

from pipeline.learning.data.download import DataError
from pipeline.learning.data.maps.dead_leaves import dead_leaves

IMAGES, PER_IMAGE, SEED = 1000, 100, 1  # synthetic images, patches drawn from each, and the seed of these draws
LEAST_CONTRAST = 10 / 255**2  # added to the variance of a patch's pixels on [0, 1]
LEAST_VARIANCE = 0.1  # added to the variance of every component that is whitened
# Responses at a time; on a CPU few, as the system is slow to give out large memory
CHUNK_ELEMENTS = {"cpu": 2**21, "cuda": 2**28}


def filters(channels: int, size: int, n: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return n filters [n, channels, side, side], each with the sum 0, and offsets [n], from patches of dead leaves.

    For an image patch p with contrast s (see `folded`), z = filter * p/s + offset is the inner product of two whitened
    patches: p and a random patch of images of dead leaves (`size` rows and columns), the latter scaled to length 1.
    """
    generator = torch.Generator().manual_seed(SEED)
    all_patches = unfold(dead_leaves(IMAGES, channels, size), side).transpose(1, 2)  # [images, places, d]
    places = torch.rand(all_patches.shape[:2], generator=generator).argsort(dim=1)[:, :PER_IMAGE]
    patches = all_patches[torch.arange(IMAGES).unsqueeze(1), places].flatten(0, 1).unique(dim=0).double()
    patches -= patches.mean(1, keepdim=True)
    patches /= (patches.var(1, keepdim=True) + LEAST_CONTRAST).sqrt()
    candidates = patches[patches.square().sum(1) > 1]  # without flat patches
    if n > len(candidates):
        raise DataError(f"patch_filters: must be at most the {len(candidates)} different patches of size {side} that "
                        f"are drawn from synthetic images of size {size}, got {n}")
    chosen = candidates[torch.randperm(len(candidates), generator=generator)[:n]]
    weights, offsets = folded(chosen, patches.mean(0), torch.cov(patches.T))
    return weights.view(-1, channels, side, side).float(), offsets.float()


def folded(chosen: torch.Tensor,  # normalised patches [n, d]
           mean: torch.Tensor, covariance: torch.Tensor,  # of all normalised patches: [d], and S [d, d]
           ) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights [n, d] and offsets [n] that whiten a patch and take its product with chosen patches in one step.

    A patch p, with pixels of mean m and variance v, is normalised to q = (p - m)/s, with s^2 = v + LEAST_CONTRAST. It
    is whitened by w(q) = (S + LEAST_VARIANCE)^-1/2 (q - mean). Let f be w of a chosen patch, scaled to length 1. Then
    f^T w(q) = weights q + offset. The weights have the sum 0, so weights q is weights p/s.
    """
    variances, axes = torch.linalg.eigh(covariance)
    whitening = axes * (variances.clamp(min=0) + LEAST_VARIANCE).rsqrt() @ axes.T
    weights = normalize((chosen - mean) @ whitening, dim=1) @ whitening
    offsets = -weights @ mean
    return weights - weights.mean(1, keepdim=True), offsets


class PatchMap:
    """max(0, z - a) and max(0, -z - a) of the products z of all patches of an image with all filters, a the threshold.

    They are averaged over a grid of `pools` x `pools`, which overlap where places cannot be divided among them.
    """

    def __init__(self, channels: int, size: int, n: int, side: int, threshold: float, pools: int,
                 device: torch.device | str = "cpu") -> None:
        self.weights, self.offsets = (part.to(device) for part in filters(channels, size, n, side))
        self.threshold, self.pools = threshold, pools

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return features [N, 2 n, pools, pools], float32, of images [N, channels, rows, columns] on [0, 1]."""
        places = (images.shape[-1] - self.weights.shape[-1] + 1) ** 2
        chunk_size = max(1, CHUNK_ELEMENTS[images.device.type] // (len(self.weights) * places))
        return torch.cat([self._features(chunk) for chunk in images.split(chunk_size)])

    def _features(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of a few images.

        The variance of a patch's pixels follows from the means of pixels and of their squares, which average pools give
        for all patches at once.
        """
        _, channels, side, _ = self.weights.shape
        d = channels * side**2
        pixels = images.double()  # in float32 a faint patch would have no variance
        mean = avg_pool2d(pixels.mean(1, keepdim=True), side, stride=1)
        mean_square = avg_pool2d(pixels.square().mean(1, keepdim=True), side, stride=1)
        variance = (mean_square - mean.square()).clamp_(min=0) * (d / (d - 1))
        inverse_contrast = (variance + LEAST_CONTRAST).rsqrt_().float()
        with torch.backends.cudnn.flags(allow_tf32=False):  # TF32 would round factors to 10 bits
            z = conv2d(images - 0.5, self.weights).mul_(inverse_contrast).add_(self.offsets[:, None, None])
        above = adaptive_avg_pool2d((z - self.threshold).relu_(), self.pools)
        below = adaptive_avg_pool2d(z.add_(self.threshold).neg_().relu_(), self.pools)
        return torch.cat([above, below], dim=1)
