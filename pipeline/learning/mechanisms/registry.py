"""Make a trial's mechanism, and register new mechanisms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from operator import attrgetter
from typing import Any, cast

import torch

from pipeline.learning.mechanisms.base import MECHANISMS, MechanismStep
from pipeline.learning.mechanisms.gaussian import GaussianStep
from pipeline.learning.mechanisms.photonic import PhotonicStep as PhotonicStep  # enters itself
from pipeline.learning.network.stacked import StackedNetwork
from pipeline.trials import mechanism as parts
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.part import extension

# Settings of `torch.backends` for products of float32.
FP32_PRODUCTS = ("cuda.matmul", "cudnn.conv", "mkldnn.matmul", "mkldnn.conv")


def make_mechanism(pack: Pack, net: StackedNetwork, device: torch.device,
                   matrices: torch.Tensor | None = None) -> MechanismStep:
    """Make the pack's mechanism; a certified one is refused if torch is set to TF32 or bfloat16 products."""
    mechanism = pack.shared.parts.mechanism
    if mechanism.certified:
        _check_full_precision(mechanism.name)
    return MECHANISMS[mechanism](pack.trials, net, device, matrices)


def _check_full_precision(mechanism: str) -> None:
    """Refuse a setting of torch that rounds factors of float32 products (TF32); by default (`none`) it rounds none."""
    for name in FP32_PRODUCTS:
        value = attrgetter(name)(torch.backends).fp32_precision
        if value not in ("none", "ieee"):
            raise ConfigError(f"torch.backends.{name}.fp32_precision: must be 'ieee' with mechanism '{mechanism}',"
                              f" whose bound on contributions does not cover rounding, got '{value}'")


def _gaussian(trial: TrialConfig) -> type[GaussianStep]:
    return cast("type[GaussianStep]", MECHANISMS[trial.parts.mechanism])


def contribution_bound(trial: TrialConfig) -> float:
    """Return C of a trial with a Gaussian mechanism (`GaussianStep.bound`)."""
    return _gaussian(trial).bound(trial)


def noise_deviation(trial: TrialConfig) -> float:
    """Return the standard deviation of a Gaussian mechanism's noise on the sum (`GaussianStep.deviation`)."""
    return _gaussian(trial).deviation(trial)


def register_mechanism(name: str, mechanism: type[MechanismStep], *,
                       settings: Sequence[str] | Mapping[str, Field[Any] | None] = (), guarantee: str = "") -> None:
    """Add a mechanism: `mechanism: <name>` is accepted after this call (docs/extending.md).

    Args:
        name: value of the setting `mechanism`.
        mechanism: class, made once per pack with the arguments of `MechanismStep`.
        settings: fields that it uses, such as `clipping_norm`, and new fields, as in `register_feedback`. They become
            part of its trials' identity.
        guarantee: for a `GaussianStep`, the reason why no record contributes more than its `bound`. Its trials are
            then certified, and the tag `privacy.notes` has this sentence. Without it they have no epsilon. Noise
            `secure` needs integers: a mechanism supports them if it defines `factor` and does not override `bounded`.

    Raises:
        ConfigError: for a name in use, an unknown field, or a guarantee that accountants cannot cover.
    """
    inherits = issubclass(mechanism, GaussianStep) and mechanism.update is GaussianStep.update
    if guarantee and not inherits:
        raise ConfigError("guarantee: needs a GaussianStep that inherits `update`, because accountants cover the "
                          f"noise of that method, got {mechanism.__qualname__}; leave it out, and there is no epsilon")
    if "target_epsilon" in settings and not guarantee:
        raise ConfigError("settings: target_epsilon needs a guarantee, or nothing can be accounted for, got none")
    bounds_by_factor = (inherits and issubclass(mechanism, GaussianStep)
                        and mechanism.bounded is GaussianStep.bounded)
    attributes = {"not_integer": ""} if bounds_by_factor and guarantee else {}  # integer arithmetic is supported
    base = parts.Gaussian if guarantee else parts.Mechanism
    MECHANISMS.of(extension("mechanism", name, base, settings, mechanism, guarantee=guarantee, **attributes))(mechanism)
