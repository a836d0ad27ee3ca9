"""Estimate the time of a sweep, from a few timed steps of each kind of pack on this machine."""

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
    """Return the estimated seconds of training for all packs, `workers` at a time; OPUs are timed as simulated."""
    torch.set_num_threads(threads)
    steps: dict[tuple[str, int], float] = {}  # (pack_key, trials) -> seconds of a step
    seconds = opu_seconds = 0.0  # of all packs one after the other, and of the packs that need an OPU
    for pack in packs:
        if not pack.shared.parts.trainer.built_in:  # times of users' trainers are unknown
            continue
        kind = pack.shared.pack_key, len(pack.trials)
        if kind not in steps:
            steps[kind] = _step_seconds(pack, torch.device(device))
        trial = pack.shared
        _, n_validation = trial.split_sizes
        n_evaluated = trial.epochs * n_validation + trial.parts.data.spec.n_test
        # Evaluation is a forward pass, about a third of a step (forward, feedback, update).
        evaluation_steps = n_evaluated / trial.batch_size / 3
        pack_seconds = steps[kind] * (trial.epochs * trial.steps_per_epoch + evaluation_steps)
        seconds += pack_seconds
        if pack.needs_opu:
            opu_seconds += pack_seconds
    # The slower of two limits: all workers are busy, or all OPUs are.
    return max(seconds / workers, opu_seconds / min(workers, max(1, opus)))


def _step_seconds(pack: Pack, device: torch.device) -> float:
    """Return the median seconds of `TIMED_STEPS` steps of a pack on random records; OPUs are simulated."""
    if pack.shared.parts.projector.hardware:
        pack = Pack(tuple(TrialConfig(trial.given, projector="opu_simulated") for trial in pack.trials))
    training = prepare(pack, _made_up(pack, device), device)
    try:
        indices = training.sampler.epoch()
        training.step(indices[0])  # not timed: it allocates memory and loads kernels
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
    """Return random records with the shapes of the data set: one repeated block."""
    spec = pack.shared.parts.data.spec
    rows = torch.randint(0, int(spec.scale) + 1, (EVALUATION_BATCH, spec.n_features), dtype=torch.uint8, device=device)
    labels = torch.randint(0, spec.n_classes, (EVALUATION_BATCH,), device=device)

    def tiled(block: torch.Tensor, n: int) -> torch.Tensor:
        return block[torch.arange(n, device=device) % len(block)]

    data = Dataset(spec, tiled(rows, spec.n_train), tiled(labels, spec.n_train), rows, labels)
    features = pack.shared.parts.features
    if not features.raw:  # too slow to compute just for an estimate
        made_up = torch.randn(EVALUATION_BATCH, math.prod(features.shape(pack.shared)), device=device).bfloat16()
        data.mapped[features.key(pack.shared)] = tiled(made_up, spec.n_train), made_up
    return data
