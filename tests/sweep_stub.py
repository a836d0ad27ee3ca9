"""A stand-in for training: sleeps, writes down when it ran, and on request diverges, raises or kills its worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.records import ClassAccuracy, EpochRecord, Outcome


def train(pack: Pack, *, folder: Path, seconds: float = 0.05, raises: tuple[int, ...] = (), kills: tuple[int, ...] = (),
          deaths: int = 1, diverges: tuple[int, ...] = ()) -> Iterator[list[EpochRecord]]:
    """Records like those of `pipeline.learning.training.train`; `raises`, `kills` and `diverges` are seeds.

    A worker is killed in the second epoch, `deaths` times: files in `folder` count them.
    """
    begin, live = time.time(), list(pack.trials)
    (folder / "worker.cwd").write_text(os.getcwd())
    try:
        for epoch in range(1, pack.shared.epochs + 1):
            time.sleep(seconds)
            records = []
            for config in list(live):
                if config.seed in raises and epoch == 2:
                    raise RuntimeError(f"seed {config.seed} went wrong")
                if config.seed in kills and epoch == 2:
                    _kill(folder / f"killed-{config.seed}", deaths)
                record = _record(config, epoch, "diverged" if config.seed in diverges else "finished")
                if record.outcome:
                    live.remove(config)
                records.append(record)
            yield records
    finally:
        kind = "opu" if pack.needs_opu else "other"
        (folder / f"{kind}-{pack.shared.trial_key}.interval").write_text(f"{begin} {time.time()}")


def _record(config: TrialConfig, epoch: int, status: str) -> EpochRecord:
    metrics = {"train/loss": 1 / epoch, "validation/accuracy": 0.5 + 0.1 * epoch}
    if status == "finished" and epoch < config.epochs:
        return EpochRecord(config.trial_key, epoch, metrics, {"device": "cpu"})
    outcome = Outcome(status, {"layer_1.bias": np.zeros(3, np.float32)}, (ClassAccuracy(0, "test", 10, 6),))
    return EpochRecord(config.trial_key, epoch, {**metrics, "test/accuracy": 0.6}, {"device": "cpu"}, outcome)


def _kill(marker: Path, deaths: int) -> None:
    before = len(marker.read_text()) if marker.exists() else 0
    if before < deaths:
        marker.write_text("x" * (before + 1))
        os.kill(os.getpid(), 9)
