"""Ray clusters: start or join one, and prepare its nodes.

It is imported after `pipeline.sweep` has set Ray's environment variables.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import ray
from ray.exceptions import AuthenticationError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline import machine
from pipeline.package import JOB, ROOT
from pipeline.sweep.checks import RESOURCES, ResourceError, bundle, check_machine, check_resources, fits, local_offer
from pipeline.sweep.nodes import Watch, alive, called, check_address, ended, others
from pipeline.sweep.prepare import Sweep
from pipeline.sweep.sealed import SealedFile, found
from pipeline.sweep.worker import prepare_elsewhere
from pipeline.trials.config import ConfigError
from pipeline.trials.guard import one_line

Answer = TypeVar("Answer")

ADDRESSES = ("leave --address and RAY_ADDRESS out to start Ray on this machine, or name a cluster's, such as "
             "10.0.0.1:6379, which `ray start --head` prints")
WORKERS_OF_CLUSTER = "the cluster's nodes say how many packs they take"
# For every node, in place of a package that is installed there: a part of a runtime environment of Ray.
PACKAGE: dict[str, Any] = {"py_modules": [str(ROOT)], "excludes": ["__pycache__"]}
QUIETLY: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}  # options of `ray.init`
MOST_NODES = 64  # nodes in the tracking store at most, because its texts have a maximum length
TOKEN = ("set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the token of its head, or copy that to ~/.ray/auth_token; "
         "without one of its own, the head has it in ~/.ray/auth_token, too")
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray listens on 127.0.0.1 only; it reads this when it is imported


def prepare_nodes(sweep: Sweep, local: bool, watch: Watch) -> None:
    """Prepare every node for the packs that it may get: see `pipeline.sweep.worker.prepare_node`.

    With `local` this process's own node is prepared already, by `running_ray`. If a node is lost meanwhile, the others
    must offer enough resources. An error names the node.
    """
    trials, resources = sweep.possible, sweep.experiment.resources
    own_node = ray.get_runtime_context().get_node_id() if local else ""
    names: dict[str, str] = {}  # by node id
    tasks: dict[str, Any] = {}
    for node in alive():
        node_id = node["NodeID"]
        fitting = [trial for trial in trials if fits(node["Resources"], bundle(resources, trial.needs_opu))]
        if fitting and node_id != own_node:
            names[node_id] = called(node)
            tasks[node_id] = task_on(node_id, prepare_elsewhere, sweep.plugins, fitting, sweep.data_folder,
                                      sweep.checkpoints.folder, sweep.private_log, sweep.digests)
    for node_id, task in ended(tasks, watch):
        try:
            if task:
                ray.get(task)
                continue
        except RayError as error:
            if any(node["NodeID"] == node_id for node in alive()):  # preparation failed, not the node
                raise ResourceError(f"node {names[node_id]}: {_reason(error)}; every node needs this project's "
                                    "dependencies, and its data sets by PHOTONIC_DATA of the node, --data or a "
                                    "download") from None
        watch.say(f"node {names[node_id]} was lost while it was prepared; going on without it")
        check_resources(trials, resources, node_resources())


def sealed_elsewhere(folder: Path, watch: Watch) -> Iterator[tuple[list[SealedFile], Callable[..., Any]]]:
    """Yield for every other node its sealed results in this folder, and a function that calls another on that node.

    A node that cannot be asked is left out, as if it were no part of the cluster: its trials wait for their results.
    """
    nodes = others()
    tasks = {node_id: task_on(node_id, found, folder) for node_id in nodes}
    for node_id, task in ended(tasks, watch):
        node = nodes[node_id].name
        try:
            if task:
                yield ray.get(task), functools.partial(_call_on, node_id, node, watch)
                continue
            reason = "it was lost"
        except RayError as error:
            reason = _reason(error)
        watch.say(f"node {node} could not be asked for sealed results ({reason}); going on without it")


def _call_on(node_id: str, node: str, watch: Watch, function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Call a function on a node; raise what it raises there, or `ResourceError` if the node is lost."""
    ((_, task),) = ended({node_id: task_on(node_id, function, *arguments)}, watch)
    try:
        if task:
            return ray.get(task)
    except RayTaskError as error:
        raise error.cause from None
    except RayError:
        pass
    raise ResourceError(f"node {node}: was lost while its sealed results were released; run the same command again")


