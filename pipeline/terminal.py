"""What the command line needs of a terminal: Ctrl-C that is answered at once, and completion of a shell."""

from __future__ import annotations

import argparse
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


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script that completes the commands and options of `parser`, and names of files, in bash or zsh."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    options = "\n".join(f"    {name}) words='{' '.join(sub._option_string_actions)}' ;;"
                        for name, sub in commands.choices.items())
    zsh = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{zsh}_{parser.prog}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=''
  case ${{COMP_WORDS[1]}} in
{options}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='{' '.join([*commands.choices, *parser._option_string_actions])}'
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [ "$COMP_CWORD" -gt 1 ] && [ "${{current#-}}" = "$current" ]; then
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _{parser.prog} {parser.prog}"""
