"""Attacks on what a search with a budget says it spent, and an odometer of its own.

A plugin that every worker imports writes down each noisy score as it is drawn. A score that is found anywhere in public
(store, trash, screen, logs) was released, and so was the epoch that it belongs to, whatever the product says.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from fault_tools import children

INTERCEPTOR = '''
import json, os, time
from pathlib import Path

if "LEDGER" in os.environ:
    from pipeline.learning import randomness, training
    from pipeline.learning.evaluation import Evaluation

    Training, next_noise, accuracy = training.Training, randomness.RoundedNoise.next, Evaluation.accuracy
    run_epoch, drawn = Training.run_epoch, [0]

    def counted(self):
        drawn[0] += 1
        return next_noise(self)

    def slow(self):
        time.sleep(float(os.environ.get("PAUSE", "0.3")))
        self.evaluation.whose = [trial.trial_key for trial in self.pack.trials], self.epoch + 1
        return run_epoch(self)

    def written(self, part, counts):
        values, before = accuracy(self, part, counts), drawn[0]
        if part == "validation":
            with open(os.environ["LEDGER"], "a") as file:
                for key, value in zip(self.whose[0], values):
                    file.write(json.dumps([key, self.whose[1], value, before]) + chr(10))
        return values

    randomness.RoundedNoise.next, Training.run_epoch, Evaluation.accuracy = counted, slow, written
'''
FILE = """
name: attacked
plugins: [interceptor]
base: {dataset: digits, hidden: [16], batch_size: 128, epochs: EPOCHS, algorithm: dfa, feedback_std: 0.15,
       mechanism: per_example, sampler: poisson, noise: secure, arithmetic: integer, noise_multiplier: NOISE,
       alignment_batches: 0}
search:
  algorithm: random
  trials: TRIALS
  space: {learning_rate: {loguniform: [0.1, 2]}}
  seed: 1
  max_concurrent: 2
