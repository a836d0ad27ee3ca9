"""Ray Tune's part of a sweep: a trial of Tune is a pack, one of its steps is an epoch, its callback is the driver.

As `pipeline.sweep.cluster`, imported once `pipeline.sweep` has set Ray's environment variables.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from pipeline.experiment.halving import Halving
from pipeline.experiment.plugins import load_plugins
from pipeline.experiment.search import Domain, Search
from pipeline.sweep.checkpoints import PROGRAM
from pipeline.sweep.cluster import in_use
from pipeline.sweep.lock import Lease
from pipeline.sweep.nodes import Overdue
from pipeline.sweep.recorder import Recorder
from pipeline.sweep.resources import Watchdog, bundle
from pipeline.sweep.search import Searcher
from pipeline.sweep.worker import Plugins, Trainer, epochs
from pipeline.trials.packs import Pack, Resources
from pipeline.trials.records import Draw, EpochRecord

MAX_WORKER_DEATHS = 2  # of one pack; an exception in training is not tried again


def fit(packs: Sequence[Pack], at_once: int, resources: Resources, trainer: Trainer,
        plugins: Plugins, driver: Driver, folder: Path, rungs: Rungs | None = None) -> None:
    """Train all packs with Ray Tune; what they hand in goes to `driver`.

    Args:
        at_once: packs that may train at the same time.
        trainer: trains a pack, in a worker.
        plugins: names of modules that every worker imports, and the folder where they may lie.
        folder: for files of Tune, as long as it runs.
        rungs: decide which trials are stopped early; their packs have one trial each.

    Raises:
        Exception: what the driver's recorder, lease or watchdog raised.
        KeyboardInterrupt: at once, as workers are killed; what they have not handed in is trained again.
        TuneError: Ray Tune failed by itself.
    """
    trainable = tune.with_resources(
        tune.with_parameters(PackTrainable, packs=packs, trainer=trainer, plugins=plugins, code=PROGRAM),
        lambda config: _resources(packs[config["pack"]], resources))
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the recorder says what failed, and once
    folder.mkdir(parents=True, exist_ok=True)
    order = PackOrder(at_once, driver, rungs)
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as storage:
        tuner = tune.Tuner(
            trainable,
            param_space={"pack": tune.grid_search(list(range(len(packs))))},
            tune_config=tune.TuneConfig(scheduler=order, reuse_actors=True,
                                        trial_dirname_creator=lambda trial: trial.trial_id),
            run_config=tune.RunConfig(
                name="sweep", storage_path=storage, verbose=0, callbacks=[driver],
                failure_config=tune.FailureConfig(max_failures=MAX_WORKER_DEATHS),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False)),
        )
        try:
            tuner.fit()
        except tune.TuneError as error:
            raise driver.error or error from None  # Tune makes a TuneError, and a text, of what a callback raises
        except KeyboardInterrupt:
            order.kill_workers()
            raise


def _resources(pack: Pack, resources: Resources) -> Any:
    """What a pack takes. Any: Ray accepts a dict, which its annotation does not name."""
    return {{"CPU": "cpu", "GPU": "gpu"}.get(name, name): amount for name, amount
            in bundle(resources, pack.needs_opu).items()}


def make_searcher(search: Search) -> Searcher:
    """What suggests the settings of a search, by Ray Tune's own domains and searchers."""
    makers: dict[str, Callable[[Search], Searcher]] = {"random": RandomSearcher, "optuna": OptunaSearcher}
    return makers[search.algorithm](search)


class RandomSearcher:
    """Draws every suggestion independently."""

    def __init__(self, search: Search) -> None:
        self._space, self._generator = search.space, np.random.default_rng(search.seed)

    def ask(self) -> dict[str, Any]:
        return {name: chosen(domain, tune_domain(domain).sample(random_state=self._generator))
                for name, domain in self._space.items()}

    def tell(self, number: int, score: float | None) -> None:
        pass


