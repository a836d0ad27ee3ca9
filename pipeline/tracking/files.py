"""The files of a store's runs: in folders of this host, from which the store may have been moved, or on a server.

`Reader` reads them by `Files`, and `Store` writes them by `OwnFiles`. MLflow itself would look in the folder that it
recorded.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pipeline.tracking.backend import Client, reporting_errors
from pipeline.tracking.database import database, local_folder, replace_locations


class Files:
    """The files of a store's runs, for reading only; errors are `TrackingError`s.

    Args:
        client: of the store.
        shared: whether other folders may have the same database.
    """

    def __init__(self, client: Client, shared: bool) -> None:
        self._client, self._shared, self._database = client, shared, database(client.uri)

    def folders(self) -> list[Path]:
        recorded = [local_folder(experiment.artifact_location) for experiment in self._client.search_experiments()]
        with reporting_errors(self._client.uri):
            return [folder for place in recorded if place for folder in (self._beside(place), place) if folder]

    def read(self, run_id: str, name: str) -> bytes | None:
        run = self._client.get_run(run_id)
        with reporting_errors(self._client.uri):
            if folders := self._of(run):
                paths = [folder / name for folder in folders]
                return next((path.read_bytes() for path in paths if path.exists()), None)
            if name not in {file.path for file in self._client.list_artifacts(run_id)}:
                return None
            with tempfile.TemporaryDirectory() as scratch:
                return Path(self._client.download_artifacts(run_id, name, scratch)).read_bytes()

    def _of(self, run: Any) -> list[Path]:
        """Return this host's folders for files of MLflow's run, none if a server has them; new files go to the first.
        """
        recorded = local_folder(run.info.artifact_uri)
        if recorded is None:
            return []
        sweep, below = recorded.parents[1], recorded.parts[-2:]  # MLflow adds `<run>/artifacts`
        beside = self._beside(sweep)
        return [beside.joinpath(*below), recorded] if beside else [recorded]

    def _beside(self, recorded: Path) -> Path | None:
        """Return the folder of a sweep's files beside the database; None if they do not belong there."""
        # MLflow records `<root>/artifacts/<sweep>`. The root of a moved or copied store is not the database's folder.
        if self._database is None or recorded.parent.name != "artifacts":
            return None
        folder = self._database.absolute().parent / "artifacts" / recorded.name
        # A database that several folders share may have its files in another folder.
        return folder if not self._shared or folder.exists() else None


class OwnFiles(Files):
    """As `Files`, and writes."""

    def write(self, run: Any, write_to: Callable[[Path], object]) -> None:
        """Store the files that `write_to` writes to a folder with MLflow's run, all in one call."""
        with reporting_errors(self._client.uri):
            if folders := self._of(run):
                folders[0].mkdir(parents=True, exist_ok=True)
                write_to(folders[0])
            else:
                with tempfile.TemporaryDirectory() as scratch:
                    write_to(Path(scratch))
                    self._client.log_artifacts(run.info.run_id, scratch)

    def write_text(self, run_id: str, name: str, text: str) -> None:
        self.write(self._client.get_run(run_id), lambda folder: (folder / name).write_text(text, encoding="utf-8"))

    def copy(self, run_id: str, files: Iterable[Path], name: str) -> None:
        def copy_to(folder: Path) -> None:
            (folder / name).mkdir(parents=True, exist_ok=True)
            for file in files:
                shutil.copy(file, folder / name)

        self.write(self._client.get_run(run_id), copy_to)

    def relocate(self) -> list[str]:
        """Record the present places of all sweeps' files, as `Store.relocate`; nobody else may write meanwhile."""
        new_places, lines = {}, set()
        for experiment in self._client.search_experiments():
            recorded = local_folder(experiment.artifact_location)
            beside = self._beside(recorded) if recorded else None
            if recorded is None or beside in (None, recorded):
                continue
            old_root = recorded.parents[1]
            if not os.path.exists(old_root):  # also a folder of another user, which cannot be seen
                new_places[experiment.artifact_location] = beside.as_uri()
                lines.add(f"the store was moved from {old_root}: MLflow's page finds its artifacts here again")
            elif not old_root.samefile(beside.parents[1]):
                lines.add(f"the store is a copy of {old_root}: new artifacts are written here, and MLflow's page "
                          "shows only those of that folder, as long as it exists")
        if new_places:
            replace_locations(self._client.uri, new_places)
        return sorted(lines)
