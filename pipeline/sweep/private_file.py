"""Checkpoints and sealed results as files: JSON and arrays in one safetensors file with a checksum, never pickle.

A file is written under another name, flushed to the disk and then moved, so that a reader finds all of it or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pipeline.sweep.private import make_private
from pipeline.trials.fields import UserError
from pipeline.trials.records import EpochRecord

UNFINISHED = ".tmp"  # suffix of what a process was writing when it died


class UnusableFile(UserError, ValueError):
    """A checkpoint or a sealed result cannot be used; the message has the reason."""


def write(path: Path, text: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file in place of one that is there; `OSError` leaves that one as it was."""
    content = save({name: np.array(array, order="C") for name, array in arrays.items()},
                   {"training": text, "sha256": _checksum(text, arrays)})
    make_private(path.parent)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=UNFINISHED, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        finally:
            Path(file.name).unlink(missing_ok=True)
    _flush_folder(path.parent)


def read(path: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Return (JSON text, arrays by name) of a file that has its checksum; `UnusableFile` otherwise."""
    text, checksum, arrays = _content(path, with_arrays=True)
    if _checksum(text, arrays) != checksum:
        raise UnusableFile("its content does not have its checksum")
    return text, arrays


def read_text(path: Path) -> str:
    """Return a file's JSON text, for listings; whether the file has its checksum is not known."""
    return _content(path, with_arrays=False)[0]


def _content(path: Path, with_arrays: bool) -> tuple[str, str, dict[str, np.ndarray]]:
    """Return (JSON text, checksum, arrays by name) of a file."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()} if with_arrays else {}  # noqa: SIM118
        return header["training"], header["sha256"], arrays
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UnusableFile(f"it is damaged ({str(error).splitlines()[0]})") from None


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 digest of a text and of all arrays, with their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def _flush_folder(folder: Path) -> None:
    """Flush a folder after a move, on systems that support it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def packed(records: Sequence[EpochRecord]) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return records as JSON values, and the weights of their outcomes as arrays; `unpacked` reads both."""
    arrays = {f"outcome_{number}.{name}": array for number, record in enumerate(records) if record.outcome
              for name, array in record.outcome.weights.items()}
    return [record.as_entry() for record in records], arrays


def unpacked(entries: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]) -> list[EpochRecord]:
    """Return the records from `packed` values; other arrays are ignored."""
    records = []
    for number, entry in enumerate(entries):
        prefix = f"outcome_{number}."
        weights = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        records.append(EpochRecord.from_entry(entry, weights))
    return records
