"""The one guard around code of users: plugins, exhibits, networks, maps of records, readers.

An error there becomes one line with its type, its message and its place in their file, never a traceback of ours. What
code that saw private records says is hidden where trials keep their errors private.
"""

from __future__ import annotations

import contextlib
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.trials.fields import UserError

PACKAGES = Path(__file__).parents[2]
OURS = tuple(str(PACKAGES / name) for name in ("pipeline", "analysis"))
OF_WHO_RUNS_IT = (KeyboardInterrupt, GeneratorExit)  # no errors: a key, and a generator that is closed
INSTALLED: set[str] = set()  # files of plugins that are installed, which are no libraries


@contextlib.contextmanager
def guarded(refused: Callable[[str], UserError], hidden: bool = False) -> Iterator[None]:
    """Run code of users in the context: what it raises, except errors for people, is raised as `refused(line)`.

    A `hidden` error is told by type and place alone. A module that ends the process, as a script does, is refused too.
    """
    try:
        yield
    except UserError as error:
        if not hidden or public_line(error) == one_line(error):
            raise
        raise refused(public_line(error)) from None
    except OF_WHO_RUNS_IT:
        raise
    except BaseException as error:
        raise refused(public_line(error) if hidden else one_line(error)) from error


def one_line(error: BaseException) -> str:
    """Return an exception as one line, `ValueError: message (training.py:120)`."""
    lines = str(error).strip().splitlines()
    message = lines[0] if lines else "without a message"
    return f"{type(error).__name__}: {message}{_place(error)}"


def public_line(error: BaseException) -> str:
    """Return an exception of a trial with secret noise as one line without private numbers: at least type and place."""
    public = getattr(error, "public", "")
    if public:
        return f"{type(error).__name__}: {public}{_place(error)}"
    if isinstance(error, UserError) and not error.of_record and not is_of_users(error):
        return one_line(error)
    return without_message(error)


def without_message(error: BaseException) -> str:
    """Return the type and place of an exception, `ValueError (training.py:120)`."""
    return f"{type(error).__name__}{_place(error)}"


def is_of_users(error: BaseException) -> bool:
    """Whether code of users was running when it was raised."""
    return any(map(_is_of_users, traceback.extract_tb(error.__traceback__)))


def name_of(code: Any) -> str:  # Any: of a user, who may give any callable
    """Return a function's place in its file, ` (mine.py:12)`; empty for a callable without one."""
    function = getattr(code, "func", code)  # that a `partial` calls
    compiled = getattr(function, "__code__", None)
    return f" ({Path(compiled.co_filename).name}:{compiled.co_firstlineno})" if compiled else ""


def place_of(error: BaseException) -> str:
    """Return where an error was raised, in the users' code if that was running, as `file.py:120`; may be empty."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    frames_of_users = [frame for frame in frames if _is_of_users(frame)]
    last = (frames_of_users or frames)[-1]
    return "" if last.filename.startswith("<frozen") else f"{Path(last.filename).name}:{last.lineno}"


def _place(error: BaseException) -> str:
    """Return the place of an error in brackets, ` (file.py:120)`; empty if not known."""
    place = place_of(error)
    return f" ({place})" if place else ""


def _is_of_users(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is of code that is neither ours nor a library's."""
    file = frame.filename
    return file in INSTALLED or not (file.startswith(("<", *OURS)) or file.startswith(_libraries()))


@cache
def _libraries() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
