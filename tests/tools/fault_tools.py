"""Faults to inject into sweeps, and what is left of a sweep after them, measured against undisturbed training."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import sqlalchemy
from flat import train
from ray_nodes import ROOT, free_port
from stored import attached

from pipeline.experiment.experiment import Experiment
from pipeline.learning.data.dataset import load
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord

ROWS = "FAULT_ROWS"  # environment: a file that gets a line of JSON for every fault (see faults_table.py)


@dataclass
class Damage:
    """What a fault did.

    Attributes:
        lost: trials without a run that is done, and epochs of a metric that are not there.
        duplicated: runs of a trial beyond the first, and points of a metric at an epoch beyond the first.
        difference: the largest, of a final metric, from undisturbed training.
        unequal: what else is not as undisturbed: histories, weights, statuses.
    """

    trials: int
    lost: int = 0
    duplicated: int = 0
    difference: float = 0.0
    unequal: list[str] = field(default_factory=list)


@functools.cache
def undisturbed(trial: TrialConfig) -> tuple[EpochRecord, ...]:
    return tuple(train(Pack((trial,)), load(trial.dataset)))


def damage(root: Path, experiment: Experiment, uri: str | None = None) -> Damage:
    """Compare what the store has with undisturbed training; times (`time/`) by their epochs alone."""
    store = attached(experiment.name, root, uri)
    runs = store.runs()
    found, known = Damage(len(experiment.trials)), Counter(run.trial_key for run in runs)
    found.duplicated += sum(count - 1 for count in known.values())
    if known.keys() - {trial.trial_key for trial in experiment.trials}:
        found.unequal.append("runs of other trials")
    for trial in experiment.trials:
        records = undisturbed(trial)
        run = next((r for r in runs if r.trial_key == trial.trial_key and r.status == records[-1].outcome.status), None)
        if run is None:
            found.lost += 1
            continue
        names = set().union(*(record.metrics for record in records))
        if set(run.metrics) != names:
            found.unequal.append(f"metrics {sorted(set(run.metrics) ^ names)}")
        for name in names:
            points = store._client.get_metric_history(run.run_id, name)
            steps, expected = Counter(p.step for p in points), {r.epoch: r.metrics[name] for r in records
                                                               if name in r.metrics}
            found.duplicated += sum(count - 1 for count in steps.values())
            found.lost += len(expected.keys() - steps.keys())
            if not name.startswith("time/"):
                if {p.step: p.value for p in points} != expected:
                    found.unequal.append(f"history of {name}")
                last = max(expected)
                found.difference = max([found.difference, *(abs(p.value - expected[last]) for p in points
                                                            if p.step == last)])
        weights = store.weights(run)
        final = records[-1].outcome.weights
        if weights.keys() != final.keys() or not all(np.array_equal(weights[name], final[name]) for name in final):
            found.unequal.append(f"weights of {run.trial_key}")
    return found


def assert_as_if_undisturbed(root: Path, experiment: Experiment, fault: str, how: str, uri: str | None = None) -> None:
    """Every trial once, every metric of every epoch once, and all values and weights those of plain training.

    Args:
        fault, how: what was injected, and how, for the table of faults.
    """
    found = damage(root, experiment, uri)
    if os.environ.get(ROWS):
        row = {"fault": fault, "how": how, "trials": found.trials, "lost": found.lost,
               "duplicated": found.duplicated, "difference": found.difference, "unequal": len(found.unequal)}
        with open(os.environ[ROWS], "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    assert dataclasses.asdict(found) == dataclasses.asdict(Damage(len(experiment.trials)))
    left = list((root / "private" / "checkpoints" / experiment.name).iterdir())
    assert not left, "checkpoints go when their packs end"


@contextlib.contextmanager
def once(condition: Callable[[], object], action: Callable[[], object]) -> Iterator[None]:
    """While the block runs, in another thread: wait for a condition, then act. That it never came is an error."""
    errors, over = [], threading.Event()

    def watch() -> None:
        try:
            while not condition():
                if over.wait(0.02):
                    raise TimeoutError("the block ended before the fault was due")
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def wait_for(condition: Callable[[], object], seconds: float = 300) -> Any:
    """What the condition comes to, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def answers(address: str) -> bool:
    """Whether MLflow's server at this address says that it is well."""
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"{address}/health", timeout=5).close()
        return True
    return False


