"""A user's network as `Training` and `Evaluation` see it: trained parameters in one row, and logits of records."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeline.learning.network.stacked import Parameters
from pipeline.learning.own.building import in_words, lower_blocks, own
from pipeline.learning.own.segments import Segments
from pipeline.learning.own.ways import Way, choose, made_up
from pipeline.trials.config import TrialConfig


class OwnParameters(Parameters):
    """All trained numbers as one row, as mechanisms see them: the biases of one layer without inputs."""

    def __init__(self, lengths: Sequence[int], replicas: int, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__((0, sum(lengths)), replicas, device, dtype, [(sum(lengths), 0)])
        self.row = self.biases[0]  # [R, d]
        self.layers = [layer for layer in self.row.split(lengths, dim=1) if layer.shape[1]]


class OwnNet:
    """A user's network, with its trained parameters in one row.

    Attributes:
        sizes: numbers of a record before, between and after the blocks.
        parameters: the trained parameters; those of the module become views of it.
        way: how its records are computed.
        why_alone: why they are computed one after the other; empty if they are not.
        chunk: how many records at a time, always as many.
    """

    def __init__(self, config: TrialConfig, module: nn.Sequential) -> None:
        self.config, self.module, self.sizes = config, module, config.layer_sizes
        self.shape, self.n_classes = config.parts.features.shape(config), config.parts.data.spec.n_classes
        self.segments = Segments(module, lower_blocks(config))
        trained = list(self.segments.trained.values())
        self.device = trained[0].device
        self.parameters = self.blank_parameters(1, self.device)
        views = self.parameters.row[0].split([parameter.numel() for parameter in trained])
        for parameter, view in zip(trained, views, strict=True):
            view.copy_(parameter.detach().flatten())
            parameter.data = view.view_as(parameter)
        self.way, self.why_alone = self._way(self.segments)
        self.chunk = self.way.chunk(own(config).records_at_once)

    def _way(self, segments: Segments) -> tuple[Way, str]:
        return choose(in_words(own(self.config)), segments, made_up(self.shape).to(self.device), self.n_classes)

    def true_gradient(self) -> Way:
        """Return how to compute gradients by back-propagation through the whole network."""
        if self.config.parts.feedback.exact:
            return self.way
        return self._way(Segments(self.module, len(self.config.layers) - 1))[0]

    def blank_parameters(self, replicas: int, device: torch.device | str = "cpu",
                         dtype: torch.dtype = torch.float32) -> OwnParameters:
        """Return zeros in the layout of the parameters."""
        return OwnParameters([shape.parameters for shape in self.config.layers], replicas, device, dtype)

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[None, Tensor]:
        """Return (None, logits [1, m, n_classes]) of inputs x [1, m, n_0], for `Evaluation`."""
        records = x[0].view(-1, *self.shape)
        if torch.compiler.is_exporting():  # a graph would bind the program to the number of records
            return None, self.module(records)[None]
        logits = [self.way.logits(*filled(self.chunk, chunk))[:len(chunk)] for chunk in records.split(self.chunk)]
        return None, torch.cat(logits)[None]


def filled(size: int, *parts: Tensor) -> list[Tensor]:
    """Return the parts of at most `size` records, in new memory, with zeros for records that are missing."""
    # `cat` takes new memory, also for a full chunk: kernels may depend on how memory is aligned.
    return [torch.cat([part, part.new_zeros(size - len(part), *part.shape[1:])]) for part in parts]
