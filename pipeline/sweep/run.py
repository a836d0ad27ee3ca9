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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.accounting.budget import scope
from pipeline.accounting.certified import stated_of, with_noise
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
from pipeline.sweep.recorder import NOT_RECORDED, WRITE_SECONDS, Recorder, SweepResult, git_commit, versions
from pipeline.sweep.resources import ResourceError, Watchdog, bundle, check_resources, slots
from pipeline.sweep.search import Odometer, Rounds, filter_of, published_digests
from pipeline.sweep.tuning import Driver, Rungs, fit, make_searcher
from pipeline.sweep.view import shared_view
from pipeline.sweep.worker import Plugins, Trainer, train_pack
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.naming import computed_features, counted, run_name, short_name
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
    failure_log, folder = root / "failures" / f"{experiment.name}.log", PrivateFolder(root, private)
    store = Store(tracking_uri, root)
    with sweeping(root, experiment.name, store.driver):
        lease = Lease(store, experiment.name)
        lease.wait_until_free()
        name, short = (functools.partial(form, also=experiment.varied) for form in (run_name, short_name))
        progress = SweepProgress((), quiet=quiet, name=name)
        if store.find(experiment.name):
            progress.phase("reading the trials that the tracking store has")
        done = lease.done()
        store.be_patient(experiment.resources.store_patience_seconds, progress.say)  # it has answered once
        rounds = Rounds(experiment, store, make_searcher, filter_of(experiment, store))
        missing = rounds.next(done)
        result = SweepResult(experiment.planned, skipped=len(done.keys() & {t.trial_key for t in rounds.trials}),
                             passed_over=rounds.passed_over)
        progress.skip(result.skipped)
        progress.add(missing, rounds.later)
        edited = check_trainers(store, (*experiment.possible, *rounds.trials))
        if missing:
            check_evaluations(missing)
            possible = experiment.corners or missing
            asked = possible if experiment.corners else missing
            check_promises(asked, published_digests(store) if any(t.parts.features.of_file for t in asked) else ())
            folder.make(experiment.name, any(trial.hides_errors for trial in possible), store.artifact_folders())
            digests = folder.feature_digests(possible)
            for line in (*scope(experiment, store.certified), *edited):
                progress.say(line)
            with progress, running_ray(possible, experiment.resources, address, workers, progress) as watch:
                checkpoints = Checkpoints(folder.checkpoints(experiment.name), experiment.resources.checkpoint_seconds,
                                          known(store, done) if any(t.draws_fresh_noise for t in possible) else {})
                check_resources(possible, experiment.resources, node_resources())
                progress.phase(f"looking for data sets: {', '.join(sorted({t.dataset for t in possible}))}")
                at_once, trainer = _prepared(experiment, plugins, possible, checkpoints, digests, data_folder,
                                             trainer, address == "local", watch)
                lease.require_as_found(done)
                tags = {"git_commit": commit or git_commit(), "versions": versions(),
                        **{f"plugin.{name}": LOADED[name] for name in experiment.plugins}}
                with (contextlib.suppress(KeyboardInterrupt),  # `remaining` tells the caller
                      recorded(store, lease, rounds, result, tags["git_commit"])):
                    odometer = Odometer(rounds.filter, store) if rounds.filter else None
                    draws = Draws(store, rounds.filter, redraw, lambda: recorder.left(missing))
                    recorder = Recorder(store, progress, result, failure_log, tags, name, done, short, odometer,
                                        0.0 if experiment.stop else WRITE_SECONDS, draws,
                                        folder.failure_log(experiment.name))
                    watchdog = Watchdog(
                        lambda: check_resources(recorder.left(missing), experiment.resources, node_resources()),
                        idle_seconds, progress.say)
                    rungs, overdue = _rungs(experiment, rounds), Overdue(lambda: watch.returned)
                    with afterwards(lease, recorder.write_all):
                        while missing:
                            lease.require_own()
                            if odometer:
                                odometer.begin(missing)
                            kept = checkpoints.resumable(rounds.trials, done, progress.say)
                            kept += _by_themselves(missing, kept, checkpoints)
                            packs = plan(missing, experiment.resources, at_once, kept)
                            progress.phase(_training(missing, packs, at_once))
                            driver = Driver(packs, recorder, watchdog, lease, overdue)
                            fit(packs, at_once, experiment.resources, trainer, plugins, driver, folder.ray, rungs)
                            lease.require_own()
                            recorder.write_all()
                            done = lease.done()
                            missing = recorder.not_deleted(_next(rounds, store, result, progress, done))
                        # Stopped trials leave their checkpoints behind.
                        checkpoints.resumable(rounds.trials, done, progress.say, ended=not result.failed)
        elif experiment.search and store.is_open:
            store.log_suggestions(rounds.suggestions)  # an earlier driver may have died before this
    result.wall_seconds = time.monotonic() - begin
    progress.say(result.summary(failure_log))
    return result


