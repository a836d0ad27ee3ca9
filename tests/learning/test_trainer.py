"""Trainers of users (docs/trainers.md): what they are handed, what is accounted for, and what is refused."""

from __future__ import annotations

import importlib
import itertools
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import (
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    UnsupportedDpEvent,
    ZCDpEvent,
)
from flat import train
from safetensors.numpy import load_file, save_file

from pipeline import Epoch, account, load_model, privacy_tags
from pipeline.accounting.budget import epoch_cost
from pipeline.accounting.certified import event_of, with_noise
from pipeline.accounting.curves import ORDERS, gdp_eps
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.accounting.event import PrivacyEvent
from pipeline.accounting.overview import as_lines
from pipeline.cli import main
from pipeline.experiment.experiment import parse_experiment
from pipeline.experiment.stopping import Selection
from pipeline.learning.data.dataset import load
from pipeline.learning.handed import packed_state, unpacked_state
from pipeline.learning.harness import Harness
from pipeline.learning.own_code import GlobalRandomness, TrainerError, TrainerFailed, torch_settings
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.checks import check_trainers
from pipeline.sweep.worker import epochs, one_line, prepare_node, train_pack
from pipeline.tracking.reader import Reader
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.part import PARTS
from pipeline.trials.promises import check_promises
from pipeline.trials.records import DESCRIPTION, Draw
from pipeline.trials.trainer import trainer

DATA = Path(__file__).parents[1] / "data"
SMALL = dict(dataset="digits", batch_size=64, epochs=3)
PLAIN = dict(**SMALL, trainer="plain", learning_rate=0.5, noise_multiplier=1.0)


@pytest.fixture(autouse=True)
def trainers(extensions, monkeypatch):
    monkeypatch.syspath_prepend(DATA)
    sys.modules.pop("some_trainers", None)  # what it entered was gone after the test before
    importlib.import_module("some_trainers")


def of(keys, **settings):
    return TrialConfig(**{**keys, **settings})


def last(trial):
    return [*train(Pack((trial,)), load("digits"))][-1]


# what a trial of a trainer is

def test_name_version_and_settings_are_in_the_key_and_own_trials_keep_theirs():
    own = TrialConfig(dataset="digits")
    trials = [of(PLAIN), of(PLAIN, learning_rate=0.4), of(PLAIN, trainer="by_globals"), of(PLAIN, trainer_version=2)]
    assert len({trial.trial_key for trial in trials}) == 4 and "trainer" not in own.canonical()
    for trial in trials:
        assert TrialConfig(**trial.canonical()).trial_key == trial.trial_key
    check_promises([trials[0]])
    with pytest.raises(ConfigError, match="trainer_version: must be 1, .* 'plain' as it is loaded, got 2"):
        check_promises([trials[3]])


@pytest.mark.parametrize(("settings", "message"), [
    ({"algorithm": "bp"}, "algorithm: is the affair of trainer 'plain', got 'bp'"),
    ({"mechanism": "per_example"}, "mechanism: is the affair of trainer 'plain'"),
    ({"noise": "secure"}, "noise: nobody checked what trainer 'plain' states"),
    ({"target_epsilon": 3.0}, "target_epsilon: sets noise_multiplier; give one of the two, got target_epsilon 3.0"),
    ({"trainer": "rows"}, "mechanism: must be one of per_example, automatic with trainer 'rows', .* got 'none'"),
    ({"trainer": "answers", "canaries": 30}, "canaries: are records that take part or not")])
def test_what_does_not_go_with_a_trainer_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        of(PLAIN, **settings)


@pytest.mark.parametrize("slot", ["network", "loss", "optimizer", "mechanism", "sampler"])
def test_what_only_a_trainer_brings_along_is_neither_offered_nor_taken_without_one(slot):
    assert "by_trainer" not in list(PARTS[slot]) and "by_trainer" in PARTS[slot]
    with pytest.raises(ConfigError, match=f"{slot}: 'by_trainer' is what trials of a trainer have"):
        TrialConfig(dataset="digits", **{slot: "by_trainer"})
    with pytest.raises(ConfigError, match="write `trainer: plain` and leave algorithm out"):
        TrialConfig(dataset="digits", algorithm="plain")


@pytest.mark.parametrize(("settings", "message"), [
    ({"version": 0}, "version: must be a whole number >= 1, got 0"),
    ({"per": "run"}, "per: must be one of step, epoch, got 'run'"),
    ({"relation": "swap"}, "relation: must be one of add/remove, replace-one, got 'swap'"),
    ({"randomness": "os"}, "randomness: must be one of seed, own, got 'os'"),
    ({"calibrates": "noise_multiplier"}, "event: must be given with calibrates"),
    ({"calibrates": "batch_size", "event": len}, "calibrates: must be a setting with a number"),
    ({"per_record": "so"}, "per_record: needs `parameters`"), ({"parameters": len}, "per_record: must say why"),
    ({"settings": {"nope": None}}, "settings: must be fields of a trial, got 'nope'")])
def test_a_wrong_registration_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        @trainer("another", **{"version": 1, **settings})
        def another(trial, records, labels, device):
            yield


