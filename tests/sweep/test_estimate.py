"""The estimate of a dry run: what is timed, how often, and what follows from it. No test asserts a duration."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sweep_stub import grid

from pipeline.experiment.experiment import parse_experiment
from pipeline.learning.train import prepare
from pipeline.learning.training import Training
from pipeline.sweep import estimate as estimates
from pipeline.sweep.dry_run import DryRun, as_json, as_lines
from pipeline.sweep.estimate import Pace
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack, cost


def test_an_estimate_is_of_the_last_worker_with_start_and_end(monkeypatch):
    monkeypatch.setattr(estimates, "_process_seconds", lambda: 0.5)
    monkeypatch.setattr(estimates, "_pace", lambda pack, device: Pace(2.0, 0.0, 0.25, 0.0, 0.125, 0.0))
    trials = grid(("dfa",), 3, epochs=4)
    packs, told = [Pack((trial,)) for trial in trials], 4 * 0.5 * (estimates.REPORT + estimates.STORE)
    n_validation, n_test = trials[0].split_sizes[1], trials[0].parts.data.spec.n_test
    each = 2 + told + 4 * (trials[0].steps_per_epoch / 4 + n_validation / 8) + n_test / 8
    for n, workers, turns in ((3, 1, 3), (3, 2, 2), (1, 2, 1)):
        found = estimates.estimate(packs[:n], workers, 1, 1, "cpu", until=0.0)
        assert found.seconds == pytest.approx(0.5 * estimates.START + each * turns) and not found.guessed


def test_kinds_with_the_most_work_are_timed_and_others_follow_from_the_most_similar_one(monkeypatch):
    timed = []
    monkeypatch.setattr(estimates, "_process_seconds", lambda: 0.0)
    monkeypatch.setattr(estimates, "_pace", lambda pack, device: timed.append(pack.shared) or Pace(*[0.5] * 6))
    base = TrialConfig(dataset="digits", algorithm="dfa", hidden=(64,), epochs=4, learning_rate=0.1)
    alike = [replace(base, learning_rate=0.2), replace(base, epochs=2), replace(base, seed=1)]
    others = [replace(base, hidden=(8,)), replace(base, algorithm="bp")]
    packs = [Pack((trial,)) for trial in (*others, *alike, base)]
    found = estimates.estimate(packs, 1, 1, 1, "cpu", until=math.inf)
    assert len(timed) == 3 and not found.guessed and timed[0] in (base, *alike)
    timed.clear()
    few = estimates.estimate(packs, 1, 1, 1, "cpu", until=0.0)
    assert len(timed) == 1 and [pack.shared for pack, _ in few.guessed] == others[::-1]
    assert all(source.shared == timed[0] for _, source in few.guessed)
    factor = cost(packs[0]) / cost(packs[-1])
    alone = [estimates.estimate([pack], 1, 1, 1, "cpu", until=0.0).seconds for pack in packs]
    assert few.seconds == pytest.approx(sum(alone[1:]) + factor * alone[0])


@pytest.mark.parametrize("changes", [{}, {"mechanism": "per_example", "noise_multiplier": 1.0, "sampler": "poisson",
                                          "arithmetic": "integer", "private_metrics": "withheld"},
                                     {"features": "scattering", "canaries": 0}, {"algorithm": "pdfa"}], ids=str)
def test_an_estimate_looks_for_no_data_and_makes_up_a_batch(monkeypatch, changes, tmp_path):
    records = []
    monkeypatch.setenv("PHOTONIC_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(estimates, "prepare", lambda pack, data, device: (
        records.append((len(data.train_x), len(data.test_x))), prepare(pack, data, device))[1])
    trial = TrialConfig(**{"dataset": "mnist", "algorithm": "dfa", "hidden": (8,), "batch_size": 64, **changes})
    pace = estimates._pace(Pack((trial,)), torch.device("cpu"))
    assert records == [(estimates.N_RECORDS,) * 2] * 2 and min(pace.prepare, pace.step, pace.evaluation) > 0


def test_a_large_batch_is_timed_by_a_part_of_it(monkeypatch):
    sizes, step = [], Training.step
    monkeypatch.setattr(estimates, "BATCH_BYTES", 10 * 784 * 4)
    monkeypatch.setattr(Training, "step", lambda self, batch, *a, **k: sizes.append(batch.shape[1]) or step(
        self, batch, *a, **k))
    trial = TrialConfig(dataset="mnist", algorithm="dfa", hidden=(8,), batch_size=1000, alignment_batches=1)
    assert estimates._pace(Pack((trial,)), torch.device("cpu")).step > 0 and max(sizes) == 10
    assert [estimates._line({2: 5.0, 4: 9.0}.get, 2, 4, n) for n in (4, 10)] == [9.0, 21.0]
    assert estimates._line({2: 5.0}.get, 2, 2, 10) == 25.0


def test_the_largest_kind_of_each_network_is_timed_first(monkeypatch):
    timed = []
    monkeypatch.setattr(estimates, "_pace", lambda pack, device: timed.append(pack) or estimates.Pace(*[1.0] * 6))
    mlp = [Pack((TrialConfig(dataset="digits", hidden=(width,)),)) for width in (64, 512, 256)]
    convnet = [Pack((TrialConfig(dataset="cifar10", network="convnet", hidden=(width,) * 2),)) for width in (96, 384)]
    estimates._paces([*mlp, *convnet], torch.device("cpu"), float("inf"))
    assert {timed[0], timed[1]} == {mlp[1], convnet[1]} and set(timed) == {*mlp, *convnet}


def test_kinds_that_were_not_timed_are_named():
    trials = [TrialConfig(dataset="digits", hidden=(width,)) for width in (64, 8)]
    packs = tuple(Pack((trial,)) for trial in trials)
    experiment = parse_experiment("base: {dataset: digits}\ngrid: {hidden: [[64], [8]]}\nreport: []", Path("e.yaml"))
    run = DryRun(experiment, estimates.Estimate(60.0, ((packs[1], packs[0]),)), 1, packs)
    text = "\n".join(as_lines(run))
    assert ("not timed: 1 kind of packs, for want of time; estimated by multiplications from what was timed:\n"
            "  hidden=[8] from hidden=[64]\n") in text
    assert json.loads(as_json(run))["not_timed"] == [
        {"trial_key": trials[1].trial_key, "estimated_from": trials[0].trial_key}]
