"""Checkpoints: where a pack's training stands, in one safetensors file with JSON in its header, never pickle.

A file holds the state of a training at the end of an epoch and every record until then, so that whoever goes on from
it can hand all of them in again; the tracking store takes each once. It is written beside its place, flushed to the
disk and moved there, so that a reader finds the old one or the new one. It is named by the trials of its pack.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pipeline.package import ROOT
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError, digest
from pipeline.trials.packs import Pack
from pipeline.trials.plugins import LOADED
from pipeline.trials.records import ClassAccuracy, EpochRecord, Outcome

SUFFIX, UNFINISHED = ".safetensors", ".tmp"


class CheckpointError(UserError, ValueError):
    """A checkpoint that nothing can go on from; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a pack stands.

    Attributes:
        device: kind of device it was trained on; on another one the bits would differ.
        arrays, values: of `pipeline.learning.state.capture`.
        records: of all trials, from the first epoch on.
    """

    device: str
    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Any]
    records: Sequence[EpochRecord]


@dataclass(frozen=True)
class Found:
    """A checkpoint in the folder, by its header: `problem` says why nothing can go on from it."""

    path: Path
    trial_keys: tuple[str, ...] = ()
    epoch: int = 0
    problem: str = ""


class Checkpoints:
    """The checkpoints of one sweep.

    Args:
        folder: where they lie; packs on hosts that do not share it can go on only on the host where they began.
        seconds: time between two checkpoints of a pack, at least.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = Path(folder), seconds

    def path(self, pack: Pack) -> Path:
        """The one checkpoint of a pack, whether it is there or not."""
        return self.folder / (digest({"trials": _keys(pack)}) + SUFFIX)

    def save(self, pack: Pack, checkpoint: Checkpoint) -> None:
        """Replace the pack's checkpoint, as a whole or not at all."""
        arrays, records = dict(checkpoint.arrays), []
        for number, record in enumerate(checkpoint.records):
            entry = dataclasses.asdict(dataclasses.replace(record, outcome=None, if_stopped=None))
            if record.outcome:
                arrays |= {f"outcome_{number}.{name}": array for name, array in record.outcome.weights.items()}
                entry["outcome"] = {"status": record.outcome.status,
                                    "per_class": [dataclasses.asdict(c) for c in record.outcome.per_class]}
            records.append(entry)
        text = json.dumps({"software": SOFTWARE, "device": checkpoint.device, "trials": _keys(pack),
                           "values": checkpoint.values, "records": records, "plugins": LOADED})
        content = save({name: np.array(array, order="C") for name, array in arrays.items()},
                       {"training": text, "sha256": _checksum(text, arrays)})
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=UNFINISHED, delete=False) as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, self.path(pack))
            finally:
                Path(file.name).unlink(missing_ok=True)
        _flush_folder(self.folder)

    def load(self, pack: Pack, device: str) -> Checkpoint | None:
        """The pack's checkpoint, verified; None if there is none.

        Raises:
            CheckpointError: for one that is damaged, or of other software, another pack or another kind of device.
        """
        path = self.path(pack)
        if not path.exists():
            return None
        text, checksum, arrays = _read(path, with_arrays=True)
        if _checksum(text, arrays) != checksum:
            raise CheckpointError("its content does not have its checksum")
        content = _content(text)
        if content["trials"] != _keys(pack):
            raise CheckpointError("it is of other trials")
        if content["device"] != device:
            raise CheckpointError(f"it was trained on '{content['device']}', and this is '{device}'")
        records = [_record(entry, arrays, f"outcome_{number}.") for number, entry in enumerate(content["records"])]
        own = {name: array for name, array in arrays.items() if not name.startswith("outcome_")}
        return Checkpoint(device, own, content["values"], records)

    def remove(self, pack: Pack) -> None:
        """Remove the pack's checkpoint, if there is one."""
        self.path(pack).unlink(missing_ok=True)

    def found(self) -> list[Found]:
        """All checkpoints in the folder, by their headers; nothing is changed."""
        return [_found(path) for path in sorted(self.folder.glob(f"*{SUFFIX}"))]

    def resumable(self, trials: Sequence[TrialConfig], done: Collection[str], say: Callable[[str], None]) -> list[Pack]:
        """Packs that go on from their checkpoints, and remove all else from the folder.

        Args:
            trials: all trials of the experiment.
            done: trial_keys of those that need no more training; they stay in their pack, which trains on without them.
            say: takes a line on every checkpoint that is given up.
        """
        configs, packs, taken = {trial.trial_key: trial for trial in trials}, [], set()
        for found in self.found():
            keys, problem = set(found.trial_keys), found.problem
            if not problem and not keys <= configs.keys():
                problem = "trials of its pack are no longer in the experiment"
            if not problem and keys & taken:
                problem = "another one has trials of its pack"
            if problem:
                say(f"checkpoint {found.path.name} given up, its trials start again: {problem}")
            elif not keys <= set(done):
                packs.append(Pack(tuple(configs[key] for key in found.trial_keys)))
                taken |= keys
                continue
            found.path.unlink(missing_ok=True)
        for path in self.folder.glob(f"*{UNFINISHED}"):
            path.unlink(missing_ok=True)
        return packs


def _code() -> str:
    """Digest of this package's source."""
    root, code = ROOT, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        code.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return code.hexdigest()[:16]


# What must be the same for a trial to go on: its epochs would come from two programs otherwise. Read when this module
# is imported, because files may change while a process goes on with what it has loaded.
SOFTWARE: dict[str, Any] = {"format": 1, "code": _code(),
                            **{name: importlib.metadata.version(name) for name in ("torch", "numpy")}}


def _keys(pack: Pack) -> list[str]:
    return [trial.trial_key for trial in pack.trials]


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode() + arrays[name].tobytes())
    return total.hexdigest()


def _read(path: Path, with_arrays: bool) -> tuple[str, str, dict[str, np.ndarray]]:
    """(JSON text, checksum, arrays) of a file."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()} if with_arrays else {}  # noqa: SIM118
        return header["training"], header["sha256"], arrays
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"it is damaged ({str(error).splitlines()[0]})") from None


def _content(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
        written = dict(content["software"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointError("it is damaged (its header cannot be read)") from None
    plugins = content.get("plugins", {}).keys() & LOADED  # whoever trains has loaded them; others may only look
    written |= {f"plugin {name}": content["plugins"][name] for name in plugins}
    here = {**SOFTWARE, **{f"plugin {name}": LOADED[name] for name in plugins}}
    if written != here:
        other = ", ".join(f"{name} {written.get(name)} and not {value}" for name, value in here.items()
                          if written.get(name) != value)
        raise CheckpointError(f"other software wrote it ({other})")
    return content


def _found(path: Path) -> Found:
    try:
        content = _content(_read(path, with_arrays=False)[0])
        return Found(path, tuple(content["trials"]), content["values"]["epoch"])
    except CheckpointError as error:
        return Found(path, problem=str(error))


def _record(entry: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str) -> EpochRecord:
    outcome = entry["outcome"]
    if outcome:
        weights = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        outcome = Outcome(outcome["status"], weights, tuple(ClassAccuracy(**c) for c in outcome["per_class"]))
    return EpochRecord(**{**entry, "outcome": outcome})


def _flush_folder(folder: Path) -> None:
    """Let the name of a file that was moved reach the disk, where folders can be flushed."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
