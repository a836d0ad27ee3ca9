"""Run the code of users' networks: its global state, and what it gives for records."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from pipeline.learning.mechanisms.registry import FP32_PRODUCTS
from pipeline.trials.streams import sequence

TRIED_BATCHES = 2  # per epoch on which the function of rows is tried: the first weights, if 0, may hide a fault
STORABLE = ("bool", "int", "uint", "float", "complex64")  # prefixes of NumPy's types that a file of weights can hold
RowsFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # maps records and labels to rows


class GlobalRandomness:
    """A trial's own states of torch's, NumPy's and Python's generators (stream `network`), and settings of torch."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        with self.restoring():
            seeds = [int(sequence(seed, "network", k).generate_state(1)[0]) for k in range(3)]
            torch.manual_seed(seeds[0])
            np.random.seed(seeds[1])
            random.seed(seeds[2])
            self.state, self._settings = self._global_state(), torch_settings()

    def _global_state(self) -> dict[str, Any]:
        return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state(),
                "cuda": torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None}

    def set_global(self, state: Mapping[str, Any]) -> None:
        """Set the global generators of torch, Python and NumPy to these states, by library."""
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # from a checkpoint its array is a tensor, which NumPy takes, too
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
    """Return functions that get and set an attribute of `owner`."""
    return partial(getattr, owner, name), partial(setattr, owner, name)


# Functions that get and set torch's global settings, which a network's code may change.
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
    """Set torch's settings, in the order of `SETTINGS`, to these values."""
    for value, (get, set_value) in zip(values, SETTINGS, strict=True):
        if get() != value:
            set_value(value)


def filled(size: int, *parts: torch.Tensor) -> list[torch.Tensor]:
    """Return the parts of at most `size` records, in new memory, with zeros for records that are missing."""
    # `cat` takes new memory, also for a full chunk: kernels may depend on how memory is aligned.
    return [torch.cat([part, part.new_zeros(size - len(part), *part.shape[1:])]) for part in parts]


def in_chunks(function: RowsFunction, size: int, d: int, records: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the rows [n, d] of records, computed `size` at a time; zeros fill the last chunk."""
    kept = torch.empty(len(records), d, device=records.device)  # the function may write all rows to the same memory
    for begin in range(0, len(records), size):
        parts = [part[begin:begin + size] for part in (records, labels)]
        kept[begin:begin + size] = function(*filled(size, *parts))[:len(parts[0])]
    return kept


def rows_are_separate(function: RowsFunction, size: int, d: int, records: torch.Tensor, labels: torch.Tensor) -> bool:
    """Whether rows of 1.5 chunks of test records keep their bits if neighbours are permuted, missing or replaced."""
    half, indices = size // 2, torch.arange(size, device=records.device)
    with_others = torch.cat([indices[:half], indices[half:] + half])

    def bits(indices: torch.Tensor) -> list[bytes]:  # digests, as rows may be long
        rows = in_chunks(function, size, d, records[indices], labels[indices]).detach().cpu().numpy()
        return [hashlib.blake2b(row.tobytes()).digest() for row in rows]

    expected = bits(indices)
    return (bits(indices.flip(0))[::-1] == expected and bits(indices[:half]) == expected[:half]
            and bits(with_others)[:half] == expected[:half])


def has_batch_statistics(module: torch.nn.Module) -> bool:
    """Whether a layer keeps or takes statistics of whole batches of private records."""
    return isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats)


def array_of(value: Any) -> np.ndarray:
    """Return a tensor as a dense array, types such as bfloat16 as float32; a `TypeError` if no file can hold it."""
    if not isinstance(value, torch.Tensor) or value.is_meta or value.is_quantized or value.is_nested:
        raise TypeError(type(value).__name__)
    dense = value.detach().to_dense().cpu()
    if dense.is_floating_point() and dense.element_size() <= 2 and dense.dtype != torch.float16:  # NumPy lacks it
        dense = dense.float()
    array = dense.numpy()
    if not array.dtype.name.startswith(STORABLE):
        raise TypeError(array.dtype.name)
    return array
