"""Refuse the address of a tracking store that cannot work, before MLflow is asked, which takes long to import."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from urllib.parse import urlsplit

from pipeline.tracking.backend import TrackingError, redacted

DATABASES = ("postgresql", "mysql", "mssql")  # of which SQLAlchemy imports a driver
OTHERS = ("", "sqlite", "file", "http", "https", "databricks", "databricks-uc", "uc")
# What `pip install` calls a driver, where that is not the name of its module.
PACKAGES = {"psycopg": "'psycopg[binary]'", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient",
            "google.cloud.storage": "google-cloud-storage"}
BUCKETS = {"s3": "boto3", "gs": "google.cloud.storage"}  # scheme of a folder of artifacts -> module
ACCEPTED = ("must be sqlite:////folder/mlflow.db, postgresql+psycopg2://user:password@host/name, or "
            "http://host:port of an MLflow server")
ANOTHER = "MLFLOW_TRACKING_URI selects another store; without it runs are kept in --mlruns"


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
    """Refuse the address of a database that SQLAlchemy has no driver for."""
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
