"""Train all trials of an experiment that the tracking store does not have yet, in parallel with Ray Tune.

Workers send `EpochRecord`s to this process, the driver, which is the only writer of the tracking store. Resuming does
not use Ray: a sweep trains the trials of the grid, or of a search's suggestions, that the store does not have. Packs
with a checkpoint stay together and resume from it. So the same command resumes a sweep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from pipeline.accounting.certified import calibrated_noise
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.plugins import LOADED, load_plugins
from pipeline.package import ROOT
from pipeline.sweep.checkpoints import Checkpoints
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
from pipeline.sweep.prepare import Sweep, plugins_of, prepare
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
    load_plugins(*plugins_of(experiment))  # plugins define trials
    check_used(experiment.possible)
    address = read_address(address)
    if is_of_jobs(address):
        raise ConfigError("address", "must be auto or host:port, as `photonic sweep` alone hands sweeps over as jobs",
                          f"'{address}'")
    clock = Clock({**SECONDS, "idle": idle_seconds})
    root = Path(root).absolute()
    store = Store(tracking_uri, root)
    with sweeping(root, experiment.name, store.driver):
        sweep = prepare(experiment, store, clock, PrivateFolder(root, private), data_folder=data_folder, quiet=quiet)
        local, files = address == "local", found(sweep.checkpoint_folder)
        checkpoints = Checkpoints(sweep.checkpoint_folder, experiment.resources.checkpoint_seconds)
        if files or sweep.waits or any(trial.trial_key in sweep.elsewhere for trial in sweep.missing):
            with recorded(sweep, commit := commit or git_commit()):
                recorder = recorder_of(sweep, commit)
                settle_files(sweep, recorder, files)
                if local:
                    settle_runs(sweep, recorder, lost)
                missing = left_to_train(sweep, recorder, recorder.left(sweep.missing) or next_round(sweep))
                if not missing:
                    remove_stale(checkpoints, sweep)
            sweep = dataclasses.replace(sweep, missing=missing, done=done_of(sweep.lease.runs()))
        if sweep.missing:
            with sweep.progress, running_ray(sweep, address, workers, lambda: prepare_here(sweep, trainer)) as watch:
                trainer = prepare_cluster(sweep, checkpoints, trainer, local, watch)
                sweep.lease.require_as_found(sweep.done)
                # After Ctrl-C, `result.remaining` tells the caller.
                with contextlib.suppress(KeyboardInterrupt), recorded(sweep, commit := commit or git_commit()):
                    recorder = recorder_of(sweep, commit)
                    if not local:
                        is_secure = any(trial.secure for trial in sweep.possible)
                        for files, call in sealed_elsewhere(sweep.checkpoint_folder, watch) if is_secure else ():
                            settle_files(sweep, recorder, files, call)
                        settle_runs(sweep, recorder, lost)
                    missing = left_to_train(sweep, recorder, recorder.left(sweep.missing) or next_round(sweep))
                    train_rounds(sweep, missing, recorder, trainer, checkpoints, watch)
        elif experiment.plan.asks and store.is_open:
            store.log_suggestions(sweep.rounds.suggestions)  # an earlier driver may have died before this
    sweep.result.wall_seconds = time.monotonic() - begin
    sweep.progress.say(sweep.result.summary(sweep.failure_log))
    return sweep.result


def recorder_of(sweep: Sweep, commit: str) -> Recorder:
    """Return the writer of a sweep's trials."""
    return Recorder(sweep, Odometer(sweep.store, sweep.rounds.filter), trial_tags(sweep.experiment, commit))


