"""Checkpoints: the state of a pack's training in one safetensors file with a JSON header, never pickle.

A file has the state at the end of an epoch and all records until then. A training that resumes from it sends all
records again; the tracking store takes each once. A file is written under another name, flushed to the disk and then
moved, so a reader finds the old file or the new one. Its name is a digest of the pack's trials.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pipeline.experiment.plugins import LOADED
from pipeline.package import ROOT
from pipeline.sweep.private import make_private
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError, digest
from pipeline.trials.packs import Pack
from pipeline.trials.records import ClassAccuracy, EpochRecord, Outcome

SUFFIX, UNFINISHED = ".safetensors", ".tmp"


class CheckpointError(UserError, ValueError):
    """A checkpoint cannot be used; the message has the reason."""


class Superseded(CheckpointError):
    """The tracking store has other noise, or later epochs, than a checkpoint of secret noise."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a pack's training."""

    device: str  # type; another one would give other bits
    arrays: Mapping[str, np.ndarray]  # these and the values are the result of `Training.capture`
    values: Mapping[str, Any]
    records: Sequence[EpochRecord]  # of all trials, from the first epoch on
    draw: str = ""  # name of the `Draw` of its secret noise


@dataclass(frozen=True)
class Found:
    """A checkpoint in the folder, by its header.

    `problem` is the reason why it cannot be used. If it cannot be read, the other attributes are empty.
    """

    path: Path
    trial_keys: tuple[str, ...] = ()
    epoch: int = 0
    problem: str = ""
    superseded: bool = False


@dataclass(frozen=True)
class PublishedState:
    """The tracking store's state of a secure trial: it shows whether a checkpoint is too old."""

    latest: str = ""  # name of the latest draw; empty for a run without this name
    published: int = 0  # epochs of that draw in the store


class Checkpoints:
    """The checkpoints of one sweep; without a shared folder a pack can resume only on the host where it began."""

    def __init__(self, folder: Path, seconds: float,  # least time between two checkpoints of a pack
                 known: Mapping[str, PublishedState] = MappingProxyType({})) -> None:  # secure trials with releases
        self.folder, self.seconds, self.known = Path(folder), seconds, dict(known)

    def path(self, pack: Pack) -> Path:
        """Return the path of a pack's checkpoint, which may not exist."""
        return self.folder / (digest({"trials": _keys(pack)}) + SUFFIX)

    def save(self, pack: Pack, checkpoint: Checkpoint) -> None:
        """Write a pack's checkpoint in place of its last one."""
        content = _content(pack, checkpoint)
        make_private(self.folder)
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
        """Return the pack's verified checkpoint; None if there is none.

        It is refused if it is damaged, or comes from other software, another pack or another device type; and as
        `Superseded` if another draw has replaced its secret noise, or later epochs were published.
        """
        path = self.path(pack)
        if not path.exists():
            return None
        text, checksum, arrays = _read(path, with_arrays=True)
        if _checksum(text, arrays) != checksum:
            raise CheckpointError("its content does not have its checksum")
        content = _parsed(text)
        require_same_software(content)
        if content["trials"] != _keys(pack):
            raise CheckpointError("it is of other trials")
        if content["device"] != device:
            raise CheckpointError(f"it was trained on '{content['device']}', and this is '{device}'")
        self._require_latest(content)
        records = [_record(entry, arrays, f"outcome_{number}.") for number, entry in enumerate(content["records"])]
        state = {name: array for name, array in arrays.items() if not name.startswith("outcome_")}
        return Checkpoint(device, state, content["values"], records, content.get("draw", ""))

    def remove(self, pack: Pack) -> None:
        self.path(pack).unlink(missing_ok=True)

    def _require_latest(self, content: Mapping[str, Any]) -> None:
        """Refuse a checkpoint if the store has another draw of its secret noise, or later epochs."""
        for known in (self.known[key] for key in content["trials"] if key in self.known):
            if content.get("draw", "") != known.latest:
                raise Superseded("another draw of its secret noise has replaced its own")
            if content["values"]["epoch"] < known.published:
                raise Superseded("later epochs of its trials were published, and would be drawn anew")

    def found(self) -> list[Found]:
        """Return all checkpoints in the folder, by their headers alone; changes nothing."""
        found = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            keys: tuple[str, ...] = ()
            try:
                content = _parsed(_read(path, with_arrays=False)[0])
                keys = tuple(content["trials"])
                self._require_latest(content)
                require_same_software(content)
                found.append(Found(path, keys, content["values"]["epoch"]))
            except CheckpointError as error:
                found.append(Found(path, keys, problem=str(error), superseded=isinstance(error, Superseded)))
        return found

    def resumable(self, trials: Sequence[TrialConfig], done: Collection[str], say: Callable[[str], None],
                  ended: bool = False) -> list[Pack]:
        """Return packs that resume from their checkpoints, with their done trials; delete the files of all others.

        A checkpoint is deleted if all of its trials are `done`, or if it cannot be used. An unusable checkpoint of
        secret noise stays until another draw replaces it or nothing is left to train (`ended`): the software that wrote
        it may be restored, and another draw costs epsilon.
        """
        by_key = {trial.trial_key: trial for trial in trials}
        secret = {key for key, trial in by_key.items() if trial.secure and key not in done}
        if ended:
            secret = set()
        packs = []
        packed: set[str] = set()  # trial_keys in `packs`
        for checkpoint in self.found():
            keys, problem = set(checkpoint.trial_keys), checkpoint.problem
            if not problem and not keys <= by_key.keys():
                problem = "trials of its pack are no longer in the experiment"
            if not problem and keys & packed:
                problem = "another one has trials of its pack"
            may_have_secret_noise = bool(keys & secret) or (not keys and bool(secret))  # no keys: unreadable
            if problem and may_have_secret_noise and not checkpoint.superseded:
                say(f"checkpoint {checkpoint.path.name} cannot be used: {problem}")
            elif problem:
                say(f"checkpoint {checkpoint.path.name} given up, its trials start again: {problem}")
                checkpoint.path.unlink(missing_ok=True)
            elif keys <= set(done):
                checkpoint.path.unlink(missing_ok=True)
            else:
                packs.append(Pack(tuple(by_key[key] for key in checkpoint.trial_keys)))
                packed |= keys
        for path in self.folder.glob(f"*{UNFINISHED}"):
            path.unlink(missing_ok=True)
        return packs

    def drawn_anew(self, missing: Iterable[TrialConfig], kept: Iterable[Pack]) -> list[Pack]:
        """Return a pack for each trial that may need a second draw of secret noise; its refusal affects no other."""
        packed = {trial.trial_key for pack in kept for trial in pack.trials}
        drawn_before = self.known.keys() - packed
        return [Pack((trial,)) for trial in missing if trial.trial_key in drawn_before]


