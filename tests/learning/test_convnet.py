"""Trials with convolutions: bounds that no record exceeds, certificates, packs, and the real training loop."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from flat import train

from pipeline.accounting.certified import event_of
from pipeline.auditing.row_space import row_space_audit
from pipeline.experiment.exhibits import mismatch
from pipeline.learning.mechanisms.gaussian import activation_bounds
from pipeline.learning.network.network import make_network
from pipeline.learning.training import Training
from pipeline.tracking.artifacts import write_artifacts
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack

CPU = torch.device("cpu")
PLAIN = TrialConfig(dataset="digits", network="convnet", channels=(4, 6), kernel=3, hidden=(16,), algorithm="hybrid",
                    batch_size=32, epochs=2, learning_rate=0.1, feedback_std=0.3)
CLIPPED = dataclasses.replace(PLAIN, mechanism="per_example", clipping_norm=0.5)
PARTS = dataclasses.replace(PLAIN, mechanism="component", target_norm=1.5, tau_e=0.4)
MECHANISMS = {"none": PLAIN, "per_example": CLIPPED, "component": PARTS}


def of(config, algorithm, **changes):
    return dataclasses.replace(config, algorithm=algorithm, projector="", **changes)


@pytest.mark.parametrize(("algorithm", "mechanism"), [
    *((algorithm, "per_example") for algorithm in ("bp", "dfa", "tdfa", "pdfa")),
    *(("hybrid", mechanism) for mechanism in MECHANISMS)])
def test_every_algorithm_and_mechanism_trains_every_layer(algorithm, mechanism, digits, tmp_path):
    config = of(MECHANISMS[mechanism], algorithm, train_records=320, noise_multiplier=0.5 * (mechanism != "none"))
    start = make_network(config, [config.seed]).parameters
    first, last = train(Pack((config,)), digits)
    assert last.outcome.status == "finished"
    assert {f"alignment/layer_{k}" for k in (1, 2, 3, 4)} <= set(first.metrics)
    assert ("epsilon/certified/gdp" in last.metrics) == (mechanism != "none")
    for k, shape in enumerate([(4, 1, 3, 3), (6, 4, 3, 3), (16, 24), (10, 16)]):
        weight = last.outcome.weights[f"layer_{k + 1}.weight"]
        assert weight.shape == shape
        assert not np.array_equal(weight.ravel(), start.weights[k][0].flatten().numpy())
    write_artifacts(tmp_path, config, last.outcome)
    assert (tmp_path / "weights.safetensors").stat().st_size > 4 * sum(w.size for w in last.outcome.weights.values())


@pytest.mark.parametrize("algorithm", ["bp", "hybrid"])
def test_convnets_learn_digits_and_hybrid_convolutions_follow_the_gradient(algorithm, digits):
    config = of(PLAIN, algorithm, channels=(8, 16), hidden=(32,), optimizer="adam", learning_rate=0.003, epochs=4)
    last = list(train(Pack((config,)), digits))[-1]
    alignment = [last.metrics[f"alignment/layer_{k}"] for k in (1, 2, 3, 4)]
    assert last.metrics["test/accuracy"] > 0.8 and alignment[3] > 0.999
    assert min(alignment) > 0.999 if algorithm == "bp" else 0.3 < alignment[0] < 0.999


def test_row_space_attack_is_for_fully_connected_layers_and_needs_held_out_records(digits):
    config = dataclasses.replace(PLAIN, batch_size=8)
    assert row_space_audit(config, digits, layer=3).auc > 0.99
    with pytest.raises(ValueError, match="layer: must be fully connected .* got 2"):
        row_space_audit(config, digits, layer=2)
    with pytest.raises(ValueError, match="validation_fraction: must be > 0"):
        row_space_audit(dataclasses.replace(config, validation_fraction=0), digits, layer=3)


def test_without_validation_all_records_train_and_nothing_is_said_of_validation(digits):
    config = dataclasses.replace(PLAIN, validation_fraction=0, epochs=2, train_records=640)
    first, record = train(Pack((config,)), digits)
    assert all("validation/accuracy" not in r.metrics and "test/accuracy" in r.metrics for r in (first, record))
    assert "test/worst_class_accuracy" not in first.metrics and first.outcome is None
    assert {row.split for row in record.outcome.per_class} == {"test"}
    training = Training(Pack((config, dataclasses.replace(config, seed=1))), digits, CPU)
    first, second = (set(training.sampler.epoch()[:, r].flatten().tolist()) for r in (0, 1))
    assert len(first) == len(second) == 640 and first != second
    assert "validation_fraction 0" in mismatch("figure2", [dataclasses.replace(config, algorithm="bp", projector="")])


def test_a_subset_of_training_records_is_split_like_all_of_them(digits):
    config = dataclasses.replace(PLAIN, train_records=400, seed=3)
    training = Training(Pack((config,)), digits, CPU)
    trained = {i for _ in range(12) for i in training.sampler.epoch().flatten().tolist()}
    held_out = set(training.validation[0].tolist())
    assert (len(trained), len(held_out)) == (360, 40) and not trained & held_out
    event = event_of(dataclasses.replace(config, mechanism="per_example", sampler="poisson", noise_multiplier=1.0), 1)
    assert event.sampling_rate == 32 / 360 and event.steps == 11


def test_every_layer_gets_an_equal_part_of_the_papers_sensitivity():
    """What that costs, test_leekifer.py compares with the paper. One that leaves activations nothing is refused."""
    config = TrialConfig(network="convnet", algorithm="hybrid", activation="sigmoid", hidden=(384, 384),
                         mechanism="component", target_norm=1.5, tau_e=0.1, feedback_norm=0.9)
    part = 1.5 / math.sqrt(5)
    for gamma_beta, tau_h in zip((0.25 * 0.9, 0.25 * 0.9, 1), activation_bounds(config), strict=True):
        assert gamma_beta * 0.1 * math.sqrt(1 + tau_h**2) == pytest.approx(part)
    with pytest.raises(ConfigError, match="target_norm: must be > 0.2, which"):  # sqrt(4 layers) tau_e
        dataclasses.replace(PARTS, tau_e=0.1, target_norm=0.2)
    assert min(activation_bounds(dataclasses.replace(PARTS, tau_e=0.1, target_norm=0.201))) > 0
