"""The event of a trial is what the trial runs; its epsilon, its noise for a target, and what attacks see of it."""

import dataclasses
import re

import pytest
import torch
from mlp import Mlp

from pipeline import ConfigError, TrialConfig, load_experiment, train
from pipeline import account as of_keywords
from pipeline.accounting.certified import certified_epsilons, event_of, with_noise
from pipeline.auditing.row_space import row_space_audit
from pipeline.auditing.two_point import audit_release
from pipeline.experiment.experiment import parse_experiment
from pipeline.experiment.prices import without_amplification
from pipeline.learning.mechanisms import make_mechanism
from pipeline.learning.training import Training
from pipeline.trials.packs import Pack

CPU = torch.device("cpu")
BASE = TrialConfig(dataset="digits", hidden=(24, 16), batch_size=32, algorithm="bp", mechanism="per_example",
                   sampler="poisson", noise_multiplier=1.0, clipping_norm=0.5, epochs=2, learning_rate=0.1)


@pytest.mark.parametrize(("sampler", "relation", "z"), [
    ("poisson", "add/remove", 1.0), ("without_replacement", "replace-one", 0.5), ("shuffled", "replace-one", 0.5)])
def test_the_event_is_derived_from_what_runs(sampler, relation, z, digits):
    config = dataclasses.replace(BASE, sampler=sampler)
    event = event_of(config, 2)
    training = Training(Pack((config,)), digits, CPU)
    batches = training.sampler.epoch()
    assert (event.sampler, event.relation, event.noise_multiplier) == (sampler, relation, z)
    assert event.steps == 2 * len(batches) and event.epochs == 2
    if sampler == "poisson":
        sizes = (batches >= 0).sum(dim=-1).float()
        assert abs(sizes.mean() - event.q * 1293) < 4 * (32 / len(batches)) ** 0.5
    if sampler == "without_replacement":
        assert (event.m, event.N) == (batches.shape[-1], 1293)
    assert "holds for every released iterate" in certified_epsilons(config, 2)[0].note
    without_noise = certified_epsilons(dataclasses.replace(config, noise_multiplier=0.0), 2)
    assert {epsilon.note for epsilon in without_noise} == {"no noise, no guarantee"}
    # The noise on the sum is what the event says of it, over the sensitivity: C, or 2 C.
    deviation = training.mechanism.sum.noise.sigmas[0]
    assert deviation / {"add/remove": 0.5, "replace-one": 1.0}[relation] == pytest.approx(event.noise_multiplier)


@pytest.mark.parametrize("sampler", ["poisson", "without_replacement", "shuffled"])
def test_a_target_epsilon_is_met_from_below_and_within_one_percent(sampler):
    config = dataclasses.replace(BASE, sampler=sampler, noise_multiplier=0, target_epsilon=3.0)
    value = certified_epsilons(config, config.epochs)[0].value
    assert 0.99 * 3 <= value <= 3
    assert with_noise(config).noise_multiplier > 0 and with_noise(BASE) == BASE
    assert certified_epsilons(config, 1)[0].value < value


@pytest.mark.slow
def test_shuffled_batches_are_told_what_they_cost():
    settings = dict(dataset="digits", mechanism="per_example", target_epsilon=8, batch_size=48, epochs=20)
    noise, sampled = (with_noise(TrialConfig(**settings, sampler=sampler)).noise_multiplier
                      for sampler in ("shuffled", "poisson"))
    (line,) = without_amplification([TrialConfig(dataset="digits"), TrialConfig(**settings)])
    assert noise > 6 * sampled and re.search(
        rf"for epsilon 8, noise_multiplier is {noise:.4g}; with `sampler: poisson` .* it is {sampled:.4g}", line)
    whole = TrialConfig(**settings | {"batch_size": 1293, "epochs": 1})  # all is of the relation
    assert not without_amplification([whole, TrialConfig(**settings, sampler="poisson"),
                                      TrialConfig(**{**settings, "target_epsilon": 0, "noise_multiplier": 1})])


@pytest.mark.parametrize(("algorithm", "mechanism"), [
    *((algorithm, "per_example") for algorithm in ("bp", "dfa", "tdfa", "pdfa")), ("pdfa", "component")])
def test_row_space_attack_is_blind_to_certified_updates(algorithm, mechanism, digits):
    """In tests/auditing/test_attacks.py it sees every record under the paper's mechanism."""
    base = dataclasses.replace(BASE, algorithm=algorithm, projector="", mechanism=mechanism, sigma=0.1,
                               tau_h=4.0, tau_e=0.5, batch_size=16)
    certified_audit = row_space_audit(base, digits, steps=20)
    assert abs(certified_audit.auc - 0.5) < 0.1  # 20 batches of 16: the AUC's standard deviation is 0.017
    bare = row_space_audit(dataclasses.replace(base, noise_multiplier=0), digits, steps=3)
    assert bare.auc > 0.99, "the same attack finds the members where there is no noise"


AUDITS = [("per_example", "poisson"), ("per_example", "shuffled"), ("component", "without_replacement")]


def audited(mechanism, sampler):
    """A trial whose step is certified 1-GDP."""
    return dataclasses.replace(BASE, mechanism=mechanism, sampler=sampler, tau_e=0.5, tau_h=4.0,
                               noise_multiplier=1.0 if sampler == "poisson" else 2.0)


