"""One process at a time runs a sweep: two would train the same trials, and write to the same runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

PATIENCE = 5.0  # seconds; a sweep that was just killed may need a moment to be gone


class SweepRunning(RuntimeError):
    """Another process runs the sweep."""


@contextlib.contextmanager
def sweeping(root: Path, name: str, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the sweep `name` of the store in `root`, on this host; the system lets go when the process dies.

    Raises:
        SweepRunning: if another process holds it, for longer than `patience` seconds.
    """
    try:
        with _lock(root, name).acquire(timeout=patience):
            yield
    except Timeout:
        raise SweepRunning(f"sweep '{name}': another process is running it with the store in {root}; wait for it, or "
                           "end it") from None


def is_swept(root: Path, name: str) -> bool:
    """Whether a process of this host runs the sweep; nothing is created."""
    lock = _lock(root, name)
    if not Path(lock.lock_file).exists():
        return False
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True


def _lock(root: Path, name: str) -> FileLock:
    return FileLock(Path(root) / f".sweep-{name}.lock")
