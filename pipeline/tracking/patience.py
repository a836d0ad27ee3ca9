"""Waiting for a tracking store that cannot be reached for a while: a server restarts, a database is locked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import requests

PAUSE_SECONDS = 1.0  # between two tries
TELL_SECONDS = 25.0  # of silence, after which it is said, and said again, that the store is waited for
LOOK_SECONDS = 1.0  # between two looks at how long a call takes
UNREACHABLE = (ConnectionError, TimeoutError, requests.ConnectionError, requests.Timeout,
               requests.exceptions.RetryError)


class PatientClient:
    """A client of the store whose calls are repeated, with the same arguments, while the store cannot be reached.

    The same arguments, time stamps among them, so that a call whose answer was lost, and which is made again, writes
    nothing twice: MLflow keeps equal points of a metric once, and takes equal params and tags. What it would make
    twice are runs; `Store` removes those.

    Args:
        client: every method of it can be called here.
        seconds: how long an outage may last, from the first call that failed to the first that succeeds. After one
            that lasted longer, or a wait that was interrupted, calls are made once.
        say: takes a line when the store is lost, others while it is waited for, and one when it is back.
    """

    def __init__(self, client: Any, seconds: float, say: Callable[[str], None]) -> None:
        self._client, self._seconds, self._say = client, seconds, say
        self._lost_at: float | None = None  # when the first call failed; None while the store answers
        self._told_at = 0.0  # when it was last said that the store is waited for

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *args, **kwargs: self._call(lambda: method(*args, **kwargs))

    def _call(self, method: Callable[[], Any]) -> Any:
        try:
            return self._answer(method)
        except KeyboardInterrupt:
            self._seconds = 0.0  # closing the sweep does not wait again
            raise

    def _answer(self, method: Callable[[], Any]) -> Any:
        while True:
            began = time.monotonic()
            over = threading.Event()
            threading.Thread(target=self._tell_while_late, args=(began, over), daemon=True).start()
            try:
                answer = method()
            except Exception as error:
                if not is_temporary(error) or not self._waits(began):
                    raise
            else:
                if self._lost_at is not None and self._seconds:
                    self._say(f"the tracking store is back after {time.monotonic() - self._lost_at:.0f} s; "
                              "nothing was lost")
                self._lost_at = None
                return answer
            finally:
                over.set()

    def _tell_while_late(self, began: float, over: threading.Event) -> None:
        """Say again and again that a call is waited for that began at `began`, until it is over."""
        while not over.wait(LOOK_SECONDS):
            if time.monotonic() - (self._lost_at or began) >= TELL_SECONDS:
                self._tell(began)

    def _tell(self, since: float) -> None:
        """What is waited for, where that has begun at `since`, and was not said lately."""
        now = time.monotonic()
        if self._seconds and now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._say(f"the tracking store has not answered for {now - (self._lost_at or since):.0f} s; trying again "
                      f"for up to {self._seconds:g} s")

    def _waits(self, began: float) -> bool:
        """After a call that began at `began` and failed: whether another is to be made, which is then due."""
        if self._lost_at is None:
            self._lost_at = began
            if self._seconds:
                self._told_at = time.monotonic()
                self._say(f"the tracking store cannot be reached; trying again for up to {self._seconds:g} s")
        self._tell(self._lost_at)
        waits = time.monotonic() - self._lost_at + PAUSE_SECONDS <= self._seconds
        if waits:
            time.sleep(PAUSE_SECONDS)
        else:
            self._seconds = 0.0  # closing the sweep does not wait again
        return waits


def is_temporary(error: BaseException) -> bool:
    """Whether the store may answer when it is asked again: it was not reached, or was busy, or locked by another.

    What it refuses (permissions, values) or cannot do (a full disk, a damaged file) stays so.
    """
    if getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE":  # MLflow, for any failed operation of a database
        return "(sqlite3." not in str(error) or "locked" in str(error)
    return any(isinstance(link, UNREACHABLE) for link in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
