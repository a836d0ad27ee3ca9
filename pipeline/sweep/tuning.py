"""Ray Tune's part of a sweep: a trial of Tune is a pack, a step of it is an epoch, and its callback is the driver.

Like `pipeline.sweep.cluster`, it is imported after `pipeline.sweep` has set Ray's environment variables.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler

from pipeline.experiment.plugins import LOADED, load_plugins
from pipeline.sweep.checkpoints import PROGRAM
from pipeline.sweep.checks import ResourceError, bundle, check_resources
from pipeline.sweep.cluster import in_use, node_resources, task_on
from pipeline.sweep.nodes import Watch
from pipeline.sweep.prepare import Sweep
from pipeline.sweep.recorder import Recorder
from pipeline.sweep.worker import Plugins, Trainer, epochs
from pipeline.trials.packs import Pack
from pipeline.trials.records import Computing, EpochRecord, Hidden, Result, Sealed, Working

TUNE_NAMES = {"CPU": "cpu", "GPU": "gpu"}  # of resources
MAX_WORKER_DEATHS = 2  # per pack; an exception in training is not retried


def fit(driver: Driver, at_once: int, trainer: Trainer) -> None:
    """Train all packs of `driver` with Ray Tune, `at_once` at a time.

    A pack is a set of trials that train together in one worker. For Tune it is one trial, and an epoch is one step.
    An exception of the driver is raised here. Ctrl-C kills workers at once; the next sweep trains what they had not
    sent again.
    """
    sweep, packs = driver.sweep, driver.packs
    resources = sweep.experiment.resources

    def resources_of(config: dict[str, Any]) -> Any:  # a dict, which Ray accepts and its types do not
        amounts = bundle(resources, packs[config["pack"]].needs_opu)  # no `driver`, as Ray pickles what is named here
        return {TUNE_NAMES.get(name, name): amount for name, amount in amounts.items()}

    trainable = tune.with_parameters(PackTrainable, packs=packs, trainer=trainer, plugins=sweep.plugins,
                                     code=program(sweep.plugins), announces=driver.watch.ray_of != "sweep")
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the recorder reports failures, once
    sweep.folder.ray.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=sweep.folder.ray, ignore_cleanup_errors=True) as storage:
        tuner = tune.Tuner(
            tune.with_resources(trainable, resources_of),
            param_space={"pack": tune.grid_search(list(range(len(packs))))},
            tune_config=tune.TuneConfig(scheduler=PackOrder(at_once, driver), reuse_actors=True,
                                        trial_dirname_creator=lambda trial: trial.trial_id),
            run_config=tune.RunConfig(
                name="sweep", storage_path=storage, verbose=0, callbacks=[driver],
                failure_config=tune.FailureConfig(max_failures=MAX_WORKER_DEATHS),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False)),
        )
        try:
            tuner.fit()
        except tune.TuneError as error:
            raise driver.error or error from None  # Tune turns a callback's exception into a TuneError with a text
        except KeyboardInterrupt:
            driver.end()
            raise


class PackTrainable(tune.Trainable):
    """Trains one pack after the other in a worker process; a step is one epoch of all trials of a pack."""

    # Ray adds the arguments of `with_parameters` to the config.
    def setup(self, config: dict[str, Any], packs: Sequence[Pack], trainer: Trainer,  # type: ignore[override]
              plugins: Plugins, code: str, announces: bool) -> None:
        """Prepare a worker, and its first pack; with another program than `code` it refuses to train.

        If the worker `announces` itself, the first step of each pack says where it works.
        """
        load_plugins(*plugins)  # first, as plugins define trials
        self._packs, self._announces = packs, announces
        self._trainer = trainer if code == program(plugins) else refuse_to_train
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._results = epochs(self._packs[new_config["pack"]], self._trainer)
        if self._announces:
            here = {"item": Working(ray.get_runtime_context().get_node_id(), os.getpid())}
            self._results = itertools.chain([here], self._results)
        return True

    def step(self) -> dict[str, Any]:
        # The last step has no item: Ray keeps a pack's last result, and records with an outcome hold weights.
        return next(self._results, {"item": [], "done": True})


def program(plugins: Plugins) -> str:
    """Return digests of what trains in this process: of the package's files, and of loaded plugins."""
    names, _ = plugins
    return ", ".join([PROGRAM, *(LOADED[name] for name in names)])


def refuse_to_train(pack: Pack) -> Iterator[list[EpochRecord]]:
    """Raise an error in place of training, in a worker that started after files of the driver's code had changed."""
    raise RuntimeError("the files of the package pipeline, or of a plugin, changed since the sweep began or are others "
                       "on this host, and trials of one sweep must come from one program; run the same command again, "
                       "which continues with the new one (in a notebook, restart it first)")


def end_process(pid: int) -> None:
    """End a worker, in a task on its node; its pack restarts as after any death of a worker."""
    os.kill(pid, signal.SIGKILL)


class PackOrder(FIFOScheduler):
    """Runs packs in order, without ending workers that are just starting.

    When a worker ends a pack, plain FIFO gives it the first waiting pack. Tune is already starting another worker for
    that pack, and then ends it. If packs are shorter than a worker's start, no worker ever starts, and the cores of the
    last OPU pack stay idle. This scheduler gives the free worker a later pack.
    """

    def __init__(self, starting: int, driver: Driver) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Ray does not annotate it
        self._starting, self._driver = starting, driver  # starting: workers at once
        self._freed: Any = None  # resources of the pack that has ended last

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._driver.controller = tune_controller

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return Tune's decision, CONTINUE or STOP, after a worker's result.

        The worker takes its next step, which sends what it has sealed, only after this returns.
        """
        return self.CONTINUE if self._driver.lets_go_on(trial, result) else self.STOP

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self._freed = trial.placement_group_factory

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the waiting trial of Tune that gets a free worker; None leaves the choice to Tune.

        It skips the first waiting packs, for which Tune is starting other workers. Only a pack that needs the same
        resources as the one that has just ended can use its worker.
        """
        if self._freed is None:
            return None
        waiting = [trial for trial in tune_controller.get_live_trials()
                   if trial.status == "PENDING" and trial.placement_group_factory == self._freed]
        if not waiting:
            return None
        waiting.sort(key=lambda trial: trial.config["pack"])
        first_without_worker = min(self._starting, len(waiting) - 1)
        return waiting[first_without_worker]


