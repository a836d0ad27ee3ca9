"""What notebooks import: trials and a sweep in this process, and one of extensions with the real Ray."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import ray
import torch
from flat import train as train_pack
from in_process import without_ray
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import analysis
import pipeline
from analysis import best, cells, frontier, frontier_axes, load_history, load_runs
from analysis.runs import MissingTrials, MixedTrials, ReportError, setting_names
from pipeline import (
    ConfigError,
    Experiment,
    TrialConfig,
    account,
    load_dataset,
    load_experiment,
    load_model,
    run_sweep,
    train,
)
from pipeline.learning.model import TrainedModel
from pipeline.tracking.store import Store, TrackingError
from pipeline.trials.packs import Pack

ROOT = Path(__file__).parents[2]
TINY = TrialConfig(dataset="digits", hidden=(8,), batch_size=64, epochs=2)


def without_time(records):
    return [(r.trial_key, r.epoch, {k: v for k, v in r.metrics.items() if k != "time/epoch_seconds"}) for r in records]


def test_every_name_stands_in_what_is_said_of_its_package():
    """That each is there, test_architecture.py says, and that it is documented, test_examples.py."""
    for package in (pipeline, analysis):
        assert not [name for name in package.__all__ if name not in package.__doc__]


@pytest.mark.parametrize(("first", "printed"), [
    ("import photonic", "10 True"),
    ("import analysis, photonic", r"ImportError: photonic: its package 'analysis' cannot be loaded.*, got .*import "
     "photonic first, or rename that folder")])
def test_photonic_has_all_names_beside_folders_that_have_the_names_of_the_packages(tmp_path, first, printed):
    for name in ("pipeline", "analysis"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    code = f"import sys; sys.path.append({str(ROOT)!r}); {first}; import pipeline, analysis; print(" \
        "photonic.TrialConfig(epochs=10).epochs, {*pipeline.__all__, *analysis.__all__} == {*photonic.__all__})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": ""})
    assert re.search(printed, done.stdout + done.stderr)


def test_train_gives_what_a_pack_gives():
    data = load_dataset("digits")
    expected = without_time(train_pack(Pack((TINY,)), data))
    assert without_time(train(TINY)) == without_time(train(TINY, data)) == expected
    history = pd.DataFrame(record.metrics for record in train(TINY, data))
    assert len(history) == 2 and history["test/accuracy"].notna().tolist() == [False, True]


def test_several_trials_train_together_where_they_can_and_each_as_if_alone():
    trials = [TINY, dataclasses.replace(TINY, seed=1), dataclasses.replace(TINY, hidden=(16,))]
    records = without_time(train(trials, load_dataset("digits")))
    assert sorted(r[:2] for r in records) == sorted((t.trial_key, epoch) for t in trials for epoch in (1, 2))
    alone = without_time(train(trials[2]))
    assert [r for r in records if r[0] == trials[2].trial_key] == alone


@pytest.mark.parametrize(("arguments", "says"), [
    (([],), "trials: must be at least one, each once, got none"),
    (([TINY, TINY],), f"trials: must be at least one, each once, got {TINY.trial_key}, {TINY.trial_key}"),
    ((dataclasses.replace(TINY, dataset="mnist"), load_dataset("digits")),
     "data: must be the data set of every trial, 'mnist', got one with Dataset")])
def test_trials_are_checked_before_anything_is_trained(arguments, says):
    with pytest.raises(ConfigError, match="^" + says):
        train(*arguments)


def test_account_is_of_all_epochs_unless_told():
    trial = dataclasses.replace(TINY, mechanism="per_example", sampler="poisson", noise_multiplier=1.0)
    assert account(trial) == account(trial, 2) != account(trial, 1)
    assert account(TINY) == []
    for epochs in (0, 3):
        with pytest.raises(ConfigError, match=f"^epochs: must be at least 1 and at most the 2 .*, got {epochs}"):
            account(trial, epochs)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """An empty folder to work in."""
    folder = tmp_path_factory.mktemp("workplace")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture
def one_core(workplace, monkeypatch):
    """A Ray with one worker, which finds the packages."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    ray.init("local", num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def example(workplace):
    """What the notebook experiments/example.ipynb, with half of its epochs, has defined when it ends."""
    notebook = json.loads((ROOT / "experiments" / "example.ipynb").read_text(encoding="utf-8"))
    codes = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert (notebook["nbformat"], sum("epochs=6" in code for code in codes)) == (4, 1)
    names = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch, without_ray(patch):
        for number, code in enumerate(codes):
            exec(compile(code.replace("epochs=6", "epochs=3"), f"cell {number}", "exec"), names)
    yield names
    plt.close("all")


