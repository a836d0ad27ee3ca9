"""Networks of the user see one record alone: in training and validation, mapped and one after the other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from own_networks import integer_sum

from pipeline import ConfigError, TrialConfig, train
from pipeline.experiment.plugins import load_plugins
from pipeline.learning.mechanisms.gradients import GradientProducts, GradientRows, rows_of
from pipeline.learning.mechanisms.row_sum import RowSum, bounded
from pipeline.learning.own.alone import Alone
from pipeline.learning.own.building import why_alone
from pipeline.learning.own.mapped import Mapped
from pipeline.learning.own.operators import is_reviewed_here
from pipeline.learning.own.segments import Segments
from pipeline.learning.own.ways import check_neighbours
from pipeline.learning.train import prepare
from pipeline.trials.packs import Pack
from pipeline.trials.promises import check_promises

CPU = torch.device("cpu")
FOLDER = Path(__file__).parents[1] / "data"
MAPPED = ("codes", "padded", "quantized", "activation_twice", "layer_twice", "weight_shared", "assigned", "plain",
          "gru", "lazy", "frozen_first", "counts_anew")
ALONE = {"renormed": "aten.embedding_renorm", "sparse": "aten.embedding", "bag": "aten._embedding_bag",
         "numpy": "aten.lift_fresh_copy", "exits": "RuntimeError while it is traced",
         "out_of_memory": "RuntimeError while it is traced",
         "window": "aten.max_pool2d_with_indices_backward", "seeing": "a tensor of class Seeing",
         "no_text": "RuntimeError while it is traced", "other_text": "RuntimeError while it is traced",
         "returns_sparse": "RuntimeError while it is traced", "returns_seeing": "RuntimeError while it is traced",
         "counts": "aten.copy_", "lstm": "aten.mkldnn_rnn_layer"}
FAR = 200  # a pixel far beyond 16: no code of a table, and a number above 2


@pytest.fixture(autouse=True, scope="module")
def networks():
    load_plugins(["networks_of_others", "some_networks"], FOLDER)


def trial(name, **settings):
    base = dict(dataset="digits", network=f"others_{name}", algorithm="bp", mechanism="per_example", clipping_norm=0.1,
                noise="secure", noise_multiplier=1.0, sampler="poisson", batch_size=32, epochs=1, learning_rate=0.1,
                inputs="unit", records_at_once=16, train_records=200)
    return TrialConfig(**base | settings)


def with_far_pixels(digits, *places):
    """The digits, with all pixels of some training records far outside their range."""
    x = digits.train_x.clone()
    x[list(places)] = FAR
    return replace(digits, train_x=x)


def sums(training, places):
    places = torch.tensor(places)
    return integer_sum(training, training.train_inputs.batch(places), training.data.train_y[places])


def logits(training, places):
    return training.net.forward(training.train_inputs.batch(torch.tensor(places))[None])[1][0]


@pytest.mark.parametrize("name", [*MAPPED, *ALONE])
def test_a_network_is_mapped_or_says_why_not(name):
    reason = why_alone(trial(name))
    assert reason.startswith(ALONE[name]) if name in ALONE else reason == "", reason


RAISING = ("bag", "exits", "renormed", "no_text", "other_text", "returns_sparse", "returns_seeing")


@pytest.mark.parametrize("name", ["codes", "padded", "quantized", "gru", "lstm", "numpy", "window", "seeing", *RAISING])
def test_no_record_moves_the_sum_by_more_than_c_or_another_records_logits(name, digits):
    far = 7
    training = prepare(Pack((trial(name),)), with_far_pixels(digits, far), CPU)
    others = list(range(20, 60))
    before = {key: value.clone() for key, value in training.net.module.state_dict().items()}
    without, expected = sums(training, others), logits(training, others)
    assert without.norm() > 0.1 and expected.isfinite().all()
    for record in (far, 8):
        for place in (0, 9, 40):
            moved = (sums(training, [*others[:place], record, *others[place:]]) - without).norm()
            assert moved <= 0.1 and (moved == 0) == (record == far and name in RAISING)
            beside = logits(training, [*others[:place], record, *others[place:]])
            rounds = 0.0 if is_reviewed_here(CPU) else 1e-5  # a row's last bits depend on its place there
            torch.testing.assert_close(torch.cat([beside[:place], beside[place + 1:]]), expected, rtol=rounds,
                                       atol=rounds)
    assert all(torch.equal(value, before[key]) for key, value in training.net.module.state_dict().items())


@pytest.mark.parametrize("name", ["bag", "exits"])
def test_a_record_on_which_a_network_raises_counts_as_wrong_and_ends_nothing(name, digits):
    config = trial(name, noise="research", private_metrics="plain", validation_fraction=0.5)
    training = prepare(Pack((config,)), digits, CPU)
    one, other = training.validation[0][:2].tolist()
    damaged = with_far_pixels(digits, one, int(training.records[0][0]))
    *_, last = train(config, damaged)
    assert last.outcome.status == "finished"
    raised = prepare(Pack((config,)), damaged, CPU)
    found = logits(raised, [one, other])
    assert found[0].isnan().all() and torch.equal(found[1:], logits(training, [other]))
    counts = [t.evaluation.count(t.net, "validation")[0].sum(dim=1) for t in (raised, training)]
    assert counts[0][0] == counts[1][0] and 0 <= counts[1][1] - counts[0][1] <= 1


def test_what_a_network_prints_of_a_record_is_not_shown(digits, capfd):
    assert sums(prepare(Pack((trial("prints"),)), with_far_pixels(digits, 3), CPU), [2, 3]).norm() > 0
    assert "bright" not in "".join(capfd.readouterr())


def test_out_of_memory_is_a_death_and_no_record_that_contributes_nothing(digits):
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        sums(prepare(Pack((trial("out_of_memory"),)), with_far_pixels(digits, 3), CPU), [2, 3])


@pytest.mark.parametrize(("name", "words"), [
    ("dropped", "must give the same result at every call, got aten."),
    ("draws", "must give the same result at every call, got another one at the second"),
    ("keeps", "must give the same result at every call, got another one at the second"),
    ("locked", "must be a module that `copy.deepcopy` copies, with all its modules, got TypeError: cannot pickle"),
    ("itself", "must be a module that `copy.deepcopy` copies, with all its modules, got a copy that shares 0"),
    ("writes", "must change nothing in place that outlives a call, got changes of 1.weight"),
    ("closure", "must use its parameters as attributes of its modules, got 1.weight in a closure"),
    ("weak", "must use its parameters as attributes of its modules, got 1.weight in a closure"),
    ("hooked", "must have no hooks on its parameters, got hooks on 1.weight"),
    ("hooked_after", "must have no hooks on its parameters, got hooks on 1.weight")])
def test_what_depends_on_other_calls_or_is_not_in_a_copy_is_refused_before_training(name, words):
    with pytest.raises(ConfigError, match=r"^network: 'others_\w+' \(networks_of_others.py:\d+\) must") as refused:
        check_promises([trial(name)])
    assert words in str(refused.value)


def test_a_network_that_raises_on_public_records_is_refused(digits):
    x = digits.test_x.clone()
    x[2] = FAR
    for name, error in (("bag", "RuntimeError"), ("exits", "SystemExit: 3")):
        with pytest.raises(ConfigError, match=f"must raise on no record, got {error}"):
            prepare(Pack((trial(name),)), replace(digits, test_x=x), CPU)


@pytest.mark.parametrize("name", ["counts", "counts_anew", "renormed"])
def test_only_parameters_are_released_and_nothing_that_a_forward_pass_wrote(name, digits):
    *_, last = train(trial(name), digits)
    assert {"1.weight" in last.outcome.weights, "2.weight" in last.outcome.weights} & {True}
    assert not any("calls" in weight for weight in last.outcome.weights)


class Changes(torch.nn.Module):
    """Does for records with a large number what its public ones never do."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change = torch.nn.Linear(64, 10), change

    def forward(self, x):
        out = self.layer(x.flatten(1))
        return self.change(self, out) if x.max() > 2 else out


