"""Registered feedback paths, mechanisms and data sets; docs/extending.md has whole ones."""

import functools
import math
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flat import train, train_pack
from stored import sweep_of

from analysis import best, frontier, style
from analysis.catalogue import mismatch
from analysis.labels import algorithm_labels
from analysis.report import overview
from analysis.runs import ReportError, csv_of, frame_of
from pipeline.accounting import account, privacy_tags
from pipeline.auditing.two_point import audit_release
from pipeline.cli import main
from pipeline.experiment.experiment import Experiment, load_experiment, parse_experiment
from pipeline.experiment.plugins import LOADED, load_plugins
from pipeline.learning.data.dataset import DataError, load, register_dataset
from pipeline.learning.data.maps.registered import register_features
from pipeline.learning.feedback.algorithms import BackPropagationPath, register_feedback
from pipeline.learning.mechanisms import contribution_bound, register_mechanism
from pipeline.learning.mechanisms.base import PlainStep
from pipeline.learning.mechanisms.gaussian import PerExampleStep
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.private import UnusableFile
from pipeline.tracking.artifacts import TrackedRun, config_of, param_text
from pipeline.trials import loss, mechanism, sampler
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.datasets import DATASETS, DatasetSpec
from pipeline.trials.fields import setting
from pipeline.trials.kinds import certified_trials
from pipeline.trials.naming import noise_setting, run_name
from pipeline.trials.packs import Pack
from pipeline.trials.part import PARTS, SETTINGS, Part, part

pytestmark = pytest.mark.usefixtures("extensions")
SMALL = dict(dataset="digits", hidden=(16,), batch_size=64, epochs=1, sampler="poisson")
WHY = "it is back-propagation"


class Mine(BackPropagationPath):
    def __init__(self, pack, net, device):
        self.pack = pack


def scaled(factor):
    """A mechanism with contributions of norm `factor` C at most."""
    class Scaled(PerExampleStep):
        def bounded(self, deltas, activations):
            deltas, activations = super().bounded(deltas, activations)
            return [factor * d for d in deltas], activations

    return Scaled


Halved = scaled(0.5)


class OwnUpdate(PerExampleStep):
    def update(self, deltas, activations, out):
        super().update(deltas, activations, out)


# feedback

OWN = {"sparsity": setting(0.5, "share of B that is 0", low=0, high=1, per_trial=True), "threshold": None}


def test_a_feedback_path_trains_as_what_it_is_and_has_a_curve_of_its_own():
    register_feedback("mine", Mine, label="Mine")
    register_feedback("other", functools.partial(Mine))
    trials = [TrialConfig(**{**SMALL, "sampler": "shuffled"}, algorithm=a) for a in ("mine", "bp")]
    assert trials[0].projector == "none" and trials[0].trial_key != trials[1].trial_key
    mine, bp = (list(train(Pack((t,)), load("digits")))[-1].metrics for t in trials)
    assert mine["train/loss"] == bp["train/loss"] and mine["alignment/layer_1"] == pytest.approx(1)
    looks = [(style.PALETTE[a], style.MARKERS[a]) for a in ("bp", "dfa", "tdfa", "pdfa", "hybrid", "mine", "other")]
    assert len({look[0] for look in looks}) == len({look[1] for look in looks}) == 7
    assert algorithm_labels()["mine"] == "Mine" and algorithm_labels()["other"] == "other"


def test_a_setting_of_an_extension_is_one_like_any_other_and_part_of_no_other_identity():
    before = TrialConfig(algorithm="bp").trial_key
    register_feedback("mine", Mine)
    plain = TrialConfig(algorithm="mine")
    assert replace(plain, threshold=0.3).trial_key == plain.trial_key
    register_feedback("mine", Mine, settings=OWN)  # as in a cell that is run again
    plain, sparse = TrialConfig(algorithm="mine"), TrialConfig(algorithm="mine", sparsity=1)
    assert (plain.sparsity, sparse.sparsity, sparse.canonical()["sparsity"]) == (0.5, 1.0, 1.0)
    assert plain.trial_key == TrialConfig(algorithm="mine", sparsity=0.5).trial_key
    assert len({trial.trial_key for trial in (plain, sparse, replace(plain, threshold=0.3))}) == 3
    assert plain == replace(sparse, sparsity=0.5) != sparse and hash(plain) != hash(sparse)
    assert replace(sparse, seed=3).sparsity == pickle.loads(pickle.dumps(sparse)).sparsity == 1.0
    assert plain.pack_key == sparse.pack_key and [t.sparsity for t in Pack((plain, sparse)).trials] == [0.5, 1.0]
    assert TrialConfig(algorithm="bp", sparsity=1).trial_key == TrialConfig(algorithm="bp").trial_key == before
    params = {name: param_text(value) for name, value in sparse.canonical().items()}
    assert config_of(TrackedRun("id", sparse.trial_key, params, {}, {}, "finished", 0, None)) == sparse
    with pytest.raises(AttributeError, match="no attribute 'density'"):
        sparse.density  # noqa: B018  (the attribute is asked for)
    register_mechanism("mine", Halved, settings={"rank": setting(1, "columns that are kept", low=1)})
    assert TrialConfig(mechanism="mine").pack_key != TrialConfig(mechanism="mine", rank=2).pack_key


