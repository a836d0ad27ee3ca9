"""Terminal support of the command line: an immediate answer to Ctrl-C and SIGTERM, and always a last line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # exit code
STDERR = 2  # a signal may arrive while Python writes to its own stream
STOP_SECONDS = 10.0  # time for workers and the tracking store after Ctrl-C
STOPS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}  # a terminal's, and that of a service or batch manager
# For a shell whose input ends when this process does, unless it is terminated before.
LAST_LINE = "read -r line; echo 'killed, perhaps for lack of memory; run the same command again to go on' >&2"


@contextlib.contextmanager
def quick_interrupt() -> Iterator[None]:
    """Context in which Ctrl-C and SIGTERM are answered at once, although workers and store need time to stop.

    After `STOP_SECONDS`, or at a second signal, the process exits. The tracking store loses nothing, and the processes
    of a Ray cluster that was started here end with this process. If the process is killed, or Ray ends it, another
    process prints a last line.
    """
    # In a session of its own, so that what ends this process's group does not end it.
    shell = subprocess.Popen(["sh", "-c", LAST_LINE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                             start_new_session=True)

    def end(why: str) -> None:
        """End the process at once, without a traceback; `why` completes the message `ended ...`."""
        shell.terminate()  # before its input ends
        os.write(STDERR, f"ended {why}; run the same command again to go on\n".encode())
        os._exit(INTERRUPTED)

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Stop the sweep at the first signal; end the process at a second one, or after `STOP_SECONDS`.

        The arguments are those of every signal handler and are not used.
        """
        for each in STOPS:
            signal.signal(each, lambda number, frame: end(f"by a second {STOPS[signal.Signals(number)]}"))
        os.write(STDERR, b"\nstopping: waiting for the workers to end and for the tracking store, %g s at most; Ctrl-C "
                         b"again ends at once\n" % STOP_SECONDS)
        deadline = threading.Timer(STOP_SECONDS, end, [f"after {STOP_SECONDS:g} s"])
        deadline.daemon = True
        deadline.start()
        raise KeyboardInterrupt

    previous_handlers = {number: signal.signal(number, interrupt) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        shell.terminate()
        shell.communicate()
