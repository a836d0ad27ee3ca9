"""Trainers of users (docs/trainers.md): what they are handed, what is accounted for, and what is refused."""

import importlib
import itertools
import math
import random
import sys
from collections import OrderedDict
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
from pipeline.experiment.plugins import LOADED
from pipeline.experiment.stopping import Selection
from pipeline.learning import run as learning
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
OURS = dict(mechanism="per_example", sampler="poisson", noise_multiplier=1.0)  # of trainers that hand in rows


@pytest.fixture(autouse=True)
def trainers(extensions, monkeypatch):
    monkeypatch.syspath_prepend(DATA)
    sys.modules.pop("some_trainers", None)  # what it entered was gone after the test before
    importlib.import_module("some_trainers")


def of(name="plain", **settings):
    plain = dict(learning_rate=0.5, noise_multiplier=1.0) if name == "plain" else {}
    return TrialConfig(**{**SMALL, "trainer": name, **plain, **settings})


def last(trial):
    return [*train(Pack((trial,)), load("digits"))][-1]


def harness(trial):
    return Harness(Pack((trial,)), load("digits"), torch.device("cpu"))


def from_digits(pack):
    return learning.train(pack, load("digits"))


def zeros(x):
    return x.new_zeros(len(x), 10)


def entered(works=None, name="mine", **settings):
    """Register a trainer, which is idle where no function is given."""
    def idle(trial, *handed):
        for _ in range(trial.epochs):
            yield zeros

    trainer(name, **{"version": 1, **settings})(works or idle)


# what a trial of a trainer is

def test_name_version_and_settings_are_in_the_key_and_own_trials_keep_theirs():
    own = TrialConfig(dataset="digits")
    trials = [of(), of(learning_rate=0.4), of(trainer="by_globals"), of(trainer_version=2)]
    assert len({trial.trial_key for trial in trials}) == 4 and "trainer" not in own.canonical()
    assert [TrialConfig(**trial.canonical()).trial_key for trial in trials] == [trial.trial_key for trial in trials]
    check_promises([trials[0]])
    for slot in ("network", "loss", "optimizer", "mechanism", "sampler"):
        assert "by_trainer" not in list(PARTS[slot]) and "by_trainer" in PARTS[slot]
        with pytest.raises(ConfigError, match=f"{slot}: 'by_trainer' is what trials of a trainer have"):
            TrialConfig(dataset="digits", **{slot: "by_trainer"})


def parsed(base):
    return parse_experiment(f"base: {base}", Path("e.yaml"))


def accounted(event):
    entered(name="odd", event=event)
    account(of("odd"))


