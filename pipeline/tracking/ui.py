"""MLflow's web page over the tracking store."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import urlsplit

from pipeline.tracking.backend import TrackingError, shown
from pipeline.tracking.reader import Reader

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PORT = 5000  # of `photonic ui`, if nothing else is said


def address(store: Reader, run_id: str) -> str:
    """Of a run of the open sweep in MLflow's web page: at the server that is the store, without user and password, or
    where `photonic ui` serves a database; empty for another store, whose page can be anywhere."""
    if store.uri.startswith("sqlite:"):
        page = f"http://{LOOPBACK[0]}:{PORT}"
    elif store.uri.startswith(("http://", "https://")):
        parts = urlsplit(store.uri)
        page = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    else:
        return ""
    return f"{page}/#/experiments/{store.experiment_id}/runs/{run_id}"


def serve(store: Reader, port: int, host: str = LOOPBACK[0]) -> int:
    """Run MLflow's server on one interface until Ctrl-C; the exit code of the server.

    Raises:
        TrackingError: if the store is a server itself.
    """
    if not store.uri.startswith("sqlite:"):
        raise TrackingError(f"tracking store {shown(store.uri)}: is a server of its own; open it in a browser")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store.uri, "--host", host,
               "--port", str(port), "--workers", "1"]
    if host not in LOOPBACK:
        print(f"warning: whoever reaches {host}:{port} can read, change and delete these runs; put a proxy with "
              "authentication and TLS before it (docs/cluster.md)", file=sys.stderr, flush=True)
    print(f"http://{host}:{port} shows {shown(store.uri)}: choose `Model training` there, then an experiment; Ctrl-C "
          "ends it", flush=True)
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", **os.environ}
    try:
        return subprocess.run(command, env=environment).returncode
    except KeyboardInterrupt:
        return 0
