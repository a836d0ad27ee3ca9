"""Optical Processing Units, real and simulated: the only module that imports lightonml."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pipeline.trials.fields import UserError


class OpuUnavailable(UserError, RuntimeError):
    """No OPU can be opened on this host; the message says what is missing and what to do."""


def import_lightonml() -> ModuleType:
    """Import lightonml with the modules in use here; return it."""
    with warnings.catch_warnings():
        # lightonml imports pkg_resources, which warns about itself.
        warnings.simplefilter("ignore")
        import lightonml
        import lightonml.internal.config
        import lightonml.internal.simulated_device
        import lightonml.types
    return lightonml


def simulated_device(n_features: int, n_components: int, seed: int) -> Any:
    """Return lightonml's `SimulatedOpuDevice`, which computes Re(x R).

    Its `random_matrix` R [n_features, n_components] has real and imaginary parts N(0, 1/n_features).
    """
    simulated = import_lightonml().internal.simulated_device.SimulatedOpuDevice(linear=True)
    simulated.build_random_matrix(n_features, n_components, seed)
    return simulated


def check_opu() -> None:
    """Refuse a host without lightonml, its driver lightonopu or the device's configuration; opens no device."""
    remedy = "use projector 'opu_simulated', or run on a host with an OPU and"
    if importlib.util.find_spec("lightonml") is None:
        raise OpuUnavailable(f"OPU: the package lightonml is not installed; {remedy} install it")
    if importlib.util.find_spec("lightonopu") is None:
        raise OpuUnavailable(f"OPU: the driver lightonopu is not installed; {remedy} install it")
    if not import_lightonml().internal.config.host_has_opu_config():
        raise OpuUnavailable(f"OPU: no device is configured in /etc/lighton; {remedy} its configuration")


def open_fitted(n_features: int, n_components: int, open_opu: Callable[[int], Any] | None = None) -> Any:
    """Return an open OPU, set to inputs of `n_features` bits: that of `open_opu(n_components)`, by default the host's.

    It is closed again if setting it fails: only one process can hold it.
    """
    if open_opu is None:
        check_opu()
        opu = import_lightonml().OPU(n_components=n_components, open_at_init=True, disable_pbar=True)
    else:
        opu = open_opu(n_components)
    try:
        opu.fit1d(n_features=n_features)
    except BaseException:
        opu.close()
        raise
    return opu
