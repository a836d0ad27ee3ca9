"""Read the tracking store: sweeps, their trials and their metrics.

Status, reports and notebooks use it. It creates and changes nothing, so any number of readers may use a store while a
sweep writes to it. `pipeline.tracking.store` writes, and `pipeline.tracking.backend` has the calls of MLflow.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

from pipeline.experiment.experiment import Experiment, with_trials
from pipeline.tracking.artifacts import (
    BUDGET,
    DONE,
    DRAW,
    EARLIER,
    EXPERIMENT,
    IMPORTED,
    LOST,
    SUGGESTIONS,
    WEIGHTS,
    Suggestion,
    TrackedRun,
    config_of,
    decisions_of,
    done_of,
    started,
    suggestions_of,
    total_costs,
)
from pipeline.tracking.backend import (
    NoStore,
    TrackingError,
    connect,
    database,
    find_experiment,
    find_trial,
    is_set_up,
    local_folder,
    redacted,
    reports_errors,
    search,
    tracked,
)
from pipeline.tracking.imports import Result, results_of
from pipeline.trials.records import Release


class Reader:
    """An existing tracking store, for reading only: no method writes to it.

    `find` or `attach` opens one sweep at a time:

        reader = Reader(root=Path("mlruns"))
        reader.attach("quickstart")
        accuracy = {run.trial_key: reader.history(run.run_id, "validation/accuracy") for run in reader.runs()}

    Args:
        uri: address of the store; by default MLFLOW_TRACKING_URI, else the SQLite database `<root>/mlflow.db`.
        root: local folder of the database.

    Attributes:
        place: `<host>:<root>`, this host and folder.

    Raises:
        TrackingError: if the store cannot be opened or reached, or the database is missing or empty.
    """

    def __init__(self, uri: str | None = None, root: Path = Path("mlruns")) -> None:
        """Open the store at `uri`, or find it by the environment variable or the folder `root`; creates nothing."""
        self.root = Path(root).absolute()
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root / 'mlflow.db'}"
        self.place = f"{socket.gethostname()}:{self.root}"
        self._database = database(self.uri)
        self._experiment_id: str | None = None
        self._parent_id: str | None = None
        self._client = self._open()

    @classmethod
    def of(cls, store: Reader | str | os.PathLike[str]) -> Reader:
        """Return the reader of a store given by its URI, by the folder of a database, or by a reader."""
        if isinstance(store, Reader):
            return store
        is_uri = isinstance(store, str) and "://" in store
        return cls(str(store)) if is_uri else cls(root=Path(store))

    @reports_errors
    def _open(self) -> Any:
        """Return MLflow's client of an existing store; MLflow itself would set up a missing database."""
        if self._database is not None and not is_set_up(self._database):
            state = "is empty" if self._database.exists() else "does not exist"
            raise NoStore(f"tracking store {redacted(self.uri)}: {state} (run the sweep first)")
        return connect(self.uri, lock=None)  # without a lock, nothing is created

    @reports_errors
    def artifact_folders(self) -> list[Path]:
        """Return the folders of this host with the store's artifacts; every reader of its runs can see them."""
        recorded = [local_folder(experiment.artifact_location) for experiment in self._client.search_experiments()]
        return [folder for place in recorded if place for folder in (self._beside(place), place) if folder]

    def _beside(self, recorded: Path) -> Path | None:
        """Return the folder of a sweep's artifacts beside the database; None if they do not belong there.

        MLflow records `<root>/artifacts/<sweep>` as an absolute path. If the store was moved or copied, that root is
        another folder than the database's.
        """
        if self._database is None or recorded.parent.name != "artifacts":
            return None
        folder = self._database.absolute().parent / "artifacts" / recorded.name
        # A database that several folders share may have its artifacts in another folder.
        return folder if not self.shared or folder.exists() else None

    def _folders(self, run: Any) -> list[Path]:
        """Return the folders of this host for the artifacts of MLflow's run; none if a server keeps them.

        New artifacts belong in the first.
        """
        recorded = local_folder(run.info.artifact_uri)
        if recorded is None:
            return []
        sweep, below = recorded.parents[1], recorded.parts[-2:]  # MLflow adds `<run>/artifacts`
        beside = self._beside(sweep)
        return [beside.joinpath(*below), recorded] if beside else [recorded]

    @property
    def shared(self) -> bool:
        """Whether other folders and hosts may use the store too."""
        return self._database != self.root / "mlflow.db"

    @reports_errors
    def sweeps(self) -> list[str]:
        """Return the names of all sweeps in the store, oldest first."""
        experiments = sorted(self._client.search_experiments(), key=lambda experiment: experiment.creation_time)
        names = [experiment.name for experiment in experiments if IMPORTED not in experiment.tags]
        return [name for name in names if self.find(name)]

    @reports_errors
    def find(self, name: str) -> bool:
        """Open the sweep `name` for reading; return whether it exists. Creates nothing and changes no status.

        A name of imported results is refused (`TrackingError`).
        """
        self._experiment_id = find_experiment(self._client, name)
        parent = self._find_parent() if self._experiment_id else None
        self._parent_id = parent.info.run_id if parent else None
        return parent is not None

    def attach(self, name: str) -> None:
        """Open the sweep `name` for reading. The store must have it (`TrackingError`)."""
        if not self.find(name):
            raise TrackingError(f"tracking store {redacted(self.uri)}: no sweep named '{name}' (run the sweep first)")

    @reports_errors
    def planned(self) -> int | None:
        """Return the number of planned trials of the open sweep's last run; None if not known."""
        if not self._parent_id:
            return None
        data = self._client.get_run(self._parent()).data
        text = data.tags.get("latest.trials", data.params.get("trials"))
        return int(text) if text else None

    @reports_errors
    def holder(self) -> tuple[str, str] | None:
        """Return (driver, its last heartbeat) of the open sweep; None if the sweep was closed."""
        run = self._client.get_run(self._parent())
        tags = run.data.tags
        if run.info.status != "RUNNING" or "driver" not in tags:
            return None
        return tags["driver"], tags.get("driver.beat", "")

    @reports_errors
    def nodes(self, driver: str) -> list[dict[str, Any]] | None:
        """Return a driver's last record of the cluster's nodes; None if it has written none."""
        tags = self._client.get_run(self._parent()).data.tags
        record = json.loads(tags.get("driver.nodes", "{}"))
        return record["nodes"] if record.get("driver") == driver else None

    @reports_errors
    def experiment(self) -> str:
        """Return the text of the open sweep's experiment file, from its last run.

        The store must have it (`TrackingError`).
        """
        text = self._text(EXPERIMENT)
        if not text:
            raise TrackingError(f"tracking store {redacted(self.uri)}: the sweep has no experiment file (random "
                                "stopping keeps its seed secret, and older versions kept none); name the file itself")
        return text

    @reports_errors
    def suggestions(self) -> list[Suggestion]:
        """Return all suggestions of the open sweep's search so far, in order."""
        return suggestions_of(self._text(SUGGESTIONS) or "[]")

    @reports_errors
    def decisions(self) -> list[tuple[str, bool]]:
        """Return (trial_key, whether it was allowed to start) of the open sweep's suggestions, in order."""
        return decisions_of(self._text(SUGGESTIONS) or "[]")

    @property
    def is_open(self) -> bool:
        """Whether a sweep is open."""
        return self._parent_id is not None

    @property
    def has_begun(self) -> bool:
        """Whether the last sought sweep ever began; its parent run may have been deleted since."""
        return self._experiment_id is not None

    def as_swept(self, experiment: Experiment) -> Experiment:
        """Return the open sweep's experiment; a search with its trials so far."""
        return with_trials(experiment, started(self.suggestions())) if experiment.plan.asks else experiment

    @reports_errors
    def tags(self) -> dict[str, str]:
        """Return the tags of MLflow's experiment of the open sweep."""
        return dict(self._client.get_experiment(self._experiment()).tags)

    @reports_errors
    def budget(self) -> list[float] | None:
        """Return the open sweep's budget as it began (`accounting.budget.Filter.initial_state`); None without one."""
        text = self.tags().get(BUDGET)
        if text is None and self.is_open:  # an earlier version stored it here
            text = self._client.get_run(self._parent()).data.tags.get(BUDGET)
        return json.loads(text) if text else None

    @reports_errors
    def released(self, trial_key: str = "", exclude: Collection[str] = ()) -> list[Release]:
        """Return what every run of the open sweep has released, oldest first.

        Runs in MLflow's trash are included, and runs with a draw that has released nothing yet. `exclude` has
        trial_keys to leave out. Errors as in `config_of`.
        """
        condition = f"tags.trial_key = '{trial_key}'" if trial_key else ""
        releases = []
        for mlflow_run in search(self._client, [self._experiment()], condition, deleted=True):
            key = mlflow_run.data.tags.get("trial_key")
            if key is None or key in exclude:
                continue
            run = tracked(mlflow_run)
            published, draw = run.epoch, run.tags.get(DRAW, "")
            lost, earlier = int(run.tags.get(LOST, 0)), int(run.tags.get(EARLIER, 0))
            if published or draw:
                is_deleted = mlflow_run.info.lifecycle_stage == "deleted"
                releases.append(Release(config_of(run), published + lost, deleted=is_deleted, draw=draw, lost=lost,
                                        earlier=earlier))
        return releases

    @reports_errors
    def certified(self, dataset: str, relation: str) -> dict[str, tuple[float, float]]:
        """Return sweep -> (epsilon, delta), for sweeps of the store with certified trials on a data set.

        The budget's values are returned, if the sweep has a budget. Otherwise they are sums over all these trials, with
        runs in MLflow's trash.
        """
        experiments = {experiment.experiment_id: experiment for experiment in self._client.search_experiments()}
        runs: dict[str, list[TrackedRun]] = {}  # by MLflow's id of their experiment
        for run in search(self._client, list(experiments), f"params.dataset = '{dataset}'", deleted=True):
            tags = run.data.tags
            if tags.get("privacy.certified", "false") != "false" and tags.get("privacy.relation") == relation:
                runs.setdefault(run.info.experiment_id, []).append(tracked(run))
        costs = {}
        for experiment_id, sweep_runs in runs.items():
            experiment = experiments[experiment_id]
            budget = experiment.tags.get(BUDGET)  # JSON, which begins with epsilon and delta
            costs[experiment.name] = tuple(json.loads(budget)[:2]) if budget else total_costs(sweep_runs)
        return costs

    @reports_errors
    def imported(self, name: str) -> list[Result]:
        """Return the results imported under a name; errors as in `imports.results_of`. No sweep need be open."""
        return results_of(self._client, self.uri, name)

    def _text(self, name: str) -> str:
        """Return the text of an artifact of the parent run; empty if it is missing."""
        return (self._file(self._parent(), name) or b"").decode("utf-8")

    def _file(self, run_id: str, name: str) -> bytes | None:
        """Return the content of a run's artifact; None if it is missing."""
        folders = self._folders(self._client.get_run(run_id))
        if folders:
            paths = [folder / name for folder in folders]
            return next((path.read_bytes() for path in paths if path.exists()), None)
        if name not in {file.path for file in self._client.list_artifacts(run_id)}:
            return None
        with tempfile.TemporaryDirectory() as folder:
            return Path(self._client.download_artifacts(run_id, name, folder)).read_bytes()

    @reports_errors
    def runs(self) -> list[TrackedRun]:
        """Return all trials of the open sweep, oldest first."""
        return [tracked(run) for run in self._search() if "trial_key" in run.data.tags]

    @reports_errors
    def trial(self, name: str) -> TrackedRun:
        """Return a trial in any sweep, by MLflow run id or by trial_key.

        There must be exactly one (`TrackingError`).
        """
        return tracked(find_trial(self._client, self.uri, name))

    def weights(self, run: TrackedRun) -> dict[str, np.ndarray]:
        """Return the final weights of a trial, by name; errors as in `artifact`."""
        return load(self.artifact(run, WEIGHTS))

    @reports_errors
    def artifact(self, run: TrackedRun, name: str) -> bytes:
        """Return the content of a trial's artifact. The trial must have ended, and have the file (`TrackingError`)."""
        if run.status not in DONE:
            raise TrackingError(f"trial {run.trial_key}: must have ended to have weights, is {run.status}")
        content = self._file(run.run_id, name)
        if content is None:
            raise TrackingError(f"tracking store {redacted(self.uri)}: {name} of trial {run.trial_key} is missing")
        return content

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment of the open sweep."""
        return self._experiment()

    def done(self) -> dict[str, str]:
        """Return trial_key -> status of trials that need no more training (finished, diverged or stopped)."""
        return done_of(self.runs())

    @reports_errors
    def history(self, run_id: str, key: str) -> list[tuple[int, float]]:
        """Return (epoch, value) of one metric, by epoch; the later value if an epoch was trained twice."""
        points = sorted(self._client.get_metric_history(run_id, key), key=lambda point: (point.step, point.timestamp))
        latest = {point.step: point.value for point in points}
        return list(latest.items())

    def _search(self, condition: str = "") -> Iterator[Any]:
        """Yield all matching runs of the open sweep, oldest first."""
        return search(self._client, [self._experiment()], condition)

    def _find_parent(self) -> Any | None:
        return next(self._parents(), None)

    def _parents(self) -> Iterator[Any]:
        return self._search("tags.sweep LIKE '%'")

    def _experiment(self) -> str:
        if self._experiment_id is None:
            raise TrackingError("no sweep is open: attach to one first")
        return self._experiment_id

    def _parent(self) -> str:
        self._experiment()
        if self._parent_id is None:
            raise TrackingError(f"tracking store {redacted(self.uri)}: the open sweep has no parent run any more")
        return self._parent_id