def task_on(node_id: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Start a function as a task on a node, by its id."""
    on_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(num_cpus=0, max_retries=0)(function).options(scheduling_strategy=on_node).remote(*arguments)


def _reason(error: RayError) -> str:
    """Return the error of a Ray task in one line, `ImportError: no module named ...`."""
    cause = getattr(error, "cause", None) or error
    last_line = str(cause).strip().splitlines()[-1]  # without a cause, Ray's text is a traceback
    return f"{type(cause).__name__}: {last_line}"


def node_resources() -> list[dict[str, float]]:
    """Return the resources of each live node."""
    return [node["Resources"] for node in alive()]


def in_use() -> dict[str, Any]:
    """Return the resources of the cluster as `in_use`, name -> [used, total], and the totals of its `nodes` by name."""
    totals, free = ray.cluster_resources(), ray.available_resources()
    names = [name for name in RESOURCES if totals.get(name)]
    used = {name: [round(totals[name] - free.get(name, 0.0), 3), totals[name]] for name in names}
    nodes = [{"node": node["NodeName"]} | {name: node["Resources"][name] for name in names if name in node["Resources"]}
             for node in alive()[:MOST_NODES]]
    return {"in_use": used, "nodes": nodes}


class RayMessages:
    """Stands in for stdout while a Ray runs: what its threads print goes to a log, and one line names the log.

    Ray tells of workers killed for memory, lost nodes, and resources that no node has. Threads that are older than this
    object print as before.
    """

    def __init__(self, log: Path, say: Callable[[str], None]) -> None:
        self._log, self._say, self._said = log, say, False
        self._stdout, self._older = sys.stdout, set(threading.enumerate())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)

    def write(self, text: str) -> int:
        """Write a text as `print` does, which writes the end of its line separately."""
        if threading.current_thread() in self._older:
            return self._stdout.write(text)
        if text.strip():
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")
            if not self._said:
                self._said = True
                self._say(f"Ray's own messages are in {self._log}")
        return len(text)


def read_address(given: str | None) -> str:
    """Return the address of a Ray cluster, by default that of RAY_ADDRESS, else `local`; refuse any other text.

    RAY_ADDRESS is used in place of `auto`, as by Ray itself.
    """
    address = (given or "").strip()
    if address in ("", "auto"):
        address = os.environ.get("RAY_ADDRESS", "").strip() or address or "local"
    if address not in ("local", "auto") and not _is_address(address):
        source = "address" if given and given.strip() == address else "RAY_ADDRESS"
        raise ConfigError(source, "must be auto, host:port, or http://host:8265, which hands the sweep to the head as "
                          "a job, with a port from 1 to 65535", f"'{address}'", ADDRESSES)
    return address


def _is_address(text: str) -> bool:
    """Whether a text is `host:port`, or the address of a head's dashboard, which takes jobs."""
    if is_of_jobs(text):
        try:
            parts = urlsplit(text)
            return bool(parts.hostname) and parts.port != 0 and not parts.username and not parts.query
        except ValueError:  # a port that is none
            return False
    host, separator, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    return bool(separator and host) and "/" not in host and is_port


def is_of_jobs(address: str) -> bool:
    """Whether an address is that of a head which takes jobs (`pipeline.sweep.jobs`)."""
    return address.startswith(("http://", "https://"))


@contextlib.contextmanager
def running_ray(sweep: Sweep, address: str, workers: int | None,  # address: `local`, `auto` or `host:port`
                prepare: Callable[[], object]) -> Iterator[Watch]:
    """Provide Ray within the context, with a watch of its nodes.

    It is the caller's Ray, a cluster's, or a Ray that is started for this sweep with `workers` cores, and then stopped;
    only this user can read what its workers print. Except for the caller's Ray, Ray's messages go to a log. `prepare`
    prepares this machine before Ray is started; on a cluster it is not called.
    """
    progress, clock = sweep.progress, sweep.clock
    if workers is not None and (address != "local" or ray.is_initialized()):
        raise ConfigError(f"workers: {WORKERS_OF_CLUSTER}, got {workers}; leave it out")
    if ray.is_initialized():
        if address == "local":
            prepare()
        with Watch(others, progress.say, clock, "caller") as watch:
            yield watch
        return
    handler = signal.getsignal(signal.SIGTERM)
    messages: Any = RayMessages(sweep.folder.ray_log, progress.say)  # it has all that a stream has
    with contextlib.ExitStack() as at_end:
        at_end.enter_context(contextlib.redirect_stdout(messages))
        if address == "local":
            _start_here(sweep, workers, prepare, at_end)
        else:
            _join(sweep, address)
        at_end.callback(ray.shutdown)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own there, which aborts with a stack trace
        with Watch(others, progress.say, clock, "sweep" if address == "local" else "cluster") as watch:
            yield watch


def _join(sweep: Sweep, address: str) -> None:
    if address != "auto":
        check_address(address)
    sweep.progress.phase(f"connecting to Ray at {address}")
    environment = None if JOB in os.environ else PACKAGE  # a job brings the package, and its plugins, to every node
    try:
        ray.init(address, runtime_env=environment, **QUIETLY)
    except (ConnectionError, RuntimeError, ValueError, AuthenticationError) as error:
        ray.shutdown()
        if "AuthenticationError" in f"{error!r} {error.__cause__}":
            raise ResourceError(f"address: the Ray cluster at '{address}' asks for a token, which is missing or wrong "
                                f"here; {TOKEN}") from None
        raise ResourceError(f"address: no Ray cluster that can be used at '{address}' ({one_line(error)}); "
                            f"{ADDRESSES}") from None
    if any(trial.secure for trial in sweep.possible):
        sweep.progress.say("what workers print lies in Ray's folder of logs on each node, where whoever started Ray "
                           "can read it")


def _start_here(sweep: Sweep, workers: int | None, prepare: Callable[[], object],
                at_end: contextlib.ExitStack) -> None:
    """Check this machine, prepare it, and start Ray on it; `at_end` then removes the folder that Ray writes to."""
    offer = local_offer(workers)
    check_machine(sweep.possible, sweep.experiment.resources, offer)
    machine.refuse(machine.ends_ray())
    prepare()
    opus: dict[str, float] = {"OPU": 1} if any(trial.needs_opu for trial in sweep.possible) else {}
    sweep.progress.phase("starting Ray")
    at_end.enter_context(own_folder())
    start(lambda: ray.init("local", num_cpus=int(offer["CPU"]), resources=opus, include_dashboard=False, **QUIETLY),
          sweep.progress.say)
    check_listening(alive()[0]["NodeManagerAddress"])


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """Let a Ray that starts in the context write to a folder for this user alone; its own is open to everybody."""
    given = os.environ.get("RAY_TMPDIR")
    with tempfile.TemporaryDirectory(prefix="ray-", dir=given, ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        try:
            yield
        finally:
            del os.environ["RAY_TMPDIR"]
            if given is not None:
                os.environ["RAY_TMPDIR"] = given


def check_listening(address: str) -> None:
    """Check that the Ray that was started here listens on loopback only, unless the user wants it on all interfaces."""
    if os.environ[LOOPBACK] == "0" and not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise ResourceError(f"{LOOPBACK}: must be 0 before ray is imported, as Ray listens on {address} otherwise; "
                            "import pipeline.sweep before ray, or set it to 0 (or to 1, to allow this)")


def start(init: Callable[[], object], say: Callable[[str], None]) -> None:
    """Start Ray by `init`, with a second try if it does not start in time, as on a busy machine."""
    for is_last_try in (False, True):
        try:
            init()
            return
        except Exception as error:  # Ray has no narrower type for this
            ray.shutdown()
            if "AF_UNIX path length" in str(error):
                folder = Path(os.environ["RAY_TMPDIR"]).parent  # of that which `own_folder` has made
                raise ResourceError(f"RAY_TMPDIR: must name a folder with a shorter path than {folder}, in which Ray's "
                                    "sockets have names that are too long; set RAY_TMPDIR=/tmp, or a shorter TMPDIR"
                                    ) from None
            if is_last_try:
                raise ResourceError(f"Ray does not start on this machine ({one_line(error)}); when the machine is less "
                                    "busy, run the same command again") from None
            say(f"Ray did not start ({one_line(error)}); trying once more")


def cluster_resources() -> dict[str, float]:
    """Return the total resources of all nodes."""
    return ray.cluster_resources()
