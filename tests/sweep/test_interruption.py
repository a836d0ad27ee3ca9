"""Ctrl-C and SIGTERM, as a terminal and a service manager send them, and a Ray or a cluster that does not answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import ray
from fault_tools import answers, environment, wait_for
from ray_nodes import free_port
from stored import attached

from pipeline.sweep import cluster
from pipeline.sweep.checks import ResourceError
from pipeline.tracking.store import Store

ROOT = Path(__file__).parents[2]
FILE = "name: long\nbase: {dataset: digits, hidden: [8], batch_size: 64, epochs: 2}\ngrid: {seed: [0, 1, 2]}\n"
# The command line, but an epoch takes ten minutes.
LONG = """
import functools, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import sweep_stub
from ray import cloudpickle
from pipeline import cli, terminal
from pipeline.sweep import run
cloudpickle.register_pickle_by_value(sweep_stub)
run.train_pack = functools.partial(sweep_stub.slow, folder=Path({folder!r}))
terminal.STOP_SECONDS = 300.0
sys.exit(cli.main(["sweep", "long.yaml", "--workers", "1"]))
"""
# What does not end by Ctrl-C.
STUBBORN = """
import sys, time
from pipeline import terminal
terminal.STOP_SECONDS = {seconds}
with terminal.quick_interrupt():
    while True:
        try:
            print("ready", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            pass
"""


def process(script: str, cwd: Path) -> subprocess.Popen:
    """Which Ctrl-C reaches, also if the tests themselves run in the background."""
    return subprocess.Popen([sys.executable, "-c", script], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=environment(), start_new_session=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_ctrl_c_and_sigterm_say_what_they_wait_for_and_wait_for_no_epoch(tmp_path, how):
    (tmp_path / "long.yaml").write_text(FILE)
    command = process(LONG.format(tests=str(ROOT / "tests" / "tools"), folder=str(tmp_path)), tmp_path)
    wait_for(lambda: (tmp_path / "training").exists() or command.poll() is not None)
    os.killpg(command.pid, how) if how == signal.SIGINT else command.terminate()
    _, err = command.communicate(timeout=120)
    assert command.returncode == 130, err
    lines = err.splitlines()
    told = lines.index("training 3 trials in 3 packs, 1 at a time") + 2  # after the line in which ^C is echoed
    assert lines[told] == ("stopping: waiting for the workers to end and for the tracking store, 300 s at most; Ctrl-C "
                           "again ends at once")
    assert lines[-1].endswith("interrupted with 3 left: run the same command again to continue")
    store = attached("long", tmp_path / "mlruns")
    assert store._client.get_run(store._parent()).info.status == "KILLED"


@pytest.mark.parametrize(("seconds", "signals", "code", "why"), [
    (300, (signal.SIGINT, signal.SIGINT), 130, "ended by a second Ctrl-C"),
    (300, (signal.SIGINT, signal.SIGTERM), 130, "ended by a second SIGTERM"),
    (0.2, (signal.SIGTERM,), 130, "ended after 0.2 s"),
    (300, (signal.SIGKILL,), -signal.SIGKILL, "killed, perhaps for lack of memory")])
def test_what_does_not_stop_is_ended_and_a_last_line_says_so(tmp_path, seconds, signals, code, why):
    command = process(STUBBORN.format(seconds=seconds), tmp_path)
    for number in signals:
        assert command.stdout.readline() == "ready\n"
        os.kill(command.pid, number)
    _out, err = command.communicate(timeout=60)
    assert (command.returncode, err.splitlines()[-1]) == (code, f"{why}; run the same command again to go on")
    assert err.count("run the same command again") == 1


@pytest.mark.slow
def test_sigterm_ends_the_page_and_its_server(tmp_path):
    Store(root=tmp_path / "mlruns")
    port = free_port()
    page = process(f"import sys; from pipeline.cli import main; sys.exit(main(['ui', '--port', '{port}']))", tmp_path)
    wait_for(lambda: answers(f"http://127.0.0.1:{port}") or page.poll() is not None)
    assert page.poll() is None, page.communicate()
    page.terminate()
    page.communicate(timeout=60)  # also of the server, which has the same pipes
    assert page.returncode == 0
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=5):
        pass


@pytest.mark.parametrize(("failures", "says"), [
    (1, None), (2, "Ray does not start on this machine .*timed out during startup.*again"),
    (0, "^RAY_TMPDIR: must name a folder with a shorter path than /d+, .* set RAY")])
def test_a_ray_that_does_not_start_in_time_is_tried_once_more(monkeypatch, failures, says):
    """But a folder whose path is too long for Ray's sockets is named at once."""
    calls, said = [], []

    def init():
        calls.append("init")
        if not failures:
            raise OSError("AF_UNIX path length cannot exceed 107 bytes: /ddd/ray-x/ray/plasma_store")
        if len(calls) <= failures:
            raise Exception("The current node timed out during startup.")  # what Ray raises is no more special

    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setenv("RAY_TMPDIR", f"/{'d' * 120}/ray-x")
    with pytest.raises(ResourceError, match=says) if says else nullcontext():
        cluster.start(init, said.append)
    assert (len(calls), len(said)) == ((2, 1) if failures else (1, 0))
    assert all(line.startswith("Ray did not start (Exception: The current node timed out during") for line in said)
