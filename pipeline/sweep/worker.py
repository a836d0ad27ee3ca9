"""The worker of a sweep: train packs epoch by epoch, and resume from their checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline.experiment.plugins import load_plugins
from pipeline.sweep.checkpoints import Checkpoint, Checkpoints
from pipeline.sweep.private import UNFINISHED, UnusableFile, make_private
from pipeline.sweep.sealed import found, remove, seal, unseal
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.guard import guarded, one_line, public_line, without_message
from pipeline.trials.packs import Pack
from pipeline.trials.records import Computing, EpochRecord, Hidden, Result, Sealed

if TYPE_CHECKING:  # workers import torch only when they train
    from pipeline.learning.data.dataset import Dataset
    from pipeline.learning.training import Training

Plugins = tuple[Sequence[str], Path]  # names of modules, and their folder
Item = list[EpochRecord] | Computing | Hidden | Sealed | Result  # what a trainer yields
Trainer = Callable[[Pack], Iterator[Item]]


class WorkerDeath(RuntimeError):
    """A worker lacks memory or disk: as if it had been killed, and not an outcome of its pack."""


def epochs(pack: Pack, trainer: Trainer) -> Iterator[dict[str, Any]]:
    """Train a pack, and yield a result for Ray Tune after every epoch.

    A result is `{"item": what the trainer yields}`. With a `Sealed` item the caller records its name before it asks for
    the next one. An exception in training becomes the last result, with `error` and `traceback`.
    """
    live = {trial.trial_key for trial in pack.trials}  # without an outcome so far
    is_sealed = False
    try:
        # A request for the next item confirms the last one: after the last the trainer may remove its files.
        for item in trainer(pack):
            is_sealed |= isinstance(item, Sealed)
            shows_epochs = isinstance(item, list) and pack.shared.secure
            if shows_epochs or (isinstance(item, Result) and not is_sealed):
                raise RuntimeError("with secret noise a result is sent alone, after its name, when it was sealed")
            if isinstance(item, Result):
                live.clear()
            elif isinstance(item, list):
                live -= {record.trial_key for record in item if record.outcome}
            yield {"item": item}
        if live:
            raise RuntimeError(f"training ended without an outcome of {', '.join(sorted(live))}")
    except WorkerDeath:
        raise
    except Exception as error:
        reason = public_line(error) if pack.shared.hides_errors else one_line(error)
        yield {"item": [], "error": reason, "traceback": traceback.format_exc()}


def prepare_node(trials: Sequence[TrialConfig], data_folder: Path | None, checkpoints: Path,  # their folder
                 private_log: Path,  # for an error that shows a record
                 digests: Mapping[str, str] = MappingProxyType({})) -> None:  # of feature files, by their public names
    """Prepare data, features and the folder of checkpoints on a node, once for all of its workers."""
    from pipeline.learning.data.dataset import load_for
    from pipeline.learning.data.maps.computed import check_file, features

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
    return UserError(f"features: '{name}' cannot be computed ({line})")


def prepare_elsewhere(plugins: Plugins, trials: Sequence[TrialConfig], data_folder: Path | None,
                      checkpoints: Path, private_log: Path, digests: Mapping[str, str]) -> None:
    """Call `prepare_node` on a node other than the driver's."""
    import pipeline.learning.training  # noqa: F401  fails at once where a library of training is not installed

    load_plugins(*plugins)  # first, as plugins define trials
    prepare_node(trials, data_folder, checkpoints, private_log, digests)


