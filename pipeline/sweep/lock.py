"""Make sure that one process at a time runs a sweep: two would train the same trials and write to the same runs.

On one host, or with a shared folder, this is a file lock. Hosts that share only a store through a server use a `Lease`
in the store.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.sweep.clock import Clock
from pipeline.tracking.artifacts import AS_JOB, TrackedRun, done_of
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.fields import UserError

PATIENCE = 5.0  # seconds; a killed sweep may need a moment to end
MISSED_BEATS = 6  # a driver counts as dead after this many missed heartbeats
SETTLING_SECONDS = 1.0  # time in which all concurrent drivers have written their names


class SweepRunning(UserError, RuntimeError):
    """Another process runs the sweep."""


@contextlib.contextmanager
def sweeping(root: Path, name: str, driver: str, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of a sweep inside the `with` block, so that one process at a time runs it.

    The lock is a file in the store's root, with this driver's name beside it. If the process dies, the operating system
    releases the lock. If another process still holds it after `patience` seconds, that is an error.
    """
    try:
        with _lock(root, name).acquire(timeout=patience):
            _holder(root, name).write_text(driver, encoding="utf-8")
            yield
    except Timeout:
        raise SweepRunning(f"sweep '{name}': another process is running it with the store in {root}; wait for it, or "
                           "end it") from None


def local_driver(root: Path, name: str) -> str:
    """Return the driver that runs the sweep on this host, empty if none does or can; creates nothing."""
    lock = _lock(root, name)
    if not Path(lock.lock_file).exists() or not os.access(lock.lock_file, os.W_OK):
        return ""
    try:
        with lock.acquire(timeout=0):
            return ""
    except Timeout:
        return _holder(root, name).read_text(encoding="utf-8")


def remote_lease(store: Reader, name: str) -> tuple[str, str] | None:
    """Return (driver, its last heartbeat) of a sweep that another host or folder runs; None if there is none.

    A driver is the process that runs a sweep; in a shared store it leaves its name and heartbeats. It may be dead: only
    a new heartbeat shows that it is alive. The caller must have found its own file lock free, so a driver with the
    caller's host and folder is dead, and is not returned.
    """
    if not store.shared or not store.find(name):
        return None
    holder = store.holder()
    if holder is None or place(holder[0]) == store.place:
        return None
    return holder


def place(driver: str) -> str:
    """Return the part `host:folder` of a driver's name, which ends with `@host:folder`."""
    return driver.partition("@")[2] or driver


def job_of(driver: str) -> str:
    """Return the id of the job of Ray that a driver is; empty if it is none."""
    return driver.partition("@")[0].partition(AS_JOB)[2]


def _lock(root: Path, name: str) -> FileLock:
    return FileLock(Path(root) / f".sweep-{name}.lock")


def _holder(root: Path, name: str) -> Path:
    return Path(root) / f".sweep-{name}.driver"


class Lease:
    """The lease of a sweep in a shared store: the sweep's parent run has the driver's name and counts its heartbeats.

    No clocks are compared: a driver is alive if its count changes. If a driver is suspended for longer than
    `MISSED_BEATS` heartbeats, another may take the sweep over. The first must send a heartbeat before its next write,
    and ends there with `SweepRunning`. Otherwise both would write their own draws of secure trials. This driver holds
    the sweep's file lock.
    """

    def __init__(self, store: Store, name: str, clock: Clock) -> None:
        self._store, self._name, self._clock, self._beats = store, name, clock, 0
        clock.restart("heartbeat")

    def wait_until_free(self) -> None:
        """Return when no other host runs the sweep: at once, or when its driver has missed `MISSED_BEATS` heartbeats.

        A driver whose heartbeat changes is alive: `SweepRunning` is raised.
        """
        interval = self._clock.seconds["heartbeat"]
        begin = self._clock.now()
        first = remote_lease(self._store, self._name)
        while first is not None and self._clock.now() - begin < MISSED_BEATS * interval:
            time.sleep(interval / 5)
            current = remote_lease(self._store, self._name)
            if current is None:
                return
            if current != first:
                raise SweepRunning(f"sweep '{self._name}': {place(current[0])} is running it, with the same tracking "
                                   "store; wait for it, or end it")

    def runs(self) -> list[TrackedRun]:
        self._store.find(self._name)
        return self._store.runs() if self._store.has_begun else []

    def require_as_found(self, done: Mapping[str, str]) -> None:  # trial_key -> status, read before Ray was started
        """Check that no other driver runs the sweep, or has ended trials of it since this one found these `done`."""
        if not self._store.shared:  # the file lock keeps others out
            return
        self.wait_until_free()
        if done_of(self.runs()) != done:
            raise SweepRunning(f"sweep '{self._name}': another process has trained trials of it since this one began; "
                               "run the same command again")

    def confirm(self) -> None:
        """Check that this driver holds the sweep, just after it opened it: one of several concurrent drivers wins.

        On a store that hosts share, it waits until the writes of other drivers are visible, and reads the sweep again.
        Elsewhere the lock file of the host has decided already.
        """
        if self._store.shared:
            time.sleep(SETTLING_SECONDS)
            self._store.attach(self._name)
            self.require_own()

    def beat(self, nodes: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Send a heartbeat if one is due, with the resources in use; an error if another driver took over."""
        if not self._clock.is_due("heartbeat"):
            return
        self.require_own()
        if self._store.shared:
            self._beats += 1
            self._store.beat(self._beats)
        self._store.note_nodes(nodes())
        self._clock.restart("heartbeat")

    def require_own(self) -> None:
        if not self._store.shared:
            return
        driver, _ = self._store.holder() or ("nobody", "")
        if driver != self._store.driver:
            raise SweepRunning(f"sweep '{self._name}': {place(driver)} took it over, with the same tracking store; "
                               "what this process trained until then is kept")
