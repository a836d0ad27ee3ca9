from __future__ import annotations

import contextlib
import gc
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from simulated_opu import opened

from pipeline.learning import opu as opus
from pipeline.learning.feedback.projection import (
    GaussianProjector,
    HardwareOpuProjector,
    SimulatedOpuProjector,
)
from pipeline.learning.opu import OpuUnavailable, check_opu
from pipeline.trials.part import PARTS

SEEDED = {"gaussian": GaussianProjector, "opu_simulated": SimulatedOpuProjector}


def ternary(*shape, seed=0):
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed)).float()


class FakeOpu:
    """lightonml's OPU interface over a known matrix, rescaled as `variance` does; counts what is done to it."""

    def __init__(self, n_components, fail=""):
        self.n_components, self.fail = n_components, fail
        self.inputs, self.closed = [], 0

    def fit1d(self, X=None, n_features=None):
        if self.fail == "fit1d":
            raise OSError("fit1d")
        self.matrix = np.random.RandomState(5).normal(size=(n_features, self.n_components)) / np.sqrt(n_features)

    def linear_transform(self, X):
        if self.fail == "linear_transform":
            raise OSError("shutter")
        assert self.closed == 0 and X.dtype == np.uint8 and X.ndim == 2 and set(np.unique(X)) <= {0, 1}
        self.inputs.append(X.copy())
        return X @ self.matrix

    def close(self):
        self.closed += 1


class Opener:
    def __init__(self, fail=""):
        self.opened, self.fail = [], fail

    def __call__(self, n_components):
        self.opened.append(FakeOpu(n_components, self.fail))
        return self.opened[-1]


@pytest.mark.parametrize("name", SEEDED)
def test_centred_feedback_projects_the_error_less_its_mean(name):
    e = ternary(3, 7, 10)
    with PARTS["projector"][name].load()(10, 33, [1, 2, 3], 0.5) as projector:
        expected = projector.project(e) - e.mean(dim=2, keepdim=True) * projector.matrices.sum(dim=1, keepdim=True)
        projector.center()
        torch.testing.assert_close(projector.project(e), expected)
        assert projector.project(torch.ones(3, 1, 10)).abs().max() < 1e-5 < projector.matrices.abs().min()


def test_a_real_opu_measures_the_mean_of_its_matrix_and_subtracts_it():
    opener, e = Opener(), ternary(2, 7, 10)
    with HardwareOpuProjector(10, 33, [1, 2], 0.5, open_opu=opener) as projector:
        before = projector.project(e)
        projector.center()
        matrix = torch.from_numpy(opener.opened[0].matrix).float() * 0.5 * 10**0.5
        torch.testing.assert_close(projector.project(e), before - e.mean(dim=2, keepdim=True) * matrix.sum(dim=0))
        assert projector.project(torch.ones(2, 1, 10)).abs().max() < 1e-5


@pytest.mark.parametrize("name", SEEDED)
def test_projection_is_the_product_with_the_replicas_matrix(name):
    with PARTS["projector"][name].load()(10, 33, [1, 2, 3], 0.5) as projector:
        e = ternary(3, 7, 10)
        p = projector.project(e)
        assert p.shape == (3, 7, 33) and p.dtype == torch.float32
        torch.testing.assert_close(p, torch.einsum("rmk,rkn->rmn", e, projector.matrices))
        unit = torch.eye(10).expand(3, 10, 10)
        assert torch.equal(projector.project(unit), projector.matrices)


@pytest.mark.parametrize("name", SEEDED)
def test_a_replica_does_not_depend_on_the_others(name):
    seeds = [4, 8, 15, 16, 23]
    e = ternary(5, 77, 10)  # an odd batch, so that replicas start at all alignments
    together = PARTS["projector"][name].load()(10, 129, seeds, 1.0).project(e)
    for r, seed in enumerate(seeds):
        alone = PARTS["projector"][name].load()(10, 129, [seed], 1.0).project(e[r : r + 1].clone())
        assert torch.equal(together[r], alone[0])


def std_is_plausible(entries, std):
    """Two-sided chi-square test of the variance at 1e-6, and a z-test of the mean."""
    x = entries.double().flatten() / std
    low, high = chi2.ppf([5e-7, 1 - 5e-7], x.numel())
    return low <= (x**2).sum().item() <= high and abs(x.mean().item()) * x.numel() ** 0.5 < 5


