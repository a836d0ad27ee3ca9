"""Checkpoints: the state of a pack's training at the end of an epoch, with all records until then.

A worker saves them and resumes from them, and the driver keeps packs together that have one. A training that resumes
sends all records again; the tracking store takes each once. A file's name is a digest of the pack's trials.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.experiment.plugins import LOADED
from pipeline.package import ROOT
from pipeline.sweep.private import UNFINISHED, UnusableFile, packed, read, read_text, unpacked, write
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import digest
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """State of a pack's training."""

    device: str  # type; another one would give other bits
    arrays: Mapping[str, np.ndarray]  # these and the values are the result of `Training.capture`
    values: Mapping[str, Any]
    records: Sequence[EpochRecord]  # of all trials, from the first epoch on


@dataclass(frozen=True)
class Found:
    """A checkpoint in the folder, by its header.

    `problem` is the reason why it cannot be used. If it cannot be read, the other attributes are empty.
    """

    path: Path
    trial_keys: tuple[str, ...] = ()
    epoch: int = 0
    problem: str = ""


class Checkpoints:
    """The checkpoints of one sweep; without a shared folder a pack can resume only on the host where it began."""

    def __init__(self, folder: Path, seconds: float) -> None:  # least time between two checkpoints of a pack
        self.folder, self.seconds = Path(folder), seconds

    def path(self, pack: Pack) -> Path:
        return self.folder / (pack_digest(pack) + SUFFIX)

    def save(self, pack: Pack, checkpoint: Checkpoint) -> None:
        entries, weights = packed(checkpoint.records)
        text = json.dumps({"software": SOFTWARE, "device": checkpoint.device, "trials": pack.trial_keys,
                           "values": checkpoint.values, "records": entries, "plugins": LOADED})
        write(self.path(pack), text, {**checkpoint.arrays, **weights})

    def load(self, pack: Pack, device: str) -> Checkpoint | None:
        """Return the pack's verified checkpoint; None if there is none.

        It is refused if it is damaged, or comes from other software, another pack or another device type.
        """
        path = self.path(pack)
        if not path.exists():
            return None
        text, arrays = read(path)
        content = _parsed(text)
        require_same_software(content)
        if content["trials"] != pack.trial_keys:
            raise UnusableFile("it is of other trials")
        if content["device"] != device:
            raise UnusableFile(f"it was trained on '{content['device']}', and this is '{device}'")
        state = {name: array for name, array in arrays.items() if not name.startswith("outcome_")}
        return Checkpoint(device, state, content["values"], unpacked(content["records"], arrays))

    def remove(self, pack: Pack) -> None:
        self.path(pack).unlink(missing_ok=True)

    def found(self) -> list[Found]:
        """Return all checkpoints in the folder, by their headers alone; changes nothing."""
        found = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            keys: tuple[str, ...] = ()
            try:
                content = _parsed(read_text(path))
                keys = tuple(content["trials"])
                require_same_software(content)
                found.append(Found(path, keys, content["values"]["epoch"]))
            except UnusableFile as error:
                found.append(Found(path, keys, problem=str(error)))
        return found

    def resumable(self, trials: Sequence[TrialConfig], done: Collection[str], say: Callable[[str], None],
                  released: Collection[str] = ()) -> list[Pack]:  # trial_keys with a name of their secret noise
        """Return packs that resume from their checkpoints, with their done trials; delete the files of all others.

        A checkpoint is deleted if all its trials are `done`, if one of them was `released`, or if it cannot be used.
        """
        by_key = {trial.trial_key: trial for trial in trials}
        packs = []
        packed_keys: set[str] = set()  # trial_keys in `packs`
        for checkpoint in self.found():
            keys, problem = set(checkpoint.trial_keys), checkpoint.problem
            if not problem and not keys <= by_key.keys():
                problem = "trials of its pack are no longer in the experiment"
            if not problem and keys & packed_keys:
                problem = "another one has trials of its pack"
            if not problem and keys & set(released):
                problem = "a trial of its pack was released"
            is_over = bool(keys) and keys <= set(done)
            if problem and not is_over:
                say(f"checkpoint {checkpoint.path.name} given up, its trials start again: {problem}")
            if problem or is_over:
                checkpoint.path.unlink(missing_ok=True)
            else:
                packs.append(Pack(tuple(by_key[key] for key in checkpoint.trial_keys)))
                packed_keys |= keys
        for path in self.folder.glob(f"*{UNFINISHED}"):  # a folder is of a rehearsal
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return packs


def pack_digest(pack: Pack) -> str:
    """Return a digest of a pack's trials, which names its files."""
    return digest({"trials": pack.trial_keys})


COMPUTING = ("accounting", "learning", "trials")  # packages that determine a trial's numbers


def _code(packages: Sequence[str] = ("",)) -> str:
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


def _parsed(text: str) -> dict[str, Any]:
    """Return the content of a header, which any version of the software may have written."""
    try:
        content = json.loads(text)
        dict(content["software"]), list(content["trials"])
    except (ValueError, KeyError, TypeError):
        raise UnusableFile("it is damaged (its header cannot be read)") from None
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
        raise UnusableFile(f"other software wrote it ({', '.join(differences)})")
