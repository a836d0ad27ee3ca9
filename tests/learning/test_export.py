"""`photonic export`: a trial as files, which predict without this package as `load_model` does."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from registries import forgotten_plugins
from safetensors.numpy import save_file

from pipeline import ConfigError, load_dataset, load_model, network, train
from pipeline.accounting.statement import RECORDED
from pipeline.cli import main
from pipeline.experiment.plugins import LOADED, load_plugins
from pipeline.learning.data.maps.computed import features
from pipeline.learning.export import export
from pipeline.learning.model import model_of
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store, TrackingError
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.records import EpochRecord, Outcome

DONE, RUNNING = (TrialConfig(dataset="digits", algorithm="bp", mechanism="per_example", noise_multiplier=1.0,
                             sampler="poisson", batch_size=64, hidden=(), seed=seed) for seed in (0, 1))
WEIGHTS = {"layer_1.weight": np.arange(640, dtype=np.float32).reshape(10, 64), "layer_1.bias": np.ones(10, np.float32)}
TAGS = {"privacy.certified": "simulated", "privacy.relation": "add/remove", "privacy.delta": "1e-05",
        "privacy.notes": f"noise multiplier 1; simulated: {RECORDED}; not covered: training loss"}
NAMES = ["README.md", "classes.txt", "config.json", "metrics.csv", "network.pt2", "privacy.json", "weights.safetensors"]
ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"
HANDED_ON = {
    "convnet": {"network": "convnet", "channels": (4,), "kernel": 3, "inputs": "standardized", "input_norm": 3.0},
    "own": {"network": "convolutions"}, "features": {"hidden": (8,), "features": "patches", "patch_pools": 2},
    "integer": {"hidden": (8,), "arithmetic": "integer", "mechanism": "per_example", "noise_multiplier": 1.0}}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    store = Store(root=folder)
    store.open_sweep("exported")
    for config in (DONE, RUNNING):
        store.start(config, {"git_commit": "abc"})
    metrics = [{"test/accuracy": 0.5 * epoch, "epsilon/certified/pld": 1.0 * epoch} for epoch in (1, 2)]
    store.log([EpochRecord(DONE.trial_key, 1, metrics[0], TAGS), EpochRecord(RUNNING.trial_key, 1, metrics[0])])
    store.log([EpochRecord(DONE.trial_key, 2, metrics[1], {}, Outcome("finished", WEIGHTS, ()))])
    return folder


@pytest.fixture
def store(root):
    return Reader(root=root)


@pytest.mark.parametrize("by", ["trial_key", "run_id"])
def test_files_hold_what_the_store_holds(store, tmp_path, by):
    run = store.trial(DONE.trial_key)
    files, no_program, _ = export(store, getattr(run, by), tmp_path / "a" / "b")
    assert not no_program
    assert [file.name for file in files] == NAMES and {file.parent for file in files} == {tmp_path / "a" / "b"}
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"], "nothing is left behind"
    for name in ("weights.safetensors", "config.json"):
        assert (tmp_path / "a" / "b" / name).read_bytes() == store.artifact(run, name)
    assert TrialConfig(**json.loads(files[2].read_text())).trial_key == DONE.trial_key
    assert files[3].read_text().split() == ["metric,epoch,value", "epsilon/certified/pld,1,1.0",
                                            "epsilon/certified/pld,2,2.0", "test/accuracy,1,0.5", "test/accuracy,2,1.0"]
    told = json.loads(files[5].read_text())
    (epsilon,) = told.pop("epsilons")
    assert {name: epsilon[name] for name in ("epsilon", "kind", "variant", "delta", "relation")} == {
        "epsilon": 2.0, "kind": "certified", "variant": "pld", "delta": 1e-5, "relation": "add/remove"}
    assert "choice among trials" in epsilon["meaning"]
    assert told.pop("not_covered") == ["training loss",
                                       "the choice of this trial among others, which `photonic report` prices",
                                       "the recorded seed: whoever knows it can subtract the noise"]
    assert told == TAGS


def test_a_label_epsilon_is_told_with_the_seed_of_its_noise_and_one_of_a_column_with_its_own_relation(tmp_path, sweep):
    store, trial = sweep({"mechanism": "photonic", "algorithm": "pdfa", "sigma": 1.0, "hidden": (8,),
                          "gamma_min": 0.25, "tau_h_min": 0.5, "activation_floor": True})
    told = json.loads(export(store, trial.trial_key, tmp_path / "out").files[5].read_text())
    relations = {f"{each['kind']}/{each['variant']}": each["relation"] for each in told["epsilons"]}
    assert relations.items() >= {"label/gdp": "replace-one label", "column/add-remove": "add/remove",
                                 "column/replace-one": "replace-one"}.items()
    assert told["not_covered"][-1] == "the recorded seed: whoever knows it can subtract the noise"


def test_no_tag_of_the_store_names_a_folder(store, tmp_path, monkeypatch):
    run = store.trial(DONE.trial_key)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(store, "trial", lambda name: replace(run, trial_key="../evil"))
    assert export(store, run.run_id).files[0].parent == Path("exports", run.run_id)


@pytest.fixture
def sweep(tmp_path):
    """Trains and tracks a trial of digits."""
    store = Store(root=tmp_path)
    store.open_sweep("exported")

    def trained(settings, tags=None):
        trial = TrialConfig(dataset="digits", batch_size=64, epochs=1, **settings)
        store.start(trial, tags)
        store.log(train(trial))
        return store, trial

    return trained


@pytest.mark.slow
def test_the_lines_of_the_readme_predict_as_the_model_does_without_this_package(tmp_path, extensions, sweep):
    load_plugins(["some_networks"], DATA)
    data = load_dataset("digits")
    images, expected = data.test_x.view(-1, 1, 8, 8), []
    for name, settings in HANDED_ON.items():
        store, trial = sweep(settings, {"plugin.some_networks": LOADED["some_networks"]})
        files, no_program, _ = export(store, trial.trial_key, tmp_path / name)
        assert not no_program and [file.name for file in files] == NAMES
        records = images if trial.parts.features.raw else features(data, trial)[1].float()
        torch.save(records, tmp_path / f"{name}.pt")
        readme = files[0].read_text()
        assert ("features, and not pixels" in readme) == (not trial.parts.features.raw)
        (lines,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
        assert len(lines.splitlines()) == 5 and re.findall("^.*import.*", lines, re.MULTILINE) == ["import torch"]
        filled, n = re.subn(r"torch\.zeros\(.*\)  #", f"torch.load('../{name}.pt')  #", lines)
        assert n == 1
        (tmp_path / name / "lines.py").write_text(f"{lines}\n{filled}")
        model = load_model(tmp_path / name)
        assert torch.equal(model(images), load_model(trial.trial_key, tmp_path)(data.test_x))
        expected.append([str(number) for number in model(images).argmax(1).tolist()])
        assert not [file for file in files if str(ROOT).encode() in file.read_bytes()], "no path of this machine"
    program = f"""
