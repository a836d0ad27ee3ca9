"""The worker of a sweep: train packs epoch by epoch, and resume from their checkpoints."""

from __future__ import annotations

import contextlib
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

from pipeline.experiment.plugins import load_plugins
from pipeline.sweep.checkpoints import Checkpoint, CheckpointError, Checkpoints
from pipeline.sweep.private import make_private
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.guard import guarded, one_line, public_line
from pipeline.trials.packs import Pack
from pipeline.trials.records import Computing, Draw, EpochRecord

if TYPE_CHECKING:  # workers import torch only when they train
    from pipeline.learning.data.dataset import Dataset
    from pipeline.learning.training import Training

Plugins = tuple[Sequence[str], Path]  # names of modules, and their folder
Trainer = Callable[[Pack], Iterator[list[EpochRecord] | Draw | Computing]]


def epochs(pack: Pack, trainer: Trainer) -> Iterator[dict[str, Any]]:
    """Train a pack, and yield a result for Ray Tune after every epoch.

    A result is `{"records": [a record for each trial that had not ended]}`. It may also have `draw`, a request to draw
    secret noise, which the caller grants when it asks for the next result, or `features`, how far they are computed.
    An exception in training becomes the last result, with `error` and `traceback`.
    """
    live = {trial.trial_key for trial in pack.trials}
    try:
        # A request for the next item confirms the last one: after the last epoch the trainer may remove its checkpoint.
        for item in trainer(pack):
            if isinstance(item, Draw | Computing):
                yield {"records": [], "draw" if isinstance(item, Draw) else "features": item}
                continue
            live -= {record.trial_key for record in item if record.outcome}
            yield {"records": item}
        if live:
            raise RuntimeError(f"training ended without an outcome of {', '.join(sorted(live))}")
    except Exception as error:
        reason = public_line(error) if pack.shared.hides_errors else one_line(error)
        yield {"records": [], "error": reason, "traceback": traceback.format_exc()}


def prepare_node(trials: Sequence[TrialConfig], data_folder: Path | None, checkpoints: Path,  # their folder
                 private_log: Path,  # for an error that shows a record
                 digests: Mapping[str, str] = MappingProxyType({})) -> None:  # of feature files, by their public names
    """Prepare a node for trials, before several workers look at once for data, features and checkpoints."""
    from pipeline.learning.data.dataset import load_for
    from pipeline.learning.data.features import check_file, features

    def keep(message: str) -> str:
        make_private(private_log.parent)
        private_log.write_text(f"{message}\n", encoding="utf-8")
        return f"{private_log} says which"

    datasets = load_for(trials, data_folder, keep=keep)
    for trial in trials:
        trial.parts.data.check(trial)  # as in `train_pack`
        if trial.parts.features.of_file:
            check_file(trial, digests)
            if trial.disclosure == "plain":  # otherwise no record may decide whether a trial fails
                with guarded(functools.partial(_uncomputed, trial.features), hidden=trial.hides_errors):
                    features(datasets[trial.dataset], trial)
    make_private(checkpoints)


def _uncomputed(name: str, line: str) -> UserError:
    """Return the error on features that cannot be computed, from what was raised."""
    return UserError(f"features: '{name}' cannot be computed ({line})")


def prepare_elsewhere(plugins: Plugins, trials: Sequence[TrialConfig], data_folder: Path | None,
                      checkpoints: Path, private_log: Path, digests: Mapping[str, str]) -> None:
    """Call `prepare_node` on a node other than the driver's; its installed libraries are not known."""
    import pipeline.learning.training  # noqa: F401  imports all libraries of training

    load_plugins(*plugins)  # first, as plugins define trials
    prepare_node(trials, data_folder, checkpoints, private_log, digests)


def train_pack(pack: Pack, *, device: str, threads: int, data_folder: Path | None, checkpoints: Checkpoints,
               digests: Mapping[str, str] = MappingProxyType({})
               ) -> Iterator[list[EpochRecord] | Draw | Computing]:
    """Train a pack on its data set, with checkpoints: the default trainer.

    It yields how far features are, if it computes them, and then the records of one epoch after the other. If the pack
    had a checkpoint, one epoch's records have a tag `checkpoint` that tells whether it was used. A secure pack yields a
    `Draw` before its records: the caller charges it before asking for more. A node that joined after the others were
    prepared needs `digests`, as in `prepare_node`.
    """
    import torch  # imported here: the driver needs no torch

    from pipeline.learning import run
    from pipeline.learning.data.features import check_file, steps

    torch.set_num_threads(threads)
    for trial in pack.trials:  # not checked since another process composed them: a table's file may be another here
        trial.parts.data.check(trial)
    if pack.shared.feature_name:
        check_file(pack.shared, digests)
    data = _dataset(pack.shared.dataset, data_folder, device)
    yield from steps(data, pack.shared)
    keeper = CheckpointKeeper(pack, device, checkpoints)
    with contextlib.closing(run.prepare(pack, data, torch.device(device))) as training:
        yield from keeper.resume(training)
        while not training.ended:
            yield from keeper.keep(training, training.run_epoch())
        keeper.end()


