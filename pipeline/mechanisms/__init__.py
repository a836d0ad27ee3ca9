"""Mechanisms: how learning signals and activations become the update that is applied (see `base.Mechanism`)."""

from __future__ import annotations

import torch

from pipeline.mechanisms.base import Mechanism
from pipeline.mechanisms.gaussian import Component, PerExample
from pipeline.mechanisms.none import NoMechanism
from pipeline.mechanisms.photonic import Photonic
from pipeline.networks import Network
from pipeline.packs import Pack

MECHANISMS: dict[str, type[Mechanism]] = {"none": NoMechanism, "photonic": Photonic, "component": Component,
                                          "per_example": PerExample}


def make_mechanism(pack: Pack, net: Network, device: torch.device, matrices: torch.Tensor | None = None) -> Mechanism:
    """The mechanism that the pack's trials share, with every trial's own parameters (arguments as `Mechanism`'s)."""
    return MECHANISMS[pack.shared.mechanism](pack.trials, net, device, matrices)
