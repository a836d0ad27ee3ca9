"""The mechanisms by name, and how an extension adds one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from operator import attrgetter
from typing import Any

import torch

from pipeline.learning.mechanisms.base import Mechanism
from pipeline.learning.mechanisms.gaussian import GaussianMechanism
from pipeline.learning.network.network import Network
from pipeline.trials import mechanism as parts
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.part import extension


def make_mechanism(pack: Pack, net: Network, device: torch.device, matrices: torch.Tensor | None = None) -> Mechanism:
    """The mechanism that the pack's trials share, with every trial's own parameters (arguments as `Mechanism`'s).

    Raises:
        ConfigError: for a Gaussian mechanism where torch would round factors of products.
    """
    mechanism = pack.shared.parts.mechanism
    if mechanism.certified:
        check_float32(mechanism.name)
    return mechanism.load()(pack.trials, net, device, matrices)


def check_float32(mechanism: str) -> None:
    """Refuse settings of torch with which products of float32 have factors of fewer bits, on a GPU or a CPU.

    Raises:
        ConfigError: naming the first such setting, and what it must be.
    """
    for name in ("cuda.matmul", "cudnn.conv", "mkldnn.matmul", "mkldnn.conv"):
        value = attrgetter(name)(torch.backends).fp32_precision
        if value not in ("none", "ieee"):
            raise ConfigError(f"torch.backends.{name}.fp32_precision: must be 'ieee' with mechanism '{mechanism}', "
                              f"whose bound on contributions does not cover rounding, got '{value}'")


def contribution_bound(trial: TrialConfig) -> float:
    """C of a trial with a Gaussian mechanism (`GaussianMechanism.bound`)."""
    return trial.parts.mechanism.load().bound(trial)


def noise_deviation(trial: TrialConfig) -> float:
    """Standard deviation of the noise on the sum of a trial with a Gaussian mechanism
    (`GaussianMechanism.deviation`)."""
    return trial.parts.mechanism.load().deviation(trial)


def register_mechanism(name: str, mechanism: type[Mechanism], *,
                       settings: Sequence[str] | Mapping[str, Field[Any] | None] = (), guarantee: str = "",
                       rounding: float | None = None) -> None:
    """Add a mechanism: `mechanism: <name>` is accepted from then on (docs/add_mechanism.md).

    Args:
        name: of the setting `mechanism`.
        mechanism: made once per pack, with the arguments of `Mechanism`.
        settings: fields that it uses, such as `clipping_norm`, and new ones, as of `register_feedback`; they become
            part of its trials' identity.
        guarantee: of a `GaussianMechanism`, why no record contributes more than its `bound`. Its trials are then
            certified, and this sentence stands in their tag `privacy.notes`. Without it they have no epsilon.
        rounding: is not asked for any more, and changes nothing. Noise `secure` needs integers, for which a mechanism
            says with `factor` what contributions are multiplied by, and has no `bounded` of its own.

    Raises:
        ConfigError: for a name that is taken, a field that does not exist, or a guarantee of what is not accounted for.
    """
    inherits = issubclass(mechanism, GaussianMechanism) and all(
        getattr(mechanism, name) is getattr(GaussianMechanism, name) for name in ("update", "add_up"))
    if guarantee and not inherits:
        raise ConfigError("guarantee: can be stated of a GaussianMechanism with its own `update`, whose noise is what "
                          f"is accounted for, got {mechanism.__qualname__}; leave it out, and there is no epsilon")
    if "target_epsilon" in settings and not guarantee:
        raise ConfigError("settings: target_epsilon needs a guarantee, or nothing can be accounted for, got none")
    by_factor = (inherits and issubclass(mechanism, GaussianMechanism)
                 and mechanism.bounded is GaussianMechanism.bounded)
    attributes = {"not_integer": ""} if by_factor and guarantee else {}
    base = parts.Gaussian if guarantee else parts.Mechanism
    extension("mechanism", name, base, settings, works=mechanism, guarantee=guarantee,
              **attributes)