def train_pack(pack: Pack, *, device: str, threads: int, data_folder: Path | None, checkpoints: Checkpoints,
               digests: Mapping[str, str] = MappingProxyType({})) -> Iterator[Item]:
    """Train a pack on its data set, with checkpoints: the default trainer.

    It yields how far features are, if it computes them, and then the records of one epoch after the other. If the pack
    had a checkpoint, one epoch's records have a tag `checkpoint` that tells whether it was used. A pack with secret
    noise yields its progress alone, and at its end its result (`sealed_training`). A node that joined after the others
    were prepared needs `digests`, as in `prepare_node`.
    """
    import torch  # imported here: the driver needs no torch

    from pipeline.learning import train
    from pipeline.learning.data.maps.computed import check_file, steps

    torch.set_num_threads(threads)
    for trial in pack.trials:  # the driver has checked them, and a table's file may be another on this node
        trial.parts.data.check(trial)
    if pack.shared.feature_name:
        check_file(pack.shared, digests)
    data = _dataset(pack.shared.dataset, data_folder, device)
    yield from steps(data, pack.shared)
    keeper = CheckpointKeeper(pack, device, checkpoints)
    if pack.shared.secure:
        yield from sealed_training(pack, data, keeper)
        return
    with contextlib.closing(train.prepare(pack, data, device)) as training:
        yield from keeper.resume(training)
        while not training.ended:
            yield keeper.keep(training, training.run_epoch())
        keeper.end()


def sealed_training(pack: Pack, data: Dataset, keeper: CheckpointKeeper) -> Iterator[Item]:
    """Train a pack with secret noise: yield its progress, the name of its sealed result, and then the result.

    A result that an earlier worker sealed is sent in place of training. A damaged one is deleted: nobody has seen it.
    """
    folder = keeper.checkpoints.folder
    files = found(folder, pack)
    for damaged in (file for file in files if file.problem):
        remove(damaged.path)
    file = next((file for file in files if not file.problem), None)
    if file is None:
        rehearse(pack, data, keeper)
        result = yield from _secret_result(pack, data, keeper)
        try:
            file = seal(folder, pack, result)
        except OSError as error:
            raise WorkerDeath(f"its result could not be sealed: {one_line(error)}") from error

    yield file.sealed
    yield unseal(file.path)
    for sent in found(folder, pack):  # the driver has stored it, as it asked for more
        remove(sent.path)
    keeper.end()


def _secret_result(pack: Pack, data: Dataset, keeper: CheckpointKeeper) -> Generator[Hidden, None, Result]:
    """Train a pack with secret noise: yield the epochs done, and return its result.

    A failure is a result, as it may depend on what was drawn; lack of memory or disk is a death of the worker. After a
    failure this waits until all epochs would be over: a worker's death must not lose successes more often than
    failures (docs/privacy.md, section 10).
    """
    from pipeline.learning.own.alone import lacks_memory

    begin = time.monotonic()
    epoch = 0
    try:
        for hidden in _hidden_training(pack, data, keeper):
            epoch = hidden.epoch
            yield hidden
        return Result(keeper.history)
    except Exception as error:
        if isinstance(error, OSError) or lacks_memory(error):
            raise WorkerDeath(without_message(error)) from error
        failure = Result((), without_message(error), traceback.format_exc())
    pause = (time.monotonic() - begin) / max(1, epoch)
    for missing in range(epoch + 1, pack.shared.epochs + 1):
        time.sleep(pause)
        yield Hidden(missing)
    return failure


def _hidden_training(pack: Pack, data: Dataset, keeper: CheckpointKeeper) -> Iterator[Hidden]:
    from pipeline.learning import train

    with contextlib.closing(train.prepare(pack, data, keeper.device)) as training:
        for records in keeper.resume(training):
            yield Hidden(records[-1].epoch, _note_of(records))
        while training.epoch < pack.shared.epochs:  # even if all trials have diverged
            records = keeper.keep(training, training.run_epoch())
            yield Hidden(training.epoch, _note_of(records))


