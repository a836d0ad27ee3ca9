"""What a worker of a sweep does: train packs, epoch by epoch, from their checkpoints where there are any."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import secrets
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline.experiment.halving import Halving
from pipeline.experiment.plugins import load_plugins
from pipeline.sweep.checkpoints import Checkpoint, CheckpointError, Checkpoints
from pipeline.sweep.private import make_private
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.packs import Pack
from pipeline.trials.records import Draw, EpochRecord
from pipeline.trials.trainer import check_packages

if TYPE_CHECKING:  # workers import torch where they first train
    from pipeline.learning.data.dataset import Dataset
    from pipeline.learning.run import Run

Plugins = tuple[Sequence[str], Path]  # names of modules, and the folder where they may lie
Trainer = Callable[[Pack], Iterator[list[EpochRecord] | Draw]]


def epochs(pack: Pack, trainer: Trainer) -> Iterator[dict[str, Any]]:
    """Per epoch `{"records": one for each trial that had not ended}`; after an exception also its text. With
    `draw` it is a question, which is answered by asking for more."""
    live = {trial.trial_key for trial in pack.trials}
    try:
        # Whoever asks for more has what was yielded: after the last epoch the trainer may throw away what it kept.
        for records in trainer(pack):
            if isinstance(records, Draw):
                yield {"records": [], "draw": records}
                continue
            live -= {record.trial_key for record in records if record.outcome}
            yield {"records": records}
        if live:
            raise RuntimeError(f"training ended without an outcome of {', '.join(sorted(live))}")
    except Exception as error:
        said = public_line(error) if pack.shared.discreet else one_line(error)
        yield {"records": [], "error": said, "traceback": traceback.format_exc()}


def prepare(trials: Sequence[TrialConfig], data_folder: Path | None, checkpoints: Checkpoints,
            digests: Mapping[str, str] = MappingProxyType({})) -> None:
    """What a node must have before it trains these trials, and before several workers look for it at once.

    Args:
        digests: of files of features, by the names that stand for them.

    Raises:
        DataError: a data set that is not there and cannot be downloaded, or is another than the official one; a file of
            features that is not there, or is another than that of the trials.
        ConfigError: a trainer that needs a package which is not installed.
        OSError: checkpoints cannot be written.
    """
    from pipeline.learning.data.dataset import load
    from pipeline.learning.data.features import check_file

    for trial in {trial.trainer: trial for trial in trials}.values():
        check_packages(trial)
    for name in sorted({trial.dataset for trial in trials}):
        load(name, data_folder)
    for trial in trials:
        if trial.parts.features.of_file:
            check_file(trial, digests)
    make_private(checkpoints.folder)


def prepare_elsewhere(plugins: Plugins, trials: Sequence[TrialConfig], data_folder: Path | None,
                      checkpoints: Checkpoints, digests: Mapping[str, str]) -> None:
    """`prepare` on another node than the driver's, of which it is not known what is installed there.

    Raises:
        ImportError: a library that is not installed.
        ConfigError: also for a plugin that is not there.
    """
    import pipeline.learning.training  # noqa: F401  and with it all that training imports

    load_plugins(*plugins)  # before anything asks what a trial is
    prepare(trials, data_folder, checkpoints, digests)


def train_pack(pack: Pack, *, device: str, threads: int, data_folder: Path | None, checkpoints: Checkpoints,
               stop: Halving | None = None, digests: Mapping[str, str] = MappingProxyType({})
               ) -> Iterator[list[EpochRecord] | Draw]:
    """The default trainer: `pipeline.learning.run.train` on the pack's dataset, from and to checkpoints.

    Args:
        digests: as of `prepare`, for a node that joined after the others were prepared.

    Yields:
        The records of one epoch. Where the pack had a checkpoint, those of one epoch have the tag `checkpoint`, which
        says what became of it. Of a secure pack first of all a `Draw`: whoever asks for more has charged it.
    """
    import torch  # here and not above: the driver needs no torch

    from pipeline.learning.data.features import check_file
    from pipeline.learning.run import train

    torch.set_num_threads(threads)
    if pack.shared.feature_name:
        check_file(pack.shared, digests)
    data = _dataset(pack.shared.dataset, data_folder, device)
    rungs = stop.rungs(pack.shared.epochs) if stop and len(pack.trials) == 1 else ()  # a pack ends as a whole
    return train(pack, data, device, CheckpointKeeper(pack, device, checkpoints), rungs)


class CheckpointKeeper:
    """The `pipeline.learning.run.Keeper` of sweeps: goes on from the pack's checkpoint, and saves others.

    What was handed in before the checkpoint is handed in again, in case it was lost on its way. The records of secure
    trials are held back until a checkpoint has them, the last until one has the end: epochs that are lost cannot be
    repeated, and those that take their place carry other noise, so that handing in both would publish more than is
    accounted for. (Where no checkpoint can be written, the end is handed in without.) Before anything secret is drawn
    the driver is asked, which charges what is a second draw, or ends the pack.
    """

    def __init__(self, pack: Pack, device: str, checkpoints: Checkpoints) -> None:
        self._pack, self._device, self._checkpoints = pack, device, checkpoints
        self._history: list[EpochRecord] = []  # all records so far
        self._held: list[list[EpochRecord]] = []  # epochs that wait for a checkpoint
        self._saved_at, self._warned = time.monotonic(), False
        self._note = ""  # for the tag `checkpoint` of the next epoch
        self._draw = ""  # name of the draw of a secure pack

    def resume(self, training: Run) -> Iterator[list[EpochRecord] | Draw]:
        """Put the training where the pack's checkpoint was made; its epochs, after the question of a secure pack."""
        saved, refused = None, ""
        try:
            saved = self._checkpoints.load(self._pack, self._device)
        except CheckpointError as error:
            refused = str(error)
            self._note = f"checkpoint refused, started again: {error}"
        if self._pack.shared.redrawn:
            self._draw = saved.draw if saved else secrets.token_hex(4)
            yield Draw(self._draw, saved.values["epoch"] if saved else 0, refused)
            if refused:  # and given up by now
                self._checkpoints.remove(self._pack)
        if not saved:
            return
        training.restore(saved.arrays, saved.values)
        self._history = list(saved.records)
        *before, last = (list(epoch) for _, epoch in itertools.groupby(self._history, key=lambda record: record.epoch))
        yield from [*before, _noted(last, f"resumed from epoch {training.epoch}")]

    def keep(self, training: Run, records: list[EpochRecord]) -> list[list[EpochRecord]]:
        """Save a checkpoint where one is due; the epochs that need not wait for one any more."""
        secure = self._pack.shared.redrawn and training.resumable  # else nothing could be repeated anyway
        self._history += records
        due = secure if training.ended else time.monotonic() - self._saved_at >= self._checkpoints.seconds
        saved = due and training.resumable and self._save(training)
        self._held.append(_noted(records, self._note))
        self._note = ""
        if secure and not saved and not training.ended:
            return []
        free, self._held = self._held, []
        return free

    def end(self) -> None:
        """The pack needs no checkpoint any more."""
        self._checkpoints.remove(self._pack)

    def _save(self, training: Run) -> bool:
        """Save a checkpoint; one that cannot be written, on a full disk for example, ends no training."""
        self._saved_at = time.monotonic()
        try:
            arrays, values = training.capture()
            self._checkpoints.save(self._pack, Checkpoint(self._device, arrays, values, self._history, self._draw))
        except OSError as error:
            if not self._warned:
                problem = (f"no checkpoint could be written ({one_line(error)}), the one before is kept, training goes "
                           "on")
                self._note, self._warned = "; ".join(filter(None, (self._note, problem))), True
            return False
        return True