@pytest.mark.parametrize("n_classes", [2, 10, 100])
@pytest.mark.parametrize("name", SEEDED)
def test_entries_have_the_asked_deviation(name, n_classes):
    entries = PARTS["projector"][name].load()(n_classes, 2000, [3], 0.7).matrices
    assert std_is_plausible(entries, 0.7)
    for wrong in (2 / 3, 3 / 2):
        assert not std_is_plausible(entries, 0.7 * wrong)


def test_gaussian_golden():
    """The matrix of a seed is part of the identity of a trial: it may not change with the library."""
    matrices = GaussianProjector(10, 1024, [7, 2**32 - 1], 2.0).matrices
    for matrix, seed in zip(matrices, (7, 2**32 - 1), strict=True):
        assert torch.equal(matrix, 2.0 * torch.randn(10, 1024, generator=torch.Generator().manual_seed(seed)))
    assert matrices[0, 0, :3].tolist() == pytest.approx([-1.640269, 0.7912623, 1.797817], rel=1e-5)


def test_simulated_golden():
    matrices = SimulatedOpuProjector(10, 64, [7, 2**32 - 1], 2.0).matrices
    for matrix, seed in zip(matrices, (7, 2**32 - 1), strict=True):
        real = np.random.RandomState(seed).normal(0.0, 1 / np.sqrt(10), (10, 64)).astype(np.float32)
        np.testing.assert_allclose(matrix, 2 * np.sqrt(10) * real, rtol=1e-6)


@pytest.mark.parametrize("m, n_classes, n_out", [(256, 10, 1024), (1, 10, 20), (5, 3, 7)])
def test_simulated_equals_lightonml(m, n_classes, n_out, capfd):
    e = ternary(2, m, n_classes)
    projected = SimulatedOpuProjector(n_classes, n_out, [11, 12], 0.3).project(e)
    for replica, seed in enumerate((11, 12)):
        def open_opu(n, seed=seed):
            return opened(n_classes, n, seed, linear=True)

        with HardwareOpuProjector(n_classes, n_out, [1], 0.3, open_opu=open_opu) as lightonml:
            reference = lightonml.project(e[replica, None])[0] * n_classes**0.5
        assert reference.abs().max() > 0.1
        torch.testing.assert_close(projected[replica], reference, rtol=1e-5, atol=1e-6)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("value", [0.5, 2.0, -1.5, float("nan")])
def test_opus_refuse_what_is_not_ternary(value):
    e = ternary(1, 4, 10)
    e[0, 2, 3] = value
    for projector in (SimulatedOpuProjector(10, 8, [1], 1.0),
                      HardwareOpuProjector(10, 8, [1], 1.0, open_opu=Opener())):
        with projector, pytest.raises(ValueError, match=f"e: an OPU projects -1, 0 and 1 only, got {value:g}"):
            projector.project(e)


def test_the_simulation_checks_the_first_input():
    e = ternary(1, 4, 10)
    projector = SimulatedOpuProjector(10, 8, [1], 1.0)
    projector.project(e)
    torch.testing.assert_close(projector.project(e / 2), projector.project(e) / 2)


@pytest.mark.parametrize("name", ["gaussian", "opu_simulated", "opu_hardware"])
@pytest.mark.parametrize("change, message", [
    (dict(n_classes=0), "n_classes: must be at least 1, got 0"),
    (dict(n_out_total=0), "n_out_total: must be at least 1"), (dict(seeds=[]), "seeds: must be at least 1, got 0"),
    (dict(seeds=[2**32]), r"seeds: must be >= 0 and < 2\*\*32, got 4294967296"),
    (dict(std=0.0), "std: must be > 0 and finite, got 0.0")])
def test_arguments_are_checked(name, change, message):
    with pytest.raises(ValueError, match=message):
        PARTS["projector"][name].load()(**{**dict(n_classes=10, n_out_total=8, seeds=[1], std=1.0), **change})


@pytest.mark.parametrize("shape", [(2, 4, 10), (1, 4, 9), (4, 10)])
def test_shape_is_checked(shape):
    with pytest.raises(ValueError, match=r"e: must have shape \[1, m, 10\]"):
        GaussianProjector(10, 8, [1], 1.0).project(torch.zeros(shape))


