"""A headless Chromium, driven over its remote debugging pipe: JSON messages, each ended by a zero byte."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe")
SECONDS = 30.0  # for one answer
# Chromium reads its file descriptor 3 and writes 4; a process of its own puts the pipes there, by way of numbers that
# neither of them has.
PLUG = "import os, sys; r, w = map(int, sys.argv[1:3]); a = max(r, w) + 1; os.dup2(r, a); os.dup2(w, a + 1); " \
       "os.dup2(a, 3); os.dup2(a + 1, 4); os.closerange(5, a + 2); os.execv(sys.argv[3], sys.argv[3:])"


def chromium() -> str | None:
    """Path of an installed Chromium."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """One tab, of the given width. `events` are what it has reported.

    Args:
        profile: an empty folder.
    """

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [sys.executable, "-c", PLUG, str(theirs_in), str(theirs_out), program, *FLAGS,
                   f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number, self._session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium did not answer in {SECONDS:g} s")
            chunk = os.read(self._in, 1 << 16)
            if not chunk:
                raise RuntimeError("Chromium has ended")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def look(self, width: int, dark: bool = False, media: str = "screen") -> None:
        """Width of the window in CSS pixels, colour scheme and medium, from now on."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1,
                  mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def open(self, path: Path) -> None:
        """Load a file, and wait until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True,
                           userGesture=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", script))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """One key, where the focus is."""
        text = {"Enter": "\r"}.get(key, key)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "",
                      windowsVirtualKeyCode={"Enter": 13}.get(key, ord(key[0])))

    def close(self) -> None:
        """End the browser and wait for it."""
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(SECONDS)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
