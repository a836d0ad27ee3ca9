"""A sweep that another version began is refused in one line, and the store's other sweeps go on."""

import json

import pytest
from commands import output, written
from search_tools import train

from pipeline.cli import main
from pipeline.experiment.experiment import load_experiment
from pipeline.tracking.artifacts import FORMAT, PRESENT_FORMAT
from pipeline.tracking.backend import OtherFormat
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.tracking.ui import runs_pages

BASE = """
base: {dataset: digits, hidden: [8], epochs: 1, batch_size: 64, mechanism: per_example, sampler: poisson,
       noise_multiplier: 20, private_metrics: noisy}
"""
SEARCH = """
search: {algorithm: random, trials: 2, space: {learning_rate: {uniform: [0.1, 1]}}}
budget: {epsilon: 4, delta: 1.0e-5}
"""
REFUSAL = ("sweep 'old': another version of this software began it, and its trials have other keys; give the "
           "experiment another name, or use another store")


@pytest.fixture
def root(tmp_path):
    """A store with a finished sweep `old` as another version left it, beside its experiment file."""
    file = written(tmp_path / "old.yaml", f"name: old{BASE}")
    experiment, store = load_experiment(file), Store(root=tmp_path / "mlruns")
    store.open_sweep("old", params={"trials": 1})
    store.log_experiment(experiment.text)
    train(store, experiment.trials)
    store.close_sweep("FINISHED")
    store._client.mlflow.delete_experiment_tag(store.experiment_id, FORMAT)
    return store.root


@pytest.mark.parametrize("command", [
    ["status", "old"], ["status", "{file}"], ["report", "old"], ["report", "{file}"], ["account", "old"],
    ["sweep", "{file}"], ["sweep", "{file}", "--dry-run"], ["sweep", "{reuse}"]], ids=" ".join)
def test_every_command_on_it_ends_with_one_line(command, root, tmp_path, capsys):
    files = {"file": tmp_path / "old.yaml", "reuse": written(tmp_path / "r.yaml", f"name: r\nreuse: [old]{BASE}")}
    words = [word.format(**files) for word in command]
    assert output(capsys, *words, "--mlruns", str(root), code=2) == f"error: {REFUSAL}\n"


def test_a_look_at_the_whole_store_shows_the_others(root, capsys):
    assert output(capsys, "status", "--mlruns", str(root)) == f"{REFUSAL}\n"
    Store(root=root).open_sweep("new", params={"trials": 1})
    shown = output(capsys, "status", "--mlruns", str(root))
    assert shown.startswith("new: 1 trial") and shown.endswith(f"\n\n{REFUSAL}\n")
    assert main(["status", "--json", "--mlruns", str(root)]) == 0
    told = capsys.readouterr()
    assert [sweep["name"] for sweep in json.loads(told.out)] == ["new"] and told.err == f"{REFUSAL}\n"
    reader = Reader(root=root)
    assert reader.sweeps() == ["old", "new"]
    first, second = runs_pages(reader, "http://page")
    assert first.endswith("  new") and second == f"  {REFUSAL}"


@pytest.mark.usefixtures("in_process")
def test_a_new_sweep_beside_it_trains_and_counts_what_it_released(root, tmp_path, capsys, said):
    file = written(tmp_path / "new.yaml", f"name: new{BASE}{SEARCH}")
    output(capsys, "sweep", str(file), "--mlruns", str(root))
    (line,) = [line for line in said if line.startswith("With the certified trials")]
    assert "1 other sweep on digits in this store (old;" in line
    assert output(capsys, "status", "new", "--mlruns", str(root)).startswith("new: 2 trials: 2 finished")
    output(capsys, "report", str(file), "--mlruns", str(root), "--out", str(tmp_path / "report"))
    assert (tmp_path / "report" / "index.html").stat().st_size > 10_000


def test_it_stays_refused_in_the_trash_and_what_never_was_a_sweep_is_not(root):
    store = Store(root=root)
    experiment_id = store._client.find_experiment("old")
    (parent,) = store._client.search([experiment_id], "tags.sweep = 'old'")
    store._client.delete_run(parent.info.run_id)
    for refused in (store.open_sweep, store.find, store.attach):
        with pytest.raises(OtherFormat, match="another version"):
            refused("old")
        assert not store.is_open and not store.has_begun
    store._client.mlflow.create_experiment("by hand")
    assert not store.find("by hand") and store.has_begun
    store.open_sweep("by hand")
    assert store.tags()[FORMAT] == PRESENT_FORMAT and Reader(root=root).find("by hand")
