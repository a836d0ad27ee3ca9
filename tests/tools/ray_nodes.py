"""Ray clusters of several nodes on this machine, which have nothing of this checkout but what a sweep brings."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 120  # seconds
RAY = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Nodes:
    """A cluster whose nodes are processes of their own; each has a home, a working directory, data and a cache for
    itself, and finds a package `pipeline` that cannot be imported.

    Args:
        folder: for all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.jobs_port = folder, free_port(), free_port()
        # Names of sockets have at most 107 characters, so that the folder of a test is too deep for them.
        self._ray = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
        # What runs code for others wants a token, also in a test.
        self.access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._processes: list[subprocess.Popen] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def jobs(self) -> str:
        """Address for jobs."""
        return f"http://127.0.0.1:{self.jobs_port}"

    def start(self, name: str, *options: str) -> None:
        """Start a node, the first as the head, and wait until it is up."""
        home = self.folder / name
        broken = home / "modules" / "pipeline" / "__init__.py"
        broken.parent.mkdir(parents=True)
        broken.write_text("raise ImportError('this is the package of the node')")
        where = [f"--address={self.address}"] if self._processes else [
            "--head", f"--port={self.port}", f"--dashboard-port={self.jobs_port}", f"--temp-dir={self._ray.name}"]
        with (home / "ray.log").open("w") as log:
            self._processes.append(subprocess.Popen(
                [sys.executable, "-c", RAY, "start", *where, "--block", f"--node-name={name}", "--min-worker-port=0",
                 "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}",
                 "--object-store-memory=100000000", "--disable-usage-stats", *options],
                cwd=home, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**clean(), **self.access, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                     "HOME": str(home), "PYTHONPATH": str(home / "modules"), "NODE": name,
                     "PHOTONIC_DATA": str(home / "data"), "PHOTONIC_CACHE": str(home / "cache")}))
        deadline = time.monotonic() + PATIENCE
        while "Ray runtime started" not in (text := (home / "ray.log").read_text()):
            assert self._processes[-1].poll() is None and time.monotonic() < deadline, text
            time.sleep(0.1)

    def python(self, *arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
        """Run Python on the machine where this checkout is, with access to the cluster.

        If it takes too long, the stacks of its threads are in the error, and what it and the nodes have written.
        """
        process = subprocess.Popen([sys.executable, "-X", "faulthandler", *map(str, arguments)], cwd=cwd, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**clean(), **self.access, "PYTHONPATH": str(ROOT), **environment})
        try:
            output, errors = process.communicate(timeout=2 * PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler prints the stacks
            output, errors = process.communicate()
            written = [f"{file.name}:\n{file.read_text(errors='replace')[-3_000:]}"
                       for file in sorted(Path(self._ray.name).glob("session_latest/logs/*")) if file.is_file()]
            raise AssertionError("\n".join([f"no end after {2 * PATIENCE} s", output, errors, *written])) from None
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(PATIENCE)
        self._ray.cleanup()


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    """A head with one core, and a node with two and an OPU."""
    cluster = Nodes(folder)
    try:
        cluster.start("plain", "--num-cpus=1")
        cluster.start("optical", "--num-cpus=2", '--resources={"OPU": 1}')
        yield cluster
    finally:
        cluster.stop()


def clean() -> dict[str, str]:
    """This environment without what would decide where sweeps run, track and find data."""
    left_out = ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "PYTHONPATH", "HOME")
    return {name: value for name, value in os.environ.items() if name not in left_out
            and not name.startswith(("RAY_AUTH", "PHOTONIC_", "MLFLOW_"))} | {"OMP_NUM_THREADS": "1"}
