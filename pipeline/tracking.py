"""The tracking store: one MLflow experiment per sweep, one parent run for it, one nested run per trial.

The only module that imports MLflow. It has one writer, the process that drives the sweep; trials hand it
`EpochRecord`s and never write themselves. A trial is found again by its `trial_key`, so that a sweep run a
second time continues the runs that it finds and creates none twice.

The default store is an SQLite database; its write-ahead log wants a local disk. Several hosts share a store
through an MLflow server (MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.artifacts import DONE, STATUSES, TrackedRun, param_text, run_name, write_artifacts
from pipeline.config import TrialConfig
from pipeline.records import EpochRecord, Outcome

__all__ = ["DONE", "STATUSES", "Store", "TrackedRun", "TrackingError", "run_name"]

PAGE_SIZE = 500  # runs per page of a search
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 800, 100, 100  # per log_batch call: MLflow takes 1000 entries in all
EXPERIMENT = "experiment.yaml"  # artifact of the parent run: the experiment file as it was swept last
MAX_TAG_LENGTH = 5000  # characters, the limit that every MLflow server accepts

_ENVIRONMENT = {  # read by MLflow when it is imported; what the user has set stays
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",  # seconds
}

_PARENT_NOTE = """{description}

Each nested run is one trial, named by its algorithm, noise and seed and identified by the tag `trial_key`; a step
is an epoch. Accuracies are fractions. A metric `epsilon/<kind>/...` is only as good as its kind: `claimed` is the
formula as printed in the paper and **no guarantee**; the tags `privacy.*` say what, if anything, is guaranteed."""


class TrackingError(RuntimeError):
    """The tracking store cannot do what was asked; the message names the store."""


def _reports_errors(method: Callable) -> Callable:
    """MLflow's, its database's and its network's exceptions as `TrackingError`, with the URI of the store."""

    @functools.wraps(method)
    def wrapper(self: Store, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except _backend_errors() as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            message = f"tracking store {self.uri}: {first_line}"
            message = re.sub(r"//[^/@\s]*@", "//***@", message)  # a password in the URI stays out of logs
            hint = "is it there, and reachable? MLFLOW_TRACKING_URI selects another"
            raise TrackingError(f"{message} ({hint})") from error

    return wrapper


class Store:
    """The tracking store of one sweep.

    Args:
        uri: where to track; by default MLFLOW_TRACKING_URI, else the SQLite database `<root>/mlflow.db`.
        root: local folder for the database, its artifacts (`<root>/artifacts`) and the lock that keeps two
            processes of one host from creating the same database, experiment or run at once.
        create: whether a database that is not there is created.

    Raises:
        TrackingError: for a store that cannot be opened or reached.
    """

    def __init__(self, uri: str | None = None, root: Path = Path("mlruns"), create: bool = True) -> None:
        self.root = Path(root).absolute()
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root / 'mlflow.db'}"
        self._database = Path(self.uri.removeprefix("sqlite:///")) if self.uri.startswith("sqlite:///") else None
        self._lock = FileLock(self.root / ".tracking.lock")
        self._experiment_id: str | None = None
        self._parent_id: str | None = None
        self._trials: dict[str, tuple[str, TrialConfig]] = {}
        self._logged: dict[str, dict[tuple[str, int], float]] = {}  # of started trials: (metric, epoch) -> value
        self._create = create
        if not create and self._database is not None and not self._database.exists():
            raise TrackingError(f"tracking store {self.uri}: does not exist (run the sweep first)")
        self._connect()

    @_reports_errors
    def _connect(self) -> None:
        if self._create:
            self.root.mkdir(parents=True, exist_ok=True)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)
        # Processes that create the same new database at once leave it broken.
        with self._lock if self._create else contextlib.nullcontext():
            is_new = self._database is not None and not self._database.exists()
            if is_new:
                self._database.parent.mkdir(parents=True, exist_ok=True)
            self._client = MlflowClient(tracking_uri=self.uri)
            self._client.search_experiments(max_results=1)
            if is_new:
                connection = sqlite3.connect(self._database)
                connection.execute("PRAGMA journal_mode=WAL")  # readers and the writer do not wait for each other
                connection.close()

    @_reports_errors
    def open_sweep(self, name: str, description: str = "", params: Mapping[str, Any] | None = None,
                   tags: Mapping[str, str] | None = None) -> None:
        """Open, or reopen, the sweep `name`: one MLflow experiment with one parent run.

        MLflow never changes a logged param. Where a later sweep has another value, the param keeps the first and
        the tag `latest.<param>` has the new one.

        Raises:
            TrackingError: also if an experiment of that name lies in MLflow's trash.
        """
        with self._lock:
            self._experiment_id = self._find_experiment(name)
            if self._experiment_id is None:
                folder = self.root / "artifacts" / re.sub(r"[^\w.-]", "_", name)
                location = folder.as_uri() if self._database else None  # a server has its own
                self._experiment_id = self._client.create_experiment(name, artifact_location=location)
            parent = self._find_parent()
            if parent is None:
                parent = self._client.create_run(self._experiment_id, run_name=name, tags={"sweep": name})
            self._parent_id = parent.info.run_id
        logged = parent.data.params
        texts = {k: param_text(v) for k, v in (params or {}).items()}
        changed = {f"latest.{k}": v for k, v in texts.items()
                   if logged.get(k, v) != v or f"latest.{k}" in parent.data.tags}
        note = {"mlflow.note.content": _PARENT_NOTE.format(description=description or f"Sweep `{name}`.")}
        self._write(self._parent_id, params={k: v for k, v in texts.items() if k not in logged},
                    tags={**note, **(tags or {}), **changed})
        self._client.update_run(self._parent_id, status="RUNNING")

    @_reports_errors
    def sweeps(self) -> list[str]:
        """Names of all sweeps in the store, the oldest first."""
        return [e.name for e in sorted(self._client.search_experiments(), key=lambda e: e.creation_time)
                if self.find(e.name)]

    @_reports_errors
    def planned(self) -> int | None:
        """Trials of the open sweep when it was last run."""
        data = self._client.get_run(self._parent()).data if self._parent_id else None
        text = data and data.tags.get("latest.trials", data.params.get("trials"))
        return int(text) if text else None

    @_reports_errors
    def find(self, name: str) -> bool:
        """Open the sweep `name` to read it, if there is one; nothing is created and no status changes."""
        self._experiment_id = self._find_experiment(name)
        parent = self._find_parent() if self._experiment_id else None
        self._parent_id = parent.info.run_id if parent else None
        return parent is not None

    def attach(self, name: str) -> None:
        """As `find`.

        Raises:
            TrackingError: if there is no such sweep in the store.
        """
        if not self.find(name):
            raise TrackingError(f"tracking store {self.uri}: no sweep named '{name}' (run the sweep first)")

    def done(self) -> dict[str, str]:
        """trial_key -> status of the trials that need no more training (finished or diverged)."""
        return {run.trial_key: run.status for run in self.runs() if run.status in DONE}

    @_reports_errors
    def start(self, config: TrialConfig, tags: Mapping[str, str] | None = None, name: str | None = None) -> str:
        """Start a trial, or take up its unfinished run, and return the MLflow run id.

        Args:
            name: of the run; `run_name(config)` by default.

        Raises:
            TrackingError: if the trial has a finished run already, or several.
        """
        key = config.trial_key
        with self._lock:
            found = list(self._search(f"tags.trial_key = '{key}'"))
            if len(found) > 1:
                raise TrackingError(f"trial {key} has {len(found)} runs: {', '.join(r.info.run_id for r in found)}; "
                                    "delete all but one")
            if found and found[0].data.tags.get("status") in DONE:
                raise TrackingError(f"trial {key} is {found[0].data.tags['status']} already, "
                                    f"run {found[0].info.run_id}")
            if found:
                run = found[0]
                if "failure" in run.data.tags:
                    self._client.delete_tag(run.info.run_id, "failure")
                self._client.update_run(run.info.run_id, status="RUNNING")
            else:
                identity = {"trial_key": key, "status": "running", "mlflow.parentRunId": self._parent()}
                run = self._client.create_run(self._experiment(), run_name=name or run_name(config), tags=identity)
        run_id = run.info.run_id
        self._logged[key] = {(name, epoch): value for name in run.data.metrics
                             for epoch, value in self.history(run_id, name)}
        # Params again for a run taken up: its process may have ended between creating it and this line.
        self._write(run_id, params={k: param_text(v) for k, v in config.canonical().items()},
                    tags={**(tags or {}), "status": "running"})
        self._trials[key] = (run_id, config)
        return run_id

    @_reports_errors
    def log(self, records: Iterable[EpochRecord]) -> None:
        """Write records of started trials, and close those that have an outcome. May be repeated after an error.

        A value that the trial's run has already is not written again, so that an epoch which is handed in twice, or
        trained twice, stands there once. Another value is written; of two, `history` takes the later. Times (`time/`)
        are never the same, and the first one stays.

        Raises:
            ValueError: for a metric that is not finite; then nothing at all is written.
            TrackingError: also for a trial that this store has not started.
        """
        groups: dict[str, list[EpochRecord]] = {}
        for record in records:
            if record.trial_key not in self._trials:
                raise TrackingError(f"trial {record.trial_key} was not started, got its epoch {record.epoch}")
            for name, value in record.metrics.items():
                _require_finite(name, value, f"trial {record.trial_key}, epoch {record.epoch}")
            if record.outcome and record.outcome.status not in DONE:
                raise ValueError(f"status: must be one of {', '.join(DONE)}, got '{record.outcome.status}' "
                                 f"(trial {record.trial_key})")
            groups.setdefault(record.trial_key, []).append(record)
        for key, group in groups.items():
            run_id = self._trials[key][0]
            logged = self._logged[key]
            points = [(name, float(value), r.epoch) for r in group for name, value in r.metrics.items()
                      if logged.get((name, r.epoch)) != float(value)
                      and not (name.startswith("time/") and (name, r.epoch) in logged)]
            self._write(run_id, points, tags={name: text for r in group for name, text in r.tags.items()})
            logged.update(((name, epoch), value) for name, value, epoch in points)
            for outcome in (r.outcome for r in group if r.outcome):
                self._finish(key, outcome)

    def _finish(self, key: str, outcome: Outcome) -> None:
        run_id, config = self._trials[key]
        with tempfile.TemporaryDirectory() as folder:
            write_artifacts(Path(folder), config, outcome)
            self._client.log_artifacts(run_id, folder)
        self._client.set_terminated(run_id, "FINISHED")
        # The tag comes last: a trial counts as done only when all of it is stored.
        self._client.set_tag(run_id, "status", outcome.status)
        self._logged[key] = {}  # a trial that is done is not written again

    @_reports_errors
    def fail(self, trial_key: str, reason: str) -> None:
        """Mark a started trial as failed; the next sweep takes its run up again. A long reason keeps its end."""
        if trial_key not in self._trials:
            raise TrackingError(f"trial {trial_key} was not started, and cannot fail")
        run_id = self._trials[trial_key][0]
        self._write(run_id, tags={"status": "failed", "failure": reason[-MAX_TAG_LENGTH:]})
        self._client.set_terminated(run_id, "FAILED")

    @_reports_errors
    def close_sweep(self, status: str) -> None:
        """Close the parent run with an MLflow status (FINISHED, FAILED, KILLED) and tags `trials.<status>`."""
        if status not in ("FINISHED", "FAILED", "KILLED"):
            raise ValueError(f"status: must be one of FINISHED, FAILED, KILLED, got '{status}'")
        runs = self.runs()
        for run in runs:
            if run.status == "running" and run.trial_key in self._trials:  # or it would look alive for ever
                self._write(run.run_id, tags={"status": "interrupted"})
                self._client.set_terminated(run.run_id, "KILLED")
                run.status = "interrupted"
        statuses = [run.status for run in runs]
        self._write(self._parent(), tags={f"trials.{s}": str(statuses.count(s)) for s in STATUSES})
        self._client.set_terminated(self._parent(), status)

    @_reports_errors
    def runs(self) -> list[TrackedRun]:
        """All trials of this sweep, oldest first."""
        return [_tracked(run) for run in self._search() if "trial_key" in run.data.tags]

    @_reports_errors
    def trial(self, name: str) -> TrackedRun:
        """The trial of an MLflow run id or a trial_key, in whichever sweep.

        Raises:
            TrackingError: if there is none, or several of one trial_key.
        """
        key = {16: "tags.trial_key", 32: "attributes.run_id"}.get(len(name)) if name.isalnum() else None
        if key is None:
            raise TrackingError(f"'{name}': must be a trial_key or a run id, 16 or 32 hexadecimal digits")
        everywhere = [experiment.experiment_id for experiment in self._client.search_experiments()]
        found = [run for run in self._search(f"{key} = '{name}'", everywhere) if "trial_key" in run.data.tags]
        if not found:
            raise TrackingError(f"tracking store {self.uri}: no trial has the trial_key or run id '{name}'")
        if len(found) > 1:
            raise TrackingError(f"trial {name} has {len(found)} runs: {', '.join(r.info.run_id for r in found)}; name "
                                "one of them")
        return _tracked(found[0])

    @_reports_errors
    def log_audit(self, run_id: str, metrics: Mapping[str, float], tags: Mapping[str, str], file: Path) -> None:
        """What attacks found of a trial before its first epoch was over: metrics at step 0, tags, artifact `audit/`."""
        self._write(run_id, [(name, value, 0) for name, value in metrics.items()], tags=tags)
        self._client.log_artifact(run_id, str(file), artifact_path="audit")

    @_reports_errors
    def history(self, run_id: str, key: str) -> list[tuple[int, float]]:
        """(epoch, value) of one metric by epoch; of an epoch trained twice, after a restart, the later value."""
        points = sorted(self._client.get_metric_history(run_id, key), key=lambda p: (p.step, p.timestamp))
        return list({point.step: point.value for point in points}.items())

    @_reports_errors
    def log_report(self, files: Iterable[Path]) -> None:
        """Files as artifacts `report/` of the parent run."""
        for path in files:
            self._client.log_artifact(self._parent(), str(path), artifact_path="report")

    @_reports_errors
    def log_experiment(self, text: str) -> None:
        """The text of the experiment file, to the parent run."""
        self._client.log_text(self._parent(), text, EXPERIMENT)

    @_reports_errors
    def experiment(self) -> str:
        """The text of the experiment file of the open sweep, as it was swept last.

        Raises:
            TrackingError: if the sweep was tracked without it.
        """
        if EXPERIMENT not in {file.path for file in self._client.list_artifacts(self._parent())}:
            raise TrackingError(f"tracking store {self.uri}: the sweep has no experiment file (an older version of "
                                "this software tracked it); name the file itself")
        with tempfile.TemporaryDirectory() as folder:
            path = self._client.download_artifacts(self._parent(), EXPERIMENT, folder)
            return Path(path).read_text(encoding="utf-8")

    @_reports_errors
    def log_sweep(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Numbers and tags of the sweep as a whole, to the parent run.

        Raises:
            ValueError: for a metric that is not finite; then nothing at all is written.
        """
        for name, value in metrics.items():
            _require_finite(name, value, "the sweep")
        self._write(self._parent(), [(name, float(value), 0) for name, value in metrics.items()], tags=tags)

    def _search(self, condition: str = "", experiments: Sequence[str] = ()) -> Iterator[Any]:
        """All matching runs of the sweep's or the given experiments, page by page, in an order to which new runs only
        append."""
        token = None
        while True:
            page = self._client.search_runs(list(experiments) or [self._experiment()], condition, max_results=PAGE_SIZE,
                                            order_by=["attributes.start_time ASC"], page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _find_experiment(self, name: str) -> str | None:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage != "active":
            raise TrackingError(f"experiment '{name}' was deleted and lies in MLflow's trash; restore it (`mlflow "
                                f"experiments restore -x {experiment.experiment_id}`) or rename the sweep")
        return experiment.experiment_id if experiment else None

    def _find_parent(self) -> Any | None:
        return next((run for run in self._search() if "sweep" in run.data.tags), None)

    def _experiment(self) -> str:
        if self._experiment_id is None:
            raise TrackingError("no sweep is open: call open_sweep or attach first")
        return self._experiment_id

    def _parent(self) -> str:
        self._experiment()
        return self._parent_id

    def _write(self, run_id: str, points: Sequence[tuple[str, float, int]] = (),
               params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> None:
        """Metrics (name, value, step), params and tags in as few calls as MLflow's limits allow."""
        from mlflow.entities import Metric, Param, RunTag

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value, step in points]
        entries = [Param(k, v) for k, v in (params or {}).items()]
        labels = [RunTag(k, v) for k, v in (tags or {}).items()]
        while metrics or entries or labels:
            self._client.log_batch(run_id, metrics[:MAX_METRICS], entries[:MAX_PARAMS], labels[:MAX_TAGS])
            metrics, entries, labels = metrics[MAX_METRICS:], entries[MAX_PARAMS:], labels[MAX_TAGS:]


def _require_finite(name: str, value: float, place: str) -> None:
    if not math.isfinite(value):  # MLflow would store infinity as 1.8e308
        raise ValueError(f"{name}: must be finite, got {value} ({place}); log nothing and set a tag")


def _tracked(run: Any) -> TrackedRun:
    tags = dict(run.data.tags)
    return TrackedRun(run.info.run_id, tags["trial_key"], dict(run.data.params), dict(run.data.metrics), tags,
                      tags.get("status", "running"), run.info.start_time, run.info.end_time)


def _backend_errors() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    # OSError: a folder that cannot be written; ImportError: a database whose driver is not installed.
    return MlflowException, RequestException, SQLAlchemyError, OSError, ImportError