def test_a_sweep_over_a_setting_of_its_own_and_wrong_ones_are_refused_as_others_are():
    register_feedback("mine", Mine, settings=OWN)
    experiment = parse_experiment(
        "base: {dataset: digits}\n"
        "cases: [{base: {algorithm: bp}}, {base: {algorithm: mine}, grid: {sparsity: [0, 1]}}]", Path("some.yaml"))
    assert [run_name(trial, experiment.varied) for trial in experiment.trials] == [
        "bp non-private seed=0", "mine non-private sparsity=0.0 seed=0", "mine non-private sparsity=1.0 seed=0"]
    for text, says in (
            ("base: {algorithm: mine, sparsity: 2}", "sparsity: must be <= 1, got 2.0, at base.sparsity"),
            ("base: {algorithm: mine, sparsity: much}", "sparsity: must be a number, got the text 'much', at base.spa"),
            ("base: {algorithm: bp, sparsity: 0.25}", "sparsity: is not used with algorithm 'bp', got 0.25; use algor"),
            ("base: {algorithm: mine, sparse: 1}", "sparse: unknown field, got 1; did you mean 'sparsity'"),
            ("grid: {algorithm: [bp, mine], sparsity: [0.1, 0.9]}", "the same trial as")):
        with pytest.raises(ConfigError, match=says):
            parse_experiment(text, Path("some.yaml"))


def test_a_path_that_states_why_is_certified_and_the_reason_stands_beside_the_number():
    register_feedback("mine", Mine)
    for name, says in (("per_example", r"'per_example' bounds .* which algorithm 'mine' does not state \(per_record"),
                       ("component", "'component' bounds"), ("photonic", "'photonic' is described for 'bp' or")):
        with pytest.raises(ConfigError, match=f"^mechanism: {says}"):
            TrialConfig(algorithm="mine", mechanism=name)
    register_feedback("mine", Mine, per_record=WHY)
    trial = TrialConfig(**SMALL, algorithm="mine", mechanism="per_example", noise_multiplier=1.0)
    assert account(trial, 1) == account(replace(trial, algorithm="bp"), 1)
    assert privacy_tags(trial)["privacy.notes"].endswith(f"is stated by the extension 'mine': {WHY}")
    assert "extension" not in privacy_tags(replace(trial, algorithm="bp"))["privacy.notes"]
    with pytest.raises(ConfigError, match="'photonic' is described for"):
        replace(trial, mechanism="photonic", sampler="shuffled")


def entered(slot, name="mine", kind=Part, **attributes):
    part(slot, name)(type("Mine", (kind,), attributes))


