"""Mechanisms: how learning signals and activations become the update that is applied.

A mechanism has three hooks, called in this order by the training step:

    perturb(signals)                  on what feedback carries to the layers, before phi'
    derivative(h)                     phi' as the update uses it
    update(deltas, activations, out)  the applied update, mean over the batch, written to `out`
"""

from __future__ import annotations

import torch

from pipeline.mechanisms.none import NoMechanism
from pipeline.mechanisms.photonic import Photonic
from pipeline.networks import Mlp
from pipeline.packs import Pack

Mechanism = NoMechanism | Photonic

MECHANISMS: dict[str, type[Mechanism]] = {"none": NoMechanism, "photonic": Photonic}


def make_mechanism(pack: Pack, net: Mlp, device: torch.device) -> Mechanism:
    """The mechanism that the pack's trials share, with every trial's own parameters."""
    return MECHANISMS[pack.shared.mechanism](pack.trials, net, device)
