"""Ray clusters: start or join one, prepare its nodes, and drive a sweep from outside.

It is imported after `pipeline.sweep` has set Ray's environment variables.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import ray
from ray._private import ray_constants, services, state
from ray._private import worker as ray_worker
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.package import ROOT
from pipeline.sweep.address import check_address
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.nodes import LOST_SECONDS, Node, Watch, alive, called, ended, others
from pipeline.sweep.progress import SweepProgress
from pipeline.sweep.resources import ADVICE, ResourceError, bundle, check_resources, fits, local_offer
from pipeline.sweep.worker import Plugins, one_line, prepare, prepare_elsewhere
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Resources

Result = TypeVar("Result")

WORKERS_OF_CLUSTER = "the cluster's nodes say how many packs they take"
CLIENT = "ray://"  # prefix of Ray Client's addresses, for machines outside the cluster
LOG_SECONDS = 2.0  # longest delay of a line that the head prints
AWAY = "unless it comes back, this ends; the same command goes on"
NODE_LOST = ("has been marked dead", "Raylet is terminated")  # texts in Ray's messages
MOST_NODES = 64  # nodes in the tracking store at most, because its texts have a maximum length
# Asking for a resource that only the head offers puts a task there.
HEAD = {"node:__internal_head__": 0.001}


def code() -> dict[str, Any]:
    """Return a Ray runtime environment that copies this package, without the working directory, to every node.

    A package installed there under the same name is not used.
    """
    return {"py_modules": [str(ROOT)], "excludes": ["__pycache__"]}


def prepare_nodes(trials: Sequence[TrialConfig], resources: Resources, data_folder: Path | None,
                  checkpoints: Checkpoints, local: bool, watch: Watch,
                  digests: Mapping[str, str] = MappingProxyType({}), plugins: Plugins = ((), Path())) -> None:
    """Prepare every node for the packs that it may get: see `pipeline.sweep.worker.prepare`.

    If a node is lost meanwhile, the sweep continues when the other nodes are enough.

    Args:
        trials: the sweep's trials.
        resources: resources of a pack.
        data_folder: folder of the data sets.
        checkpoints: the sweep's checkpoints.
        local: whether this process has started Ray; it then prepares its own node without a task.
        watch: watch of the cluster's nodes; it reports which nodes are waited for, and which were lost.
        digests: digests of feature files, by their public names.
        plugins: names of modules that every worker imports, and their folder.

    Raises:
        DataError: with `local`, a data set or feature file is not available on this node.
        ResourceError: a node lacks a library, a data set, a feature file or a writable folder; the message names the
            node. Or the nodes that are left cannot train the trials.
    """
    here, names, tasks = ray.get_runtime_context().get_node_id() if local else "", {}, {}
    for node in alive():
        its = [trial for trial in trials if fits(node["Resources"], bundle(resources, trial.needs_opu))]
        if its and node["NodeID"] == here:
            prepare(its, data_folder, checkpoints, digests)
        elif its:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(num_cpus=0, max_retries=0)(prepare_elsewhere).options(scheduling_strategy=there)
            names[node["NodeID"]] = called(node)
            tasks[node["NodeID"]] = task.remote(plugins, its, data_folder, checkpoints, digests)
    for key, task in ended(tasks, watch):
        try:
            if task:
                ray.get(task)
                continue
        except RayError as error:
            if key in {other["NodeID"] for other in alive()}:
                raise ResourceError(f"node {names[key]}: {_reason(error)}; every node needs this project's "
                                    "dependencies, and its data sets by PHOTONIC_DATA of the node, --data or a "
                                    "download") from None
        watch.say(f"node {names[key]} was lost while it was prepared; going on without it")
        check_resources(trials, resources, node_resources())


def on_head(function: Callable[..., Result], address: str, **arguments: Any) -> Result:
    """Call `function(address="auto", **arguments)` in a task on the head of the cluster at `ray://host:port`.

    Tune, the recorder and the lock of a sweep are one process, which must be part of the cluster. Its output is printed
    here, and Ctrl-C interrupts it there. Relative paths start at the home folder of Ray's user on the head. The
    settings of the tracking server are copied from this process.

    Raises:
        ConfigError: there is no tracking server for the head to write to.
        ResourceError: no cluster at the address, other versions of Ray or Python, or a lost connection.
        KeyboardInterrupt: after Ctrl-C, when the function has ended on the head.
    """
    if not (arguments["tracking_uri"] or os.environ.get("MLFLOW_TRACKING_URI")):
        raise ConfigError(f"MLFLOW_TRACKING_URI: must name a tracking server that the cluster reaches, because address "
                          f"'{address}' drives the sweep from there, got none")
    check_address(address.removeprefix(CLIENT))
    try:
        ray.init(address, runtime_env=code(), logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ImportError) as error:
        raise ResourceError(f"address: no Ray cluster that can be used at '{address}' ({one_line(error)})") from None
    tracking = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_TRACKING_")}
    there: Any = ray.remote(num_cpus=0, resources=HEAD, max_retries=0)(_at_home).options(name=function.__name__)
    task = there.remote(function, tracking, arguments)
    head = Node(f"at {address}", address.removeprefix(CLIENT))
    with Watch(lambda: {"head": head}, SweepProgress((), quiet=arguments["quiet"]).say, AWAY) as watch:
        answer = _in_thread(lambda: ray.get(task))
        try:
            while not answer.done():
                if watch.lost("head"):
                    raise ConnectionError(f"it has not answered for {LOST_SECONDS:.0f} s")
                with contextlib.suppress(TimeoutError):
                    return answer.result(1.0)
            return answer.result()
        except KeyboardInterrupt:
            ray.cancel(task)
            with contextlib.suppress(RayError):
                answer.result()
            raise
        except RayTaskError as error:
            raise error.cause from None
        except (RayError, ConnectionError) as error:
            raise ResourceError(f"address: the sweep on '{address}' ended ({one_line(error)}); run the same command "
                                "again to go on") from None
        finally:
            time.sleep(LOG_SECONDS)
            ray.shutdown()


def _in_thread(function: Callable[[], Result]) -> Future[Result]:
    """Run a function that may block in a thread; return the future of its result."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _at_home(function: Callable[..., Result], environment: dict[str, str], arguments: dict[str, Any]) -> Result:
    os.environ.update(environment)
    os.chdir(Path.home())
    return function(address="auto", **arguments)


