"""Trainers hand over the records of an epoch at a time, or of a whole pack; here they come one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.learning import train as packs
from pipeline.sweep import worker
from pipeline.trials.records import EpochRecord, Result


def train(*arguments: Any, **options: Any) -> Iterator[EpochRecord]:
    """The records of `pipeline.learning.train.train`."""
    for records in packs.train(*arguments, **options):
        yield from records


def train_pack(*arguments: Any, **options: Any) -> Iterator[EpochRecord]:
    """The records of `pipeline.sweep.worker.train_pack`, of a sealed result too."""
    for item in worker.train_pack(*arguments, **options):
        if isinstance(item, list | Result):
            yield from item.records if isinstance(item, Result) else item
