"""A small convolutional encoder that was trained to tell synthetic objects apart, as a public map of images.

`experiments/features/encoder/train.py` trained the weights, `encoder.safetensors` beside this module.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, conv2d, max_pool2d

WEIGHTS = Path(__file__).with_name("encoder.safetensors")
KEPT = 3  # layers, of which the second and the third give features
MIDDLE, SPREAD = 0.5, 0.25  # of a pixel on [0, 1], which becomes (pixel - MIDDLE)/SPREAD
CHUNK_SIZE = 64  # images at a time: their maps stay in a processor's cache


def halved(maps: torch.Tensor, layer: int) -> torch.Tensor:
    """Return maps with half the rows and columns after the first two layers (0 and 1), unchanged after later ones."""
    if layer == 0:
        return max_pool2d(maps, 2)
    if layer == 1:
        return avg_pool2d(maps, 2)
    return maps


class EncoderMap:
    """Activations of the second and the third layer, averaged over a grid of `pools` x `pools`."""

    def __init__(self, pools: int, device: torch.device | str = "cpu", path: Path = WEIGHTS) -> None:
        weights = {name: weight.float().to(device) for name, weight in load_file(path).items()}
        self.layers = [(weights[f"weight{k}"], weights[f"bias{k}"]) for k in range(1, KEPT + 1)]
        self.pools = pools

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return features [N, 288, pools, pools], float32, of images [N, 1 (grey) or 3, rows, columns] on [0, 1]."""
        return torch.cat([self._features(chunk) for chunk in images.split(CHUNK_SIZE)])

    def _features(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of a few images. Channels-last makes convolutions faster; TF32 would keep 10 bits."""
        maps = ((images.expand(-1, 3, -1, -1) - MIDDLE) / SPREAD).contiguous(memory_format=torch.channels_last)
        activations = []
        with torch.backends.cudnn.flags(allow_tf32=False):
            for k, (weight, bias) in enumerate(self.layers):
                maps = conv2d(maps, weight, bias, padding=weight.shape[-1] // 2).relu_()
                activations.append(maps)
                maps = halved(maps, k)
        return torch.cat([adaptive_avg_pool2d(layer, self.pools) for layer in activations[1:]], dim=1).contiguous()