def _reason(error: RayError) -> str:
    """Return a task's error in one line; if the function could not be loaded, Ray has only a traceback."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {str(cause).strip().splitlines()[-1]}"


def node_resources() -> list[dict[str, float]]:
    """Return the resources of each live node."""
    return [node["Resources"] for node in alive()]


def in_use() -> list[dict[str, Any]]:
    """Return name and resources of at most `MOST_NODES` nodes: per resource [used, total], as Ray counts them."""
    free_by_node = state.available_resources_per_node()
    found = []
    for node in alive()[:MOST_NODES]:
        totals, free = node["Resources"], free_by_node.get(node["NodeID"], {})
        amounts = {name: [round(totals[name] - free.get(name, 0.0), 3), totals[name]]
                   for name in reversed(ADVICE) if totals.get(name, 0.0)}
        found.append({"node": node["NodeName"], **amounts})
    return found


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Make a Ray that is started here listen on 127.0.0.1 only, with one node; by default it uses all interfaces.

    Ray reads an environment variable for this at import, so the variable and Ray's constant are both set.
    """
    variable, usual = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    given = os.environ.get(variable)
    if given is None:
        os.environ[variable], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        if given is None:
            del os.environ[variable]
            ray_constants.ENABLE_RAY_CLUSTER = usual


@contextlib.contextmanager
def lost_nodes_told_once() -> Iterator[None]:
    """Suppress Ray's output about lost nodes (stack traces on stdout); `Watch` prints a line for each."""
    usual = ray_worker.print_to_stdstream

    def of_other_things(data: Mapping[str, Any], *options: Any, **named: Any) -> None:
        if not any(text in line for line in data["lines"] for text in NODE_LOST):
            usual(data, *options, **named)

    ray_worker.print_to_stdstream = of_other_things
    try:
        yield
    finally:
        ray_worker.print_to_stdstream = usual


@contextlib.contextmanager
def running_ray(trials: Sequence[TrialConfig], resources: Resources, address: str, workers: int | None,
                progress: SweepProgress | None = None) -> Iterator[Watch]:
    """Provide Ray within the context, with a watch of its nodes.

    It is the caller's Ray, a cluster's, or a Ray that is started for these trials and then stopped.

    Args:
        trials: the sweep's trials.
        resources: resources of a pack.
        address: `local`, `auto` or `host:port`.
        workers: cores to use on this machine; None for all.
        progress: receives messages about the start of Ray; None for no messages.

    Raises:
        ConfigError: `workers` is given for a cluster.
        ResourceError: no cluster at the address, a wrong token, or Ray does not start.
    """
    if workers is not None and (address != "local" or ray.is_initialized()):
        raise ConfigError(f"workers: {WORKERS_OF_CLUSTER}, got {workers}; leave it out")
    progress = progress or SweepProgress((), quiet=True)
    if ray.is_initialized():
        with Watch(others, progress.say) as watch:
            yield watch
        return
    quietly: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address != "local":
        if address == "auto":
            check_address(services.canonicalize_bootstrap_address(address) or address, found=True)
        else:
            check_address(address)
        progress.phase(f"connecting to Ray at {address}")
        try:
            ray.init(address, runtime_env=code(), **quietly)
        except ConnectionError as error:
            raise ResourceError(f"address: no Ray cluster at '{address}' ({one_line(error)})") from None
    else:
        check_resources(trials, resources, [local_offer(workers)])
        if any(trial.on_hardware for trial in trials):
            from pipeline.learning.opu import check_opu

            check_opu()
        opus: dict[str, float] = {"OPU": 1} if any(trial.needs_opu for trial in trials) else {}
        progress.phase("starting Ray")
        with on_loopback():
            start(lambda: ray.init(address, num_cpus=workers, resources=opus, include_dashboard=False, **quietly),
                  progress.say)
    try:
        with (lost_nodes_told_once() if address != "local" else contextlib.nullcontext(),
              Watch(others, progress.say) as watch):
            yield watch
    finally:
        ray.shutdown()


def start(init: Callable[[], object], say: Callable[[str], None]) -> None:
    """Start Ray, with a second try if it does not start in time, as on a busy machine.

    Args:
        init: starts Ray.
        say: receives a message before the second try.

    Raises:
        ResourceError: both tries failed.
    """
    for again in (True, False):
        try:
            init()
            return
        except Exception as error:  # Ray has no narrower type for this
            ray.shutdown()
            if not again:
                raise ResourceError(f"Ray does not start on this machine ({one_line(error)}); when the machine is less "
                                    "busy, run the same command again") from None
            say(f"Ray did not start ({one_line(error)}); trying once more")


def cluster_resources() -> dict[str, float]:
    """Return the total resources of all nodes."""
    return ray.cluster_resources()