def test_the_example_runs(example, workplace):
    assert example["epsilons"][0].value <= 8
    assert [len(h) for h in example["histories"].values()] == [3, 3]
    assert example["histories"]["non-private"]["validation/accuracy"].max() > 0.5
    assert (example["result"].finished, example["result"].failed) == (4, {})
    assert example["points"]["algorithm"].tolist() == ["bp", "bp", "dfa", "dfa"]
    assert example["points"]["epsilon"].tolist() == sorted(account(t)[0].value for t in example["grid"][2:]) * 2
    for name in ("history", "frontier"):
        assert (workplace / "reports" / "example" / f"{name}.png").stat().st_size > 5000


def test_the_best_trial_is_chosen_by_validation_and_costs_what_was_compared(example):
    runs = load_runs("example")
    winner = best(runs, epsilon=10)
    within = runs[runs["epsilon/certified/pld"] <= 10]
    assert winner["run_id"] == within.loc[within["validation/accuracy"].idxmax(), "run_id"]
    assert winner["compared"] == len(within) and winner["selected_epsilon"] > winner["epsilon"]
    (least,) = sorted(runs["epsilon/certified/pld"].unique())[:1]
    assert best(runs, epsilon=least)["epsilon"] == least
    with pytest.raises(ReportError, match=f"^epsilon: must be at least {least:.4g}, the least certified one, got 0.01"):
        best(runs, epsilon=0.01)
    with pytest.raises(ReportError, match="^epsilon: no trial that ended has a finite label one, got 3"):
        best(runs, epsilon=3, kind="label")
    with pytest.raises(ReportError, match="^kind: must be one of certified, label, got 'claimed'"):
        best(runs, epsilon=3, kind="claimed")
    with pytest.raises(ReportError, match="^epsilon: must be a number, got '3'"):
        best(runs, epsilon="3")
    with pytest.raises(ReportError, match="^validation/accuracy: missing for 4 of 4 trials"):
        best(runs.assign(**{"validation/accuracy": None}), epsilon=10)
    with pytest.raises(MixedTrials, match="^dataset: must be the same .*, got digits, mnist"):
        best(runs.assign(dataset=["mnist", *runs["dataset"][1:]]), epsilon=10)
    searched = runs.copy()
    searched.attrs["searched"] = True
    assert np.isnan(best(searched, epsilon=10)["selected_epsilon"]) and not runs.attrs["searched"]


def test_a_tracked_model_predicts_what_was_logged(example):
    data = load_dataset("digits")
    for run in load_runs("example").to_dict("records"):
        model = load_model(run)
        assert (model(data.test_x).argmax(1) == data.test_y).float().mean().item() == run["test/accuracy"]
    assert isinstance(model, torch.nn.Module) and next(iter(model.state_dict())) == "layer_1.weight"
    assert torch.equal(model(data.test_x), load_model(run["trial_key"])(data.test_x.view(-1, 1, 8, 8)))
    with pytest.raises(ConfigError, match=r"^records: must be uint8 \[n, 64\], n >= 1, for pixels of digits, got "):
        model(data.test_x.float())
    with pytest.raises(ConfigError, match=r"^records: must be a tensor .*, got a str$"):
        model("records.csv")
    with pytest.raises(TrackingError, match="no trial has the trial_key or run id '0000000000000000'"):
        load_model("0" * 16)


@pytest.mark.parametrize("settings", [
    {"network": "convnet", "channels": (4, 4), "kernel": 3}, {"activation": "relu", "input_norm": 8.0},
    {"features": "patches", "patch_pools": 2, "patch_size": 3}, {"hidden": (), "algorithm": "bp", "projector": ""},
], ids=lambda settings: next(iter(settings)))
def test_a_model_predicts_as_its_trial_did(settings):
    trial = dataclasses.replace(TINY, epochs=1, **settings)
    *_, last = train(trial)
    data, model = load_dataset("digits"), TrainedModel(trial, last.outcome.weights)
    with pytest.raises(ConfigError, match=r"^weights: must .*, \(24, \d+\) for layer_\d.weight, got \((8|10), \d+\),"
                                           r" and \d more that differ; was its code changed since"):
        TrainedModel(dataclasses.replace(trial, hidden=(24,)), last.outcome.weights)
    right = data.test_y[model(data.test_x).argmax(1) == data.test_y]
    assert torch.bincount(right, minlength=10).tolist() == [c.correct for c in last.outcome.per_class
                                                            if c.split == "test"]


