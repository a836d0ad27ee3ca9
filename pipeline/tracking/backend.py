"""The interface to MLflow: connection, limits and errors.

Only this module imports MLflow; `pipeline.tracking.reader` and `pipeline.tracking.store` use it. The import takes
seconds, so it happens when a store is opened.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock

from pipeline.tracking.artifacts import DONE, IMPORTED, TrackedRun
from pipeline.trials.fields import UserError
from pipeline.trials.records import CLOCK, EpochRecord

PAGE_SIZE = 500  # runs per page of a search
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 800, 100, 100  # per log_batch call: MLflow takes 1000 entries together
MAX_TAG_LENGTH = 5000  # characters, the limit that every MLflow server accepts

_ENVIRONMENT = {  # MLflow reads these at import; the user's own values stay
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # it logs tracebacks of errors that it raises too
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",  # seconds
}


class TrackingError(UserError, RuntimeError):
    """The tracking store refused or failed; the message names the store."""


class NoStore(TrackingError):
    """There is no tracking store yet."""


P = ParamSpec("P")
R = TypeVar("R")


class _OfStore(Protocol):
    uri: str


S = TypeVar("S", bound=_OfStore)


def reports_errors(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Turn exceptions of MLflow, its database and its network into `TrackingError`, with the object's `uri`."""

    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the method; raise MLflow's and the connection's errors as a `TrackingError` that names the store."""
        try:
            return method(self, *args, **kwargs)
        except _errors() as error:
            # SQLAlchemy begins some messages with a line on the state of the session, before the reason.
            lines = [line for line in str(error).strip().splitlines() if not line.startswith("(raised as a result of")]
            reason = lines[0] if lines else type(error).__name__
            message = redacted(f"tracking store {self.uri}: {reason}")
            hint = "is it there, and reachable? MLFLOW_TRACKING_URI selects another"
            raise TrackingError(f"{message} ({hint})") from error

    functools.update_wrapper(wrapper, method)
    return wrapper


def redacted(text: str) -> str:
    """Return a URI, or a text with URIs, without user, password and tokens, for messages and logs."""
    text = re.sub(r"://[^/@\s:]*(:\S*)?@", "://***@", text)  # up to the last @: passwords may contain @ and slashes
    return re.sub(r"(?i)([?&][^=&\s]*(?:password|passwd|token|secret)[^=&\s]*=)[^&\s]*", r"\1***", text)


def _errors() -> tuple[type[Exception], ...]:
    """Return the types of error that a tracking store raises.

    They are imported on the first error, as MLflow takes long to import.
    """
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    # OSError: a folder is not writable; ImportError: a database's driver is not installed.
    return MlflowException, RequestException, SQLAlchemyError, OSError, ImportError


@contextlib.contextmanager
def ignoring_error(error_code: str) -> Iterator[None]:
    """Ignore MLflow's exceptions with this code: the requested state exists already."""
    try:
        yield
    except Exception as error:
        if getattr(error, "error_code", "") != error_code:
            raise


def connect(uri: str, lock: FileLock | None) -> Any:
    """Return MLflow's client of the store at `uri`; with a lock, create a missing database.

    The lock is held meanwhile, as processes that create the same database at once would break it. Without a lock
    nothing is created: the caller has checked that the database is set up.
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
    with lock or contextlib.nullcontext():
        path = database(uri)
        if lock and path is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")  # readers and the writer do not wait for each other
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    return client


def _reading_only(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    """Tell SQLite that nobody writes to a database in a folder that cannot be written.

    It would otherwise create files of the write-ahead log, and not open the database without them.
    """
    path = Path(str(arguments[0])) if dialect.name == "sqlite" and arguments else None
    if path and path.exists() and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        arguments[0], options["uri"] = f"{path.absolute().as_uri()}?mode=ro&immutable=1", True


def _without_flushes(connection: Any, record: Any) -> None:
    """Stop SQLite from flushing the disk at every commit (some ten per trial), if it has a write-ahead log.

    The log protects against processes that die. After a power failure the database is intact, but the last commits may
    be lost.
    """
    if isinstance(connection, sqlite3.Connection):
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            connection.execute("PRAGMA synchronous=NORMAL")


def database(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for any other store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def is_set_up(path: Path) -> bool:
    """Whether MLflow can open the SQLite database without writing to it: MLflow creates missing tables and experiments.

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


