import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flat import train

from pipeline.accounting import account
from pipeline.learning.data.inputs import Inputs
from pipeline.learning.network.stacked import make_network, start_output
from pipeline.learning.training import Training
from pipeline.learning.updates import UPDATES, learning_rate
from pipeline.trials.config import TrialConfig
from pipeline.trials.disclosure import ALIGNMENTS as METRICS
from pipeline.trials.packs import Pack

CPU = torch.device("cpu")
BASE = TrialConfig(dataset="digits", hidden=(48, 32), batch_size=32, epochs=2, mechanism="photonic",
                   learning_rate=0.1, sigma=0.05)


def results(trials, data):
    """trial_key -> list of its records."""
    by_key = {}
    for record in train(Pack(tuple(trials)), data):
        by_key.setdefault(record.trial_key, []).append(record)
    return by_key


def comparable(records):
    """Everything in records but the time that they took."""
    metrics = [{k: v for k, v in r.metrics.items() if not k.startswith("time/")} for r in records]
    return metrics, [r.tags for r in records], records[-1].outcome.per_class


PHOTONIC = dict(mechanism="photonic", tau_h_min=0.2, gamma_min=0.3)
CERTIFIED = dict(mechanism="per_example", noise_multiplier=0.5)
COMPONENT = dict(mechanism="component", noise_multiplier=0.5)
CONVNET = dict(network="convnet", channels=(16, 16), kernel=5, hidden=(16,))
PACKED = {
    "bp": dict(algorithm="bp"),
    "bp photonic": dict(algorithm="bp", **PHOTONIC),
    "dfa photonic": dict(algorithm="dfa", **PHOTONIC),
    "tdfa photonic floor": dict(algorithm="tdfa", activation_floor=True, **PHOTONIC),
    "pdfa photonic bfloat16": dict(algorithm="pdfa", arithmetic="bfloat16", **PHOTONIC),
    "pdfa joint release": dict(algorithm="pdfa", mechanism="photonic", joint_release=True, denoise=True),
    "pdfa per_example poisson": dict(algorithm="pdfa", sampler="poisson", **CERTIFIED),
    "pdfa per_example canaries": dict(algorithm="pdfa", sampler="poisson", canaries=60, **CERTIFIED),
    "tdfa component": dict(algorithm="tdfa", **COMPONENT),
    "dfa denoise poisson": dict(algorithm="dfa", sampler="poisson", denoise=True, **CERTIFIED),
    "convnet": dict(algorithm="hybrid", **CONVNET),
    "convnet pdfa per_example": dict(algorithm="pdfa", **CONVNET, **CERTIFIED),
    "convnet component": dict(algorithm="hybrid", target_norm=1.5, **CONVNET, **COMPONENT),
}


def of_pack(name, k):
    """Trials of one pack; they differ in all that they may differ in."""
    settings = dict(dataset="digits", hidden=(48, 32), batch_size=32, epochs=1, train_records=320, learning_rate=0.1,
                    seed=k, sigma=0.05 * k, tau_f=1 / (1 + k), tau_h=1.0 + k, tau_e=0.4 + 0.1 * k,
                    clipping_norm=0.5 + k)
    own = {field: PACKED[name][field] + k for field in ("noise_multiplier", "target_norm") if field in PACKED[name]}
    return TrialConfig(**{**settings, **PACKED[name], **own})


@pytest.mark.parametrize("name", PACKED)
def test_a_trials_result_does_not_depend_on_its_pack(name, digits):
    """To the last bit, as rows and widths are multiples of 16."""
    trials = [of_pack(name, k) for k in (0, 3, 4)]
    alone = results(trials[1:2], digits)[trials[1].trial_key]
    for company in (trials, trials[1::-1]):
        together = results(company, digits)
        assert set(together) == {t.trial_key for t in company}
        ours = together[trials[1].trial_key]
        assert comparable(ours) == comparable(alone)
        for layer, weight in alone[-1].outcome.weights.items():
            assert np.array_equal(weight, ours[-1].outcome.weights[layer]), layer