@pytest.mark.parametrize(("refused", "message"), [
    (lambda: of(algorithm="bp"), "algorithm: is the affair of trainer 'plain', got 'bp'"),
    (lambda: of(mechanism="per_example"), "mechanism: is the affair of trainer 'plain'"),
    (lambda: of(noise="secure"), "noise: nobody checked what trainer 'plain' states"),
    (lambda: of(target_epsilon=3.0), "target_epsilon: sets noise_multiplier; give one of the two, got target_"),
    (lambda: of("rows"), "mechanism: must be one of per_example, automatic with trainer 'rows', .* got 'none'"),
    (lambda: of("answers", canaries=30), "canaries: are records that take part or not"),
    (lambda: TrialConfig(algorithm="plain"), "write `trainer: plain` and leave algorithm out"),
    (lambda: check_promises([of(trainer_version=2)]), "trainer_version: must be 1, .* 'plain' as it is loaded, got 2"),
    (lambda: check_promises([TrialConfig(**SMALL, trainer="plain")]), "noise_multiplier: must be given with trainer"),
    (lambda: entered(version=0), "version: must be a whole number >= 1, got 0"),
    (lambda: entered(per="run"), "per: must be one of step, epoch, got 'run'"),
    (lambda: entered(relation="swap"), "relation: must be one of add/remove, replace-one, got 'swap'"),
    (lambda: entered(randomness="os"), "randomness: must be one of seed, own, got 'os'"),
    (lambda: entered(calibrates="noise_multiplier"), "event: must be given with calibrates"),
    (lambda: entered(calibrates="batch_size", event=len), "calibrates: must be a setting with a number"),
    (lambda: entered(per_record="so"), "per_record: needs `parameters`"),
    (lambda: entered(parameters=len), "per_record: must say why"),
    (lambda: entered(settings={"nope": None}), "settings: must be fields of a trial, got 'nope'"),
    (lambda: entered(lambda *handed: None), "must be a generator function"),
    (lambda: entered(name="bp"), "algorithm: 'bp' is taken"),
    (lambda: accounted(lambda trial: 3), r"event: must be a dp_.*DpEvent, got 3 of trainer 'odd' \(test_trainer.py:\d"),
    (lambda: accounted(lambda trial: UnsupportedDpEvent()), "event: no accountant takes UnsupportedDpEvent"),
    (lambda: accounted(lambda trial: GaussianDpEvent(1 / 0)), r"of trainer 'odd' fails with ZeroDiv.*trainer.py:\d"),
    (lambda: parsed("{dataset: digits, scale: 2}"), "scale: is not used with trainer 'built_in'.*use trainer 'pure'"),
    (lambda: parsed("{trainer: rows, mechanism: per_example, noise_multiplier: 1, arithmetic: integer}"),
     "arithmetic: is not used with trainer 'rows', got integer"),
    (lambda: event_of(of(trainer_version=2), 1), "trainer_version: version 2 of trainer 'plain' states what")])
def test_what_cannot_be_is_refused_before_training(refused, message):
    with pytest.raises(ConfigError, match=message):
        refused()


# epsilon

def test_poisson_batches_with_gaussian_noise_cost_what_they_cost_here_and_a_target_sets_noise():
    stated, certified = (account(trial)[0] for trial in (of(), TrialConfig(**SMALL, **OURS, algorithm="bp", hidden=())))
    assert stated.value == certified.value and (stated.kind, certified.kind) == ("stated", "certified")
    assert stated.metric_name == "epsilon/stated/pld" and "nobody here checked it" in stated.note
    for trial in (of(noise_multiplier=0.0, target_epsilon=2.0), of("pure", target_epsilon=2.0)):
        assert 0.99 * 2 <= min(epsilon.value for epsilon in account(trial)) <= 2
    assert with_noise(trial).scale == pytest.approx(3 / 2, rel=0.01), "three epochs of 1/scale each, at a tiny delta"
    entered(name="bare")
    assert account(of("bare")) == [] and privacy_tags(of("bare"))["privacy.certified"] == "false"


def test_events_are_accounted_for_by_every_accountant_that_takes_them():
    laplace = of("pure", scale=2.0)
    assert event_of(laplace, 3) == PrivacyEvent(LaplaceDpEvent(2.0), 3, 3, "add/remove")
    assert event_of(laplace, 3).accountants == ("pld", "rdp/improved")
    by_name = {epsilon.variant: epsilon.value for epsilon in account(laplace)}
    experiment = parsed("{dataset: digits, batch_size: 64, epochs: 3, trainer: pure, scale: 2}")
    assert any("scale = 2 " in line for line in as_lines(experiment))
    assert by_name["pld"] <= 1.5 + 1e-3 and by_name["pld"] <= by_name["rdp/improved"]
    assert account(of("answers"))[0].value == pytest.approx(3.0, rel=1e-3), "three times epsilon 1"
    assert epoch_cost(of(private_metrics="noisy"), ORDERS[3]) > 0
    repeated = SelfComposedDpEvent(PoissonSampledDpEvent(1.0, GaussianDpEvent(100.0)), 10**4)
    inside = PrivacyEvent(repeated, 1, 1, "add/remove")  # what transforms round is taken from delta there, too
    assert inside.value(1e-9, "pld") >= gdp_eps(1.0, 1e-9) and inside.value(1e-13, "pld") == math.inf