@pytest.mark.parametrize(("call", "says"), [
    (lambda: register_feedback("bp", Mine), r"algorithm: 'bp' is taken by .*feedback.*, got .*Mine; choose"),
    (lambda: register_feedback("My path", Mine), "algorithm: must be small letters, digits and '_', .* got 'My path'"),
    (lambda: register_feedback("mine", Mine, settings=("thresh",)), "settings: must be fields of a trial, got 'thres"),
    (lambda: register_feedback("mine", Mine, settings={"mine": 3}), "settings: 'mine' must be what .*setting. makes"),
    (lambda: register_feedback("mine", Mine, settings={"sigma": setting(1.0, "")}), "settings: 'sigma' is another"),
    (lambda: register_feedback("mine", Mine, settings={"layers": setting(1, "")}), "settings: a new one .* 'layers'"),
    (lambda: register_feedback("mine", Mine, settings={"x": setting(1.0, "", high=0)}), "x: must be <= 0, got 1.0"),
    (lambda: register_feedback("mine", Mine, projectors=("lens",)), "projectors: must be some of none, .*, got lens"),
    (lambda: register_feedback("mine", Mine, projectors=()), "projectors: must be some of none, .*, got none"),
    (lambda: register_mechanism("none", Halved), "mechanism: 'none' is taken by .*trials.mechanism.NoMechanism"),
    (lambda: register_mechanism("mine", PlainStep, guarantee="?"), "guarantee: needs a GaussianStep"),
    (lambda: register_mechanism("mine", OwnUpdate, guarantee="?"), "guarantee: .* inherits `update`.*, got OwnUpdate"),
    (lambda: register_mechanism("mine", Halved, settings=("target_epsilon",)), "settings: target_epsilon needs a guar"),
    (lambda: register_features("mine", len, shape=(1,), public_because=" "), "public_because: must say in one line"),
    (lambda: register_features("pixels", len, shape=(1,), public_because="?"), "features: 'pixels' is taken by"),
    (lambda: register_features("scattering", len, shape=(1,), public_because="?"), "features: 'scattering' is taken"),
    (lambda: register_dataset("digits", DATASETS["mnist"].spec, print), "dataset: 'digits' is taken by .*Digits"),
    (lambda: register_dataset("mine", DatasetSpec(9, 9, (3, 2), 1, (0,), (1,)), print), "dataset: 'mine' must have at"),
    (lambda: entered("optimiser"), "slot: must be one of dataset, features, .*, got 'optimiser'"),
    (lambda: entered("optimizer", decay=0.1, __annotations__={"decay": float}), "settings: 'decay' must be what .*0.1"),
])
def test_what_cannot_be_registered_changes_nothing(call, says):
    before = {slot: dict(of_slot) for slot, of_slot in PARTS.items()}, dict(SETTINGS)
    with pytest.raises(ConfigError, match="^" + says):
        call()
    assert before == (PARTS, SETTINGS)
    with pytest.raises(ConfigError, match="algorithm: must be one of bp, dfa, tdfa, pdfa, hybrid, got 'mine'"):
        TrialConfig(algorithm="mine")


# mechanisms and other parts

def test_a_mechanism_without_a_guarantee_has_no_epsilon_anywhere():
    register_mechanism("mine", Halved, settings=("clipping_norm", "noise_multiplier"))
    trial = TrialConfig(**SMALL, mechanism="mine", noise_multiplier=1.0)
    records = list(train(Pack((trial,)), load("digits")))
    assert account(trial, 1) == [] and not any(name.startswith("epsilon/") for name in records[-1].metrics)
    tags = records[0].tags
    assert (tags["privacy.certified"], tags["privacy.relation"], tags["privacy.delta"]) == ("false", "none", "none")
    assert tags["privacy.notes"] == "not certified: mechanism 'mine' is an extension that states no guarantee"
    assert certified_trials([trial]) == [] and noise_setting(trial) == "mine=1"
    assert "mechanism mine does not have" in mismatch("table1", sweep_of([trial]))
    assert mismatch("frontier", sweep_of([trial]))
    with pytest.raises(ConfigError, match="^target_epsilon: mechanism 'mine' states no guarantee .*, got 3.0"):
        replace(trial, target_epsilon=3)


def test_a_mechanism_with_a_guarantee_is_certified_calibrated_and_audited():
    register_mechanism("mine", Halved, settings=("clipping_norm",), guarantee="half of C is less than C")
    trial = TrialConfig(**SMALL, mechanism="mine", clipping_norm=0.7, noise_multiplier=1.0)
    assert contribution_bound(trial) == 0.7
    assert account(trial, 1) == account(replace(trial, mechanism="per_example"), 1) != []
    assert "'mine': half of C is less than C" in privacy_tags(trial)["privacy.notes"]
    assert certified_trials([trial]) == [trial] and noise_setting(trial) == "z=1"
    aimed = replace(trial, noise_multiplier=0.0, target_epsilon=4.0)
    assert 3.9 < account(aimed, 1)[0].value <= 4.0
    assert not audit_release(trial, 200, 1e-5).exceeds
    register_mechanism("mine", Halved)  # registered again, and without
    assert account(TrialConfig(**SMALL, mechanism="mine"), 1) == []
    register_mechanism("broken", scaled(2), settings=("clipping_norm",), guarantee="it does not hold")
    assert audit_release(replace(trial, mechanism="broken"), 600, 1e-5).exceeds
    entered("mechanism", "loose", mechanism.PerExample, sensitivity_ratio=lambda self, trial: 2.0)
    notes = privacy_tags(replace(trial, mechanism="loose"))["privacy.notes"]
    assert "noise is measured by 0.7, a record contributes up to 2 times that" in notes