def test_runs_by_name_and_by_experiment(example, workplace):
    runs = load_runs("example")
    first = ["trial_key", "status", "run_id", *setting_names(), "setting", "trial"]
    assert list(runs.columns[: len(first)]) == first
    assert [trial.trial_key for trial in runs["trial"]] == runs["trial_key"].tolist()
    in_order = load_runs(Experiment("example", "", tuple(example["grid"])), workplace / "mlruns")
    assert in_order["trial_key"].tolist() == [t.trial_key for t in example["grid"]]
    uri = f"sqlite:///{workplace / 'mlruns' / 'mlflow.db'}"
    for store in ("mlruns", uri, Store(root=workplace / "mlruns")):
        pd.testing.assert_frame_equal(load_runs("example", store), runs)
    with pytest.raises(MissingTrials, match="0 of 1 trials are finished"):
        load_runs(Experiment("example", "", (TINY,)))
    with pytest.raises(TrackingError, match=r"no sweep named 'exam', it has example \(run the sweep first\)"):
        load_runs("exam")
    with pytest.raises(TrackingError, match="does not exist"):
        load_runs("example", "elsewhere")
    with pytest.raises(ConfigError, match="example.yaml: no such experiment file"):
        load_runs("example.yaml")


def test_histories_and_frontiers_are_of_runs_and_frontiers_of_certified_epsilons_unless_told(example):
    runs = load_runs("example")
    epochs = load_history(runs, "validation/accuracy").groupby("trial_key")["epoch"]
    grid = Experiment("example", "", tuple(example["grid"]))
    for takes in (load_runs, lambda sweep: load_history(sweep, "validation/accuracy"), frontier,
                  lambda sweep: cells(sweep, ["algorithm", "setting"], "accuracy"),
                  lambda sweep: best(sweep, 3).to_frame()):  # the file's path is as good as the experiment
        by_trial = [takes(sweep).reset_index(drop=True) for sweep in (load_runs(grid), "example", grid)]
        pd.testing.assert_frame_equal(by_trial[0], by_trial[2])
        assert len(by_trial[0]) == len(by_trial[1])
    assert epochs.apply(list).tolist() == [[1, 2, 3]] * 4
    pd.testing.assert_frame_equal(frontier(runs), frontier(runs, "certified"))
    assert set(frontier(runs)["kind"]) == {"certified"}


@pytest.mark.slow
def test_a_sweep_whose_workers_need_plugins(workplace, one_core, extensions):
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    codes = re.findall(r"^```python\n(.*?)^```\n", page, re.DOTALL | re.MULTILINE)
    names = ("feedback_alignment", "sparse_feedback", "signum", "per_layer", "digits_parity", "fourier")
    folder = workplace / "elsewhere_than_cwd"
    folder.mkdir()
    for name, code in zip(names, codes, strict=True):
        (folder / f"{name}.py").write_text(code)
    file = folder / "plugged.yaml"
    file.write_text(f"plugins: [{', '.join(names)}]\n"
                    "base: {dataset: digits_parity, mechanism: per_layer, noise_multiplier: 1, sampler: poisson,\n"
                    "       batch_size: 64, hidden: [16], epochs: 2, feedback_std: 0.1}\n"
                    "cases: [{base: {algorithm: fa, features: fourier, fourier_width: 32}},\n"
                    "        {base: {algorithm: sparse, optimizer: signum, learning_rate: 0.001},\n"
                    "         grid: {sparsity: [0.9]}}]\n")
    result = run_sweep(load_experiment(file), quiet=True)
    assert (result.finished, result.failed) == (2, {})
    runs = load_runs(file).set_index("trial_key")
    for trial in load_experiment(file).trials:
        run = runs.loc[trial.trial_key]
        assert run["epsilon/certified/pld"] == account(trial)[0].value
        assert run["test/accuracy"] == list(train(trial))[-1].metrics["test/accuracy"]
    assert sorted(runs["sparsity"].dropna()) == [0.9], "a setting of its own is a column"
    runs = runs.reset_index()
    store = Store()
    store.attach("plugged")
    assert {f"plugin.{name}" for name in names} < store.runs()[0].tags.keys()
    ax = Figure().subplots()
    frontier_axes(frontier(runs), ax)
    assert "FA" in [text.get_text() for text in ax.get_legend().get_texts()]
