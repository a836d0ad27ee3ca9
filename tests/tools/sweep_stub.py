"""A stand-in for training: sleeps, writes down when it ran, and on request diverges, raises or kills its worker; and
trials for it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from unittest.mock import Mock

import numpy as np

from pipeline.accounting import event
from pipeline.accounting.certified import with_noise
from pipeline.experiment.experiment import Experiment
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack, Resources
from pipeline.trials.records import ClassAccuracy, EpochRecord, Outcome


def grid(algorithms=("dfa", "pdfa"), seeds=4, **settings) -> tuple[TrialConfig, ...]:
    settings = {"dataset": "digits", "epochs": 2, "hidden": (8,), **settings}
    return tuple(TrialConfig(algorithm=a, seed=s, **settings) for a in algorithms for s in range(seeds))


def experiment(trials, **resources) -> Experiment:
    return Experiment("stub", "", trials, Resources(**{"pack_size": 1, **resources}), (), Path("stub.yaml"))


def train(pack: Pack, *, folder: Path, seconds: float = 0.05, raises: tuple[int, ...] = (),
          kills: Mapping[int, int] = MappingProxyType({}), diverges: tuple[int, ...] = (), meet: bool = False
          ) -> Iterator[list[EpochRecord]]:
    """Records like those of `pipeline.learning.train.train`; `raises` and `diverges` are seeds.

    `kills` says by seed how often its worker is killed, in the second epoch: files in `folder` count it. With `meet`
    the first pack that needs an OPU and the first that does not wait for each other.
    """
    begin, live = time.time(), list(pack.trials)
    kind = "opu" if pack.needs_opu else "other"
    (folder / "worker.cwd").write_text(os.getcwd())
    (folder / f"{kind}.began").touch()
    try:
        if meet:
            _wait_for(folder / "opu.began", folder / "other.began")
        for epoch in range(1, pack.shared.epochs + 1):
            time.sleep(seconds)
            records = []
            for config in list(live):
                if config.seed in raises and epoch == 2:
                    raise RuntimeError(f"seed {config.seed} went wrong")
                if config.seed in kills and epoch == 2:
                    _kill(folder / f"killed-{config.seed}", kills[config.seed])
                record = _record(config, epoch, "diverged" if config.seed in diverges else "finished")
                if record.outcome:
                    live.remove(config)
                records.append(record)
            yield records
    finally:
        (folder / f"{kind}-{pack.shared.trial_key}.interval").write_text(f"{begin} {time.time()}")


def without_calibration(pack: Pack, **options: object) -> Iterator[list[EpochRecord]]:
    """As `train`, of trials whose noise the driver has calibrated: nothing is calibrated in the worker."""
    event.calibrate = Mock(side_effect=RuntimeError("noise was calibrated in a worker"))
    noise = {with_noise(trial).noise_multiplier for trial in pack.trials}
    Path(options["folder"], f"noise-{pack.shared.trial_key}").write_text(json.dumps(sorted(noise)))
    return train(pack, **options)


def _wait_for(*files: Path) -> None:
    deadline = time.monotonic() + 60
    while not all(file.exists() for file in files):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{', '.join(file.name for file in files if not file.exists())}: not there after 60 s")
        time.sleep(0.01)


def slow(pack: Pack, *, folder: Path, **options: object) -> Iterator[list[EpochRecord]]:
    """In the place of `train_pack`: an epoch takes ten minutes, and the file `training` says that it began."""
    (folder / "training").touch()
    time.sleep(600)
    yield []


def silent_at_first(pack: Pack, *, folder: Path) -> Iterator[list[EpochRecord]]:
    """As `train`, but the first worker is `slow`, as if what it sent had been lost."""
    yield from (train if (folder / "training").exists() else slow)(pack, folder=folder)


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
