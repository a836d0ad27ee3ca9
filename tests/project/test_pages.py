"""Pages of docs with a recipe: what they say to write is written here, and works; none is longer than it may be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline import load_experiment, recommended

ROOT = Path(__file__).parents[2]
PAGES = ("choosing", "housekeeping", "own_data", "two_machines")
TEXT = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in PAGES}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT[page], re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """The folder of docs/own_data.md: a real table (breast cancer, from scikit-learn), and what the page says."""
    from sklearn.datasets import load_breast_cancer

    folder, table = tmp_path_factory.mktemp("clinic"), load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(table.target))
    rows = np.column_stack([table.data, table.target])[order]
    np.savetxt(folder / "clinic.csv", rows, delimiter=",", header=",".join([*table.feature_names, "class"]))
    high = 10.0 ** np.ceil(np.log10(table.data.max(axis=0)))  # rough enough to be common knowledge
    np.savetxt(folder / "ranges.csv", [0 * high, high], delimiter=",")
    plugin, *_ = blocks("own_data", "python")
    (experiment,) = blocks("own_data", "yaml")
    (folder / "clinic.py").write_text(plugin)
    (folder / "clinic.yaml").write_text(experiment)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "clinic.py"], cwd=folder, check=True, env=environment)
    return folder


def test_a_table_of_floats_trains_with_the_preset(clinic, extensions, monkeypatch):
    from safetensors.torch import load_file

    from pipeline import train
    from pipeline.learning.model import TrainedModel

    monkeypatch.syspath_prepend(clinic)
    experiment = load_experiment(clinic / "clinic.yaml")
    assert len(experiment.trials) == 18 and "not tuned on these" in experiment.advice[0]
    assert {t.algorithm for t in experiment.trials} == {"bp", "dfa"}
    (trial,) = (t for t in experiment.trials if (t.algorithm, t.target_epsilon, t.seed) == ("dfa", 8, 0))
    *_, last = train(trial)
    assert last.metrics["test/accuracy"] > 0.8, "two classes, of which the larger has 63%"
    rows = load_file(clinic / "clinic.safetensors")["test"]
    predicted = TrainedModel(trial, last.outcome.weights)(rows).argmax(1)
    assert (predicted == 1).sum() > 0 and len(predicted) == 114


def test_embeddings_are_rows_in_the_order_of_the_records(tmp_path):
    import torch
    from safetensors.torch import load_file

    (code,) = (block for block in blocks("own_data", "python") if "def embed" in block)
    names = {}
    exec(compile(code, "own_data", "exec"), names)
    encoder = torch.nn.Linear(4, 3)
    records = torch.arange(2400.0).view(600, 4) / 2400
    names["embed"](encoder, records, records[:7], tmp_path / "f.safetensors")
    found = load_file(tmp_path / "f.safetensors")
    assert found["train"].shape == (600, 3) and torch.allclose(found["train"].float(), encoder(records), atol=1e-2)


def test_the_search_of_ten_trials_fits_its_budget(tmp_path):
    from pipeline.accounting.budget import make_filter
    from pipeline.trials.records import Release

    first, search = blocks("choosing", "yaml")
    for name, text in (("first", first), ("tune", search)):
        (tmp_path / f"{name}.yaml").write_text(text)
    trials = load_experiment(tmp_path / "first.yaml").trials
    assert trials[0] == recommended(dataset="fashion_mnist", mechanism="per_example", algorithm="bp", target_epsilon=1)
    tune = load_experiment(tmp_path / "tune.yaml")
    drawn = [tune.plan.trial({"learning_rate": n, "clipping_norm": 1.0, "feedback_std": 0.3}) for n in range(1, 31)]
    admits = make_filter(tune.plan).admits
    assert admits([Release(trial, trial.epochs) for trial in drawn[:10]])
    assert not admits([Release(trial, trial.epochs) for trial in drawn])