def test_what_is_stated_makes_a_selection_stated_whatever_else_is_certified():
    certified = [of("rows", **OURS, seed=seed) for seed in (0, 1)]
    one, both, noop = (selected_epsilon([*certified, *more], Selection())
                       for more in ([], [of("pure", scale=2.0)], [of("pure", scale=1e6)]))
    assert (one.kind, both.kind) == ("selected", "stated") and both.value > one.value
    assert noop.value == pytest.approx(one.value, rel=0.02)


# what it is handed

def test_a_trainer_sees_its_training_records_and_nothing_else():
    seen = {}

    def watching(trial, records, labels, device):
        seen.update(records=records, labels=labels, rate=trial.sampling_rate)
        yield zeros

    entered(watching)
    plain, audited = harness(of("mine")), harness(of("mine", canaries=60, delta=1e-5))
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
    trials = [of(trainer=name, seed=seed) for name in ("plain", "by_globals") for seed in (0, 1)]
    first = [last(trial) for trial in trials]
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    runs = [train(Pack((trial,)), load("digits")) for trial in trials]
    again = [records[-1] for records in zip(*itertools.zip_longest(*runs), strict=True)]  # an epoch of each in turn
    for one, other in zip(first, again, strict=True):
        assert all(np.array_equal(w, other.outcome.weights[name]) for name, w in one.outcome.weights.items())
    assert len({record.outcome.weights["1.weight"].tobytes() for record in first}) == 4
    assert first[0].metrics["trainer/norm"] > 0


def test_global_generators_are_independent_and_put_back():
    def state():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    before, own, drawn = state(), GlobalRandomness(0, torch.device("cpu")), []
    for _ in range(2):
        with own.installed():
            drawn += [torch.randint(0, 1024, (500,)).numpy(), np.random.randint(0, 1024, 500),
                      np.array([random.randrange(1024) for _ in range(500)])]
        assert state() == before
    assert all(np.mean(one == other) < 0.02 for one, other in itertools.combinations(drawn, 2))


@pytest.mark.parametrize(("name", "stream"), [("plain", "evaluation"), ("plain", "split"), ("plain", "mine"),
                                              ("rows", "release"), ("rows", "noise")])
def test_a_trainer_draws_from_no_stream_that_the_noise_here_comes_from(name, stream):
    context = harness(of(name, **OURS)).context if name == "rows" else harness(of()).context
    assert context.generator("init") is context.generator("init", "cpu:0")
    with pytest.raises(TrainerError, match=f"generator: must be one of .*init, feedback, got '{stream}'"):
        context.generator(stream)


def test_no_private_record_decides_whether_a_trial_fails():
    """A model gives nan for one validation record of class 0, and a metric that is not public is nan, too."""
    data = load("digits")

    def strange(trial, records, labels, device):
        for _ in range(trial.epochs):
            yield Epoch(model, {"loss": math.nan, "shape": object(), "shown": 1.0})

    def model(x):
        return torch.where((x == alone).flatten(1).all(1)[:, None], math.nan, torch.eye(10)[0])

    entered(strange, calibrates="noise_multiplier", public={"shown": "a test"},
            event=lambda trial: GaussianDpEvent(trial.noise_multiplier))
    for disclosure in ("noisy", "withheld"):
        trial = of("mine", noise_multiplier=9.0, private_metrics=disclosure)
        run = harness(trial)
        of_class_0 = run.validation[0][data.train_y[run.validation[0]] == 0]
        alone = run.train_inputs.batch(of_class_0[:1]).view(1, 1, 8, 8)
        (record,) = run.run_epoch()
        assert run.evaluation.count(run, "validation")[0, 1].tolist() == [len(of_class_0) - 1] + [0] * 9
        assert {name for name in record.metrics if name.startswith("trainer/")} == {"trainer/shown"}
        assert ("validation/accuracy" in record.metrics) == (disclosure == "noisy")
    alone = run.test_inputs.batch(torch.tensor([0])).view(1, 1, 8, 8)
    with pytest.raises(TrainerError, match="logits of records are not finite"):
        run.run_epoch()


