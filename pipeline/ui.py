"""MLflow's web page over the tracking store."""

from __future__ import annotations

import os
import subprocess
import sys

from pipeline.tracking import Store, TrackingError


def serve(store: Store, port: int) -> int:
    """Run MLflow's server on the loopback interface until Ctrl-C; the exit code of the server.

    Raises:
        TrackingError: if the store is a server itself.
    """
    if not store.uri.startswith("sqlite:"):
        raise TrackingError(f"tracking store {store.uri}: is a server of its own; open it in a browser")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store.uri, "--host", "127.0.0.1",
               "--port", str(port), "--workers", "1"]
    print(f"http://127.0.0.1:{port} shows {store.uri}; Ctrl-C ends it", flush=True)
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", **os.environ}
    try:
        return subprocess.run(command, env=environment).returncode
    except KeyboardInterrupt:
        return 0
