"""A small transformer for images: patches, blocks of attention, and a linear output.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", with normalisation before attention and before the two linear
layers of a block. Each child is a block of feedback: the patches, every block, and the output.

DFA needs `output_reads: patches`: weights of its own for every patch can align with the feedback of that patch. Weights
that all patches share, as with the mean, cannot, and the blocks below then do not learn.
"""

import torch
from torch import nn

from pipeline import ConfigError, network, setting


class Patches(nn.Module):
    """Linear maps of patches, with a trained place: [n, channels, height, width] to [n, patches, d]."""

    def __init__(self, shape, side, d):
        super().__init__()
        self.map = nn.Conv2d(shape[0], d, side, side)
        self.place = nn.Parameter(0.02 * torch.randn(shape[1] // side * (shape[2] // side), d))

    def forward(self, x):
        return self.map(x).flatten(2).transpose(1, 2) + self.place


class Block(nn.Module):
    """Attention of several heads between patches, then two linear layers; both are added to their input."""

    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.to_all, self.back = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.linear = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2)
                   for part in self.to_all(self.first(x)).chunk(3, dim=2))  # each [n, heads, patches, d/heads]
        weights = (q @ k.transpose(2, 3) / q.shape[3] ** 0.5).softmax(dim=3)
        x = x + self.back((weights @ v).transpose(1, 2).flatten(2))
        return x + self.linear(self.second(x))


class Output(nn.Module):
    """Logits of all patches, or of their mean."""

    def __init__(self, d, n_patches, n_classes):
        super().__init__()
        self.n_patches, self.norm, self.linear = n_patches, nn.LayerNorm(d), nn.Linear(d * n_patches, n_classes)

    def forward(self, x):
        return self.linear(self.norm(x if self.n_patches > 1 else x.mean(dim=1, keepdim=True)).flatten(1))


@network("small_transformer", version=1, label="transformer", settings={
    "patch_side": setting(7, "rows and columns of a transformer's patch", low=1),
    "width": setting(64, "channels of a transformer", low=1),
    "depth": setting(2, "blocks of attention", low=1),
    "heads": setting(4, "heads of a block of attention; they divide the width", low=1),
    "output_reads": setting("mean", "what a transformer's output reads: the mean over patches, or all of them",
                            choices=("mean", "patches"))})
def build(trial, shape, n_classes):
    side, d = trial.patch_side, trial.width
    if len(shape) != 3 or shape[1] % side or shape[2] % side:
        raise ConfigError("patch_side", "must divide rows and columns of images", f"{side} for shape {list(shape)}")
    if d % trial.heads:
        raise ConfigError("heads", f"must divide the width {d}", trial.heads)
    blocks = [Block(d, trial.heads) for _ in range(trial.depth)]
    n_read = shape[1] // side * (shape[2] // side) if trial.output_reads == "patches" else 1
    return nn.Sequential(Patches(shape, side, d), *blocks, Output(d, n_read, n_classes))