def left_to_train(sweep: Sweep, recorder: Recorder, missing: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Take over missing trials, and those of the rounds that then follow; return the missing trials to train."""
    while recorder.take_over(missing):
        missing = next_round(sweep)
    return recorder.not_deleted(missing)


def say_data_sets(sweep: Sweep) -> None:
    """Show which data sets are looked for."""
    sweep.progress.phase(f"looking for data sets: {', '.join(sorted({t.dataset for t in sweep.possible}))}")


def prepare_here(sweep: Sweep, trainer: Trainer | None) -> None:
    """Prepare this machine before Ray starts; a trainer of the caller has its own data."""
    say_data_sets(sweep)
    if trainer is None:
        prepare_node(sweep.possible, sweep.data_folder, sweep.checkpoint_folder, sweep.private_log, sweep.digests)


def prepare_cluster(sweep: Sweep, checkpoints: Checkpoints, trainer: Trainer | None, local: bool, watch: Watch
                    ) -> Trainer:  # local: without a cluster, so that `prepare_here` has prepared this machine
    """Check and prepare all nodes; return the trainer of packs, by default `train_pack`."""
    resources = sweep.experiment.resources
    nodes = node_resources()
    check_resources(sweep.possible, resources, nodes)
    if (n_gpus := int(sum(node.get("GPU", 0) for node in nodes))) and not resources.gpu:
        sweep.progress.say(f"{counted(n_gpus, 'GPU')} of the nodes train nothing: `resources: {{gpu: 1}}` in the file "
                           "gives each pack one, a fraction lets packs share one")
    if not local:
        say_data_sets(sweep)
    if trainer:
        return trainer
    prepare_nodes(sweep, local, watch)
    return functools.partial(train_pack, device="cuda" if resources.gpu else "cpu", threads=max(1, int(resources.cpu)),
                             data_folder=sweep.data_folder, checkpoints=checkpoints, digests=sweep.digests)


def train_rounds(sweep: Sweep, missing: Sequence[TrialConfig], recorder: Recorder, trainer: Trainer,
                 checkpoints: Checkpoints, watch: Watch) -> None:
    """Train and record the missing trials, round by round, until no trial is missing or Ctrl-C."""
    rounds, lease, progress, resources = sweep.rounds, sweep.lease, sweep.progress, sweep.experiment.resources
    packs_at_once = slots(resources, cluster_resources())
    with afterwards(lease, recorder.write_all):
        while missing:
            lease.require_own()
            recorder.begin_round(missing)
            resumed = checkpoints.resumable(rounds.trials, rounds.done, progress.say, rounds.named)
            packs = [with_calibrated_noise(pack) for pack in plan(missing, resources, packs_at_once, resumed)]
            progress.training(missing, len(packs), packs_at_once)
            fit(Driver(sweep, packs, recorder, watch), packs_at_once, trainer)
            lease.require_own()
            recorder.write_all()
            missing = left_to_train(sweep, recorder, next_round(sweep))
        remove_stale(checkpoints, sweep)


def remove_stale(checkpoints: Checkpoints, sweep: Sweep) -> None:
    """Remove the checkpoints that no trial resumes from."""
    checkpoints.resumable(sweep.rounds.trials, sweep.rounds.done, sweep.progress.say, sweep.rounds.named)


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
        to_train = [trial for trial in missing if trial.trial_key not in sweep.elsewhere]
        sweep.progress.add(to_train, rounds.later, len(missing) - len(to_train))
    return missing


def with_calibrated_noise(pack: Pack) -> Pack:
    """Return the pack with the noise that targets need, so that no worker calibrates it."""
    return Pack(tuple(trial.with_recorded_noise(calibrated_noise(trial)) for trial in pack.trials))


@contextlib.contextmanager
def recorded(sweep: Sweep, commit: str) -> Iterator[None]:
    """Open the sweep's parent run for the context, and close it with the sweep's status."""
    experiment, store, rounds = sweep.experiment, sweep.store, sweep.rounds
    status = "FAILED"
    tags = {**contents(experiment.possible), **shared_view(experiment.possible, experiment.varied), **rounds.tags}
    store.open_sweep(experiment.name, experiment.description, params={"trials": experiment.planned},
                     tags={"git_commit": commit}, contents=tags)
    if experiment.public_text:
        store.log_experiment(experiment.public_text)
    if experiment.plan.asks:
        store.log_suggestions(rounds.suggestions)
    for line in store.new_lines():
        sweep.progress.say(line)

    def close() -> None:
        closed(store, dataclasses.replace(experiment, plan=rounds.plan), status)  # with the trials of all rounds

    with afterwards(sweep.lease, close):
        try:
            sweep.lease.confirm()
            yield
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


def trial_tags(experiment: Experiment, commit: str) -> dict[str, str]:
    """Return the tags of every trial: its code, the installed versions, and its plugins."""
    names = ("torch", "ray", "mlflow")
    versions = ", ".join([f"python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)])
    return {"git_commit": commit, "versions": versions,
            **{f"plugin.{name}": LOADED[name] for name in experiment.plugins}}


def git_commit() -> str:
    """Return the commit of this code, with `-dirty` if files have changed; `unknown` outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