class OptunaSearcher:
    """Ray Tune's `OptunaSearch` with Optuna's tree-structured Parzen estimator, to which trials of one round that have
    no score yet count as bad ones (constant liar), so that it asks for different ones."""

    def __init__(self, search: Search) -> None:
        import optuna  # here, as few sweeps need it
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space = OptunaSearch.convert_search_space({name: tune_domain(domain) for name, domain in search.space.items()})
        sampler = optuna.samplers.TPESampler(seed=search.seed, constant_liar=True)
        self._search, self._asked = search, 0
        self._searcher = OptunaSearch(space, metric=search.metric, mode="max", sampler=sampler)

    def ask(self) -> dict[str, Any]:
        values = self._searcher.suggest(str(self._asked))
        self._asked += 1
        if not isinstance(values, dict):
            raise RuntimeError(f"Optuna was asked for trial {self._asked} of the search, and suggests {values!r}")
        return {name: chosen(domain, values[name]) for name, domain in self._search.space.items()}

    def tell(self, number: int, score: float | None) -> None:
        result = None if score is None else {self._search.metric: score}
        self._searcher.on_trial_complete(str(number), result, error=score is None)


def tune_domain(domain: Domain) -> Any:
    """A domain as Ray Tune has it; choices by their number, as they may be lists."""
    if domain.kind == "choice":
        return tune.choice(range(len(domain.values)))
    kinds = {"uniform": tune.uniform, "loguniform": tune.loguniform, "randint": tune.randint}
    return kinds[domain.kind](*domain.values)


def chosen(domain: Domain, value: Any) -> Any:
    """A value of `tune_domain` as a setting."""
    return domain.values[value] if domain.kind == "choice" else domain.tidy(value)


class Rungs:
    """Ray Tune's asynchronous successive halving, which goes on over the rounds of a search.

    Args:
        stop: where the rungs are.
        metric: that is compared, to be large.
    """

    def __init__(self, stop: Halving, metric: str) -> None:
        self._metric = metric
        # Any: it asks a trial for its id alone, and needs no controller.
        self._rule: Any = ASHAScheduler("epoch", "score", "max", max_t=2**31, grace_period=stop.grace,
                                   reduction_factor=stop.factor)

    def goes_on(self, trial_key: str, epoch: int, score: float) -> bool:
        """Whether a trial that comes to a rung is one of the best there so far."""
        trial = SimpleNamespace(trial_id=trial_key)
        self._rule.on_trial_add(None, trial)
        return self._rule.on_trial_result(None, trial, {"epoch": epoch, "score": score}) != self._rule.STOP

    def all_go_on(self, records: Iterable[EpochRecord]) -> bool:
        """Whether no trial of these records is on a rung where it is not."""
        return all(self.goes_on(r.trial_key, r.epoch, r.metrics[self._metric]) for r in records if r.if_stopped)


class PackTrainable(tune.Trainable):
    """Trains one pack after the other in a worker process; a step is an epoch of all trials of a pack."""

    # Ray hands in what `with_parameters` was given, beside the config.
    def setup(self, config: dict[str, Any], packs: Sequence[Pack], trainer: Trainer,  # type: ignore[override]
              plugins: Plugins, code: str) -> None:
        load_plugins(*plugins)  # before anything asks what a trial is
        self._packs, self._trainer = packs, trainer if code == PROGRAM else other_code
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._epochs = epochs(self._packs[new_config["pack"]], self._trainer)
        return True

    def step(self) -> dict[str, Any]:
        # The last step is one of its own: Ray keeps a pack's last result, and records with an outcome hold weights.
        return next(self._epochs, {"records": [], "done": True})


def other_code(pack: Pack) -> Iterator[list[EpochRecord]]:
    """The trainer of a worker that was started after files had changed.

    Raises:
        RuntimeError: at once.
    """
    raise RuntimeError("the files of the package pipeline changed since the sweep began, and trials of one sweep must "
                       "come from one program; run the same command again, which continues with the new one")