def test_hardware_projects_the_two_binary_parts():
    opener = Opener()
    e = ternary(3, 5, 10)
    with HardwareOpuProjector(10, 1000, [1, 2, 3], 0.5, open_opu=opener) as projector:
        p = projector.project(e)
        projector.project(e)
    (opu,) = opener.opened
    plus, minus = opu.inputs[:2]
    assert len(opu.inputs) == 4 and plus.shape == minus.shape == (15, 10)
    rows = e.reshape(15, 10).numpy()
    np.testing.assert_array_equal(plus, rows == 1)
    np.testing.assert_array_equal(minus, rows == -1)
    effective = torch.from_numpy(0.5 * np.sqrt(10) * opu.matrix).float()
    assert std_is_plausible(effective, 0.5)
    assert p.shape == (3, 5, 1000) and p.dtype == torch.float32
    torch.testing.assert_close(p, e @ effective, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("fail", "raised", "says"), [
    ("", None, None), ("", KeyboardInterrupt, None), ("linear_transform", OSError, "shutter"),
    ("fit1d", OSError, "fit1d")])
def test_hardware_is_closed_once_however_the_block_ends(fail, raised, says):
    opener = Opener(fail)
    with (pytest.raises(raised, match=says) if raised else contextlib.nullcontext(),
          HardwareOpuProjector(10, 8, [1], 1.0, open_opu=opener) as projector):
        assert opener.opened[0].closed == 0
        projector.project(ternary(1, 4, 10))
        if raised is KeyboardInterrupt:
            raise KeyboardInterrupt
    if fail != "fit1d":
        projector.close()
        del projector
    gc.collect()
    assert [opu.closed for opu in opener.opened] == [1]


def test_hardware_is_closed_when_forgotten():
    opener = Opener()
    HardwareOpuProjector(10, 8, [1], 1.0, open_opu=opener).project(ternary(1, 4, 10))
    gc.collect()
    assert [opu.closed for opu in opener.opened] == [1]


def test_a_new_process_imports_no_lightonml_for_gaussian_matrices_and_closes_hardware_at_exit():
    program = """
import sys
from pipeline.learning.feedback.projection import GaussianProjector, HardwareOpuProjector
GaussianProjector(10, 8, [1], 1.0)
print("lightonml" in sys.modules)
class Opu:
    def fit1d(self, n_features): pass
    def close(self): print("closed")
kept = HardwareOpuProjector(10, 8, [1], 1.0, open_opu=lambda n: Opu())
raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (3, "False\nclosed\n"), done.stderr


def test_closed_hardware_is_not_opened_again():
    opener = Opener()
    projector = HardwareOpuProjector(10, 8, [1], 1.0, open_opu=opener)
    projector.close()
    with pytest.raises(RuntimeError, match="opu_hardware: the projector is closed"):
        projector.project(ternary(1, 4, 10))
    assert len(opener.opened) == 1


def pretend(monkeypatch, *, absent=(), configured=True):
    found = importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else found)
    monkeypatch.setattr(opus.import_lightonml().internal.config, "host_has_opu_config", lambda: configured)


@pytest.mark.parametrize("host, message", [
    (dict(absent=["lightonml"]), "package lightonml is not installed"),
    (dict(absent=["lightonopu"]), "driver lightonopu is not installed"),
    (dict(configured=False), "no device is configured")])
def test_check_opu_says_what_is_missing(monkeypatch, host, message):
    pretend(monkeypatch, **host)
    with pytest.raises(OpuUnavailable, match=f"{message}.*use projector 'opu_simulated'") as raised:
        check_opu()
    assert "\n" not in str(raised.value)
    with pytest.raises(OpuUnavailable, match=message):
        HardwareOpuProjector(10, 8, [1], 1.0)


def test_check_opu_passes_where_all_is_there(monkeypatch):
    pretend(monkeypatch)
    check_opu()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SEEDED)
def test_cuda_agrees_with_the_cpu(name):
    e = ternary(2, 64, 10)
    here = PARTS["projector"][name].load()(10, 100, [1, 2], 1.0).project(e)
    there = PARTS["projector"][name].load()(10, 100, [1, 2], 1.0, "cuda").project(e.cuda())
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)
