"""`make bench` at a tiny size: what it promises to measure is there, and what it compares with is what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import bench
import pytest
import steps
import torch

from pipeline.trials.config import TrialConfig

ROOT = Path(__file__).parents[2]
PROMISED = {"dfa_private_step_over_floor_fp32", "pdfa_private_step_over_floor_fp32",
            "dfa_private_step_over_floor_reduced", "pdfa_private_step_over_floor_reduced",
            "dfa_private_pack16_step_over_floor_fp32", "bp_per_example_step_over_floor_fp32",
            "tdfa_component_step_over_floor_fp32", "bp_plain_step_over_floor_reduced", "small_pack4_speedup",
            "dfa_private_speedup_over_hand_written_reduced",
            "dpsgd_speedup_over_opacus_ghost", "dpsgd_speedup_over_opacus_hooks", "pld_3000_steps_seconds",
            "pld_3000_steps_cached_seconds", "mlflow_trial_seconds", "table1_wall_over_compute",
            "table1_driver_cpu_share",
            "stub_trials_per_second", "stub_driver_memory_ratio", "pld_without_replacement_seconds",
            "photonic_account_seconds", "opu_simulated_speedup_over_lightonml"}


@pytest.mark.nightly
def test_a_tiny_benchmark_measures_and_writes_all_that_it_promises(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "tests/benchmarks/bench.py", "--tiny", "--out", tmp_path],
                          cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "bench.json").read_text())
    assert set(numbers) >= PROMISED
    assert all(value > 0 for value in numbers.values())
    assert done.stdout.strip() == bench.table(numbers)
    facts = json.loads((tmp_path / "bench_machine.json").read_text())
    assert facts["torch"] == torch.__version__ and facts["threads"] == 1
    assert "2 trials" in facts["table1_sweep"] and "digits" in facts["table1_sweep"]


def test_the_floor_has_all_products_of_a_step_and_no_more():
    base = TrialConfig(dataset="digits", hidden=(24, 16), batch_size=32)
    forward = 64 * 24 + 24 * 16 + 16 * 10
    for algorithm, feedback in (("dfa", 10 * (24 + 16)), ("bp", 10 * 16 + 16 * 24)):
        config = TrialConfig.from_mapping({**base.canonical(), "algorithm": algorithm, "projector": ""})
        multiplications = sum(m * k * n for (m, k, n), *_ in steps.products(config))
        assert multiplications == 32 * (2 * forward + feedback)


def test_dfa_that_is_written_by_hand_is_dfa():
    config = TrialConfig(dataset="digits", hidden=(24, 16), batch_size=32, algorithm="dfa", activation="tanh",
                         inputs="unit", alignment_batches=0)
    training = steps.training_of(config, steps.records("digits"))
    by_hand = steps.HandWritten(steps.training_of(config, training.data))
    start = by_hand.layers[0].weight.clone()
    for indices in training.sampler.epoch()[:3]:
        training.step(indices)
        by_hand()
    for layer, weight, bias in zip(by_hand.layers, training.net.parameters.weights, training.net.parameters.biases,
                                   strict=True):
        torch.testing.assert_close(layer.weight, weight[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(layer.bias, bias[0], rtol=0, atol=1e-6)
    assert (by_hand.layers[0].weight - start).abs().max() > 1e-3


@pytest.mark.nightly
def test_growth_measures_every_command_in_a_store_like_one_that_was_swept(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "tests/benchmarks/growth.py", "--trials", "60", "--stores", "sqlite",
                           "--out", "growth.json"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    seconds = json.loads((tmp_path / "growth.json").read_text())["seconds"]["sqlite"]["60"]
    assert set(seconds) == {"dry run", "start", "a trial", "resume, nothing to do", "status", "load_runs", "report"}
    assert all(value > 0 for value in seconds.values()) and "| status, s |" in done.stdout
