"""Reading the tracking store: sweeps, their trials and what was logged of them.

What status, reports and notebooks ask for. Nothing is created and nothing is changed, so any number of readers may
look at a store while a sweep writes to it. What is written is in `pipeline.tracking.store`, and how MLflow is spoken to
in `pipeline.tracking.backend`.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from safetensors.numpy import load

from pipeline.experiment.experiment import Experiment, asked_for
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
    added_up,
    config_of,
    decisions_of,
    started,
    suggestions_of,
)
from pipeline.tracking.backend import (
    NoStore,
    TrackingError,
    connect,
    database,
    find_experiment,
    find_trial,
    is_set_up,
    reports_errors,
    search,
    shown,
    tracked,
)
from pipeline.tracking.imports import Result, stored
from pipeline.trials.records import Release


class Reader:
    """A tracking store that is there, and is only read: no method writes to it.

    One sweep at a time is open, from `find` or `attach` on:

        reader = Reader(root=Path("mlruns"))
        reader.attach("quickstart")
        accuracy = {run.trial_key: reader.history(run.run_id, "validation/accuracy") for run in reader.runs()}

    Args:
        uri: where it was tracked; by default MLFLOW_TRACKING_URI, else the SQLite database `<root>/mlflow.db`.
        root: local folder of the database.

    Attributes:
        place: `<host>:<root>`, this host and folder.

    Raises:
        TrackingError: for a store that cannot be opened or reached, and a database that is not there or is empty.
    """

    def __init__(self, uri: str | None = None, root: Path = Path("mlruns")) -> None:
        self.root = Path(root).absolute()
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root / 'mlflow.db'}"
        self.place = f"{socket.gethostname()}:{self.root}"
        self._database = database(self.uri)
        self._experiment_id: str | None = None
        self._parent_id: str | None = None
        self._client = self._open()

    @classmethod
    def of(cls, store: Reader | str | os.PathLike[str]) -> Reader:
        """Of a store by its URI, or by the folder of a database; a reader as it is."""
        if isinstance(store, Reader):
            return store
        return cls(store) if isinstance(store, str) and "://" in store else cls(root=Path(store))

    @reports_errors
    def _open(self) -> Any:
        """MLflow's client of a store that is there; MLflow would set up a database that is not."""
        if self._database is not None and not is_set_up(self._database):
            state = "is empty" if self._database.exists() else "does not exist"
            raise NoStore(f"tracking store {shown(self.uri)}: {state} (run the sweep first)")
        return connect(self.uri, None)

    @reports_errors
    def artifact_folders(self) -> list[Path]:
        """Folders of this host where the store's artifacts lie, and are shown to whoever sees its runs."""
        locations = (urlsplit(experiment.artifact_location) for experiment in self._client.search_experiments())
        return [Path(url2pathname(uri.path)) for uri in locations if uri.scheme in ("file", "")]

    @property
    def shared(self) -> bool:
        """Whether other folders and hosts may use the store, too."""
        return self._database != self.root / "mlflow.db"

    @reports_errors
    def sweeps(self) -> list[str]:
        """Names of all sweeps in the store, the oldest first."""
        return [e.name for e in sorted(self._client.search_experiments(), key=lambda e: e.creation_time)
                if IMPORTED not in e.tags and self.find(e.name)]

    @reports_errors
    def find(self, name: str) -> bool:
        """Open the sweep `name` to read it, if there is one; nothing is created and no status changes.

        Raises:
            TrackingError: for a name of imported results.
        """
        self._experiment_id = find_experiment(self._client, name)
        parent = self._find_parent() if self._experiment_id else None
        self._parent_id = parent.info.run_id if parent else None
        return parent is not None

    def attach(self, name: str) -> None:
        """As `find`.

        Raises:
            TrackingError: if there is no such sweep in the store.
        """
        if not self.find(name):
            raise TrackingError(f"tracking store {shown(self.uri)}: no sweep named '{name}' (run the sweep first)")

    @reports_errors
    def planned(self) -> int | None:
        """Trials of the open sweep when it was last run."""
        data = self._client.get_run(self._parent()).data if self._parent_id else None
        text = data and data.tags.get("latest.trials", data.params.get("trials"))
        return int(text) if text else None

    @reports_errors
    def holder(self) -> tuple[str, str] | None:
        """(driver, its last beat) of the open sweep, while it runs or if it was not closed."""
        run = self._client.get_run(self._parent())
        running = run.info.status == "RUNNING" and "driver" in run.data.tags
        return (run.data.tags["driver"], run.data.tags.get("driver.beat", "")) if running else None

    @reports_errors
    def nodes(self, driver: str) -> list[dict[str, Any]] | None:
        """What this driver of the open sweep has last seen of the nodes; None if it has noted nothing."""
        noted = json.loads(self._client.get_run(self._parent()).data.tags.get("driver.nodes", "{}"))
        return noted["nodes"] if noted.get("driver") == driver else None

    @reports_errors
    def experiment(self) -> str:
        """The text of the experiment file of the open sweep, as it was swept last.

        Raises:
            TrackingError: if the sweep was tracked without it.
        """
        if (text := self._text(EXPERIMENT)) is None:
            raise TrackingError(f"tracking store {shown(self.uri)}: the sweep has no experiment file (random stopping "
                                "keeps its seed secret, and older versions kept none); name the file itself")
        return text

    @reports_errors
    def suggestions(self) -> list[Suggestion]:
        """What the search of the open sweep has asked for so far, in its order."""
        return suggestions_of(self._text(SUGGESTIONS) or "[]")

    @reports_errors
    def decisions(self) -> list[tuple[str, bool]]:
        """(trial_key, whether it was let start) of what the search of the open sweep has asked for, in its order."""
        return decisions_of(self._text(SUGGESTIONS) or "[]")

    @property
    def is_open(self) -> bool:
        """Whether a sweep is open, and was found."""
        return self._parent_id is not None

    @property
    def began(self) -> bool:
        """Whether the sweep that was looked for ever began; its parent run may have been deleted since."""
        return self._experiment_id is not None

    def as_swept(self, experiment: Experiment) -> Experiment:
        """The experiment of the open sweep; a search with the trials that it has asked for so far."""
        return asked_for(experiment, started(self.suggestions())) if experiment.search else experiment

    @reports_errors
    def tags(self) -> dict[str, str]:
        """Of MLflow's experiment of the open sweep."""
        return dict(self._client.get_experiment(self._experiment()).tags)

    @reports_errors
    def budget(self) -> list[float] | None:
        """What the budget of the open sweep began with (`accounting.budget.Filter.kept`); None of one without."""
        text = self.tags().get(BUDGET)
        if text is None and self.is_open:  # where it was once
            text = self._client.get_run(self._parent()).data.tags.get(BUDGET)
        return json.loads(text) if text else None

    @reports_errors
    def released(self, trial_key: str = "", but: Collection[str] = ()) -> list[Release]:
        """What every run of the open sweep has released, the oldest first, those in MLflow's trash included, and those
        whose draw has released nothing yet.

        Args:
            trial_key: of one trial; by default all of them.
            but: trial_keys of those that are left out.

        Raises:
            ConfigError: as `config_of`.
        """
        found, condition = [], f"tags.trial_key = '{trial_key}'" if trial_key else ""
        for info in search(self._client, [self._experiment()], condition, deleted=True):
            if "trial_key" in info.data.tags and info.data.tags["trial_key"] not in but:
                run = tracked(info)
                published = run.epoch
                draw, lost, earlier = run.tags.get(DRAW, ""), *(int(run.tags.get(name, 0)) for name in (LOST, EARLIER))
                if published or draw:
                    deleted = info.info.lifecycle_stage == "deleted"
                    found.append(Release(config_of(run), published + lost, deleted, draw, lost, earlier))
        return found

    @reports_errors
    def certified(self, dataset: str, relation: str) -> dict[str, tuple[float, float]]:
        """(epsilon, delta) of every sweep of the whole store that has certified trials on a data set under a relation:
        of its budget, if it has one, else of all of these trials, runs in MLflow's trash included."""
        experiments = {found.experiment_id: found for found in self._client.search_experiments()}
        runs: dict[str, list[TrackedRun]] = {}
        for run in search(self._client, list(experiments), f"params.dataset = '{dataset}'", deleted=True):
            if run.data.tags.get("privacy.certified", "false") != "false" and (
                    run.data.tags.get("privacy.relation") == relation):
                runs.setdefault(run.info.experiment_id, []).append(tracked(run))
        costs = {}
        for number, own in runs.items():
            kept = experiments[number].tags.get(BUDGET)
            costs[experiments[number].name] = tuple(json.loads(kept)[:2]) if kept else added_up(own)
        return costs

    @reports_errors
    def imported(self, name: str) -> list[Result]:
        """Results that others trained, imported under a name; errors as `imports.stored`. No sweep need be open."""
        return stored(self._client, self.uri, name)

    def _text(self, name: str) -> str | None:
        """An artifact of the parent run."""
        if name not in {file.path for file in self._client.list_artifacts(self._parent())}:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = self._client.download_artifacts(self._parent(), name, folder)
            return Path(path).read_text(encoding="utf-8")

    @reports_errors
    def runs(self) -> list[TrackedRun]:
        """All trials of this sweep, oldest first."""
        return [tracked(run) for run in self._search() if "trial_key" in run.data.tags]

    @reports_errors
    def trial(self, name: str) -> TrackedRun:
        """The trial of an MLflow run id or a trial_key, in whichever sweep.

        Raises:
            TrackingError: if there is none, or several of one trial_key.
        """
        return tracked(find_trial(self._client, self.uri, name))

    def weights(self, run: TrackedRun) -> dict[str, np.ndarray]:
        """The final weights of a trial, by name; errors as `artifact`."""
        return load(self.artifact(run, WEIGHTS))

    @reports_errors
    def artifact(self, run: TrackedRun, name: str) -> bytes:
        """A file that a trial left.

        Raises:
            TrackingError: for a trial that has not ended, and a file that is not there.
        """
        if run.status not in DONE:
            raise TrackingError(f"trial {run.trial_key}: must have ended to have weights, is {run.status}")
        with tempfile.TemporaryDirectory() as folder:
            return Path(self._client.download_artifacts(run.run_id, name, folder)).read_bytes()

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment of the open sweep."""
        return self._experiment()

    def done(self) -> dict[str, str]:
        """trial_key -> status of the trials that need no more training (finished, diverged or stopped)."""
        return {run.trial_key: run.status for run in self.runs() if run.status in DONE}

    @reports_errors
    def history(self, run_id: str, key: str) -> list[tuple[int, float]]:
        """(epoch, value) of one metric by epoch; of an epoch trained twice, after a restart, the later value."""
        points = sorted(self._client.get_metric_history(run_id, key), key=lambda p: (p.step, p.timestamp))
        return list({point.step: point.value for point in points}.items())

    def _search(self, condition: str = "") -> Iterator[Any]:
        """All matching runs of the sweep, the oldest first."""
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
            raise TrackingError(f"tracking store {shown(self.uri)}: the open sweep has no parent run any more")
        return self._parent_id
