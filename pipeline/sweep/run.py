"""Train all trials of an experiment that the tracking store does not have yet, in parallel with Ray Tune.

Workers send `EpochRecord`s to this process, the driver, which is the only writer of the tracking store. Resuming does
not use Ray: a sweep trains the trials of the grid, or of a search's suggestions, that the store does not have. Packs
with a checkpoint stay together and resume from it. So the same command resumes a sweep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.accounting.certified import calibrated_noise
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.plugins import load_plugins
from pipeline.package import ROOT, wheel_version
from pipeline.sweep.checks import ResourceError, check_resources, check_trials, slots
from pipeline.sweep.clock import SECONDS, Clock
from pipeline.sweep.cluster import (
    cluster_resources,
    is_of_jobs,
    node_resources,
    prepare_nodes,
    read_address,
    running_ray,
    sealed_elsewhere,
)
from pipeline.sweep.ledger import Odometer
from pipeline.sweep.lock import Lease, SweepRunning, sweeping
from pipeline.sweep.nodes import Watch
from pipeline.sweep.outcome import closed, contents, shared_view
from pipeline.sweep.prepare import Sweep, prepare
from pipeline.sweep.private import PrivateFolder
from pipeline.sweep.progress import SweepResult
from pipeline.sweep.recorder import Recorder
from pipeline.sweep.sealed import found
from pipeline.sweep.settle import settle_files, settle_runs
from pipeline.sweep.tuning import Driver, fit
from pipeline.sweep.worker import Trainer, prepare_node, train_pack
from pipeline.tracking.artifacts import done_of
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.naming import counted
from pipeline.trials.packs import Pack, plan
from pipeline.trials.unused import check_used

__all__ = ["ResourceError", "SweepResult", "run_sweep"]


def run_sweep(experiment: Experiment, *, root: Path = Path("mlruns"), tracking_uri: str | None = None,
              data_folder: Path | None = None, address: str | None = None, workers: int | None = None,
              trainer: Trainer | None = None, quiet: bool = False, idle_seconds: float = SECONDS["idle"],
              commit: str | None = None, lost: bool = False, private: Path | None = None) -> SweepResult:
    """Train the trials of `experiment` that are not done, and track them. Call it again to resume or to retry.

    Args:
        experiment: the experiment.
        root: folder of the tracking store and of the failure log.
        tracking_uri: another tracking store (see `Store`).
        data_folder: folder of the data sets on every node; by default each node's PHOTONIC_DATA, else each node
            downloads them (see `pipeline.learning.data.dataset.load`).
        address: a Ray cluster; by default RAY_ADDRESS, else Ray is started on this machine. If the caller has
            initialised Ray, that Ray is used and left running.
        workers: cores to use on this machine; all by default.
        trainer: trains a pack; `train_pack` by default.
        quiet: show no progress.
        idle_seconds: time without a running pack before the resources are checked again.
        commit: commit of this code; by default the commit of its repository.
        lost: end the trials with secret noise whose sealed result was named and is not to be found: they count, and
            are never trained again (`pipeline.sweep.settle`).
        private: folder of checkpoints and other data as private as the records, on every node (see
            `pipeline.sweep.private`).

    Returns:
        The result; `remaining` is positive after Ctrl-C.

    Raises:
        ResourceError: a trial needs more than any node offers, which is found before training; or a needed node was
            lost.
        TrackingError: the tracking store failed. Its content stays, and the next sweep resumes from it.
        SweepRunning: another process is running this sweep.
        ConfigError: `workers` together with a cluster, an unusable address, a setting that no trial uses
            (`pipeline.trials.unused`), a budget that cannot be kept (`pipeline.sweep.ledger.filter_of`), a trial that
            breaks the assumptions of its epsilon (`pipeline.trials.promises`), or a private folder that others can
            read.
        DataError: a data set is not available, which is found before training.

    Example:
        >>> result = run_sweep(load_experiment("example.yaml"))  # all of its trials are done
        >>> result.planned, result.skipped, result.finished
        (4, 4, 0)
    """
    begin = time.monotonic()
    load_plugins(experiment.plugins, experiment.folder)  # plugins define trials
    check_used(experiment.possible)
    address = read_address(address)
    if is_of_jobs(address):
        raise ConfigError("address", "must be auto or host:port, as `photonic sweep` alone hands sweeps over as jobs",
                          f"'{address}'")
    root = Path(root).absolute()
    local = address == "local"  # a Ray that this process starts
    store = Store(tracking_uri, root)
    with sweeping(root, experiment.name, store.driver):
        sweep = prepare(experiment, store, Clock({**SECONDS, "idle": idle_seconds}), PrivateFolder(root, private),
                        data_folder=data_folder, quiet=quiet, commit=commit or git_commit())
        sweep = settled(sweep, local, lost)
        if sweep.missing:
            with sweep.progress, running_ray(sweep, address, workers, lambda: prepare_here(sweep, trainer)) as watch:
                train(sweep, prepare_cluster(sweep, trainer, local, watch), local, lost, watch)
        elif sweep.experiment.plan.asks and store.is_open:
            store.log_suggestions(sweep.rounds.suggestions)  # an earlier driver may have died before this
    sweep.result.wall_seconds = time.monotonic() - begin
    sweep.progress.say(sweep.result.summary(sweep.failure_log))
    return sweep.result


def settled(sweep: Sweep, local: bool, lost: bool) -> Sweep:
    """Settle, before Ray is started, what earlier drivers left on this host; return the sweep with what is missing.

    Other nodes of a cluster may have more sealed results, so runs are settled here only without a cluster (`local`).
    """
    files = found(sweep.checkpoints.folder)
    if not (files or sweep.waits or len(sweep.to_train(sweep.missing)) < len(sweep.missing)):
        return sweep
    with recorded(sweep) as recorder:
        settle_files(sweep, recorder, files)
        if local:
            settle_runs(sweep, recorder, lost)
        missing = left_to_train(sweep, recorder)
        if not missing:
            sweep.resumable()  # deletes the checkpoints of what has ended
    return dataclasses.replace(sweep, missing=missing, done=done_of(sweep.lease.runs()))


def train(sweep: Sweep, trainer: Trainer, local: bool, lost: bool, watch: Watch) -> None:
    """Settle what is left on the nodes of a cluster, and train and record all missing trials; until Ctrl-C."""
    sweep.lease.require_as_found(sweep.done)
    # After Ctrl-C, `result.remaining` tells the caller.
    with contextlib.suppress(KeyboardInterrupt), recorded(sweep) as recorder:
        if not local:
            if any(trial.secure for trial in sweep.possible):
                for files, call in sealed_elsewhere(sweep.checkpoints.folder, watch):
                    settle_files(sweep, recorder, files, call)
            settle_runs(sweep, recorder, lost)
        with afterwards(sweep.lease, recorder.write_all):
            train_rounds(sweep, recorder, trainer, watch)
            sweep.resumable()  # deletes the checkpoints of what has ended


def train_rounds(sweep: Sweep, recorder: Recorder, trainer: Trainer, watch: Watch) -> None:
    """Train and record the missing trials, round by round, until no trial is missing."""
    resources = sweep.experiment.resources
    at_once = slots(resources, cluster_resources())
    while missing := left_to_train(sweep, recorder):
        sweep.lease.require_own()
        # With the noise that targets need, so that no worker calibrates it.
        packs = [Pack(tuple(trial.with_recorded_noise(calibrated_noise(trial)) for trial in pack.trials))
                 for pack in plan(missing, resources, at_once, sweep.resumable())]
        sweep.progress.training(missing, len(packs), at_once)
        fit(Driver(sweep, packs, recorder, watch), at_once, trainer)
        sweep.lease.require_own()
        recorder.write_all()


def left_to_train(sweep: Sweep, recorder: Recorder) -> list[TrialConfig]:
    """Take over missing trials, and those of the rounds that then follow; return the missing trials to train."""
    missing = recorder.left(sweep.missing) or next_round(sweep)
    while recorder.take_over(missing):
        missing = next_round(sweep)
    return recorder.not_deleted(missing)


def say_data_sets(sweep: Sweep) -> None:
    sweep.progress.phase(f"looking for data sets: {', '.join(sorted({t.dataset for t in sweep.possible}))}")


def prepare_here(sweep: Sweep, trainer: Trainer | None) -> None:
    """Prepare this machine before Ray starts; a trainer of the caller has its own data."""
    say_data_sets(sweep)
    if trainer is None:
        prepare_node(sweep.possible, sweep.data_folder, sweep.checkpoints.folder, sweep.private_log, sweep.digests)


def prepare_cluster(sweep: Sweep, trainer: Trainer | None, local: bool, watch: Watch) -> Trainer:
    """Check and prepare all nodes; return the trainer of packs, by default `train_pack`."""
    resources = sweep.experiment.resources
    nodes = node_resources()
    check_resources(sweep.possible, resources, nodes)
    n_gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if n_gpus and not resources.gpu:
        sweep.progress.say(f"{counted(n_gpus, 'GPU')} of the nodes train nothing: `resources: {{gpu: 1}}` in the file "
                           "gives each pack one, a fraction lets packs share one")
    if not local:  # without a cluster, `prepare_here` has prepared this machine
        say_data_sets(sweep)
    if trainer:
        return trainer
    prepare_nodes(sweep, local, watch)
    return functools.partial(train_pack, device="cuda" if resources.gpu else "cpu", threads=max(1, int(resources.cpu)),
                             data_folder=sweep.data_folder, checkpoints=sweep.checkpoints, digests=sweep.digests)


def next_round(sweep: Sweep) -> list[TrialConfig]:
    """Return the trials of the next round; none if trials failed, as a search depends on their scores."""
    rounds, result, runs = sweep.rounds, sweep.result, sweep.lease.runs()
    if result.failed:
        rounds.note(runs)
        result.held_back = rounds.later
        return []
    missing = rounds.next(runs)
    result.passed_over = rounds.passed_over
    result.skipped = max(result.skipped, rounds.n_done - result.ended)
    if sweep.experiment.plan.asks:
        check_trials(sweep.experiment, missing)
        sweep.store.log_suggestions(rounds.suggestions)
        to_train = sweep.to_train(missing)
        sweep.progress.add(to_train, rounds.later, len(missing) - len(to_train))
    return missing


@contextlib.contextmanager
def recorded(sweep: Sweep) -> Iterator[Recorder]:
    """Open the sweep's parent run for the context, with a writer of its trials; close it with the sweep's status."""
    experiment, store, rounds = sweep.experiment, sweep.store, sweep.rounds
    tags = {**contents(experiment.possible), **shared_view(experiment.possible, experiment.varied), **rounds.tags}
    store.open_sweep(experiment.name, experiment.description, params={"trials": experiment.planned},
                     tags={"git_commit": sweep.commit}, contents=tags)
    if experiment.public_text:
        store.log_experiment(experiment.public_text)
    if experiment.plan.asks:
        store.log_suggestions(rounds.suggestions)
    for line in store.new_lines():
        sweep.progress.say(line)
    status = "FAILED"  # unless the context ends otherwise

    def close() -> None:
        closed(store, dataclasses.replace(experiment, plan=rounds.plan), status)  # with the trials of all rounds

    with afterwards(sweep.lease, close):
        try:
            sweep.lease.confirm()
            yield Recorder(sweep, Odometer(store, rounds.filter))
            if sweep.result.remaining:
                status = "KILLED"
            elif not sweep.result.failed:
                status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise


@contextlib.contextmanager
def afterwards(lease: Lease, write: Callable[[], object]) -> Iterator[None]:
    """Call `write` at the end of the context, unless another driver has taken the sweep over.

    After Ctrl-C, a failure of the store does not hide the KeyboardInterrupt.
    """
    def end() -> None:
        lease.require_own()
        write()

    try:
        yield
    except SweepRunning:
        raise
    except KeyboardInterrupt:
        with contextlib.suppress(TrackingError):
            end()
        raise
    except BaseException:
        end()
        raise
    end()


def git_commit() -> str:
    """Return the commit of this code, with `-dirty` if files have changed; `unknown` outside a repository."""
    if wheel_version():  # a wheel in a folder of another project's repository
        return "unknown"
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