@pytest.mark.parametrize("change", [
    lambda self, out: out[:, :9], lambda self, out: (out, out), lambda self, out: out.double(),
    lambda self, out: Path("no file").read_text(), lambda self, out: out[:0], lambda self, out: self.double() and out,
    lambda self, out: self.layer.weight.requires_grad_(False) and out, lambda self, out: out * float("nan")],
    ids=["shape", "pair", "dtype", "file", "empty", "module", "frozen", "nan"])
def test_alone_a_record_is_zero_or_wrong_whatever_the_network_does_with_it(change):
    alone = Alone(Segments(torch.nn.Sequential(Changes(change)), 0), 10)
    records = torch.stack([torch.full((1, 8, 8), value) for value in (0.5, 3.0, 0.5)])
    rows = [rows_of(alone.gradients(record, lambda logits: [torch.ones(1, 10)])) for record in records.split(1)]
    assert torch.equal(rows[0], rows[2]) and all(row.shape == (1, 650) and row.dtype == torch.float32 for row in rows)
    gradients, factors = bounded(lambda norms: (1 / norms).clamp(max=1), [GradientRows(torch.cat(rows))],
                                 torch.ones(3, dtype=torch.bool))
    assert rows_of(gradients).isfinite().all() and factors[0] == factors[2] > 0
    logits = alone.logits(records)
    assert logits.shape == (3, 10) and torch.equal(logits[0], logits[2]) and logits[0].isfinite().all()


