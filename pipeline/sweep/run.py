"""Train all trials of an experiment that the tracking store does not have yet, in parallel with Ray Tune.

Only `cluster` and `tuning` import Ray. Workers send `EpochRecord`s to this process, the driver, which is the only
writer of the tracking store. Resuming does not use Ray: a sweep trains the trials of the grid, or of a search's
suggestions, that the store does not have. Packs with a checkpoint stay together and resume from it. So the same command
resumes a sweep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.accounting.budget import scope
from pipeline.accounting.certified import calibrated_noise
from pipeline.accounting.evaluations import check_evaluations
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.plugins import LOADED, load_plugins
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.cluster import (
    CLIENT,
    WORKERS_OF_CLUSTER,
    cluster_resources,
    node_resources,
    on_head,
    prepare_nodes,
    running_ray,
)
from pipeline.sweep.draws import Draws, known
from pipeline.sweep.lock import Lease, SweepRunning, sweeping
from pipeline.sweep.nodes import Overdue, Watch
from pipeline.sweep.outcome import closed, contents
from pipeline.sweep.private import PrivateFolder
from pipeline.sweep.progress import SweepProgress
from pipeline.sweep.recorder import WRITE_SECONDS, Recorder, SweepResult, git_commit, versions
from pipeline.sweep.resources import ResourceError, Watchdog, bundle, check_resources, slots
from pipeline.sweep.search import Odometer, Rounds, published_digests
from pipeline.sweep.trainers import check_trainers
from pipeline.sweep.tuning import Driver, Rungs, fit, make_searcher
from pipeline.sweep.view import shared_view
from pipeline.sweep.worker import Plugins, Trainer, prepare, train_pack
from pipeline.tracking.artifacts import done_of
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.naming import run_name, short_name
from pipeline.trials.packs import Pack, plan
from pipeline.trials.promises import check_promises
from pipeline.trials.unused import check_used

__all__ = ["ResourceError", "SweepResult", "run_sweep"]

IDLE_SECONDS = 60.0  # time without a running pack, before the cluster's resources are checked again


def run_sweep(experiment: Experiment, *, root: Path = Path("mlruns"), tracking_uri: str | None = None,
              data_folder: Path | None = None, address: str | None = None, workers: int | None = None,
              trainer: Trainer | None = None, quiet: bool = False, idle_seconds: float = IDLE_SECONDS,
              commit: str | None = None, redraw: bool = False, private: Path | None = None) -> SweepResult:
    """Train the trials of `experiment` that are not done, and track them. Call it again to resume or to retry.

    Args:
        experiment: the experiment.
        root: folder of the tracking store and of the failure log.
        tracking_uri: another tracking store (see `Store`).
        data_folder: folder of the data sets on every node; by default each node's PHOTONIC_DATA, else each node
            downloads them (see `pipeline.learning.data.dataset.load`).
        address: a Ray cluster; by default RAY_ADDRESS, else Ray is started on this machine. If the caller has
            initialised Ray, that Ray is used and left running. With `ray://host:port` the driver runs on the cluster's
            head, and `root` is a folder there (see `pipeline.sweep.cluster.on_head`).
        workers: cores to use on this machine; all by default.
        trainer: trains a pack; `train_pack` by default. Trials can stop early only if its records have
            `EpochRecord.if_stopped`.
        quiet: show no progress.
        idle_seconds: time without a running pack before the resources are checked again.
        commit: commit of this code; by default the commit of its repository.
        redraw: for trials without a budget and without a usable checkpoint, draw secret noise again. This releases
            their records once more (`pipeline.sweep.draws`). With a budget, the budget decides.
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
            (`pipeline.trials.unused`), a budget that cannot be kept (`pipeline.sweep.search.filter_of`), a trial that
            breaks the assumptions of its epsilon (`pipeline.trials.promises`), or a private folder that others can
            read.
        DataError: a data set is not available, which is found before training.

    Example:
        >>> result = run_sweep(load_experiment("example.yaml"))  # all of its trials are done
        >>> result.planned, result.skipped, result.finished
        (4, 4, 0)
    """
    begin = time.monotonic()
    plugins = experiment.plugins, experiment.source.absolute().parent
    load_plugins(*plugins)  # plugins define trials; on a cluster's head too, which receives the experiment pickled
    check_used(experiment.possible)
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith(CLIENT):
        if workers is not None:
            raise ConfigError(f"workers: {WORKERS_OF_CLUSTER}, got {workers}; leave it out")
        experiment = dataclasses.replace(experiment, source=experiment.source.absolute())
        return on_head(run_sweep, address, experiment=experiment, root=root, tracking_uri=tracking_uri,
                       data_folder=data_folder, trainer=trainer, quiet=quiet, idle_seconds=idle_seconds,
                       commit=commit or git_commit(), redraw=redraw, private=private)
    root = Path(root).absolute()
    store = Store(tracking_uri, root)
    with sweeping(root, experiment.name, store.driver):
        lease = Lease(store, experiment.name)
        lease.wait_until_free()
        sweep = Sweep(experiment, plugins, store, lease, root, private, quiet)
        for line in store.relocate():
            sweep.progress.say(line)
        changed_trainers = check_trainers(sweep.runs, (*experiment.possible, *sweep.rounds.trials))
        if sweep.missing:
            digests = sweep.check_missing()
            for line in (*scope(experiment.name, sweep.plan, store.certified), *changed_trainers):
                sweep.progress.say(line)
            with (sweep.progress,
                  running_ray(sweep.possible, experiment.resources, address, workers, sweep.progress,
                              sweep.folder.ray_log,
                              lambda: sweep.prepare_here(digests, data_folder, trainer)) as watch):
                checkpoints = sweep.open_checkpoints()
                packs_at_once, trainer = sweep.prepare_nodes(checkpoints, digests, data_folder, trainer,
                                                             address == "local", watch)
                sweep.lease.require_as_found(sweep.done)
                sweep.train_rounds(trainer, packs_at_once, checkpoints, commit or git_commit(), idle_seconds, redraw,
                                   watch)
        elif sweep.plan.asks and store.is_open:
            store.log_suggestions(sweep.rounds.suggestions)  # an earlier driver may have died before this
    sweep.result.wall_seconds = time.monotonic() - begin
    sweep.progress.say(sweep.result.summary(sweep.failure_log))
    return sweep.result


class Sweep:
    """A sweep in this process, the driver: its trials, and the objects that its phases share."""

    def __init__(self, experiment: Experiment, plugins: Plugins, store: Store, lease: Lease, root: Path,
                 private: Path | None, quiet: bool) -> None:
        """Find the sweep's missing trials, after no other driver holds it."""
        self.experiment, self.plugins, self.store, self.lease = experiment, plugins, store, lease
        self.plan = experiment.plan
        self.failure_log = root / "failures" / f"{experiment.name}.log"  # for errors of trials
        self.folder = PrivateFolder(root, private)
        self.name = functools.partial(run_name, also=experiment.varied)  # of a trial in messages
        self.progress = SweepProgress((), quiet=quiet, name=self.name)
        if store.find(experiment.name):
            self.progress.phase("reading the trials that the tracking store has")
        self.runs = store.runs() if store.has_begun else []  # as they were listed last
        # The store becomes patient only after its first answer, so that a wrong address fails at once.
        store.be_patient(experiment.resources.store_patience_seconds, self.progress.say)
        self.rounds = Rounds(self.plan, store, make_searcher)
        self.missing = self.rounds.next(self.runs)  # trials of this round that are not done
        self.possible = self.plan.possible if self.plan.asks else self.missing  # all trials that may be trained
        self.result = SweepResult(self.plan.planned, skipped=self.rounds.n_done, passed_over=self.rounds.passed_over)
        self.progress.skip(self.result.skipped)
        self.progress.add(self.missing, self.rounds.later)

    @property
    def done(self) -> dict[str, str]:
        """Return trial_key -> status of trials that need no more training."""
        return done_of(self.runs)

    def check_missing(self) -> Mapping[str, str]:
        """Check the missing trials before anything expensive starts, and make the private folder."""
        self.experiment.check(self.missing, lambda trial: check_evaluations([trial]))
        uses_files = any(trial.parts.features.of_file for trial in self.possible)
        published = published_digests(self.runs) if uses_files else ()
        self.experiment.check(self.possible, lambda trial: check_promises([trial], published))
        self.folder.make(self.experiment.name, any(trial.hides_errors for trial in self.possible),
                         self.store.artifact_folders())
        return self.folder.feature_digests(self.possible)

    def open_checkpoints(self) -> Checkpoints:
        """Return the sweep's checkpoints, with the state of trials that have released secret noise."""
        released = known(self.store, self.done) if any(trial.draws_fresh_noise for trial in self.possible) else {}
        return Checkpoints(self.folder.checkpoints(self.experiment.name),
                           self.experiment.resources.checkpoint_seconds, released)

    def say_data_sets(self) -> None:
        """Show which data sets are looked for."""
        self.progress.phase(f"looking for data sets: {', '.join(sorted({t.dataset for t in self.possible}))}")

    def prepare_here(self, digests: Mapping[str, str], data_folder: Path | None, trainer: Trainer | None) -> None:
        """Prepare this machine; arguments as in `prepare_nodes`."""
        self.say_data_sets()
        if trainer is None:
            folder = self.folder.checkpoints(self.experiment.name)
            prepare(self.possible, data_folder, Checkpoints(folder, 0.0), digests)

    def prepare_nodes(self, checkpoints: Checkpoints, digests: Mapping[str, str], data_folder: Path | None,
                      trainer: Trainer | None, local: bool, watch: Watch) -> tuple[int, Trainer]:
        """Check and prepare all nodes; return the number of packs that train at the same time, and their trainer."""
        resources = self.experiment.resources
        check_resources(self.possible, resources, node_resources())
        if not local:
            self.say_data_sets()
        if trainer is None:
            prepare_nodes(self.possible, resources, data_folder, checkpoints, local, watch, digests, self.plugins)
            trainer = functools.partial(train_pack, device="cuda" if resources.gpu else "cpu",
                                        threads=max(1, int(resources.cpu)), data_folder=data_folder,
                                        checkpoints=checkpoints, stop=self.plan.stop, digests=digests)
        return slots(bundle(resources, False), cluster_resources()), trainer

    def train_rounds(self, trainer: Trainer, packs_at_once: int, checkpoints: Checkpoints, commit: str,
                     idle_seconds: float, redraw: bool, watch: Watch) -> None:
        """Train and record the missing trials, round by round, until no trial is missing or Ctrl-C."""
        experiment, store, rounds, stop = self.experiment, self.store, self.rounds, self.plan.stop
        tags = {"git_commit": commit, "versions": versions(),
                **{f"plugin.{name}": LOADED[name] for name in experiment.plugins}}
        with (contextlib.suppress(KeyboardInterrupt),  # `result.remaining` tells the caller
              recorded(store, self.lease, experiment, rounds, self.result, commit)):
            odometer = Odometer(rounds.filter, store) if rounds.filter else None
            draws = Draws(store, rounds.filter, redraw, lambda: recorder.left(self.missing))
            recorder = Recorder(store, self.progress, self.result, self.failure_log, tags, self.name, self.done,
                                functools.partial(short_name, also=experiment.varied), odometer,
                                0.0 if stop else WRITE_SECONDS, draws,
                                self.folder.failure_log(experiment.name))
            watchdog = Watchdog(
                lambda: check_resources(recorder.left(self.missing), experiment.resources, node_resources()),
                idle_seconds, self.progress.say)
            rungs = Rungs(stop, rounds.scores(stop)) if stop else None
            overdue = Overdue(lambda: watch.returned)
            with afterwards(self.lease, recorder.write_all):
                while self.missing:
                    self.lease.require_own()
                    if odometer:
                        odometer.begin(self.missing)
                    resumed = checkpoints.resumable(rounds.trials, self.done, self.progress.say)
                    resumed += checkpoints.drawn_anew(self.missing, resumed)
                    packs = [with_calibrated_noise(pack) for pack in
                             plan(self.missing, experiment.resources, packs_at_once, resumed)]
                    self.progress.training(self.missing, len(packs), packs_at_once)
                    driver = Driver(packs, recorder, watchdog, self.lease, overdue)
                    fit(packs, packs_at_once, experiment.resources, trainer, self.plugins, driver, self.folder.ray,
                        rungs)
                    self.lease.require_own()
                    recorder.write_all()
                    self.runs = self.lease.runs()
                    self.missing = recorder.not_deleted(self._next_round())
                # Stopped trials leave their checkpoints behind.
                checkpoints.resumable(rounds.trials, self.done, self.progress.say, ended=not self.result.failed)

    def _next_round(self) -> list[TrialConfig]:
        """Return the trials of the next round; none if trials failed, as a search depends on their scores."""
        if self.result.failed:
            self.result.held_back = self.rounds.later
            return []
        missing = self.rounds.next(self.runs)
        self.result.passed_over = self.rounds.passed_over
        self.result.skipped = max(self.result.skipped, self.rounds.n_done - self.result.ended)
        if self.plan.asks:
            self.experiment.check(missing, lambda trial: check_evaluations([trial]))
            self.store.log_suggestions(self.rounds.suggestions)
            self.progress.add(missing, self.rounds.later)
        return missing


def with_calibrated_noise(pack: Pack) -> Pack:
    """Return the pack with the noise that targets need, so that no worker calibrates it."""
    return Pack(tuple(trial.with_recorded_noise(calibrated_noise(trial)) for trial in pack.trials))


@contextlib.contextmanager
def recorded(store: Store, lease: Lease, experiment: Experiment, rounds: Rounds, result: SweepResult,
             commit: str) -> Iterator[None]:
    """Open the sweep's parent run for the context, and close it with the sweep's status."""
    status = "FAILED"
    tags = {**contents(experiment.possible), **shared_view(experiment.possible, experiment.varied), **rounds.tags}
    store.open_sweep(experiment.name, experiment.description, params={"trials": experiment.planned},
                     tags={"git_commit": commit}, contents=tags)
    if experiment.public_text:
        store.log_experiment(experiment.public_text)
    if experiment.plan.asks:
        store.log_suggestions(rounds.suggestions)
    with afterwards(lease, lambda: closed(store, rounds.plan, experiment.description, status)):
        try:
            lease.confirm()
            yield
            if result.remaining:
                status = "KILLED"
            elif not result.failed:
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