def search(client: Any, experiments: Sequence[str], condition: str = "", deleted: bool = False) -> Iterator[Any]:
    """Yield all matching runs, oldest first, page by page; with `deleted` also runs in the trash.

    `condition` is a filter in MLflow's language.
    """
    from mlflow.entities import ViewType

    view = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
    page_token = None  # the first page
    while True:
        page = client.search_runs(list(experiments), condition, view, max_results=PAGE_SIZE,
                                  order_by=["attributes.start_time ASC"], page_token=page_token)
        yield from page
        page_token = page.token
        if not page_token:
            return


def find_experiment(client: Any, name: str, imports: bool = False) -> str | None:
    """Return the id of the experiment `name`; None if there is none.

    Refused (`TrackingError`) are a deleted one and, without `imports`, one that has imported results and so is no
    sweep.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage != "active":
        raise TrackingError(f"experiment '{name}' was deleted and lies in MLflow's trash; restore it (`mlflow "
                            f"experiments restore -x {experiment.experiment_id}`) or rename the sweep")
    if experiment is not None and IMPORTED in experiment.tags and not imports:
        raise TrackingError(f"'{name}': must be a sweep, has imported results, which `report FILE --with {name}` "
                            "shows; a sweep needs another name")
    return experiment.experiment_id if experiment else None


def find_trial(client: Any, uri: str, name: str) -> Any:
    """Return the run of a trial in any sweep, by MLflow's run id or by trial_key.

    There must be exactly one (`TrackingError`).
    """
    searched_fields = {16: "tags.trial_key", 32: "attributes.run_id"}  # by the number of hexadecimal digits
    field = searched_fields.get(len(name))
    if field is None or not name.isalnum():
        raise TrackingError(f"'{name}': must be a trial_key or a run id, 16 or 32 hexadecimal digits")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = [run for run in search(client, experiments, f"{field} = '{name}'") if "trial_key" in run.data.tags]
    if not runs:
        raise TrackingError(f"tracking store {redacted(uri)}: no trial has the trial_key or run id '{name}'")
    if len(runs) > 1:
        run_ids = [run.info.run_id for run in runs]
        raise TrackingError(f"trial {name} has {len(runs)} runs: {', '.join(run_ids)}; name one of them")
    return runs[0]


def tracked(run: Any) -> TrackedRun:
    """Return MLflow's run of a trial as plain data."""
    tags = dict(run.data.tags)
    # A run has the latest point of each metric. Every epoch logs CLOCK; the public API does not have its step.
    last_epoch = next((metric.step for metric in run.data._metric_objs if metric.key == CLOCK), 0)
    return TrackedRun(run_id=run.info.run_id, trial_key=tags["trial_key"], params=dict(run.data.params),
                      metrics=dict(run.data.metrics), tags=tags, status=tags.get("status", "running"),
                      start_ms=run.info.start_time, end_ms=run.info.end_time, epoch=last_epoch)


class Listing:
    """The runs of a sweep's trials in a database, without a search for each trial.

    The sweep is listed once, and again if another process of this host has listed it meanwhile: that process may have
    created runs. A process that lists the runs writes a random mark to a file in `folder`, so another mark there means
    another process. A caller holds a lock until it has created its run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._mark = folder, ""
        self._runs: dict[str, list[str]] = {}

    def runs_of(self, key: str, experiment: str, list_all: Callable[[], list[TrackedRun]]) -> list[str]:
        """Return the run ids of a trial, from the listing; the caller adds a run that it creates.

        If another process has listed the sweep since, the runs are listed again. `list_all` returns all runs of the
        sweep.
        """
        mark = self._mark_file(experiment)
        if not mark.exists() or mark.read_text() != self._mark:
            self.read(experiment, list_all)
        return self._runs.setdefault(key, [])

    def read(self, experiment: str, list_all: Callable[[], list[TrackedRun]]) -> list[TrackedRun]:
        """List all runs now, and return them; the caller holds the lock."""
        runs, self._runs = list_all(), {}
        for run in runs:
            self._runs.setdefault(run.trial_key, []).append(run.run_id)
        self._mark = secrets.token_hex()
        self._mark_file(experiment).write_text(self._mark)
        return runs

    def _mark_file(self, experiment: str) -> Path:
        return self._folder / f".runs-{experiment}.mark"

    def forget(self, key: str) -> None:
        """Remove the trial's runs from the listing."""
        self._runs.pop(key, None)


