"""MLflow's web page over the tracking store."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

from pipeline.arguments import PORT
from pipeline.tracking.backend import TrackingError, shown
from pipeline.tracking.reader import Reader

LOOPBACK = ("127.0.0.1", "::1", "localhost")
END_SECONDS = 5.0  # that the server has for open connections
MOST_SWEEPS = 5  # that get a line when the page is served
VIEW = "mlflow.sharedViewState.photonic"  # the tag of an experiment that has the view of its runs (`sweep.view`)
UNSEEN = "orderByKey=metrics.%60test%2Faccuracy%60&orderByAsc=false"  # of sweeps that an earlier version tracked
TRAINING = "workflowType=machine_learning"  # which half of MLflow's page, whatever was chosen there last


def address(store: Reader, run_id: str) -> str:
    """Of a run of the open sweep in MLflow's web page: at the server that is the store, without user and password, or
    where `photonic ui` serves a database; empty for another store, whose page can be anywhere."""
    page = _page(store)
    return page and f"{page}/#/experiments/{store.experiment_id}/runs/{run_id}?{TRAINING}"


def runs_address(store: Reader, page: str = "", chart: bool = False) -> str:
    """Of all runs of the open sweep, sorted by accuracy, with the columns of its view; empty as `address`.

    Args:
        page: where MLflow's page is; by default as `address` has it.
        chart: accuracy against epsilon in place of the table; of a sweep with a view.
    """
    page, seen = page or _page(store), VIEW in store.tags()
    shown = f"viewStateShareKey={VIEW.rpartition('.')[2]}" if seen else UNSEEN
    mode = f"&compareRunsMode={'CHART' if chart else 'TABLE'}"
    return page and f"{page}/#/experiments/{store.experiment_id}/runs?{TRAINING}{mode}&{shown}"


def _page(store: Reader) -> str:
    if store.uri.startswith("sqlite:"):
        page = f"http://{LOOPBACK[0]}:{PORT}"
    elif store.uri.startswith(("http://", "https://")):
        parts = urlsplit(store.uri)
        page = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    else:
        return ""
    return page


def runs_pages(store: Reader, page: str) -> list[str]:
    """A line for each of the latest sweeps: where MLflow's web page lists its runs by accuracy, and its name; and one
    for its chart, if its runs have an epsilon.

    MLflow's own list of experiments leads to pages for generative AI as long as `Model training` is not chosen there.
    """
    lines = []
    for name in reversed(store.sweeps()[-MOST_SWEEPS:]):
        store.attach(name)
        lines.append(f"  {runs_address(store, page)}  {name}")
        if "compareRunCharts" in store.tags().get(VIEW, ""):
            lines.append(f"  {runs_address(store, page, chart=True)}  {name}, accuracy against epsilon")
    return lines


def serve(store: Reader, port: int, host: str = LOOPBACK[0]) -> int:
    """Run MLflow's server on one interface until Ctrl-C or SIGTERM; the exit code of the server, 1 for a port in use.

    Raises:
        TrackingError: if the store is a server itself.
    """
    if not store.uri.startswith("sqlite:"):
        raise TrackingError(f"tracking store {shown(store.uri)}: is a server of its own; open it in a browser")
    if in_use(host, port):
        print(f"error: --port: must be a free port, got {port}, which another program holds", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store.uri, "--host", host,
               "--port", str(port), "--workers", "1"]
    if host not in LOOPBACK:
        print(f"warning: whoever reaches {host}:{port} can read, change and delete these runs; put a proxy with "
              "authentication and TLS before it (docs/cluster.md)", file=sys.stderr, flush=True)
    page = f"http://{host}:{port}"
    first = f"{page} shows {shown(store.uri)}; Ctrl-C ends it; runs, the best first:"
    print("\n".join([first, *runs_pages(store, page)]), flush=True)
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", **os.environ}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service manager ends it as Ctrl-C does
    # A group of its own: MLflow starts further processes, and passes no signal on to them.
    with subprocess.Popen(command, env=environment, process_group=0) as server:
        try:
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            _end(server)


def in_use(host: str, port: int) -> bool:
    """Whether another program listens on a port of this machine."""
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was held a moment ago is free
        try:
            listening.bind(where)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise TrackingError(f"--host: must be one of this machine's, got {host} ({error.strerror})") from None
            return True
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and all that it has started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(END_SECONDS)