def test_bfloat16_products_change_little(digits):
    exact, rounded = (results([replace(BASE, arithmetic=precision)], digits).popitem()[1][-1]
                      for precision in ("float32", "bfloat16"))
    for name, weight in exact.outcome.weights.items():
        difference = np.linalg.norm(weight - rounded.outcome.weights[name]) / np.linalg.norm(weight)
        assert 1e-6 < difference < 0.05, name


@pytest.mark.parametrize("algorithm", ["bp", "dfa", "tdfa", "pdfa"])
def test_every_algorithm_learns_digits(algorithm, digits):
    config = TrialConfig(dataset="digits", hidden=(64, 64), batch_size=32, epochs=10, learning_rate=0.02,
                         feedback_std=0.1, algorithm=algorithm)
    last = next(iter(results([config], digits).values()))[-1]
    assert last.metrics["test/accuracy"] > 0.9
    assert last.metrics["alignment/layer_3"] > 0.999, "the output layer's update is the true gradient in all of them"
    assert (last.metrics["alignment/layer_1"] > 0.999) == (algorithm == "bp")


def test_records_have_the_metrics_that_are_promised_and_alignment_where_asked_changes_nothing(digits):
    (first, last), (unaligned, end) = (next(iter(results([replace(BASE, alignment_batches=n)], digits).values()))
                                       for n in (40, 0))
    alignment = {f"{name}{n}" for name in METRICS for n in (1, 2, 3)}
    every_epoch = {"train/loss", "validation/accuracy", "time/epoch_seconds"} | alignment
    assert every_epoch <= set(first.metrics) and first.outcome is None and first.epoch == 1
    assert not [name for name in first.metrics if name.startswith("test/")], "test is read at the last epoch only"
    assert every_epoch | {"test/accuracy", "test/worst_class_accuracy"} <= set(last.metrics)
    assert set(first.metrics) - set(unaligned.metrics) == alignment
    assert first.tags["privacy.certified"] == "false"
    weights = last.outcome.weights
    assert set(weights) == {f"layer_{n}.{p}" for n in (1, 2, 3) for p in ("weight", "bias")}
    assert all(np.array_equal(weights[name], end.outcome.weights[name]) for name in weights)
    test = [row for row in last.outcome.per_class if row.split == "test"]
    assert sum(row.count for row in test) == 360
    assert sum(row.correct for row in test) / 360 == pytest.approx(last.metrics["test/accuracy"])
    assert min(row.correct / row.count for row in test) == pytest.approx(last.metrics["test/worst_class_accuracy"])


def test_a_diverging_trial_ends_alone_and_keeps_its_history(digits):
    trials = [replace(BASE, epochs=3, seed=s) for s in range(3)]
    training = Training(Pack(tuple(trials)), digits, CPU)
    healthy = results([trials[0]], digits)[trials[0].trial_key]
    records = training.run_epoch()
    training.net.parameters.weights[0][1, 0, 0] = math.nan
    records += training.run_epoch() + training.run_epoch()
    by_key = {t.trial_key: [r for r in records if r.trial_key == t.trial_key] for t in trials}
    ended = by_key[trials[1].trial_key]
    assert [r.epoch for r in ended] == [1, 2] and ended[-1].outcome.status == "diverged"
    assert all(math.isfinite(v) for r in records for v in r.metrics.values())
    assert "train/loss" not in ended[-1].metrics and "test/accuracy" in ended[-1].metrics
    assert comparable(by_key[trials[0].trial_key]) == comparable(healthy)
    assert by_key[trials[2].trial_key][-1].outcome.status == "finished"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_record_whose_output_is_not_finite_is_not_classified_right(digits, value):
    training = Training(Pack((BASE,)), digits, CPU)
    own = training.net.forward

    def forward(x):
        activations, logits = own(x)
        logits[..., 3] = value  # the largest, by `argmax`
        return activations, logits

    training.net.forward = forward
    counts = training.evaluation.count(training.net, "test")
    assert counts[0, 0].tolist() == digits.test_y.bincount().tolist() and counts[0, 1].sum() == 0
    training.close()


