"""The slots of a trial: which questions it answers, and what is chosen where nothing is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline.trials.part import PARTS, SETTINGS, Need, setting


def private() -> Need:
    """The trial has a mechanism."""
    return Need("mechanism other than 'none'", lambda c: f"mechanism '{c.mechanism}'",
                lambda c: c.parts.mechanism.private)


def slot(name: str, attribute: str, default: str, doc: str, **rules: Any) -> str:
    """Open a slot; `attribute` is what `Parts` calls it, `rules` are those of `setting`."""
    PARTS[name] = {}
    f = setting(default, doc, choices=PARTS[name], **rules)
    f.name = name
    SETTINGS[name] = f
    return attribute


# In this order a trial is composed, and its settings are listed.
SLOTS: Mapping[str, str] = {name: slot(name, *rest[:3], **rest[3]) for name, *rest in (
    ("dataset", "data", "fashion_mnist", "data set", {}),
    ("features", "features", "pixels",
     "what the network takes in: pixels, or a public map of single records: scattering coefficients (Tramer and Boneh "
     "2021), responses to patches of synthetic images, random features of an OPU, or those of a file",
     {"elide": True}),
    ("network", "network", "mlp",
     "architecture: fully connected, or `convnet`, convolutions with 2 x 2 max pools before those layers", {}),
    ("algorithm", "feedback", "dfa",
     "feedback: back-propagation, DFA, ternarized DFA, that projected by an OPU, or DFA in fully connected layers with "
     "back-propagation from them through convolutions", {}),
    ("projector", "projector", "",
     "who computes B e; by default `opu_simulated` for pdfa, `gaussian` for dfa, tdfa and hybrid, `none` for bp", {}),
    ("mechanism", "mechanism", "none", "how the update is privatized", {}),
    ("noise", "release", "research",
     "noise and batches are drawn by seed (`research`), so that the trial can be repeated and whoever knows the seed "
     "can subtract the noise, or from the operating system, recorded nowhere (`secure`)", {"needs": [private()]}),
    ("sampler", "sampler", "shuffled", "how batches are drawn", {}),
    ("optimizer", "optimizer", "sgd", "torch.optim optimizer", {}),
)}


def slot_fields() -> tuple[dataclasses.Field, ...]:
    """The settings by which parts are chosen."""
    return tuple(SETTINGS[name] for name in SLOTS)
