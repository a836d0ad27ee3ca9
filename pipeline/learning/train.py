"""Train packs, with this package's networks or a user's, for workers, `pipeline.train`, dry runs and attacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from pipeline.learning import integer_arithmetic as integer_arithmetic  # enters itself
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.training import Training
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord


def train(pack: Pack, data: Dataset, device: torch.device | str = "cpu") -> Iterator[list[EpochRecord]]:
    """Train every trial of a pack; yield the records of each epoch, one for each trial that was active at its start.

    A trial's last record has its outcome. A trial with weights that are not finite ends as `diverged`; the others
    continue.
    """
    with contextlib.closing(prepare(pack, data, device)) as training:
        while not training.ended:
            yield training.run_epoch()


def prepare(pack: Pack, data: Dataset, device: torch.device | str) -> Training:
    """Return the training of a pack before its first epoch."""
    if pack.shared.parts.network.own:
        from pipeline.learning.own.own_training import OwnTraining  # imported here: tracing takes time to import

        return OwnTraining(pack, data, torch.device(device))
    return Training(pack, data, torch.device(device))