def test_only_inputs_that_are_passing_are_overwritten_by_the_next(digits):
    inputs = Inputs(digits.train_x, TrialConfig(dataset="digits", batch_size=8), digits)
    one, other = torch.tensor([3, 5]), torch.tensor([7, 1])
    kept, passing = inputs.batch(one), inputs.batch(one, reuse_buffer=True)
    expected = kept.clone()
    inputs.batch(other)
    assert torch.equal(kept, expected) and torch.equal(passing, expected)
    assert torch.equal(inputs.batch(other, reuse_buffer=True), inputs.batch(other)) and torch.equal(kept, expected)
    assert torch.equal(passing, inputs.batch(other))


def test_inputs_are_scaled_per_channel_and_to_one_norm_for_every_way_of_indexing(digits):
    def of(index, records=digits.train_x, **settings):
        return Inputs(records, TrialConfig(dataset="digits", batch_size=8, **settings), digits).batch(index)

    index = torch.tensor([[3, 5], [7, 3]])
    pixels = digits.train_x[index].float()
    torch.testing.assert_close(of(index, inputs="standardized"), (pixels / 16 - 0.3053) / 0.3760)
    torch.testing.assert_close(of(index, inputs="unit"), pixels / 16)
    torch.testing.assert_close(of(index, inputs="centered"), pixels / 8 - 1)
    records, index = torch.cat([digits.train_x[:5], torch.zeros_like(digits.train_x[:1])]), torch.arange(6)
    unscaled, scaled = (of(index, records, input_norm=norm) for norm in (0.0, 3.0))
    torch.testing.assert_close(scaled.norm(dim=1), torch.full((6,), 3.0))
    torch.testing.assert_close(scaled, 3 * unscaled / unscaled.norm(dim=1, keepdim=True))
    assert not of(index, torch.zeros_like(records), input_norm=3.0, inputs="unit").any()
    assert of(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 64), "Poisson batches may have no record"


def test_averaged_iterates_are_what_is_evaluated_and_kept_and_leave_training_alone(digits):
    plain = TrialConfig(dataset="digits", epochs=3, learning_rate=0.1)
    averaged = replace(plain, averaging=0.9)
    last, mean = [list(train(Pack((t,)), digits))[-1] for t in (plain, averaged)]
    assert last.metrics["train/loss"] == mean.metrics["train/loss"]

    training = Training(Pack((plain,)), digits, CPU)
    expected, t = training.net.parameters.weights[0].clone(), 0
    for _ in range(3):
        for indices in training.sampler.epoch():
            training.step(indices)
            t += 1
            d = min(0.9, t / (t + 9))
            expected = d * expected + (1 - d) * training.net.parameters.weights[0]
    kept = torch.from_numpy(mean.outcome.weights["layer_1.weight"])
    torch.testing.assert_close(kept, expected[0], rtol=1e-4, atol=1e-6)
    assert (kept - torch.from_numpy(last.outcome.weights["layer_1.weight"])).abs().max() > 1e-3


@pytest.mark.parametrize(("schedule", "share"), [("linear", lambda p: 1 - p),
                                                 ("cosine", lambda p: math.cos(math.pi * p / 2) ** 2)])
def test_the_learning_rate_falls_to_zero_over_the_run_and_goes_on_where_it_was(digits, schedule, share):
    """Against updates written out, of a training that is put back after its first epoch."""
    trial = TrialConfig(dataset="digits", epochs=3, learning_rate=0.1, momentum=0.0, schedule=schedule)
    training = Training(Pack((trial,)), digits, CPU)
    expected, done = training.net.parameters.flat.clone(), 0
    for _ in range(3):
        step, update = training.step, training.update.flat

        def stepped(indices, measure_alignment=False, step=step, update=update):
            nonlocal expected, done
            result = step(indices, measure_alignment)
            expected = expected - 0.1 * share(done / (3 * trial.steps_per_epoch)) * update
            done += 1
            return result
        training.step = stepped
        training.run_epoch()
        torch.testing.assert_close(training.net.parameters.flat, expected, rtol=1e-5, atol=1e-6)
        arrays, values = training.capture()
        training = Training(Pack((trial,)), digits, CPU)
        training.restore(arrays, values)
    assert done == 3 * trial.steps_per_epoch
    constant = learning_rate(replace(trial, schedule="constant"), done - 1)
    assert constant == 0.1 > learning_rate(trial, done - 1) > learning_rate(trial, done) == pytest.approx(0, abs=1e-17)


