"""Downloads into the cache: resumed when broken off, verified before they count, safe beside other processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from pipeline.trials.fields import UserError

Content = TypeVar("Content")

TIMEOUT = (10.0, 30.0)  # seconds to connect, and seconds without a byte before a transfer counts as broken
CHUNK = 1 << 14  # bytes; requests drops the chunk in which a transfer breaks off, so it is small
UNREAD = ("the data set or its features cannot be read, or are not what was expected; the private folder has the "
          "message")
WRITABLE = "set PHOTONIC_CACHE to a folder with room that can be written"
ADVICE = "without network, put the files in a folder and name it: PHOTONIC_DATA=<folder>, or `make ... DATA=<folder>`"


class DataError(UserError):
    """Data that cannot be had or cannot be trusted: the message names the file, what was expected and what was got.

    It may hold paths and digests of private records: a trial that keeps its errors private shows `public` instead.
    """

    def __init__(self, message: str, public: str = UNREAD, of_record: bool = False) -> None:
        super().__init__(message)
        self.public, self.of_record = public, of_record


def read_cached(path: Path, read: Callable[[Path], Content]) -> Content:
    """Return `read(path)`; if the file fails its verification, the error adds that this cached copy may be deleted."""
    try:
        return read(path)
    except DataError as error:
        raise DataError(f"{error}; {path} is a cached copy: delete it to have it made again") from error


def fetch(url: str, target: Path, read: Callable[[Path], Content]) -> Content:
    """Return what `read` makes of the file `target`, which is first downloaded from `url` if it is missing.

    Bytes are written to `<target>.part`. A broken transfer is resumed at once as long as every attempt brings bytes. A
    part that is not complete stays for the next call. A complete part is moved to `target` after `read` accepted it; if
    `read` refuses it with a `DataError`, it is removed, and the next call starts anew. One of several processes
    downloads, the others wait.
    """
    if target.exists():
        return read_cached(target, read)
    with write_errors_named(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if target.exists():  # another process was faster
                return read_cached(target, read)
            part = target.with_name(target.name + ".part")
            _download(url, part)
            try:
                content = read(part)
            except DataError as error:
                part.unlink()
                raise DataError(f"{error}; it was downloaded from {url} and is removed, "
                                f"so that the next try starts anew; {ADVICE}") from error
            os.replace(part, target)
            return content


@contextmanager
def write_errors_named(path: Path) -> Iterator[None]:
    """Turn errors of the file system within the context into a `DataError` that names the cache file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written to the cache ({error}); {WRITABLE}",
                        f"the cache cannot be written; {WRITABLE}") from error


def _download(url: str, part: Path) -> None:
    """Complete the file `part` from `url`: try again as long as every attempt brings bytes, and keep what came."""
    import requests  # imported here and below: not needed if the records are here already

    while True:
        size_before = _size(part)
        try:
            return _transfer(url, part, size_before)
        except requests.RequestException as error:
            size = _size(part)
            if size <= size_before:
                hint = f"; {size} bytes are kept in {part} to resume" if size else ""
                raise DataError(f"{url}: download failed: {error}{hint}; {ADVICE}") from error


def _transfer(url: str, part: Path, offset: int) -> None:
    """Send one request for the bytes from `offset` on, and append them to `part`; fewer than announced are an error.

    If the server ignores the range, the file is written from its beginning.
    """
    import requests

    headers = {"Accept-Encoding": "identity"}  # lengths and ranges of a compressed transfer would differ
    if offset:
        headers["Range"] = f"bytes={offset}-"
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if offset and response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # no bytes follow: the part is complete or wrong, as verification will show
        response.raise_for_status()
        resumed = response.status_code == requests.codes.partial_content
        start = offset if resumed else 0
        content_range = response.headers.get("Content-Range", "")
        if resumed and not content_range.startswith(f"bytes {offset}-"):
            raise DataError(f"{url}: expected Content-Range from byte {offset}, got '{content_range}'; {ADVICE}")
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with part.open("ab" if resumed else "wb") as file, _progress(url, start, total) as advance:
            for chunk in response.iter_content(CHUNK):
                file.write(chunk)
                advance(len(chunk))
    if total is not None and _size(part) < total:
        raise requests.ConnectionError(f"expected {total} bytes, got {_size(part)}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _progress(url: str, start: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes numbers of new bytes and shows progress: a bar on a terminal, elsewhere one line."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        size = f" ({total / 1e6:.1f} MB)" if total else ""
        resumed = f", resumed at byte {start}" if start else ""
        print(f"downloading {url}{size}{resumed}", file=sys.stderr, flush=True)
        yield lambda n: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
               TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(url.rsplit("/", 1)[-1], total=total, completed=start)
        yield lambda n: bar.advance(task, n)
