"""The private folder of a tracking store: files that depend on the records and are not released.

    <private>/checkpoints/<sweep>/    weights, and epochs that are not published yet
    <private>/failures/<sweep>.log    tracebacks of trials with secret noise
    <private>/ray/                    Ray Tune's files, while it runs
    <private>/ray.log                 Ray's own messages
    <private>/digests.json            digests of private files, by their public names in the store

It is as private as the data. By default it is `<root>/private`, outside the folders that `photonic ui` serves.
Checkpoints and sealed results are JSON and arrays in one safetensors file with a checksum, never pickle. A file is
written under another name, flushed to the disk and then moved, so that a reader finds all of it or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pipeline.trials.config import TrialConfig
from pipeline.trials.feature_file import file_of
from pipeline.trials.fields import ConfigError, UserError
from pipeline.trials.records import EpochRecord

VARIABLE = "PHOTONIC_PRIVATE"
UNFINISHED = ".tmp"  # suffix of what a process was writing when it died
SERVED = ("artifacts", "reports")  # folders of a store's root, or names of folders, that others can see


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, readable by the owner only; existing folders are not changed."""
    for path in reversed([folder, *folder.parents]):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


class PrivateFolder:
    """The private folder's paths, by default PHOTONIC_PRIVATE, else `<root>/private`; only `make` creates anything."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        self.root = Path(root).absolute()
        given = folder or os.environ.get(VARIABLE) or self.root / "private"
        self.path = Path(given).expanduser().absolute()
        self.ray, self.ray_log, self._digests = (self.path / name for name in ("ray", "ray.log", "digests.json"))

    def make(self, secure: bool, served: Collection[Path] = ()) -> None:
        """Create the folder, readable by its owner alone; refuse one in a folder that others are shown."""
        for other in {self.root / name for name in SERVED} | {Path(path).absolute() for path in served}:
            if self.path.resolve().is_relative_to(other.resolve()):
                raise ConfigError(f"private folder: must lie outside {other}, which others are shown, got {self.path}; "
                                  f"name another by --private or {VARIABLE}")
        try:
            make_private(self.path)
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise ConfigError(f"private folder: must be a folder that can be written, got {self.path} "
                              f"({error.strerror}); nothing was released; name another by --private or {VARIABLE}"
                              ) from None
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if secure and mode & 0o077:
            raise ConfigError("private folder: must be readable by its owner alone (mode 700) with noise 'secure', "
                              f"got {self.path} with mode {mode:o}; change that, or name another by --private or "
                              f"{VARIABLE}")

    def checkpoints(self, sweep: str) -> Path:
        return self.path / "checkpoints" / sweep

    def feature_digests(self, trials: Iterable[TrialConfig]) -> dict[str, str]:
        """Return the SHA-256 of every named feature file, by name; new ones are stored here permanently."""
        files = {(trial.feature_name, trial.feature_file, trial.dataset) for trial in trials
                 if trial.parts.features.of_file and trial.feature_name}
        if not files:
            return {}
        with FileLock(f"{self._digests}.lock"):
            digests = json.loads(self._digests.read_text()) if self._digests.exists() else {}
            for name, file, dataset in sorted(files):
                digest = file_of(Path(file), dataset).sha256
                if digests.setdefault(name, digest) != digest:
                    raise ConfigError(f"feature_name: '{name}' has stood for another file in trials of this store, and "
                                      f"is given for {file} now; give that a name of its own")
            temporary = self._digests.with_suffix(".part")
            temporary.write_text(json.dumps(digests, indent=1))
            temporary.replace(self._digests)
        return {name: digests[name] for name, _, _ in files}


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
    with contextlib.suppress(OSError):  # some systems flush no folder after a move
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()} if with_arrays else {}  # noqa: SIM118
        return header["training"], header["sha256"], arrays
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UnusableFile(f"it is damaged ({str(error).splitlines()[0]})") from None


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


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
