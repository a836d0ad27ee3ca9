"""A mechanism that bounds contributions and adds no noise has no finite epsilon: it is trained where a file says so."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline import ConfigError, TrialConfig, account, load_experiment, run_sweep, train
from pipeline.experiment.experiment import Experiment, parse_experiment

BASE = "dataset: digits, hidden: [8], batch_size: 64, epochs: 1, sampler: poisson"
MESSAGE = r"^noise_multiplier: must be given with mechanism '{}', got neither that nor target_epsilon, .* write 0"


def written(tmp_path, text):
    file = tmp_path / "e.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("mechanism", ["per_example", "component"])
@pytest.mark.parametrize("more", ["", ", target_epsilon: 0", ", clipping_norm: 2"])
def test_a_file_is_refused_unless_it_says_that_there_is_no_noise(mechanism, more, tmp_path):
    if mechanism == "component" and "clipping_norm" in more:
        more = ", tau_e: 2"
    text = f"name: e\nbase: {{{BASE}, mechanism: {mechanism}{more}}}\n"
    with pytest.raises(ConfigError, match=MESSAGE.format(mechanism) + r".*, at base.mechanism \(.*e.yaml, line 2\)$"):
        load_experiment(written(tmp_path, text))
    trial, = load_experiment(written(tmp_path, text.replace("}", ", noise_multiplier: 0}"))).trials
    stored, = parse_experiment(text, tmp_path / "e.yaml", stored=True).trials
    assert stored == trial and stored.trial_key == trial.trial_key, "what was swept is read as it is, with the same key"


@pytest.mark.parametrize("noise", ["grid: {noise_multiplier: [0, 1]}", "grid: {target_epsilon: [1, 3]}",
                                   "cases: [{base: {noise_multiplier: 0}}, {base: {target_epsilon: 3}}]"])
def test_noise_may_be_said_anywhere(noise, tmp_path):
    assert len(load_experiment(written(tmp_path, f"base: {{{BASE}, mechanism: per_example}}\n{noise}\n")).trials) == 2


def test_of_some_trials_without_noise_every_one_needs_it(tmp_path):
    with pytest.raises(ConfigError, match="^noise_multiplier: must be given"):
        load_experiment(written(tmp_path, f"base: {{{BASE}, mechanism: per_example}}\n"
                                          "cases: [{base: {seed: 1}}, {base: {target_epsilon: 3}}]\n"))


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
