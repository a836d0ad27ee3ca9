"""`make gpu`, dry on a CPU: it runs where little is installed, and a replayed step is the step."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import gpu
import pytest
import torch
from replay import WARM_UP, Replayed
from steps import random_records, training_of
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.trials.config import TrialConfig

ROOT = Path(__file__).parents[2]
# What must be there, with what it needs itself. Any other package is as good as not installed.
PACKAGES = {"torch": "torch torchgen functorch filelock fsspec jinja2 markupsafe mpmath networkx setuptools "
                     "_distutils_hack pkg_resources sympy typing_extensions",
            "numpy, scipy, PyYAML": "numpy scipy yaml", "dp-accounting": "dp_accounting absl attr attrs tree mpmath",
            "safetensors": "safetensors", "this": "pipeline gpu replay rounds steps"}
REFUSING = f"""
import importlib.machinery, importlib.util, sys
sys.path.insert(0, {str(ROOT / "tests/benchmarks")!r})
allowed = set({" ".join(PACKAGES.values())!r}.split())

class Refusing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and name not in allowed:
            found = importlib.machinery.PathFinder.find_spec(name)
            if found and "site-packages" in str(found.origin) and not found.origin.endswith(".so"):
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusing)
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: find(name, package) if name.split(".")[0] in allowed else None
for name in ("ray", "mlflow", "pandas", "seaborn", "matplotlib", "sklearn", "requests", "cryptography", "opacus"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{{name}} was not refused")
import gpu
sys.exit(gpu.main(sys.argv[1:]))
"""


def test_a_dry_run_needs_no_other_packages_and_writes_all_that_it_promises(tmp_path):
    done = subprocess.run([sys.executable, "-c", REFUSING, "--device", "cpu", "--small", "--out", tmp_path],
                          cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found) == ["machine", "checks", "peak", "packs", "table1", "dpsgd"]
    assert done.stdout.strip() == gpu.tables(found)
    assert len(found["checks"]) > 30 and all(check["holds"] for check in found["checks"])
    assert [(row["precision"], row["trials"]) for row in found["packs"]] == [
        (precision, r) for precision in ("float32", "tf32", "bfloat16") for r in (1, 2)]
    assert (found["table1"]["trials"], found["table1"]["left_out"]) == (42, 14), "PDFA needs lightonml"
    assert sum(row["trials"] for row in found["table1"]["packs"]) == 42
    assert set(found["dpsgd"]) == {"ours_1_ms", "ours_2_ms"}, "Opacus was not at hand"


class Refused(TorchDispatchMode):
    """Nothing whose result, or its shape, the host must know: a graph could not be captured."""

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        assert operation.overloadpacket not in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero,
                                                torch.ops.aten.masked_select, torch.ops.aten._unique2)
        return operation(*arguments, **(keywords or {}))


def addresses(training):
    tensors = [training.net.parameters.flat, training.update.flat, training.train_inputs._buffer,
               *training.optimizer.state.values()]
    return [tensor.data_ptr() for tensor in tensors]


@pytest.mark.parametrize("algorithm, mechanism", [("tdfa", {"mechanism": "photonic", "sigma": 0.1}), ("bp", {})])
def test_a_replayed_epoch_has_the_same_bits_in_memory_that_stays(algorithm, mechanism):
    data = random_records("digits")
    trial = TrialConfig(**gpu.TINY, algorithm=algorithm, **mechanism, alignment_batches=2)
    plain, replayed = (training_of(trial, data, 2) for _ in range(2))
    replayed.step = Replayed(replayed)
    for indices in (batches := replayed.sampler.epoch())[: WARM_UP + 1]:
        replayed.step(indices)
    before = addresses(replayed)
    with Refused():
        for indices in batches[WARM_UP + 1: 12]:
            replayed.step(indices)
    for indices in plain.sampler.epoch()[:12]:
        plain.step(indices)
    assert addresses(replayed) == before
    (ours, _), (theirs, _) = replayed.capture(), plain.capture()
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    records = zip(replayed.run_epoch(), plain.run_epoch(), strict=True)
    assert all({**a.metrics, "time/epoch_seconds": 0} == {**b.metrics, "time/epoch_seconds": 0} for a, b in records)
    assert addresses(replayed) == before, "an evaluation moved what a graph would hold"


@pytest.mark.parametrize("changes", [{"schedule": "cosine"}, {"sampler": "poisson"}, {"averaging": 0.9}])
def test_steps_that_differ_by_more_than_what_is_in_the_buffers_are_not_replayed(changes):
    trial = TrialConfig(**gpu.TINY, algorithm="dfa", **changes)
    with pytest.raises(ValueError, match="^training: a graph needs"):
        Replayed(training_of(trial, random_records("digits")))


def test_a_check_fails_for_what_is_too_far_or_no_number(monkeypatch):
    assert not gpu.Check("", math.nan, 1.0).holds and gpu.Check("", 1.0, 1.0).holds
    assert gpu.apart(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0])) == pytest.approx(4 / 3)
    assert math.isnan(gpu.farthest([torch.ones(1), torch.full((1,), math.nan)], [torch.zeros(1) + 2, torch.ones(1)]))
    noise = gpu.GaussianNoise
    monkeypatch.setattr(gpu, "GaussianNoise", lambda seeds, *rest: noise([seeds[0]] * 2, *rest))
    assert [check.holds for check in gpu.law_of_noise(torch.device("cpu"))] == [True, True, False]