def test_a_function_that_yields_nothing_and_a_name_that_is_taken_are_refused():
    with pytest.raises(ConfigError, match="must be a generator function"):
        trainer("another", version=1)(lambda trial, records, labels, device: None)
    with pytest.raises(ConfigError, match="algorithm: 'bp' is taken"):
        @trainer("bp", version=1)
        def bp(trial, records, labels, device):
            yield


# epsilon

def test_poisson_batches_with_gaussian_noise_cost_what_they_cost_here():
    own = dict(mechanism="per_example", sampler="poisson", algorithm="bp", hidden=())
    stated, certified = (account(TrialConfig(**SMALL, noise_multiplier=1.0, **more))[0]
                         for more in ({"trainer": "plain"}, own))
    assert stated.value == certified.value and (stated.kind, certified.kind) == ("stated", "certified")
    assert stated.metric_name == "epsilon/stated/pld" and "nobody here checked it" in stated.note


def test_a_target_sets_what_the_trainer_is_calibrated_by():
    for trial in (of(PLAIN, noise_multiplier=0.0, target_epsilon=2.0),
                  TrialConfig(**SMALL, trainer="pure", target_epsilon=2.0)):
        epsilons = [epsilon.value for epsilon in account(trial)]
        assert 0.99 * 2 <= min(epsilons) <= 2
    assert with_noise(trial).scale == pytest.approx(3 / 2, rel=0.01), "three epochs of 1/scale each, at a tiny delta"


def test_events_are_accounted_for_by_every_accountant_that_takes_them():
    laplace = TrialConfig(**SMALL, trainer="pure", scale=2.0)
    event = event_of(laplace, 3)
    assert event == PrivacyEvent(LaplaceDpEvent(2.0), 3, 3, "add/remove")
    assert event.accountants == ("pld", "rdp/improved")
    by_name = {epsilon.variant: epsilon.value for epsilon in account(laplace)}
    text = "base: {dataset: digits, batch_size: 64, epochs: 3, trainer: pure, scale: 2}"
    assert any("scale = 2 " in line for line in as_lines(parse_experiment(text, Path("laplace.yaml"))))
    assert by_name["pld"] <= 1.5 + 1e-3 and by_name["pld"] <= by_name["rdp/improved"]
    pure = TrialConfig(**SMALL, trainer="answers")
    assert account(pure)[0].value == pytest.approx(3.0, rel=1e-3), "three times epsilon 1"
    assert epoch_cost(of(PLAIN, private_metrics="noisy"), ORDERS[3]) > 0


@pytest.mark.parametrize(("event", "message"), [
    (lambda trial: 3, r"event: must be a dp_accounting.DpEvent, got 3 of trainer 'odd' \(test_trainer.py:\d+\)"),
    (lambda trial: ZCDpEvent(math.nan), "event: rho must be a number >= 0 and .*, got nan of trainer 'odd'"),
    (lambda trial: UnsupportedDpEvent(), "event: no accountant takes UnsupportedDpEvent"),
    (lambda trial: GaussianDpEvent(1 / 0), r"event: of trainer 'odd' fails with ZeroDivision.*test_trainer.py:\d+")])
def test_an_event_that_nothing_can_be_made_of_is_refused_before_training(event, message):
    @trainer("odd", version=1, event=event)
    def odd(trial, records, labels, device):
        yield

    with pytest.raises(ConfigError, match=message):
        account(TrialConfig(**SMALL, trainer="odd"))


def test_what_transforms_round_is_taken_from_delta_also_for_counts_within_an_event():
    repeated = SelfComposedDpEvent(PoissonSampledDpEvent(1.0, GaussianDpEvent(100.0)), 10**4)
    inside = PrivacyEvent(repeated, 1, 1, "add/remove")
    assert inside.value(1e-9, "pld") >= gdp_eps(1.0, 1e-9) and inside.value(1e-13, "pld") == math.inf


def test_a_trial_of_another_version_is_not_accounted_for_by_the_one_that_is_loaded():
    with pytest.raises(ConfigError, match="trainer_version: version 2 of trainer 'plain' states what its trials cost"):
        event_of(of(PLAIN, trainer_version=2), 1)


def test_without_an_event_or_noise_there_is_no_epsilon():
    @trainer("bare", version=1)
    def bare(trial, records, labels, device):
        yield

    trial = TrialConfig(**SMALL, trainer="bare")
    assert account(trial) == [] and privacy_tags(trial)["privacy.certified"] == "false"
    with pytest.raises(ConfigError, match="noise_multiplier: must be given with trainer 'plain'"):
        check_promises([TrialConfig(**SMALL, trainer="plain")])


def test_what_is_stated_makes_a_selection_stated_whatever_else_is_certified():
    settings = dict(**SMALL, noise_multiplier=1.0, mechanism="per_example", sampler="poisson", trainer="rows")
    certified = [TrialConfig(**settings, seed=seed) for seed in (0, 1)]
    stated = TrialConfig(**SMALL, trainer="pure", scale=2.0)
    one, both = (selected_epsilon(trials, Selection()) for trials in (certified, [*certified, stated]))
    assert (one.kind, both.kind) == ("selected", "stated") and both.value > one.value
    noop = TrialConfig(**SMALL, trainer="pure", scale=1e6)
    assert selected_epsilon([*certified, noop], Selection()).value == pytest.approx(one.value, rel=0.02)


# what it is handed

