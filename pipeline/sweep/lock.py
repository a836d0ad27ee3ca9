"""One process at a time runs a sweep: two would train the same trials, and write to the same runs.

On one host, or with one folder, a lock of the file system says who it is. Hosts that share a store through a server
and have no folder in common see only the store; there a `Lease` says it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.fields import UserError

PATIENCE = 5.0  # seconds; a sweep that was just killed may need a moment to be gone
BEAT_SECONDS = 5.0  # between two signs of life in a shared store
MISSED_BEATS = 6  # after so many without one a driver counts as dead
SETTLING_SECONDS = 1.0  # in which drivers that began at the same time have all written who they are


class SweepRunning(UserError, RuntimeError):
    """Another process runs the sweep."""


@contextlib.contextmanager
def sweeping(root: Path, name: str, driver: str, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the sweep `name` of the store in `root`, on this host; the system lets go when the process dies.

    Args:
        driver: who holds it (`Store.driver`), for `swept_by`.

    Raises:
        SweepRunning: if another process holds it, for longer than `patience` seconds.
    """
    try:
        with _lock(root, name).acquire(timeout=patience):
            _holder(root, name).write_text(driver, encoding="utf-8")
            yield
    except Timeout:
        raise SweepRunning(f"sweep '{name}': another process is running it with the store in {root}; wait for it, or "
                           "end it") from None


def swept_by(root: Path, name: str) -> str:
    """The driver that runs the sweep on this host, empty if none does; nothing is created."""
    lock = _lock(root, name)
    if not Path(lock.lock_file).exists():
        return ""
    try:
        with lock.acquire(timeout=0):
            return ""
    except Timeout:
        return _holder(root, name).read_text(encoding="utf-8")


def held_elsewhere(store: Reader, name: str) -> tuple[str, str] | None:
    """(driver, its last sign of life) of the sweep `name` in another place, as a store that hosts share has it.

    It may be dead: what it left open does not close by itself, and only another sign of life shows that it is not. For
    a caller that finds the lock of its own place free: a driver of that place is dead, and not returned.
    """
    holder = store.holder() if store.shared and store.find(name) else None
    return holder if holder and place(holder[0]) != store.place else None


def place(driver: str) -> str:
    """Host and folder of a driver, `host:folder`."""
    return driver.partition("@")[2] or driver


def _lock(root: Path, name: str) -> FileLock:
    return FileLock(Path(root) / f".sweep-{name}.lock")


def _holder(root: Path, name: str) -> Path:
    return Path(root) / f".sweep-{name}.driver"


class Lease:
    """A sweep in a store that hosts share: its parent run names the driver that runs it, and counts its signs of life.

    No clocks are compared: whether a driver is alive is seen by whether its count changes. A driver that was stopped
    for longer than `MISSED_BEATS` beats, and whose sweep another took over, has its beat due before it writes again,
    and ends there: of secure trials both would write draws of their own.

    Args:
        store: of the driver that wants the sweep `name`, whose lock on this host it holds.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._beats, self._last_beat = 0, time.monotonic()

    def wait_until_free(self) -> None:
        """Return at once if nobody runs the sweep, and after `MISSED_BEATS` beats if it was abandoned elsewhere.

        Raises:
            SweepRunning: if a driver elsewhere is alive.
        """
        begin, first = time.monotonic(), held_elsewhere(self._store, self._name)
        while first is not None and time.monotonic() - begin < MISSED_BEATS * BEAT_SECONDS:
            time.sleep(BEAT_SECONDS / 5)
            now = held_elsewhere(self._store, self._name)
            if now is None:
                return
            if now != first:
                raise SweepRunning(f"sweep '{self._name}': {place(now[0])} is running it, with the same tracking "
                                   "store; wait for it, or end it")

    def done(self) -> dict[str, str]:
        """trial_key -> status of the trials that need no more training; none of a sweep that never began."""
        self._store.find(self._name)
        return self._store.done() if self._store.began else {}

    def require_as_found(self, done: Mapping[str, str]) -> None:
        """Before the sweep is opened: since it was found free, Ray has been started and data sets been looked for.

        Args:
            done: trials that were done when it was found free.

        Raises:
            SweepRunning: if a driver elsewhere runs it now, or has run it in between.
        """
        if self._store.shared:
            self.wait_until_free()
            if self.done() != done:
                raise SweepRunning(f"sweep '{self._name}': another process has trained trials of it since this one "
                                   "began; run the same command again")

    def confirm(self) -> None:
        """After the sweep was opened: of drivers that opened it at the same time one goes on.

        Raises:
            SweepRunning: for the others.
        """
        if self._store.shared:
            time.sleep(SETTLING_SECONDS)
            self._store.attach(self._name)
            self.require_own()

    def beat(self, nodes: Callable[[], Sequence[Mapping[str, Any]]] = tuple) -> None:
        """A sign of life, if it is time for one.

        Args:
            nodes: what is in use on each node, to note beside it.

        Raises:
            SweepRunning: if another driver took the sweep over.
        """
        if time.monotonic() - self._last_beat < BEAT_SECONDS:
            return
        self.require_own()
        if self._store.shared:
            self._beats += 1
            self._store.beat(self._beats)
        self._store.note_nodes(nodes())
        self._last_beat = time.monotonic()

    def require_own(self) -> None:
        """Before something is written.

        Raises:
            SweepRunning: if another driver took the sweep over.
        """
        if not self._store.shared:
            return
        driver, _ = self._store.holder() or ("nobody", "")
        if driver != self._store.driver:
            raise SweepRunning(f"sweep '{self._name}': {place(driver)} took it over, with the same tracking store; "
                               "what this process trained until then is kept")
