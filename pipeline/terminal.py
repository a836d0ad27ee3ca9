"""What the command line needs of a terminal: Ctrl-C that is answered at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # exit code
STDERR = 2  # a signal may come while Python's own stream is being written to
STOP_SECONDS = 10.0  # after Ctrl-C, for workers and the tracking store


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Ctrl-C says at once what is waited for; after `STOP_SECONDS` or another Ctrl-C the process ends as it is. Nothing
    that the tracking store has is lost by that, and the processes of a Ray that was started here end with this one."""

    def end(why: str) -> None:
        os.write(STDERR, f"ended {why}; run the same command again to go on\n".encode())
        os._exit(INTERRUPTED)

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda number, frame: end("by a second Ctrl-C"))
        os.write(STDERR, b"\nstopping: waiting for the workers to end and for the tracking store, %g s at most; Ctrl-C "
                         b"again ends at once\n" % STOP_SECONDS)
        deadline = threading.Timer(STOP_SECONDS, end, [f"after {STOP_SECONDS:g} s"])
        deadline.daemon = True
        deadline.start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