def saved_epoch(root: Path, name: str) -> int:
    """The latest epoch that a checkpoint of the sweep `name` has; 0 without one."""
    return max((found.epoch for found in Checkpoints(root / "private" / "checkpoints" / name, 0).found()), default=0)


def environment(**changes: str) -> dict[str, str]:
    """Of a process that is to use this source, its own Ray and its own store."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **changes}


def photonic(*arguments: object, cwd: Path, **changes: str) -> subprocess.Popen:
    """The command line, in a process and a session of its own."""
    return subprocess.Popen([sys.executable, "-m", "pipeline.cli", *map(str, arguments)], cwd=cwd, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                            env=environment(**changes))


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process holds the database exclusively."""
    code = ("import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30); "
            "c.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); sys.stdin.read()")
    process = subprocess.Popen([sys.executable, "-c", code, str(database)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "locked\n"
        yield
    finally:
        process.communicate()


@contextlib.contextmanager
def impatient_sqlite() -> Iterator[None]:
    """MLflow lets SQLite itself wait 20 s for a lock, within every statement; here 0.2 s."""
    def shorten(connection, cursor, statement, parameters, context, executemany):
        return statement.replace("busy_timeout = 20000", "busy_timeout = 200"), parameters

    listener = (sqlalchemy.engine.Engine, "before_cursor_execute", shorten)
    sqlalchemy.event.listen(*listener, retval=True)
    try:
        yield
    finally:
        sqlalchemy.event.remove(*listener)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of its own, mounted at `folder`; a test that may not mount one is skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True,
                             text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, done: Path) -> None:
    """Write a file `ballast` until the disk is full, then the empty file `done`."""
    with contextlib.suppress(OSError), open(disk / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    done.touch()


class Server:
    """An MLflow server of its own on this machine, which can be stopped and started again at the same address.

    Args:
        folder: has its artifacts, and as a store's folder its database, unless that is given.
    """

    def __init__(self, folder: Path, database: str = "") -> None:
        self._port, self._folder = free_port(), folder
        self.uri, self.database = f"http://127.0.0.1:{self._port}", database or f"sqlite:///{folder / 'mlflow.db'}"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        store = ["--backend-store-uri", self.database, "--artifacts-destination", str(self._folder / "artifacts")]
        with open(self._folder / "server.log", "a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port),
                 "--workers", "1", *store], stdout=log, stderr=log, start_new_session=True,
                env=environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", MLFLOW_DISABLE_TELEMETRY="true"))
        wait_for(lambda: answers(self.uri) or self._process.poll() is not None, 120)
        assert self._process.poll() is None, "the server did not start"

    def signal(self, how: signal.Signals) -> None:
        """Send a signal to all its processes."""
        os.killpg(self._process.pid, how)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()


class Relay(ThreadingHTTPServer):
    """Passes requests on to a server at `uri`, and answers back.

    Attributes:
        requests: that came, as their method and the last part of their path: `POST create`.
        lose: requests whose next answer is lost, one for each time that a request is listed.
        hangs: whether the connection then stays open for as long as the client waits.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.uri, self.server_uri = f"http://127.0.0.1:{self.server_port}", uri
        self.requests: list[str] = []
        self.lose: list[str] = []
        self.hangs = False
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay

    def do_GET(self) -> None:
        request = f"{self.command} {self.path.partition('?')[0].rpartition('/')[2]}"
        self.server.requests.append(request)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(urlsplit(self.server.server_uri).netloc)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
        if request in self.server.lose:
            self.server.lose.remove(request)
            if self.server.hangs:
                self.rfile.read(1)  # nothing comes until the client closes
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name in ("Content-Type", "Content-Length"):
            self.send_header(name, answer.headers[name]) if name in answer.headers else None
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, *of: object) -> None:
        pass


def integrity(database: Path) -> str:
    """What SQLite says of the database; `ok` if it is whole."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone()[0]


def children(pid: int, text: str) -> list[int]:
    """Processes below `pid` whose command line has `text`, by /proc."""
    parents, lines = {}, {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            number = int(entry.name)
            parents[number] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            lines[number] = (entry / "cmdline").read_bytes().decode(errors="replace")

    def below(number: int) -> bool:
        while number in parents and number != pid:
            number = parents[number]
        return number == pid

    return [number for number, line in lines.items() if text in line and number != pid and below(number)]
