"""Capture and restore a pack's training between two epochs, as arrays and JSON values.

The rest of a `Training` follows from its trials: split, initial weights, feedback matrices, canaries. A restored
training gives the same bits as an uninterrupted one, on the same device and with the same pack. Generator states of
secure trials are not captured: such trials resume with fresh noise and fresh batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from pipeline.learning.training import Training


def capture(training: Training) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the state of a training between two epochs as (arrays, JSON values); copies."""
    tensors = {"weights": training.net.parameters.flat}
    tensors |= {f"optimizer.{name}": value for name, value in training.optimizer.state.items()}
    values = {"epoch": training.epoch, "active": training.active, "sampler": training.sampler.state()}
    if training.average:
        tensors["average"], values["average_steps"] = training.average.mean, training.average.steps
    for k, source in enumerate(training.noise_sources()):
        tensors |= {f"noise_{k}.{name}": value for name, value in source.state().items()}
    return {name: value.detach().cpu().numpy().copy() for name, value in tensors.items()}, values


def restore(training: Training, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
    """Restore the state that `capture` returned; `training` is new and has the same pack.

    Raises:
        KeyError, ValueError, RuntimeError: if the arrays do not fit the training.
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
    """Return the tensors named `<prefix>.<name>`, by `<name>`."""
    prefix += "."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
