"""Train the encoder of `features: encoder` to tell synthetic objects apart.

    python experiments/features/encoder/train.py FILE

Seed and code give the weights, on one thread of one kind of processor to the last bit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from objects import Objects
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from pipeline.learning.data.maps.encoder import KEPT, MIDDLE, SPREAD, halved

LAYERS = ((3, 48, 5), (48, 96, 3), (96, 192, 3), (192, 192, 3))  # channels in and out, rows (columns) of a filter
CLASSES, BATCH, STEPS, RATE = 2000, 128, 2000, 0.1


def encoder_weights(seed: int = 0, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """Train the encoder to classify synthetic objects; return the weights of the layers that give features.

    They are `weight1` [out, in, side, side], `bias1` [out], and so on, float16, as `folded` returns them.
    """
    torch.manual_seed(seed)
    objects = Objects(CLASSES, seed)
    layers = convolutions()
    layers.to(memory_format=torch.channels_last)
    head = nn.Linear(4 * LAYERS[-1][1], CLASSES)
    optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], RATE, momentum=0.9, nesterov=True,
                                weight_decay=5e-4)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 100) * (1 - step / steps)
        images, labels = objects.batch(BATCH)
        maps = ((images - MIDDLE) / SPREAD).to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            for k, layer in enumerate(layers):
                maps = halved(layer(maps), k)
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
    for k, (convolution, norm, _) in enumerate(layers[:KEPT], start=1):
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        weights[f"weight{k}"] = (convolution.weight * scale.view(-1, 1, 1, 1)).detach().half().contiguous()
        weights[f"bias{k}"] = (norm.bias - norm.running_mean * scale).detach().half()
    return weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="train the encoder on synthetic objects, and write its weights")
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    save_file(encoder_weights(arguments.seed, arguments.steps), arguments.file)
