"""Addresses of tracking stores that cannot work: one line with what would, before anything else is done."""

import builtins

import pytest

from pipeline.cli import main
from pipeline.tracking import backend
from pipeline.tracking.backend import ACCEPTED, TrackingError, check_artifacts, check_store

FILE = "name: q\nbase: {dataset: digits, algorithm: bp, hidden: [], epochs: 1}\n"
DRIVERS = {"postgresql": ("psycopg", "'psycopg[binary]'"), "postgresql+psycopg2": ("psycopg2", "psycopg2-binary"),
           "postgresql+pg8000": ("pg8000", "pg8000"), "mysql": ("MySQLdb", "mysqlclient"),
           "mysql+pymysql": ("pymysql", "pymysql"), "mssql": ("pyodbc", "pyodbc")}


@pytest.fixture
def nothing_installed(monkeypatch):
    """No driver of a database."""
    found, modules = builtins.__import__, {module for module, _ in DRIVERS.values()}

    def without(name, globals=None, locals=None, fromlist=(), level=0):
        if name in modules and level == 0:  # SQLAlchemy names its own modules so, relative to a package
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return found(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", without)


@pytest.mark.parametrize("scheme", DRIVERS)
def test_a_driver_that_is_missing_is_named_with_its_package(tmp_path, monkeypatch, capsys, nothing_installed, scheme):
    module, package = DRIVERS[scheme]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://me:hunter2@host/db")
    (tmp_path / "q.yaml").write_text(FILE)
    for command in (["sweep"], ["status"], ["report"]):
        assert main([*command, str(tmp_path / "q.yaml"), "--mlruns", str(tmp_path / "runs")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: tracking store {scheme}://***@host/db: needs the Python package {module}, "
                               f"which is not installed: `pip install {package}`")
        assert "MLFLOW_TRACKING_URI" in line
        assert ("+psycopg2://, of" in line) == (scheme in ("postgresql", "postgresql+pg8000"))


@pytest.mark.parametrize("uri", [
    "postgres://u:hunter2@h/db", "postgresql+nodriver://h/db", "oracle://h/db", "http://", "https:///mlflow",
    "sqlite://mlruns/x.db", "sqlite:///:memory:", "sqlite:///", "sqlite://", "sqlite:mlruns/x.db", "s3://bucket/x",
    "gs://bucket", "ftp://h/x", " ", "htp://host:5000"])
def test_what_is_no_address_of_a_store_is_told_what_would_be(uri):
    with pytest.raises(TrackingError) as raised:
        check_store(uri)
    text = str(raised.value)
    assert ACCEPTED in text and "hunter2" not in text and "\n" not in text and "MLFLOW_TRACKING_URI" in text


@pytest.mark.parametrize("uri", ["sqlite:////a/b.db", "sqlite:///a/b.db", "http://h:5000", "https://h/mlflow", "mlruns",
                                 "databricks", "databricks://profile", "file:///a/b", "/a/b"])
def test_other_addresses_are_left_to_mlflow(uri):
    check_store(uri)


def test_a_bucket_of_artifacts_needs_its_package(monkeypatch):
    monkeypatch.setattr(backend, "find_spec", lambda module: None)
    with pytest.raises(TrackingError, match="in s3://b/x, which needs the Python package boto3, .*install boto3`"):
        check_artifacts("http://h:5000", "s3://b/x")
    with pytest.raises(TrackingError, match="install google-cloud-storage`"):
        check_artifacts("http://h:5000", "gs://b")
    for location in ("mlflow-artifacts:/1", "file:///a", "/a"):
        check_artifacts("http://h:5000", location)
    monkeypatch.undo()
    monkeypatch.setattr(backend, "find_spec", lambda module: object())
    check_artifacts("http://h:5000", "s3://b/x")