@pytest.mark.parametrize("algorithm", ["dfa", "pdfa"])
def test_feedback_is_aligned_from_the_start_with_an_output_layer_made_of_it(digits, algorithm):
    """The last hidden layer's update has the true gradient's direction; the output layer's entries have the size asked
    for, and each trial of a pack has its own B."""
    base = TrialConfig(dataset="digits", hidden=(48, 32), algorithm=algorithm, output_init="feedback", output_std=0.4)
    trials = tuple(replace(base, seed=seed) for seed in (0, 1))
    training = Training(Pack(trials), digits, CPU)
    for weight, matrices in zip(training.net.parameters.weights[-1], training.feedback.matrices, strict=True):
        assert weight.square().mean().sqrt().item() == pytest.approx(0.4)
        assert torch.corrcoef(torch.stack([weight.flatten(), matrices[:, 48:].flatten()]))[0, 1] > 1 - 1e-6
    _, alignment = training.step(training.sampler.epoch()[0], measure_alignment=True)
    if algorithm == "dfa":
        assert (alignment[:, :, 1] > 1 - 1e-5).all()
    assert (alignment[:, :, 1] > 0.5).all() and (alignment[:, :, 0].abs() < 0.6).all()
    with pytest.raises(ValueError, match="matrices: output_init 'feedback' needs the feedback matrix B, got None"):
        start_output(make_network(base, [0]), base)


def test_a_certified_trial_that_diverges_costs_what_the_whole_run_would(digits):
    trial = TrialConfig(dataset="digits", algorithm="bp", mechanism="per_example", noise_multiplier=1.0,
                        sampler="poisson", batch_size=64, epochs=6, learning_rate=1e38)
    last = list(train(Pack((trial,)), digits))[-1]
    assert last.outcome.status == "diverged" and last.epoch < 6
    expected = {e.metric_name: e.value for e in account(trial, 6)}
    assert expected and all(last.metrics[name] == value for name, value in expected.items())


# the optimizers of packs: torch's own, without what torch's classes bring along

OF_TORCH = {  # settings, and the class of torch with its own
    "sgd": ({"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "plain sgd": ({"momentum": 0.0}, torch.optim.SGD, {}),
    "nesterov": ({"optimizer": "nesterov", "momentum": 0.8}, torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
    "adam": ({"optimizer": "adam"}, torch.optim.Adam, {}),
    "adamw": ({"optimizer": "adamw", "weight_decay": 0.3}, torch.optim.AdamW, {"weight_decay": 0.3})}


@pytest.mark.parametrize("name", OF_TORCH)
def test_weights_have_the_bits_of_the_class_of_torch_as_the_step_size_falls_and_after_a_restoration(name):
    settings, kind, own = OF_TORCH[name]
    config = TrialConfig(dataset="digits", learning_rate=0.1, **settings)
    start = torch.randn(3, 1001, generator=torch.Generator().manual_seed(1))
    ours, theirs, update = start.clone(), start.clone().requires_grad_(), torch.empty_like(start)
    optimizer = UPDATES[config.parts.optimizer](config, ours, update)
    exact = replace(config, mechanism="per_example", noise_multiplier=1.0, arithmetic="integer")
    of_integers = start.clone()  # whose operations round one by one
    rounding = UPDATES[exact.parts.optimizer](exact, of_integers, update)
    reference = kind([theirs], lr=0.1, fused=True, **own)
    for step in range(6):
        if step == 3:
            kept = {key: value.clone() for key, value in optimizer.state.items()}
            optimizer = UPDATES[config.parts.optimizer](config, ours, update)
            optimizer.restore(kept)
        update.normal_(generator=torch.Generator().manual_seed(10 + step))
        theirs.grad = update.clone()
        optimizer.learning_rate = rounding.learning_rate = reference.param_groups[0]["lr"] = 0.1 / (1 + step)
        for one in (optimizer, rounding, reference):
            one.step()
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(of_integers, ours, rtol=1e-4, atol=1e-5)
    of_theirs = {key: value for key, value in reference.state_dict()["state"].get(0, {}).items() if value is not None}
    assert optimizer.state.keys() == of_theirs.keys()
    assert all(torch.equal(value, of_theirs[key]) for key, value in optimizer.state.items())
