"""A mechanism that bounds contributions and adds no noise has no finite epsilon: it is trained where a file says so."""

import dataclasses

import pytest

from pipeline import ConfigError, TrialConfig, account, load_experiment, run_sweep, train
from pipeline.experiment.experiment import Experiment, parse_experiment

BASE = "dataset: digits, hidden: [8], batch_size: 64, epochs: 1, sampler: poisson"
MESSAGE = r"^noise_multiplier: must be given with mechanism '{}', got neither that nor target_epsilon, .* write 0"


def loaded(tmp_path, text):
    file = tmp_path / "e.yaml"
    file.write_text(text)
    return load_experiment(file).trials


@pytest.mark.parametrize(("mechanism", "more"), [
    ("per_example", ""), ("per_example", ", target_epsilon: 0"), ("per_example", ", clipping_norm: 2"),
    ("component", ", tau_e: 2")])
def test_a_file_is_refused_unless_it_says_that_there_is_no_noise(mechanism, more, tmp_path):
    text = f"name: e\nbase: {{{BASE}, mechanism: {mechanism}{more}}}\n"
    with pytest.raises(ConfigError, match=MESSAGE.format(mechanism) + r".*, at base.mechanism \(.*e.yaml, line 2\)$"):
        loaded(tmp_path, text)
    trial, = loaded(tmp_path, text.replace("}", ", noise_multiplier: 0}"))
    stored, = parse_experiment(text, tmp_path / "e.yaml", stored=True).trials
    assert stored == trial and stored.trial_key == trial.trial_key, "what was swept is read as it is, with the same key"


def test_noise_may_be_said_anywhere_but_every_trial_needs_it(tmp_path):
    text = f"base: {{{BASE}, mechanism: per_example}}\n"
    for noise in ("grid: {noise_multiplier: [0, 1]}", "grid: {target_epsilon: [1, 3]}",
                  "cases: [{base: {noise_multiplier: 0}}, {base: {target_epsilon: 3}}]"):
        assert len(loaded(tmp_path, f"{text}{noise}\n")) == 2
    with pytest.raises(ConfigError, match="^noise_multiplier: must be given"):
        loaded(tmp_path, f"{text}cases: [{{base: {{seed: 1}}}}, {{base: {{target_epsilon: 3}}}}]\n")


def test_keyword_arguments_are_refused_too(tmp_path):
    values = dict(dataset="digits", hidden=(8,), batch_size=64, epochs=1, mechanism="per_example", sampler="poisson")
    silent = TrialConfig(**values)
    for use in (train, lambda trial: account(trial, 1), lambda trial: run_sweep(
            Experiment("e", "", (trial,)), root=tmp_path / "mlruns")):
        with pytest.raises(ConfigError, match=MESSAGE.format("per_example")):
            use(silent)
    said = dataclasses.replace(silent, noise_multiplier=0)
    assert said.trial_key == silent.trial_key and [*train(said)][-1].outcome.status == "finished"
    assert TrialConfig.from_mapping(silent.used()).trial_key == said.trial_key  # as a store has it