def check_trainers(store: Reader, trials: Sequence[TrialConfig]) -> list[str]:
    """Check that trainers still state the same guarantee for trials of the open sweep as at training time.

    Returns:
        One line per trainer with a changed file but an unchanged version.

    Raises:
        ConfigError: for a changed statement.
    """
    by_key = {trial.trial_key: trial for trial in trials if not trial.parts.trainer.built_in}
    by_trainer = {trial.trainer: trial for trial in by_key.values()}
    if not by_key or not store.is_open:
        return []
    messages: dict[str, str] = {}  # by trainer
    for run in store.runs():
        trial = by_key.get(run.trial_key)
        if trial and run.tags.get("privacy.certified") == "stated":
            _check_statement(trial, run.tags.get("privacy.notes", ""))
        trial = by_trainer.get(run.params.get("trainer", ""))
        if trial and run.params.get("trainer_version") == str(trial.trainer_version):
            module = trial.parts.trainer.works.__module__
            digest_now, digest_then = LOADED.get(module), run.tags.get(f"plugin.{module}")
            if digest_now and digest_then and digest_then not in (digest_now, NOT_RECORDED):
                messages.setdefault(trial.trainer, (
                    f"trainer '{trial.trainer}': its file was another when trials of this sweep were trained with "
                    f"version {trial.trainer_version} ({digest_then}, and now {digest_now}); raise the version if "
                    "results change"))
    return list(messages.values())


def _check_statement(trial: TrialConfig, then: str) -> None:
    """Check that a trainer states the same guarantee for a trial now as when it was trained.

    Args:
        trial: the trial, with the trainer as it is now.
        then: the tracked tag `privacy.notes`, which begins with the statement.

    Raises:
        ConfigError: if the statement has changed.
    """
    try:
        now = stated_of(with_noise(trial))
    except ValueError as error:  # no noise attains the target any more
        now = str(error)
    if not then.startswith(now):
        statement_then = then.partition(", and nobody")[0]  # the words after it are the same for all trainers
        raise ConfigError(f"event: {now}, and when trial {trial.trial_key} was trained it was another one "
                          f"('{statement_then}'); restore the file, or raise the version")


def _training(trials: Sequence[TrialConfig], packs: Sequence[Pack], at_once: int) -> str:
    """Return the progress text of a sweep that begins to train trials: `training 8 trials in 2 packs, 2 at a time`.

    Args:
        trials: the trials.
        packs: packs of these trials.
        at_once: number of packs that train at the same time.
    """
    text = f"training {counted(len(trials), 'trial')} in {counted(len(packs), 'pack')}, {at_once} at a time"
    features = computed_features(trials)
    if features:
        text += f"; first features are computed, or read from the cache: {', '.join(features)}"
    return text


