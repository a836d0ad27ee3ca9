"""Sealed results: what a pack with secret noise releases, in a private file that is written once, at its end.

A worker seals the result of its pack, and the driver releases it (`pipeline.sweep.recorder`). A file that outlived its
worker is found by the next one of the pack, or by the next sweep. Its name is random, so that nothing overwrites it;
its format and checksum alone decide whether it is read, by any later version, torch or device.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.sweep.checkpoints import pack_digest
from pipeline.sweep.private import UnusableFile, packed, read, unpacked, write
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.records import Result, Sealed

SUFFIX = ".sealed"
FORMAT = 1
TRIES, PAUSE_SECONDS = 3, 2.0  # of writing a file: a full disk may be full for a moment


@dataclass(frozen=True)
class SealedFile:
    """A sealed result that was found, by its header."""

    path: Path
    host: str
    trials: list[dict[str, Any]]  # settings and calibrated noise of each; none if the header cannot be read
    problem: str  # why it cannot be read; empty if it can

    def __str__(self) -> str:
        return f"sealed result {self.path.name} on {self.host}"

    @property
    def sealed(self) -> Sealed:
        return Sealed(self.path.name.removesuffix(SUFFIX).rpartition(".")[2], self.host)

    @property
    def pack(self) -> Pack:
        """Its pack; `ConfigError` or `ValueError` if its trials are none of this version, or of a plugin not loaded."""
        return Pack(tuple(TrialConfig(**trial["settings"]).with_recorded_noise(trial["noise"])
                          for trial in self.trials))


def seal(folder: Path, pack: Pack, result: Result) -> SealedFile:
    """Write the result of a pack to a file of its own; `OSError` if the disk does not take it."""
    path = folder / f"{pack_digest(pack)}.{secrets.token_hex(8)}{SUFFIX}"
    entries, weights = packed(result.records)
    trials = [{"settings": trial.used(), "noise": dict(trial.recorded_noise)} for trial in pack.trials]
    text = json.dumps({"format": FORMAT, "trials": trials, "records": entries, "failure": result.failure,
                       "traceback": result.traceback})
    for tries_left in reversed(range(TRIES)):
        try:
            write(path, text, weights)
            break
        except OSError:
            if not tries_left:
                raise
            time.sleep(PAUSE_SECONDS)
    return SealedFile(path, socket.gethostname(), trials, "")


def unseal(path: Path) -> Result:
    """Return the result in a sealed file; `UnusableFile` says why it cannot be read."""
    content, arrays = _content(path)
    return Result(unpacked(content["records"], arrays), content["failure"], content["traceback"])


def found(folder: Path, pack: Pack | None = None) -> list[SealedFile]:
    """Return the sealed results in a folder, of one pack or of all, by name; changes nothing."""
    pattern = f"{pack_digest(pack)}.*{SUFFIX}" if pack else f"*{SUFFIX}"
    files = []
    for path in sorted(folder.glob(pattern), key=lambda path: path.name.split(".")[1:]):
        try:
            trials, problem = _content(path)[0]["trials"], ""
        except UnusableFile as error:
            trials, problem = [], str(error)
        files.append(SealedFile(path, socket.gethostname(), trials, problem))
    return files


def remove(path: Path) -> None:
    """Remove a sealed result, if it is there."""
    path.unlink(missing_ok=True)


def _content(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (header, arrays by name) of a sealed result that has its checksum and this format."""
    text, arrays = read(path)
    content = json.loads(text)
    if content["format"] != FORMAT:
        raise UnusableFile(f"its format is {content['format']}, and this version reads {FORMAT}")
    return content, arrays
