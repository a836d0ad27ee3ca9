"""The interface to MLflow: connection, calls, limits and errors.

Only this module imports MLflow; `pipeline.tracking.reader` and `pipeline.tracking.store` use it. The import takes
seconds, so it happens when a store is opened.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests
from filelock import FileLock

from pipeline.trials.fields import UserError

PAGE_SIZE = 500  # runs per page of a search
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 800, 100, 100  # per log_batch call: MLflow takes 1000 entries together
MAX_TAG_LENGTH = 5000  # characters, the limit that every MLflow server accepts
PAUSE_SECONDS = 1.0  # time between two tries
MESSAGE_SECONDS = 25.0  # time between two messages while waiting
CHECK_SECONDS = 1.0  # time between two checks of a call's duration
UNREACHABLE = (ConnectionError, TimeoutError, requests.ConnectionError, requests.Timeout,
               requests.exceptions.RetryError, requests.exceptions.ChunkedEncodingError)

_ENVIRONMENT = {  # MLflow reads these at import; the user's own values stay
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # it logs tracebacks of errors that it raises too
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",  # seconds
}


def origin() -> dict[str, str]:
    """Return the tags by which MLflow's page shows who began a run, and with which program; as MLflow, but no path."""
    tags = {"mlflow.source.name": Path(sys.argv[0]).name or "python", "mlflow.source.type": "LOCAL"}
    with contextlib.suppress(ImportError, KeyError, OSError):  # a container's user may have no name
        tags["mlflow.user"] = getpass.getuser()
    return tags


class TrackingError(UserError, RuntimeError):
    """The tracking store refused or failed; the message names the store."""


class NoStore(TrackingError):
    """There is no tracking store yet."""


class OtherFormat(TrackingError):
    """Another version of this software began the sweep; the store's other sweeps can be opened."""


def redacted(text: str) -> str:
    """Return a URI, or a text with URIs, without user, password and tokens, for messages and logs."""
    text = re.sub(r"://[^/@\s:]*(:\S*)?@", "://***@", text)  # up to the last @: passwords may contain @ and slashes
    return re.sub(r"(?i)([?&][^=&\s]*(?:password|passwd|token|secret)[^=&\s]*=)[^&\s]*", r"\1***", text)


@contextlib.contextmanager
def reporting_errors(uri: str) -> Iterator[None]:
    """Turn errors of MLflow, its database, the network and files into `TrackingError`, which names the store at `uri`.

    A client uses this context in each call. Code that reads or writes a store's files without a client needs it too.
    """
    try:
        yield
    except TrackingError:
        raise
    except _errors() as error:  # imported on the first error, as MLflow takes long to import
        # SQLAlchemy begins some messages with a line on the state of the session, before the reason.
        lines = [line for line in str(error).strip().splitlines() if not line.startswith("(raised as a result of")]
        reason = lines[0] if lines else type(error).__name__
        message = redacted(f"tracking store {uri}: {reason}")
        hint = "is it there, and reachable? MLFLOW_TRACKING_URI selects another"
        raise TrackingError(f"{message} ({hint})") from error


def _errors() -> tuple[type[Exception], ...]:
    """Return the types of error that a store raises."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    # OSError: a folder is not writable; ImportError: a database's driver is not installed.
    return MlflowException, RequestException, SQLAlchemyError, sqlite3.Error, OSError, ImportError


@contextlib.contextmanager
def ignoring_error(error_code: str) -> Iterator[None]:
    """Ignore MLflow's errors with this code: the requested state exists already."""
    try:
        yield
    except TrackingError as error:
        if getattr(error.__cause__, "error_code", "") != error_code:
            raise


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the block: a transaction that one breaks off may keep its lock."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: handler for number in (signal.SIGINT, signal.SIGTERM)
                if is_main and callable(handler := signal.getsignal(number))}
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


