"""Sweeps that are killed: what is left at the end is what an undisturbed sweep leaves, to the last bit."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import time
from pathlib import Path

import fault_trainer
import pytest
from fault_tools import assert_as_if_undisturbed, photonic, saved_epoch
from ray import cloudpickle

from pipeline.cli import main
from pipeline.experiment.experiment import Experiment, load_experiment
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.clock import SECONDS
from pipeline.sweep.lock import SweepRunning, sweeping
from pipeline.sweep.run import run_sweep
from pipeline.tracking.store import Store, TrackingError
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Resources

cloudpickle.register_pickle_by_value(fault_trainer)  # workers cannot import from the folder of the tests
TRIALS = tuple(TrialConfig(dataset="digits", hidden=(16, 16), batch_size=128, epochs=5, mechanism=mechanism, seed=seed,
                           learning_rate=0.1, algorithm="pdfa", sigma=0.1, **more)
               for mechanism, more in (("photonic", {}), ("per_example", {"noise_multiplier": 1.0}))
               for seed in range(2))
OPUS = 2
EXPERIMENT = Experiment("faults", "", TRIALS, Resources(pack_size=2), (), Path("faults.yaml"))


def run(root: Path, **disturbance):
    return run_sweep(EXPERIMENT, root=root, trainer=functools.partial(fault_trainer.train, root=root, **disturbance))


@pytest.mark.slow
def test_killed_workers_go_on_from_their_checkpoints(tmp_path, two_cores, said):
    """Both are at the checkpoint of epoch 2; the store has as many epochs of one pack, and one more of the other."""
    result = run(tmp_path, kill_after={"photonic": 2, "per_example": 3})
    assert len(list(tmp_path.glob("killed-*"))) == 2, "one worker of each pack was killed"
    assert (result.finished, result.failed, result.remaining) == (4, {}, 0)
    assert sum(line.startswith("resumed from epoch 2: pdfa ") for line in said) == 2
    assert_as_if_undisturbed(tmp_path, EXPERIMENT, "worker killed", "SIGKILL in the middle of an epoch, once per pack")


@pytest.mark.slow
def test_checkpoint_ahead_of_the_log_and_a_trial_that_is_done_already(tmp_path, two_cores, said, monkeypatch):
    """The store fails after a checkpoint was written, and between the last records of two trials of a pack."""
    log, finish, calls = Store.log, Store._finish, itertools.count()

    def fails_in_epoch_two(store, records):
        if any(record.epoch == 2 for record in records):
            raise TrackingError("the server is gone")
        log(store, records)

    def fails_at_the_second(store, key, outcome):
        if key in resumed and next(calls):  # a pack that starts again may overtake the one that goes on
            raise TrackingError("the server is gone again")
        finish(store, key, outcome)

    for name, function, says in (("log", fails_in_epoch_two, "gone$"), ("_finish", fails_at_the_second, "again$")):
        checkpoints = Checkpoints(tmp_path / "private/checkpoints/faults", 0)
        resumed = {key for found in checkpoints.found() for key in found.trial_keys}
        with monkeypatch.context() as patch:
            patch.setattr(Store, name, function)
            patch.setattr("pipeline.sweep.run.SECONDS", {**SECONDS, "write": 0})
            with pytest.raises(TrackingError, match=says):
                run(tmp_path)
    assert sum(line.startswith("resumed from epoch 2") for line in said) >= 1
    said.clear()
    result = run(tmp_path)
    assert (result.skipped, result.finished) in ((1, 3), (3, 1)), "what was done is not done again"
    assert sum(line.startswith("resumed from epoch 4") for line in said) >= 1
    assert_as_if_undisturbed(tmp_path, EXPERIMENT, "store fails twice, sweep started again",
                             "exceptions after a checkpoint, and between the ends of two trials")


def test_a_sweep_that_another_process_runs_is_refused(tmp_path):
    with (sweeping(tmp_path, "faults", "driver"),
          pytest.raises(SweepRunning, match="sweep 'faults': another process"),
          sweeping(tmp_path, "faults", "driver", patience=0.1)):
        pytest.fail("two hold it")
    with sweeping(tmp_path, "faults", "driver", patience=0.1):
        pass


FILE = """
name: killed
base: {dataset: digits, hidden: [64, 32], batch_size: 16, epochs: 25, algorithm: dfa, mechanism: photonic, sigma: 0.1}
grid: {seed: [0, 1]}
resources: {pack_size: 2}
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "Ctrl-C"])
def test_the_same_command_goes_on_after_the_driver_was_ended(how, tmp_path, capsys):
    file = tmp_path / "killed.yaml"
    file.write_text(FILE)
    command = ("sweep", file, "--checkpoint-seconds", "0.2", "--workers", "1")
    process, deadline = photonic(*command, cwd=tmp_path), time.monotonic() + 120
    while saved_epoch(tmp_path / "mlruns", "killed") < 2:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
    else:
        process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), err
    assert how == signal.SIGKILL or "interrupted with 2 left: run the same command again to continue" in err

    assert main(["status", str(file), "--json", "--mlruns", str(tmp_path / "mlruns")]) == 0
    (state,) = json.loads(capsys.readouterr().out)
    assert not state["running"] and state["counts"]["interrupted"] == 2 and state["counts"]["done"] == 0
    assert all(trial["checkpoint"] >= 2 and 1 <= trial["epoch"] < 25 for trial in state["trials"])

    _, err = (again := photonic(*command, cwd=tmp_path)).communicate(timeout=120)
    assert again.returncode == 0 and "2 trials: 2 finished" in err, err
    resumed = [line for line in err.splitlines() if line.startswith("resumed from epoch ")]
    assert len(resumed) == 1 and resumed[0].endswith(": dfa sigma=0.1 seed=0, dfa sigma=0.1 seed=1")
    assert_as_if_undisturbed(tmp_path / "mlruns", load_experiment(file),
                             "driver killed" if how == signal.SIGKILL else "Ctrl-C",
                             f"{how.name}, then the same command again")
