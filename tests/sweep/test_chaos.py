"""Twenty faults, drawn by a seed, over one sweep; what is left is what an undisturbed sweep leaves, to the last bit."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_tools import ROOT, assert_as_if_undisturbed, children, environment, locked

from pipeline.experiment.experiment import load_experiment

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
trainer = functools.partial(fault_trainer.train, root=root, name={name!r}, pause=0.15, stop=experiment.plan.stop)
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
    """One sweep, the command that runs it, and what is done to it.

    Args:
        root: of its store, with its experiment file `<name>.yaml`.
    """

    def __init__(self, root: Path, name: str = "chaos") -> None:
        self.root, self.name, self.log, self.starts = root, name, root / "output.txt", 0
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.starts += 1
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c",
                 DRIVER.format(tests=str(ROOT / "tests" / "tools"), root=str(self.root), name=self.name)], cwd=ROOT,
                stdout=log, stderr=log, start_new_session=True, env=environment())

    def wait_for_checkpoint(self) -> None:
        """Until a pack saves one, so that every fault meets a sweep that trains; a sweep that failed is run again."""
        since, deadline = time.time(), time.monotonic() + 300
        while not any(_written(path) > since for path in self._checkpoints()):
            assert time.monotonic() < deadline, self.log.read_text()
            if self.process is None or self.process.poll() is not None:
                assert self.process is None or self.process.returncode != 0, "the sweep ended before all faults"
                self.start()
            time.sleep(0.02)

    def _checkpoints(self) -> list[Path]:
        return list((self.root / "private" / "checkpoints" / self.name).glob("*.safetensors"))

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

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While the block runs; no process is left behind."""
        try:
            yield
        finally:
            if self.process:
                self.process.kill()
                self.process.wait()

    def finish(self, most: int) -> None:
        """Run the command until all is done, `most` times in all."""
        while self.process.wait(timeout=600) != 0:
            assert self.starts < most, self.log.read_text()
            self.start()

    def endure(self, faults: list[str], chance: random.Random, after: Callable[[], object] = lambda: None) -> str:
        """Run the command until all is done, with these faults on the way, each followed by `after`; what was injected,
        in words."""
        with self.running():
            for fault in faults:
                self.wait_for_checkpoint()
                self.inject(fault, chance)
                after()
            self.finish(len(faults))
        counts = ", ".join(f"{count} {fault}" for fault, count in sorted(Counter(faults).items()))
        return f"{counts}; the same command {self.starts} times"

    def _worker(self, chance: random.Random) -> int:
        """A process that trains."""
        while not (workers := children(self.process.pid, "ray::PackTrainable")):
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)  # all are being started again
        return chance.choice(workers)


@pytest.mark.nightly
def test_twenty_faults(tmp_path):
    (tmp_path / "chaos.yaml").write_text(FILE)
    chance, chaos = random.Random(SEED), Chaos(tmp_path)
    faults = chance.choices(list(FAULTS), list(FAULTS.values()), k=COUNT)
    assert set(faults) == set(FAULTS)
    injected = chaos.endure(faults, chance)
    assert "resumed from epoch " in chaos.log.read_text()
    assert_as_if_undisturbed(tmp_path, load_experiment(tmp_path / "chaos.yaml"), "twenty, drawn by a seed", injected)