class Client:
    """MLflow's client of a store, with all its methods. Their errors become `TrackingError`, and they may wait.

    A patient client repeats calls, with the same arguments, while the store cannot be reached. The arguments, time
    stamps included, stay the same: if only the answer of a call was lost, the repeated call writes nothing twice.
    MLflow stores equal points of a metric once, and accepts equal params and tags. It would create a run twice; `Store`
    removes the second.
    """

    def __init__(self, mlflow: Any, uri: str) -> None:
        self.mlflow, self.uri = mlflow, uri
        self._is_file = database(uri) is not None
        self._seconds = 0.0  # of `be_patient`; without patience no call is repeated
        self._say: Callable[[str], None] = print
        self.repeated = 0  # calls that were made again
        self._lost_at: float | None = None  # time of the first failed call; None while the store answers
        self._last_message = 0.0  # time of the last message

    def be_patient(self, seconds: float, say: Callable[[str], None]) -> None:
        """Wait, from now on, for an unreachable store: up to `seconds` from a failed call to the next success.

        After a longer outage or an interrupted wait, calls are not repeated. `say` receives messages when the store is
        lost, while waiting, and when the store is back.
        """
        self._seconds, self._say = seconds, say

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.mlflow, name)
        if self._is_file:  # such a call ends by itself; one of a server may hang, and is broken off
            method = uninterrupted()(method)
        return lambda *args, **kwargs: self._call(lambda: method(*args, **kwargs))

    def refusal(self, reason: str) -> TrackingError:
        """Return an error that names the store."""
        return TrackingError(redacted(f"tracking store {self.uri}: {reason}"))

    def search(self, experiments: Sequence[str], condition: str = "", deleted: bool = False, live: bool = True
               ) -> Iterator[Any]:
        """Yield all runs that match a filter of MLflow, oldest first: `live` ones, `deleted` ones in the trash."""
        from mlflow.entities import ViewType

        deleted_view = ViewType.ALL if live else ViewType.DELETED_ONLY
        view = deleted_view if deleted else ViewType.ACTIVE_ONLY
        page_token = None  # the first page
        while True:
            page = self.search_runs(list(experiments), condition, view, max_results=PAGE_SIZE,
                                    order_by=["attributes.start_time ASC"], page_token=page_token)
            yield from page
            page_token = page.token
            if not page_token:
                return

    def write(self, run_id: str, points: Sequence[tuple[str, float, int]] = (),
              params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> None:
        """Write metrics (name, value, step), params and tags, in as few calls as MLflow's limits allow."""
        from mlflow.entities import Metric, Param, RunTag

        now = int(time.time() * 1000)  # milliseconds
        metrics = [Metric(name, value, now, step) for name, value, step in points]
        run_params = [Param(name, text) for name, text in (params or {}).items()]
        run_tags = [RunTag(name, text) for name, text in (tags or {}).items()]
        while metrics or run_params or run_tags:
            self.log_batch(run_id, metrics[:MAX_METRICS], run_params[:MAX_PARAMS], run_tags[:MAX_TAGS])
            metrics, run_params, run_tags = metrics[MAX_METRICS:], run_params[MAX_PARAMS:], run_tags[MAX_TAGS:]

    def log_dataset(self, run_id: str, name: str) -> None:
        """Log a data set to a run for MLflow's column of data sets: its name alone, no path and no digest of records.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(name, digest="not recorded", source_type="name", source=json.dumps({"name": name}))
        self.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def find_experiment(self, name: str) -> str | None:
        """Return the id of an experiment, None if there is none; refuse a deleted one."""
        experiment = self.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage != "active":
            raise TrackingError(f"experiment '{name}' was deleted and lies in MLflow's trash; restore it (`mlflow "
                                f"experiments restore -x {experiment.experiment_id}`) or rename the sweep")
        return experiment.experiment_id if experiment else None

    def _call(self, method: Callable[[], Any]) -> Any:
        """Return the result of a call; after Ctrl-C later calls no longer wait."""
        with reporting_errors(self.uri):
            try:
                return self._answer(method) if self._seconds else method()
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
            try:
                threading.Thread(target=self._report_delay, args=(start, is_over), daemon=True).start()
                answer = method()
            except Exception as error:
                if not is_temporary(error) or not self._pause_before_retry(start):
                    raise
                self.repeated += 1
            else:
                if self._lost_at is not None:
                    outage = time.monotonic() - self._lost_at
                    self._say(f"the tracking store is back after {outage:.0f} s; nothing was lost")
                self._lost_at = None
                return answer
            finally:
                is_over.set()

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
            self._lost_at, self._last_message = start, time.monotonic()
            self._say(f"the tracking store cannot be reached; trying again for up to {self._seconds:g} s")
        self._say_waiting(self._lost_at)
        outage = time.monotonic() - self._lost_at
        if outage + PAUSE_SECONDS > self._seconds:
            self._seconds = 0.0  # closing the sweep does not wait again
            return False
        time.sleep(PAUSE_SECONDS)
        return True


def is_temporary(error: BaseException) -> bool:
    """Whether a repeated call may succeed: the store was not reached, or was busy or locked, not full or damaged."""
    if getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE":  # MLflow's code for any failed database operation
        return "(sqlite3." not in str(error) or "locked" in str(error)
    link: BaseException | None = error
    while link is not None and not isinstance(link, UNREACHABLE):
        link = link.__cause__ or link.__context__
    return link is not None


def connect(uri: str, lock: FileLock | None) -> Client:
    """Return the client of the store at `uri`; with a lock, create a missing database.

    The lock is held meanwhile, as processes that create the same database at once would break it. Without a lock the
    caller has checked that the database is set up.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it logs a line for every try
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs errors that it raises
    if not event.contains(Engine, "connect", _without_flushes):
        event.listen(Engine, "connect", _without_flushes)
        event.listen(Engine, "do_connect", _reading_only)
    with reporting_errors(uri), lock or contextlib.nullcontext():
        path = database(uri)
        if lock and path is not None and path.exists() and not is_set_up(path):
            # A process was killed while MLflow made the tables: they have no sweep, and MLflow cannot go on with them.
            for part in path.parent.glob(f"{path.name}*"):
                part.rename(part.with_name(f"unfinished-{part.name}"))
        if lock and path is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")  # readers and the writer do not wait for each other
        client = Client(MlflowClient(tracking_uri=uri), uri)
        client.search_experiments(max_results=1)
    return client


def _reading_only(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    """Tell SQLite that nobody writes to a database in a folder that cannot be written."""
    # It would otherwise create files of the write-ahead log, and not open the database without them.
    path = Path(str(arguments[0])) if dialect.name == "sqlite" and arguments else None
    if path and path.exists() and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        arguments[0], options["uri"] = f"{path.absolute().as_uri()}?mode=ro&immutable=1", True


def _without_flushes(connection: Any, record: Any) -> None:
    """Stop SQLite from flushing the disk at every commit (some ten per trial), if it has a write-ahead log.

    The log protects against processes that die. A power failure may cost the last commits, not the database.
    """
    if isinstance(connection, sqlite3.Connection):
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            connection.execute("PRAGMA synchronous=NORMAL")


def database(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for any other store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


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
