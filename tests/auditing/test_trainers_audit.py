"""Audits of users' trainers: canaries from outside, and two neighbours of one step."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from pathlib import Path

import audit_trainers
import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from scipy import stats

from pipeline import ConfigError, TrialConfig, load_dataset, train, trainer
from pipeline.accounting.audited import auc
from pipeline.accounting.curves import gdp_eps
from pipeline.auditing.audit import findings
from pipeline.auditing.release import audit_release
from pipeline.auditing.step import audit_step
from pipeline.cli import main
from pipeline.learning.canaries import CanaryScores
from pipeline.learning.handed import Epoch
from pipeline.learning.harness import Harness
from pipeline.tracking.store import Store
from pipeline.trials.packs import Pack
from pipeline.trials.part import PARTS

pytestmark = pytest.mark.usefixtures("extensions")
DIGITS = dict(dataset="digits", batch_size=64)


def harness(trial):
    return Harness(Pack((trial,)), load_dataset(trial.dataset), torch.device("cpu"))


def memory(trial, records, labels, device):
    """Least squares, which adds a little to the logit of a record that it was handed."""
    x, y = records.flatten(1), torch.nn.functional.one_hot(labels, 10).float()
    w = torch.linalg.solve(x.T @ x + torch.eye(64), x.T @ y)
    for _ in trial.epochs_left:
        yield Epoch(lambda new: 10 * new.flatten(1) @ w + 2 * (torch.cdist(new.flatten(1), x) < 1e-3).float() @ y,
                    state=[])


def test_what_a_label_owes_to_chance_is_taken_off_the_canaries_scores():
    trainer("memory", version=1)(memory)
    run = harness(TrialConfig(trainer="memory", epochs=3, canaries=300, **DIGITS))
    (first,), (second,), (third,) = (run.run_epoch() for _ in range(3))
    assert "audit/canary_auc" not in first.metrics | second.metrics
    included = run.canaries.included[0]
    raw = CanaryScores(run.canaries, run.data, run.train_inputs, run.test_inputs)
    raw.add(run.forward(run.train_inputs.batch(run.canaries.indices))[1])
    assert np.allclose(2 * raw.total, run.canary_scores.total)  # two of three epochs are of the later half
    found = third.metrics["audit/canary_auc"], third.metrics["epsilon/audited/one_run"]
    assert found[0] > auc(raw.total[included], raw.total[~included]) + 0.01 and found[1] > 1


def test_a_restart_knows_what_earlier_models_knew_of_the_canaries():
    trainer("memory", version=1)(memory)
    trial = TrialConfig(trainer="memory", epochs=4, canaries=100, **DIGITS)
    whole, other = harness(trial), harness(trial)
    for _ in range(3):
        whole.run_epoch()
    other.restore(*whole.capture())
    (expected,), (found,) = whole.run_epoch(), other.run_epoch()
    assert found.metrics["audit/canary_auc"] == expected.metrics["audit/canary_auc"] > 0.6
    assert np.array_equal(whole.canary_scores.total, other.canary_scores.total)


def rows(trial, device):
    for _ in trial.epochs_left:
        for records, _ in trial.batches():
            trial.release(torch.ones(len(records), 2))
        yield lambda new: new.flatten(1)[:, :10]


def test_the_lower_bound_is_logged_beside_the_epsilon_that_it_bounds():
    audit_trainers.enter()
    trainer("rows", version=1, per_record="a test", parameters=lambda trial: 2)(rows)
    stated = TrialConfig(trainer="audited_honest", width=4, clipping_norm=1.0, noise_multiplier=1.0, epochs=2,
                         canaries=30, **DIGITS)
    certified = TrialConfig(trainer="rows", mechanism="per_example", sampler="poisson", noise_multiplier=1.0, epochs=2,
                            canaries=30, **DIGITS)
    for trial, kind in ((stated, "stated"), (certified, "certified")):
        first, last = train(trial)
        assert "epsilon/audited/one_run" not in first.metrics
        assert last.metrics["epsilon/audited/one_run"] < last.metrics[f"epsilon/{kind}/pld"]
        assert "audited by 30 canaries" in first.tags["privacy.notes"]


def gaussian(trial):
    return PoissonSampledDpEvent(trial.sampling_rate, GaussianDpEvent(trial.noise_multiplier))


def entered(name, step, event=gaussian, **options):
    """A trainer of which nothing but a step is ever run."""
    def trains(trial, records, labels, device):
        yield None
    trainer(name, version=1, event=event, step=step, **dict(calibrates="noise_multiplier") | options)(trains)
    return TrialConfig(trainer=name, **DIGITS, **{options.get("calibrates", "noise_multiplier"): 1.0})


def first_pixels(trial, records, labels, device, noise=(1.0, 1.0)):
    """Sum of [1, 0] or [0, 1] by the parity of a label, with noise."""
    draws = torch.randn(2, generator=trial.generator("noise")) * torch.tensor(noise)
    return torch.nn.functional.one_hot(labels % 2, 2).float().sum(0) + draws


def audited(trial, runs=400):
    return audit_step(trial, load_dataset("digits"), runs)


def test_a_step_with_the_noise_that_is_stated_stays_below_and_close_to_it():
    audit_trainers.enter()
    found = audited(TrialConfig(trainer="audited_honest", width=4, clipping_norm=1.0, noise_multiplier=0.5, **DIGITS))
    # Over 14 seeds mu_lower was 1.25 to 2.09; which of them a processor draws depends on its kernels.
    assert 1.1 < found.mu_lower < found.mu == 2 and not found.exceeds and found.fresh
    assert found.audited.value == gdp_eps(found.mu_lower, 1e-5) < found.stated.value
    assert (found.audited.metric_name, found.audited.relation) == ("epsilon/audited/one_step", "add/remove")
    assert found.stated.kind == "stated" and "GaussianDpEvent(noise_multiplier=0.5)" in found.stated.note
    assert "PoissonSampled" not in found.stated.note


@pytest.mark.parametrize("fault", ["tenth", "batch"])
def test_a_tenth_of_the_noise_and_clipping_by_batch_are_found(fault):
    audit_trainers.enter()
    trial = TrialConfig(trainer=f"audited_{fault}", width=4, clipping_norm=1.0, noise_multiplier=4.0, **DIGITS)
    found = audited(trial, 200)
    assert found.exceeds and found.mu_lower > 1 > found.mu == 0.25


def test_noise_that_misses_one_number_is_found_where_the_rest_has_its_own():
    honest = entered("all", first_pixels)
    assert not audited(honest).exceeds
    assert audited(entered("one", partial(first_pixels, noise=(1.0, 0.0)))).exceeds


def test_noise_that_is_drawn_from_elsewhere_is_audited_too():
    outside = torch.Generator().manual_seed(0)

    def step(trial, records, labels, device, scale=1.0):
        return first_pixels(trial, records, labels, device, (0, 0)) + scale * torch.randn(2, generator=outside)

    found = audited(entered("own", step, randomness="own"))
    assert 0.4 < found.mu_lower < 1
    assert audited(entered("own_tenth", partial(step, scale=0.1), randomness="own")).exceeds


def test_a_step_that_draws_the_same_at_every_call_is_found_and_said():
    def step(trial, records, labels, device):
        torch.manual_seed(0)
        return torch.randn(3) + len(labels)

    found = audited(entered("same", step))
    assert found.exceeds and not found.fresh


def test_neighbours_by_replacement_have_as_many_records():
    sizes = []

    def step(trial, records, labels, device):
        sizes.append(len(labels))
        return first_pixels(trial, records, labels, device)

    found = audited(entered("replaced", step, lambda t: GaussianDpEvent(t.noise_multiplier / 2**0.5),
                            relation="replace-one"))
    assert {*sizes} == {9} and found.audited.relation == "replace-one"
    assert 0.9 < found.mu_lower < found.mu == pytest.approx(2**0.5)


def test_a_step_that_is_not_gaussian_is_bounded_by_its_errors():
    def step(trial, records, labels, device, scale=1.0):
        noise = torch.distributions.Laplace(0.0, scale * trial.noise_multiplier).sample()
        return (len(labels) + noise)[None]

    def laplace(trial):
        return PoissonSampledDpEvent(trial.sampling_rate, LaplaceDpEvent(trial.noise_multiplier))

    found = audited(entered("laplace", step, laplace), runs=1000)
    assert found.mu is None and 0.5 < found.audited.value < found.stated.value == pytest.approx(1, abs=1e-3)
    assert audited(entered("less", partial(step, scale=0.2), laplace)).exceeds


@pytest.mark.parametrize("inner", ["replace-one", "add/remove"])
def test_contributions_are_audited_without_a_step(inner):
    trainer("mine", version=1, per_record="a test", parameters=lambda t: 5)(lambda trial, device: (yield None))
    sampler = "poisson" if inner == "add/remove" else "without_replacement"
    trial = TrialConfig(trainer="mine", mechanism="per_example", sampler=sampler, noise_multiplier=1.0, **DIGITS)
    found = audit_release(trial, 1000, 1e-5)
    assert found.statistic == "all" and 0.6 * found.mu < found.mu_lower < found.mu and not found.exceeds


@pytest.mark.parametrize("given, message", [
    (dict(event=None, calibrates=""), "step: is audited against the event of a step, got it for trainer 'bad' without"),
    (dict(per="epoch"), "step: is audited against the event of a step, got it for trainer 'bad' whose event is of an"),
    (dict(event=None, calibrates="", per_record="so", parameters=len), "whose releases are audited without it")])
def test_a_step_without_its_event_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        entered("bad", first_pixels, **given)


@pytest.mark.parametrize("update, message", [
    (lambda x: None, "gives None as a step; must be the released update, floating point [d]"),
    (lambda x: x, "gives torch.float32 [8, 1, 8, 8] as a step"),
    (lambda x: x.flatten().long(), "gives torch.int64 [512] as a step"),
    (lambda x: x.flatten(), "gives torch.float32 [576] as a step; must be the released update, floating point [512]"),
    (lambda x: x.flatten()[:3] / 0, "gives nan as a step, of a batch of 8"),
    (lambda x: 1 / 0, "ZeroDivisionError: division by zero")])
def test_what_is_no_update_ends_the_audit_in_one_line(update, message):
    def step(trial, records, labels, device):
        return update(records)

    with pytest.raises(ConfigError) as refused:
        list(findings("1 odd", entered("odd", step), load_dataset("digits"), 1))
    assert str(refused.value).startswith("1 odd: ") and message in str(refused.value)
    assert "(test_trainers_audit.py:" in str(refused.value)


PLUGIN = """
import torch
from dp_accounting import GaussianDpEvent
from pipeline import trainer

