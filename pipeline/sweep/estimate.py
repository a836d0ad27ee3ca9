"""How long a sweep will take, from a few steps of each kind of pack on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

import torch

from pipeline.learning.data.dataset import Dataset
from pipeline.learning.evaluation import EVALUATION_BATCH
from pipeline.learning.run import prepare
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

TIMED_STEPS = 5


def estimate_seconds(packs: Sequence[Pack], workers: int, opus: int, threads: int, device: str) -> float:
    """Seconds of training for all packs, from timed steps on made-up records; start-up and tracking are not in it.

    Args:
        packs: what is to be trained.
        workers: packs that train at the same time.
        opus: of them, packs that may hold an OPU; on hardware the simulated device is timed in its place.
        threads: cores of one pack.
        device: where packs train.
    """
    torch.set_num_threads(threads)
    steps: dict[tuple[str, int], float] = {}
    work = {False: 0.0, True: 0.0}
    for pack in (pack for pack in packs if pack.shared.parts.trainer.own):  # how long others take, only they know
        kind = pack.shared.pack_key, len(pack.trials)
        if kind not in steps:
            steps[kind] = _step_seconds(pack, torch.device(device))
        c = pack.shared
        # Of the three passes of a step (forward, feedback, update) an evaluation makes one.
        evaluated = c.epochs * c.split_sizes[1] + c.parts.data.spec.n_test
        work[pack.needs_opu] += steps[kind] * (c.epochs * c.steps_per_epoch + evaluated / c.batch_size / 3)
    return max(sum(work.values()) / workers, work[True] / min(workers, max(1, opus)))


def _step_seconds(pack: Pack, device: torch.device) -> float:
    if pack.shared.parts.projector.hardware:
        pack = Pack(tuple(TrialConfig(trial.given, projector="opu_simulated") for trial in pack.trials))
    training = prepare(pack, _made_up(pack, device), device)
    try:
        indices = training.sampler.epoch()
        training.step(indices[0])
        seconds = []
        for k in range(TIMED_STEPS):
            began = time.perf_counter()
            loss, _ = training.step(indices[(k + 1) % len(indices)])
            loss.sum().item()  # waits for the device
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)
    finally:
        training.close()


def _made_up(pack: Pack, device: torch.device) -> Dataset:
    """Random records in the shapes of the real ones: one block of them, repeated."""
    spec = pack.shared.parts.data.spec
    rows = torch.randint(0, int(spec.scale) + 1, (EVALUATION_BATCH, spec.n_features), dtype=torch.uint8, device=device)
    labels = torch.randint(0, spec.n_classes, (EVALUATION_BATCH,), device=device)

    def tiled(block: torch.Tensor, n: int) -> torch.Tensor:
        return block[torch.arange(n, device=device) % len(block)]

    data = Dataset(spec, tiled(rows, spec.n_train), tiled(labels, spec.n_train), rows, labels)
    features = pack.shared.parts.features
    if not features.raw:  # which take longer to compute than steps to time
        made_up = torch.randn(EVALUATION_BATCH, math.prod(features.shape(pack.shared)), device=device).bfloat16()
        data.mapped[features.key(pack.shared)] = tiled(made_up, spec.n_train), made_up
    return data
