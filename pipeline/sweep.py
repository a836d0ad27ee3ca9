"""Sweeps: train every trial of an experiment that is not in the tracking store yet, in parallel, with Ray Tune.

With `pipeline.cluster` and `pipeline.tuning` the only module that imports Ray. Workers hand `EpochRecord`s to this
process, the driver, which is the only writer of the tracking store. Resuming needs nothing of Ray's own: the plan of a
sweep is the grid minus what the store has, and packs that have a checkpoint stay together and go on from it, so that
the same command goes on where it was ended.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Ray reads these when it is imported; without them it writes tables and warnings over the progress line, reports
# usage, and rebuilds the environment of every worker under `uv run`. What the user has set stays.
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
# Relative paths stay those of this process; and Tune's snapshots of itself, which nobody reads, need no disk.
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000000")

import ray
from ray._private import ray_constants

from pipeline.checkpoints import Checkpoints
from pipeline.cluster import CLIENT, alive, code, on_head, prepare_nodes
from pipeline.config import ConfigError, TrialConfig
from pipeline.experiment import Experiment, Resources
from pipeline.lock import Lease, SweepRunning, sweeping
from pipeline.packs import Pack, plan
from pipeline.plugins import LOADED, load_plugins
from pipeline.progress import SweepProgress
from pipeline.recorder import Recorder, SweepResult, git_commit, versions
from pipeline.resources import ResourceError, Watchdog, bundle, check_address, check_resources, local_offer, slots
from pipeline.tracking import Store, TrackingError, run_name
from pipeline.tuning import Driver, fit
from pipeline.unused import check_used
from pipeline.worker import Trainer, one_line, train_pack

__all__ = ["ResourceError", "SweepResult", "run_sweep"]

WORKERS_OF_CLUSTER = "the cluster's nodes say how many packs they take"
IDLE_SECONDS = 60.0  # without a running pack, after which the cluster's resources are checked again


def run_sweep(experiment: Experiment, *, root: Path = Path("mlruns"), tracking_uri: str | None = None,
              data_folder: Path | None = None, address: str | None = None, workers: int | None = None,
              trainer: Trainer | None = None, quiet: bool = False, idle_seconds: float = IDLE_SECONDS,
              commit: str | None = None) -> SweepResult:
    """Train the trials of `experiment` that are not done, and track them. Run it again to go on or to try again.

    Args:
        root: folder of the tracking store, of checkpoints and Ray's files while it runs, and of the log of failures.
        tracking_uri: another tracking store (see `Store`).
        data_folder: folder of the datasets on every node; by default each node's PHOTONIC_DATA, else they are
            downloaded there (see `pipeline.data.load`).
        address: a Ray cluster; by default RAY_ADDRESS, else Ray is started on this machine. A Ray that the caller
            has initialised is used, and left running. With `ray://host:port` the sweep is driven from the cluster's
            head, and `root` is a folder there (see `pipeline.cluster.on_head`).
        workers: cores to use on this machine; all by default.
        trainer: trains a pack; `train_pack` by default.
        quiet: show no progress.
        idle_seconds: time without a running pack after which the resources are checked again.
        commit: of this code, where it was started; by default that of the repository in which it lies.

    Returns:
        The result; `remaining` is positive after Ctrl-C.

    Raises:
        ResourceError: a trial asks for more than any node offers, found before anything is trained, or a node that
            is needed was lost.
        TrackingError: the tracking store failed; what it holds by then stays, and the next sweep takes it up.
        SweepRunning: another process is running this sweep.
        ConfigError: `workers` together with a cluster, an address that cannot be used, or a setting that none of the
            trials uses (`pipeline.unused`).
        DataError: a data set that cannot be had, found before anything is trained.
    """
    begin = time.monotonic()
    check_used(experiment.candidates or experiment.trials)
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith(CLIENT):
        if workers is not None:
            raise ConfigError(f"workers: {WORKERS_OF_CLUSTER}, got {workers}; leave it out")
        return on_head(run_sweep, address, experiment=experiment, root=root, tracking_uri=tracking_uri,
                       data_folder=data_folder, trainer=trainer, quiet=quiet, idle_seconds=idle_seconds,
                       commit=commit or git_commit())
    plugins = experiment.plugins, experiment.source.absolute().parent
    load_plugins(*plugins)
    root = Path(root).absolute()
    failure_log = root / "failures" / f"{experiment.name}.log"
    store = Store(tracking_uri, root)
    with sweeping(root, experiment.name, store.driver):
        lease = Lease(store, experiment.name)
        lease.wait_until_free()
        done = lease.done()
        missing = [trial for trial in experiment.trials if trial.trial_key not in done]
        result = SweepResult(len(experiment.trials), skipped=len(experiment.trials) - len(missing))
        name = functools.partial(run_name, also=experiment.varied)
        progress = SweepProgress(missing, result.skipped, quiet, name=name)
        if missing:
            with progress, running_ray(missing, experiment.resources, address, workers):
                packs, at_once, trainer = _planned(experiment, missing, done, root, data_folder, trainer, progress,
                                                   local=address == "local")
                lease.require_as_found(done)
                store.be_patient(experiment.resources.store_patience_seconds, progress.say)
                tags = {"git_commit": commit or git_commit(), "versions": versions(),
                        **{f"plugin.{name}": LOADED[name] for name in experiment.plugins}}
                with recorded(store, lease, experiment, result, tags["git_commit"]):
                    recorder = Recorder(store, progress, result, failure_log, tags, name, done)
                    watchdog = Watchdog(lambda: check_resources(recorder.left(missing), experiment.resources, offers()),
                                        idle_seconds)
                    driver = Driver(packs, recorder, watchdog, lease)
                    with afterwards(recorder.write_all):
                        fit(packs, at_once, experiment.resources, trainer, plugins, driver, root / "ray")
    result.wall_seconds = time.monotonic() - begin
    progress.say(result.summary(failure_log))
    return result


def _planned(experiment: Experiment, missing: Sequence[TrialConfig], done: Mapping[str, str], root: Path,
             data_folder: Path | None, trainer: Trainer | None, progress: SweepProgress,
             local: bool) -> tuple[list[Pack], int, Trainer]:
    """(packs, how many train at the same time, their trainer), after checks of resources and data sets."""
    resources = experiment.resources
    check_resources(missing, resources, offers())
    checkpoints = Checkpoints(root / "checkpoints" / experiment.name, resources.checkpoint_seconds)
    if trainer is None:
        prepare_nodes(missing, resources, data_folder, checkpoints, local)
        trainer = functools.partial(train_pack, device="cuda" if resources.gpu else "cpu",
                                    threads=max(1, int(resources.cpu)), data_folder=data_folder,
                                    checkpoints=checkpoints)
    at_once = slots(bundle(resources, False), ray.cluster_resources())
    kept = checkpoints.resumable(experiment.trials, done, progress.say)
    return plan(missing, resources, at_once, kept), at_once, trainer


@contextlib.contextmanager
def recorded(store: Store, lease: Lease, experiment: Experiment, result: SweepResult, commit: str) -> Iterator[None]:
    """The sweep's parent run, open while trials run and closed with how they ended."""
    status = "FAILED"
    store.open_sweep(experiment.name, experiment.description, params={"trials": len(experiment.trials)},
                     tags={"git_commit": commit})
    if experiment.public_text:
        store.log_experiment(experiment.public_text)
    with afterwards(lambda: status and store.close_sweep(status)):
        try:
            lease.confirm()
            yield
            status = "KILLED" if result.remaining else "FAILED" if result.failed else "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        except SweepRunning:
            status = ""  # the sweep is another driver's now, and so are its runs
            raise


