"""Wait for a store that cannot be reached, as long as the user said, and say so.

`pipeline.tracking.backend.Client` makes all its calls through a `Patience`. MLflow itself repeats a request of a server
once; a sweep waits longer, and for a locked database too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import requests

PAUSE_SECONDS = 1.0  # time between two tries
MESSAGE_SECONDS = 25.0  # least time between two messages while waiting
UNREACHABLE = (ConnectionError, TimeoutError, requests.ConnectionError, requests.Timeout,
               requests.exceptions.RetryError, requests.exceptions.ChunkedEncodingError)


class Patience:
    """Repeats calls, with the same arguments, while the store cannot be reached; without seconds it repeats none.

    The arguments, time stamps included, stay the same: if only the answer of a call was lost, the repeated call writes
    nothing twice. MLflow stores equal points of a metric once, and accepts equal params and tags. It would create a run
    twice; `Store` removes the second.

    Args:
        seconds: the longest time from a failed call to the next success. After a longer outage, or an interrupted wait,
            no call is repeated any more.
        say: receives messages when the store is lost, between tries, and when the store is back.
    """

    def __init__(self, seconds: float = 0.0, say: Callable[[str], None] = print) -> None:
        self.repeated = 0  # calls that were repeated, or that MLflow may have repeated as they took long
        self._seconds, self._say = seconds, say
        self._lost_at: float | None = None  # when the first failed call began; None while the store answers
        self._said_at = 0.0  # time of the last message

    def answer(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call. Errors that another try cannot mend are raised at once."""
        while True:
            start = time.monotonic()
            try:
                answer = call()
            except KeyboardInterrupt:
                self._seconds = 0.0  # closing the sweep does not wait again
                raise
            except Exception as error:
                if not is_temporary(error) or not self._pause(start):
                    raise
                self.repeated += 1
            else:
                end = time.monotonic()
                self.repeated += end - start >= float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT", "inf"))
                if self._lost_at is not None:
                    self._say(f"the tracking store is back after {end - self._lost_at:.0f} s; nothing was lost")
                    self._lost_at = None
                return answer

    def _pause(self, start: float) -> bool:
        """Report a failed call, which began at `start`, and wait for the next try; return False if there is none."""
        if not self._seconds:
            return False
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at, self._said_at = start, now
            self._say(f"the tracking store cannot be reached; trying again for up to {self._seconds:g} s")
        elif now - self._said_at >= MESSAGE_SECONDS:
            self._said_at = now
            self._say(f"the tracking store has not answered for {now - self._lost_at:.0f} s; trying again for up to "
                      f"{self._seconds:g} s")
        if now - self._lost_at + PAUSE_SECONDS > self._seconds:
            self._seconds, self._lost_at = 0.0, None  # no later call waits; none says that nothing was lost
            return False
        patience, self._seconds = self._seconds, 0.0  # stays 0 if Ctrl-C ends the pause: closing must not wait again
        time.sleep(PAUSE_SECONDS)
        self._seconds = patience
        return True


def is_temporary(error: BaseException) -> bool:
    """Whether a repeated call may succeed: the store was not reached, or was busy or locked, not full or damaged."""
    if getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE":  # MLflow's code for any failed database operation
        return "(sqlite3." not in str(error) or "locked" in str(error)
    link: BaseException | None = error
    while link is not None and not isinstance(link, UNREACHABLE):
        link = link.__cause__ or link.__context__
    return link is not None