def _noted(records: list[EpochRecord], note: str) -> list[EpochRecord]:
    """The records with `note` in the tag `checkpoint`, if there is a note."""
    return [dataclasses.replace(record, tags={**record.tags, "checkpoint": note}) if note else record
            for record in records]


@functools.lru_cache(maxsize=2)
def _dataset(name: str, folder: Path | None, device: str) -> Dataset:
    """The dataset, loaded once per worker process and shared by the packs that it trains."""
    from pipeline.learning.data.dataset import DataError, load

    try:
        return load(name, folder, device)
    except DataError as error:  # a node that joined after the others were prepared
        raise DataError(f"on {socket.gethostname()}: {error}") from error


def one_line(error: BaseException) -> str:
    """`ValueError: what it says (training.py:120)`."""
    message = str(error).strip()
    return f"{type(error).__name__}: {message.splitlines()[0] if message else 'without a message'}{_place(error)}"


def public_line(error: BaseException) -> str:
    """As `one_line`, of a trial with secret noise: what was not written for users may have numbers of its records or
    its noise in it, and only its kind and place are said."""
    if public := getattr(error, "public", ""):
        return f"{type(error).__name__}: {public}{_place(error)}"
    return one_line(error) if isinstance(error, UserError) else f"{type(error).__name__}{_place(error)}"


def _place(error: BaseException) -> str:
    if place := getattr(error, "place", ""):  # in a user's trainer
        return f" ({place})"
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
