"""The real trainer, slowed down, and killed by itself once in the middle of an epoch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from pipeline.sweep.checkpoints import Checkpoint, Checkpoints
from pipeline.sweep.worker import train_pack
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord


class EveryOther(Checkpoints):
    """Checkpoints of even epochs only, so that the tracking store is ahead of them after odd ones."""

    def save(self, pack: Pack, checkpoint: Checkpoint) -> None:
        if checkpoint.values["epoch"] % 2 == 0:
            super().save(pack, checkpoint)


def train(pack: Pack, *, root: Path, kill_after: Mapping[str, int] = MappingProxyType({}), pause: float = 0.0,
          hold: Path | None = None, name: str = "faults") -> Iterator[list[EpochRecord]]:
    """Train with checkpoints in `root`.

    Args:
        kill_after: by mechanism, epochs after which the third step of the next one sends SIGKILL to the worker; a file
            says that it has, and it does so once for every pack.
        pause: seconds to sleep before every epoch.
        hold: a file that must exist before the fourth epoch begins.
        name: of the sweep.
    """
    from pipeline.learning.training import Training

    step, epoch, steps = Training.step, Training.run_epoch, 0

    def slow(self):
        time.sleep(pause)
        while hold and self.epoch == 3 and not hold.exists():
            time.sleep(0.02)
        return epoch(self)

    def disturbed(self, *arguments, **options):
        nonlocal steps
        steps += 1
        marker = root / f"killed-{self.pack.shared.trial_key}"
        if self.epoch == kill_after.get(self.pack.shared.mechanism) and steps % 9 == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments, **options)

    Training.step, Training.run_epoch = disturbed, slow
    try:
        yield from train_pack(pack, device="cpu", threads=1, data_folder=None,
                              checkpoints=EveryOther(root / "private" / "checkpoints" / name, 0))
    finally:
        Training.step, Training.run_epoch = step, epoch
