"""Serve MLflow's web page for the tracking store, and make links to it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

from pipeline.terminal import PORT
from pipeline.tracking.backend import OtherFormat, TrackingError, redacted
from pipeline.tracking.reader import Reader

LOOPBACK = ("127.0.0.1", "::1", "localhost")
END_SECONDS = 5.0  # the server's time to close open connections
MAX_SWEEPS = 5  # sweeps with a line when the page is served
VIEW = "mlflow.sharedViewState.photonic"  # tag of an experiment with the view of its runs (`sweep.outcome`)
SETTING = "setting"  # tag of a trial with its name without seed: the view shows means over the runs that share it
TRAINING = "workflowType=machine_learning"  # selects this half of MLflow's page, whatever was chosen last


def address(store: Reader, run_id: str) -> str:
    """Return the address (URL) of a run of the open sweep on MLflow's web page; empty if the store has no page."""
    page = _page(store)
    return f"{page}/#/experiments/{store.experiment_id}/runs/{run_id}?{TRAINING}" if page else ""


def runs_address(store: Reader, page: str = "", chart: bool = False) -> str:
    """Return the address of all runs of the open sweep on MLflow's page, in the sweep's view; empty if it has no page.

    A view is a stored choice of columns and charts, sorted by accuracy.

    Args:
        page: address of MLflow's page; empty for the store's own.
        chart: show accuracy against epsilon instead of the table, for a sweep with a view.
    """
    page = page or _page(store)
    if not page:
        return ""
    view = f"viewStateShareKey={VIEW.rpartition('.')[2]}"
    mode = "CHART" if chart else "TABLE"
    return f"{page}/#/experiments/{store.experiment_id}/runs?{TRAINING}&compareRunsMode={mode}&{view}"


def _page(store: Reader) -> str:
    """Return the address of MLflow's page for a store, without a password; empty for a store without a page."""
    if store.uri.startswith("sqlite:"):  # has a page while `photonic ui` serves it on this machine
        return f"http://{LOOPBACK[0]}:{PORT}"
    if store.uri.startswith(("http://", "https://")):
        parts = urlsplit(store.uri)
        host = parts.netloc.rpartition("@")[2]  # without user and password
        return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
    return ""


def runs_pages(store: Reader, page: str) -> list[str]:
    """Return lines for recent sweeps: the address of a sweep's runs and its name, and the address of its chart, if any.

    A sweep of another format has the line that refuses it.
    """
    # MLflow's own list of experiments leads to pages for generative AI unless `Model training` is selected there.
    lines = []
    for name in reversed(store.sweeps()[-MAX_SWEEPS:]):
        try:
            store.attach(name)
        except OtherFormat as refusal:
            lines.append(f"  {refusal}")
            continue
        lines.append(f"  {runs_address(store, page)}  {name}")
        if "compareRunCharts" in store.tags().get(VIEW, ""):
            lines.append(f"  {runs_address(store, page, chart=True)}  {name}, accuracy against epsilon")
    return lines


def serve(store: Reader, port: int, host: str = LOOPBACK[0]) -> int:
    """Run MLflow's server on one interface until Ctrl-C or SIGTERM; return its exit code, or 1 for a port in use.

    A store that is a server itself is refused (`TrackingError`).
    """
    if not store.uri.startswith("sqlite:"):
        raise TrackingError(f"tracking store {redacted(store.uri)}: is a server of its own; open it in a browser")
    if in_use(host, port):
        print(f"error: --port: must be a free port, got {port}, which another program holds", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store.uri, "--host", host,
               "--port", str(port), "--workers", "1"]
    if host not in LOOPBACK:
        print(f"warning: whoever reaches {host}:{port} can read, change and delete these runs; put a proxy with "
              "authentication and TLS before it (docs/cluster.md)", file=sys.stderr, flush=True)
    page = f"http://{host}:{port}"
    first_line = f"{page} shows {redacted(store.uri)}; Ctrl-C ends it; runs, the best first:"
    print("\n".join([first_line, *runs_pages(store, page)]), flush=True)
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", **os.environ}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service manager's SIGTERM acts like Ctrl-C
    # A process group of its own: MLflow starts more processes, and does not forward signals to them.
    with subprocess.Popen(command, env=environment, process_group=0) as server:
        try:
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            _end(server)


def in_use(host: str, port: int) -> bool:
    """Whether another program listens on a port of this machine."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # a host may have several
    family, kind, protocol, _, socket_address = addresses[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just released is free
        try:
            probe.bind(socket_address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise TrackingError(f"--host: must be one of this machine's, got {host} ({error.strerror})") from None
            return True
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and all its processes: ask them to end, and kill what is left after `END_SECONDS`."""
    for signal_ in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal_)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(END_SECONDS)