@contextlib.contextmanager
def afterwards(write: Callable[[], object]) -> Iterator[None]:
    """Call `write` in the end; after Ctrl-C a store that cannot be written to must not hide that it was Ctrl-C."""
    passing: tuple[type[Exception], ...] = ()
    try:
        yield
    except KeyboardInterrupt:
        passing = (TrackingError,)
        raise
    finally:
        with contextlib.suppress(*passing):
            write()


@contextlib.contextmanager
def running_ray(trials: Sequence[TrialConfig], resources: Resources, address: str,
                workers: int | None) -> Iterator[None]:
    """Ray: the caller's, a cluster's, or one that is started for these trials and ended after them."""
    if workers is not None and (address != "local" or ray.is_initialized()):
        raise ConfigError(f"workers: {WORKERS_OF_CLUSTER}, got {workers}; leave it out")
    if ray.is_initialized():
        yield
        return
    quietly: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address != "local":
        check_address(address)
        try:
            ray.init(address, runtime_env=code(), **quietly)
        except ConnectionError as error:
            raise ResourceError(f"address: no Ray cluster at '{address}' ({one_line(error)})") from None
    else:
        check_resources(trials, resources, [local_offer(workers)])
        if any(trial.projector == "opu_hardware" for trial in trials):
            from pipeline.projection import check_opu

            check_opu()
        opus = {"OPU": 1} if any(trial.needs_opu for trial in trials) else {}
        with on_loopback():
            ray.init(address, num_cpus=workers, resources=opus, include_dashboard=False, **quietly)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """A Ray that is started here has one node and listens on 127.0.0.1 only; otherwise it listens on all interfaces.

    Ray's way to say so is a variable of the environment, which it reads when it is imported: hence both.
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


def offers() -> list[dict[str, float]]:
    """What each node that is alive offers."""
    return [node["Resources"] for node in alive()]
