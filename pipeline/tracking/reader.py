"""Read the tracking store: sweeps, their trials and their metrics.

Status, reports and notebooks use it. It creates and changes nothing, so any number of readers may use a store while a
sweep writes to it. `pipeline.tracking.store` writes, and `pipeline.tracking.backend` has the calls of MLflow.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from pipeline.experiment.experiment import Experiment, with_trials
from pipeline.experiment.past import NO_PAST, Past
from pipeline.experiment.search import Search
from pipeline.tracking import artifacts, backend
from pipeline.tracking.artifacts import DONE, REUSED, REUSED_FROM, TrackedRun, config_of, names_of, tracked
from pipeline.tracking.backend import Client, NoStore, OtherFormat, TrackingError, connect, reporting_errors
from pipeline.tracking.database import database, is_set_up
from pipeline.tracking.files import Files
from pipeline.trials.config import ConfigError
from pipeline.trials.records import EpochRecord, Release

PARENTS = "tags.sweep LIKE '%'"  # MLflow's filter for parent runs of sweeps
MOST_IDS = 500  # of runs in one filter of MLflow, whose parser has a limit


class Reader:
    """An existing tracking store, for reading only: no method writes to it.

    `attach` opens one sweep at a time; `find` does so too, if it is there:

        reader = Reader(root=Path("mlruns"))
        reader.attach("quickstart")
        accuracy = {run.trial_key: reader.history(run.run_id, "validation/accuracy") for run in reader.runs()}

    Args:
        uri: address of the store; by default MLFLOW_TRACKING_URI, else the SQLite database `<root>/mlflow.db`.
        root: local folder of the database.

    Raises:
        TrackingError: if the store cannot be opened or reached, or the database is missing or empty.
    """

    def __init__(self, uri: str | None = None, root: Path = Path("mlruns")) -> None:
        self.root = Path(root).absolute()
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root / 'mlflow.db'}"
        backend.check_store(self.uri)
        self.place = f"{socket.gethostname()}:{self.root}"  # of this reader or writer
        self._database = database(self.uri)  # None for a server
        self._experiment_id: str | None = None  # of the open sweep
        self._parent_id: str | None = None  # of the open sweep; None also for one whose parent run was deleted
        self._client = self._open()
        self._files = Files(self._client, self.shared)

    @classmethod
    def of(cls, store: Reader | str | os.PathLike[str]) -> Reader:
        """Return the reader of a URI, or of a folder's database if no MLFLOW_TRACKING_URI is set; a reader as it is."""
        if isinstance(store, Reader):
            return store
        is_uri = isinstance(store, str) and "://" in store
        return cls(str(store)) if is_uri else cls(root=Path(store))

    def _open(self) -> Client:
        """Return the client of an existing store; MLflow itself would set up a missing database."""
        with reporting_errors(self.uri):
            if self._database is not None and not is_set_up(self._database):
                state = "is empty" if self._database.exists() else "does not exist"
                raise NoStore(f"tracking store {backend.redacted(self.uri)}: {state} (run the sweep first, "
                              "or say by --mlruns where it ran)")
        return connect(self.uri, lock=None)  # without a lock, nothing is created

    def artifact_folders(self) -> list[Path]:
        """Return the folders of this host with the store's artifacts; every reader of its runs can see them."""
        return self._files.folders()

    @property
    def shared(self) -> bool:
        """Whether other folders and hosts may use the store too."""
        return self._database != self.root / "mlflow.db"

    def sweeps(self) -> list[str]:
        """Return the names of all sweeps in the store, oldest first; the open sweep stays open."""
        experiments = sorted(self._client.search_experiments(), key=lambda experiment: experiment.creation_time)
        names = {each.experiment_id: each.name for each in experiments}
        begun = {parent.info.experiment_id for parent in self._client.search(list(names), PARENTS)}
        return [name for experiment_id, name in names.items() if experiment_id in begun]

    def find(self, name: str) -> bool:
        """Open the sweep `name`; return whether it exists. One of another format is refused (`OtherFormat`)."""
        self._experiment_id = self._find_experiment(name)
        parent = next(self._parents(), None) if self._experiment_id else None
        self._parent_id = parent.info.run_id if parent else None
        return parent is not None

    def _find_experiment(self, name: str) -> str | None:
        """Return MLflow's id of the experiment `name`, None if there is none.

        A sweep that another version began is refused (`OtherFormat`), also if its runs lie in MLflow's trash.
        """
        experiment_id = self._client.find_experiment(name)
        if experiment_id is None:
            return None
        has_format = self._client.get_experiment(experiment_id).tags.get(artifacts.FORMAT) == artifacts.PRESENT_FORMAT
        if not has_format and any(self._client.search([experiment_id], PARENTS, deleted=True)):
            raise OtherFormat(f"sweep '{name}': another version of this software began it, and its trials have other "
                              "keys; give the experiment another name, or use another store")
        return experiment_id

    def attach(self, name: str) -> None:
        """Open the sweep `name`, which the store must have (`TrackingError`); errors as in `find`."""
        if not self.find(name):
            there = ", ".join(self.sweeps()) or "none"
            raise self._client.refusal(f"no sweep named '{name}', it has {there} (run the sweep first)")

    def planned(self) -> int | None:
        """Return the number of planned trials of the open sweep's last run; None if not known."""
        if not self._parent_id:
            return None
        data = self._client.get_run(self._parent()).data
        text = data.tags.get("latest.trials", data.params.get("trials"))
        return int(text) if text else None

    def holder(self) -> tuple[str, str] | None:
        """Return (driver, its last heartbeat) of the open sweep; None if the sweep was closed."""
        run = self._client.get_run(self._parent())
        tags = run.data.tags
        if run.info.status != "RUNNING" or "driver" not in tags:
            return None
        return tags["driver"], tags.get("driver.beat", "")

    def nodes(self, driver: str) -> dict[str, Any]:
        """Return a driver's last record of the cluster's nodes, of any driver for ''; an empty one if there is none."""
        tags = self._client.get_run(self._parent()).data.tags
        record = json.loads(tags.get("driver.nodes", "{}"))
        return record if driver in ("", record.get("driver")) else {}

    def experiment(self) -> str:
        """Return the text of the open sweep's experiment file when it last ran; errors where none was kept."""
        text = self.kept_experiment()
        if not text:
            raise self._client.refusal("the sweep has no experiment file (random stopping keeps its seed secret); "
                                       "name the file itself")
        return text

    def kept_experiment(self) -> str:
        """Return the text of the open sweep's experiment file; empty where none was kept, as of random stopping."""
        return self._text(artifacts.EXPERIMENT)

    def suggestions(self) -> list[artifacts.Suggestion]:
        """Return all suggestions of the open sweep's search so far, in order."""
        return artifacts.suggestions_of(self._text(artifacts.SUGGESTIONS) or "[]")

    def decisions(self) -> list[tuple[str, bool]]:
        """Return (trial_key, whether it was allowed to start) of the open sweep's suggestions, in order."""
        return artifacts.decisions_of(self._text(artifacts.SUGGESTIONS) or "[]")

    @property
    def is_open(self) -> bool:
        return self._parent_id is not None

    @property
    def has_begun(self) -> bool:
        """Whether the last sought sweep ever began; its parent run may have been deleted since."""
        return self._experiment_id is not None

    @property
    def has_selected(self) -> bool:
        """Whether a report of the open sweep has logged a selected epsilon."""
        return any(name.startswith("epsilon/selected/") for name in self._client.get_run(self._parent()).data.metrics)

    def as_swept(self, experiment: Experiment, runs: Sequence[TrackedRun] | None = None) -> Experiment:
        """Return the open sweep's experiment with its `past`, and a search with its trials so far.

        Of a search that was edited since, they are the suggestions that it might still make. `runs` are those of the
        sweep, if they were listed already.
        """
        plan = experiment.plan
        if isinstance(plan, Search):
            experiment = with_trials(experiment, list(filter(plan.asks_for, artifacts.started(self.suggestions()))))
        return replace(experiment, past=self.past(experiment, self.runs() if runs is None else runs))

    def past(self, experiment: Experiment | None, runs: Sequence[TrackedRun]) -> Past:
        """Return what the open sweep has trained, in `runs` and in the trash, beside an experiment's trials.

        Without an experiment it is what has not ended, or is in the trash. Of random stopping it tells nothing.
        """
        in_file = self._in_file(experiment, runs) if experiment else {run.trial_key for run in runs
                                                                      if run.status in DONE}
        published = [*filter(artifacts.has_released, runs), *self._trash()]
        others = [run for run in published if run.trial_key not in in_file]
        tags = self.tags()
        rule = tags.get(artifacts.BY_SCORES, "")
        by_scores = artifacts.ASKED_BY_SCORES in tags
        stopping = experiment.plan.rule if experiment else ""  # empty unless the file has random stopping
        lost = [run for run in runs if run.status == "lost" and run.trial_key in in_file]
        twice = _named_twice(run for run in published if run.trial_key in in_file)
        has_other_rule = stopping and rule not in ("", "true", stopping)
        if (stopping or rule) and (others or twice or has_other_rule):
            return Past(no_price="selection: random stopping was used under this name, whose price covers one draw "
                        "alone, and the file has changed since; give the experiment another name")
        if stopping or not (others or lost or twice):  # the price of random stopping covers a lost trial
            return NO_PAST._replace(by_scores=by_scores)
        keys = {run.trial_key for run in published}
        other_keys = {run.trial_key for run in others}
        past = Past(in_file=len(keys - other_keys), others=len(other_keys), by_scores=by_scores)
        try:
            releases = [release for run in others for release in artifacts.releases_of(run)]
            releases += [Release(config_of(run), config_of(run).epochs, name=name) for run, name in twice]
            return past._replace(releases=tuple(releases), lost=tuple(map(config_of, lost)))
        except ConfigError as error:
            return past._replace(no_price=f"a trial that is not in the file cannot be read: {error}")

    def _in_file(self, experiment: Experiment, runs: Sequence[TrackedRun]) -> set[str]:
        """Return the trial_keys of an experiment's trials; for a search, of its suggestions in the present space."""
        plan = experiment.plan
        if not isinstance(plan, Search):
            return {trial.trial_key for trial in experiment.trials}
        suggested = {key for key, was_started in self.decisions() if was_started}
        return {run.trial_key for run in runs
                if run.trial_key in suggested and run.trial and plan.asks_for(run.trial)}

    def _trash(self) -> Iterator[TrackedRun]:
        """Yield the deleted runs of the open sweep that have released something, oldest first."""
        for run in self._client.search([self.experiment_id], "", deleted=True, live=False):
            if "trial_key" in run.data.tags and artifacts.has_released(found := tracked(run)):
                yield found

    def tags(self) -> dict[str, str]:
        """Return the tags of MLflow's experiment of the open sweep."""
        return dict(self._client.get_experiment(self.experiment_id).tags)

    def budget(self) -> list[float] | None:
        """Return the open sweep's budget as it began (`accounting.budget.Filter.initial_state`); None without one."""
        text = self.tags().get(artifacts.BUDGET)
        return json.loads(text) if text else None

    def released(self) -> list[Release]:
        """Return what every run of the open sweep has released, oldest first, also those in MLflow's trash.

        It is empty for a sweep that never began. Errors are those of `config_of`.
        """
        releases: list[Release] = []
        for mlflow_run in self._client.search([self.experiment_id], "", deleted=True) if self.has_begun else ():
            if "trial_key" in mlflow_run.data.tags:
                releases += artifacts.releases_of(tracked(mlflow_run), mlflow_run.info.lifecycle_stage == "deleted")
        return releases

    def names(self, trial_key: str) -> set[str]:
        """Return all names under which the open sweep has released a trial with secret noise, in the trash too."""
        runs = self._client.search([self.experiment_id], f"tags.trial_key = '{trial_key}'", deleted=True)
        return {name for run in runs for name in names_of(run.data.tags)}

    def gone(self, runs: Iterable[TrackedRun]) -> set[str]:
        """Return the trial_keys with secret noise that were released and lie in the trash, not among these `runs`."""
        here = {run.trial_key for run in runs if names_of(run.tags)}
        return {run.trial_key for run in self._trash() if names_of(run.tags)} - here

    def kept(self, run: TrackedRun) -> list[EpochRecord]:
        """Return the records of a trial with secret noise that were kept with its run; none before, or if damaged."""
        content = self._files.read(run.run_id, artifacts.RELEASED)
        weights = self._files.read(run.run_id, artifacts.WEIGHTS)
        try:
            arrays = load(weights or b"")
            return [EpochRecord.from_entry(entry, arrays) for entry in json.loads(content or "[]")]
        except (ValueError, SafetensorError):  # a driver died, or a disk was full, while it wrote them
            return []

    def certified(self, dataset: str, relation: str) -> dict[str, tuple[float, float]]:
        """Return sweep -> (epsilon, delta), for sweeps with certified trials on a data set under a neighbour relation.

        The pair is the sweep's budget or, without one, the sum over these trials, also those in MLflow's trash. A trial
        that sweeps share by `reuse` counts once: in one with a budget, which covers it, else where it was trained.
        """
        experiments = {experiment.experiment_id: experiment for experiment in self._client.search_experiments()}
        budgets = {each: entry.tags.get(artifacts.BUDGET) for each, entry in experiments.items()}  # as `budget`, JSON
        found = self._client.search(list(experiments), f"params.dataset = '{dataset}'", deleted=True)
        once: dict[str, Any] = {}  # by the id of the run that trained the trial
        # The sort is stable: among sweeps without a budget the oldest run comes first, which trained the trial. A run
        # without metrics comes last: a driver died while it took the trial over, so no budget has been charged.
        for run in sorted(found, key=lambda run: (not run.data.metrics, budgets[run.info.experiment_id] is None)):
            once.setdefault(run.data.tags.get(REUSED, run.info.run_id), run)
        runs: dict[str, list[TrackedRun]] = {}  # of certified trials (`true` or `simulated`), by id of the experiment
        for run in once.values():
            tags = run.data.tags
            if tags.get("privacy.certified", "false") != "false" and tags.get("privacy.relation") == relation:
                runs.setdefault(run.info.experiment_id, []).append(tracked(run))
        pairs: dict[str, tuple[float, float]] = {}
        for experiment_id, its_runs in runs.items():
            budget = budgets[experiment_id]
            pair = tuple(json.loads(budget)[:2]) if budget else artifacts.total_costs(its_runs)
            pairs[experiments[experiment_id].name] = pair
        return pairs

    def _text(self, name: str) -> str:
        return (self._files.read(self._parent(), name) or b"").decode("utf-8")

    def runs(self) -> list[TrackedRun]:
        """Return all trials of the open sweep, oldest first."""
        return self._followed([tracked(run) for run in self._search() if "trial_key" in run.data.tags])

    def _followed(self, runs: Sequence[TrackedRun]) -> list[TrackedRun]:
        """Return the runs, each complete pointer (`REUSED`) replaced by its run; as failed if that was deleted."""
        run_ids = [run.tags[REUSED] for run in runs if REUSED in run.tags]
        experiments = self._experiments() if run_ids else []
        targets: dict[str, TrackedRun] = {}  # by MLflow's id; none of deleted runs
        for first in range(0, len(run_ids), MOST_IDS):
            ids = ", ".join(f"'{run_id}'" for run_id in run_ids[first:first + MOST_IDS])
            found = self._client.search(experiments, f"attributes.run_id IN ({ids})")
            targets |= {run.info.run_id: tracked(run) for run in found}
        return [_pointed_to(run, targets.get(run.tags[REUSED])) if REUSED in run.tags and run.status in DONE else run
                for run in runs]

    def _experiments(self) -> list[str]:
        return [experiment.experiment_id for experiment in self._client.search_experiments()]

    def trial(self, name: str) -> TrackedRun:
        """Return the one trial of the store, in any sweep, with this MLflow run id or trial_key."""
        field = {16: "tags.trial_key", 32: "attributes.run_id"}.get(len(name))  # by the number of hexadecimal digits
        if field is None or not name.isalnum():
            raise TrackingError(f"'{name}': must be a trial_key or a run id, 16 or 32 hexadecimal digits")
        found = self._client.search(self._experiments(), f"{field} = '{name}'")
        followed = self._followed([tracked(run) for run in found if "trial_key" in run.data.tags])
        runs = list({run.run_id: run for run in followed}.values())  # a run and those that point to it are one
        if not runs:
            raise self._client.refusal(f"no trial has the trial_key or run id '{name}'")
        if len(runs) > 1:
            run_ids = [run.run_id for run in runs]
            raise TrackingError(f"trial {name} has {len(runs)} runs: {', '.join(run_ids)}; name one of them")
        return runs[0]

    def weights(self, run: TrackedRun) -> dict[str, np.ndarray]:
        """Return the final weights of a trial, by name; errors as in `artifact`."""
        return load(self.artifact(run, artifacts.WEIGHTS))

    def artifact(self, run: TrackedRun, name: str) -> bytes:
        """Return the content of a trial's artifact. The trial must have ended, and have the file (`TrackingError`)."""
        if run.status not in DONE:
            why = f"{run.status} {run.tags.get('failure', '')}".strip()
            raise TrackingError(f"trial {run.trial_key}: must have ended to have weights, is {why}")
        content = self._files.read(run.run_id, name)
        if content is None:
            raise self._client.refusal(f"{name} of trial {run.trial_key} is missing")
        return content

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment of the open sweep."""
        if self._experiment_id is None:
            raise TrackingError("no sweep is open: attach to one first")
        return self._experiment_id

    def done(self) -> dict[str, str]:
        """Return trial_key -> status of trials that need no more training (finished or diverged)."""
        return artifacts.done_of(self.runs())

    def history(self, run_id: str, key: str) -> list[tuple[int, float]]:
        """Return (epoch, value) of one metric, by epoch; the later value if an epoch was trained twice."""
        points = sorted(self._client.get_metric_history(run_id, key), key=lambda point: (point.step, point.timestamp))
        latest = {point.step: point.value for point in points}
        return list(latest.items())

    def _search(self, condition: str = "") -> Iterator[Any]:
        return self._client.search([self.experiment_id], condition)

    def _parents(self) -> Iterator[Any]:
        """Yield MLflow's parent runs of the open sweep: one, unless several processes have just created it."""
        return self._search(PARENTS)

    def _parent(self) -> str:
        if self._parent_id is None:
            raise self._client.refusal(f"the open sweep (experiment {self.experiment_id}) has no parent run any more")
        return self._parent_id


def _pointed_to(run: TrackedRun, target: TrackedRun | None) -> TrackedRun:
    """Return the run `target` that a pointer leads to, with the pointer's tags; the pointer as failed if it is gone."""
    origin = {tag: run.tags[tag] for tag in (REUSED, REUSED_FROM)}
    if target and target.status in DONE:
        return replace(target, tags={**target.tags, **origin})
    reason = (f"it was taken over from run {origin[REUSED]} of '{origin[REUSED_FROM]}', which was deleted; restore "
              "that run, or run this sweep again to train the trial here")
    return replace(run, status="failed", metrics={}, epoch=0, tags={**run.tags, "failure": reason})


def _named_twice(runs: Iterable[TrackedRun]) -> list[tuple[TrackedRun, str]]:
    """Return (run, name) for every further name of a trial after its first: each was paid for again."""
    first: dict[str, str] = {}  # by trial_key
    return [(run, name) for run in runs for name in names_of(run.tags)
            if first.setdefault(run.trial_key, name) != name]
