"""What a writing store knows of the runs of its trials, so that it searches and writes nothing twice."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.tracking.artifacts import TrackedRun
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import EpochRecord


@dataclass
class Started:
    """A trial that a store has started, and what its run has by now."""

    config: TrialConfig
    run: Any  # MLflow's, as it was when the trial started
    logged: dict[tuple[str, int], float]  # (metric, epoch) -> value
    params: set[str]  # names
    kept: bool = False  # whether the run has the trial's files already

    def new_points(self, records: Iterable[EpochRecord]) -> dict[tuple[str, int], float]:
        """Return the metrics of records that the run lacks or has with another value: (name, epoch) -> value.

        The time of an epoch differs at every repetition, so its first value stays.
        """
        new: dict[tuple[str, int], float] = {}
        for record in records:
            for name, value in record.metrics.items():
                point = name, record.epoch
                known = new.get(point, self.logged.get(point))
                has_changed = known != float(value) and not name.startswith("time/")
                if known is None or has_changed:
                    new[point] = float(value)
        return new

    def new_params(self, params: Mapping[str, str]) -> dict[str, str]:
        """Return the params that the run does not have yet, and note that it has them."""
        new = {name: text for name, text in params.items() if name not in self.params}
        self.params |= new.keys()
        return new


class Listing:
    """The runs of a sweep's trials, without a search for each trial.

    The sweep is listed once, and again if another process of this host has listed it meanwhile: that process may have
    created runs. A process that lists the runs writes a random mark to a file in `folder`, so another mark there means
    another process. A caller holds a lock until it has created its run. Processes of other hosts create none: a lease
    keeps them out of the sweep (`pipeline.sweep.lock`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._mark = folder, ""
        self._runs: dict[str, list[str]] = {}  # trial_key -> run ids

    def runs_of(self, key: str, experiment: str, list_all: Callable[[], list[TrackedRun]]) -> list[str]:
        """Return the run ids of a trial; the caller adds a run that it creates. `list_all` as in `read`."""
        mark = self._mark_file(experiment)
        if not mark.exists() or mark.read_text() != self._mark:
            self.read(experiment, list_all)
        return self._runs.setdefault(key, [])

    def read(self, experiment: str, list_all: Callable[[], list[TrackedRun]]) -> list[TrackedRun]:
        """List all runs of the sweep now, by `list_all`, and return them."""
        runs, self._runs = list_all(), {}
        for run in runs:
            self._runs.setdefault(run.trial_key, []).append(run.run_id)
        self._mark = secrets.token_hex()
        self._mark_file(experiment).write_text(self._mark)
        return runs

    def _mark_file(self, experiment: str) -> Path:
        return self._folder / f".runs-{experiment}.mark"