def test_a_trainer_sees_its_training_records_and_nothing_else():
    seen = {}

    @trainer("watching", version=1)
    def watching(trial, records, labels, device):
        seen.update(records=records, labels=labels, rate=trial.sampling_rate)
        for _ in range(trial.epochs):
            yield lambda x: x.new_zeros(len(x), 10)

    plain, audited = (Harness(Pack((TrialConfig(**SMALL, trainer="watching", **more),)), load("digits"),
                              torch.device("cpu")) for more in ({}, {"canaries": 60, "delta": 1e-5}))
    plain.run_epoch()
    data, own = load("digits"), torch.from_numpy(plain.records[0])
    assert seen["records"].shape == (len(own), 1, 8, 8) == (1293, 1, 8, 8)
    assert torch.equal(seen["records"].flatten(1), data.train_x[own].float() / 8 - 1)
    assert torch.equal(seen["labels"], data.train_y[own])
    audited.run_epoch()
    out = int((~audited.canaries.included).sum())
    assert len(seen["records"]) == 1293 - out and 10 < out < 50 and seen["rate"] == 64 / 1293, "N stays public"
    there = torch.from_numpy(audited.records[0][audited.records[0] >= 0])
    assert (seen["labels"] != data.train_y[there]).sum() == 60 - out, "canaries that take part have wrong labels"


def test_results_follow_from_the_seed_whatever_draws_in_between():
    trials = [of(PLAIN, trainer=name, seed=seed) for name in ("plain", "by_globals") for seed in (0, 1)]
    first = [last(trial) for trial in trials]
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    runs = [train(Pack((trial,)), load("digits")) for trial in trials]
    again = [records[-1] for records in zip(*itertools.zip_longest(*runs), strict=True)]  # an epoch of each in turn
    for one, other in zip(first, again, strict=True):
        assert all(np.array_equal(w, other.outcome.weights[name]) for name, w in one.outcome.weights.items())
    assert len({record.outcome.weights["1.weight"].tobytes() for record in first}) == 4


def test_global_generators_are_independent_and_one_device_has_one_generator():
    with GlobalRandomness(0, torch.device("cpu")).installed():
        drawn = (torch.randint(0, 1024, (500,)).numpy(), np.random.randint(0, 1024, 500),
                 np.array([random.randrange(1024) for _ in range(500)]))
    for one, other in itertools.combinations(drawn, 2):
        assert np.mean(one == other) < 0.02
    context = Harness(Pack((of(PLAIN),)), load("digits"), torch.device("cpu")).context
    assert context.generator("noise") is context.generator("noise", "cpu:0")


def test_global_generators_are_put_back():
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    own = GlobalRandomness(0, torch.device("cpu"))
    with own.installed():
        drawn = torch.rand(1), random.random(), np.random.rand()
    with own.installed():
        assert (torch.rand(1), random.random(), np.random.rand()) != drawn
    assert torch.equal(before[0], torch.get_rng_state()) and before[1:] == (
        random.getstate(), np.random.get_state()[1].tolist())


@pytest.mark.parametrize(("trial", "stream"), [(PLAIN, "evaluation"), (PLAIN, "split"), (PLAIN, "mine"),
                                               ({**PLAIN, "trainer": "rows", "mechanism": "per_example"}, "release")])
def test_a_trainer_draws_from_no_stream_that_the_noise_here_comes_from(trial, stream):
    harness = Harness(Pack((TrialConfig(**trial),)), load("digits"), torch.device("cpu"))
    with pytest.raises(TrainerError, match=f"generator: must be one of .*init, feedback, got '{stream}'"):
        harness.context.generator(stream)


def test_own_metrics_are_logged_and_withheld_where_nothing_says_why_not():
    assert last(of(PLAIN)).metrics["trainer/norm"] > 0
    shown = type(PARTS["trainer"]["plain"])("shown", (PARTS["trainer"]["plain"],), {"public": {"norm": "of weights"}})
    PARTS["trainer"]["plain"], before = shown, PARTS["trainer"]["plain"]
    shown.slot, shown.name = before.slot, before.name
    assert last(of(PLAIN, private_metrics="noisy")).metrics["trainer/norm"] > 0
    PARTS["trainer"]["plain"] = before
    noisy = last(of(PLAIN, private_metrics="noisy"))
    assert "trainer/norm" not in noisy.metrics and 0 < noisy.metrics["validation/accuracy"]
    assert noisy.metrics["epsilon/stated/pld"] == account(of(PLAIN, private_metrics="noisy"))[0].value


def test_no_private_record_decides_whether_a_trial_fails():
    """A model gives nan for one validation record of class 0, and a metric that is not public is nan, too."""
    data = load("digits")

    @trainer("strange", version=1, calibrates="noise_multiplier", public={"shown": "a test"},
             event=lambda trial: GaussianDpEvent(trial.noise_multiplier))
    def strange(trial, records, labels, device):
        for _ in range(trial.epochs):
            yield Epoch(model, {"loss": math.nan, "shape": object(), "shown": 1.0})

    def model(x):
        return torch.where((x == alone).flatten(1).all(1)[:, None], math.nan, torch.eye(10)[0])

    for disclosure in ("noisy", "withheld"):
        run = Harness(Pack((TrialConfig(**SMALL, trainer="strange", noise_multiplier=9.0,
                                        private_metrics=disclosure),)), data, torch.device("cpu"))
        of_class_0 = run.validation[0][data.train_y[run.validation[0]] == 0]
        alone = run.train_inputs.batch(of_class_0[:1]).view(1, 1, 8, 8)
        (record,) = run.run_epoch()
        assert run.evaluation.count(run, "validation")[0, 1].tolist() == [len(of_class_0) - 1] + [0] * 9
        assert {name for name in record.metrics if name.startswith("trainer/")} == {"trainer/shown"}
    alone = run.test_inputs.batch(torch.tensor([0])).view(1, 1, 8, 8)
    with pytest.raises(TrainerError, match="logits of records are not finite"):
        run.run_epoch()


