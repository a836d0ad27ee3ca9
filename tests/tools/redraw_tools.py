"""Attacks on what a search with a budget says it spent, and an odometer of its own.

A plugin that every worker imports writes down each noisy score as it is drawn. A score that is found anywhere in public
(store, trash, screen, logs) was released, and so was the epoch that it belongs to, whatever the product says.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from fault_tools import environment

from pipeline.accounting.budget import restored_filter
from pipeline.sweep import status
from pipeline.tracking.reader import Reader

INTERCEPTOR = '''
import json, os, time

if "LEDGER" in os.environ:
    from pipeline.learning import training
    from pipeline.learning.evaluation import Evaluation

    Training, accuracy, run_epoch = training.Training, Evaluation.accuracy, training.Training.run_epoch

    def slow(self):
        time.sleep(0.3)
        self.evaluation.whose = [trial.trial_key for trial in self.pack.trials], self.epoch + 1
        return run_epoch(self)

    def written(self, part, counts):
        values = accuracy(self, part, counts)
        if part == "validation":
            with open(os.environ["LEDGER"], "a") as file:
                for key, value in zip(self.whose[0], values):
                    file.write(json.dumps([key, self.whose[1], value]) + chr(10))
        return values

    Training.run_epoch, Evaluation.accuracy = slow, written
'''
NOISE, BUDGET = 4.0, 3.0  # multiplier z of its trials; epsilon
FILE = f"""
name: attacked
plugins: [interceptor]
base: {{dataset: digits, hidden: [16], batch_size: 128, epochs: 6, algorithm: dfa, feedback_std: 0.15,
       mechanism: per_example, sampler: poisson, noise: secure, arithmetic: integer, noise_multiplier: {NOISE},
       alignment_batches: 0}}
search: {{algorithm: random, trials: 2, space: {{learning_rate: {{loguniform: [0.1, 2]}}}}, seed: 1, max_concurrent: 2}}
budget: {{epsilon: {BUDGET}, delta: 1.0e-5}}
resources: {{pack_size: 1, checkpoint_seconds: 0}}
"""


class Attack:
    """A search with a budget, in an empty folder, that the command line runs again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.ledger, self.root = folder, folder / "log", folder / "ledger", folder / "mlruns"
        (folder / "interceptor.py").write_text(INTERCEPTOR)
        (folder / "attacked.yaml").write_text(FILE)
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """The command, in a session of its own."""
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.cli", "sweep", "attacked.yaml", "--workers", "2"], cwd=self.folder,
                env=environment(LEDGER=str(self.ledger)), stdout=log, stderr=log, start_new_session=True)

    def published(self) -> Counter:
        """(trial_key, epoch) -> distinct scores of it that are public."""
        if not self.ledger.exists():
            return Counter()
        drawn, seen = set(map(tuple, map(json.loads, self.ledger.read_text().splitlines()))), self._public_numbers()
        return Counter((key, epoch) for key, epoch, value in drawn if value in seen)

    def _public_numbers(self) -> set[float]:
        """Every number in the store, its trash, on the screen and in logs."""
        files = [self.log, *(self.root / "failures").glob("*"), *(self.root / "artifacts").rglob("*.json")]
        texts, numbers = [path.read_text(errors="replace") for path in files], set()
        if (self.root / "mlflow.db").exists():
            with self._database() as database, contextlib.suppress(sqlite3.OperationalError):  # no tables yet
                for table in ("metrics", "latest_metrics"):
                    numbers |= {value for (value,) in database.execute(f"SELECT value FROM {table}")}
                for table in ("tags", "params", "experiment_tags"):
                    texts += [text for (text,) in database.execute(f"SELECT value FROM {table}")]
        return numbers | {float(text) for text in re.findall(r"-?\d+\.\d{5,}(?:e-?\d+)?", "\n".join(texts))}

    def _database(self) -> contextlib.closing:
        return contextlib.closing(sqlite3.connect(self.root / "mlflow.db", timeout=30, isolation_level=None))

    def epsilons(self) -> tuple[float, float]:
        """(of all epochs that are public, by Renyi divergences of dp_accounting's own at the order of the filter;
        what the product says)."""
        store = Reader(root=self.root)
        store.attach("attacked")
        order, steps = restored_filter(store.budget()).order, (1293 // 128) * sum(self.published().values())
        event = SelfComposedDpEvent(PoissonSampledDpEvent(128 / 1293, GaussianDpEvent(NOISE)), steps)
        divergence = float(np.asarray(RdpAccountant([order]).compose(event).rdp)[0])
        public = divergence + math.log((order - 1) / order) - math.log(1e-5 * order) / (order - 1)
        return public, status.read(store, "attacked").budget["spent"]

    def wait(self, epochs: int) -> bool:
        """Until some trial has so many more public epochs; False if the command ended."""
        before, deadline = self.published(), time.monotonic() + 240
        while self.process.poll() is None:
            gained = Counter(key for key, _ in (self.published() - before).elements())
            if max(gained.values(), default=0) >= epochs:
                return True
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.05)
        return False

    def kill(self) -> None:
        """Driver and workers, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for environ in Path("/proc").glob("[0-9]*/environ"):  # workers are in sessions of their own
            with contextlib.suppress(OSError, ValueError):
                if f"LEDGER={self.ledger}".encode() in environ.read_bytes():
                    os.kill(int(environ.parent.name), signal.SIGKILL)

    def delete_checkpoints(self) -> None:
        for path in self.root.rglob("checkpoints/attacked/*.safetensors"):
            path.unlink(missing_ok=True)

    def delete_runs(self) -> None:
        """Of trials that are not done, and their checkpoints."""
        self.delete_checkpoints()
        with self._database() as database:
            done = "SELECT run_uuid FROM tags WHERE key = 'status' AND value IN ('finished', 'diverged')"
            of_trials = "SELECT run_uuid FROM tags WHERE key = 'trial_key'"
            database.execute(f"UPDATE runs SET lifecycle_stage = 'deleted', deleted_time = {int(time.time() * 1000)} "
                             f"WHERE run_uuid IN ({of_trials}) AND run_uuid NOT IN ({done})")