def test_a_loss_or_a_sampler_that_states_nothing_is_not_certified():
    entered("loss", "mine", loss.Loss)
    entered("sampler", "cyclic", sampler.Sampler)
    assert TrialConfig(loss="mine").trial_key != TrialConfig(sampler="cyclic").trial_key
    for settings, says in (
            (dict(loss="mine", mechanism="per_example"), "mechanism: 'per_example' bounds .* which loss 'mine' does"),
            (dict(sampler="cyclic", mechanism="component"), "sampler: 'cyclic' states no accountant"),
            (dict(sampler="cyclic", mechanism="photonic"), "sampler: nothing is claimed or proved .* with cyclic b"),
            (dict(sampler="cyclic", canaries=100), "canaries: need sampler 'poisson'")):
        with pytest.raises(ConfigError, match=f"^{says}"):
            TrialConfig(**settings)
    entered("loss", "mine", loss.Loss, per_record=WHY)
    stated = TrialConfig(loss="mine", mechanism="per_example", noise_multiplier=1)
    assert f"errors depend on one record each is stated by the extension 'mine': {WHY}" in (
        privacy_tags(stated)["privacy.notes"])


def test_a_part_without_code_for_its_work_is_refused_by_name(digits):
    entered("loss", "mine", loss.Loss)
    with pytest.raises(ConfigError, match="^loss: 'mine' must have code that does its work, got none; enter a class"):
        next(train(Pack((TrialConfig(dataset="digits", loss="mine"),)), digits))


# data sets

def records(spec, folder, rows=30, top=1):
    x = np.arange(rows * 4, dtype=np.uint8).reshape(rows, 4)
    y = (np.arange(rows) % (top + 1)).astype(np.uint8)
    return (x, y), (x[:10], y[:10])


SPEC = DatasetSpec(30, 10, (4,), 2, (0.5,), (0.5,))
DIGEST = "2ddea87e6d4b4c3bd4eb0a4e8c1d6dffad1a3fc4d1ef5b4f45b6a6d0d1a2c3b4"


def test_a_data_set_trains_and_records_other_than_stated_are_refused():
    register_dataset("mine", SPEC, records)
    trial = TrialConfig(dataset="mine", hidden=(8,), batch_size=9, epochs=2)
    assert trial.layer_sizes == (4, 8, 2) and trial.split_sizes == (27, 3)
    assert [r.epoch for r in train(Pack((trial,)), load("mine"))] == [1, 2]
    for number, (spec, options, says) in enumerate((
            (SPEC, {"rows": 29}, r"train x: expected uint8 of shape \(30, 4\), got uint8 of shape \(29, 4\)"),
            (SPEC, {"top": 2}, "train: expected labels 0..1, got 2 in row 2"),
            (replace(SPEC, sha256=DIGEST), {}, f"content with SHA-256 {DIGEST}, got [0-9a-f]{{64}}"))):
        register_dataset(f"other_{number}", spec, functools.partial(records, **options))
        with pytest.raises(DataError, match=f"other_{number}.*{says}"):
            load(f"other_{number}")


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.float32])
def test_labels_of_any_numeric_type_stay_what_they_are(dtype):
    y = (np.arange(600) % 300).astype(dtype)
    register_dataset("many", DatasetSpec(600, 600, (1,), 300, (0.5,), (0.5,)),
                     lambda spec, folder: ((np.zeros((600, 1), np.uint8), y),) * 2)
    assert load("many").train_y.tolist() == y.astype(int).tolist()


@pytest.mark.parametrize(("label", "says"), [
    (math.nan, "got nan in row 7"), (0.5, "got 0.5 in row 7"), (-1, "got -1.0 in row 7"), (300, "got 300.0 in row 7"),
    (math.inf, "got inf in row 7"), ("a", "as numbers .*, got <U"), (np.uint8(44), "that holds them all, got uint8")])
def test_a_label_that_is_no_class_is_refused_with_its_row(label, says):
    y = np.zeros(30, float if isinstance(label, float | int) else np.asarray(label).dtype)
    y[7] = label
    register_dataset("mine", replace(SPEC, n_classes=300), lambda spec, folder: (
        (np.zeros((30, 4), np.uint8), y), (np.zeros((10, 4), np.uint8), y[:10])))
    with pytest.raises(DataError, match=f"^mine, train: expected labels 0..299.*{says}"):
        load("mine")


# plugins

PLUGIN = """
from pipeline.learning.feedback.algorithms import BackPropagationPath, register_feedback
from pipeline.trials.fields import setting
class Path(BackPropagationPath):
    def __init__(self, pack, net, device): pass
register_feedback("from_a_plugin", Path, settings={"gain": setting(2, "of it")})
"""