# certified trainers

@pytest.mark.parametrize("sampler", ["poisson", "shuffled"])
def test_contributions_train_as_this_packages_softmax_regression(sampler):
    settings = {**SMALL, **OURS, "sampler": sampler, "learning_rate": 0.5}
    theirs = TrialConfig(**settings, trainer="rows")
    own = TrialConfig(**settings, algorithm="bp", hidden=(), momentum=0.0)
    assert [e.value for e in account(theirs)] == [e.value for e in account(own)]
    assert "stated by the extension 'rows'" in privacy_tags(theirs)["privacy.notes"]
    assert last(theirs).metrics["test/accuracy"] == pytest.approx(last(own).metrics["test/accuracy"], abs=0.06)


@pytest.mark.parametrize("noise", ["research", "secure"])
def test_contributions_are_bounded_summed_and_released_with_the_noise_that_is_accounted_for(noise):
    rows, updates = torch.zeros(650), []
    rows[0] = 100.0

    def fixed(trial, device):
        for _ in range(trial.epochs):
            for x, _ in trial.batches():
                updates.append((len(x), trial.release(rows.expand(len(x), -1))))
            yield zeros

    entered(fixed, parameters=lambda trial: 650, per_record="constant")
    trial = of("mine", **{**OURS, "noise_multiplier": 2.0}, epochs=6, noise=noise, clipping_norm=0.5, delta=1e-5)
    last(trial)
    sizes = torch.tensor([n for n, _ in updates])
    assert len(updates) == 6 * 20 and len(sizes.unique()) > 15
    deviation = torch.stack([update for _, update in updates]).double() * 64
    deviation[:, 0] -= sizes * 0.5
    assert deviation.std().item() == pytest.approx(1.0, rel=0.01) and deviation.mean().abs() < 0.02
    rows[:] = math.nan
    last(of("mine", **OURS, epochs=1, noise=noise))
    assert torch.isfinite(updates[-1][1]).all(), "a record that cannot be used contributes nothing"
    del updates[:]
    last(of("mine", **OURS, epochs=1, noise=noise, batch_size=1, train_records=300))
    empty = [update for n, update in updates if not n]
    assert 0.25 < len(empty) / len(updates) < 0.5 and torch.stack(empty).any(1).all(), "exp(-1) of them, with noise"


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
    entered(parameters=lambda trial: n_parameters, per_record="a test")
    run = harness(of("mine", **OURS, noise="secure"))
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


def alone(x, y):
    return x.flatten(1)[:, :10] * (y[:, None] + 1)


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
          "mixed": lambda trial, epoch, *batch: trial.rows(lambda x, y: alone(x, y) - x.mean(), *batch),
          "random": lambda trial, epoch, *batch: trial.rows(lambda x, y: alone(x, y) + torch.randn(len(x), 10), *batch),
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
    def handing(trial, device):
        for epoch in range(trial.epochs):
            for batch in trial.batches():
                trial.release(HANDED[how](trial, epoch, *batch))
            yield zeros

    entered(handing, parameters=lambda trial: 10, per_record="a test")
    settings = {**OURS, "sampler": "shuffled"}
    run = harness(of("mine", **settings, noise="secure"))
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
        assert harness(of("mine", **settings)).run_epoch()[0].tags["privacy.certified"] == "simulated"


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

    def misused(trial, *rest):
        for _ in range(trial.epochs if misuse == "late" else 1):
            use(trial)
            yield zeros
        use(trial)

    kind, settings = ({}, {}) if misuse == "records" else (dict(parameters=lambda trial: 650, per_record="so"), OURS)
    entered(misused, **kind)
    with pytest.raises(TrainerError, match=message) as raised:
        last(of("mine", **settings))
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
    "raise": ": ValueError: no batch today"}.items())
