"""A small convolutional encoder that was trained to tell synthetic objects apart, as a public map of images.

`python -m pipeline.learning.data.encoder FILE` trains it: seed and code give the weights, on one thread of one kind of
processor to the last bit. Those that trials use are `encoder.safetensors` beside this module.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, conv2d, cross_entropy, max_pool2d

from pipeline.learning.data.objects import Objects

WEIGHTS = Path(__file__).with_name("encoder.safetensors")
LAYERS = ((3, 48, 5), (48, 96, 3), (96, 192, 3), (192, 192, 3))  # channels in and out, rows (columns) of a filter
KEPT = 3  # layers, of which the second and the third give features; the last serves training alone
CLASSES, BATCH, STEPS, RATE = 2000, 128, 2000, 0.1
MIDDLE, SPREAD = 0.5, 0.25  # of a pixel on [0, 1], which becomes (pixel - MIDDLE)/SPREAD
CHUNK_SIZE = 64  # images at a time: their maps stay in a processor's cache


def encoder_weights(seed: int = 0, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """Train the encoder to classify synthetic objects; return the weights of the layers that give features.

    Args:
        seed: seed of the objects, the weights and the batches.
        steps: number of training steps.

    Returns:
        `weight1` [out, in, side, side], `bias1` [out], and so on, float16, for the first `KEPT` layers, with batch
        normalisation folded into them.
    """
    torch.manual_seed(seed)
    objects = Objects(CLASSES, seed)
    layers = convolutions()
    layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # which torch's types lack
    head = nn.Linear(4 * LAYERS[-1][1], CLASSES)
    optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], RATE, momentum=0.9, nesterov=True,
                                weight_decay=5e-4)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 100) * (1 - step / steps)
        images, labels = objects.batch(BATCH)
        maps = ((images - MIDDLE) / SPREAD).to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            for k, layer in enumerate(layers):
                maps = _halved(layer(maps), k)
            scores = head(adaptive_avg_pool2d(maps, 2).flatten(1))
        loss = cross_entropy(scores.float(), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            accuracy = (scores.argmax(1) == labels).float().mean()
            print(f"step {step + 1} of {steps}: loss {loss:.2f}, accuracy {accuracy:.0%} of {BATCH}", flush=True)
    return folded(layers)


def convolutions() -> nn.ModuleList:
    """Return the layers of the encoder as they are trained: convolution, batch normalisation and ReLU each."""
    return nn.ModuleList(nn.Sequential(nn.Conv2d(n_in, n_out, side, padding=side // 2, bias=False),
                                       nn.BatchNorm2d(n_out), nn.ReLU()) for n_in, n_out, side in LAYERS)


def folded(layers: nn.ModuleList) -> dict[str, torch.Tensor]:
    """Return weights and biases of the kept layers, by name, with batch normalisation folded into them.

    Its running means and variances are constants after training, so the folded layers give the same activations.
    """
    weights = {}
    blocks: Any = layers[:KEPT]  # torch's types do not know their parts
    for k, (convolution, norm, _) in enumerate(blocks, start=1):
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        weights[f"weight{k}"] = (convolution.weight * scale.view(-1, 1, 1, 1)).detach().half().contiguous()
        weights[f"bias{k}"] = (norm.bias - norm.running_mean * scale).detach().half()
    return weights


def _halved(maps: torch.Tensor, layer: int) -> torch.Tensor:
    """Return maps with half the rows and columns after the first two layers (0 and 1), unchanged after later ones."""
    if layer == 0:
        return max_pool2d(maps, 2)
    if layer == 1:
        return avg_pool2d(maps, 2)
    return maps


class Encoder:
    """Activations of the second and the third layer, averaged over a grid of pools.

    Args:
        pools: rows (columns) of the grid.
    """

    def __init__(self, pools: int, device: torch.device | str = "cpu", path: Path = WEIGHTS) -> None:
        weights = {name: weight.float().to(device) for name, weight in load_file(path).items()}
        self.layers = [(weights[f"weight{k}"], weights[f"bias{k}"]) for k in range(1, KEPT + 1)]
        self.pools = pools

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return features [N, 288, pools, pools], float32, of images [N, 1 or 3, rows, columns] on [0, 1].

        A grey image counts as three equal colours.
        """
        return torch.cat([self._features(chunk) for chunk in images.split(CHUNK_SIZE)])

    def _features(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of a few images, as `__call__` does for all: activations of layers 2 and 3, pooled.

        The channels-last layout makes convolutions faster. TF32 would round their factors to 10 bits.
        """
        maps = ((images.expand(-1, 3, -1, -1) - MIDDLE) / SPREAD).contiguous(memory_format=torch.channels_last)
        activations = []
        with torch.backends.cudnn.flags(allow_tf32=False):
            for k, (weight, bias) in enumerate(self.layers):
                maps = conv2d(maps, weight, bias, padding=weight.shape[-1] // 2).relu_()
                activations.append(maps)
                maps = _halved(maps, k)
        return torch.cat([adaptive_avg_pool2d(layer, self.pools) for layer in activations[1:]], dim=1).contiguous()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="train the encoder on synthetic objects, and write its weights")
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    save_file(encoder_weights(arguments.seed, arguments.steps), arguments.file)