@pytest.mark.parametrize(("mechanism", "sampler"), AUDITS)
def test_audited_mu_of_a_step_comes_close_to_what_is_certified_and_stays_below(mechanism, sampler):
    audit = audit_release(audited(mechanism, sampler), trials=1000, delta=0.01)
    assert 0.6 < audit.mu_lower <= audit.mu == 1 and not audit.exceeds
    assert 0.5 * audit.certified.value < audit.audited.value <= audit.certified.value
    assert audit.certified.value == pytest.approx(2.3178, abs=1e-3)  # of the Gaussian mechanism, mu = 1, delta = 0.01
    assert (audit.audited.kind, audit.audited.delta, audit.audited.relation) == (
        "audited", 0.01, "add/remove" if sampler == "poisson" else "replace-one")
    assert abs(audit.auc - 0.7602) < 0.05  # Phi(mu/sqrt 2), of all that is released


def quiet_output_layer(mechanism):
    loud, last = mechanism.sum.noise.next, mechanism.net.parameters.layers[-1].shape[1]

    def next_noise():
        noise = loud()
        noise[:, -last:] = 0
        return noise

    mechanism.sum.noise.next = next_noise


def noise_per_record_after_the_clip(mechanism):
    """sum_i (delta_i + g_i) h_i^T: its covariance is data."""
    bounded, sigma = mechanism.bounded, mechanism.sum.noise.sigmas[0]

    def noisy(deltas, activations):
        deltas, activations = bounded(deltas, activations)
        return [d + sigma * torch.randn_like(d) for d in deltas], activations

    mechanism.bounded, mechanism.sum.noise.next = noisy, lambda: torch.zeros_like(mechanism.net.parameters.flat)


def halved(mechanism):
    loud = mechanism.sum.noise.next
    mechanism.sum.noise.next = lambda: loud() / 2


def unbounded(mechanism):
    mechanism.bounded = lambda deltas, activations: (deltas, activations)


@pytest.mark.parametrize(("broken", "trials", "of"), [
    (halved, 800, AUDITS[0]), (quiet_output_layer, 200, AUDITS[0]), (unbounded, 200, AUDITS[0]),
    (noise_per_record_after_the_clip, 200, AUDITS[0]), (unbounded, 200, AUDITS[-1])])
def test_an_audit_catches_a_broken_mechanism(broken, trials, of):
    config = audited(*of)
    mechanism = make_mechanism(Pack((config,)), Mlp(config.layer_sizes, config.activation, [config.seed]), CPU)
    broken(mechanism)
    audit = audit_release(config, trials, delta=0.01, mechanism=mechanism)
    assert audit.exceeds and audit.mu_lower > 1.2 and audit.audited.value > audit.certified.value


def test_an_audit_of_the_release_needs_a_certified_trial():
    for trial, message in ((dataclasses.replace(BASE, noise_multiplier=0), "noise_multiplier: must be > 0"),
                           (TrialConfig(mechanism="photonic", sigma=1.0),
                            "mechanism: must be one of per_example, automatic, component, got photonic")):
        with pytest.raises(ValueError, match=message):
            audit_release(trial, 100, 0.01)


# --- a mechanism that bounds contributions and adds no noise is trained where a file says so

WRITTEN = "dataset: digits, hidden: [8], batch_size: 64, epochs: 1, sampler: poisson"
MESSAGE = r"^noise_multiplier: must be given with mechanism '{}', got {}, which leaves .* write 0"
NEITHER = "neither that nor target_epsilon"


def loaded(tmp_path, text):
    file = tmp_path / "e.yaml"
    file.write_text(text)
    return load_experiment(file).trials


@pytest.mark.parametrize(("mechanism", "more", "got"), [
    ("per_example", "", NEITHER), ("per_example", ", target_epsilon: 0", "target_epsilon 0"),
    ("per_example", ", clipping_norm: 2", NEITHER), ("component", ", tau_e: 2", NEITHER)])
def test_a_file_is_refused_unless_it_says_that_there_is_no_noise(mechanism, more, got, tmp_path):
    text = f"name: e\nbase: {{{WRITTEN}, mechanism: {mechanism}{more}}}\n"
    with pytest.raises(ConfigError, match=MESSAGE.format(mechanism, got) + r".*, at base.mechanism \(.*, line 2\)$"):
        loaded(tmp_path, text)
    trial, = loaded(tmp_path, text.replace("}", ", noise_multiplier: 0}"))
    stored, = parse_experiment(text, tmp_path / "e.yaml", stored=True).trials
    assert stored == trial and stored.trial_key == trial.trial_key, "what was swept is read as it is, with the same key"


def test_noise_may_be_said_anywhere_but_every_trial_needs_it(tmp_path):
    text = f"base: {{{WRITTEN}, mechanism: per_example}}\n"
    for noise in ("grid: {noise_multiplier: [0, 1]}", "grid: {target_epsilon: [1, 3]}",
                  "cases: [{base: {noise_multiplier: 0}}, {base: {target_epsilon: 3}}]"):
        assert len(loaded(tmp_path, f"{text}{noise}\n")) == 2
    with pytest.raises(ConfigError, match="^noise_multiplier: must be given"):
        loaded(tmp_path, f"{text}cases: [{{base: {{seed: 1}}}}, {{base: {{target_epsilon: 3}}}}]\n")


def test_keyword_arguments_are_refused_too():
    values = dict(dataset="digits", hidden=(8,), batch_size=64, epochs=1, mechanism="per_example", sampler="poisson")
    silent = TrialConfig(**values)
    for use in (train, lambda trial: of_keywords(trial, 1)):
        with pytest.raises(ConfigError, match=MESSAGE.format("per_example", NEITHER)):
            use(silent)
    said = dataclasses.replace(silent, noise_multiplier=0)
    assert said.trial_key == silent.trial_key and [*train(said)][-1].outcome.status == "finished"
    assert TrialConfig(**silent.used()).trial_key == said.trial_key  # as a store has it