class PackOrder(FIFOScheduler):
    """Packs in their order, without harm to workers that are just starting.

    When a worker ends a pack, plain FIFO hands it the first pack that waits for such a worker. That is the one for
    which another worker is being started, which Tune then ends: where packs are shorter than the start of a worker,
    none ever starts, and the cores that the last OPU pack leaves stay idle. Here it gets a pack further down.
    """

    def __init__(self, starting: int, driver: Driver, rungs: Rungs | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Ray does not annotate it
        self._starting, self._driver, self._rungs = starting, driver, rungs  # workers that may start at the same time
        self._freed: Any = None
        self._controller: Any = None

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._controller = tune_controller
        self._driver.live = tune_controller.get_live_trials  # a few hundred at most, whatever the number of packs
        self._driver.kill = self.kill

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        # The worker takes its next step, and so draws what it asked for, after this has returned.
        if "draw" in result:
            return self.CONTINUE if self._driver.lets_draw(trial, result["draw"]) else self.STOP
        return self.CONTINUE if self._rungs is None or self._rungs.all_go_on(result["records"]) else self.STOP

    def kill_workers(self) -> None:
        """At once, and give back what they occupy; Tune's own way would wait for every one of them to end its epoch."""
        if self._controller:
            self._controller._actor_manager.cleanup()

    def kill(self, trial: Any) -> None:
        """The worker of one pack, which then starts again as one that died."""
        worker = self._controller._trial_to_actor.get(trial)
        if started := self._controller._actor_manager._live_actors_to_ray_actors_resources.get(worker):
            ray.kill(started[0])

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self._freed = trial.placement_group_factory

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        if self._freed is None:
            return None
        waiting = [trial for trial in tune_controller.get_live_trials()
                   if trial.status == "PENDING" and trial.placement_group_factory == self._freed]
        waiting.sort(key=lambda trial: trial.config["pack"])
        return waiting[min(self._starting, len(waiting) - 1)] if waiting else None


class Driver(tune.Callback):
    """Ray Tune's events, in the driver: what the workers hand in goes to the recorder."""

    def __init__(self, packs: Sequence[Pack], recorder: Recorder, watchdog: Watchdog, lease: Lease,
                 overdue: Overdue) -> None:
        self._packs, self._recorder, self._watchdog, self._lease = packs, recorder, watchdog, lease
        self._overdue = overdue
        self.error: Exception | None = None
        self.live: Callable[[], Iterable[Any]] = tuple  # trials of Tune that have not ended; `PackOrder` says where
        self.kill: Callable[[Any], None]  # the worker of one of them; of `PackOrder`, too

    def __reduce__(self) -> tuple[Any, ...]:
        # Tune pickles its callbacks for `Tuner.restore`, which is not used here; a store cannot be pickled.
        return tune.Callback, ()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._overdue.hear(trial.trial_id)
        with self._writing():
            self._recorder.start(self._pack(trial))

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any],
                        **info: Any) -> None:
        self._overdue.hear(trial.trial_id, result["time_this_iter_s"])
        records = result.pop("records")  # or Tune would keep the weights in them, and snapshot them
        with self._writing():
            if result["done"]:
                records = [record.if_stopped or record for record in records]
            self._recorder.record(self._pack(trial), records, result["time_this_iter_s"])
            if "error" in result:
                self._recorder.fail(self._pack(trial), result["error"], result["traceback"])

    def lets_draw(self, trial: Any, draw: Draw) -> bool:
        """Whether the worker of a pack may draw secret noise; if so, the store has the charge."""
        with self._writing():
            return self._recorder.begin_draw(self._pack(trial), draw)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        with self._writing():
            self._recorder.restart(self._pack(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        reason = f"its worker died, or could not start, {MAX_WORKER_DEATHS + 1} times (was there enough memory?)"
        with self._writing():
            self._recorder.died(self._pack(trial), reason, Path(trial.error_file).read_text(encoding="utf-8"))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Around what writes to the store: the sweep may have been taken over while this process stood still. An error
        is kept."""
        try:
            self._lease.beat(in_use)
            yield
        except Exception as error:
            self.error = error
            raise

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        with self._writing():
            self._recorder.write_due()
            live = {trial.trial_id: trial for trial in self.live()}
            self._watchdog.look([trial.status for trial in live.values()])
            for lost in self._overdue.among(key for key, trial in live.items() if trial.status == "RUNNING"):
                self._overdue.hear(lost)
                self.kill(live[lost])

    def _pack(self, trial: Any) -> Pack:
        return self._packs[trial.config["pack"]]