import os, sys
for name in {list(HANDED_ON)}:
    os.chdir(os.path.join({str(tmp_path)!r}, name))
    exec(open("lines.py").read())
assert not {{"pipeline", "analysis", "photonic"}} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    printed = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert not done.returncode and printed[1::2] == expected, done.stderr


def test_a_program_takes_the_rows_of_a_feature_file_as_they_are(tmp_path):
    rows = torch.randn(1797, 12, generator=torch.Generator().manual_seed(0))
    save_file({"train": rows[:1437].numpy(), "test": rows[1437:].numpy()}, tmp_path / "rows.safetensors")
    trial = TrialConfig(dataset="digits", features="file", feature_file=str(tmp_path / "rows.safetensors"),
                        feature_source="an encoder", feature_groups=3, hidden=(8,), batch_size=64, epochs=1)
    *_, last = train(trial)
    model = model_of(trial, last.outcome.weights)
    assert torch.equal(model.program().module()(rows[:5]), model(rows[:5]))


def test_the_experiment_file_loads_the_network_of_a_trial(tmp_path, sweep, capsys):
    with forgotten_plugins():
        load_plugins(["some_networks"], DATA)
        _, trial = sweep(HANDED_ON["own"])
    (tmp_path / "e.yaml").write_text(
        "name: e\nplugins: [some_networks]\nbase: {dataset: digits, network: convolutions}\n")
    (tmp_path / "some_networks.py").write_text((DATA / "some_networks.py").read_text())
    words = ["export", trial.trial_key, "--mlruns", str(tmp_path)]
    with forgotten_plugins():
        assert main([*words, "--out", str(tmp_path / "with")]) == 2
        assert capsys.readouterr().err.endswith(f"`photonic export {trial.trial_key} FILE`\n")  # and writes nothing
        assert main([*words, str(tmp_path / "e.yaml"), "--out", str(tmp_path / "with")]) == 0
    assert [file.name for file in sorted((tmp_path / "with").iterdir())] == NAMES


