"""Terminal support of the command line: an immediate answer to Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # exit code
STDERR = 2  # a signal may arrive while Python writes to its own stream
STOP_SECONDS = 10.0  # time for workers and the tracking store after Ctrl-C


@contextlib.contextmanager
def quick_interrupt() -> Iterator[None]:
    """Context in which Ctrl-C is answered at once, with a message, although workers and store need time to stop.

    After `STOP_SECONDS`, or at another Ctrl-C, the process exits. The tracking store loses nothing, and the processes
    of a Ray cluster that was started here end with this process.
    """

    def end(why: str) -> None:
        """End the process at once, without a traceback; `why` completes the message `ended ...`."""
        os.write(STDERR, f"ended {why}; run the same command again to go on\n".encode())
        os._exit(INTERRUPTED)

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Stop the sweep at the first Ctrl-C; end the process at a second one, or after `STOP_SECONDS`.

        The arguments are those of every signal handler and are not used.
        """
        signal.signal(signal.SIGINT, lambda number, frame: end("by a second Ctrl-C"))
        os.write(STDERR, b"\nstopping: waiting for the workers to end and for the tracking store, %g s at most; Ctrl-C "
                         b"again ends at once\n" % STOP_SECONDS)
        deadline = threading.Timer(STOP_SECONDS, end, [f"after {STOP_SECONDS:g} s"])
        deadline.daemon = True
        deadline.start()
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
