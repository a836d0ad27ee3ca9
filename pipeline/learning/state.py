"""What a pack's training is between two epochs, as plain arrays and JSON values, and the way back.

Everything else of a `Training` follows from its trials: split, initial weights, feedback matrices, canaries. A training
that was restored goes on with the same bits as one that was not stopped (same device, same pack). Of secure trials no
state of a generator is taken; they go on with fresh noise and fresh batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from pipeline.learning.training import Training


def capture(training: Training) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, JSON values) of a training between two epochs; copies."""
    tensors = {"weights": training.net.parameters.flat}
    tensors |= {f"optimizer.{name}": value for name, value in training.optimizer.state.items()}
    values = {"epoch": training.epoch, "active": training.active, "sampler": training.sampler.state()}
    if training.average:
        tensors["average"], values["average_steps"] = training.average.mean, training.average.steps
    for k, source in enumerate(training.noise_sources()):
        tensors |= {f"noise_{k}.{name}": value for name, value in source.state().items()}
    return {name: value.detach().cpu().numpy().copy() for name, value in tensors.items()}, values


def restore(training: Training, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
    """Put a training that was just made for the same pack where `capture` was called.

    Raises:
        KeyError, ValueError, RuntimeError: for arrays of another kind of training.
    """
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    training.net.parameters.flat.copy_(tensors["weights"])
    training.optimizer.restore(_named(tensors, "optimizer"))
    training.sampler.restore(values["sampler"])
    if training.average:
        training.average.mean.copy_(tensors["average"])
        training.average.steps = values["average_steps"]
    for k, source in enumerate(training.noise_sources()):
        source.restore(_named(tensors, f"noise_{k}"))
    training.epoch, training.active = values["epoch"], list(values["active"])


def _named(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Those tensors whose name is `<prefix>.<name>`, by name."""
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}