def test_a_network_whose_code_has_changed_is_told_wherever_its_weights_meet_it(tmp_path, sweep, capsys):
    module, code = tmp_path / "some_networks.py", (DATA / "some_networks.py").read_text()
    module.write_text(code)
    with forgotten_plugins():
        load_plugins(["some_networks"], tmp_path)
        _, trial = sweep(HANDED_ON["own"], {"plugin.some_networks": LOADED["some_networks"]})
        _, secret = sweep({**HANDED_ON["own"], "seed": 1}, {"plugin.some_networks": "not recorded"})
        load_model(trial.trial_key, tmp_path)  # warnings are errors in tests
        with pytest.warns(UserWarning, match=": trained under version 1; nothing can tell whether its file has chang"):
            load_model(secret.trial_key, tmp_path)
    (tmp_path / "e.yaml").write_text("name: exported\nplugins: [some_networks]\nbase: {dataset: digits, batch_size: "
                                     "64, epochs: 1, network: convolutions}\n")
    module.write_text(f"{code}# changed\n")
    with forgotten_plugins():
        load_plugins(["some_networks"], tmp_path)
        said = (r"network 'convolutions': its file was another when it was trained with version 1 "
                r"\(\w{16}, and now \w{16}\)")
        with pytest.warns(UserWarning, match=f"^{said}; raise the version if results change$"):
            load_model(trial.trial_key, tmp_path)
        assert main(["export", trial.trial_key, "--mlruns", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
        assert re.search(f"^{said}", capsys.readouterr().out, re.MULTILINE)
        for command in ["status"], ["sweep", "--dry-run"]:
            assert main([*command, str(tmp_path / "e.yaml"), "--mlruns", str(tmp_path)]) == 0
            assert re.search(f"^ *{said}", capsys.readouterr().out, re.MULTILINE), command
    module.write_text(code.replace("version=1", "version=2"))
    with forgotten_plugins():
        load_plugins(["some_networks"], tmp_path)
        said = "network 'convolutions': trained under version 1, loaded now is version 2"
        for run in trial.trial_key, tmp_path / "out":
            with pytest.warns(UserWarning, match=f"^{said}"):
                load_model(run, tmp_path)
        assert main(["export", trial.trial_key, "--mlruns", str(tmp_path), "--out", str(tmp_path / "newer")]) == 0
        assert f"\n{said}" in capsys.readouterr().out


def test_a_network_that_torch_cannot_export_is_told_and_its_weights_are_written(tmp_path, extensions, sweep, capsys):
    @network("by_length", version=1)
    def by_length(trial, shape, n_classes):
        class Reshape(torch.nn.Module):
            def forward(self, x):
                return x.reshape(len(x), -1)  # a plain number, which binds a program to it

        return torch.nn.Sequential(Reshape(), torch.nn.Linear(64, n_classes))

    _, trial = sweep({"network": "by_length", "algorithm": "bp"})
    assert main(["export", trial.trial_key, "--mlruns", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    reason = "Constraints violated (n)!"
    assert f"without network.pt2: {reason}" in capsys.readouterr().out
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "This folder has no program of the network: UserError." in readme and "```" not in readme
    assert json.loads((tmp_path / "out" / "privacy.json").read_text())["not_covered"] == [
        "everything: no epsilon here guarantees anything of this network"]
    assert load_model(tmp_path / "out")(load_dataset("digits").test_x).shape == (360, 10)


def test_a_program_of_which_a_record_depends_on_another_is_refused(extensions):
    network("mixed", version=1)(lambda trial, shape, n_classes: torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Softmax(0), torch.nn.Linear(64, n_classes)))
    trial = TrialConfig(dataset="digits", network="mixed", algorithm="bp", batch_size=64)
    with pytest.raises(ConfigError, match="^program: must give .*; no record may depend on another in forward$"):
        model_of(trial, {"2.weight": WEIGHTS["layer_1.weight"] / 640, "2.bias": WEIGHTS["layer_1.bias"]}).program()


def test_the_command_says_what_it_wrote_and_overwrites_nothing(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["export", DONE.trial_key, "--mlruns", str(root)]
    assert main(command) == 0
    folder = Path("exports", DONE.trial_key)
    assert capsys.readouterr().out.split() == ["written:", *(str(folder / name) for name in NAMES)]
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(command) == 2
    assert f"--out: must be a folder that does not exist yet, got {folder}" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in folder.iterdir()}
    assert main([*command, "--out", "other"]) == 0 and len(list(Path("other").iterdir())) == len(NAMES)


def test_a_trial_that_has_not_ended_or_is_not_there_is_refused_and_nothing_is_written(root, store, tmp_path):
    gone = next(root.rglob("weights.safetensors"))
    content = gone.read_bytes()
    gone.unlink()
    for name, message in ((RUNNING.trial_key, "must have ended to have weights, is running"),
                          ("0" * 16, "no trial has the trial_key or run id '0000000000000000'"),
                          ("mine.yaml", "must be a trial_key or a run id"),
                          (DONE.trial_key, "weights.safetensors")):  # which was deleted
        with pytest.raises(TrackingError, match=message):
            export(store, name, tmp_path / "out")
    gone.write_bytes(content)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UserError, match="nothing is overwritten"):
        export(store, DONE.trial_key, tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with pytest.raises(ConfigError, match=f"^run: must be a folder that `photonic export` wrote.*, got {tmp_path}"):
        load_model(str(tmp_path))