def resume(client: Any, trial_key: str, run_id: str) -> Any:
    """Mark a trial's unfinished run as running again, and return MLflow's run as it was before.

    A finished run is refused (`TrackingError`).
    """
    run = client.get_run(run_id)
    if run.data.tags.get("status") in DONE:
        raise TrackingError(f"trial {trial_key} is {run.data.tags['status']} already, run {run_id}")
    if "failure" in run.data.tags:
        with ignoring_error("RESOURCE_DOES_NOT_EXIST"):  # deleted by a call with a lost answer
            client.delete_tag(run_id, "failure")
    client.update_run(run_id, status="RUNNING")
    return run


def new_points(records: Iterable[EpochRecord], logged: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    """Return the metrics of a trial's records that its run lacks or has with another value: (name, epoch) -> value.

    The time of an epoch differs at every repetition, so its first value stays.
    """
    new: dict[tuple[str, int], float] = {}
    for record in records:
        for name, value in record.metrics.items():
            point = name, record.epoch
            known = new.get(point, logged.get(point))
            has_changed = known != float(value) and not name.startswith("time/")
            if known is None or has_changed:
                new[point] = float(value)
    return new


def write(client: Any, run_id: str, points: Sequence[tuple[str, float, int]] = (),
          params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> None:
    """Write metrics (name, value, step), params and tags, in as few calls as MLflow's limits allow."""
    from mlflow.entities import Metric, Param, RunTag

    now = int(time.time() * 1000)  # milliseconds
    metrics = [Metric(name, value, now, step) for name, value, step in points]
    run_params = [Param(name, text) for name, text in (params or {}).items()]
    run_tags = [RunTag(name, text) for name, text in (tags or {}).items()]
    while metrics or run_params or run_tags:
        client.log_batch(run_id, metrics[:MAX_METRICS], run_params[:MAX_PARAMS], run_tags[:MAX_TAGS])
        metrics, run_params, run_tags = metrics[MAX_METRICS:], run_params[MAX_PARAMS:], run_tags[MAX_TAGS:]


def local_folder(uri: str) -> Path | None:
    """Return the folder of this host at an address of artifacts; None for an address on a server."""
    parts = urlsplit(uri)
    return Path(url2pathname(parts.path)) if parts.scheme in ("file", "") else None


def replace_locations(uri: str, new_places: Mapping[str, str]) -> None:
    """Replace addresses of sweeps' artifacts, old -> new, and those of all their runs, in one transaction.

    MLflow has no call for it.
    """
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    with create_engine(uri, poolclass=NullPool).begin() as database:
        for old, new in new_places.items():
            database.execute(text("UPDATE experiments SET artifact_location = :new WHERE artifact_location = :old"),
                             {"old": old, "new": new})
            database.execute(text("UPDATE runs SET artifact_uri = :new || substr(artifact_uri, length(:old) + 1) "
                                  "WHERE substr(artifact_uri, 1, length(:old) + 1) = :old || '/'"),
                             {"old": old, "new": new})


def require_finite(name: str, value: float, place: str) -> None:
    """Check that a metric is finite. MLflow would store infinity as 1.8e308. `place` is what has the metric."""
    if not math.isfinite(value):
        raise ValueError(f"{name}: must be finite, got {value} ({place}); log nothing and set a tag")
