"""What a sweep costs as it grows: steps by width, batch size and trials per pack; tracking; many trials.

`PYTHONPATH=. python tests/benchmarks/scaling.py` prints the tables of analysis/results/scaling/README.md. Times are CPU
seconds of one thread and medians over rounds in which all have their turn, so that a machine that others use tells the
same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from rounds import keep_freed_memory, machine, markdown, milliseconds, quotient, take_turns
from steps import floor, records, training_step

from pipeline.learning.training import Training
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.records import ClassAccuracy, EpochRecord, Outcome

BASE = {"alignment_batches": 0, "mechanism": "photonic", "sigma": 0.1, "algorithm": "dfa"}
WIDTHS, BATCHES, REPLICAS = (128, 256, 512, 1024, 2048), (64, 256, 1024), (1, 2, 4, 8)
TRIALS, WORKERS = (250, 1000), (1, 2)
SMALL = {"dataset": "digits", "hidden": (64, 64), "batch_size": 32}


def steps_table(rounds: int, visit_seconds: float) -> str:
    """A step by hidden width and batch size (float32), beside its matrix products alone."""
    data, contenders, rows = records("fashion_mnist"), {}, []
    cases = [*((w, 256) for w in WIDTHS), *((512, m) for m in BATCHES if m != 256)]
    for width, m in cases:
        config = TrialConfig(**BASE, hidden=(width, width), batch_size=m)
        contenders[f"{width} {m}"] = training_step(config, data)
        contenders[f"floor {width} {m}"] = floor(config)
    times = take_turns(contenders, rounds, visit_seconds)
    for width, m in cases:
        name, steps = f"{width} {m}", 54_000 // m
        ms = milliseconds(times, name)
        rows.append((width, m, ms, ms * steps / 1e3, quotient(times, name, "512 256"),
                     quotient(times, name, f"floor {name}")))
    return markdown(("hidden width", "batch", "ms a step", "s an epoch", "over 512, 256", "over its products"), rows)


def packs_table(rounds: int, visit_seconds: float) -> str:
    """A step of one trial in packs of R, for a large and a small network."""
    contenders: dict[str, Callable[[], object]] = {}
    for kind, settings in (("784-512-512-10", {}), ("64-64-64-10", SMALL)):
        config = TrialConfig(**{**BASE, **settings})
        for r in REPLICAS:
            contenders[f"{kind} {r}"] = training_step(config, records(config.dataset), r)
    times = take_turns(contenders, rounds, visit_seconds)
    rows = [(name, r, milliseconds(times, f"{name} {r}") / r, quotient(times, f"{name} {r}", f"{name} 1") / r)
            for name in ("784-512-512-10", "64-64-64-10") for r in REPLICAS]
    return markdown(("network", "R", "ms a step and trial", "over R = 1"), rows)


def evaluation_table() -> str:
    """What an epoch costs beside its steps: accuracy on the held-out records, and the record of the epoch."""
    data, config = records("fashion_mnist"), TrialConfig(**BASE)
    training = Training(Pack((config,)), data, torch.device("cpu"))
    calls = {"validation, 6,000 records": lambda: training.evaluation.count(training.net, "validation"),
             "test, 10,000 records": lambda: training.evaluation.count(training.net, "test"),
             "batches": training.sampler.epoch}
    times = take_turns(calls, 5, 0.2)
    return markdown(("part of an epoch", "ms"), [(name, milliseconds(times, name)) for name in calls])


def tracking_costs(n: int, epochs: int = 15) -> Iterator[tuple[float, ...]]:
    """CPU ms of starting, of one epoch, and of ending a trial, in a store that has as many trials as came before."""
    metrics = {f"metric/{k}": 0.5 for k in range(15)}
    weights = {"layer_1.weight": np.zeros((512, 784), np.float32)}
    outcome = Outcome("finished", weights, (ClassAccuracy(0, "test", 9, 6),))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(None, Path(folder))
        store.open_sweep("scaling")
        for seed in range(n):
            config, marks = TrialConfig(**BASE, seed=seed), [time.process_time()]
            store.start(config)
            marks.append(time.process_time())
            for number in range(1, epochs):
                store.log([EpochRecord(config.trial_key, number, metrics)])
            marks.append(time.process_time())
            store.log([EpochRecord(config.trial_key, epochs, metrics, {}, outcome)])
            marks.append(time.process_time())
            start, log, end = (b - a for a, b in itertools.pairwise(marks))
            yield 1e3 * start, 1e3 * log / (epochs - 1), 1e3 * end


def tracking_table(n: int) -> str:
    """Medians of the first and of the last tenth of the trials."""
    costs, tenth = list(tracking_costs(n)), max(1, n // 10)
    rows = [(f"{a + 1} to {b}", *map(statistics.median, zip(*costs[a:b], strict=True)))
            for a, b in ((0, tenth), (n - tenth, n))]
    return markdown(("trials", "ms to start", "ms an epoch", "ms to end"), rows)


def sweeps_table(trials: Sequence[int], workers: Sequence[int]) -> str:
    """Dry sweeps, each a process of its own (`dry.py`)."""
    rows = []
    for n, w in [*((n, max(workers)) for n in trials), *((max(trials), w) for w in workers[:-1])]:
        command = [sys.executable, Path(__file__).with_name("dry.py"), "--trials", str(n), "--workers", str(w)]
        seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        between = (seen["end_at"] - seen["fifth_at"]) / (0.8 * n)
        rows.append((n, w, seen["wall_seconds"], n / seen["wall_seconds"], 1e3 * between,
                     1e3 * seen["cpu_seconds"] / n, seen["memory_fifth"], seen["memory_end"]))
    return markdown(("trials", "workers", "s in all", "trials a second", "ms a trial, without start and end",
                     "driver's CPU ms a trial", "MiB at a fifth", "MiB at the end"), rows)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; `--tiny` to see that it runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="few rounds and trials")
    tiny = parser.parse_args(arguments).tiny
    torch.set_num_threads(1)
    keep_freed_memory()
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, torch {facts['torch']}, load average {facts['load_average']}\n")
    rounds, visit = (1, 0.001) if tiny else (11, 0.1)
    for table in (lambda: steps_table(rounds, visit), lambda: packs_table(rounds, visit), evaluation_table,
                  lambda: tracking_table(2 if tiny else 200),
                  lambda: sweeps_table(*(((5,), (1,)) if tiny else (TRIALS, WORKERS)))):
        print(table() + "\n", flush=True)
    print(f"load average at the end {os.getloadavg()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