budget: {epsilon: 3, delta: 1.0e-5}
resources: {pack_size: 1, checkpoint_seconds: 0}
"""
PACKAGE = Path(__file__).parents[2] / "pipeline"


class Attack:
    """A search with a budget of epsilon 3 in a folder, run again and again by the command line.

    Args:
        folder: empty; it gets a copy of the package, which may be edited.
        package: to copy.
        noise: multiplier z of its trials.
    """

    def __init__(self, folder: Path, package: Path = PACKAGE, noise: float = 2.0, trials: int = 3,
                 epochs: int = 6) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.log, self.ledger = folder, folder / "output.txt", folder / "ledger.jsonl"
        self.epochs, self.noise, self.root = epochs, noise, folder / "mlruns"
        self.source = folder / "source"
        shutil.copytree(package, self.source / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "interceptor.py").write_text(INTERCEPTOR)
        text = FILE.replace("EPOCHS", str(epochs)).replace("NOISE", str(noise)).replace("TRIALS", str(trials))
        (folder / "attacked.yaml").write_text(text)
        self.uri: str | None = None  # of a store that several hosts share
        self.process: subprocess.Popen | None = None
        self.commands = 0

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")}
        shared = {"MLFLOW_TRACKING_URI": self.uri} if self.uri else {}
        return {**kept, "PYTHONPATH": str(self.source), "LEDGER": str(self.ledger), "OMP_NUM_THREADS": "1", **shared}

    def start(self) -> None:
        """The command, in a session of its own."""
        self.commands += 1
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.cli", "sweep", "attacked.yaml", "--workers", "2", "--mlruns",
                 str(self.root)], cwd=self.folder, env=self._environment(), stdout=log, stderr=log,
                start_new_session=True)

    def published(self) -> Counter:
        """(trial_key, epoch) -> distinct scores of it that are public."""
        if not self.ledger.exists():
            return Counter()
        drawn = {(key, epoch, value) for key, epoch, value, _ in map(json.loads, self.ledger.read_text().splitlines())}
        seen = self._public_numbers()
        return Counter((key, epoch) for key, epoch, value in drawn if value in seen)

    def _database(self) -> Path:
        return Path(self.uri.removeprefix("sqlite:///")) if self.uri else self.root / "mlflow.db"

    def _public_numbers(self) -> set[float]:
        """Every number in the store, its trash, on the screen and in logs."""
        texts = [path.read_text(errors="replace") for root in self.folder.glob("mlruns*")
                 for path in [*(root / "failures").glob("*"), *(root / "artifacts").rglob("*.json")] if path.is_file()]
        numbers: set[float] = set()
        if self._database().exists():
            with contextlib.closing(sqlite3.connect(self._database(), timeout=30)) as database, contextlib.suppress(
                    sqlite3.OperationalError):  # no tables yet
                for table in ("metrics", "latest_metrics"):
                    numbers |= {value for (value,) in database.execute(f"SELECT value FROM {table}")}
                for table in ("tags", "params", "experiment_tags"):
                    texts += [text for (text,) in database.execute(f"SELECT value FROM {table}")]
        if self.log.exists():
            texts.append(self.log.read_text(errors="replace"))
        return numbers | {float(text) for text in re.findall(r"-?\d+\.\d{5,}(?:e-?\d+)?", "\n".join(texts))}

    def epsilon(self) -> float:
        """Of all epochs that are public, by Renyi divergences of dp_accounting's own at the order of the filter."""
        order, delta = self._kept()[2:]
        accountant = RdpAccountant([order])
        steps, n = 1293 // 128, sum(self.published().values())
        accountant.compose(SelfComposedDpEvent(
            PoissonSampledDpEvent(128 / 1293, GaussianDpEvent(self.noise)), steps * n))
        rdp = float(np.asarray(accountant.rdp)[0]) if n else 0.0
        return rdp + math.log((order - 1) / order) - math.log(delta * order) / (order - 1) if n else 0.0

    def epsilon_or_nothing(self) -> float:
        """As `epsilon`; 0 of a search that has not come to have a store."""
        return self.epsilon() if self.published() else 0.0

    def _kept(self) -> tuple[float, float, int, float]:
        with contextlib.closing(sqlite3.connect(self._database(), timeout=30)) as database:
            (text,) = next(database.execute("SELECT value FROM experiment_tags WHERE key = 'budget' UNION "
                                            "SELECT value FROM tags WHERE key = 'budget'"))
        epsilon, delta, order, accounted = json.loads(text)
        return epsilon, delta, int(order), accounted

    def said(self) -> float:
        """What `photonic status` says is spent."""
        found = subprocess.run([sys.executable, "-m", "pipeline.cli", "status", "attacked.yaml", "--json", "--mlruns",
                                str(self.root)], cwd=self.folder, env=self._environment(), capture_output=True,
                               text=True)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)[0]["budget"]["spent"]

    def wait(self, epochs: int, seconds: float = 240) -> bool:
        """Until some trial that is not done has so many public epochs in the present command; False if it ended."""
        before, deadline = self.published(), time.monotonic() + seconds
        while self.process.poll() is None:
            now = self.published()
            gained = Counter(key for key, _ in (now - before).elements())
            if gained and max(gained.values()) >= epochs:
                return True
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.05)
        return False

    def kill(self) -> None:
        """Driver and workers, at once."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for status in Path("/proc").glob("[0-9]*/environ"):  # workers are in sessions of their own
            with contextlib.suppress(OSError, ValueError):
                if f"LEDGER={self.ledger}".encode() in status.read_bytes():
                    os.kill(int(status.parent.name), signal.SIGKILL)

    def checkpoints(self) -> list[Path]:
        return list(self.root.rglob("checkpoints/attacked/*.safetensors"))

    # What somebody may do between two commands.

    def delete_checkpoints(self) -> None:
        for path in self.checkpoints():
            path.unlink(missing_ok=True)

    def damage_checkpoints(self) -> None:
        for path in self.checkpoints():
            content = path.read_bytes()
            path.write_bytes(content[:-50] + bytes([content[-50] ^ 1]) + content[-49:])

    def edit_package(self) -> None:
        with (self.source / "pipeline" / "learning" / "training.py").open("a") as file:
            file.write(f"# edited {time.time()}\n")

    def move_to_another_host(self) -> None:
        """Another folder, with the same store; `uri` must have been set from the beginning."""
        self.root = self.folder / f"mlruns-{len(list(self.folder.glob('mlruns*')))}"

    def delete_runs(self) -> None:
        """Of trials that are not done, and their checkpoints."""
        self.delete_checkpoints()
        with contextlib.closing(sqlite3.connect(self._database(), timeout=30, isolation_level=None)) as database:
            done = "SELECT run_uuid FROM tags WHERE key = 'status' AND value IN ('finished', 'diverged', 'stopped')"
            of_trials = "SELECT run_uuid FROM tags WHERE key = 'trial_key'"
            database.execute(f"UPDATE runs SET lifecycle_stage = 'deleted', deleted_time = {int(time.time() * 1000)} "
                             f"WHERE run_uuid IN ({of_trials}) AND run_uuid NOT IN ({done})")


ATTACKS = {"checkpoint deleted": "delete_checkpoints", "checkpoint damaged": "damage_checkpoints",
           "package edited": "edit_package", "another host": "move_to_another_host", "run deleted": "delete_runs"}


def attack(folder: Path, name: str, repeats: int, package: Path = PACKAGE, **options: float) -> dict[str, float]:
    """Kill the command after some epochs were published, do what `name` says, and run it again, `repeats` times; then
    to its end, or until it refuses to go on. What is public, what the product says, and what it comes to."""
    one = Attack(folder, package, **options)
    if name == "another host":
        one.uri = f"sqlite:///{folder / 'shared.db'}"
    try:
        for _ in range(repeats):
            one.start()
            alive = one.wait(epochs=2)
            one.kill()
            getattr(one, ATTACKS[name])()
            if not alive:
                break
        for _ in range(3):
            one.start()
            if one.process.wait(timeout=600) == 0:
                break
    finally:
        one.kill()
    found = one.published()
    return {"attack": name, "commands": one.commands, "epochs published": sum(found.values()),
            "draws of one epoch": max(found.values()), "epsilon said": one.said(),
            "epsilon by the filter": one.epsilon(), "exit": one.process.returncode}


def endure(folder: Path, package: Path, seconds: float, seed: int) -> Iterator[dict[str, float]]:
    """One search after another, each killed at random moments and then left alone or attacked, for so long; what every
    one came to.

    Raises:
        AssertionError: where more is public than the product says, or than the budget.
    """
    chance, end = random.Random(seed), time.monotonic() + seconds
    number = events = 0
    while time.monotonic() < end:
        number += 1
        one = Attack(folder / f"search-{number}", package, noise=round(chance.uniform(1.6, 4.0), 2),
                     trials=chance.randint(2, 6), epochs=chance.randint(3, 10))
        try:
            ended = False
            while time.monotonic() < end and not ended and one.commands < 30:
                one.start()
                if chance.random() < 0.6:
                    one.wait(epochs=chance.randint(1, 4))
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        one.process.wait(chance.uniform(5, 30))
                if chance.random() < 0.3 and (workers := children(one.process.pid, "ray::PackTrainable")):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(chance.choice(workers), signal.SIGKILL)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        one.process.wait(chance.uniform(5, 20))
                ended = one.process.poll() == 0
                one.kill()
                if not ended and chance.random() < 0.8:
                    getattr(one, chance.choice([what for what in ATTACKS.values() if "host" not in what]))()
                events += 1
                public, budget = one.epsilon_or_nothing(), 3.0
                said = one.said() if public else 0.0
                assert public <= said * (1 + 1e-9) <= budget * (1 + 1e-9), (one.folder, public, said)
        finally:
            one.kill()
        found = one.published()
        yield {"search": number, "commands": one.commands, "faults": events, "epochs published": sum(found.values()),
               "draws of one epoch": max(found.values(), default=0), "epsilon said": said,
               "epsilon by the filter": public, "ended": ended}


if __name__ == "__main__":  # PACKAGE FOLDER [SECONDS SEED]: the table of all attacks, or so many seconds at random
    given, place = Path(sys.argv[1]), Path(sys.argv[2])
    if sys.argv[3:]:
        for row in endure(place, given, float(sys.argv[3]), int(sys.argv[4])):
            print(json.dumps(row), flush=True)
    else:
        for attacked in ATTACKS:
            (place / attacked.replace(" ", "-")).mkdir(parents=True)
            print(json.dumps(attack(place / attacked.replace(" ", "-"), attacked, 4, given, noise=1.6, trials=2)),
                  flush=True)
