"""The private folder of a tracking store: what tells of the records, and is no part of what is released.

    <private>/checkpoints/<sweep>/    weights, and epochs that nobody has seen yet
    <private>/failures/<sweep>.log    tracebacks of trials whose noise is secret
    <private>/ray/                    Ray Tune's files, while it runs
    <private>/digests.json            digests of private files, by the names that stand for them in the store

It is as private as the data. By default it is `<root>/private`, beside what `photonic ui` serves and never in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from filelock import FileLock

from pipeline.trials.config import TrialConfig
from pipeline.trials.feature_file import file_of
from pipeline.trials.fields import ConfigError

VARIABLE = "PHOTONIC_PRIVATE"
SERVED = ("artifacts", "reports")  # folders of a store's root, or names of folders, whose content is shown to others


def make_private(folder: Path) -> None:
    """Create a folder, and those above it that are not there, for their owner alone; what is there stays as it is."""
    for path in reversed([folder, *folder.parents]):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


class PrivateFolder:
    """Where it is; nothing is created before `make`.

    Args:
        root: of the tracking store.
        folder: another place; by default the environment variable PHOTONIC_PRIVATE, else `<root>/private`.
    """

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        self._root = Path(root).absolute()
        given = folder or os.environ.get(VARIABLE) or self._root / "private"
        self.path = Path(given).expanduser().absolute()

    def make(self, sweep: str, secure: bool, served: Collection[Path] = ()) -> None:
        """Create the folder for its owner alone, and move there the checkpoints that an earlier version kept beside the
        store.

        Args:
            sweep: whose checkpoints are moved.
            secure: whether secret noise is to be drawn, which needs a folder that is private.
            served: folders that others are shown, such as those of artifacts.

        Raises:
            ConfigError: for a folder in one that is served; for one that others can read, if `secure`.
        """
        for other in {self._root / name for name in SERVED} | {Path(path).absolute() for path in served}:
            if self.path.resolve().is_relative_to(other.resolve()):
                raise ConfigError(f"private folder: must lie outside {other}, which others are shown, got {self.path}; "
                                  f"name another by --private or {VARIABLE}")
        make_private(self.path)
        if (mode := stat.S_IMODE(self.path.stat().st_mode)) & 0o077 and secure:
            raise ConfigError("private folder: must be readable by its owner alone (mode 700) with noise 'secure', "
                              f"got {self.path} with mode {mode:o}; change that, or name another by --private or "
                              f"{VARIABLE}")
        if self.checkpoints(sweep) == (old := self._old / sweep):
            make_private(self.path / "checkpoints")
            shutil.move(old, self.path / "checkpoints" / sweep)
            with contextlib.suppress(OSError):  # not empty
                self._old.rmdir()

    def checkpoints(self, sweep: str) -> Path:
        """Folder of a sweep's checkpoints: where an earlier version kept them, as long as they were not moved."""
        own, old = self.path / "checkpoints" / sweep, self._old / sweep
        return old if old.exists() and not own.exists() else own

    def failure_log(self, sweep: str) -> Path:
        """File of the tracebacks of a sweep's secure trials."""
        return self.path / "failures" / f"{sweep}.log"

    def feature_digests(self, trials: Iterable[TrialConfig]) -> dict[str, str]:
        """SHA-256 of every file of features that a name stands for, by name; what is new is kept here for ever.

        Raises:
            ConfigError: for a file that cannot be read, or a name that has stood for another one.
        """
        files = {trial.feature_name: trial for trial in trials if trial.parts.features.of_file and trial.feature_name}
        if not files:
            return {}
        with FileLock(f"{self._digests}.lock"):
            kept = json.loads(self._digests.read_text()) if self._digests.exists() else {}
            for name, trial in files.items():
                found = file_of(Path(trial.feature_file), trial.dataset).sha256
                if kept.setdefault(name, found) != found:
                    raise ConfigError(f"feature_name: '{name}' has stood for another file in trials of this store, and "
                                      f"is given for {trial.feature_file} now; give that a name of its own")
            written = self._digests.with_suffix(".part")
            written.write_text(json.dumps(kept, indent=1))
            written.replace(self._digests)
        return {name: kept[name] for name in files}

    @property
    def ray(self) -> Path:
        """Folder of Ray Tune's files."""
        return self.path / "ray"

    @property
    def _digests(self) -> Path:
        return self.path / "digests.json"

    @property
    def _old(self) -> Path:
        return self._root / "checkpoints"
