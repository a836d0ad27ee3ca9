"""Write the tracking store: one MLflow experiment and parent run per sweep, one nested run per trial.

The driver of the sweep is the only writer; trials send it `EpochRecord`s and never write. A trial's run is found by its
`trial_key`: a sweep that runs again continues its runs and creates none twice. `pipeline.tracking.reader` has the
reading part, and `pipeline.tracking.backend` the calls of MLflow.

The default store is an SQLite database; its write-ahead log needs a local disk. Several hosts share a store through an
MLflow server (MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.package import JOB
from pipeline.tracking import artifacts, backend
from pipeline.tracking.artifacts import DONE, NAMED, RELEASED, REUSED, STATUSES, TrackedRun, tracked, write_artifacts
from pipeline.tracking.backend import Client, TrackingError, connect, ignoring_error, origin, reporting_errors
from pipeline.tracking.database import is_set_up
from pipeline.tracking.files import OwnFiles
from pipeline.tracking.memory import Listing, Started
from pipeline.tracking.patience import Patience
from pipeline.tracking.reader import Reader
from pipeline.tracking.ui import SETTING, runs_address
from pipeline.trials.config import TrialConfig
from pipeline.trials.disclosure import check_metrics
from pipeline.trials.naming import short_name, to_ascii
from pipeline.trials.records import CLOCK, DESCRIPTION, EpochRecord, Outcome, Sealed

_NOTE = "mlflow.note.content"  # the tag that MLflow's page shows as the description of a run or an experiment
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # some versions of MLflow's page use it; 3.17 does not
_PARENT_NOTE = """{description}

