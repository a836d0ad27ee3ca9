"""Networks of the user: equal to built-in ones, certified record by record, refused with the place of the fault."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from own_networks import integer_sum

from pipeline import ConfigError, TrialConfig, account
from pipeline.auditing.audit import findings
from pipeline.experiment.plugins import load_plugins
from pipeline.experiment.preset import recommend
from pipeline.learning.model import TrainedModule
from pipeline.learning.train import prepare
from pipeline.trials.packs import Pack
from pipeline.trials.promises import check_promises

CPU = torch.device("cpu")
FOLDER = Path(__file__).parents[1] / "data"
SHIPPED = FOLDER.parents[1] / "experiments" / "networks"


@pytest.fixture(autouse=True, scope="module")
def networks():
    load_plugins(["some_networks", "networks_of_others"], FOLDER)
    load_plugins(["tempered_cnn", "small_transformer"], SHIPPED)


def own(network="perceptron", **settings):
    base = dict(dataset="digits", network=network, algorithm="dfa", mechanism="per_example", clipping_norm=0.5,
                noise_multiplier=1.0, sampler="poisson", batch_size=48, epochs=2, learning_rate=0.1)
    return TrialConfig(**base | settings)


def built_in(config):
    values = {name: value for name, value in config.given if name not in ("shared_blocks", "network_version")}
    same = {"perceptron": dict(network="mlp", hidden=(16, 16)), "others_plain": dict(network="mlp", hidden=(12,)),
            "convolutions": dict(network="convnet", channels=(4, 6), kernel=3, hidden=(16,))}
    return TrialConfig(**values | same[config.network])


def updates(config, digits):
    """The update of a built-in network and of the same network as a module, given the same weights and batch."""
    module, layers = (prepare(Pack((c,)), digits, CPU) for c in (config, built_in(config)))
    blocks = zip(layers.net.parameters.weights, layers.net.parameters.biases, strict=True)
    module.net.parameters.row[0].copy_(torch.cat([part[0].flatten() for block in blocks for part in block]))
    indices = layers.sampler.epoch()[0]
    losses = [training.step(indices, measure_alignment=True) for training in (module, layers)]
    blocks = zip(layers.update.weights, layers.update.biases, strict=True)
    return losses, module.update.row[0], torch.cat([part[0].flatten() for block in blocks for part in block])


@pytest.mark.parametrize("mechanism", [dict(mechanism="none", noise_multiplier=0.0), dict(noise_multiplier=0.0),
                                       dict(mechanism="automatic", noise_multiplier=0.0)])
@pytest.mark.parametrize(("network", "algorithm"), [
    ("perceptron", "bp"), ("perceptron", "dfa"), ("perceptron", "tdfa"), ("perceptron", "pdfa"),
    ("convolutions", "bp"), ("convolutions", "dfa"), ("convolutions", "hybrid"), ("others_plain", "dfa")])
def test_a_module_has_the_updates_of_the_same_built_in_network(network, algorithm, mechanism, digits):
    """Blocks of a plain sequence end before the next trained layer: a signal goes back through each activation."""
    config = own(network, algorithm=algorithm, **mechanism)
    if algorithm == "hybrid":
        config = replace(config, shared_blocks=2)
    ((loss, cosines), (expected_loss, expected_cosines)), update, expected = updates(config, digits)
    torch.testing.assert_close(update, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(cosines, expected_cosines, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("network", "algorithm"), [("perceptron", "dfa"), ("convolutions", "hybrid"),
                                                    ("convolutions", "bp"), ("perceptron", "tdfa")])
def test_no_record_moves_the_integer_sum_by_more_than_c(network, algorithm, digits):
    training = prepare(Pack((own(network, algorithm=algorithm, noise="secure", records_at_once=16),)), digits, CPU)
    generator = torch.Generator().manual_seed(0)
    batch = torch.rand(20, 1, 8, 8, generator=generator) * 2 - 1
    one_hot = torch.zeros(1, 1, 8, 8)
    one_hot[..., 3] = 1e6
    extremes = [torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), 1e4), torch.full((1, 1, 8, 8), torch.nan), one_hot,
                torch.full((1, 1, 8, 8), torch.inf), torch.full((1, 1, 8, 8), -3e38)]
    labels = torch.arange(20) % 10
    without = integer_sum(training, batch.flatten(1), labels)
    assert without.norm() > 0.5  # the sum is of something
    for extreme in extremes:
        for place in (0, 7, 16, 20):
            records = torch.cat([batch[:place], extreme, batch[place:]])
            of_all = torch.cat([labels[:place], torch.tensor([3]), labels[place:]])
            assert (integer_sum(training, records.flatten(1), of_all) - without).norm() <= 0.5
    in_float32 = prepare(Pack((own(network, algorithm=algorithm, noise_multiplier=0.0),)), digits, CPU)
    for extreme in extremes:
        in_float32.train_inputs.batch = lambda chunk, extreme=extreme: extreme.flatten(1).expand(len(chunk), -1)
        in_float32.step(torch.arange(48)[None])
        assert in_float32.update.row.norm() <= 0.5 * 1.001, "one that is not finite contributes nothing"


WIDE = dict(network="mlp", hidden=(64, 16), feedback_std=0.5)


@pytest.mark.parametrize("trial", [
    dict(network="convolutions"), dict(network="convolutions", algorithm="hybrid"), WIDE, WIDE | {"algorithm": "pdfa"},
    WIDE | dict(algorithm="tdfa", feedback_centered=True), WIDE | {"arithmetic": "integer"}], ids=str)
def test_every_block_hears_the_error_as_loudly_with_feedback_by_width(trial, digits):
    """B of a block of n numbers is divided by sqrt(n), to the last bit; in integers, to the step of their grid."""
    plain, scaled = (prepare(Pack((own(**trial, feedback_by_width=by_width),)), digits, CPU).feedback
                     for by_width in (False, True))
    assert plain.widths == scaled.widths and len({*plain.widths}) == len(plain.widths)
    expected = torch.cat([block * width**-0.5 for block, width in
                          zip(plain.matrices.split(plain.widths, dim=2), plain.widths, strict=True)], dim=2)
    allowed = 2.0**-8 * expected.abs().max() if "arithmetic" in trial else 0.0
    assert (scaled.matrices - expected).abs().max() <= allowed


def test_a_resumed_trial_has_the_same_bits(digits):
    config = own("convolutions", algorithm="hybrid", train_records=200, epochs=3, averaging=0.5)
    whole, first = (prepare(Pack((config,)), digits, CPU) for _ in range(2))
    records = [whole.run_epoch() for _ in range(3)]
    first.run_epoch()
    arrays, values = first.capture()
    second = prepare(Pack((config,)), digits, CPU)
    second.restore(arrays, values)
    second.run_epoch()
    (last,) = second.run_epoch()
    for name, weight in records[-1][0].outcome.weights.items():
        assert np.array_equal(weight, last.outcome.weights[name])


@pytest.mark.parametrize(("network", "words"), [
    ("batch_norm", "one record at a time, got layer '1' (BatchNorm1d), which takes statistics of batches; use GroupN"),
    ("dropout", "the same result at every call, got layer '1' (Dropout), which draws at random; leave it out"),
    ("pair", "block '1', must give one tensor [n, ...] for n records, got a tuple"),
    ("tied", "must share no parameter between blocks with algorithm 'dfa', which would get two signals, got '1.0.weig"),
    ("frozen", "must have parameters to train (requires_grad), got none"),
    ("classes", "must give 10 logits of a record, got an output of shape [9]"),
    ("module", "must return a torch.nn.Sequential, whose children are the blocks, got a Linear"),
    ("shape", "must take records of shape [64], got in block '1', RuntimeError"),
    ("double", "block '1', must have float32 parameters, got torch.float64 in 'weight'"),
    ("raises", "must build a module, got ZeroDivisionError: division by zero")])
def test_what_cannot_be_trained_is_refused_with_its_place(network, words):
    with pytest.raises(ConfigError) as refused:
        own(f"faulty_{network}")
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"network: 'faulty_{network}' (some_networks.py:")


def test_a_step_is_audited(digits):
    audited = {finding.row[1]: finding for finding in findings("cnn", own("convolutions"), digits, 1)}
    assert audited["row space"].row[-1] == "does not apply: layers are the network's affair"
    release = audited["two neighbours, one step (all)"]
    assert release.row[-1] == "below certified" and release.metrics["audit/one_step_mu"] > 0.3


@pytest.mark.parametrize(("settings", "words"), [
    (dict(mechanism="component"), "mechanism: must be 'none' or 'per_example' or 'automatic' with network"),
    (dict(mechanism="photonic", sampler="shuffled"), "mechanism: must be 'none' or 'per_example'"),
    (dict(algorithm="hybrid", shared_blocks=2), "shared_blocks: must leave a block for feedback and the output block"),
    (dict(denoise=True), "denoise: needs the columns of a layer's weights"),
    (dict(arithmetic="integer"), "arithmetic: 'integer' does not go with network 'perceptron'"),
    (dict(arithmetic="integer", noise="secure"),
     "arithmetic: 'integer' does not go with network 'perceptron': .*, or arithmetic 'float32'$"),
    (dict(arithmetic="bfloat16", mechanism="none", noise_multiplier=0.0), "arithmetic: must be 'float32' with"),
    (dict(network_version=2), "network_version: must be 1, that of network 'perceptron' as it is loaded"),
    (dict(noise="secure", noise_multiplier=1e9),
     r"noise_multiplier: must be at most [\d.e+]+ with noise 'secure', whose grid would be too coarse for"),
    (dict(noise="secure"), "noise: 'secure' takes contributions of at most 1,000 numbers")])
def test_what_blocks_have_not_is_refused(settings, words, monkeypatch):
    monkeypatch.setattr("pipeline.trials.promises.LONGEST_ROW", 1000)
    check_promises([own()])
    with pytest.raises(ConfigError, match=f"^{words}"):
        check_promises([own(**settings)])


def test_what_a_trial_of_a_network_is(digits):
    config = own("convolutions", algorithm="hybrid")
    assert [str(epsilon) for epsilon in account(config)] == [str(epsilon) for epsilon in account(built_in(config))]
    training = prepare(Pack((own("convolutions", mechanism="none", noise_multiplier=0.0),)), digits, CPU)
    assert training.update.row.shape[1] == sum(p.numel() for p in training.net.module.parameters()), "none is frozen"
    state = prepare(Pack((own(),)), digits, CPU).net.module.state_dict()
    weights = {name: value.numpy() for name, value in state.items()}
    assert isinstance(TrainedModule(own(), weights).network, torch.nn.Sequential)
    with pytest.raises(ConfigError, match=r"weights: must have .*, \(8, 64\) for .*, got \(16, 64\), and 4 more"):
        TrainedModule(own(units=8), weights)
    settings = dict(dataset="digits", network="perceptron", algorithm="dfa", mechanism="per_example", target_epsilon=3)
    recommended = recommend(settings).settings  # the step size is left open
    assert set(recommended) == {"sampler", "batch_size", "epochs", "clipping_norm"}
    for network, blocks, d in (("tempered_cnn", 4, 26_010), ("small_transformer", 4, 71_946)):  # as their pages say
        layers = own(network, dataset="fashion_mnist", batch_size=256).layers
        assert len(layers) == blocks and sum(layer.parameters for layer in layers) == d
