"""Trainers hand over the records of an epoch at a time, or of a whole pack; here they come one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.learning import train as packs
from pipeline.sweep import worker
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord, Result


def train(*arguments: Any, **options: Any) -> Iterator[EpochRecord]:
    """The records of `pipeline.learning.train.train`."""
    for records in packs.train(*arguments, **options):
        yield from records


def items(pack: Pack, folder: Path, seconds: float = 0.0) -> Iterator[worker.Item]:
    """What a worker sends of a pack; checkpoints, at most one in so many seconds, lie in `folder`."""
    return worker.train_pack(pack, device="cpu", threads=1, data_folder=None, checkpoints=Checkpoints(folder, seconds))


def train_pack(pack: Pack, folder: Path, seconds: float = 0.0) -> Iterator[EpochRecord]:
    """The records that a worker sends of a pack, of a sealed result too."""
    for item in items(pack, folder, seconds):
        if isinstance(item, list | Result):
            yield from item.records if isinstance(item, Result) else item
