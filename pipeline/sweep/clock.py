"""The clock of a sweep's driver: the one place where its loop watches time."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType

# Deadline -> seconds after it was last restarted.
SECONDS: Mapping[str, float] = MappingProxyType({
    "heartbeat": 5.0,  # the driver renews its lease of a sweep in a shared store
    "write": 5.0,  # a pack's collected epochs are written
    "idle": 60.0,  # packs have waited without a running one: the cluster must still have their resources
    "warning": 20.0,  # until then, the user is told what resources are lacking
    "listening": 5.0,  # without a look at results, the driver may have missed some
    "answer": 20.0,  # a worker whose node was silent has had enough time to send a result, if its epochs are short
})


class Clock:
    """Deadlines by name, and for "write" by pack: each is due when its seconds have passed since its last restart."""

    def __init__(self, seconds: Mapping[str, float] = SECONDS, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.now = seconds, now
        self._restarted: dict[tuple[str, Hashable], float] = {}

    def restart(self, *names: str, of: Hashable = None) -> None:
        now = self.now()
        self._restarted |= {(name, of): now for name in names}

    def elapsed(self, name: str, of: Hashable = None) -> float:
        """Return the seconds since the last restart of a deadline; the first question starts it."""
        now = self.now()
        return now - self._restarted.setdefault((name, of), now)

    def is_due(self, name: str, of: Hashable = None) -> bool:
        return self.elapsed(name, of) >= self.seconds[name]
