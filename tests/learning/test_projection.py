import contextlib
import gc
import importlib.util
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from simulated_opu import opened

from pipeline.learning import opu as opus
from pipeline.learning.feedback.projection import (
    PROJECTORS,
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


@pytest.mark.parametrize("name", [*SEEDED, "opu_hardware"])
def test_projection_is_the_product_with_the_replicas_matrix_and_centred_less_the_mean_error(name):
    """A real OPU measures the mean of its matrix, and has one for all replicas."""
    opener, e = Opener(), ternary(3, 7, 10)
    device = dict(open_opu=opener) if name == "opu_hardware" else {}
    with PROJECTORS[PARTS["projector"][name]](10, 33, [1, 2, 3], 0.5, **device) as projector:
        p = projector.project(e)
        if device:
            assert len(opener.opened[0].inputs) == 2, "both binary parts of e, each of all replicas at once"
            matrices = torch.from_numpy(opener.opened[0].matrix).float().expand(3, 10, 33) * 0.5 * 10**0.5
        else:
            matrices = projector.matrices.clone()
            assert torch.equal(projector.project(torch.eye(10).expand(3, 10, 10)), matrices)
        assert p.shape == (3, 7, 33) and p.dtype == torch.float32
        torch.testing.assert_close(p, torch.einsum("rmk,rkn->rmn", e, matrices))
        projector.center()
        expected = p - e.mean(dim=2, keepdim=True) * matrices.sum(dim=1, keepdim=True)
        torch.testing.assert_close(projector.project(e), expected)
        assert projector.project(torch.ones(3, 1, 10)).abs().max() < 1e-5 < matrices.abs().max()


@pytest.mark.parametrize("name", [*SEEDED, "opu_hardware"])
def test_a_scaled_matrix_has_each_layer_multiplied_by_its_factor_also_once_it_is_centred(name):
    device, e = dict(open_opu=Opener()) if name == "opu_hardware" else {}, ternary(2, 7, 10)
    with PROJECTORS[PARTS["projector"][name]](10, 33, [1, 2], 0.5, **device) as projector:
        projector.center()
        wide, narrow = projector.project(e).split([25, 8], dim=2)
        projector.scale([25, 8], [0.25, 2.0])
        assert torch.equal(projector.project(e), torch.cat([0.25 * wide, 2.0 * narrow], dim=2))


@pytest.mark.parametrize("name", SEEDED)
def test_a_replica_does_not_depend_on_the_others(name):
    seeds = [4, 8, 15, 16, 23]
    e = ternary(5, 77, 10)  # an odd batch, so that replicas start at all alignments
    together = PROJECTORS[PARTS["projector"][name]](10, 129, seeds, 1.0).project(e)
    for r, seed in enumerate(seeds):
        alone = PROJECTORS[PARTS["projector"][name]](10, 129, [seed], 1.0).project(e[r : r + 1].clone())
        assert torch.equal(together[r], alone[0])


def std_is_plausible(entries, std):
    """Two-sided chi-square test of the variance at 1e-6, and a z-test of the mean."""
    x = entries.double().flatten() / std
    low, high = chi2.ppf([5e-7, 1 - 5e-7], x.numel())
    return low <= (x**2).sum().item() <= high and abs(x.mean().item()) * x.numel() ** 0.5 < 5


@pytest.mark.parametrize("n_classes", [2, 100])
@pytest.mark.parametrize("name", SEEDED)
def test_entries_have_the_asked_deviation(name, n_classes):
    entries = PROJECTORS[PARTS["projector"][name]](n_classes, 2000, [3], 0.7).matrices
    assert std_is_plausible(entries, 0.7)
    for wrong in (2 / 3, 3 / 2):
        assert not std_is_plausible(entries, 0.7 * wrong)


def test_golden():
    """The matrix of a seed is part of the identity of a trial: it may not change with the library."""
    seeds = (7, 2**32 - 1)
    gaussian, simulated = (cls(10, 64, seeds, 2.0).matrices for cls in SEEDED.values())
    for r, seed in enumerate(seeds):
        assert torch.equal(gaussian[r], 2.0 * torch.randn(10, 64, generator=torch.Generator().manual_seed(seed)))
        real = np.random.RandomState(seed).normal(0.0, 1 / np.sqrt(10), (10, 64)).astype(np.float32)
        np.testing.assert_allclose(simulated[r], 2 * np.sqrt(10) * real, rtol=1e-6)
    first = GaussianProjector(10, 1024, [7], 2.0).matrices[0, 0, :3]
    assert first.tolist() == pytest.approx([-1.640269, 0.7912623, 1.797817], rel=1e-5)


@pytest.mark.parametrize("m, n_classes, n_out", [(256, 10, 1024), (1, 10, 20), (5, 3, 7)])
def test_simulated_equals_lightonml(m, n_classes, n_out, capfd):
    e = ternary(2, m, n_classes)
    projected = SimulatedOpuProjector(n_classes, n_out, [11, 12], 0.3).project(e)
    for replica, seed in enumerate((11, 12)):
        def open_opu(n, seed=seed):
            return opened(n_classes, n, seed)

        with HardwareOpuProjector(n_classes, n_out, [1], 0.3, open_opu=open_opu) as lightonml:
            reference = lightonml.project(e[replica, None])[0] * n_classes**0.5
        assert reference.abs().max() > 0.1
        torch.testing.assert_close(projected[replica], reference, rtol=1e-5, atol=1e-6)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("change, message", [
    (dict(n_classes=0), "n_classes: must be at least 1, got 0"),
    (dict(n_out_total=0), "n_out_total: must be at least 1"), (dict(seeds=[]), "seeds: must be at least 1, got 0"),
    (dict(seeds=[2**32]), r"seeds: must be >= 0 and < 2\*\*32, got 4294967296"),
    (dict(std=0.0), "std: must be > 0 and finite, got 0.0"),
    *((torch.zeros(shape), r"e: must have shape \[1, m, 10\]") for shape in ((2, 4, 10), (1, 4, 9), (4, 10))),
    *((torch.full((1, 4, 10), value), f"e: an OPU projects -1, 0 and 1 only, got {value:g}")
      for value in (0.5, 2.0, -1.5, math.nan))])
def test_arguments_are_checked(change, message):
    for name in ("gaussian", "opu_simulated", "opu_hardware"):
        if name == "gaussian" and "OPU" in message:
            continue  # it takes all errors
        device = dict(open_opu=Opener()) if name == "opu_hardware" else {}
        given = dict(n_classes=10, n_out_total=8, seeds=[1], std=1.0) | (change if isinstance(change, dict) else {})
        make = PROJECTORS[PARTS["projector"][name]]
        with pytest.raises(ValueError, match=message), make(**given, **device) as projector:
            projector.project(change)


@pytest.mark.slow
@pytest.mark.parametrize(("fail", "raised", "says"), [
    ("", None, None), ("", KeyboardInterrupt, None), ("linear_transform", OSError, "shutter"),
    ("fit1d", OSError, "fit1d")])
def test_hardware_is_closed_once_however_the_block_ends_and_not_opened_again(fail, raised, says):
    opener = Opener(fail)
    with (pytest.raises(raised, match=says) if raised else contextlib.nullcontext(),
          HardwareOpuProjector(10, 8, [1], 1.0, open_opu=opener) as projector):
        assert opener.opened[0].closed == 0
        projector.project(ternary(1, 4, 10))
        if raised is KeyboardInterrupt:
            raise KeyboardInterrupt
    if fail != "fit1d":
        projector.close()
        with pytest.raises(RuntimeError, match="opu_hardware: the projector is closed"):
            projector.project(ternary(1, 4, 10))
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


@pytest.mark.parametrize("absent, configured, message", [
    (["lightonml"], True, "package lightonml is not installed"),
    (["lightonopu"], True, "driver lightonopu is not installed"), ([], False, "no device is configured"),
    ([], True, "")])
def test_check_opu_says_what_is_missing(monkeypatch, absent, configured, message):
    found = importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else found)
    monkeypatch.setattr(opus.import_lightonml().internal.config, "host_has_opu_config", lambda: configured)
    if not message:
        return check_opu()
    with pytest.raises(OpuUnavailable, match=f"{message}.*use projector 'opu_simulated'") as raised:
        check_opu()
    assert "\n" not in str(raised.value)
    with pytest.raises(OpuUnavailable, match=message):
        HardwareOpuProjector(10, 8, [1], 1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SEEDED)
def test_cuda_agrees_with_the_cpu(name):
    e = ternary(2, 64, 10)
    here = PROJECTORS[PARTS["projector"][name]](10, 100, [1, 2], 1.0).project(e)
    there = PROJECTORS[PARTS["projector"][name]](10, 100, [1, 2], 1.0, "cuda").project(e.cuda())
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)