class Driver(tune.Callback):
    """Handles Ray Tune's events in the driver: passes the workers' records to the recorder, and watches the time."""

    def __init__(self, sweep: Sweep, packs: Sequence[Pack], recorder: Recorder, watch: Watch) -> None:
        self.sweep, self.packs, self._recorder, self.watch = sweep, packs, recorder, watch  # packs: by Tune's number
        self._workers: dict[str, Working] = {}  # that train, by the id of the trial of Tune
        self.error: Exception | None = None
        self.controller: Any = None  # Tune's; set by `PackOrder`
        sweep.clock.restart("idle", "warning")  # a round begins, and its packs wait for workers

    def __reduce__(self) -> tuple[Any, ...]:
        # Tune pickles its callbacks for `Tuner.restore`, which is unused here; a store cannot be pickled.
        return tune.Callback, ()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.watch.note_result(trial.trial_id)
        self._workers.pop(trial.trial_id, None)  # of an earlier start
        with self._writing():
            self._recorder.start(self._pack(trial))

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any],
                        **info: Any) -> None:
        """Pass a worker's records to the recorder, its error if training failed, and its features to the progress."""
        self.watch.note_result(trial.trial_id, result["time_this_iter_s"])
        item = result.pop("item")  # otherwise Tune would keep and snapshot the weights in it
        if isinstance(item, Working):
            self._workers[trial.trial_id] = item
            return
        with self._writing():
            if isinstance(item, list):
                self._recorder.record(self._pack(trial), item, result["time_this_iter_s"])
            elif isinstance(item, Result):
                self._recorder.release(self._pack(trial), item)
            elif isinstance(item, Computing):
                self.sweep.progress.computing(item)
            if "error" in result:
                self._recorder.fail(self._pack(trial), result["error"], result["traceback"])

    def lets_go_on(self, trial: Any, result: dict[str, Any]) -> bool:
        """Whether a worker may go on; with secret noise the recorder decides if it may train, or send its result."""
        item = result["item"]
        if isinstance(item, Hidden):
            with self._writing():
                return self._recorder.hidden(self._pack(trial), item, result["time_this_iter_s"])
        if isinstance(item, Sealed):
            with self._writing():
                return self._recorder.name(self._pack(trial), item)
        return True

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        with self._writing():
            self._recorder.restart(self._pack(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        reason = f"its worker died, or could not start, {MAX_WORKER_DEATHS + 1} times (was there enough memory?)"
        with self._writing():
            self._recorder.died(self._pack(trial), reason, Path(trial.error_file).read_text(encoding="utf-8"))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Check the lease before a write to the store in the context, and keep the error if one is raised."""
        try:
            self.sweep.lease.beat(in_use)  # another driver may have taken over while this process was suspended
            yield
        except Exception as error:
            self.error = error
            raise

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Write due records, check the cluster's resources, and kill workers whose results were lost."""
        with self._writing():
            self._recorder.write_due()
            # A few hundred trials of Tune at most, whatever the number of packs.
            live = {trial.trial_id: trial for trial in self.controller.get_live_trials()} if self.controller else {}
            self._check_resources([trial.status for trial in live.values()])
            for lost in self.watch.overdue(key for key, trial in live.items() if trial.status == "RUNNING"):
                self.watch.note_result(lost)
                self._kill(lost)

    def _check_resources(self, statuses: Sequence[str]) -> None:
        """Check the cluster once packs have waited for long without a running one; until then, say what is lacking."""
        clock = self.sweep.clock
        if "RUNNING" in statuses or "PENDING" not in statuses:
            clock.restart("idle", "warning")
            return
        has_waited = clock.is_due("idle")
        if not (has_waited or clock.is_due("warning")):
            return
        trials = [trial for pack in self.packs for trial in pack.trials]
        try:
            check_resources(self._recorder.left(trials), self.sweep.experiment.resources, node_resources())
        except ResourceError as error:
            if has_waited:
                raise
            self.sweep.progress.say(f"{error}; waiting for {clock.seconds['idle'] - clock.elapsed('idle'):.0f} s more")
        clock.restart("warning")
        if has_waited:
            clock.restart("idle")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._workers.pop(trial.trial_id, None)  # it trains another pack

    def _kill(self, trial_id: str) -> None:
        """End the worker that trains a trial of Tune, which is a pack."""
        if trial_id not in self._workers:
            raise ResourceError("address: the first answer of a worker was lost with a link, so that nobody knows "
                                "where it runs; run the same command again to go on")
        worker = self._workers.pop(trial_id)
        task_on(worker.node, end_process, worker.pid)

    def end(self) -> None:
        """End all workers of a caller's Ray at once, as Tune would wait for the end of every epoch.

        Any other Ray ends its workers when this process leaves it.
        """
        if self.controller and self.watch.ray_of == "caller":
            for trial_id in list(self._workers):
                self._kill(trial_id)
            self.controller.cleanup()

    def _pack(self, trial: Any) -> Pack:
        return self.packs[trial.config["pack"]]