def test_what_a_trainer_yields_or_raises_is_refused_with_its_line_and_no_line_of_a_library(how, message):
    with pytest.raises((TrainerError, TrainerFailed), match=f"trainer 'wrong'.*{message}") as raised:
        last(of("wrong", how=how))
    number = int(one_line(raised.value).rpartition("(some_trainers.py:")[2].rstrip(")"))
    line = (DATA / "some_trainers.py").read_text().splitlines()[number - 1].strip()
    assert line.startswith("raise ValueError" if how == "raise" else "yield")


def test_what_an_error_has_of_records_is_not_said_of_trials_that_withhold_it():
    def telling(trial, records, labels, device):
        if trial.seed:
            raise ValueError(f"the first record is {records[0].sum()}")
        yield Epoch(zeros, {"loss": torch.tensor(3.25)})

    entered(telling, calibrates="noise_multiplier", public={"loss": "a test"},
            event=lambda trial: GaussianDpEvent(trial.noise_multiplier))
    for seed, public in ((0, "TrainerError: trainer 'mine' yields metric 'loss' that is no finite number (test_"),
                         (1, "TrainerFailed (test_trainer.py:")):
        for disclosure, said in (("noisy", False), ("plain", True)):
            trial = of("mine", noise_multiplier=9.0, private_metrics=disclosure, seed=seed)
            (result,) = epochs(Pack((trial,)), from_digits)
            assert ("3.25" in result["error"] or "first record" in result["error"]) == said
            assert said or result["error"].startswith(public)


def test_what_a_trainer_sets_for_all_of_torch_is_its_own_and_an_exit_ends_its_trial_alone():
    before, seen, closed = torch_settings(), [], []

    def setting_all(trial, records, labels, device):
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        try:
            with torch.autocast("cpu"), torch.no_grad():
                within = torch_settings()
                assert sum(one != other for one, other in zip(within, before, strict=True)) == 7
                for _ in range(2):
                    yield lambda x: seen.append(torch_settings() == within) or x.new_zeros(len(x), 10)
                    assert torch_settings() == within, "it finds what it set"
                sys.exit(0)
        finally:
            closed.append(True)

    entered(setting_all)
    run = train(Pack((of("mine"),)), load("digits"))
    for _ in range(2):
        next(run)
        assert torch_settings() == before
    assert all(seen) and seen and not closed
    with pytest.raises(TrainerFailed, match="trainer 'mine': SystemExit: 0"):
        next(run)
    assert torch_settings() == before and closed
    run = train(Pack((of("mine"),)), load("digits"))
    next(run)
    run.close()
    assert len(closed) == 2, "it is closed where it stands"


def test_packages_that_are_missing_are_told_before_training(tmp_path):
    entered(requires=("no_such_package",))
    for begin in (lambda: prepare_node([of("mine")], None, tmp_path, tmp_path / "log"), lambda: last(of("mine"))):
        with pytest.raises(ConfigError, match="trainer: 'mine' needs the package 'no_such_package', .* not installed"):
            begin()


def test_a_module_gets_every_mode_back_that_its_trainer_gave_it():
    body, head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)), torch.nn.Linear(64, 10)
    model = torch.nn.Sequential(torch.nn.Flatten(), body, torch.nn.Sequential(body), head)  # a part of two modules
    seen = []

    def frozen(trial, records, labels, device):
        body.register_forward_hook(lambda *_: seen.append(any(module.training for module in model.modules())))
        model.train()
        body.eval()
        for _ in range(trial.epochs):
            yield model
            assert model.training and head.training and not any(module.training for module in body.modules())
        body[1].train()
        model.training = False

    entered(frozen)
    last(of("mine"))
    assert seen and not any(seen) and body[1].training and not model.training


