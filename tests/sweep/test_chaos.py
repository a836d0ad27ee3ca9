"""Twenty faults, drawn by a seed, over one sweep; what is left is what an undisturbed sweep leaves, to the last bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_tools import ROOT, assert_as_if_undisturbed, children, environment, locked
from search_tools import by_hand
from stored import attached

from pipeline.accounting.budget import restored_filter
from pipeline.experiment.experiment import load_experiment
from pipeline.sweep import status

FAULTS = {"worker SIGKILL": 6, "driver SIGKILL": 1, "driver SIGINT": 1, "database locked": 4, "worker SIGSTOP": 4,
          "driver SIGSTOP": 4}  # weights; what does not kill lasts for less than a second
SEED, COUNT = 10, 20
FILE = """
name: chaos
base: {dataset: digits, hidden: [16, 16], batch_size: 128, epochs: 30, learning_rate: 0.1, mechanism: photonic,
       sigma: 0.1}
grid: {algorithm: [pdfa, dfa], seed: {range: [0, 3]}}
resources: {pack_size: 1}
"""
DRIVER = """
import functools, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import fault_trainer
from ray import cloudpickle
from pipeline.experiment.experiment import load_experiment
from pipeline.sweep.run import run_sweep
cloudpickle.register_pickle_by_value(fault_trainer)
root = Path({root!r})
experiment = load_experiment(root / "{name}.yaml")
trainer = functools.partial(fault_trainer.train, root=root, name={name!r}, pause=0.15)
result = run_sweep(experiment, root=root, workers=2, trainer=trainer)
sys.exit(130 if result.remaining else 1 if result.failed else 0)
"""


def _written(path):
    """When a file was last written; 0 if it has gone, as a checkpoint does when its pack ends."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0


class Chaos:
    """The sweep of an experiment file, the command that runs it, and what is done to it.

    Args:
        root: of its store, with its file `<name>.yaml`.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name, self.log, self.starts = root, name, root / "output.txt", 0
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.starts += 1
        script = DRIVER.format(tests=str(ROOT / "tests" / "tools"), root=str(self.root), name=self.name)
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=log, stderr=log,
                                            start_new_session=True, env=environment())

    def wait_for_checkpoint(self) -> None:
        """Until a pack saves one, so that every fault meets a sweep that trains; a sweep that failed is run again."""
        since, deadline = time.time(), time.monotonic() + 300
        folder = self.root / "private" / "checkpoints" / self.name
        while not any(_written(path) > since for path in folder.glob("*.safetensors")):
            assert time.monotonic() < deadline, self.log.read_text()
            if self.process is None or self.process.poll() is not None:
                assert self.process is None or self.process.returncode != 0, "the sweep ended before all faults"
                self.start()
            time.sleep(0.02)

    def inject(self, fault: str, chance: random.Random) -> None:
        what, _, name = fault.partition(" ")
        how, seconds = getattr(signal, name, None), chance.uniform(0.2, 1)
        if fault == "database locked":
            with locked(self.root / "mlflow.db"):
                time.sleep(seconds)
            return
        victim = self.process.pid if what == "driver" else self._worker(chance)
        os.killpg(victim, how) if how == signal.SIGINT else os.kill(victim, how)
        if how == signal.SIGSTOP:
            time.sleep(seconds)
            os.kill(victim, signal.SIGCONT)
        elif what == "driver":
            self.process.wait(timeout=120)

    def _worker(self, chance: random.Random) -> int:
        """A process that trains."""
        while not (workers := children(self.process.pid, "ray::PackTrainable")):
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)  # all are being started again
        return chance.choice(workers)

    def endure(self, weights: dict[str, int], seed: int, count: int, after: Callable[[], object] = lambda: None) -> str:
        """Run the command until all is done, with so many of these faults on the way, each followed by `after`; what
        was injected, in words."""
        chance = random.Random(seed)
        faults = chance.choices(list(weights), list(weights.values()), k=count)
        assert set(faults) == set(weights), "another seed would have all"
        try:
            for fault in faults:
                self.wait_for_checkpoint()
                self.inject(fault, chance)
                after()
            while self.process.wait(timeout=600) != 0:
                assert self.starts < count, self.log.read_text()
                self.start()
        finally:
            if self.process:
                self.process.kill()
                self.process.wait()
        counts = ", ".join(f"{count} {fault}" for fault, count in sorted(Counter(faults).items()))
        return f"{counts}; the same command {self.starts} times"


@pytest.mark.nightly
def test_twenty_faults(tmp_path):
    (tmp_path / "chaos.yaml").write_text(FILE)
    chaos = Chaos(tmp_path, "chaos")
    injected = chaos.endure(FAULTS, SEED, COUNT)
    assert "resumed from epoch " in chaos.log.read_text()
    assert_as_if_undisturbed(tmp_path, load_experiment(tmp_path / "chaos.yaml"), "twenty, drawn by a seed", injected)


KILLS = {"worker SIGKILL": 7, "driver SIGKILL": 3}  # weights
PAID = """
name: paid
base: {dataset: digits, hidden: [16, 16], batch_size: 128, epochs: 24, mechanism: per_example, sampler: shuffled,
       noise_multiplier: 40, private_metrics: noisy, alignment_batches: 0}
search:
  algorithm: random
  trials: 8
  space: {learning_rate: {loguniform: [0.05, 5]}, clipping_norm: {uniform: [0.5, 4]}}
  max_concurrent: 2
budget: {epsilon: 2.4, delta: 1.0e-5}
resources: {pack_size: 1}
"""


@pytest.mark.nightly
def test_what_is_spent_is_what_was_released_whatever_is_killed(tmp_path):
    """It never goes down, and the store has it also after every kill."""
    (tmp_path / "paid.yaml").write_text(PAID)
    values = []

    def read():
        store = attached("paid", tmp_path)
        filter = restored_filter(store.budget())
        values.append(filter.epsilon(by_hand(store, filter.order)))
        assert values[-1] <= status.read(store, "paid").budget["spent"], "what was released in between is counted"
        return store, filter

    injected = Chaos(tmp_path, "paid").endure(KILLS, 1, 5, after=read)
    store, filter = read()
    experiment, whole = store.as_swept(load_experiment(tmp_path / "paid.yaml")), values[-1]
    assert values == sorted(values) and 0 < values[0] < whole <= 2.4
    assert whole == filter.epsilon(filter.spent(store.released())) == status.read(store, "paid").budget["spent"]
    points = [point.value for point in sorted(store._client.get_metric_history(store._parent(), "epsilon/spent"),
                                              key=lambda point: (point.step, point.timestamp))]
    assert points == sorted(points) and points[-1] == whole, "what was logged as the sweep went"
    epochs = {release.trial.trial_key: release.epochs for release in store.released()}
    assert len(epochs) == len(store.released()) == len(experiment.trials)
    assert set(epochs.values()) == {24} and len(epochs) < 8, "each epoch once, and the budget ended it"
    assert_as_if_undisturbed(tmp_path, experiment, "five kills of a search with a budget", injected)