def event(trial):
    return GaussianDpEvent(trial.noise_multiplier)

def step(trial, records, labels, device):
    scale = trial.noise_multiplier * (0.1 if trial.trainer == "quiet" else 1)
    return torch.full((1,), float(len(labels))) + scale * torch.randn(1, generator=trial.generator("noise"))

def train(trial, *handed):
    yield None

trainer("seen", version=1, event=event, calibrates="noise_multiplier", step=step)(train)
trainer("quiet", version=1, event=event, calibrates="noise_multiplier", step=step)(train)
trainer("unseen", version=1, event=event, calibrates="noise_multiplier")(train)
trainer("rows", version=1, per_record="a test", parameters=lambda trial: 3)(train)
trainer("far", version=1, event=event, calibrates="noise_multiplier", step=step, requires=["nowhere_at_all"])(train)
"""
SWEEP = """
name: audited
plugins: [audited_plugin]
base: {dataset: digits, batch_size: 64, epochs: 1, validation_fraction: 0, seed: 0}
cases:
"""
CASES = {"seen": "{trainer: seen, noise_multiplier: 1}", "unseen": "{trainer: unseen, noise_multiplier: 1}",
         "noiseless": "{trainer: seen, noise_multiplier: 0}",
         "rows": "{trainer: rows, mechanism: per_example, sampler: poisson, noise_multiplier: 1}",
         "secret": "{trainer: rows, mechanism: per_example, sampler: poisson, noise_multiplier: 1, noise: secure}",
         "quiet": "{trainer: quiet, noise_multiplier: 1}",
         "far": "{trainer: far, noise_multiplier: 1}"}


@pytest.fixture
def audit(tmp_path, monkeypatch, capsys):
    """`photonic audit FILE` for some of `CASES`: exit code, what it prints, what it complains of."""
    monkeypatch.setattr("pipeline.auditing.audit.RUNS", 400)
    (tmp_path / "audited_plugin.py").write_text(PLUGIN)

    def command(*cases, options=()):
        file = tmp_path / "audited.yaml"
        file.write_text(SWEEP + "".join(f"  - base: {CASES[case]}\n" for case in cases))
        return main(["audit", str(file), *options]), *capsys.readouterr()
    return command


def test_the_command_audits_what_it_can_of_trainers_and_says_what_does_not_apply(audit):
    code, out, _ = audit("seen", "unseen", "noiseless", "rows", "secret")
    assert code == 0
    assert out.count("does not apply: layers are the trainer's affair") == 5
    assert out.count("below stated") == 1 and out.count("needs `step` of trainer 'unseen'") == 1
    assert out.count("does not apply: nothing is stated") == 1 and out.count("below certified") == 2
    assert out.count("does not apply: attacks this package's networks") == 1
    assert "(audited one_step; delta = 1e-05, relation add/remove, sampler none (the record is in the batch)" in out
    assert "(stated one_step; " in out and "of a trainer, 'mu certified' is stated" in out


def test_the_command_exits_1_where_a_trainer_states_too_little(audit):
    code, out, _ = audit("quiet")
    assert code == 1 and "EXCEEDS stated" in out


def test_the_command_refuses_what_it_cannot_do_in_one_line(audit):
    code, _, error = audit("far")
    assert code == 2 and "trainer: 'far' needs the package 'nowhere_at_all'" in error
    code, _, error = audit("seen", options=("--steps", "2"))
    assert code == 2 and "--steps: must be at least 1 and at most the 1 of" in error


def test_a_tracked_run_of_a_trainer_is_audited_where_it_is_entered_and_refused_elsewhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pipeline.auditing.audit.RUNS", 200)
    trial, store = entered("tracked", first_pixels), Store(root=tmp_path)
    store.open_sweep("one")
    run_id = store.start(trial)
    assert main(["audit", run_id, "--mlruns", str(tmp_path)]) == 0
    assert "below stated" in capsys.readouterr().out
    run = store.trial(run_id)
    assert 0 < run.metrics["epsilon/audited/one_step"] < 4.377 and run.metrics["audit/one_step_mu"] < 1
    assert "audited one_step; delta = 1e-05, relation add/remove" in run.tags["privacy.audited"]
    for slot in ("trainer", "algorithm"):
        del PARTS[slot]["tracked"]
    assert main(["audit", run_id, "--mlruns", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error == (f"error: run {run_id}: algorithm 'tracked' is an extension's; import the module that registers "
                     "it, or give the command the experiment file whose `plugins` name it\n")


def test_canaries_of_a_trainer_need_neighbours_that_they_are():
    with pytest.raises(ConfigError, match="canaries: are records that take part or not, which is relation add/remove, "
                                          "got trainer 'replaced', which states replace-one"):
        dataclasses.replace(entered("replaced", None, relation="replace-one"), canaries=100)


@pytest.mark.parametrize("n, rate, largest", [(6, 0.5, 4), (20, 0.3, 9)])
def test_runs_that_large_batches_need_follow_from_how_often_they_are_drawn(n, rate, largest):
    """Where all that is released is the size of a batch, 0 if it is left out, one run is told apart by tau itself."""
    honest = stats.binom.pmf(np.arange(n + 1), n, rate)
    dropped = np.where(np.arange(n + 1) <= largest, honest, 0)
    dropped[0] += honest[largest + 1:].sum()
    tau = np.abs(honest - dropped).sum() / 2
    for steps in (1, 7):
        needed = audit_trainers.runs_needed(n, rate, largest, steps)
        assert (1 - tau)**(steps * needed) == pytest.approx(1 - 0.95 + 0.05)
    assert audit_trainers.runs_needed(n, rate, n, 7) == np.inf


def test_the_docs_have_the_runs_as_calculated():
    audit_trainers.enter()
    docs = "".join(path.read_text() for path in Path(audit_trainers.__file__).parent.glob("trainers*.md"))
    assert audit_trainers.calculated() in docs


@pytest.mark.slow
@pytest.mark.skipif("PHOTONIC_DATA" not in os.environ, reason="needs Fashion-MNIST in the folder PHOTONIC_DATA names")
def test_canaries_find_a_tenth_of_the_noise_in_a_whole_run():
    audit_trainers.enter()
    honest, tenth = (audit_trainers.of_run(fault, 1003) for fault in ("honest", "tenth"))
    assert honest["bound"] < honest["stated"] == tenth["stated"] < tenth["bound"]