def linear(kind=torch.nn.Sequential, **buffers):
    """A linear model with something else in its state."""
    model = kind(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    for name, value in buffers.items():
        model.register_buffer(name, value)
    return model


def shared_and_transposed():
    first = torch.nn.Linear(64, 64)
    first.weight = torch.nn.Parameter(torch.randn(64, 64).T)
    return torch.nn.Sequential(torch.nn.Flatten(), first, first, torch.nn.Linear(64, 10))


def of_kind(**methods):
    """A class of models with methods of its own."""
    return type("Kind", (torch.nn.Sequential,), methods)


@pytest.mark.parametrize("make", [
    lambda: linear(mask=torch.full((3, 3), -math.inf).triu(1), coarse=torch.ones(2, dtype=torch.bfloat16),
                   fine=torch.ones(2).double(), small=torch.ones(2).to(torch.float8_e4m3fn),
                   waves=torch.ones(2, dtype=torch.complex64), sparse=torch.eye(3).to_sparse(),
                   image=torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
    shared_and_transposed, lambda: torch.nn.Sequential(OrderedDict(_module=linear())),  # as Opacus calls what it wraps
    lambda: linear(of_kind(state_dict=lambda self, **options: {"bias": self[1].bias.detach()}))])
def test_weights_of_every_kind_are_stored_as_they_are(make, tmp_path):
    model = make()

    def odd_kinds(trial, records, labels, device):
        yield model

    entered(odd_kinds)
    save_file(last(of("mine", epochs=1)).outcome.weights, tmp_path / "weights.safetensors")
    stored = load_file(tmp_path / "weights.safetensors")
    assert stored.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        back = torch.from_numpy(stored[name]).to(value.dtype)
        assert torch.equal(back, value.to_dense()) if value.dtype.itemsize > 1 else torch.equal(
            back.float(), value.float())


@pytest.mark.parametrize(("make", "message"), [
    (lambda: linear(wide=torch.ones(2, dtype=torch.complex128)), "with 'wide' in its state, .* got complex128"),
    (lambda: linear(empty=torch.ones(2, device="meta")), "with 'empty' in its state, .* got Tensor"),
    (lambda: linear(of_kind(get_extra_state=lambda self: {"version": 3})),
     "with '_extra_state' in its state, .* yield a function of records in its place, .* got dict")])
def test_what_no_file_of_weights_holds_is_refused(make, message):
    def odd_kinds(trial, records, labels, device):
        yield make()

    entered(odd_kinds)
    with pytest.raises(TrainerError, match=message):
        last(of("mine"))


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
    ({"trainer": "masked", **OURS}, True), ({"trainer": "rows", **OURS}, False)])
def test_a_trial_goes_on_from_its_state_with_the_same_bits_or_starts_again(tmp_path, settings, kept):
    pack, checkpoints = Pack((of(**settings),)), Checkpoints(tmp_path, 0.0)
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
    pack = Pack((of(trainer="elsewhere"),))
    options = dict(device="cpu", threads=1, data_folder=None, checkpoints=Checkpoints(tmp_path, 0.0))
    assert "nothing of it is recorded here" in privacy_tags(pack.shared)["privacy.notes"]
    first, second = (next(train_pack(pack, **options)) for _ in range(2))
    assert isinstance(first, Draw) and isinstance(second, Draw) and first.name != second.name and first.epoch == 0


# in a sweep

