"""A sweep of trials that train nothing, through the real Ray and the real MLflow: what the machinery costs by itself.

`PYTHONPATH=. python tests/benchmarks/dry.py --trials 1000` prints one JSON object. It is a process of its own, so that
its memory is that of a driver: Linux only, where /proc says how much that is.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from ray import cloudpickle

from pipeline.experiment.experiment import Experiment
from pipeline.sweep.run import run_sweep
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Resources
from pipeline.trials.records import EpochRecord

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import sweep_stub

cloudpickle.register_pickle_by_value(sweep_stub)  # workers cannot import from the folder of the tests


def memory() -> float:
    """MiB of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def dry_sweep(n_trials: int, epochs: int, pack_size: int, workers: int) -> dict[str, float]:
    """Sweep `n_trials` trials of a stub.

    Args:
        epochs: of each.
        pack_size: trials of a pack; 0 for what a sweep takes by default.
        workers: packs at the same time.

    Returns:
        wall_seconds from before Ray starts until after it has ended; cpu_seconds of the driver; its MiB when a fifth of
        the trials, and all, have ended (memory_fifth, memory_end), and the seconds at which they had
        (fifth_at, end_at).
    """
    trials = tuple(TrialConfig(dataset="digits", epochs=epochs, hidden=(8,), mechanism="photonic", sigma=0.1, seed=s)
                   for s in range(n_trials))
    ended, seen, log = 0, {}, Store.log

    def counted(store: Store, records: list[EpochRecord]) -> None:
        nonlocal ended
        log(store, records)
        ended += sum(record.outcome is not None for record in records)
        for name, count in (("fifth", n_trials / 5), ("end", n_trials)):
            if ended >= count and f"memory_{name}" not in seen:
                seen.update({f"memory_{name}": memory(), f"{name}_at": time.perf_counter() - began})

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Store, "log", counted):
        experiment = Experiment("dry", "", trials, Resources(pack_size=pack_size), (), Path("dry.yaml"))
        began, cpu = time.perf_counter(), time.process_time()
        result = run_sweep(experiment, root=Path(folder, "mlruns"), workers=workers, quiet=True,
                           trainer=functools.partial(sweep_stub.train, folder=Path(folder), seconds=0.0))
        wall = time.perf_counter() - began
    if result.finished != n_trials:
        raise RuntimeError(f"the sweep finished {result.finished} of {n_trials} trials: {result.failed}")
    return {"wall_seconds": wall, "cpu_seconds": time.process_time() - cpu, **seen}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pack-size", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    print(json.dumps(dry_sweep(options.trials, options.epochs, options.pack_size, options.workers)))
