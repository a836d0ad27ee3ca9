"""Networks of one's own as parts of a trial; plugins call `network` (docs/networks.md)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field
from typing import Any, TypeVar

from pipeline.learning.own.building import check_blocks, described, why_alone
from pipeline.trials.condition import Trial
from pipeline.trials.fields import is_whole, refuse
from pipeline.trials.network import Own
from pipeline.trials.part import extension
from pipeline.trials.shapes import LayerShape

Build = TypeVar("Build", bound=Callable[..., Any])


class OwnNetwork(Own):
    """A user's network, which is built to see what it is."""

    def layers(self, shape: tuple[int, ...], n_classes: int) -> tuple[LayerShape, ...]:
        return described(self, shape, n_classes).blocks

    def check(self, trial: Trial) -> None:
        super().check(trial)
        check_blocks(trial)

    def why_alone(self, trial: Trial) -> str:
        return why_alone(trial)


def network(name: str, *, version: int, settings: Mapping[str, Field[Any] | None] | None = None,
            label: str = "") -> Callable[[Build], Build]:
    """Register a function that builds a network: `network: <name>` is accepted from then on (docs/networks.md).

    It is called as `build(trial, shape, n_classes)`; `trial` has the network's own settings, and `shape` is that of a
    record's features. It returns a `torch.nn.Sequential` that maps [n, *shape] to logits [n, n_classes]. Its children
    are the blocks: DFA gives each a projection of the error at its output, back-propagation goes through all.

    Args:
        name: value of the setting `network`.
        version: from 1; part of its trials' identity. Raise it when results change.
        settings: its own settings: by name the result of `setting`, or None for existing ones such as `activation`.
        label: in tables and figures.

    Raises:
        ConfigError: naming the fault, and what would be accepted.

    Example:
        >>> import torch
        >>> @network("small", version=1, settings={"units": setting(8, "units of the hidden layer", low=1)})
        ... def small(trial, shape, n_classes):
        ...     hidden = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(trial.units), torch.nn.Tanh())
        ...     return torch.nn.Sequential(hidden, torch.nn.Linear(trial.units, n_classes))
        >>> trial = TrialConfig(dataset="digits", network="small", algorithm="dfa", mechanism="per_example",
        ...                     noise_multiplier=1)
        >>> trial.layer_sizes
        (64, 8, 10)
    """
    refuse(not is_whole(version), "version", "must be a whole number >= 1", repr(version))

    def register(function: Build) -> Build:
        """Register the function, and return it unchanged."""
        extension("network", name, OwnNetwork, settings or {}, function, build=staticmethod(function),
                  label=label or name, version=version, source=inspect.getsourcefile(function) or "")
        return function
    return register
