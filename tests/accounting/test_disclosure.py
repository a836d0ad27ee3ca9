"""What is logged of private records: paid for, or withheld; and nothing else is in the store."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flat import train

from pipeline.accounting import account
from pipeline.accounting.certified import certified_epsilons
from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.evaluations import check_evaluations, evaluation_noise, selected_epsilon
from pipeline.accounting.finite_precision import STEPS_PER_SIGMA, accounted_delta, count_enlargement
from pipeline.accounting.repetitions import GEOMETRIC
from pipeline.learning.alignment import cosines
from pipeline.learning.train import prepare
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.disclosure import ARTIFACTS, METRICS, check_metrics
from pipeline.trials.packs import Pack

CPU = torch.device("cpu")
SECURE = TrialConfig(dataset="digits", hidden=(16,), batch_size=64, epochs=3, learning_rate=0.1, noise="secure",
                     mechanism="per_example", sampler="poisson", target_epsilon=3.0, arithmetic="integer")
LABEL = TrialConfig(dataset="digits", hidden=(16,), batch_size=64, epochs=3, learning_rate=0.1, noise="secure",
                    mechanism="photonic", algorithm="pdfa", target_label_epsilon=5.0)
KINDS = {"certified": SECURE, "label": LABEL}


@pytest.mark.parametrize("trial", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("kept", ["noisy", "withheld"])
def test_every_metric_and_artifact_of_a_secure_trial_in_the_store_is_on_the_list(trial, kept, digits, tmp_path):
    trial = dataclasses.replace(trial, private_metrics=kept)
    store = Store(root=tmp_path)
    store.open_sweep("secure")
    store.start(trial)
    records = list(train(Pack((trial,)), digits))
    store.keep(trial.trial_key, records)
    store.log(records)
    store.close_sweep("FINISHED")
    run, = store.runs()
    reasons = {name: [known for known in METRICS if name.startswith(known)] for name in run.metrics}
    assert run.metrics and all(len(known) == 1 for known in reasons.values()), reasons
    assert ("validation/accuracy" in run.metrics) == (kept == "noisy") and "train/loss" not in run.metrics
    files = {path.name for path in Path(tmp_path).rglob("artifacts/**/*") if path.is_file()}
    expected = {"weights.safetensors", "per_class.csv", "config.json", "released.json"}
    assert expected <= files <= set(ARTIFACTS) | {"index.html"}
    table, = Path(tmp_path).rglob("per_class.csv")
    assert "validation" not in table.read_text() and "test" in table.read_text()


def test_a_metric_that_nothing_covers_is_refused_and_a_sweep_has_a_list_of_its_own():
    check_metrics(["test/accuracy", "alignment/layer_7", "alignment/feedback/layer_7", "epsilon/certified/pld"])
    for name in ("train/loss", "validation/worst_class_accuracy", "audit/canary_auc", "accuracy"):
        with pytest.raises(ValueError, match=f"^{name}: is no metric that a trial may log whose private_metrics"):
            check_metrics([name])
    check_metrics(["epsilon/selected/composition"], of_sweep=True)
    with pytest.raises(ValueError, match="^test/accuracy: is no metric that a sweep may log"):
        check_metrics(["test/accuracy"], of_sweep=True)


def test_identity_of_a_trial_and_what_it_logs():
    assert SECURE.disclosure == "noisy" and SECURE.canonical()["private_metrics"] == "noisy"
    assert dataclasses.replace(SECURE, private_metrics="noisy").trial_key == SECURE.trial_key
    research = dataclasses.replace(SECURE, noise="research")
    assert "private_metrics" not in research.canonical()
    assert dataclasses.replace(research, private_metrics="plain").trial_key == research.trial_key
    keys = {dataclasses.replace(research, private_metrics=kept).trial_key for kept in ("plain", "noisy", "withheld")}
    assert len(keys) == 3
    with pytest.raises(ConfigError, match="private_metrics: needs a guarantee .* got 'noisy' with mechanism 'none'"):
        TrialConfig(private_metrics="noisy")


# --- validation

@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_cost_a_validation_record_what_training_costs_a_training_record(kind):
    """And every epoch is charged the larger of both."""
    trial = KINDS[kind]
    s, delta = evaluation_noise(trial), accounted_delta(trial)
    of_run = [e.value for e in account(trial, trial.epochs) if e.kind == kind]
    assert gdp_eps(math.sqrt(trial.epochs) / s, delta) == pytest.approx(min(of_run), rel=1e-6)
    assert min(of_run) <= 5.0
    plain = account(dataclasses.replace(trial, private_metrics="withheld"), trial.epochs)
    assert [e.value for e in plain] == pytest.approx([e.value for e in account(trial, trial.epochs)], rel=1e-6)
    if kind == "certified":
        for epoch in (1, 2, 3):
            evaluations = gdp_eps(math.sqrt(epoch) / s, delta)
            assert account(trial, epoch)[0].value == max(certified_epsilons(trial, epoch)[0].value, evaluations)
        assert "validation accuracy is released with noise" in account(trial, 3)[0].note


@pytest.mark.parametrize("noise", ["secure", "research"])
def test_validation_accuracy_has_its_noise_and_no_other(noise, digits):
    trial = dataclasses.replace(SECURE, noise=noise, private_metrics="noisy")
    training = prepare(Pack((trial,)), digits, CPU)
    counts = training.evaluation.count(training.net, "validation")
    exact, records = counts[0, 1].sum().item(), counts[0, 0].sum().item()
    released = np.array([training.evaluation.accuracy("validation", counts)[0] for _ in range(800)]) * records
    s = evaluation_noise(trial)
    if noise == "secure":
        assert training.evaluation._release.steps == [s * (1 + count_enlargement(s)) / STEPS_PER_SIGMA]
    assert abs(released.mean() - exact) < 6 * s / 800**0.5
    assert released.std() == pytest.approx(s, rel=6 / 1600**0.5) and s > 1  # 15%: two thirds of it are refused
    test = training.evaluation.count(training.net, "test")
    assert training.evaluation.accuracy("test", test)[0] == (test[0, 1].sum() / test[0, 0].sum()).item()
    training.close()


def test_without_validation_records_nothing_is_paid_and_test_accuracy_is_followed(digits):
    trial = dataclasses.replace(SECURE, validation_fraction=0.0, target_epsilon=0.0, noise_multiplier=1.0, epochs=1)
    assert "noise of" not in account(trial, 1)[0].note
    (record,) = train(Pack((trial,)), digits)
    assert "test/accuracy" in record.metrics and "validation/accuracy" not in record.metrics


# --- alignment

@pytest.mark.parametrize("network", ["mlp", "convnet"])
def test_alignment_of_a_secure_trial_is_with_the_gradient_on_test_records(network, digits):
    trial = dataclasses.replace(SECURE, network=network, channels=(3,), kernel=3, algorithm="bp", projector="",
                                noise="research", arithmetic="float32", private_metrics="withheld",
                                target_epsilon=0.0, noise_multiplier=1.0)
    training = prepare(Pack((trial,)), digits, CPU)
    plain = prepare(Pack((dataclasses.replace(trial, private_metrics="plain"),)), digits, CPU)
    indices = training.sampler.epoch()[0]
    leaves = [p.clone().requires_grad_() for p in training.net.parameters.weights + training.net.parameters.biases]
    _, alignment = training.step(indices, measure_alignment=True)
    _, on_batch = plain.step(indices, measure_alignment=True)
    assert torch.equal(training.update.flat, plain.update.flat), "how it is measured changes nothing of the update"
    assert not torch.allclose(alignment[:, 0], on_batch[:, 0])
    torch.testing.assert_close(alignment[:, 1], torch.ones_like(alignment[:, 1]))
    if network == "mlp":
        x = training.test_inputs.batch(torch.arange(64))
        h = torch.tanh(x @ leaves[0][0].T + leaves[2][0])
        loss = torch.nn.functional.cross_entropy(h @ leaves[1][0].T + leaves[3][0], digits.test_y[:64])
        gradient = training.net.blank_parameters(1)
        for to, of in zip(gradient.weights + gradient.biases, torch.autograd.grad(loss, leaves), strict=True):
            to.copy_(of)
        assert torch.allclose(alignment[:, 0], cosines(training.update, gradient), atol=1e-5)
    training.close(), plain.close()


@pytest.mark.parametrize("kept", ["noisy", "withheld", "plain"])
def test_alignment_of_the_feedback_is_a_function_of_test_records_unless_metrics_are_plain(kept, digits):
    trial = dataclasses.replace(SECURE, algorithm="dfa", projector="", noise="research", private_metrics=kept)
    found = []
    for batch in range(2):  # the first step, on one batch or another
        training = prepare(Pack((trial,)), digits, CPU)
        found.append(training.step(training.sampler.epoch()[batch], measure_alignment=True)[1][:, 1])
        training.close()
    assert torch.equal(*found) == (kept != "plain")
    assert -0.99 < found[0][0, 0] < 0.99 and found[0][0, 1] == pytest.approx(1)


# --- the choice of the best

def test_noisy_scores_are_part_of_what_a_choice_costs():
    grid = [dataclasses.replace(SECURE, learning_rate=rate) for rate in (0.1, 0.2, 0.3)]
    unscored = [dataclasses.replace(trial, private_metrics="withheld") for trial in grid]
    one_split = selected_epsilon(grid)
    mu = math.sqrt(3 * SECURE.epochs) / evaluation_noise(SECURE)
    assert one_split.value == max(selected_epsilon(unscored).value, gdp_eps(mu, accounted_delta(SECURE)))
    assert "noisy validation scores of all trials are covered" in one_split.note and one_split.delta == SECURE.delta
    splits = selected_epsilon([dataclasses.replace(trial, seed=k) for k, trial in enumerate(grid)])
    assert 1.2 * one_split.value < splits.value < 2 * one_split.value, "a record pays for training and for scores"
    drawn, without = (selected_epsilon(trials, (3, GEOMETRIC)) for trials in (grid, unscored))
    assert without.value <= drawn.value < 1.2 * without.value
    research = [dataclasses.replace(trial, noise="research") for trial in grid]
    assert "scores must come from public data" in selected_epsilon(research).note


@pytest.mark.parametrize("scale", [1, 30])
def test_trial_on_all_records_composes_with_pilots_and_their_scores(scale):
    """A record trains the pilots and the last trial, or has the pilots' scores and trains the last trial."""
    pilot = dataclasses.replace(SECURE, sampler="shuffled", target_epsilon=0.0, noise_multiplier=20.0 * scale)
    pilots = [dataclasses.replace(pilot, learning_rate=rate) for rate in (0.1, 0.2)]
    last = dataclasses.replace(pilot, validation_fraction=0.0, noise_multiplier=25.0)
    trained = math.sqrt(SECURE.epochs) / 10 / scale
    scored = math.sqrt(SECURE.epochs) / evaluation_noise(pilot)
    all_records = math.sqrt(SECURE.epochs) / 12.5
    delta = min(accounted_delta(trial) for trial in (pilot, last))
    mus = [math.hypot(trained, trained, all_records), math.hypot(scored, scored, all_records)]
    price = selected_epsilon([*pilots, last])
    assert price.value == pytest.approx(max(gdp_eps(mu, delta) for mu in mus))
    assert "noisy validation scores of all trials are covered" in price.note
    splits = selected_epsilon([dataclasses.replace(trial, seed=k) for k, trial in enumerate(pilots)] + [last])
    assert splits.value == pytest.approx(gdp_eps(math.hypot(trained, trained, scored, scored, all_records), delta))
    plain = dataclasses.replace(last, noise="research", validation_fraction=0.1)
    assert "scores must come from public data" in selected_epsilon([*pilots, plain]).note


def test_an_epsilon_that_covers_nothing_is_refused_before_anything_is_trained():
    loose = TrialConfig(dataset="digits", mechanism="photonic", sigma=0.1, noise="secure")
    with pytest.raises(ConfigError, match=r"private_metrics: 'noisy' takes noise from .* \(trial [0-9a-f]{16}\)"):
        check_evaluations([SECURE, loose])
    check_evaluations([SECURE, dataclasses.replace(loose, private_metrics="withheld")])
