"""`preset: recommended`: committed results have its settings, they never change, and it says what it sets."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
from approved import approved
from committed import manifests, runs_of

from pipeline import recommended
from pipeline.experiment import preset
from pipeline.experiment.experiment import parse_experiment
from pipeline.experiment.plugins import load_plugins
from pipeline.experiment.preset import recommend
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import digest
from pipeline.trials.part import PARTS
from pipeline.trials.promises import check_promises

GIVEN = {"dataset": "fashion_mnist", "mechanism": "per_example", "algorithm": "dfa", "target_epsilon": 3}
FILE = """\
preset: recommended
base: {dataset: fashion_mnist, mechanism: per_example}
grid: {algorithm: [bp, dfa], target_epsilon: [1, 3]}
"""


def parsed(text, **changes):
    return parse_experiment(text, Path("e.yaml"), changes=changes)


OTHER_SETTINGS = ("certified_beside", "certified_patches", "certified_patches_cifar10", "certified_patches_integer")
COMMITTED = ["quickstart", *(name for name in manifests()
                             if name.startswith(("certified", "joint_")) and name not in OTHER_SETTINGS)]


@pytest.mark.parametrize("name", COMMITTED)
def test_trials_with_the_preset_are_those_of_the_committed_frontier(name):
    """Same keys, so same accuracies: the committed runs are the measurement of the preset."""
    runs = pd.read_csv(runs_of(name))
    assert len(runs)
    for run in runs.to_dict("records"):
        target = "target_label_epsilon" if run["mechanism"] == "photonic" else "target_epsilon"
        written = ["dataset", "mechanism", "algorithm", "validation_fraction", "seed"]
        given = {name: run[name] for name in written + [target] * (run["mechanism"] != "none")}
        given |= {"features": run["features"]} if isinstance(run.get("features"), str) else {}
        given |= {"hidden": []} if run["hidden"] == "[]" else {}
        given |= {"arithmetic": "integer"} if run["arithmetic"] == "integer" else {}
        given |= {name: run[name] for name in ("noise", "private_metrics") if run["noise"] == "secure"}
        trial = TrialConfig(**{**recommend(given).settings, **given})
        assert trial.trial_key == run["trial_key"], given


def test_the_preset_never_changes():
    """Trials are named by what it says: another digest here would train finished sweeps again."""
    trials = [TrialConfig(**settings) for settings in all_settings()]
    for of_component, expected in EXPECTED.items():
        keys = [trial.trial_key for trial in trials if (trial.mechanism == "component") == of_component]
        assert (len(keys), digest({"keys": keys})) == expected


def all_settings():
    for row in preset._rows():
        for name in row["methods"] if row["dataset"] != "table" else ():  # whose data sets a test declares
            given = {"mechanism": row["mechanism"], "algorithm": "bp" if name == "softmax" else name}
            given |= {field: row[field] for field in ("dataset", "features") if row[field] != "any"}
            given |= {"hidden": []} if name == "softmax" else {}
            for epsilon in (0.3, 1, 1.7, 3, 6, 8, 20):
                target = {cls.target: epsilon} if (cls := PARTS["mechanism"][row["mechanism"]]).target else {}
                if row.get("without_target"):
                    target = {"sigma": epsilon}
                yield {**recommend({**given, **target}).settings, **given, **target}


def test_what_is_written_goes_first_and_the_rest_is_filled_in():
    trial = recommended(**GIVEN, hidden=[32], learning_rate=0.5)
    assert (trial.hidden, trial.learning_rate, trial.sampler, trial.batch_size) == ((32,), 0.5, "poisson", 2048)


def test_a_number_lies_between_those_of_the_epsilons_around_it_and_other_values_are_the_nearest_one():
    def at(epsilon):
        return recommend({**GIVEN, "features": "patches", "target_epsilon": epsilon}).settings

    assert [at(e)["learning_rate"] for e in (0.5, 1, 3, 8, 50)] == [1.2, 1.2, 2.5, 4.5, 4.5]
    assert at(3 ** 0.5)["learning_rate"] == pytest.approx((1.2 * 2.5) ** 0.5, rel=0.02)
    assert [at(e)["denoise"] for e in (1, 4, 6)] == [True, True, False]


OF_FILE = "preset: recommended\nbase: {dataset: digits, mechanism: per_example"


@pytest.mark.parametrize(("changes", "message"), [
    ({"target_epsilon": None}, r"target_epsilon: must be > 0 with a preset, .* got None"),
    ({"target_epsilon": 0}, r"target_epsilon: must be > 0 with a preset, .* got 0"),
    ({"target_epsilon": "3"}, r"target_epsilon: must be > 0 with a preset, .* got '3'"),
    ({"network": "convnet"}, r"preset: recommended has no settings for dfa with .* network convnet; the nearest"),
    ({"mechanism": "automatic"},
     r"preset: .*mechanism automatic.*; the nearest that it has are for .*per_example on pixels of fashion_mnist"),
    ({"algorithm": "hybrid"}, r"preset: recommended has no settings for hybrid with"),
    ({"dataset": "fmnist"}, r"dataset: must be one of .*fashion_mnist")])
def test_what_has_no_recommendation_is_refused_with_what_has(changes, message):
    given = {name: value for name, value in {**GIVEN, **changes}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        recommended(**given)


@pytest.mark.parametrize(("text", "message"), [
    ("preset: best\nbase: {dataset: digits}\n", "preset: must be 'recommended', got 'best' .*line 1"),
    (f"{OF_FILE}, target_epsilon: 1, algorithm: bp, train_records: 400}}\n",
     r"batch_size: .*; give batch_size in the file, in place of what"),
    (f"{OF_FILE}, target_epsilom: 3}}\n", "target_epsilom: unknown field, got .*did you mean"),
    (f"{OF_FILE}, learning_rat: 3}}\n", "learning_rat: unknown field, got .*did you mean"),
    (f"{OF_FILE}}}\n", r"target_epsilon: must be > 0 with a preset, .* got None; or give noise_multiplier \(e.yaml")])
def test_errors_name_the_line_and_the_preset_and_a_misspelt_setting_before_anything_is_recommended(text, message):
    with pytest.raises(ConfigError, match=message):
        parsed(text)


def test_the_text_that_the_store_keeps_names_the_preset():
    experiment = parsed(FILE)
    assert experiment.preset == "recommended" and experiment.text == FILE
    assert parsed(FILE, epochs=3).text.count("preset: recommended\n") == 1


def test_a_file_is_told_what_the_preset_sets_and_from_where_or_which_defaults_it_would_replace(extensions):
    """Not those that are as recommended, or were written down."""
    load_plugins(["tempered_cnn"], Path(__file__).parents[2] / "experiments" / "networks")
    stated = "base: {dataset: fashion_mnist, mechanism: per_example, target_epsilon: 1, learning_rate: 0.01}\n"
    told = {"with the preset": parsed(FILE), "with a batch size": parsed(FILE, batch_size=256),
            "without it": parsed(stated), "with a network of one's own": parsed(
                "preset: recommended\nbase: {dataset: fashion_mnist, mechanism: per_example, target_epsilon: 3, "
                "network: tempered_cnn}\n")}
    approved("advice", "\n\n".join("\n".join([f"# {name}", *file.advice]) for name, file in told.items()))
    assert not parsed("base: {dataset: mnist, features: scattering, mechanism: photonic, sigma: 0.1}\n").advice


@pytest.mark.parametrize("dataset", ["mnist", "fashion_mnist"])
def test_what_is_recommended_keeps_the_promises_of_secret_noise(dataset):
    """Its standardized inputs take statistics that were published with the data."""
    trial = recommended(**{**GIVEN, "dataset": dataset, "noise": "secure", "arithmetic": "integer"})
    assert trial.inputs == "standardized"
    check_promises([trial], stored=False)


def test_the_noise_level_of_the_papers_mechanism_has_settings_for_all_four_algorithms():
    trials = parsed("preset: recommended\nbase: {dataset: mnist, mechanism: photonic, sigma: 0.05}\n"
                    "grid: {algorithm: [bp, dfa, tdfa, pdfa]}\n").trials
    assert [(trial.learning_rate, trial.hidden, trial.tau_h) for trial in trials] == [
        (0.003, (512, 512), 1.0), *[(0.3, (512, 512), 1.0)] * 3]
    (label,) = parsed("preset: recommended\nbase: {dataset: fashion_mnist, mechanism: photonic, algorithm: pdfa, "
                      "target_label_epsilon: 3}\n").trials
    assert (label.learning_rate, label.hidden) == (0.006, (256,))


def test_beside_a_noise_multiplier_values_are_those_of_one_epsilon_whatever_the_noise():
    given = {**GIVEN, "dataset": "mnist"}
    of_target = recommend(given).settings
    del given["target_epsilon"]
    assert all(recommend({**given, "noise_multiplier": z}).settings == of_target for z in (0, 0.8, 4))
    assert recommended(**given, noise_multiplier=2).noise_multiplier == 2
    with pytest.raises(ConfigError, match="target_epsilon: must be > 0 .*; in place of sigma write noise_multiplier"):
        recommended(**given, sigma=0.1)


def test_tables_have_batches_of_an_eighth_of_their_records(tmp_path, extensions):
    rows = "".join(f"{n},{'ab'[n % 2]}\n" for n in range(1000))
    (tmp_path / "t.csv").write_text(f"x,y\n{rows}")
    (tmp_path / "t.yaml").write_text(
        "{dataset: t, data_file: t.csv, label: y, classes: [a, b], columns: {x: {range: [0, 1000]}}, confirmed: true, "
        "records: {train: 800, test: 200}, test: {share: 0.2, seed: 0}}")
    load_plugins(["t.yaml"], tmp_path)
    for algorithm in ("bp", "dfa"):
        trial = recommended(dataset="t", mechanism="per_example", algorithm=algorithm, target_epsilon=2)
        assert (trial.batch_size, trial.epochs, trial.learning_rate) == (64, 10, 0.1)  # of 720 records to train on
    assert recommended(dataset="t", mechanism="per_example", algorithm="tdfa", target_epsilon=2).epochs > 10


def test_a_search_fills_in_what_its_space_leaves_open():
    text = ("preset: recommended\nbase: {dataset: fashion_mnist, algorithm: dfa, mechanism: per_example, "
            "target_epsilon: 3}\n"
            "search: {algorithm: random, trials: 4, space: {learning_rate: {loguniform: [0.1, 10]}}}\n")
    experiment = parsed(text)
    trial = experiment.plan.trial({"learning_rate": 2.0})
    assert trial == dataclasses.replace(recommended(**GIVEN), learning_rate=2.0)
    assert {corner.batch_size for corner in experiment.possible} == {2048}


EXPECTED = {False: (462, "29991663afcda2d5"), True: (28, "cbaad61e0dca974f")}