@pytest.mark.slow
def test_a_sweep_of_trainers_and_networks_tracks_fails_alone_reports_and_tells_of_edits(
        tmp_path, monkeypatch, capsys, only_svg, in_process, digits):
    monkeypatch.chdir(tmp_path)
    source = (DATA / "some_trainers.py").read_text()
    kept = source.split('@trainer("by_globals"')[0] + '@trainer("wrong"' + source.split('@trainer("wrong"')[1]
    Path("mine.py").write_text(kept.replace('"plain"', '"mine"').replace('@trainer("wrong"', '@trainer("bad"'))
    Path("nets.py").write_text((DATA / "some_networks.py").read_text().split("class Counts")[0])
    failing = "  - base: {trainer: bad, how: raise}\n"
    text = f"""
name: mine
plugins: [mine, nets]
report: [frontier]
base: {{dataset: digits, batch_size: 64, epochs: 1, learning_rate: 0.5}}
cases:
  - base: {{trainer: mine, target_epsilon: 4}}
    grid: {{seed: [0, 1]}}
{failing}\
  - base: {{network: perceptron, algorithm: bp, mechanism: per_example, sampler: poisson, target_epsilon: 4}}
    grid: {{seed: [0, 1]}}  # each is a pack of its own
  - base: {{network: convolutions, algorithm: hybrid, mechanism: per_example, sampler: poisson, target_epsilon: 4,
           noise: secure}}
"""
    Path("mine.yaml").write_text(text)
    assert main(["sweep", "mine.yaml", "--dry-run"]) == 0
    assert "trainers: bad, mine, whose time is not in the estimate" in capsys.readouterr().out
    assert main(["sweep", "mine.yaml", "--workers", "1"]) == 1
    said = capsys.readouterr()
    assert "5 finished, 1 failed" in said.out + said.err
    reader = Reader(root=tmp_path / "mlruns")
    reader.attach("mine")
    runs = {run.params.get("trainer", run.params.get("network")): run for run in reader.runs()}
    mine, secure = runs["mine"], runs["convolutions"]
    assert mine.tags["privacy.certified"] == "stated" and mine.params["calibrated.noise_multiplier"]
    assert mine.metrics["epsilon/stated/pld"] <= 4 and len(mine.tags["plugin.mine"]) == 16
    assert set(reader.weights(mine)) == {"1.weight", "1.bias"}
    assert "no batch today (mine.py:" in runs["bad"].tags["failure"]
    with pytest.raises(ConfigError, match="trainer: 'mine' alone knows its network"):
        load_model(mine.run_id, reader)
    assert secure.tags["privacy.certified"] == "true" and "calibrated.noise_multiplier" in secure.params
    right = load_model(secure.run_id, reader)(digits.test_x).argmax(1) == digits.test_y
    assert right.float().mean().item() == pytest.approx(secure.metrics["test/accuracy"], abs=1e-6)
    Path("less.yaml").write_text(text.replace(failing, ""))
    trials = parse_experiment(Path("less.yaml").read_text(), tmp_path / "mine.yaml").trials
    assert main(["report", "less.yaml"]) == 0
    assert "bp," in Path("reports/mine/frontier.csv").read_text()
    page = Path("reports/mine/frontier.md").read_text()
    assert "With stars: ε is what the trainer states, accounted for here and checked by nobody (mine (stated))" in page
    assert check_trainers(reader.runs(), trials) == []
    monkeypatch.setitem(LOADED, "nets", "0" * 16)
    (*_, line) = check_trainers(reader.runs(), trials)
    assert "network '" in line and "its file was another" in line and "raise the version" in line
    monkeypatch.setattr(PARTS["trainer"]["mine"], "event", staticmethod(
        lambda trial: PoissonSampledDpEvent(trial.sampling_rate / 2, GaussianDpEvent(trial.noise_multiplier))))
    with_noise.cache_clear()
    with pytest.raises(ConfigError, match="event: of every step .*, and when trial .* was trained it was"):
        check_trainers(reader.runs(), trials)
    with_noise.cache_clear()


def test_settings_of_a_trainer_stand_in_experiment_files():
    trial = of("rows", **OURS, arithmetic="integer")
    assert [record.epoch for (record,) in from_digits(Pack((trial,)))] == [1, 2, 3], "it trains in float32"
    trials = parsed("{dataset: digits, trainer: pure, epochs: 1}\ngrid: {scale: [1, 2]}").trials
    assert [trial.scale for trial in trials] == [1.0, 2.0]