@pytest.mark.parametrize("scale", [1e15, 1e18, 1e25, 1e38])
def test_products_that_overflow_count_as_none(scale, digits):
    training = prepare(Pack((trial("plain"),)), digits, CPU)
    integers = training.mechanism.sum
    left, right = torch.full((2, training.net.parameters.row.shape[1], 1), 1.0), torch.ones(2, 1, 1)
    left[1], right[1] = scale, 1e18
    integers.total.zero_()
    integers.add(training.mechanism.factor, [GradientProducts(left, right)], torch.ones(2, dtype=torch.bool))
    assert integers.total.isfinite().all() and (integers.total * integers.unit * integers.scale).norm() <= 0.2


@pytest.mark.parametrize("width", [60_000, 61_007, 63_111, 65_536])
def test_truncation_makes_no_row_longer(width):
    """Rows of equal numbers, which rounding to the nearest integer would lengthen by up to 2e-4."""
    config = trial("plain", clipping_norm=1.0)
    integers = RowSum([config], [1.0], [1.0], (width,), CPU)
    for length in (1.0, 1.7, 900.0, 1e-3):
        integers.total.zero_()
        integers.add(lambda norms: (1 / norms).clamp(max=1), [GradientRows(torch.full((1, width), length))],
                     torch.ones(1, dtype=torch.bool))
        norm = (integers.total * integers.unit * integers.scale).norm()
        assert 0.999 * min(1.0, length * width**0.5) < norm <= min(1.0, length * width**0.5 * (1 + 1e-6))


def test_an_index_outside_a_table_looks_up_zeros(digits):
    training = prepare(Pack((trial("codes"),)), with_far_pixels(digits, 3), CPU)
    with torch.no_grad():
        expected = training.net.module[1:](torch.zeros(1, 6))
    torch.testing.assert_close(logits(training, [3]), expected)


@pytest.mark.parametrize("kept", ["plain", "withheld"])
@pytest.mark.parametrize("algorithm", ["bp", "dfa"])
def test_alignments_are_the_same_by_the_graph_and_alone(algorithm, kept, digits):
    config = trial("plain", algorithm=algorithm, noise="research", noise_multiplier=0.0, private_metrics=kept)
    mapped, alone = (prepare(Pack((config,)), digits, CPU) for _ in range(2))
    alone.net.way, alone.net.chunk = Alone(alone.net.segments, 10), 1
    (_, expected), (_, found) = (training.step(training.sampler.epoch()[0], measure_alignment=True)
                                 for training in (mapped, alone))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert isinstance(mapped.net.way, Mapped) and (found[0, 1] > 0.999).tolist() == [algorithm == "bp", True]


REVIEWED = "pipeline.learning.own.operators."


@pytest.mark.parametrize(("name", "value", "mapped"), [
    ("processor_is_of", lambda maker: True, "true"),
    ("processor_is_of", lambda maker: maker != "GenuineIntel", "up to rounding"),
    ("VERSIONS", {"cpu": ("2.12",)}, "up to rounding")], ids=["reviewed", "processor", "torch"])
def test_the_way_is_told_and_certified_and_mapped_elsewhere_up_to_rounding(name, value, mapped, digits, monkeypatch):
    monkeypatch.setattr(f"{REVIEWED}{name}", value)
    by_graph, alone = (next(train(trial(network), digits)).tags for network in ("codes", "lstm"))
    assert (by_graph["network.records"], by_graph["privacy.certified"]) == ("mapped", mapped)
    assert ("last bits not covered" in by_graph["privacy.notes"]) == (mapped != "true")
    assert alone["network.records"] == "alone: aten.mkldnn_rnn_layer.default" and alone["privacy.certified"] == "true"
    assert ["its author's statement" in tags["privacy.notes"] for tags in (by_graph, alone)] == [False, True]


def test_on_another_version_of_torch_neighbours_are_tried(digits, monkeypatch):
    monkeypatch.setattr(f"{REVIEWED}VERSIONS", {"cpu": ("2.12",)})
    training = prepare(Pack((trial("codes"),)), digits, CPU)
    gradients = training.net.way.gradients
    training.net.way.gradients = lambda x, signals_of: [  # as a rule that sees the whole chunk
        replace(of_one, values=of_one.rows() + x.nan_to_num(0).mean()) if hasattr(of_one, "values") else of_one
        for of_one in gradients(x, signals_of)]
    with pytest.raises(ConfigError, match=r"must compute each record from itself alone, got a change by"):
        check_neighbours("a network", training.net.way, training.net.segments, torch.rand(2, 1, 8, 8), 32)


def test_alone_restores_generators_and_settings():
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    records = torch.rand(2, 1, 8, 8)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), torch.get_num_threads()

    class Sets(torch.nn.Module):
        def forward(self, x):
            np.random.rand()
            torch.rand(1)
            torch.set_num_threads(3)
            torch.use_deterministic_algorithms(False)
            raise ValueError

    alone = Alone(Segments(torch.nn.Sequential(*module, Sets()), 0), 10)
    assert alone.logits(records).isnan().all() and isinstance(alone.raised, ValueError)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]
    assert torch.get_num_threads() == before[2] and not torch.are_deterministic_algorithms_enabled()
