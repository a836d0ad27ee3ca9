"""Trainers hand over the records of an epoch at a time; here they come one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.learning import run
from pipeline.sweep import worker
from pipeline.trials.records import Draw, EpochRecord


def train(*arguments: Any, **options: Any) -> Iterator[EpochRecord]:
    """The records of `pipeline.learning.run.train`."""
    for records in run.train(*arguments, **options):
        yield from records


def train_pack(*arguments: Any, **options: Any) -> Iterator[EpochRecord]:
    """The records of `pipeline.sweep.worker.train_pack`, whose question is answered with yes."""
    for records in worker.train_pack(*arguments, **options):
        yield from () if isinstance(records, Draw) else records
