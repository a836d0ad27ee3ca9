"""The real trainer, whose worker kills itself once in the middle of an epoch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from pipeline.checkpoints import Checkpoint, Checkpoints
from pipeline.packs import Pack
from pipeline.records import EpochRecord
from pipeline.worker import train_pack


class EveryOther(Checkpoints):
    """Checkpoints of even epochs only, so that the tracking store is ahead of them after odd ones."""

    def save(self, pack: Pack, checkpoint: Checkpoint) -> None:
        if checkpoint.values["epoch"] % 2 == 0:
            super().save(pack, checkpoint)


def train(pack: Pack, *, root: Path, kill_after: Mapping[str, int] = MappingProxyType({})) -> Iterator[EpochRecord]:
    """Train with checkpoints in `root`.

    Args:
        kill_after: by mechanism, epochs after which the third step of the next one sends SIGKILL to the worker; a file
            says that it has, and it does so once for every pack.
    """
    from pipeline.training import Training

    step, steps = Training.step, 0

    def disturbed(self, *arguments, **options):
        nonlocal steps
        steps += 1
        marker = root / f"killed-{self.pack.shared.trial_key}"
        if self.epoch == kill_after.get(self.pack.shared.mechanism) and steps % 9 == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments, **options)

    Training.step = disturbed
    try:
        yield from train_pack(pack, device="cpu", threads=1, data_folder=None,
                              checkpoints=EveryOther(root / "checkpoints" / "faults", 0))
    finally:
        Training.step = step