Each nested run is one trial, named by its algorithm, noise and seed and identified by the tag `trial_key`; a step
is an epoch. Accuracies are fractions. A metric `epsilon/<kind>/...` is only as good as its kind: `claimed` is the
formula as printed in the paper and **no guarantee**; the tags `privacy.*` say what, if anything, is guaranteed:
`privacy.certified` is `true`, `up to rounding` (last bits of contributions are not covered), `simulated` (the noise
comes from a recorded seed) or `false`."""


class Store(Reader):
    """The tracking store of one sweep, for reading and writing.

        store = Store(root=Path("mlruns"))
        store.open_sweep("quickstart")
        store.start(config)
        store.log([EpochRecord(config.trial_key, 1, {"validation/accuracy": 0.9})])
        store.close_sweep("FINISHED")

    Args:
        uri: address of the store; by default MLFLOW_TRACKING_URI, else the SQLite database `<root>/mlflow.db`.
        root: local folder for the database, its artifacts (`<root>/artifacts`) and a lock. The lock keeps two processes
            of one host from creating the same database, experiment or run at once.
        create: whether to create a missing database.

    Raises:
        TrackingError: if the store cannot be opened or reached.
    """

    def __init__(self, uri: str | None = None, root: Path = Path("mlruns"), *, create: bool = True) -> None:
        self._create, self._is_new, self._lock = create, False, FileLock(Path(root).absolute() / ".tracking.lock")
        super().__init__(uri, root)
        self._files: OwnFiles = OwnFiles(self._client, self.shared)
        # This writer's name: a tag of runs that it starts or resumes.
        job = f"{artifacts.AS_JOB}{os.environ[JOB]}" if JOB in os.environ else ""
        self.driver = f"{uuid.uuid4().hex}{job}@{self.place}"
        self._started: dict[str, Started] = {}  # by trial_key
        self._listing = Listing(self.root)

    def _open(self) -> Client:
        if not self._create:
            return super()._open()
        with reporting_errors(self.uri):
            self.root.mkdir(parents=True, exist_ok=True)
            self._is_new = self._database is not None and not is_set_up(self._database)
        return connect(self.uri, self._lock)

    def new_lines(self) -> list[str]:
        """Return a line for people if this opening made the database: nothing that was trained elsewhere is in it."""
        return [f"new tracking store: {self._database}; what was trained under this name in another store is neither "
                "taken over nor counted"] if self._is_new else []

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the store's lock; errors of its file, and of all in the block, name the store."""
        with reporting_errors(self.uri), self._lock:
            yield

    def be_patient(self, seconds: float, say: Callable[[str], None]) -> None:
        """Wait, from now on, up to `seconds` for an unreachable store; `say` receives messages about it."""
        self._client.patience = Patience(seconds, say)

    def open_sweep(self, name: str, description: str = "", params: Mapping[str, Any] | None = None,
                   tags: Mapping[str, str] | None = None, contents: Mapping[str, str] | None = None) -> None:
        """Open, or reopen, the sweep `name`: one MLflow experiment, with tags `contents`, and one parent run.

        MLflow never changes a logged param. If a later sweep has another value, the param keeps the first value and the
        tag `latest.<param>` has the new one. `contents` are tags of the experiment. An experiment of that name in
        MLflow's trash is refused (`TrackingError`), and so is a sweep of another format (`OtherFormat`).
        """
        with self._locked():
            self._experiment_id = self._find_experiment(name) or self._create_experiment(name)
            backend.check_artifacts(self.uri, self._client.get_experiment(self._experiment_id).artifact_location)
            parent = next(self._parents(), None) or self._create_parent(name)
            self._parent_id = parent.info.run_id
        known = parent.data.params
        texts = {param: artifacts.param_text(value) for param, value in (params or {}).items()}
        latest = {f"latest.{param}": text for param, text in texts.items()  # whose value has ever changed
                  if known.get(param, text) != text or f"latest.{param}" in parent.data.tags}
        new = {param: text for param, text in texts.items() if param not in known}
        self._client.write(self._parent_id, params=new, tags={**(tags or {}), **latest, "driver": self.driver})
        if not known:
            for dataset in filter(None, (contents or {}).get("datasets", "").split(", ")):
                self._client.log_dataset(self._parent_id, dataset)
        for key, text in {**_KIND, **(contents or {})}.items():
            self._client.set_experiment_tag(self._experiment_id, key, text)
        self.describe(description or f"Sweep `{name}`.")
        self._client.update_run(self._parent_id, status="RUNNING")

    def _create_experiment(self, name: str) -> str:
        folder = self.root / "artifacts" / re.sub(r"[^\w.-]", "_", name)
        location = folder.as_uri() if self._database else None  # a server chooses its own
        with ignoring_error("RESOURCE_ALREADY_EXISTS"):  # created by another host, or by a call with a lost answer
            self._client.create_experiment(name, artifact_location=location)
        created = self._client.find_experiment(name)
        if created is None:
            raise self._client.refusal(f"experiment '{name}' was created and is not there")
        return created

    def _create_parent(self, name: str) -> Any:
        self._client.set_experiment_tag(self.experiment_id, artifacts.FORMAT, artifacts.PRESENT_FORMAT)
        self._client.create_run(self.experiment_id, run_name=name, tags={"sweep": name, **origin()})
        parent, *others = self._parents()  # several processes may create one at once; all keep the first
        for run in others:
            self._client.delete_run(run.info.run_id)
        return parent

    def relocate(self) -> list[str]:
        """Record where a moved store's artifacts lie now, for MLflow's page; return a line if it was moved or copied.

        If the recorded folder still exists, it stays recorded: this store may be a copy of it, or the same folder as
        other hosts see it.
        """
        with self._locked():
            return self._files.relocate()

    def describe(self, description: str, headline: str = "") -> None:
        """Set the sweep's description on MLflow's page, for parent run and experiment: Markdown, the headline first."""

        # MLflow's own table has the parent alone, as a collapsed row, and of a long description its first line: the way
        # to all trials comes first. The address is relative, so that it holds on every host.
        link = f"[All trials, the best first]({runs_address(self, page='.')})."

        def note(text: str) -> str:
            whole = "\n\n".join([f"{link} {to_ascii(headline)}".strip(), to_ascii(text)])
            return whole.strip()[:backend.MAX_TAG_LENGTH]

        self._client.set_tag(self._parent(), _NOTE, note(_PARENT_NOTE.format(description=description)))
        self._client.set_experiment_tag(self.experiment_id, _NOTE, note(description))

    def beat(self, count: int) -> None:
        self._client.set_tag(self._parent(), "driver.beat", str(count))

    def note_nodes(self, nodes: Mapping[str, Any]) -> None:
        """Write the driver's view of the nodes, for `Reader.nodes`."""
        self._client.set_tag(self._parent(), "driver.nodes", json.dumps({**nodes, "driver": self.driver}))

    def runs(self) -> list[TrackedRun]:
        """Return all trials of the open sweep, oldest first; those that start then need no search."""
        with self._locked():
            return self._listing.read(self.experiment_id, super().runs)

    def start(self, config: TrialConfig, tags: Mapping[str, str] | None = None, also: Sequence[str] = ()) -> str:
        """Start a trial, or resume its unfinished run, and return the MLflow run id.

        The run is named by `short_name`, with the fields in `also`. A trial with a finished run, or with several, is
        refused (`TrackingError`). A run that points to another sweep's goes to MLflow's trash, where it still counts.
        """
        name = short_name(config, also)
        setting = name.rpartition(" ")[0]  # the last word is the seed
        tags = {**(tags or {}), SETTING: setting, "driver": self.driver, "status": "running"}
        repeated = self._client.patience.repeated
        run = self._run_to_write(config.trial_key, name, tags)
        run_id = run.info.run_id
        logged = {(metric, epoch): value for metric in run.data.metrics
                  for epoch, value in self.history(run_id, metric)}
        started = Started(config, run, logged, set(run.data.params))
        # A resumed run may lack params: its process may have ended between creating the run and this line.
        settings = {field: artifacts.param_text(value) for field, value in config.canonical().items()}
        params = started.new_params(settings)
        changed_tags = {tag: text for tag, text in tags.items() if run.data.tags.get(tag) != text}
        self._client.write(run_id, params=params, tags=changed_tags)
        if not run.data.params:  # a new run
            self._client.log_dataset(run_id, config.dataset)
        if self._client.patience.repeated > repeated:  # perhaps the call that created the run
            self._without_empty(config.trial_key)
        self._started[config.trial_key] = started
        return run_id

    def _run_to_write(self, key: str, name: str, tags: Mapping[str, str]) -> Any:
        """Return MLflow's run of a trial that starts: its unfinished one, as it was before, or a new one."""
        with self._locked():
            run_ids = self._listing.runs_of(key, self.experiment_id, super().runs)
            if len(run_ids) > 1:
                run_ids[:] = [run.run_id for run in self._without_empty(key)]
            if len(run_ids) > 1:
                raise TrackingError(f"trial {key} has {len(run_ids)} runs: {', '.join(run_ids)}; delete all but one, "
                                    f"and keep one with a tag {NAMED}NAME")
            run = self._resume(key, run_ids[0]) if run_ids else None
            if run is None:  # no run yet, or one that `_resume` has deleted
                identity = {"trial_key": key, "mlflow.parentRunId": self._parent(), **origin(), **tags}
                run = self._client.create_run(self.experiment_id, run_name=name, tags=identity)
                run_ids[:] = [run.info.run_id]  # also in the listing, whose list this is
            return run

    def log(self, records: Iterable[EpochRecord]) -> None:
        """Write records of started trials, and close trials with an outcome. May be repeated after an error.

        A value that the run already has is not written again, so an epoch that is sent or trained twice is stored once.
        A different value is written too; `history` returns the later one. Times (`time/`) always differ, and keep their
        first value. A metric that is not finite is refused before anything is written (`ValueError`), and so is a trial
        that this store has not started (`TrackingError`).
        """
        groups: dict[str, list[EpochRecord]] = {}
        for record in records:
            self.check(record)
            groups.setdefault(record.trial_key, []).append(record)
        for key, group in groups.items():
            self._log_trial(key, group)

    def _log_trial(self, key: str, records: Sequence[EpochRecord]) -> None:
        started = self._started[key]
        new = started.new_points(records)
        # The clock is written first: if the call then fails, the epoch still counts as released.
        points = sorted([(name, value, epoch) for (name, epoch), value in new.items()],
                        key=lambda point: point[0] != CLOCK)
        tags = {tag: text for record in records for tag, text in record.tags.items()}
        if DESCRIPTION in tags:
            tags[_NOTE] = tags.pop(DESCRIPTION)
        outcome = next((record.outcome for record in records if record.outcome), None)
        if outcome:
            tags["status"] = outcome.status
        self._client.write(self._run_id(key), points, params=started.new_params(_calibrated(tags)), tags=tags)
        started.logged.update(new)
        if outcome:
            self._finish(key, outcome)

    def take_over(self, config: TrialConfig, other: TrackedRun, also: Sequence[str] = ()) -> None:
        """Add a trial's run that points to `other`, its run in another sweep, with params and last metrics of that."""
        tags = {tag: text for tag, text in other.tags.items() if not tag.startswith("mlflow.")}  # of the run itself
        run_id = self.start(config, tags, also)
        started = self._started[config.trial_key]
        # Its epochs are written before it counts as done, so that nobody uses what a budget has not charged.
        self._client.write(run_id, [(metric, value, other.epoch) for metric, value in other.metrics.items()],
                           params=started.new_params(other.params), tags={"status": other.status})
        self._end(config.trial_key)

    def _resume(self, key: str, run_id: str) -> Any:
        """Mark a trial's unfinished run as running again, and return MLflow's run as it was before.

        A run that only points to another sweep's run has nothing to resume: it is deleted, and None is returned. Such a
        trial starts only if its pointer is incomplete, or the other run is gone.
        """
        run = self._client.get_run(run_id)
        if REUSED in run.data.tags:
            self._client.delete_run(run_id)
            return None
        status = tracked(run).status
        if status in artifacts.ENDED:
            raise TrackingError(f"trial {key} is {status} already, run {run_id}")
        if "failure" in run.data.tags:
            with ignoring_error("RESOURCE_DOES_NOT_EXIST"):  # deleted by a call with a lost answer
                self._client.delete_tag(run_id, "failure")
        self._client.update_run(run_id, status="RUNNING")
        return run

    def _run_id(self, key: str) -> str:
        return self._started[key].run.info.run_id

    def check(self, record: EpochRecord) -> None:
        """Check that `log` would accept the record.

        Errors as in `log`; also `ValueError` for a metric that no guarantee covers (`trials.disclosure`).
        """
        key = record.trial_key
        if key not in self._started:
            raise TrackingError(f"trial {key} was not started, got its epoch {record.epoch}")
        if self._started[key].config.disclosure != "plain":
            check_metrics(record.metrics)
        for name, value in record.metrics.items():
            _require_finite(name, value, f"trial {key}, epoch {record.epoch}")
        if record.outcome and record.outcome.status not in DONE:
            raise ValueError(f"status: must be one of {', '.join(DONE)}, got '{record.outcome.status}' "
                             f"(trial {record.trial_key})")

    def _finish(self, key: str, outcome: Outcome) -> None:
        """Store a trial's artifacts, unless `keep` has, and mark it as done."""
        started = self._started[key]
        if not started.kept:
            self._files.write(started.run, lambda folder: write_artifacts(folder, started.config, outcome))
        self._end(key)

    def _end(self, key: str) -> None:
        self._client.set_terminated(self._run_id(key), "FINISHED")
        started = self._started[key]
        started.logged, started.params = {}, set()  # a done trial gets no more writes

    def name(self, trial_key: str, sealed: Sealed, epsilons: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Record that a started trial releases a sealed result: its name, its `epsilons` by metric, and other tags.

        Epsilons are of all planned epochs, and are logged at the last one.
        """
        started = self._started[trial_key]
        epoch = started.config.epochs
        new = started.new_points([EpochRecord(trial_key, epoch, epsilons)])
        named = {f"{NAMED}{sealed.name}": f"{epoch} epochs, sealed on {sealed.host}"}
        self._client.write(self._run_id(trial_key), [(metric, value, epoch) for (metric, epoch), value in new.items()],
                           params=started.new_params(_calibrated(tags)), tags={**tags, **named})
        started.logged.update(new)

    def keep(self, trial_key: str, records: Sequence[EpochRecord]) -> None:
        """Write all records of a started trial with its run, in one file, before any of them is logged."""
        started = self._started[trial_key]
        (outcome,) = [record.outcome for record in records if record.outcome]
        text = json.dumps([record.as_entry() for record in records])

        def write_to(folder: Path) -> None:
            write_artifacts(folder, started.config, outcome)
            (folder / RELEASED).write_text(text, encoding="utf-8")

        self._files.write(started.run, write_to)
        started.kept = True

    def fail(self, trial_key: str, reason: str, status: str = "failed") -> None:
        """End a started trial without a result: `failed` or `interrupted`, or `lost`, which no sweep trains again.

        Only the end of a long reason is kept.
        """
        if trial_key not in self._started:
            raise TrackingError(f"trial {trial_key} was not started, and cannot fail")
        run_id = self._run_id(trial_key)
        self._client.write(run_id, tags={"status": status, "failure": reason[-backend.MAX_TAG_LENGTH:]})
        self._client.set_terminated(run_id, "FAILED")

    def close_sweep(self, status: str) -> list[TrackedRun]:
        """Close the parent run as FINISHED, FAILED or KILLED, and return the sweep's trials in their final state.

        The parent run gets tags `trials.<status>` with the number of trials in each status. Trials that this process
        has started and not ended become `interrupted`.
        """
        if status not in ("FINISHED", "FAILED", "KILLED"):
            raise ValueError(f"status: must be one of FINISHED, FAILED, KILLED, got '{status}'")
        runs = self._followed(self._without_empty())
        for run in runs:
            if run.status == "running" and run.trial_key in self._started:
                self._client.write(run.run_id, tags={"status": "interrupted"})
                self._client.set_terminated(run.run_id, "KILLED")
                run.status = "interrupted"
        statuses = [run.status for run in runs]
        self._client.write(self._parent(), tags={f"trials.{name}": str(statuses.count(name)) for name in STATUSES})
        self._client.set_terminated(self._parent(), status)
        return runs

    def log_audit(self, run_id: str, metrics: Mapping[str, float], tags: Mapping[str, str], file: Path) -> None:
        """Write the results of attacks on a trial: metrics at step 0, tags, and a file in the artifact `audit/`."""
        self._client.write(run_id, [(name, value, 0) for name, value in metrics.items()], tags=tags)
        self._files.copy(run_id, [file], "audit")

    def log_report(self, files: Iterable[Path], part: str = "") -> None:
        """Write files as artifacts `report/`, or `report/<part>/`, of the parent run."""
        self._files.copy(self._parent(), files, f"report/{part}" if part else "report")

    def log_experiment(self, text: str) -> None:
        self._files.write_text(self._parent(), artifacts.EXPERIMENT, text)

    def log_suggestions(self, suggestions: Sequence[artifacts.Suggestion]) -> None:
        self._files.write_text(self._parent(), artifacts.SUGGESTIONS, artifacts.suggestions_text(suggestions))

    def log_sweep(self, metrics: Mapping[str, float], tags: Mapping[str, str], step: int = 0) -> None:
        """Write metrics and tags of the whole sweep to the parent run.

        A metric that is not finite, or that `trials.disclosure` does not list for sweeps, is refused (`ValueError`)
        before anything is written.
        """
        check_metrics(metrics, of_sweep=True)
        for name, value in metrics.items():
            _require_finite(name, value, "the sweep")
        self._client.write(self._parent(), [(name, float(value), step) for name, value in metrics.items()], tags=tags)

    def _without_empty(self, key: str = "") -> list[TrackedRun]:
        """Delete each empty run of a trial with another run; return the others, oldest first: of one trial or all."""
        # If the answer of a call that creates a run is lost, the call is repeated, and an empty run is left.
        found = self._search(f"tags.trial_key = '{key}'" if key else "")
        runs = [tracked(run) for run in found if "trial_key" in run.data.tags]
        begun = {run.trial_key for run in runs if run.params}
        for run in runs:
            if not run.params and run.trial_key in begun:
                self._client.delete_run(run.run_id)
        return [run for run in runs if run.params or run.trial_key not in begun]


def _calibrated(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the params with calibrated noise, with six digits, from the tags that have it in full."""
    return {name: f"{float(text):.6g}" for name, text in tags.items() if not artifacts.is_setting(name)}


def _require_finite(name: str, value: float, place: str) -> None:
    """Check that a metric is finite. MLflow would store infinity as 1.8e308. `place` is what has the metric."""
    if not math.isfinite(value):
        raise ValueError(f"{name}: must be finite, got {value} ({place}); log nothing and set a tag")
