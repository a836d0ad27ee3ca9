"""Trials on features of the digits, one for each kind of map, and what the maps give for records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.maps.computed import compute
from pipeline.learning.data.maps.dead_leaves import REFERENCES, dead_leaves
from pipeline.trials.config import TrialConfig

SMALL: dict[str, Any] = dict(dataset="digits", hidden=(16,), batch_size=64, epochs=3, input_norm=2.0, learning_rate=0.5)
PRIVATE: dict[str, Any] = dict(mechanism="per_example", noise_multiplier=0.5)
SCATTERING = TrialConfig(**SMALL, features="scattering", scattering_scales=1, feature_groups=3)
PATCHES = TrialConfig(**SMALL, features="patches", patch_filters=12, patch_size=3, patch_pools=2)
ENCODER = TrialConfig(**SMALL, features="encoder", encoder_pools=2)
JOINT = replace(PATCHES, patch_filters=6, patch_pools=3, patch_beside="encoder", encoder_pools=2, beside_weight=0.5,
                feature_power=0.5, feature_decorrelation=1.0)
BESIDE: dict[str, Any] = dict(scattering_scales=1, feature_power=1.0, feature_decorrelation=0.0)  # of scattering there


def leaves() -> torch.Tensor:
    """The synthetic images by which maps are standardised, as records of the digits [n, 64]."""
    return (dead_leaves(REFERENCES, 1, 8) * 16).round().to(torch.uint8).flatten(1)


def mirrored(records: torch.Tensor) -> torch.Tensor:
    """Records of the digits, left and right exchanged."""
    return records.view(-1, 8, 8).flip(2).flatten(1)


def mapped(data: Dataset, trial: TrialConfig, records: torch.Tensor, **changes: Any) -> torch.Tensor:
    """Features of records, float64, of a trial with some settings changed."""
    return compute([records], data, replace(trial, **changes))[0].double()