# certified trainers

@pytest.mark.parametrize("sampler", ["poisson", "shuffled", "without_replacement"])
def test_contributions_train_as_this_packages_softmax_regression(sampler):
    settings = dict(**SMALL, mechanism="per_example", sampler=sampler, noise_multiplier=1.0, learning_rate=0.5)
    theirs = TrialConfig(**settings, trainer="rows")
    own = TrialConfig(**settings, algorithm="bp", hidden=(), momentum=0.0)
    assert [e.value for e in account(theirs)] == [e.value for e in account(own)]
    assert "stated by the extension 'rows'" in privacy_tags(theirs)["privacy.notes"]
    assert last(theirs).metrics["test/accuracy"] == pytest.approx(last(own).metrics["test/accuracy"], abs=0.06)


def released(trial, rows):
    """Updates of one batch after the other, where every record contributes `rows`."""
    updates = []

    @trainer("fixed", version=1, parameters=lambda trial: 650, per_record="constant")
    def fixed(trial, device):
        for _ in range(trial.epochs):
            for x, _ in trial.batches():
                updates.append((len(x), trial.release(rows.expand(len(x), -1))))
            yield lambda x: x.new_zeros(len(x), 10)

    last(TrialConfig(**trial, trainer="fixed"))
    return [n for n, _ in updates], torch.stack([update for _, update in updates])


@pytest.mark.parametrize("noise", ["research", "secure"])
def test_contributions_are_bounded_summed_and_released_with_the_noise_that_is_accounted_for(noise):
    settings = dict(dataset="digits", batch_size=64, epochs=6, mechanism="per_example", sampler="poisson", noise=noise,
                    noise_multiplier=2.0, clipping_norm=0.5, delta=1e-5)
    long = torch.zeros(650)
    long[0] = 100.0
    sizes, updates = released(settings, long)
    assert len(updates) == 6 * 20 and len(set(sizes)) > 15
    noise_free = torch.tensor(sizes) * 0.5 / 64
    deviation = (updates * 64).double()
    deviation[:, 0] -= noise_free * 64
    assert deviation.std().item() == pytest.approx(1.0, rel=0.01) and deviation.mean().abs() < 0.02
    assert not math.isclose(deviation.std().item(), 0.9, rel_tol=0.05)
    _, nothing = released({**settings, "epochs": 1}, torch.full((650,), math.nan))
    assert torch.isfinite(nothing).all(), "a record that cannot be used contributes nothing"


SECURE = dict(**SMALL, mechanism="per_example", sampler="poisson", noise_multiplier=2.0, noise="secure")


def secure_run(trial, **settings):
    return Harness(Pack((TrialConfig(**{**SECURE, "trainer": trial, **settings}),)), load("digits"),
                   torch.device("cpu"))


