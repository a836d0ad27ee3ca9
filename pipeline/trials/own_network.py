"""Networks of the user: a function that returns a `torch.nn.Sequential`, whose children are the blocks of feedback.

`pipeline.learning.modules` computes with them, and is imported only when a trial has one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field
from typing import Any, ClassVar, TypeVar

from pipeline.trials.condition import Trial, chosen
from pipeline.trials.fields import is_whole, listed_or, refuse
from pipeline.trials.network import Network as Network  # its settings must be declared first
from pipeline.trials.part import Part, again, extension, load, names_with, setting
from pipeline.trials.shapes import LayerShape

Build = TypeVar("Build", bound=Callable[..., Any])


class Own(Part):
    """A user's network. A record's contribution is a row, which `torch.func` computes from this record alone."""

    convolutional, own = False, True
    not_integer = "what a module computes is in floating point; noise 'secure' sums its contributions as integers"
    runs = "pipeline.learning.modules:ModuleTraining"
    version: ClassVar[int] = 0  # of its results
    source: ClassVar[str] = ""  # file of the function, for messages

    network_version: int = setting(0, "version of a user's network; by default that which is loaded", low=0)
    input_norm: float = again("input_norm", elide=True)
    records_at_once: int = setting(
        128, "records whose contributions a user's network computes at a time; memory grows with it", low=1, high=4096)
    shared_blocks: int = setting(
        1, "blocks of a user's network, from the lowest, that back-propagate from the block above them", low=1,
        needs=[chosen("algorithm", "hybrid")])

    @property
    def lower_layers(self) -> int:
        return self.shared_blocks

    def settled(self, trial: Trial) -> dict[str, Any]:
        """Return the loaded version if none is given."""
        return {} if self.network_version else {"network_version": self.version}

    def layers(self, shape: tuple[int, ...], n_classes: int) -> tuple[LayerShape, ...]:
        """Return the shapes of the blocks."""
        blocks: tuple[LayerShape, ...] = load("pipeline.learning.modules:described")(self, shape, n_classes).blocks
        return blocks

    def check(self, trial: Trial) -> None:
        """Refuse what no module of the user can be trained by, and a module that cannot be trained record by record."""
        feedback, mechanism, network = trial.parts.feedback, trial.parts.mechanism, f"network '{self.name}'"
        refuse(not feedback.described and not feedback.convolutional, "algorithm", f"trains {network} as 'bp', 'dfa', "
               "'tdfa', 'pdfa' or 'hybrid'", f"'{trial.algorithm}'")
        refuse(mechanism.private and not mechanism.flat, "mechanism", "must be 'none' or "
               f"{listed_or(names_with('mechanism', 'flat'))} with {network}; others bound layers of this package, and "
               "nothing is described of blocks", f"'{mechanism.name}'")
        refuse(trial.denoise, "denoise", "needs the columns of a layer's weights, which a block has not",
               f"true with {network}", "use false")
        refuse(trial.parts.arithmetic.factors != "float32", "matmul_precision", f"must be 'float32' with {network}",
               f"'{trial.matmul_precision}'")
        n_blocks = len(self.layers(trial.parts.features.shape(trial), trial.parts.data.spec.n_classes))
        refuse(not feedback.exact and n_blocks < 2, "network", "must have a block below its output block, to which an "
               "error is projected", f"{n_blocks} in '{self.name}' with algorithm '{trial.algorithm}'", "use 'bp'")
        refuse(feedback.convolutional and self.shared_blocks > n_blocks - 2, "shared_blocks", "must leave a block for "
               f"feedback and the output block, of {n_blocks} in all", self.shared_blocks)
        load("pipeline.learning.modules:check_trainable")(trial)


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
        >>> @network("small", version=1, settings={"width": setting(8, "units of the hidden layer", low=1)})
        ... def small(trial, shape, n_classes):
        ...     hidden = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(trial.width), torch.nn.Tanh())
        ...     return torch.nn.Sequential(hidden, torch.nn.Linear(trial.width, n_classes))
        >>> trial = TrialConfig(dataset="digits", network="small", algorithm="dfa", mechanism="per_example",
        ...                     noise_multiplier=1)
        >>> trial.layer_sizes
        (64, 8, 10)
    """
    refuse(not is_whole(version), "version", "must be a whole number >= 1", repr(version))

    def register(function: Build) -> Build:
        """Register the function, and return it unchanged."""
        own_settings = dict(settings or {})
        extension("network", name, Own, own_settings, works=staticmethod(function), label=label or name,
                  version=version, source=inspect.getsourcefile(function) or "")
        return function
    return register
