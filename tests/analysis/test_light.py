"""What light buys: accuracy, label epsilon and effective sigma by photons, and Table 1's row by counted photons."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stored import run_of

from analysis.papers import light, table1_light
from analysis.runs import ReportError
from pipeline.experiment.exhibits import mismatch
from pipeline.experiment.experiment import load_experiment
from pipeline.trials.camera import ZYLA_4_2, camera_of
from pipeline.trials.config import TrialConfig

pytestmark = pytest.mark.usefixtures("only_svg")

EXPERIMENTS = Path(__file__).parents[2] / "experiments" / "ohana2021"
PHOTONS, SEEDS = (0.1, 1.0, 100.0), (0, 1)
PHYSICAL = TrialConfig(dataset="digits", algorithm="pdfa", projector="opu_physical", mechanism="photonic",
                       joint_release=True, hidden=(32,), dark_counts=0.5, epochs=2)
IDEAL = [dataclasses.replace(PHYSICAL, photons=p, seed=s) for p in PHOTONS for s in SEEDS]
REAL = [dataclasses.replace(trial, **ZYLA_4_2) for trial in IDEAL]


def epsilon(trial):
    """A power of the light, so that log-log lines are exact."""
    return 20 * trial.photons**0.9 * (1 + trial.seed)


def accuracy(trial):
    return 0.9 - 0.1 * math.tanh(camera_of(trial).effective_sigma) + 0.01 * trial.seed


def tracked(trials, **metrics):
    rows = []
    for trial in trials:
        values, tags = {"test/accuracy": 0.85, "validation/accuracy": 0.8}, {}
        if trial.projector == "opu_physical":
            values |= {"test/accuracy": accuracy(trial), "epsilon/label/photon": epsilon(trial)}
            tags["optics.effective_sigma"] = repr(camera_of(trial).effective_sigma)
        rows.append(run_of(trial, values | metrics, tags))
    return pd.DataFrame(rows)


def test_the_light_that_an_epsilon_takes():
    table = light.tabulate(tracked(IDEAL))
    photons, low, high = light.light_for(table, 80.0)  # of the worst of two seeds, 40 photons^0.9
    assert (photons, low, high) == (pytest.approx(2 ** (1 / 0.9)), 1.0, 100.0)
    assert all(np.isnan(light.light_for(table, value)[0]) for value in (1.0, 1e5))
    unknown = table.assign(epsilon=table["epsilon"].where(table["photons"] != 100.0))
    assert np.isnan(light.light_for(unknown, 80.0)[0])
    runs = tracked([*IDEAL, *REAL, TrialConfig(dataset="digits", algorithm="pdfa")])
    text = light.draw(runs, name="light").markdown
    assert "without noise and photonic mechanism, 85.0%." in text
    assert f"Label ε 8 takes some {0.2 ** (1 / 0.9):.2g} photons, interpolated" in text
    assert "between the points at 0.1 and 1" in text and "reference ratio 2, 0.5 dark counts." in text


def test_the_parts_of_sigma_are_drawn_as_the_camera_has_them():
    table = light.tabulate(tracked(REAL))
    camera = dataclasses.replace(camera_of(REAL[0]), photons=7.0)
    parts = light._sigma_parts(table.iloc[-1:], np.array([7.0]))
    assert parts["shot_sigma"][0] == pytest.approx(camera.shot_sigma)
    assert parts["floor_sigma"][0] == pytest.approx(camera.floor_sigma)
    crossing = dataclasses.replace(camera, photons=light._crossing(table))
    assert crossing.shot_sigma == pytest.approx(crossing.floor_sigma)
    assert f"Below {crossing.photons:.2g} photons the camera makes more of it" in " ".join(light._sigma_notes(table))
    assert light._crossing(light.tabulate(tracked(dataclasses.replace(t, dark_counts=0.0) for t in IDEAL))) == 0


GAUSSIAN = [TrialConfig(dataset="digits", algorithm="pdfa", mechanism="photonic", joint_release=True, hidden=(32,),
                        sigma=s, epochs=2) for s in (0.1, 0.2)]
MATCHED = [dataclasses.replace(PHYSICAL, photons=round(camera_of(PHYSICAL).with_sigma(s).photons, 3))
           for s in (0.1, 0.2)]


def test_light_stands_below_the_sigma_that_it_amounts_to():
    table = table1_light.tabulate(tracked([*GAUSSIAN, *MATCHED]))
    assert list(table["sigma"]) == [0.1, 0.2, 0.1, 0.2] and table["paper"].isna().all()
    assert list(table["photons"].dropna()) == [t.photons for t in MATCHED]
    caption, grid = table1_light.draw(tracked([*GAUSSIAN, *MATCHED])).texts.body
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in grid.rows}
    assert cells["photons per pixel and exposure"] == [f"{t.photons:.3g}" for t in MATCHED]
    assert cells["Gaussian, test %"] == ["85.00", "85.00"] and cells["Gaussian, label ε"] == ["–", "–"]
    assert "Ohana" not in caption
    with pytest.raises(ReportError, match="light whose effective sigma is, to 1%, a sigma of projector"):
        table1_light.tabulate(tracked([GAUSSIAN[0], *MATCHED]))


def test_the_published_row_stands_beside_what_the_paper_trained_and_nothing_else():
    trials = load_experiment(EXPERIMENTS / "optics_table1.yaml").trials
    assert table1_light.tabulate(tracked(trials))["paper"].notna().all()
    shorter = [dataclasses.replace(trial, epochs=2) for trial in trials]
    assert table1_light.tabulate(tracked(shorter))["paper"].isna().all()


@pytest.mark.parametrize("exhibit, trials, reason", [
    ("light", IDEAL[:1], "at two values or more of photons, got 0.1"), ("effective_sigma", GAUSSIAN, "got none"),
    ("light", [*IDEAL, dataclasses.replace(IDEAL[0], tau_h=3.0, validation_fraction=0)], "differing in"),
    ("light", [*IDEAL, *REAL], ""), ("table1_light", [*GAUSSIAN, *MATCHED], ""),
    ("table1_light", [GAUSSIAN[0], *MATCHED], "to 1%, a sigma of projector opu_simulated, got 0.1, 0.2 and 0.1"),
    ("table1_light", GAUSSIAN, "got none and 0.1, 0.2")])
def test_what_an_exhibit_needs_is_said_before_anything_is_trained(exhibit, trials, reason):
    found = mismatch(exhibit, trials)
    assert reason in found if reason else found == ""
