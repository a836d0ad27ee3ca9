"""Kill sweeps with secret noise at any moment, tamper with their private files, and count what they released.

A plugin that driver and workers import is an odometer of its own: it writes down every noisy score as it is drawn, and
which training drew it. It also dies, or lacks a disk, at the places that it is told. A score that is found anywhere in
public (store, trash, screen, logs, artifacts) was released, whatever the product says.

    python tests/tools/kills.py FOLDER --kills 200 --seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from fault_tools import environment
from stored import attached

from pipeline.accounting.budget import restored_filter
from pipeline.accounting.evaluations import evaluation_noise
from pipeline.sweep import status
from pipeline.tracking.artifacts import names_of
from pipeline.tracking.reader import Reader

NOISE, EPOCHS = 4.0, 4
BASE = f"""
plugins: [interceptor]
base: {{dataset: digits, hidden: [16], batch_size: 128, epochs: {EPOCHS}, algorithm: dfa, feedback_std: 0.15,
       mechanism: per_example, sampler: poisson, noise: secure, arithmetic: integer, noise_multiplier: {NOISE},
       alignment_batches: 0}}
resources: {{pack_size: 2, checkpoint_seconds: 0}}
"""
GRID = f"name: attacked{BASE}grid: {{seed: {{range: [0, 6]}}}}\n"
SEARCH = f"""name: attacked{BASE}budget: {{epsilon: 20, delta: 1.0e-5}}
search: {{algorithm: random, trials: 5, space: {{learning_rate: {{loguniform: [0.1, 2]}}}}, seed: 1, max_concurrent: 2}}
"""
DIVERGES, FAILS = {1: 2, 2: 2, 3: 3}, (4, 5)  # of the grid: seed -> epoch; seeds whose pack fails
WORKER = ("epoch", "checkpoint", "seal", "sealing", "sealed", "content", "removing")
DRIVER = ("name", "named", "read", "asked", "keep", "kept", "log", "finish", "ended")
TAMPERS = ("none", "delete checkpoints", "damage checkpoints", "another torch", "delete sealed", "damage sealed",
           "move sealed")
INTERCEPTOR = '''
import json, math, os, signal, time, uuid
from pathlib import Path

FOLDER = Path(os.environ.get("KILLS", ""))


def at(place):
    try:
        os.rename(FOLDER / "orders" / place, done := FOLDER / "orders" / f"done-{uuid.uuid4()}")
    except FileNotFoundError:
        return
    order = done.read_text()
    with open(FOLDER / "killed", "a") as file:
        file.write(f"{order} {place}" + chr(10))
    if order == "full":
        raise OSError(28, "No space left on device")
    os.kill(os.getpid(), signal.SIGKILL)


def around(owner, name, before="", after="", when=lambda *arguments: True):
    call = getattr(owner, name)

    def wrapped(*arguments, **options):
        if before and when(*arguments):
            at(before)
        result = call(*arguments, **options)
        if after and when(*arguments):
            at(after)
        return result

    setattr(owner, name, wrapped)


if "KILLS" in os.environ:
    from pipeline.learning.training import Training
    from pipeline.sweep import checkpoints, recorder, worker
    from pipeline.tracking.store import Store

    run_epoch = Training.run_epoch

    def watched(self):
        if self.sampler.steps == 1:  # a rehearsal
            return run_epoch(self)
        at("epoch")
        time.sleep(0.1)
        for replica, trial in enumerate(self.pack.trials):
            if self.epoch + 1 == json.loads(os.environ["DIVERGES"]).get(str(trial.seed)):
                self.net.parameters.flat[replica] = math.nan
            if self.epoch == 2 and trial.seed in json.loads(os.environ["FAILS"]):
                raise ValueError("a weight is 0.12345678")
        self.__dict__.setdefault("drawn_by", uuid.uuid4().hex)
        records = run_epoch(self)
        with open(FOLDER / "drawn", "a") as file:
            file.write("".join(json.dumps([self.drawn_by, r.trial_key, r.epoch, r.metrics["validation/accuracy"]])
                               + chr(10) for r in records))
        return records

    Training.run_epoch = watched
    real = lambda path, *more: ".tmp" not in str(path)
    around(worker, "seal", "seal", "sealed", real)
    around(worker, "unseal", "content", when=real)
    around(worker, "remove", "removing")
    around(os, "replace", "sealing", when=lambda source, target: str(target).endswith(".sealed")
           and str(target).count(".tmp") == 0)
    around(os, "replace", "checkpoint", when=lambda source, target: "checkpoints" in str(target)
           and str(target).endswith(".safetensors") and str(target).count(".tmp") == 0)
    around(Store, "name", "name", "named")
    around(Store, "names", "read")
    around(recorder.Recorder, "name", after="asked")
    around(Store, "keep", "keep", "kept")
    around(Store, "log", "log")
    around(Store, "_finish", "finish", "ended")
    if os.environ.get("TORCH"):
        checkpoints.SOFTWARE["torch"] = os.environ["TORCH"]
'''


class Attack:
    """A sweep in an empty folder, that the command line runs again and again until its trials have ended."""

    def __init__(self, folder: Path, generator: random.Random, budget: bool) -> None:
        self.folder, self.random, self.budget = folder, generator, budget
        self.log, self.root, self.orders = folder / "log", folder / "mlruns", folder / "orders"
        self.private = self.root / "private" / "checkpoints" / "attacked"
        self.orders.mkdir(parents=True)
        (folder / "interceptor.py").write_text(INTERCEPTOR)
        (folder / "attacked.yaml").write_text(SEARCH if budget else GRID)
        self.killed, self.gone, self.away, self.torch = 0, set(), [], ""

    def run(self, most: int) -> int:
        """Run commands with at most so many faults, and then without; return the number of kills."""
        while self.kills < most and self._command(faults=True) not in (0, 1):
            self._tamper()
        self._restore()
        if self._command() == 1:
            self._command("--lost")
        assert self._command() == 0, "nothing is left to do"
        self.verify()
        return self.kills

    @property
    def kills(self) -> int:
        killed = self.folder / "killed"
        return self.killed + (killed.read_text().count("kill ") if killed.exists() else 0)

    def _command(self, *options: str, faults: bool = False) -> int:
        """Run the command to its end, which faults may bring about; return its exit code."""
        for order in self.orders.iterdir():
            order.unlink()
        for place in self.random.sample(WORKER, 3) + self.random.sample(DRIVER, 1) if faults else ():
            full = place in ("sealing", "checkpoint") and self.random.random() < 0.5
            (self.orders / place).write_text("full" if full else "kill")
        settings = {"KILLS": str(self.folder), "TORCH": self.torch if faults else "",
                    "DIVERGES": json.dumps({} if self.budget else DIVERGES),
                    "FAILS": json.dumps([] if self.budget else FAILS)}
        with open(self.log, "a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.cli", "sweep", "attacked.yaml", "--workers", "2", *options],
                cwd=self.folder, env=environment(**settings), stdout=log, stderr=log, start_new_session=True)
        limit = self.random.uniform(5, 30) if faults and self.random.random() < 0.5 else 300
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=limit)
        assert faults, self.log.read_text()[-3000:]
        self.killed += 1
        process.kill()
        if self.random.random() < 0.5:  # or its workers outlive it, for as long as they can
            self._kill_workers()
        return process.wait()

    def _kill_workers(self) -> None:
        for environ in Path("/proc").glob("[0-9]*/environ"):  # workers are in sessions of their own
            with contextlib.suppress(OSError, ValueError):
                if f"KILLS={self.folder}\0".encode() in environ.read_bytes():
                    os.kill(int(environ.parent.name), signal.SIGKILL)

    def _tamper(self) -> None:
        """Do something to the private files, and note which sealed results can no longer be sent."""
        what = self.random.choice(TAMPERS)
        self.torch = "0.0" if what == "another torch" else ""
        action, _, of = what.partition(" ")
        for path in self.private.glob({"sealed": "*.sealed", "checkpoints": "*.safetensors"}.get(of, "nothing")):
            with contextlib.suppress(FileNotFoundError):
                if of == "sealed" and action != "move":
                    self.gone.add(path.name.split(".")[1])
                if action == "delete":
                    path.unlink()
                elif action == "damage":
                    path.write_bytes(path.read_bytes()[:-3])
                else:
                    path.rename(moved := self.folder / path.name)
                    self.away.append(moved)

    def _restore(self) -> None:
        """Bring back what was moved to another host."""
        for path in self.away:
            path.rename(self.private / path.name)

    def verify(self) -> None:
        """Check that one draw of each trial is public, that what is spent is what was released, that nothing is lost.
        """
        store = attached("attacked", self.root)
        runs, public, drawn = store.runs(), self._public_numbers(), list(self._drawn())
        assert len(runs) == len({run.trial_key for run in runs}) == (5 if self.budget else 6)
        failing = {run.trial_key for run in runs if not self.budget and run.trial.seed in FAILS}
        for run in runs:
            (name,) = names_of(run.tags)
            of_trial = [line for line in drawn if line[1] == run.trial_key]
            seen = {(epoch, value) for _, _, epoch, value in of_trial if value in public}
            if run.status == "lost":
                of_pack = {key for of_one in self._packs(drawn) if run.trial_key in of_one for key in of_one}
                failed = failing & of_pack and run.tags["failure"].startswith("ValueError")
                assert failed or name in self.gone, f"{name} is lost, and its file was not deleted or damaged"
                assert not seen, "of a lost trial nothing is shown"
                continue
            history = store.history(run.run_id, "validation/accuracy")
            assert seen == set(history) and [epoch for epoch, _ in history] == list(range(1, run.epoch + 1))
            if not self.budget:
                assert (run.status, run.epoch) == (("diverged", DIVERGES[run.trial.seed]) if run.trial.seed in DIVERGES
                                                   else ("finished", EPOCHS))
            self._check_lineage(of_trial, history)
        released = store.released()
        assert Counter(release.trial.trial_key for release in released) == Counter(run.trial_key for run in runs)
        if self.budget:
            said = status.read(store, "attacked").budget["spent"]
            assert math.isclose(said, self._epsilon(store, len(runs) * EPOCHS), rel_tol=1e-6) and said <= 20
        assert not list(self.private.iterdir())

    def _drawn(self) -> Iterator[tuple[str, str, int, float]]:
        for line in (self.folder / "drawn").read_text().splitlines():
            with contextlib.suppress(ValueError):  # its writer was killed
                yield tuple(json.loads(line))

    @staticmethod
    def _packs(drawn: list[tuple[str, str, int, float]]) -> list[set[str]]:
        """The trials that were trained together, of each training: after deaths they may be other packs."""
        packs: dict[str, set[str]] = {}
        for training, key, _, _ in drawn:
            packs.setdefault(training, set()).add(key)
        return list(packs.values())

    def _check_lineage(self, drawn: list[tuple[str, str, int, float]], history: list[tuple[int, float]]) -> None:
        """All epochs are of the training that drew the last one, or of those whose checkpoint it went on from."""
        of_value = {(epoch, value): training for training, _, epoch, value in drawn}
        first = {}
        for training, _, epoch, _ in drawn:
            first[training] = min(epoch, first.get(training, epoch))
        trainings = [of_value[point] for point in history]
        for epoch, (one, following) in enumerate(itertools.pairwise(trainings), start=1):
            assert one == following or first[following] == epoch + 1, "two draws of one trial are public"

    def _public_numbers(self) -> set[float]:
        """Every number in the store, its trash, on the screen, in logs and artifacts."""
        files = [self.log, *(self.root / "failures").glob("*"), *(self.root / "artifacts").rglob("*.json")]
        texts, numbers = [path.read_text(errors="replace") for path in files], set()
        with contextlib.closing(sqlite3.connect(self.root / "mlflow.db", timeout=30)) as database:
            for table in ("metrics", "latest_metrics"):
                numbers |= {value for (value,) in database.execute(f"SELECT value FROM {table}")}
            for table in ("tags", "params", "experiment_tags"):
                texts += [text for (text,) in database.execute(f"SELECT value FROM {table}")]
        assert not any("0.12345678" in text for text in texts), "the message of a failure"
        return numbers | {float(text) for text in re.findall(r"-?\d+\.\d{5,}(?:e-?\d+)?", "\n".join(texts))}

    def _epsilon(self, store: Reader, epochs: int) -> float:
        """Of so many released epochs, by Renyi divergences of dp_accounting's own at the order of the filter."""
        _, order, delta = restored_filter(store.budget())
        event = SelfComposedDpEvent(PoissonSampledDpEvent(128 / 1293, GaussianDpEvent(NOISE)), 1293 // 128)
        training = float(np.asarray(RdpAccountant([order]).compose(event).rdp)[0])
        divergence = epochs * max(training, order / (2 * evaluation_noise(store.runs()[0].trial) ** 2))
        return divergence + math.log((order - 1) / order) - math.log(delta * order) / (order - 1)


def campaign(folder: Path, kills: int, seed: int) -> None:
    """Attack sweeps, one after the other, until so many processes were killed."""
    generator, total, number = random.Random(seed), 0, 0
    while total < kills:
        attack = Attack(folder / str(number), generator, budget=number % 2 == 1)
        try:
            total += attack.run(min(12, kills - total))
        finally:
            attack._kill_workers()
        number += 1
        print(f"{number} sweeps, {total} kills", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    campaign(given.folder.absolute(), given.kills, given.seed)
