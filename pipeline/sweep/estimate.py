"""Estimate how long a sweep takes, from steps on few random records of each kind of pack.

Kinds of packs differ in what decides the time of a step. On a CPU seconds are those of the processor, so that other
programs on the machine do not change the estimate.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.accounting import account
from pipeline.accounting.certified import event_of, with_noise
from pipeline.learning.data.dataset import Dataset, MappedFeatures
from pipeline.learning.data.inputs import largest_sizes
from pipeline.learning.data.maps.computed import inputs, key_of
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.train import prepare
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import FLOAT_BYTES, Pack, cost
from pipeline.trials.steps import is_fine

CALL_SECONDS, MOST_CALLS = 0.2, 5  # of one measurement; two calls at least
OWN_MEASUREMENT = 2.0  # steps of a user's network that a measurement of alignment takes: two passes over the batch
N_RECORDS, N_ALONE = 1_000, 4  # made-up records; where they are computed one after the other
BATCH_BYTES = 2**27  # of a pack's largest layer in a timed batch, at most
BATCH_PARTS = 8  # a batch is timed by an eighth of it, and by as many eighths as there is time for
# Measured, in starts of a process that imports numpy: start and end of a sweep (driver, store, Ray, workers); to report
# an epoch of a pack to the driver, which asks for the next one; to store an epoch of a trial.
START, REPORT, STORE = 220.0, 0.13, 0.03


@dataclass(frozen=True)
class Estimate:
    """How long packs take.

    Attributes:
        seconds: of all packs, with start and end of the sweep.
        guessed: (kind of pack that was not timed, timed kind from which its time follows by multiplications).
    """

    seconds: float
    guessed: tuple[tuple[Pack, Pack], ...] = ()


@dataclass(frozen=True)
class Pace:
    """Seconds of a kind of pack."""

    prepare: float  # a pack before its first epoch
    record: float  # to make the inputs of one
    step: float
    measurement: float  # of alignment, in some steps
    evaluation: float  # of one record
    accounting: float  # of an epoch's epsilon, which a process computes once

    def seconds(self, trial: TrialConfig) -> float:
        """Return the seconds of a pack with these settings, without its inputs and its epsilons."""
        n_test, n_validation = trial.parts.data.spec.n_test, trial.split_sizes[1]
        n_evaluated = n_validation or n_test  # after each epoch
        if n_validation and trial.disclosure == "withheld":
            n_evaluated = 0
        epoch = (trial.steps_per_epoch * self.step + n_evaluated * self.evaluation
                 + min(trial.alignment_batches, trial.steps_per_epoch) * self.measurement)
        return self.prepare + trial.epochs * epoch + n_test * self.evaluation

    def times(self, factor: float) -> Pace:
        return Pace(*(factor * seconds for seconds in vars(self).values()))


def estimate(packs: Sequence[Pack], workers: int, opus: int, threads: int, device: str, until: float) -> Estimate:
    """Return how long a sweep of these packs takes, `workers` at a time; OPUs are timed as simulated.

    The kind of pack with the most work is timed always, others until this process has had `until` seconds of the
    processor. `threads` are those of one worker, and `opus` the OPUs of all.
    """
    torch.set_num_threads(threads)
    paces, guessed = _paces(packs, torch.device(device), until)
    busy = [0.0] * workers  # seconds of each worker
    opu_seconds = 0.0  # of all packs that need an OPU
    known: list[set[object]] = [set() for _ in busy]  # inputs and epsilons that a worker has computed
    for pack in packs:
        worker = busy.index(min(busy))  # the first that is free
        pace = paces[_kind(pack)]
        tracking = pack.shared.epochs * (REPORT + STORE * len(pack.trials)) * _process_seconds()
        pack_seconds = pace.seconds(pack.shared) + tracking
        for key, seconds in _computed_once(pack, pace).items():
            pack_seconds += 0.0 if key in known[worker] else seconds
            known[worker].add(key)
        busy[worker] += pack_seconds
        if pack.needs_opu:
            opu_seconds += pack_seconds
    # The slower of two limits: all workers are busy, or all OPUs are.
    training = max(*busy, opu_seconds / min(workers, max(1, opus)))
    return Estimate(START * _process_seconds() + training, tuple(guessed))


def _computed_once(pack: Pack, pace: Pace) -> dict[object, float]:
    """Return the seconds of what a process keeps for other packs: inputs made of features, and epsilons."""
    shared, features = pack.shared, pack.shared.parts.features
    key = pack if features.raw else (features.key(shared), shared.input_norm, shared.exact)
    spec = shared.parts.data.spec
    found: dict[object, float] = {key: (spec.n_train + spec.n_test) * pace.record}
    if shared.parts.mechanism.certified:
        events = {(event_of(trial, trial.epochs), trial.target_epsilon) for trial in pack.trials}
        found |= dict.fromkeys(events, shared.epochs * pace.accounting)
    return found


def _paces(packs: Sequence[Pack], device: torch.device,
           until: float) -> tuple[dict[str, Pace], list[tuple[Pack, Pack]]]:
    """Time kinds of packs, the largest of each network first; return the pace of each kind, and `Estimate.guessed`."""
    work: dict[str, float] = {}
    examples: dict[str, Pack] = {}
    for pack in packs:
        kind = _kind(pack)
        work[kind] = work.get(kind, 0.0) + cost(pack)
        examples.setdefault(kind, pack)

    paces: dict[str, Pace] = {}
    timed: list[str] = []  # kinds
    guessed: list[tuple[Pack, Pack]] = []
    by_work = sorted(work, key=lambda kind: -work[kind])
    largest = {examples[kind].shared.network: kind for kind in reversed(by_work)}.values()
    for kind in sorted(by_work, key=lambda kind: kind not in largest):
        pack = examples[kind]
        if not timed or time.process_time() < until:
            paces[kind] = _pace(pack, device)
            timed.append(kind)
            continue
        source_kind = _most_similar(kind, timed)
        source = examples[source_kind]
        factor = cost(pack) / pack.shared.epochs / (cost(source) / source.shared.epochs)
        paces[kind] = paces[source_kind].times(factor)
        guessed.append((pack, source))
    return paces, guessed


def _kind(pack: Pack) -> str:
    """Return the settings that decide how long a step takes, as JSON; of a decimal number only whether it is 0."""
    settings = {name: bool(value) if isinstance(value, float) else value
                for name, value in pack.shared.canonical().items() if name not in ("seed", "epochs")}
    return json.dumps([len(pack.trials), pack.shared.layer_sizes, settings], default=str)


def _most_similar(kind: str, others: Sequence[str]) -> str:
    settings = {each: {*map(str, json.loads(each)[2].items())} for each in (kind, *others)}
    return max(sorted(others), key=lambda other: len(settings[kind] & settings[other]))


@functools.cache
def _process_seconds() -> float:
    """Return the processor's seconds in which a process starts and imports numpy."""
    before = os.times()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _pace(pack: Pack, device: torch.device) -> Pace:
    """Time a kind of pack on random records; OPUs are simulated, and canaries left out."""
    changes: dict[str, Any] = {"canaries": 0} if pack.shared.canaries else {}
    if pack.shared.parts.projector.hardware:
        changes["projector"] = "opu_simulated"
    pack = Pack(tuple(TrialConfig(trial.given, **changes) for trial in pack.trials)) if changes else pack
    for trial in pack.trials:
        with_noise(trial)  # kept on disk, which a worker reads
    shared = pack.shared
    data = _made_up(shared, device)
    n = len(data.test_y)
    if not shared.parts.network.own:  # a first time, for what a process does once
        prepare(pack, data, device).close()
    began = _now(device)
    with contextlib.closing(prepare(pack, data, device)) as training:
        training.arithmetic.begin(training)
        preparation = _now(device) - began

        def make_inputs() -> object:
            data.inputs.clear()
            return inputs(data, shared, training.arithmetic.inputs)

        record = _seconds(make_inputs, device) / (2 * n)
        evaluation = _seconds(lambda: training.evaluation.count(training.net, "test"), device) / n
        began = time.thread_time()
        account(with_noise(shared), 1 + shared.epochs // 2)
        accounting = time.thread_time() - began
        return Pace(preparation, record, *_step_seconds(training, n, device), evaluation, accounting)


def _step_seconds(training: Training, n: int, device: torch.device) -> tuple[float, float]:
    """Return the seconds of a step with its share of drawing batches, and what alignment adds to it.

    A batch that takes long is timed by a part of it; `n` is the number of records that there are.
    """
    pack = training.pack
    bytes_each = 1 if pack.shared.exact and not is_fine(pack.shared) else FLOAT_BYTES
    most = BATCH_BYTES // (bytes_each * len(pack.trials) * max(pack.shared.layer_sizes))  # records
    training.sampler.steps = 1
    batch = training.sampler.epoch()[0]
    batch = torch.where(batch == ABSENT, batch, batch % n)

    def draw(steps: int) -> float:
        training.sampler.steps = steps
        return _seconds(training.sampler.epoch, device)

    drawing = _line(draw, 1, 4, pack.shared.steps_per_epoch)
    chunk = getattr(training.net, "chunk", 0)  # records at once, of a user's network
    size = pack.shared.batch_size if chunk else batch.shape[1]
    unit = chunk or max(1, min(size // BATCH_PARTS, most))  # records of the smallest timed batch

    def step_of(units: int, measure: bool = False) -> float:
        return _seconds(lambda: training.step(batch[:, :units * unit], measure), device)

    first = step_of(1)
    units = math.ceil(size / unit)
    timed = max(1, min(units, most // unit, int(CALL_SECONDS / first)))
    step = _line(lambda n_units: first if n_units == 1 else step_of(n_units), 1, timed, units)
    measurement = 0.0
    if chunk:
        measurement = OWN_MEASUREMENT * step
    elif pack.shared.alignment_batches:
        training.measured_records = min(unit, pack.shared.batch_size)
        measurement = max(0.0, step_of(1, measure=True) - first) * step / first
    return step + drawing / pack.shared.steps_per_epoch, measurement


def _line(seconds: Callable[[int], float], small: int, large: int, size: int) -> float:
    """Extrapolate the seconds of a size on a line through two timed sizes; in proportion if these are equal."""
    of_large = seconds(large)
    slope = of_large / large
    if small < large:
        slope = max(0.0, of_large - seconds(small)) / (large - small)
    return of_large + slope * (size - large)


def _now(device: torch.device) -> float:
    """Return the processor's seconds of this thread; on a GPU, those of the clock once it has done its work."""
    if device.type == "cpu":
        return time.thread_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the least seconds of several calls: the first one loads code, and any may wait for other programs."""
    times: list[float] = []
    while len(times) < 2 or (sum(times) < CALL_SECONDS and len(times) < MOST_CALLS):
        began = _now(device)
        call()
        times.append(_now(device) - began)
    return min(times)


def _made_up(trial: TrialConfig, device: torch.device) -> Dataset:
    """Return a few random records with the shapes of the trial's data set, the same for training and test."""
    spec, n, features = trial.parts.data.spec, N_RECORDS, trial.parts.features
    if trial.parts.network.own:
        is_alone = trial.parts.network.why_alone(trial)
        n = N_ALONE if is_alone else min(n, trial.records_at_once)
    x = torch.randint(0, int(spec.scale) + 1, (n, spec.n_features), dtype=torch.uint8, device=device)
    y = torch.randint(0, spec.n_classes, (n,), device=device)
    data = Dataset(spec, x, y, x, y)
    if not features.raw:  # too slow to compute just for an estimate
        made_up = torch.rand(n, math.prod(features.shape(trial)), device=device).bfloat16()
        data.mapped[key_of(trial)] = MappedFeatures((made_up, made_up), (largest_sizes(made_up),) * 2)
    return data
