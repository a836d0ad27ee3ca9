"""Pages of docs with a recipe: what they say to write is written here, and works; none is longer than it may be."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from stored import attached

from pipeline import load_dataset, load_experiment, recommended, train
from pipeline.accounting.budget import make_filter
from pipeline.cli import main
from pipeline.learning.model import TrainedModel
from pipeline.learning.own.operators import is_reviewed_here
from pipeline.trials.records import Release

ROOT = Path(__file__).parents[2]
PAGES = ("choosing", "housekeeping", "own_data", "cluster")
TEXT = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in PAGES}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT[page], re.DOTALL | re.MULTILINE)


@pytest.fixture
def patients(tmp_path, monkeypatch, extensions):
    """The folder of docs/own_data.md: a table of 600 rows, and what the page says."""
    generator = np.random.default_rng(0)
    age, ward = generator.uniform(0, 120, 600), generator.choice(["north", "south", "east"], 600)
    income = 10 ** generator.uniform(3, 6, 600)
    is_ill = age / 120 + (ward == "north") + generator.normal(0, 0.2, 600) > 1 + (np.log10(income) - 4.5) / 3
    rows = zip(age, income, ward, np.where(is_ill, "ill", "well"), strict=True)
    (tmp_path / "patients.csv").write_text("\n".join(["age,income,ward,outcome", *(
        f"{age:.1f},{income:.2f},{ward},{outcome}" for age, income, ward, outcome in rows)]))
    for name, text in zip(("patients", "experiment"), blocks("own_data", "yaml"), strict=True):
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_table_trains_with_the_preset_and_its_model_predicts(patients):
    experiment = load_experiment("experiment.yaml")
    assert len(experiment.trials) == 18 and "five public tables" in experiment.advice[0]
    (trial,) = (t for t in experiment.trials if (t.algorithm, t.target_epsilon, t.seed) == ("dfa", 8, 0))
    *_, last = train(trial)
    assert last.metrics["test/accuracy"] > 0.8
    assert TrainedModel(trial, last.outcome.weights)(load_dataset("patients").test_x).shape == (120, 2)


@pytest.mark.slow
def test_a_network_embeds_a_tables_categories_from_init_to_the_report(patients, capsys):
    (code,) = (block for block in blocks("own_data", "python") if "table_inputs" in block)
    Path("embedded.py").write_text(code)
    assert main(["init", "first.yaml", "--csv", "patients.csv", "--label", "outcome"]) == 0
    declaration, file = Path("patients_table.yaml"), Path("first.yaml")
    declaration.write_text(declaration.read_text().replace("confirmed: false", "confirmed: true"))
    text = file.read_text()
    for before, after in (("table.yaml]", "table.yaml, embedded]"), ("[1, 3, 8]", "[8]"), ("[0, 3]", "[0, 1]"),
                          ("hidden: [32]", "network: embedded, noise: secure")):
        assert before in text
        text = text.replace(before, after)
    file.write_text(text)
    assert main(["sweep", "first.yaml"]) == 0 and main(["report", "first.yaml"]) == 0
    assert Path("reports/first/index.html").exists() and "frontier.csv" in capsys.readouterr().out
    runs = attached("first", Path("mlruns")).runs()
    certified = "true" if is_reviewed_here(torch.device("cpu")) else "up to rounding"
    assert {(run.tags["network.records"], run.tags["privacy.certified"]) for run in runs} == {("mapped", certified)}
    assert {run.params["algorithm"] for run in runs} == {"bp", "dfa"}
    assert all(7 < run.metrics["epsilon/certified/pld"] <= 8 for run in runs)


def test_embeddings_are_rows_in_the_order_of_the_records(tmp_path):
    (code,) = (block for block in blocks("own_data", "python") if "def embed" in block)
    names = {}
    exec(compile(code, "own_data", "exec"), names)
    encoder = torch.nn.Linear(4, 3)
    records = torch.arange(2400.0).view(600, 4) / 2400
    names["embed"](encoder, records, records[:7], tmp_path / "f.safetensors")
    found = load_file(tmp_path / "f.safetensors")
    assert found["train"].shape == (600, 3) and torch.allclose(found["train"].float(), encoder(records), atol=1e-2)


def test_the_search_of_ten_trials_fits_its_budget(tmp_path):
    first, search = blocks("choosing", "yaml")
    for name, text in (("first", first), ("tune", search)):
        (tmp_path / f"{name}.yaml").write_text(text)
    trials = load_experiment(tmp_path / "first.yaml").trials
    assert trials[0] == recommended(dataset="fashion_mnist", mechanism="per_example", algorithm="bp", target_epsilon=1)
    tune = load_experiment(tmp_path / "tune.yaml")
    drawn = [tune.plan.trial({"learning_rate": n, "clipping_norm": 1.0, "feedback_std": 0.3}) for n in range(1, 31)]
    admits = make_filter(tune.plan.budget, tune.plan.possible, tune.plan.planned).admits
    assert admits([Release(trial, trial.epochs) for trial in drawn[:10]])
    assert not admits([Release(trial, trial.epochs) for trial in drawn])
