"""The benchmarks at a tiny size: they run, and what they measure is there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.parametrize(("program", "options", "written", "measured"), [
    ("bench", "--tiny --out .", "bench.json", ["dfa_private_step_over_floor_fp32", "stub_trials_per_second"]),
    ("growth", "--trials 60 --out growth.json", "growth.json", ["machine", "aims", "seconds"]),
    ("gpu", "--device cpu --small --out .", "gpu.json", ["machine", "checks", "peak", "packs", "table1", "dpsgd"])])
def test_a_tiny_benchmark_measures_and_writes(program, options, written, measured, tmp_path):
    """gpu.py also ends with 1 where a check does not hold, such as that replayed steps are the steps."""
    done = subprocess.run([sys.executable, ROOT / f"tests/benchmarks/{program}.py", *options.split()], cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / written).read_text()).keys() >= set(measured) and "| ---" in done.stdout
