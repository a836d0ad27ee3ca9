"""A setting that was written down and that no trial uses is refused."""

from pathlib import Path

import pytest
from commands import load

from pipeline import Experiment, account, run_sweep, train
from pipeline.experiment.experiment import parse_experiment
from pipeline.learning.mechanisms import register_mechanism
from pipeline.learning.mechanisms.base import PlainStep
from pipeline.trials.config import ConfigError, TrialConfig


@pytest.mark.parametrize(("text", "message"), [
    ("base: {mechanism: photonic, target_epsilon: 3}",
     r"target_epsilon: is of mechanism 'per_example' or 'automatic' or 'component', got 3.0 with mechanism 'photonic'; "
     r"write target_label_epsilon, which protects labels alone, at base.target_epsilon \(.*e.yaml, line \d+\)$"),
    ("base: {clipping_norm: 1.0}", r"clipping_norm: is not used with mechanism 'none', got 1.0; use mechanism "
                                   r"'per_example' or 'automatic', at base.clipping_norm"),
    ("base: {mechanism: per_example, sigma: 0.3}",
     r"sigma: is of mechanism 'photonic', or algorithm 'pdfa', got 0.3 with mechanism 'per_example' and algorithm "
     r"'dfa'; write noise_multiplier \(z: .*\) or target_epsilon, which sets it, at base.sigma"),
    ("base: {algorithm: bp}\ngrid: {threshold: [0.1, 0.2]}",
     r"threshold: is not used with algorithm 'bp', got 0.1, 0.2; use algorithm 'tdfa' or 'pdfa', at grid.threshold"),
    ("grid: {algorithm: [bp, dfa]}\nbase: {threshold: 0.1}", r"threshold: is not used with algorithm 'bp' or 'dfa'"),
    ("base: {mechanism: photonic, sigma: 0.1, feedback_centered: true}\ngrid: {algorithm: [dfa, bp]}",
     r"feedback_centered: is not used with algorithm 'dfa' or 'bp', got True; use algorithm 'tdfa' or 'pdfa' with "
     r"mechanism other than 'photonic', at base.feedback_centered"),
    ("base: {optimizer: adam, momentum: 0}", r"momentum: is not used with optimizer 'adam', got 0.0; use optimizer "
                                             r"'sgd'"),
    ("base: {kernel: 3}", r"kernel: is not used with network 'mlp', got 3; use network 'convnet'"),
    ("base: {noise: secure}", r"noise: is not used with mechanism 'none', got secure; use mechanism other than 'none'"),
    ("base: {mechanism: photonic, algorithm: bp, output_noise: false}",
     r"output_noise: is not used with algorithm 'bp', got False; use algorithm other than 'bp'"),
    ("base: {mechanism: photonic, activation_floor: true}",
     r"activation_floor: is not used with tau_h_min 0, got True; use tau_h_min > 0"),
    ("base: {activation_floor: true}",
     r"activation_floor: is not used with mechanism 'none', got True; use mechanism 'photonic' with "
     r"tau_h_min > 0"),
    ("base: {mechanism: component, target_norm: 1, tau_h: 2}",
     r"tau_h: is not used with mechanism 'component' and target_norm 1, got 2.0; use target_norm 0, or mechanism "
     r"'photonic'"),
    ("base: {mechanism: per_example, algorithm: pdfa, sigma: 0, tau_f: 2}", r"tau_f: .*, at base.tau_f"),
    ("base: {delta: 1.0e-6}\ncases: [{base: {seed: 1}}]", r"delta: .*; use mechanism .*, or canaries > 0, at base"),
    ("cases: [{base: {mechanism: photonic, sigma: 1}}, {base: {sigma: 1}}]",
     r"sigma: is not used with mechanism 'none', got 1.0; .*, at cases\[1\].base.sigma"),
    ("cases: [{base: {mechanism: photonic}, grid: {sigma: [1, 2]}}, {grid: {sigma: [1]}}]",
     r"sigma: is not used with mechanism 'none', .*, at cases\[1\].grid.sigma"),
    ("base: {tau_h: 2}\ncases: [{base: {mechanism: photonic, tau_h: 1}}, {}]", r"tau_h: .* 'none', .*, at base.tau_h"),
    ("base: {epochs: 2}\ncases: [{base: {epochs: 1}}, {grid: {epochs: [3]}}]",
     r"epochs: is overridden by every case, got 2; leave it out, at base.epochs"),
    ("grid: {epochs: [2, 3]}\ncases: [{base: {epochs: 1}}]", r"epochs: is overridden by every case, got \[2, 3\]; "),
    ("grid: {algorithm: [bp, tdfa], threshold: [0.1, 0.2]}",
     r"grid\[algorithm=bp, threshold=0.2\]: the same trial as grid\[algorithm=bp, threshold=0.1\].*; threshold: is not "
     r"used with algorithm 'bp'.*by `cases`"),
    ("base: {dataset: mnist}\ngrid: {features: [pixels, patches], feature_mirrored: [false, true]}",
     r".*; feature_mirrored: is not used with features 'pixels', got True; use ")])
