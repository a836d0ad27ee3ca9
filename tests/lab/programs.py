"""Programs that run on hosts, what they say and when, and the wait for what they bring about."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class LabError(RuntimeError):
    """Something in the laboratory did not come to be, as a program that should have started."""


@dataclass(frozen=True)
class Line:
    """What a program said, and when by `time.monotonic`."""

    at: float
    text: str


class Program:
    """A program that runs on a host; what it says is kept, line by line, with the time."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        self.name, self.lines = name, []
        self._process = subprocess.Popen(command, env=dict(environment), cwd=cwd, stdout=subprocess.PIPE, text=True,
                                         stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, errors="replace")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self.lines.append(Line(time.monotonic(), line.rstrip("\n")))

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    @property
    def code(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def wait_for(self, text: str, seconds: float = 120, start: int = 0) -> Line:
        """The first line that has `text`, from the line numbered `start`.

        Raises:
            LabError: it ended, or the time was over, without.
        """
        end = time.monotonic() + seconds
        while True:
            over = self.code is not None
            if over:
                self._reader.join(5)
            for line in self.lines[start:]:
                if text in line.text:
                    return line
            if over or time.monotonic() > end:
                raise LabError(f"{self.name}: '{text}' was not said {'until it ended' if over else f'in {seconds} s'}:"
                               f"\n{self.text}")
            time.sleep(0.05)

    def wait(self, seconds: float = 600) -> int:
        """Its exit status, once it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise LabError(f"{self.name}: did not end in {seconds:g} s:\n{self.text}") from None
        self._reader.join(5)
        return self._process.returncode

    def wait_while_it_talks(self, silent: float, seconds: float) -> int:
        """Its exit status, once it has ended.

        Raises:
            LabError: it said nothing for `silent` s, or did not end in `seconds`.
        """
        began = time.monotonic()
        while self.code is None:
            now, last = time.monotonic(), max([began, *(line.at for line in self.lines[-1:])])
            if now - last > silent or now - began > seconds:
                raise LabError(f"{self.name}: was silent for {now - last:.0f} s:\n{self.text}")
            time.sleep(0.1)
        return self.wait()

    def signal(self, how: signal.Signals = signal.SIGTERM) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise LabError(f"waited {seconds:g} s for {what}")
        time.sleep(0.05)
