"""A store in an SQLite database and a folder of this host: what MLflow leaves to those who use one.

`pipeline.tracking.backend` creates a database and connects to it by this module. `Reader` and `Store` ask it where a
store's files are, and record new places after a move.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


def database(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for any other store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def create(path: Path) -> None:
    """Create a missing database with a write-ahead log, so that readers and the writer do not wait for each other.

    A database with only some of MLflow's tables, as its process was killed, is renamed: MLflow could not use it.
    """
    if path.exists() and not is_set_up(path):
        for part in path.parent.glob(f"{path.name}*"):
            part.rename(part.with_name(f"unfinished-{part.name}"))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")


def is_set_up(path: Path) -> bool:
    """Whether MLflow can open the SQLite database without creating tables and experiments in it.

    True also if this cannot be checked (a damaged or locked file): MLflow then raises its own error.
    """
    if not path.exists():
        return False
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"  # `ro` would leave files of the write-ahead log behind
        with contextlib.closing(sqlite3.connect(uri, timeout=0, uri=True)) as connection:
            return connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is not None
    except sqlite3.Error as error:
        return not str(error).startswith("no such table")


def set_up_connections() -> None:
    """Set up every later connection of this process to SQLite, as MLflow makes them: by the two functions below."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    if not event.contains(Engine, "connect", _skip_flushes):
        event.listen(Engine, "connect", _skip_flushes)
        event.listen(Engine, "do_connect", _open_read_only_folder)


def _open_read_only_folder(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    """Open a database in a folder that cannot be written as immutable (SQLAlchemy calls this before it connects).

    SQLite would otherwise fail, as it cannot create the files of the write-ahead log there.
    """
    path = Path(str(arguments[0])) if dialect.name == "sqlite" and arguments else None
    if path and path.exists() and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        arguments[0] = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        options["uri"] = True


def _skip_flushes(connection: Any, record: Any) -> None:
    """Stop SQLite from flushing the disk at every commit (some ten per trial), if it has a write-ahead log.

    The log protects against processes that die. A power failure may cost the last commits, not the database.
    """
    if isinstance(connection, sqlite3.Connection):
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            connection.execute("PRAGMA synchronous=NORMAL")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM to the end of the block: an interrupted transaction may keep its lock."""
    is_main = threading.current_thread() is threading.main_thread()  # no other thread may set handlers
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in found.items() if is_main and callable(handler)}
    caught: list[int] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])


def local_folder(uri: str) -> Path | None:
    """Return the folder of this host at an address of artifacts; None for an address on a server."""
    parts = urlsplit(uri)
    return Path(url2pathname(parts.path)) if parts.scheme in ("file", "") else None


def replace_locations(uri: str, new_places: Mapping[str, str]) -> None:
    """Replace addresses of sweeps' artifacts, old -> new, and those of all their runs; MLflow has no call for it."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    with create_engine(uri, poolclass=NullPool).begin() as database:
        for old, new in new_places.items():
            database.execute(text("UPDATE experiments SET artifact_location = :new WHERE artifact_location = :old"),
                             {"old": old, "new": new})
            database.execute(text("UPDATE runs SET artifact_uri = :new || substr(artifact_uri, length(:old) + 1) "
                                  "WHERE substr(artifact_uri, 1, length(:old) + 1) = :old || '/'"),
                             {"old": old, "new": new})