def rehearse(pack: Pack, data: Dataset, keeper: CheckpointKeeper) -> None:
    """Take a step, evaluate, save a checkpoint and seal a result, on test records in place of training records.

    A failure here may be shown and costs no epsilon, as no private record was used.
    """
    from pipeline.learning import train
    from pipeline.learning.data.maps.computed import public

    with contextlib.closing(train.prepare(pack, public(data, pack.shared), keeper.device)) as training:
        training.arithmetic.begin(training)
        training.epoch = pack.shared.epochs - 1  # so that it ends with an outcome
        training.sampler.steps = 1
        records = training.run_epoch()
        state = Checkpoint(keeper.device, *training.capture(), records)
    make_private(keeper.checkpoints.folder)
    try:
        with tempfile.TemporaryDirectory(dir=keeper.checkpoints.folder, suffix=UNFINISHED) as folder:
            rehearsed = Checkpoints(Path(folder), 0.0)
            rehearsed.save(pack, state)
            rehearsed.load(pack, keeper.device)
            unseal(seal(Path(folder), pack, Result(records)).path)
    except OSError as error:
        raise UnusableFile("private folder: must take checkpoints and sealed results, and does not "
                           f"({error.strerror}); nothing was released") from None


class CheckpointKeeper:
    """Resumes a pack's training from its checkpoint, and saves new ones between its epochs.

    Records from before the checkpoint are sent again, in case they were lost on the way.
    """

    def __init__(self, pack: Pack, device: str, checkpoints: Checkpoints) -> None:
        self._pack, self.device, self.checkpoints = pack, device, checkpoints
        self.history: list[EpochRecord] = []  # all records so far
        self._tried_at = time.monotonic()  # the start, or the last attempt to save a checkpoint
        self._warned = False  # of a checkpoint that could not be written
        self._note = ""  # for the tag `checkpoint` of the next epoch

    def resume(self, training: Training) -> Iterator[list[EpochRecord]]:
        """Restore the pack's checkpoint, if it can be used, and yield the records of its epochs, epoch by epoch."""
        try:
            saved = self.checkpoints.load(self._pack, self.device)
        except UnusableFile as error:
            self._note = f"checkpoint refused, started again: {error}"
            saved = None
        if not saved:
            return
        training.restore(saved.arrays, saved.values)
        self.history = list(saved.records)  # by epoch in ascending order, and of at least one epoch
        by_epoch = [list(records) for _, records in itertools.groupby(self.history, key=lambda record: record.epoch)]
        yield from by_epoch[:-1]
        yield _noted(by_epoch[-1], f"resumed from epoch {training.epoch}")

    def keep(self, training: Training, records: list[EpochRecord]) -> list[EpochRecord]:
        """Save a checkpoint if one is due; return the records, tagged with a note if there is one."""
        self.history += records
        is_last = training.epoch == self._pack.shared.epochs
        if not is_last and time.monotonic() - self._tried_at >= self.checkpoints.seconds:
            self._save(training)
        noted = _noted(records, self._note)
        self._note = ""
        return noted

    def end(self) -> None:
        self.checkpoints.remove(self._pack)

    def _save(self, training: Training) -> None:
        """Save a checkpoint; a failure, as on a full disk, does not end training."""
        self._tried_at = time.monotonic()
        try:
            arrays, values = training.capture()
            self.checkpoints.save(self._pack, Checkpoint(self.device, arrays, values, self.history))
        except OSError as error:
            if self._warned:
                return
            problem = f"no checkpoint could be written ({one_line(error)}), the one before is kept, training goes on"
            self._note = f"{self._note}; {problem}" if self._note else problem
            self._warned = True


def _noted(records: list[EpochRecord], note: str) -> list[EpochRecord]:
    if not note:
        return records
    return [dataclasses.replace(record, tags={**record.tags, "checkpoint": note}) for record in records]


def _note_of(records: list[EpochRecord]) -> str:
    return records[-1].tags.get("checkpoint", "") if records else ""


@functools.lru_cache(maxsize=2)
def _dataset(name: str, folder: Path | None, device: str) -> Dataset:
    from pipeline.learning.data.dataset import DataError, load

    try:
        return load(name, folder, device)
    except DataError as error:  # a node that joined after the others were prepared
        raise DataError(f"on {socket.gethostname()}: {error}", error.public, error.of_record) from error