@pytest.mark.parametrize("widths", [(64, 10), (64, 32, 10)])
def test_bits_of_a_row_depend_on_no_neighbour(widths):
    """Permuted, dropped and replaced, in chunks of `rows`, and whatever the size of the batch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(layer for n in itertools.pairwise(widths)
                                  for layer in (torch.nn.Tanh(), torch.nn.Linear(*n))))
    of_one = torch.func.vmap(torch.func.grad(lambda parameters, x, y: torch.nn.functional.cross_entropy(
        torch.func.functional_call(model, parameters, (x.flatten(),)), y)), in_dims=(None, 0, 0))

    def function(x, y):
        assert x.shape == (64, 1, 8, 8) and y.shape == (64,)
        return torch.cat([part.flatten(1) for part in of_one(dict(model.named_parameters()), x, y).values()], 1)

    n_parameters = sum(parameter.numel() for parameter in model.parameters())

    @trainer("sized", version=1, parameters=lambda trial: n_parameters, per_record="a test")
    def sized(trial, device):
        yield

    run = secure_run("sized")
    inputs, labels = run._tried_records(100)
    records = inputs.view(150, 1, 8, 8)
    expected = run.context.rows(function, records, labels)
    assert expected.shape == (150, n_parameters)
    torch.testing.assert_close(expected[64:128], function(records[64:128], labels[64:128]))
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        taken = torch.randperm(150, generator=generator)[:int(torch.randint(1, 151, (), generator=generator))]
        assert torch.equal(run.context.rows(function, records[taken], labels[taken]), expected[taken])
    assert run.context.rows(function, records[:0], labels[:0]).shape == (0, n_parameters)


def mixed(x, y):
    return x.flatten(1)[:, :10] - x.flatten(1)[:, :10].mean()


def alone(x, y):
    return x.flatten(1)[:, :10] * (y[:, None] + 1)


def noisy(x, y):
    return alone(x, y) + torch.randn(len(x), 10)


def hidden(trial):
    """A function that depends on neighbours from the second batch on, as one whose weights begin as zeros."""
    calls = trial.__dict__.setdefault("calls", [])
    calls.append(1)
    return lambda x, y: alone(x, y) + x.mean() * (len(calls) > 1)


def changed_unseen(rows):
    rows.data.mul_(2)
    return rows


HANDED = {"rows": lambda trial, epoch, *batch: trial.rows(alone, *batch),
          "own": lambda trial, epoch, *batch: alone(*batch),
          "mixed": lambda trial, epoch, *batch: trial.rows(mixed, *batch),
          "random": lambda trial, epoch, *batch: trial.rows(noisy, *batch),
          "in place": lambda trial, epoch, *batch: trial.rows(alone, *batch).add_(1),
          "data": lambda trial, epoch, *batch: changed_unseen(trial.rows(alone, *batch)),
          "hidden at first": lambda trial, epoch, *batch: trial.rows(hidden(trial), *batch),
          "prepared as a batch": lambda trial, epoch, x, y: trial.rows(alone, x - x.mean(0), y),
          "repeated": lambda trial, epoch, x, y: trial.rows(alone, x[:1].expand_as(x), y),
          "copy": lambda trial, epoch, *batch: trial.rows(alone, *batch).clone(),
          "changed": lambda trial, epoch, *batch: trial.rows(alone, *batch) + 1,
          "old": lambda trial, epoch, *batch: trial.__dict__.setdefault("first", trial.rows(alone, *batch)),
          "late": lambda trial, epoch, *batch: alone(*batch) if epoch else trial.rows(alone, *batch)}


@pytest.mark.parametrize("how", HANDED)
def test_last_bits_of_rows_are_covered_where_they_come_from_rows_and_it_is_tagged(how):
    @trainer("handing", version=1, parameters=lambda trial: 10, per_record="a test")
    def handing(trial, device):
        for epoch in range(trial.epochs):
            for batch in trial.batches():
                trial.release(HANDED[how](trial, epoch, *batch))
            yield lambda x: x.new_zeros(len(x), 10)

    run = secure_run("handing", sampler="shuffled")
    tags = [run.run_epoch()[0].tags for _ in range(3)]
    assert "if rows are those of trial.rows" in tags[0]["privacy.notes"]
    assert "whether the last bits of its rows are covered" in tags[0][DESCRIPTION]
    covered = [told.get("privacy.certified") for told in tags]
    not_covered, is_covered = "up to rounding", ["true", None, None]
    assert covered == {"rows": is_covered, "copy": is_covered, "late": ["true", not_covered, not_covered]}.get(
        how, [not_covered] * 3)
    for told, certified in zip(tags, covered, strict=True):
        assert ("last bits not covered" in told.get("privacy.notes", "")) == (certified == not_covered)
    if how == "own":
        research = secure_run("handing", sampler="shuffled", noise="research")
        assert research.run_epoch()[0].tags["privacy.certified"] == "simulated"


@pytest.mark.parametrize(("misuse", "message"), [
    ("twice", "release: once for each batch"),
    ("shape", r"release: must be floating point \[n, 650\], .* got torch.float32 \[\d+, 649\] for"),
    ("skip", "batches: every batch must be released"), ("part", "yields after 1 of 20 batches were released"),
    ("again", "batches: must be called once"),
    ("late", "batches: must be called once per epoch, .* or one after the last"),
    ("records", "batches, rows and release are of trainers that hand in")])
def test_releases_that_are_not_accounted_for_are_refused(misuse, message):
    def use(trial):
        for number, (x, _) in enumerate(trial.batches()):
            rows = torch.zeros(len(x), 650)
            if misuse != "skip":
                trial.release(rows[:, 1:] if misuse == "shape" else rows)
            if misuse == "twice":
                trial.release(rows)
            if misuse == "part" or (misuse == "again" and number == 19):
                break
        if misuse == "again":
            next(trial.batches())

    kind = {} if misuse == "records" else dict(parameters=lambda trial: 650, per_record="so")

    @trainer("misused", version=1, **kind)
    def misused(trial, *rest):
        for _ in range(trial.epochs if misuse == "late" else 1):
            use(trial)
            yield lambda x: x.new_zeros(len(x), 10)
        use(trial)

    trial = TrialConfig(**SMALL, trainer="misused", **({} if misuse == "records" else dict(
        mechanism="per_example", sampler="poisson", noise_multiplier=1.0)))
    with pytest.raises(TrainerError, match=message) as raised:
        last(trial)
    assert "test_trainer.py:" in raised.value.place


# what is refused of what it yields

@pytest.mark.parametrize(("how", "message"), {
    "nan": "yields nan: logits of records are not finite", "infinite": "yields nan",
    "classes": r"must give logits \[n, 10\] for n records, got \[16, 7\] for 16",
    "none": "yields None; must be a model",
    "few": "yields 1 times; must yield once for each of 3 epochs", "many": "yields more than once for each of 3 epochs",
    "statistics": r"layer '1' \(BatchNorm1d\) has statistics of whole batches", "batch": "change by .* with the batch",
    "metric": "yields metric 'loss' that is no finite number, got nan",
    "metrics": "yields metrics that are no dict of numbers by name, got a float",
}.items())
def test_what_a_trainer_yields_is_refused_with_its_file_and_line(how, message):
    with pytest.raises(TrainerError, match=f"trainer 'wrong' .*{message}") as raised:
        last(TrialConfig(**SMALL, trainer="wrong", how=how))
    line = one_line(raised.value)
    number = int(line.rpartition("some_trainers.py:")[2].rstrip(")"))
    assert (DATA / "some_trainers.py").read_text().splitlines()[number - 1].strip().startswith("yield")


def test_what_an_error_has_of_records_is_not_said_of_trials_that_withhold_it():
    @trainer("telling", version=1, calibrates="noise_multiplier", public={"loss": "a test"},
             event=lambda trial: GaussianDpEvent(trial.noise_multiplier))
    def telling(trial, records, labels, device):
        if trial.seed:
            raise ValueError(f"the first record is {records[0].sum()}")
        yield Epoch(lambda x: x.new_zeros(len(x), 10), {"loss": torch.tensor(3.25)})

    for seed, public in ((0, "TrainerError: trainer 'telling' yields metric 'loss' that is no finite number (test_"),
                         (1, "TrainerFailed (test_trainer.py:")):
        for disclosure, said in (("noisy", False), ("plain", True)):
            trial = TrialConfig(**SMALL, trainer="telling", noise_multiplier=9.0, private_metrics=disclosure, seed=seed)
            (result,) = epochs(Pack((trial,)), _packs)
            assert ("3.25" in result["error"] or "first record" in result["error"]) == said
            assert said or result["error"].startswith(public)


def test_an_exception_names_the_trainers_line_and_no_line_of_a_library():
    with pytest.raises(TrainerFailed, match="trainer 'wrong': ValueError: no batch today") as raised:
        last(TrialConfig(**SMALL, trainer="wrong", how="raise"))
    lines = (DATA / "some_trainers.py").read_text().splitlines()
    number = next(n for n, text in enumerate(lines, 1) if "no batch today" in text)
    assert one_line(raised.value) == (f"TrainerFailed: trainer 'wrong': ValueError: no batch today "
                                      f"(some_trainers.py:{number})")


def test_an_exit_ends_the_trial_alone_and_settings_of_torch_are_put_back():
    @trainer("rude", version=1)
    def rude(trial, records, labels, device):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        yield lambda x: x.new_zeros(len(x), 10)
        assert torch.get_default_dtype() == torch.float64 and not torch.is_grad_enabled(), "it finds what it set"
        sys.exit(0)

    with pytest.raises(TrainerFailed, match="trainer 'rude': SystemExit: 0"):
        last(TrialConfig(**SMALL, trainer="rude"))
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()


def test_what_a_trainer_sets_for_all_of_torch_is_its_own():
    before, seen = torch_settings(), []

    @trainer("setting", version=1)
    def setting_all(trial, records, labels, device):
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        torch.set_default_device("meta")
        with torch.autocast("cpu"), torch.no_grad():
            within = torch_settings()
            for _ in range(trial.epochs):
                yield lambda x: seen.append(torch_settings() == within) or x.new_zeros(len(x), 10)
                assert torch_settings() == within
        assert sum(one != other for one, other in zip(within, before, strict=True)) == 6

    after = [torch_settings() for _ in train(Pack((TrialConfig(**SMALL, trainer="setting"),)), load("digits"))]
    assert after == [before] * 3
    assert all(seen[:8]) and len(seen) > 8, "its models have them, too; the last one is evaluated after its end"


def test_the_trainer_is_closed_where_it_stands():
    closed = []

    @trainer("closing", version=1)
    def closing(trial, records, labels, device):
        try:
            for _ in range(trial.epochs):
                yield lambda x: x.new_zeros(len(x), 10)
        finally:
            closed.append(True)

    run = train(Pack((TrialConfig(**SMALL, trainer="closing"),)), load("digits"))
    next(run)
    run.close()
    assert closed == [True]


def test_packages_that_are_missing_are_told_before_training(tmp_path):
    @trainer("needy", version=1, requires=("no_such_package",))
    def needy(trial, records, labels, device):
        yield

    trial = TrialConfig(**SMALL, trainer="needy")
    with pytest.raises(ConfigError, match="trainer: 'needy' needs the package 'no_such_package', .* not installed on"):
        prepare_node([trial], None, tmp_path, tmp_path / "log")
    with pytest.raises(ConfigError, match="no_such_package"):
        last(trial)


def test_a_module_gets_every_mode_back_that_its_trainer_gave_it():
    body, head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)), torch.nn.Linear(64, 10)
    model = torch.nn.Sequential(torch.nn.Flatten(), body, torch.nn.Sequential(body), head)  # a part of two modules
    seen = []

    @trainer("frozen", version=1)
    def frozen(trial, records, labels, device):
        body.register_forward_hook(lambda *_: seen.append(any(module.training for module in model.modules())))
        model.train()
        body.eval()
        for _ in range(trial.epochs):
            yield model
            assert model.training and head.training and not any(module.training for module in body.modules())
        body[1].train()
        model.training = False

    last(TrialConfig(**SMALL, trainer="frozen"))
    assert not any(seen) and body[1].training and not model.training


class Odd(torch.nn.Module):
    """A linear model with something else in its state."""

    def __init__(self, **buffers):
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x):
        return self.linear(x.flatten(1).to(self.linear.weight.dtype))


class Extra(Odd):
    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        pass


class Wrapping(torch.nn.Module):
    """Its attribute has the name that Opacus gives to what it wraps."""

    def __init__(self):
        super().__init__()
        self._module, self.scale = Odd(), torch.nn.Parameter(torch.ones(10))

    def forward(self, x):
        return self._module(x) * self.scale


class Partial(Odd):
    def state_dict(self, *args, **options):
        return {"bias": super().state_dict(*args, **options)["linear.bias"]}


def shared_and_transposed():
    model = Odd()
    model.again = model.linear
    model.linear.weight = torch.nn.Parameter(torch.randn(64, 10).T)
    return model


@pytest.mark.parametrize("make", [
    lambda: Odd(mask=torch.full((3, 3), -math.inf).triu(1)), lambda: Odd().bfloat16(), lambda: Odd().double(),
    lambda: Odd(small=torch.ones(2).to(torch.float8_e4m3fn)), lambda: Odd(waves=torch.ones(2, dtype=torch.complex64)),
    lambda: Odd(sparse=torch.eye(3).to_sparse()), shared_and_transposed, Partial, Wrapping,
    lambda: Odd(image=torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))])
def test_weights_of_every_kind_are_stored_as_they_are(make, tmp_path):
    torch.manual_seed(0)
    model = make()

    @trainer("odd_kinds", version=1)
    def odd_kinds(trial, records, labels, device):
        for _ in range(trial.epochs):
            yield model

    save_file(last(TrialConfig(**SMALL, trainer="odd_kinds")).outcome.weights, tmp_path / "weights.safetensors")
    stored = load_file(tmp_path / "weights.safetensors")
    assert stored.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        back = torch.from_numpy(stored[name]).to(value.dtype)
        assert torch.equal(back, value.to_dense()) if value.dtype.itemsize > 1 else torch.equal(
            back.float(), value.float())


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Odd(wide=torch.ones(2, dtype=torch.complex128)), "with 'wide' in its state, .* got complex128"),
    (lambda: Odd(empty=torch.ones(2, device="meta")), "with 'empty' in its state, .* got Tensor"),
    (Extra, "with '_extra_state' in its state, .* yield a function of records in its place, .* got dict")])
def test_what_no_file_of_weights_holds_is_refused(make, message):
    @trainer("odd_kinds", version=1)
    def odd_kinds(trial, records, labels, device):
        yield make()

    with pytest.raises(TrainerError, match=message):
        last(TrialConfig(**SMALL, trainer="odd_kinds"))


# going on

def test_a_state_comes_back_as_it_was():
    state = {"model": {"w": torch.arange(3.0), "half": torch.ones(2, dtype=torch.bfloat16),
                       "eighth": torch.ones(2).to(torch.float8_e5m2)}, "n": 2.5, "of": "x",
             "optimizer": {0: [torch.eye(2), (1, None, True)]}}
    tensors = {}
    back = unpacked_state(packed_state(state, tensors), {name: value.numpy() for name, value in tensors.items()})
    assert str(back) == str(state)
    for value, message in ((torch.nn.Linear(1, 1), "state: must be made of tensors, numbers, .* got Linear"),
                           (torch.eye(2).to_sparse(), "state: tensors must be dense, got torch.sparse_coo"),
                           (torch.ones(2, device="meta"), "state: tensors must have a type .* got Tensor")):
        with pytest.raises(TrainerError, match=message):
            packed_state({"model": value}, {})


@pytest.mark.parametrize(("settings", "kept"), [
    ({}, True), ({"trainer": "prelude"}, True), ({"trainer": "by_globals"}, False),
    ({"trainer": "masked", "mechanism": "per_example", "sampler": "poisson"}, True),
    ({"trainer": "rows", "mechanism": "per_example", "sampler": "poisson"}, False)])
def test_a_trial_goes_on_from_its_state_with_the_same_bits_or_starts_again(tmp_path, settings, kept):
    pack, checkpoints = Pack((of(PLAIN, **settings),)), Checkpoints(tmp_path, 0.0)
    options = dict(device="cpu", threads=1, data_folder=None, checkpoints=checkpoints)
    whole = [record for records in train_pack(pack, **options) for record in records]
    run = train_pack(pack, **options)
    next(run), next(run), next(run) if kept else None
    run.close()
    assert checkpoints.path(pack).exists() == kept
    rest = [record for records in train_pack(pack, **options) for record in records]
    assert [record.epoch for record in rest] == [1, 2, 3]
    assert ("checkpoint" in rest[1].tags or "checkpoint" in rest[2].tags) == kept
    for name, weight in whole[-1].outcome.weights.items():
        assert np.array_equal(weight, rest[-1].outcome.weights[name])


def test_a_trainer_that_draws_from_elsewhere_asks_before_it_draws_again(tmp_path):
    pack = Pack((of(PLAIN, trainer="elsewhere"),))
    options = dict(device="cpu", threads=1, data_folder=None, checkpoints=Checkpoints(tmp_path, 0.0))
    assert "nothing of it is recorded here" in privacy_tags(pack.shared)["privacy.notes"]
    first, second = (next(train_pack(pack, **options)) for _ in range(2))
    assert isinstance(first, Draw) and isinstance(second, Draw) and first.name != second.name and first.epoch == 0


# in a sweep

def test_a_sweep_of_trainers_tracks_fails_alone_reports_and_tells_of_edits(tmp_path, monkeypatch, capsys, only_svg,
                                                                          in_process):
    monkeypatch.chdir(tmp_path)
    source = (DATA / "some_trainers.py").read_text()
    kept = source.split('@trainer("by_globals"')[0] + '@trainer("wrong"' + source.split('@trainer("wrong"')[1]
    Path("mine.py").write_text(kept.replace('@trainer("plain"', '@trainer("mine"').replace('@trainer("wrong"',
                                                                                          '@trainer("bad"'))
    text = """
    name: mine
    plugins: [mine]
    base: {dataset: digits, batch_size: 64, epochs: 2}
    cases:
      - {base: {trainer: mine, target_epsilon: 4, learning_rate: 0.5}, grid: {seed: [0, 1]}}
      - base: {trainer: bad, how: raise}
      - base: {algorithm: bp, hidden: [], mechanism: per_example, sampler: poisson, noise_multiplier: 2}
        grid: {seed: [0, 1]}
    """
    Path("mine.yaml").write_text(text)
    assert main(["sweep", "mine.yaml", "--dry-run"]) == 0
    assert "trainers: bad, mine, whose time is not in the estimate" in capsys.readouterr().out
    assert main(["sweep", "mine.yaml", "--workers", "1"]) == 1
    said = capsys.readouterr()
    assert "4 finished, 1 failed" in said.out + said.err
    reader = Reader(root=tmp_path / "mlruns")
    reader.attach("mine")
    runs = {run.params["trainer"]: run for run in reader.runs() if "trainer" in run.params}
    mine = runs["mine"]
    assert mine.tags["privacy.certified"] == "stated" and mine.params["calibrated.noise_multiplier"]
    assert mine.metrics["epsilon/stated/pld"] <= 4 and len(mine.tags["plugin.mine"]) == 16
    assert set(reader.weights(mine)) == {"1.weight", "1.bias"}
    assert "no batch today (mine.py:" in runs["bad"].tags["failure"]
    with pytest.raises(ConfigError, match="trainer: 'mine' alone knows its network"):
        load_model(mine.run_id, reader)
    done = parse_experiment(text.replace("      - base: {trainer: bad, how: raise}\n", ""), tmp_path / "mine.yaml")
    Path("less.yaml").write_text(text.replace("      - base: {trainer: bad, how: raise}\n", ""))
    assert len(done.trials) == 4
    assert main(["report", "less.yaml"]) == 0
    page = Path("reports/mine/frontier.md").read_text()
    assert "With stars: ε is what the trainer states, accounted for here and checked by nobody (mine (stated))" in page
    table = Path("reports/mine/frontier.csv").read_text()
    assert "mine," in table and "softmax," in table and "stated" not in {line.split(",")[9] for line in table.split()}
    assert check_trainers(reader.runs(), done.trials) == []
    with monkeypatch.context() as patch:
        patch.setattr(PARTS["trainer"]["mine"], "event", staticmethod(
            lambda trial: PoissonSampledDpEvent(trial.sampling_rate / 2, GaussianDpEvent(trial.noise_multiplier))))
        with_noise.cache_clear()
        with pytest.raises(ConfigError, match="event: of every step .*, and when trial .* was trained it was"):
            check_trainers(reader.runs(), done.trials)
    with_noise.cache_clear()


def test_a_stopped_generator_of_epochs_hands_out_the_failure_and_no_more():
    (said,) = epochs(Pack((TrialConfig(**SMALL, trainer="wrong", how="none"),)),
                     lambda pack: (records for records in _packs(pack)))
    assert said["records"] == [] and "yields None" in said["error"] and "some_trainers.py:" in said["error"]


def _packs(pack):
    from pipeline.learning.run import train as of_pack

    return of_pack(pack, load("digits"))


def test_settings_of_a_trainer_stand_in_experiment_files(tmp_path):
    text = "base: {dataset: digits, trainer: rows, mechanism: per_example, noise_multiplier: 1, arithmetic: integer}"
    with pytest.raises(ConfigError, match="arithmetic: is not used with trainer 'rows', got integer"):
        parse_experiment(text, tmp_path / "e.yaml")
    rows = TrialConfig(**SMALL, trainer="rows", mechanism="per_example", noise_multiplier=1.0, arithmetic="integer")
    epochs = [record.epoch for (record,) in _packs(Pack((rows,)))]
    assert epochs == [1, 2, 3], "it trains in float32"
    experiment = parse_experiment("base: {dataset: digits, trainer: pure, epochs: 1}\ngrid: {scale: [1, 2]}",
                                  tmp_path / "e.yaml")
    assert [trial.scale for trial in experiment.trials] == [1.0, 2.0]
    with pytest.raises(ConfigError, match="scale: is not used with trainer 'built_in'.*use trainer 'pure'"):
        parse_experiment("base: {dataset: digits, scale: 2}", tmp_path / "e.yaml")
