"""`photonic device`: what it says of projectors whose faults are known."""

import numpy as np
import pandas as pd
import pytest
import torch

from analysis.device import as_text, table, write
from pipeline.auditing import device as module
from pipeline.auditing.device import characterise
from pipeline.cli import main
from pipeline.learning.feedback.projection import GaussianProjector
from pipeline.trials.camera import camera_of
from pipeline.trials.config import ConfigError, TrialConfig

PHYSICAL = TrialConfig(algorithm="pdfa", projector="opu_physical", hidden=(48,), photons=1e3)
SIMULATED = TrialConfig(algorithm="pdfa", projector="opu_simulated", hidden=(48,))


FAULTS = {
    "": lambda p, noise, batch: p + noise,
    "gain": lambda p, noise, batch: 0.9 * p + noise,
    "offset": lambda p, noise, batch: p + 0.1 + noise,
    "drift": lambda p, noise, batch: p * (1 + 0.002 * batch) + noise,
    "records": lambda p, noise, batch: p + 0.4 * p.mean(dim=1, keepdim=True) + noise,
    "pixels": lambda p, noise, batch: p + 0.8 * noise + 0.6 * noise.roll(1, dims=2),
    "exposures": lambda p, noise, batch: p + 0.8 * noise + 0.6 * noise.roll(1, dims=1),
    "skew": lambda p, noise, batch: p + 0.5 * (noise.square() / 0.25 - 1)}


class Faulty(GaussianProjector):
    """B e and Gaussian noise of deviation 0.5, with one fault."""

    def __init__(self, fault="", known=True):
        super().__init__(10, 48, [3], 1.0)
        self.fault, self.batches = FAULTS[fault], 0
        self.generator = torch.Generator().manual_seed(8)
        self.b = self.matrices
        self.matrices = self.matrices if known else None

    def _project(self, e):
        self.batches += 1
        noise = 0.5 * torch.randn(1, e.shape[1], 48, generator=self.generator)
        return self.fault(e @ self.b, noise, self.batches)


def odd(found):
    rows = table(found)
    return set(rows[rows["z"].abs() > 5]["quantity"].str.split(":").str[0].str.split(",").str[0])


def of(monkeypatch, projector, **given):
    monkeypatch.setattr(module, "make_projector", lambda trials, width, device: projector)
    return characterise(SIMULATED, **given)


def value(found, name):
    return next(q.value for q in found.quantities if q.name.startswith(name))


@pytest.mark.parametrize("fault, seen", [
    ("gain", {"gain"}), ("offset", {"bias", "mean residual of a pixel"}), ("drift", {"drift of the gain", "gain"}),
    ("records", {"crosstalk"}), ("pixels", {"correlation between pixels"}),
    ("exposures", {"correlation between records"}),
    ("skew", {"skewness of the noise", "excess kurtosis of the noise"}), ("", set())])
def test_every_fault_is_seen_and_nothing_in_an_ideal_device_but_its_sigma(monkeypatch, fault, seen):
    found = of(monkeypatch, Faulty(fault))
    assert seen <= odd(found)
    if not fault:
        assert not odd(found) and value(found, "effective sigma") == pytest.approx(0.5, rel=0.02)
        assert (found.repeats, found.records, found.pixels, found.known) == (64, 32, 48, True)


def test_an_unknown_matrix_is_estimated_first(monkeypatch):
    found = of(monkeypatch, Faulty(known=False))
    assert (found.repeats, found.known) == (32, False) and "estimated" in as_text(found)
    assert value(found, "gain") == pytest.approx(1.0, abs=0.02)
    assert value(found, "effective sigma") == pytest.approx(0.5, rel=0.02)
    assert {"drift of the gain", "gain"} <= odd(of(monkeypatch, Faulty("drift", known=False)))


def test_the_models_have_the_sigma_of_their_formulas(tmp_path):
    found = characterise(PHYSICAL, repeats=32)
    assert value(found, "effective sigma") == pytest.approx(camera_of(PHYSICAL).effective_sigma, rel=0.03)
    assert not odd(found)
    rows = pd.read_csv(next(file for file in write(found, tmp_path / "device") if file.name == "device.csv"))
    np.testing.assert_allclose(rows["value"], table(found)["value"])
    silent = characterise(SIMULATED, repeats=8, records=8)
    assert value(silent, "effective sigma") < 1e-5 and len(silent.residuals) == 0
    assert value(silent, "gain") == pytest.approx(1.0, abs=1e-5) and "no noise beyond rounding" in as_text(silent)


def test_the_command_writes_its_report_and_refuses_what_cannot_be_measured_in_one_line(tmp_path, capsys):
    out = tmp_path / "here"
    assert main(["device", "opu_physical", "--set", "photons=20", "--set", "hidden=[16]", "--repeats", "8",
                 "--records", "4", "--out", str(out)]) == 0
    assert "effective sigma" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"device.md", "device.csv", "device.svg"}
    for arguments, message in (
            (["opu_simulated", "--set", "photons=20"], "photons: is not used with projector 'opu_simulated'"),
            (["opu_physical", "--repeats", "6"], "repeats: must be a multiple of 4 and at least 8, got 6"),
            (["opu_physical", "--records", "2"], "records: must be a multiple of 4 and at least 4, got 2"),
            (["opu_hardware"], "OPU: "), (["opu"], "projector: must be one of"),
            (["gaussian"], "projector: pdfa takes"),
            (["opu_physical", "--set", "photon=1"], "photon: unknown field")):
        assert main(["device", *arguments, "--out", str(tmp_path / "none")]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1 and not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="projector: must be one of an OPU, got 'gaussian'"):
        characterise(TrialConfig(algorithm="dfa"))