def _by_themselves(missing: Sequence[TrialConfig], kept: Sequence[Pack], checkpoints: Checkpoints) -> list[Pack]:
    """Return a pack for each single trial that may need a second draw of secret noise.

    If the budget refuses the draw, this affects no other trial.

    Args:
        missing: trials that are not done.
        kept: packs that resume from checkpoints.
        checkpoints: the sweep's checkpoints; `known` has the trials that have released secret noise.
    """
    packed = {trial.trial_key for pack in kept for trial in pack.trials}
    drawn_before = checkpoints.known.keys() - packed
    return [Pack((trial,)) for trial in missing if trial.trial_key in drawn_before]


def _rungs(experiment: Experiment, rounds: Rounds) -> Rungs | None:
    """Return the early stopping of a search, with all earlier decisions; None without early stopping."""
    if not experiment.stop or not experiment.search:
        return None
    rungs = Rungs(experiment.stop, experiment.search.metric)
    for trial_key, epoch, score in rounds.scores(experiment.stop):
        rungs.is_promoted(trial_key, epoch, score)  # repeats the decision, which `rungs` remembers
    return rungs


def _prepared(experiment: Experiment, plugins: Plugins, possible: Sequence[TrialConfig], checkpoints: Checkpoints,
              digests: Mapping[str, str], data_folder: Path | None, trainer: Trainer | None,
              local: bool, watch: Watch) -> tuple[int, Trainer]:
    """Prepare all nodes; return the number of packs that train at the same time, and their trainer.

    Args:
        experiment: the experiment, with the resources of a pack.
        plugins: names of modules that every worker imports, and their folder.
        possible: all trials that may be trained.
        checkpoints: the sweep's checkpoints.
        digests: digests of feature files, by their public names.
        data_folder: folder of the data sets on every node.
        trainer: trains a pack; None for `train_pack`.
        local: whether Ray runs on this machine only.
        watch: watch of the cluster's nodes.
    """
    resources = experiment.resources
    if trainer is None:
        prepare_nodes(possible, resources, data_folder, checkpoints, local, watch, digests, plugins)
        trainer = functools.partial(train_pack, device="cuda" if resources.gpu else "cpu",
                                    threads=max(1, int(resources.cpu)), data_folder=data_folder,
                                    checkpoints=checkpoints, stop=experiment.stop, digests=digests)
    return slots(bundle(resources, False), cluster_resources()), trainer


def _next(rounds: Rounds, store: Store, result: SweepResult, progress: SweepProgress,
          done: Mapping[str, str]) -> list[TrialConfig]:
    """Return the trials of the next round; none if trials failed, as the next suggestions depend on their scores.

    Args:
        rounds: the rounds of the sweep.
        store: the store with the sweep open.
        result: the result so far.
        progress: the progress line.
        done: trial_key -> status of trials that need no more training.
    """
    if result.failed:
        result.held_back = rounds.later
        return []
    missing = rounds.next(done)
    result.passed_over = rounds.passed_over
    before = len(done.keys() & {trial.trial_key for trial in rounds.trials}) - result.ended
    result.skipped = max(result.skipped, before)
    if rounds.experiment.search:
        check_evaluations(missing)
        store.log_suggestions(rounds.suggestions)
        progress.add(missing, rounds.later)
    return missing


@contextlib.contextmanager
def recorded(store: Store, lease: Lease, rounds: Rounds, result: SweepResult, commit: str) -> Iterator[None]:
    """Open the sweep's parent run for the context, and close it with the sweep's status.

    Args:
        store: the store, where the sweep is opened.
        lease: shows whether this driver holds the sweep.
        rounds: the rounds, for the trials and suggestions so far.
        result: the result, which decides the status.
        commit: commit of this code.
    """
    status = "FAILED"
    experiment = rounds.experiment
    tags = {**contents(experiment), **shared_view(experiment), **rounds.tags}
    store.open_sweep(experiment.name, experiment.description, params={"trials": experiment.planned},
                     tags={"git_commit": commit}, contents=tags)
    if experiment.public_text:
        store.log_experiment(experiment.public_text)
    if experiment.search:
        store.log_suggestions(rounds.suggestions)
    with afterwards(lease, lambda: closed(store, rounds.experiment, status)):
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