class CheckpointKeeper:
    """Resumes a pack's training from its checkpoint, and saves new ones between its epochs.

    Records from before the checkpoint are sent again, in case they were lost on the way. Records of secure trials are
    held back until a checkpoint contains them, the last ones until a checkpoint contains the end. A lost epoch cannot
    be repeated: a new one has other noise, and sending both would publish more than the accountants cover. (If no
    checkpoint can be written, the last records are sent without one.) Before any secret draw the driver is asked. It
    charges a second draw, or ends the pack.
    """

    def __init__(self, pack: Pack, device: str, checkpoints: Checkpoints) -> None:
        self._pack, self._device, self._checkpoints = pack, device, checkpoints
        self._history: list[EpochRecord] = []  # all records so far
        self._held: list[list[EpochRecord]] = []  # epochs that wait for a checkpoint
        self._tried_at = time.monotonic()  # the start, or the last attempt to save a checkpoint
        self._warned = False  # of a checkpoint that could not be written
        self._note = ""  # for the tag `checkpoint` of the next epoch
        self._draw = ""  # name of its draw of secret noise; empty unless the pack is secure

    def resume(self, training: Training) -> Iterator[list[EpochRecord] | Draw]:
        """Restore the pack's checkpoint, if it can be used, and yield the records of its epochs, epoch by epoch.

        If trials have secret noise, a `Draw` comes first: a request to draw noise, new or from the checkpoint's epoch
        on. The driver charges this draw before it asks for the next item.
        """
        saved, refused = None, ""
        try:
            saved = self._checkpoints.load(self._pack, self._device)
        except CheckpointError as error:
            refused = str(error)
            self._note = f"checkpoint refused, started again: {error}"
        if self._pack.shared.secure:
            self._draw = saved.draw if saved else secrets.token_hex(4)
            yield Draw(self._draw, saved.values["epoch"] if saved else 0, refused)
            if refused:  # the driver has charged a new draw, which never uses this checkpoint
                self._checkpoints.remove(self._pack)
        if not saved:
            return
        training.restore(saved.arrays, saved.values)
        self._history = list(saved.records)  # by epoch in ascending order, and of at least one epoch
        by_epoch = [list(records) for _, records in itertools.groupby(self._history, key=lambda record: record.epoch)]
        yield from by_epoch[:-1]
        yield _noted(by_epoch[-1], f"resumed from epoch {training.epoch}")

    def keep(self, training: Training, records: list[EpochRecord]) -> list[list[EpochRecord]]:
        """Save a checkpoint if one is due; return the epochs that need not wait for a checkpoint."""
        # Epochs with secret noise wait for a checkpoint.
        must_wait = self._pack.shared.secure
        self._history += records
        is_interval_over = time.monotonic() - self._tried_at >= self._checkpoints.seconds
        is_due = must_wait if training.ended else is_interval_over  # at the end, only secret noise needs a checkpoint
        saved = is_due and self._save(training)
        self._held.append(_noted(records, self._note))
        self._note = ""
        if must_wait and not saved and not training.ended:
            return []
        released, self._held = self._held, []
        return released

    def end(self) -> None:
        """Remove the pack's checkpoint, once the reader has received all records."""
        self._checkpoints.remove(self._pack)

    def _save(self, training: Training) -> bool:
        """Save a checkpoint; return whether it was written. A failure, as on a full disk, does not end training."""
        self._tried_at = time.monotonic()
        try:
            arrays, values = training.capture()
            self._checkpoints.save(self._pack, Checkpoint(self._device, arrays, values, self._history, self._draw))
        except OSError as error:
            if not self._warned:
                problem = (f"no checkpoint could be written ({one_line(error)}), the one before is kept, training goes "
                           "on")
                self._note = f"{self._note}; {problem}" if self._note else problem
                self._warned = True
            return False
        return True


def _noted(records: list[EpochRecord], note: str) -> list[EpochRecord]:
    """Return the records with a note in their tag `checkpoint`; an empty note changes nothing."""
    if not note:
        return records
    return [dataclasses.replace(record, tags={**record.tags, "checkpoint": note}) for record in records]


@functools.lru_cache(maxsize=2)
def _dataset(name: str, folder: Path | None, device: str) -> Dataset:
    """Load the data set once per worker process, for all packs that it trains."""
    from pipeline.learning.data.dataset import DataError, load

    try:
        return load(name, folder, device)
    except DataError as error:  # a node that joined after the others were prepared
        raise DataError(f"on {socket.gethostname()}: {error}", error.public, error.of_record) from error
