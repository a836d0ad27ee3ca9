"""The private folder of a tracking store: files that depend on the records and are not released.

    <private>/checkpoints/<sweep>/    weights, and epochs that are not published yet
    <private>/failures/<sweep>.log    tracebacks of trials with secret noise
    <private>/ray/                    Ray Tune's files, while it runs
    <private>/ray.log                 Ray's own messages
    <private>/digests.json            digests of private files, by their public names in the store

It is as private as the data. By default it is `<root>/private`, outside the folders that `photonic ui` serves.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from filelock import FileLock

from pipeline.trials.config import TrialConfig
from pipeline.trials.feature_file import file_of
from pipeline.trials.fields import ConfigError

VARIABLE = "PHOTONIC_PRIVATE"
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
        """Create the folder, for its owner only and seen by no other."""
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
        if (mode := stat.S_IMODE(self.path.stat().st_mode)) & 0o077 and secure:
            raise ConfigError("private folder: must be readable by its owner alone (mode 700) with noise 'secure', "
                              f"got {self.path} with mode {mode:o}; change that, or name another by --private or "
                              f"{VARIABLE}")

    def checkpoints(self, sweep: str) -> Path:
        """Return the folder of a sweep's checkpoints."""
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
