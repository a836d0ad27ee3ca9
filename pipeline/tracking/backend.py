"""The interface to MLflow: addresses, connection, calls, limits and errors.

Only this module imports MLflow; `pipeline.tracking.reader` and `pipeline.tracking.store` use it. The import takes
seconds, so it happens when a store is opened. `pipeline.tracking.database` has what is SQLite's own.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock

from pipeline.machine import by_proxy, ends_commands, refuse
from pipeline.tracking.database import create, database, set_up_connections, uninterrupted
from pipeline.tracking.patience import Patience
from pipeline.trials.fields import UserError

PAGE_SIZE = 500  # runs per page of a search
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 800, 100, 100  # per log_batch call: MLflow takes 1000 entries together
MAX_TAG_LENGTH = 5000  # characters, the limit that every MLflow server accepts

_ENVIRONMENT = {  # MLflow reads these at import; the user's own values stay
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # it logs tracebacks of errors that it raises too
    # A request to a server that hangs is repeated once, and fails after 40 s; then `Patience` says so.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",  # seconds
}

DATABASES = ("postgresql", "mysql", "mssql")  # of which SQLAlchemy imports a driver
OTHERS = ("", "sqlite", "file", "http", "https", "databricks", "databricks-uc", "uc")
# What `pip install` calls a driver, where that is not the name of its module.
PACKAGES = {"psycopg": "'psycopg[binary]'", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient",
            "google.cloud.storage": "google-cloud-storage"}
BUCKETS = {"s3": "boto3", "gs": "google.cloud.storage"}  # scheme of a folder of artifacts -> module
ACCEPTED = ("must be sqlite:////folder/mlflow.db, postgresql+psycopg2://user:password@host/name, or "
            "http://host:port of an MLflow server")
ANOTHER = "MLFLOW_TRACKING_URI selects another store; without it runs are kept in --mlruns"


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


def check_store(uri: str) -> None:
    """Refuse an address without a store, and a database whose driver is not installed (`TrackingError`)."""
    scheme = uri.partition(":")[0] if ":" in uri else ""
    kind = scheme.partition("+")[0]
    if kind in DATABASES:
        return _check_driver(uri, kind)
    if scheme in BUCKETS:
        raise _refusal(uri, f"{ACCEPTED}; a bucket holds artifacts alone, which `mlflow server` names by "
                       "--artifacts-destination")
    is_known = kind in (*OTHERS, *(plugin.name for plugin in entry_points(group="mlflow.tracking_store")))
    has_host = not kind.startswith("http") or urlsplit(uri).hostname
    has_file = kind != "sqlite" or uri.partition("sqlite:///")[2] not in ("", ":memory:")
    if not (is_known and has_host and has_file and uri.strip()):
        raise _refusal(uri, ACCEPTED)


def _check_driver(uri: str, kind: str) -> None:
    from sqlalchemy.engine import make_url  # imported here: few stores need it
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        psycopg2 = "; or name another driver: postgresql+psycopg2://, of `pip install psycopg2-binary`"
        others = psycopg2 if kind == "postgresql" and error.name != "psycopg2" else ""
        raise _refusal(uri, f"{_needs(error.name or str(error))}{others}") from None
    except (ArgumentError, ValueError) as error:  # an unknown driver, or no address at all
        raise _refusal(uri, f"{ACCEPTED} ({redacted(str(error).splitlines()[0])})") from None


def check_artifacts(uri: str, location: str) -> None:
    """Refuse a store whose artifacts lie in a bucket that no installed package reaches (`TrackingError`)."""
    module = BUCKETS.get(urlsplit(location).scheme, "")
    if module and not find_spec(module.partition(".")[0]):
        raise _refusal(uri, f"keeps its artifacts in {redacted(location)}, which {_needs(module)}; or let the server "
                       "serve them (`mlflow server --artifacts-destination`)")


def _needs(module: str) -> str:
    return f"needs the Python package {module}, which is not installed: `pip install {PACKAGES.get(module, module)}`"


def _refusal(uri: str, why: str) -> TrackingError:
    return TrackingError(f"tracking store {redacted(uri)}: {why} ({ANOTHER})")


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
        hint = by_proxy(uri) or "is it there, and reachable? MLFLOW_TRACKING_URI selects another"
        raise TrackingError(f"{message} ({hint})") from error


def _errors() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    # OSError: a folder is not writable; ImportError: a database's driver is not installed.
    return MlflowException, RequestException, SQLAlchemyError, sqlite3.Error, OSError, ImportError


@contextlib.contextmanager
def ignoring_error(error_code: str) -> Iterator[None]:
    """Ignore a `TrackingError` caused by MLflow's error with this code, for calls whose effect is there already."""
    try:
        yield
    except TrackingError as error:
        if getattr(error.__cause__, "error_code", "") != error_code:
            raise


class Client:
    """MLflow's client of a store, with all its methods. Their errors are `TrackingError`s; `patience` may wait."""

    def __init__(self, mlflow: Any, uri: str) -> None:
        self.mlflow, self.uri, self.patience = mlflow, uri, Patience()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.mlflow, name)
        if database(self.uri):  # such a call ends by itself; one of a server may hang, and is broken off
            method = uninterrupted()(method)

        def call(*args: Any, **kwargs: Any) -> Any:
            with reporting_errors(self.uri):
                return self.patience.answer(lambda: method(*args, **kwargs))

        return call

    def refusal(self, reason: str) -> TrackingError:
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
        """Log a data set's name to a run, for MLflow's column of data sets; no path, and no digest of records."""
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


def connect(uri: str, lock: FileLock | None) -> Client:
    """Return the client of the store at `uri`; with a lock, create a missing database.

    The lock is held meanwhile, as processes that create the same database at once would break it. Without a lock the
    caller has checked that the database is set up.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    refuse(ends_commands())  # of scripts, which no command has checked
    from mlflow.tracking import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it logs a line for every try
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs errors that it raises
    set_up_connections()
    with reporting_errors(uri), lock or contextlib.nullcontext():
        if lock and (path := database(uri)):
            create(path)
        client = Client(MlflowClient(tracking_uri=uri), uri)
        client.search_experiments(max_results=1)
    return client
