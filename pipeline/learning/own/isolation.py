"""Run a user's code so that nothing which it draws or sets in torch, NumPy or Python stays: when it builds a network,
and for every record that is computed alone."""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from pipeline.learning.mechanisms.registry import FP32_PRODUCTS
from pipeline.learning.randomness import sequence


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return functions that get and set an attribute of `owner`."""
    return partial(getattr, owner, name), partial(setattr, owner, name)


FILLS_MEMORY, FILL_MEMORY = _attribute(torch.utils.deterministic, "fill_uninitialized_memory")

# Functions that get and set torch's global settings, which a network's code may change.
TORCH_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (FILLS_MEMORY, FILL_MEMORY),
    *(_attribute(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "enabled")),
    *(_attribute(attrgetter(name)(torch.backends), "fp32_precision") for name in FP32_PRODUCTS),
    *((partial(get, kind), partial(set_value, kind)) for kind in ("cpu", "cuda") for get, set_value in (
        (torch.is_autocast_enabled, torch.set_autocast_enabled), (torch.get_autocast_dtype, torch.set_autocast_dtype))))


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the global generators of torch, NumPy and Python, and torch's settings, at the end of the context."""
    settings = [get() for get, _ in TORCH_SETTINGS]
    states = np.random.get_state(), random.getstate()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])
        for value, (get, set_value) in zip(settings, TORCH_SETTINGS, strict=True):
            if get() != value:
                set_value(value)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators from the stream `network` within the context; at its end all is `restored`."""
    seeds = [int(sequence(seed, "network", k).generate_state(1)[0]) for k in range(3)]
    with restored():
        torch.manual_seed(seeds[0])
        np.random.seed(seeds[1])
        random.seed(seeds[2])
        yield


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run eagerly on one thread with deterministic kernels and filled memory; show no output, and restore all."""
    with (restored(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()),
          contextlib.redirect_stderr(io.StringIO()), torch.enable_grad(), torch.compiler.set_stance("force_eager")):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        FILL_MEMORY(True)  # with nan
        try:
            yield
        finally:
            torch.set_flush_denormal(False)  # nothing tells how it was