COMPUTING = ("accounting", "learning", "trials")  # packages that determine a trial's numbers


def _code(packages: Sequence[str] = ("",)) -> str:
    """Return a digest of the source of these packages; by default of the whole package."""
    files: list[Path] = []
    for package in packages:
        files += (ROOT / package).rglob("*.py")
    code = hashlib.sha256()
    for path in sorted(files):
        name = path.relative_to(ROOT).as_posix()
        code.update(name.encode() + b"\0" + path.read_bytes())
    return code.hexdigest()[:16]


# Both are computed at import, because files may change while a process runs the code that it has loaded.
# SOFTWARE must not change when a trial resumes: its epochs would come from two programs.
PROGRAM = _code()  # must be the same for the driver and all workers of a sweep
SOFTWARE: dict[str, Any] = {"format": 1, "code": _code(COMPUTING),
                            **{name: importlib.metadata.version(name) for name in ("torch", "numpy")}}


def _keys(pack: Pack) -> list[str]:
    return [trial.trial_key for trial in pack.trials]


def _content(pack: Pack, checkpoint: Checkpoint) -> bytes:
    """Return a pack's checkpoint as the bytes of a safetensors file; records are in its header, as JSON."""
    arrays = dict(checkpoint.arrays)
    records = []
    for number, record in enumerate(checkpoint.records):
        entry = dataclasses.asdict(dataclasses.replace(record, outcome=None))
        if record.outcome:
            arrays |= {f"outcome_{number}.{name}": array for name, array in record.outcome.weights.items()}
            entry["outcome"] = {"status": record.outcome.status,
                                "per_class": [dataclasses.asdict(c) for c in record.outcome.per_class]}
        records.append(entry)
    text = json.dumps({"software": SOFTWARE, "device": checkpoint.device, "trials": _keys(pack),
                       "values": checkpoint.values, "records": records, "plugins": LOADED, "draw": checkpoint.draw})
    return save({name: np.array(array, order="C") for name, array in arrays.items()},
                {"training": text, "sha256": _checksum(text, arrays)})


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 digest of a header's text and of all arrays, with their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def _read(path: Path, with_arrays: bool) -> tuple[str, str, dict[str, np.ndarray]]:
    """Return (JSON text, its checksum, arrays by name) of a checkpoint file; a listing needs no arrays."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()} if with_arrays else {}  # noqa: SIM118
        return header["training"], header["sha256"], arrays
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"it is damaged ({str(error).splitlines()[0]})") from None


def _parsed(text: str) -> dict[str, Any]:
    """Return the content of a header, which any version of the software may have written."""
    try:
        content = json.loads(text)
        dict(content["software"]), list(content["trials"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointError("it is damaged (its header cannot be read)") from None
    return content


def require_same_software(content: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that other software wrote."""
    writer, plugins = content["software"], content.get("plugins", {})
    differences = [f"{name} {writer.get(name)} and not {version}" for name, version in SOFTWARE.items()
                   if writer.get(name) != version]
    # A plugin's digest may tell of records, and is not said. A reader may have loaded none.
    differences += [f"another file of plugin {name}" for name, digest in plugins.items()
                    if LOADED.get(name, digest) != digest]
    if differences:
        raise CheckpointError(f"other software wrote it ({', '.join(differences)})")


def _record(entry: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str) -> EpochRecord:
    """Return the record of an epoch from its header entry, with final weights from arrays that have this prefix."""
    if not entry["outcome"]:
        return EpochRecord(**entry)
    weights = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    per_class = tuple(ClassAccuracy(**fields) for fields in entry["outcome"]["per_class"])
    outcome = Outcome(entry["outcome"]["status"], weights, per_class)
    return EpochRecord(**{**entry, "outcome": outcome})


def _flush_folder(folder: Path) -> None:
    """Flush a folder after a move, on systems that support it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
