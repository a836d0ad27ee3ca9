"""Wait for a tracking store that is unreachable for a while: a server restarts, a database is locked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import requests

PAUSE_SECONDS = 1.0  # time between two tries
MESSAGE_SECONDS = 25.0  # time between two messages while waiting
CHECK_SECONDS = 1.0  # time between two checks of a call's duration
UNREACHABLE = (ConnectionError, TimeoutError, requests.ConnectionError, requests.Timeout,
               requests.exceptions.RetryError, requests.exceptions.ChunkedEncodingError)


class PatientClient:
    """A client of the store that repeats calls, with the same arguments, while the store cannot be reached.

    The arguments, time stamps included, stay the same: if only the answer of a call was lost, the repeated call writes
    nothing twice. MLflow stores equal points of a metric once, and accepts equal params and tags. It would create a run
    twice; `Store` removes the second.

    Args:
        client: the client; all its methods are available here.
        seconds: longest outage, from the first failed call to the first success. After a longer outage or an
            interrupted wait, calls are not repeated.
        say: receives messages when the store is lost, while waiting, and when the store is back.
    """

    def __init__(self, client: Any, seconds: float, say: Callable[[str], None]) -> None:
        self._client, self._seconds, self._say = client, seconds, say
        self._lost_at: float | None = None  # time of the first failed call; None while the store answers
        self._last_message = 0.0  # time of the last message

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *args, **kwargs: self._call(lambda: method(*args, **kwargs))

    def _call(self, method: Callable[[], Any]) -> Any:
        """Return the result of a call of MLflow's client, with patience; after Ctrl-C later calls no longer wait."""
        try:
            return self._answer(method)
        except KeyboardInterrupt:
            self._seconds = 0.0  # closing the sweep does not wait again
            raise

    def _answer(self, method: Callable[[], Any]) -> Any:
        """Return the result of a call, and repeat the call while the store cannot be reached, until patience ends.

        A thread prints a message while the call takes long. Errors that another try cannot mend are raised at once.
        """
        while True:
            start = time.monotonic()
            is_over = threading.Event()  # tells the thread to end
            threading.Thread(target=self._report_delay, args=(start, is_over), daemon=True).start()
            try:
                answer = method()
            except Exception as error:
                if not is_temporary(error) or not self._pause_before_retry(start):
                    raise
            else:
                self._note_answer()
                return answer
            finally:
                is_over.set()

    def _note_answer(self) -> None:
        """Note that the store answers; say so if it was lost."""
        if self._lost_at is not None and self._seconds:
            outage = time.monotonic() - self._lost_at
            self._say(f"the tracking store is back after {outage:.0f} s; nothing was lost")
        self._lost_at = None

    def _report_delay(self, start: float, is_over: threading.Event) -> None:
        """Repeat a message about a call that began at `start`, until the call is over; runs in a thread."""
        while not is_over.wait(CHECK_SECONDS):
            if time.monotonic() - (self._lost_at or start) >= MESSAGE_SECONDS:
                self._say_waiting(start)

    def _say_waiting(self, since: float) -> None:
        """Print a message about a wait since `since`, unless the last message is recent."""
        now = time.monotonic()
        if self._seconds and now - self._last_message >= MESSAGE_SECONDS:
            self._last_message = now
            outage = now - (self._lost_at or since)
            self._say(f"the tracking store has not answered for {outage:.0f} s; trying again for up to "
                      f"{self._seconds:g} s")

    def _pause_before_retry(self, start: float) -> bool:
        """Return whether to repeat a failed call that began at `start`; if so, sleep for `PAUSE_SECONDS` first."""
        if self._lost_at is None:
            self._lost_at = start
            if self._seconds:
                self._last_message = time.monotonic()
                self._say(f"the tracking store cannot be reached; trying again for up to {self._seconds:g} s")
        self._say_waiting(self._lost_at)
        outage = time.monotonic() - self._lost_at
        if outage + PAUSE_SECONDS > self._seconds:
            self._seconds = 0.0  # closing the sweep does not wait again
            return False
        time.sleep(PAUSE_SECONDS)
        return True


def is_temporary(error: BaseException) -> bool:
    """Whether a repeated call may succeed: the store was not reached, or was busy or locked.

    Refusals (permissions, values) and failures (a full disk, a damaged file) are permanent.
    """
    if getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE":  # MLflow's code for any failed database operation
        return "(sqlite3." not in str(error) or "locked" in str(error)
    return any(isinstance(link, UNREACHABLE) for link in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause's cause, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