def test_refused_with_what_to_use_instead(tmp_path, text, message):
    with pytest.raises(ConfigError, match="^" + message) as raised:
        load(tmp_path, text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", [
    "base: {averaging: 0, canaries: 0, sigma: 0, target_epsilon: 0, noise_multiplier: 0, target_norm: 0, tau_h_min: 0}",
    "base: {denoise: false, joint_release: false, activation_floor: false, input_norm: 0, train_records: 0}",
    "base: {mechanism: per_example, noise_multiplier: 0, algorithm: pdfa, sigma: 0, tau_f: 1}",
    "base: {mechanism: per_example, noise_multiplier: 0, algorithm: pdfa, sigma: 0.1, tau_f: 2}",
    "base: {threshold: 0.1}\ngrid: {algorithm: [bp, tdfa]}",
    "base: {mechanism: per_example}\ngrid: {target_epsilon: [3, 8]}\n"
    "cases: [{}, {base: {mechanism: photonic, target_epsilon: 0}, grid: {sigma: [1]}}]",
    "base: {tau_h: 2}\ncases: [{}, {base: {mechanism: photonic}}, {base: {mechanism: photonic, tau_h: 1}}]",
    "grid: {averaging: [0, 0.9]}"])
def test_neutral_values_and_fields_that_one_trial_uses_are_fine(tmp_path, text):
    assert load(tmp_path, text).trials
    swept = "base: {mechanism: photonic, target_epsilon: 3}"  # a text from the store was checked when it was swept
    assert parse_experiment(swept, Path("e.yaml"), stored=True).trials


def test_what_some_trials_ignore_is_told(tmp_path):
    text = """
base: {tau_h: 2, threshold: 0.1}
cases:
  - grid: {algorithm: [bp, dfa, tdfa]}
  - base: {mechanism: photonic, clipping_norm: 1}
    grid: {algorithm: [dfa, tdfa], sigma: [0.1, 0.2]}
  - base: {mechanism: per_example, algorithm: bp, clipping_norm: 2, noise_multiplier: 1}
"""
    with pytest.raises(ConfigError, match=r"clipping_norm: .*, at cases\[1\].base"):
        load(tmp_path, text)
    assert load(tmp_path, text.replace(", clipping_norm: 1}", "}")).ignored == (
        "tau_h by 4 trials of mechanism none, per_example; threshold by 5 trials of algorithm bp, dfa")
    text = "base: {mechanism: photonic, tau_h: 2, sigma: 1}\ngrid: {algorithm: [dfa, tdfa]}"
    assert load(tmp_path, text).ignored == ""
    first, *others = load(tmp_path, "base: {feedback_std: 0.1}\ngrid: {algorithm: [bp, dfa]}").trials
    assert first == TrialConfig(algorithm="bp") and others == [TrialConfig(feedback_std=0.1)]
    assert account(first) == [], "each can be taken by itself"


def test_fields_of_an_extension_are_used(tmp_path):
    register_mechanism("clipper", type("Clipper", (PlainStep,), {}), settings=("clipping_norm",))
    load(tmp_path, "base: {mechanism: clipper, clipping_norm: 2}")
    with pytest.raises(ConfigError, match="tau_e: is not used with mechanism 'clipper', .*use mechanism 'component'"):
        load(tmp_path, "base: {mechanism: clipper, tau_e: 2}")
    with pytest.raises(ConfigError, match="clipping_norm: .* use mechanism 'per_example' or 'automatic' or 'clipper'"):
        load(tmp_path, "base: {clipping_norm: 2}")


@pytest.mark.parametrize("given", [lambda trials: train(trials), lambda trials: account(trials[0]),
                                   lambda trials: run_sweep(Experiment("e", "", tuple(trials)))],
                         ids=["train", "account", "run_sweep"])
@pytest.mark.parametrize(("settings", "message"), [
    (dict(mechanism="photonic", target_epsilon=3.0), "target_epsilon: is of mechanism 'per_example' .*, got 3.0 with "
                                                     "mechanism 'photonic'; write target_label_epsilon"),
    (dict(mechanism="per_example", sigma=0.3), "sigma: is of .*, got 0.3 with mechanism 'per_example' and algorithm")])
def test_trials_from_python_are_held_to_the_same(tmp_path, monkeypatch, given, settings, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="^" + message):
        given([TrialConfig(dataset="digits", **settings)])
    assert not list(tmp_path.iterdir())


def test_from_python_one_trial_that_uses_a_field_is_enough():
    shared = dict(dataset="digits", epochs=1, hidden=(8,), feedback_std=0.1)
    assert list(train([TrialConfig(**shared, algorithm=algorithm) for algorithm in ("bp", "dfa")]))
    with pytest.raises(ConfigError, match="feedback_std: is not used with algorithm 'bp', got 0.1; use algorithm 'd"):
        train(TrialConfig(**shared, algorithm="bp"))