def write(folder, plugins="[a_plugin]", algorithm="from_a_plugin"):
    (folder / "a_plugin.py").write_text(PLUGIN)
    (folder / "some.yaml").write_text(f"plugins: {plugins}\nbase: {{dataset: digits, algorithm: {algorithm}}}\n")
    return folder / "some.yaml"


def test_a_file_loads_its_plugins_whose_settings_are_listed(tmp_path, capsys):
    file = write(tmp_path)
    assert main(["fields"]) == 0 and "\ngain" not in capsys.readouterr().out
    assert main(["fields", str(file)]) == 0
    assert "\ngain = 2\n    of it; of algorithm 'from_a_plugin'\n" in capsys.readouterr().out
    experiment = load_experiment(file)
    assert experiment.plugins == ("a_plugin",) and experiment.trials[0].algorithm == "from_a_plugin"
    assert len(LOADED["a_plugin"]) == 16
    assert load_experiment(write(tmp_path)).trials == experiment.trials


def test_nothing_that_a_store_names_is_imported(tmp_path):
    text = write(tmp_path).read_text()
    with pytest.raises(ConfigError, match="plugins: must be none, .* got a_plugin; name the experiment file itself"):
        parse_experiment(text, tmp_path / "some.yaml", stored=True)
    assert "a_plugin" not in sys.modules
    load_plugins(["a_plugin"], tmp_path)  # who has imported it may use it
    assert parse_experiment(text, tmp_path / "some.yaml", stored=True).plugins == ("a_plugin",)


@pytest.mark.parametrize(("plugins", "says"), [
    ("[no_such_plugin]", "plugins: 'no_such_plugin' cannot be imported .ModuleNotFoundError: .* a module in"),
    ("a_plugin", "plugins: must be a list of names of modules, got 'a_plugin'"),
    ("[1]", "plugins: must be a list of names of modules, got .1."),
    ("[]", "algorithm: must be one of bp, .*, got 'from_a_plugin', at base.algorithm")])
def test_plugins_that_cannot_be_loaded_are_refused(tmp_path, plugins, says):
    """What one raises, test_guard.py has."""
    with pytest.raises(ConfigError, match=says):
        load_experiment(write(tmp_path, plugins))


def test_a_checkpoint_of_another_version_of_a_plugin_is_refused(tmp_path, monkeypatch):
    load_plugins(["a_plugin"], write(tmp_path).parent)
    pack = Pack((TrialConfig(**{**SMALL, "sampler": "shuffled", "epochs": 3}, algorithm="from_a_plugin"),))
    store = Checkpoints(tmp_path / "checkpoints", 0)
    source = train_pack(pack, store.folder)
    next(source)
    source.close()
    assert store.load(pack, "cpu").values["epoch"] == 1
    monkeypatch.setitem(LOADED, "a_plugin", "another")
    with pytest.raises(UnusableFile, match=r"other software wrote it \(another file of plugin a_plugin\)$"):
        store.load(pack, "cpu")


@pytest.mark.parametrize("slot", ["algorithm", "mechanism", "dataset", "features", "network"])
def test_a_table_of_results_needs_no_plugin_and_what_needs_the_trial_refuses_it_by_name(slot):
    trial = TrialConfig(mechanism="per_example", sampler="poisson", noise_multiplier=2.0)
    params = {name: param_text(value) for name, value in trial.canonical().items()} | {slot: "mine", "my_own": "0.5"}
    run = TrackedRun("id", "key", params, {"test/accuracy": 0.5, "epsilon/certified/pld": 1.0}, {}, "finished", 0, None)
    assert run.trial is None
    runs = frame_of([run])
    row = runs.iloc[0]
    assert (row[slot], row["my_own"], row["test/accuracy"], row["noise_multiplier"]) == ("mine", "0.5", 0.5, 2.0)
    assert row["setting"] == ("mine=2" if slot == "mechanism" else "z=2") and row["trial"] is None
    assert csv_of(runs).columns.tolist() == [name for name in runs if name != "trial"]
    shown = {column.heading: column.cells[0].text for column in overview.trials(Experiment("sweep", "", ()), runs)}
    assert shown["algorithm"] == ("mine" if slot == "algorithm" else "DFA") and shown["guarantee"] == "simulated"
    for needs_trials in (frontier, lambda runs: best(runs, 3.0), lambda _: config_of(run)):
        with pytest.raises((ReportError, ConfigError), match="mine"):
            needs_trials(runs)
