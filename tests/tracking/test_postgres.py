"""The tracking server of docs/cluster.md: MLflow over HTTP with PostgreSQL, both real, for a sweep and its report."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import sqlalchemy
from commands import output, written
from fault_tools import Server, environment, wait_for
from safetensors.numpy import load_file
from stored import attached

from pipeline.experiment.experiment import load_experiment

INSTALLED = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
INITDB = shutil.which("initdb", path=os.pathsep.join([*INSTALLED, os.environ.get("PATH", "")]))
MISSING = [what for what, is_there in (("PostgreSQL's programs (the package postgresql)", INITDB),
                                       ("psycopg2 (the extra `server`)", find_spec("psycopg2"))) if not is_there]
pytestmark = [pytest.mark.postgres, pytest.mark.nightly,
              pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]
TINY = """
name: tiny
base: {dataset: digits, epochs: 2, hidden: [16], batch_size: 64}
cases:
  - base: {mechanism: none}
  - base: {mechanism: photonic, sigma: 0.1}
report: [table1]
"""


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """A cluster of its own, reached by a socket in a folder that nobody else may enter: its address for SQLAlchemy."""
    # PostgreSQL refuses to run as root, and a folder of pytest's would be closed to anybody else.
    owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    who = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if owner else {}
    with tempfile.TemporaryDirectory() as folder:
        if owner:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        data, options = Path(folder, "data"), {"cwd": folder, "env": environment(HOME=folder, LC_ALL="C"), **who}
        subprocess.run([INITDB, "--pgdata", data, "--username=mlflow", "--auth=trust", "--no-sync"], check=True,
                       capture_output=True, **options)
        started = data / "postmaster.pid"
        with subprocess.Popen([Path(INITDB).with_name("postgres"), "-D", data, "-k", folder, "-c", "listen_addresses=",
                               "-c", "fsync=off"], **options) as running:
            try:
                wait_for(lambda: started.exists() and "ready" in started.read_text(), 120)
                yield f"postgresql+psycopg2://mlflow@/postgres?host={folder}"
            finally:
                running.send_signal(signal.SIGINT)  # which waits for no client


@pytest.fixture(scope="module")
def server(database, tmp_path_factory) -> Iterator[str]:
    server = Server(tmp_path_factory.mktemp("server"), database)
    yield server.uri
    server.kill()


def test_sweep_and_report_over_http_and_postgresql(database, server, tmp_path, monkeypatch, capsys):
    file = written(tmp_path / "tiny.yaml", TINY)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    command = [sys.executable, "-m", "pipeline.cli", "sweep", file, "--workers", "1"]
    swept = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=300,
                           env=environment(MLFLOW_TRACKING_URI=server))
    assert swept.returncode == 0 and "2 trials: 2 finished" in swept.stderr, swept.stderr
    store = attached("tiny", tmp_path / "reader")
    runs = store.runs()
    assert Counter(run.trial_key for run in runs) == Counter(t.trial_key for t in load_experiment(file).trials)
    for run in runs:
        assert run.status == "finished"
        assert [epoch for epoch, _ in store.history(run.run_id, "validation/accuracy")] == [1, 2]
        folder = Path(store._client.download_artifacts(run.run_id, "", str(tmp_path)))
        assert {path.name for path in folder.iterdir()} >= {"config.json", "per_class.csv", "weights.safetensors"}
        assert load_file(folder / "weights.safetensors")["layer_1.weight"].shape[-2:] in ((16, 64), (64, 16))
    with sqlalchemy.create_engine(database).connect() as connection:
        of_trials = sqlalchemy.text("select count(*) from tags where key = 'trial_key'")
        assert connection.execute(of_trials).scalar() == 2
    assert "by label ε (labels only): " in output(capsys, "report", str(file), "--out", str(tmp_path / "report"))
    assert "| DFA | " in (tmp_path / "report/table1.md").read_text()
    assert {a.path for a in store._client.list_artifacts(store._parent(), "report")} >= {"report/table1.csv"}
    assert not (tmp_path / "mlruns/mlflow.db").exists()
