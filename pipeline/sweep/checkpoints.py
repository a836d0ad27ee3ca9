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
    """A checkpoint that nothing can go on from; the message says why."""


class Superseded(CheckpointError):
    """A checkpoint of secret noise in whose place the tracking store has other noise, or later epochs."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a pack stands.

    Attributes:
        device: kind of device it was trained on; on another one the bits would differ.
        arrays, values: of `pipeline.learning.state.capture`.
        records: of all trials, from the first epoch on.
        draw: name of the draw that its secret noise is of (`pipeline.trials.records.Draw`); empty without.
    """

    device: str
    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Any]
    records: Sequence[EpochRecord]
    draw: str = ""


@dataclass(frozen=True)
class Found:
    """A checkpoint in the folder, by its header: `problem` says why nothing can go on from it. Of one that cannot be
    read there is nothing else."""

    path: Path
    trial_keys: tuple[str, ...] = ()
    epoch: int = 0
    problem: str = ""
    superseded: bool = False


@dataclass(frozen=True)
class Known:
    """What the tracking store has of a secure trial, by which a checkpoint is seen to be older.

    Attributes:
        latest: name of the draw that began last; empty of a run that does not say.
        published: epochs of it that the store has.
    """

    latest: str = ""
    published: int = 0


class Checkpoints:
    """The checkpoints of one sweep.

    Args:
        folder: where they lie; packs on hosts that do not share it can go on only on the host where they began.
        seconds: time between two checkpoints of a pack, at least.
        known: of secure trials that have released something, by trial_key.
    """

    def __init__(self, folder: Path, seconds: float, known: Mapping[str, Known] = MappingProxyType({})) -> None:
        self.folder, self.seconds, self.known = Path(folder), seconds, dict(known)

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
                           "values": checkpoint.values, "records": records, "plugins": LOADED, "draw": checkpoint.draw})
        content = save({name: np.array(array, order="C") for name, array in arrays.items()},
                       {"training": text, "sha256": _checksum(text, arrays)})
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
        """The pack's checkpoint, verified; None if there is none.

        Raises:
            CheckpointError: for one that is damaged, or of other software, another pack or another kind of device.
            Superseded: for one whose secret noise was given up, or that is behind what was published.
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
        own = {name: array for name, array in arrays.items() if not name.startswith("outcome_")}
        return Checkpoint(device, own, content["values"], records, content.get("draw", ""))

    def remove(self, pack: Pack) -> None:
        """Remove the pack's checkpoint, if there is one."""
        self.path(pack).unlink(missing_ok=True)

    def _require_latest(self, content: Mapping[str, Any]) -> None:
        """Raises:
            Superseded: for secret noise that is older than what the tracking store has.
        """
        for known in (self.known[key] for key in content["trials"] if key in self.known):
            if content.get("draw", "") != known.latest:
                raise Superseded("another draw has taken the place of the one that it is of")
            if content["values"]["epoch"] < known.published:
                raise Superseded("later epochs of its trials were published, and would be drawn anew")

    def found(self) -> list[Found]:
        """All checkpoints in the folder, by their headers; nothing is changed."""
        return [self._found(path) for path in sorted(self.folder.glob(f"*{SUFFIX}"))]

    def _found(self, path: Path) -> Found:
        keys: tuple[str, ...] = ()
        try:
            content = _parsed(_read(path, with_arrays=False)[0])
            keys = tuple(content["trials"])
            self._require_latest(content)
            require_same_software(content)
            return Found(path, keys, content["values"]["epoch"])
        except CheckpointError as error:
            return Found(path, keys, problem=str(error), superseded=isinstance(error, Superseded))

    def resumable(self, trials: Sequence[TrialConfig], done: Collection[str], say: Callable[[str], None],
                  ended: bool = False) -> list[Pack]:
        """Packs that go on from their checkpoints; what nobody can want any more is removed from the folder.

        A checkpoint of secret noise that cannot be used stays until another draw begins in its place: the software that
        wrote it may come back, and another draw costs epsilon.

        Args:
            trials: all trials of the experiment.
            done: trial_keys of those that need no more training; they stay in their pack, which trains on without them.
            say: takes a line on every checkpoint that is given up.
            ended: whether nothing is left to train.
        """
        waiting = {} if ended else {t.trial_key: t for t in trials if t.redrawn and t.trial_key not in done}
        configs, packs = {trial.trial_key: trial for trial in trials}, []
        taken: set[str] = set()
        for found in self.found():
            keys, problem = set(found.trial_keys), found.problem
            if not problem and not keys <= configs.keys():
                problem = "trials of its pack are no longer in the experiment"
            if not problem and keys & taken:
                problem = "another one has trials of its pack"
            if problem and not found.superseded and waiting and (not keys or keys & waiting.keys()):
                say(f"checkpoint {found.path.name} cannot be used: {problem}")
                continue
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


COMPUTING = ("accounting", "learning", "trials")  # packages that decide the numbers of a trial


def _code(packages: Sequence[str] = ("",)) -> str:
    """Digest of the source of these packages in this one; by default of all there is."""
    code = hashlib.sha256()
    for path in sorted(path for package in packages for path in (ROOT / package).rglob("*.py")):
        code.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return code.hexdigest()[:16]


# Both are read when this module is imported, because files may change while a process goes on with what it has loaded.
# What must be the same for a trial to go on: its epochs would come from two programs otherwise.
PROGRAM = _code()  # of drivers and workers of one sweep, which must understand each other
SOFTWARE: dict[str, Any] = {"format": 1, "code": _code(COMPUTING),
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


def _parsed(text: str) -> dict[str, Any]:
    """What a header has, whoever wrote it."""
    try:
        content = json.loads(text)
        dict(content["software"]), list(content["trials"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointError("it is damaged (its header cannot be read)") from None
    return content


def require_same_software(content: Mapping[str, Any]) -> None:
    """Raises:
        CheckpointError: for what other software wrote.
    """
    written = dict(content["software"])
    plugins = content.get("plugins", {}).keys() & LOADED  # whoever trains has loaded them; others may only look
    written |= {f"plugin {name}": content["plugins"][name] for name in plugins}
    here = {**SOFTWARE, **{f"plugin {name}": LOADED[name] for name in plugins}}
    if written != here:
        other = ", ".join(f"{name} {written.get(name)} and not {value}" for name, value in here.items()
                          if written.get(name) != value)
        raise CheckpointError(f"other software wrote it ({other})")


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
