"""What a worker of a sweep does: train packs, epoch by epoch, from their checkpoints where there are any."""

from __future__ import annotations

import dataclasses
import functools
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.sweep.checkpoints import Checkpoint, CheckpointError, Checkpoints
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord

Trainer = Callable[[Pack], Iterator[EpochRecord]]


def epochs(pack: Pack, trainer: Trainer) -> Iterator[dict[str, Any]]:
    """Per epoch `{"records": one for each trial that had not ended}`; after an exception also its text."""
    live = {trial.trial_key for trial in pack.trials}
    records: list[EpochRecord] = []
    try:
        source = iter(trainer(pack))
        while live:
            records = []
            for _ in range(len(live)):
                record = next(source, None)
                if record is None:
                    raise RuntimeError(f"training ended without an outcome of {', '.join(sorted(live))}")
                records.append(record)
                if record.outcome:
                    live.remove(record.trial_key)
            yield {"records": records}
        # Whoever asks for more has the last records: the trainer may now throw away what it kept in case they got lost.
        next(source, None)
    except Exception as error:
        yield {"records": records, "error": one_line(error), "traceback": traceback.format_exc()}


def prepare(datasets: Sequence[str], data_folder: Path | None, checkpoints: Checkpoints) -> None:
    """What a node must have before it trains packs, and before several workers look for it at once.

    Raises:
        DataError: a data set that is not there and cannot be downloaded, or is another than the official one.
        OSError: checkpoints cannot be written.
    """
    from pipeline.learning.data.dataset import load

    for name in datasets:
        load(name, data_folder)
    checkpoints.folder.mkdir(parents=True, exist_ok=True)


def prepare_elsewhere(datasets: Sequence[str], data_folder: Path | None, checkpoints: Checkpoints) -> None:
    """`prepare` on another node than the driver's, of which it is not known what is installed there.

    Raises:
        ImportError: a library that is not installed.
    """
    import pipeline.learning.training  # noqa: F401  and with it all that training imports

    prepare(datasets, data_folder, checkpoints)


def train_pack(pack: Pack, *, device: str, threads: int, data_folder: Path | None,
               checkpoints: Checkpoints) -> Iterator[EpochRecord]:
    """The default trainer: `pipeline.learning.training.train` on the pack's dataset, from and to checkpoints.

    What was handed in before the checkpoint is handed in again, in case it was lost on its way. The records of secure
    trials are held back until a checkpoint has them, the last until one has the end: epochs that are lost cannot be
    repeated, and those that take their place carry other noise, so that handing in both would publish more than is
    accounted for. (Where no checkpoint can be written, the end is handed in without; the store refuses a second draw.)

    Yields:
        Records, epoch by epoch. Where the pack had a checkpoint, those of one epoch have the tag `checkpoint`, which
        says what became of it.
    """
    import torch  # here and not above: the driver needs no torch

    from pipeline.learning.state import capture, restore
    from pipeline.learning.training import Training

    torch.set_num_threads(threads)
    training = Training(pack, _dataset(pack.shared.dataset, data_folder, device), torch.device(device))
    try:
        history, note = [], ""
        try:
            if saved := checkpoints.load(pack, device):
                restore(training, saved.arrays, saved.values)
                history = list(saved.records)
                yield from _noted(history, f"resumed from epoch {training.epoch}")
        except CheckpointError as error:
            note = f"checkpoint refused, started again: {error}"
        held, saved_at, warned = [], time.monotonic(), False
        while not training.ended:
            records, saved = training.run_epoch(), False
            history += records
            due = pack.shared.secure if training.ended else time.monotonic() - saved_at >= checkpoints.seconds
            if due:
                problem = _save(checkpoints, pack, Checkpoint(device, *capture(training), history))
                saved, saved_at = not problem, time.monotonic()
                if problem and not warned:
                    note, warned = "; ".join(filter(None, (note, problem))), True
            held += _noted(records, note)
            note = ""
            if saved or training.ended or not pack.shared.secure:
                yield from held
                held = []
        checkpoints.remove(pack)
    finally:
        training.close()


def _save(checkpoints: Checkpoints, pack: Pack, checkpoint: Checkpoint) -> str:
    """Save a checkpoint. One that cannot be written, on a full disk for example, ends no training: returns why."""
    try:
        checkpoints.save(pack, checkpoint)
    except OSError as error:
        return f"no checkpoint could be written ({one_line(error)}), the one before is kept, training goes on"
    return ""


def _noted(records: list[EpochRecord], note: str) -> list[EpochRecord]:
    """The records, those of the last epoch with `note` in the tag `checkpoint`, if there is a note."""
    return [dataclasses.replace(record, tags={**record.tags, "checkpoint": note})
            if note and record.epoch == records[-1].epoch else record for record in records]


@functools.lru_cache(maxsize=2)
def _dataset(name: str, folder: Path | None, device: str) -> Any:
    """The dataset, loaded once per worker process and shared by the packs that it trains."""
    from pipeline.learning.data.dataset import DataError, load

    try:
        return load(name, folder, device)
    except DataError as error:  # a node that joined after the others were prepared
        raise DataError(f"on {socket.gethostname()}: {error}") from error


def one_line(error: BaseException) -> str:
    """`ValueError: what it says (training.py:120)`."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    message = str(error).strip()
    return f"{type(error).__name__}: {message.splitlines()[0] if message else 'without a message'}{place}"
