"""A trial's own states of global generators, and its own global settings of torch."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from pipeline.learning.mechanisms.registry import FP32_PRODUCTS
from pipeline.trials.streams import sequence


class GlobalRandomness:
    """A trial's own states of torch's, NumPy's and Python's generators (stream `trainer`), and settings of torch."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        with self.restoring():
            seeds = [int(sequence(seed, "trainer", k).generate_state(1)[0]) for k in range(3)]
            torch.manual_seed(seeds[0])
            np.random.seed(seeds[1])
            random.seed(seeds[2])
            self.state, self._settings = self._global_state(), torch_settings()

    def _global_state(self) -> dict[str, Any]:
        numpy_state: Any = np.random.get_state()  # a tuple by default, though NumPy's types allow a dict
        name, keys, *rest = numpy_state
        return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": [name, keys.tolist(), *rest],
                "cuda": torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None}

    def set_global(self, state: Mapping[str, Any]) -> None:
        """Set the global generators of torch, Python and NumPy to these states, by library."""
        torch.set_rng_state(state["torch"])
        version, keys, gauss = state["python"]
        random.setstate((version, tuple(keys), gauss))
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
        if state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"], self._device)

    @contextlib.contextmanager
    def restoring(self) -> Iterator[None]:
        """Restore the current states of the global generators at the end of the context."""
        state_before = self._global_state()
        try:
            yield
        finally:
            self.set_global(state_before)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Use this trial's generators and settings as the global ones within the context, then restore the former."""
        with self.restoring(), self.settings_installed():
            self.set_global(self.state)
            try:
                yield
            finally:
                self.state, self._settings = self._global_state(), torch_settings()

    @contextlib.contextmanager
    def settings_installed(self) -> Iterator[None]:
        """Use this trial's settings of torch within the context, as its model needs them, too."""
        settings_before = torch_settings()
        _set_torch(self._settings)
        try:
            yield
        finally:
            _set_torch(settings_before)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return partial(getattr, owner, name), partial(setattr, owner, name)


# Functions that get and set torch's global settings, which a trainer may change.
SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    *(_attribute(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "enabled")),
    *(_attribute(attrgetter(name)(torch.backends), "fp32_precision") for name in FP32_PRODUCTS),
    *((partial(get, kind), partial(set_value, kind)) for kind in ("cpu", "cuda") for get, set_value in (
        (torch.is_autocast_enabled, torch.set_autocast_enabled), (torch.get_autocast_dtype, torch.set_autocast_dtype))))


def torch_settings() -> list[Any]:
    """Return the values of torch's settings, in the order of `SETTINGS`."""
    return [get() for get, _ in SETTINGS]


def _set_torch(values: Sequence[Any]) -> None:
    """Set those of torch's settings that have other values."""
    for value, (get, set_value) in zip(values, SETTINGS, strict=True):
        if get() != value:
            set_value(value)
