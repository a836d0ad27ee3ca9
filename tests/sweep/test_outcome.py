"""What a sweep's parent run says of it: counts, and who is best by validation accuracy at which noise."""

import dataclasses
from unittest.mock import Mock

import pytest

from pipeline.accounting.certified import calibrated, with_noise
from pipeline.accounting.epsilon import Budget
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.past import Past
from pipeline.experiment.plan import Grid, RandomStopping
from pipeline.experiment.stopping import Selection
from pipeline.sweep.outcome import best_settings, best_tags, closed, contents, headline
from pipeline.tracking.artifacts import TrackedRun
from pipeline.trials.config import TrialConfig

BASE = TrialConfig(dataset="digits", mechanism="per_example", sampler="poisson", batch_size=64, epochs=1,
                   target_epsilon=3.0)


def trials(algorithm, rate=0.1, **other):
    return [dataclasses.replace(BASE, algorithm=algorithm, projector="", learning_rate=rate, seed=seed, **other)
            for seed in (0, 1)]


def runs(scored):
    """Finished runs by trial_key, of (trials, their validation accuracies); None is not finished."""
    return {t.trial_key: TrackedRun("", t.trial_key, {}, {"test/accuracy": 1.0, "validation/accuracy": v or 1.0}, {},
                                    "finished" if v is not None else "failed", 0, 0)
            for group, values in scored for t, v in zip(group, values, strict=True)}


def test_best_is_the_setting_with_the_highest_mean_over_all_its_seeds():
    low, high, broken, dfa = trials("bp"), trials("bp", 0.2), trials("bp", 0.3), trials("dfa")
    plan = Grid((*low, *high, *broken, *dfa))
    found = runs([(low, (0.9, 0.5)), (high, (0.8, 0.75)), (broken, (1.0, None)), (dfa, (0.75, 0.75))])
    best = {key: setting.accuracy for key, setting in best_settings(plan.trials, found).items()}
    assert best == pytest.approx({("bp", "epsilon=3"): 0.775, ("dfa", "epsilon=3"): 0.75})
    lines = headline(best).splitlines()
    assert lines[0] == "Highest validation accuracy: bp at epsilon=3." and lines[-1] == "| epsilon=3 | 77.50 | 75.00 |"
    store = Mock(close_sweep=Mock(return_value=list(found.values())), past=Mock(return_value=Past()),
                 has_selected=False)
    closed(store, Experiment("", "", plan), "FAILED")
    store.close_sweep.assert_called_once_with("FAILED")
    tags = {"best.bp": "77.50% at no epsilon", "best.dfa": "75.00% at no epsilon"}
    assert store.log_sweep.call_args[0] == ({}, tags), "a metric would be a panel of charts without any trial"
    assert store.describe.call_args[0][1].endswith("8 trials: 7 finished, 1 failed.")
    assert contents(plan.trials) == {"datasets": "digits", "algorithms": "bp, dfa", "mechanisms": "per_example"}


def test_of_equals_none_has_the_highest_accuracy():
    told = headline({("bp", "sigma=1"): 0.9, ("dfa", "sigma=1"): 0.90004, ("bp", "sigma=2"): 0.9,
                     ("dfa", "sigma=2"): 0.8}).splitlines()[0]
    assert told == "Highest validation accuracy: no difference between bp and dfa at sigma=1; bp at sigma=2."


def test_tags_of_the_best_have_the_largest_epsilon_of_their_seeds_and_what_covers_the_choice():
    group, certified = trials("dfa"), "epsilon/certified/"
    found = runs([(group, (0.8, 0.7))])
    for run, epsilon in zip(found.values(), (2.9, 2.95), strict=True):
        run.metrics |= {f"{certified}pld": epsilon, f"{certified}rdp": 3.5, "epsilon/claimed/first": 0.1}
        run.tags["privacy.certified"] = "simulated"
    best = best_settings(group, found)
    assert best_tags(best, None) == {"best.dfa": "75.00% at epsilon 2.95 (simulated)"}
    for run, standing in zip(found.values(), ("true", "up to rounding"), strict=True):
        run.tags["privacy.certified"] = standing
    assert best_tags(best, None) == {"best.dfa": "75.00% at epsilon 2.95 (up to rounding)"}
    for run in found.values():
        run.tags["privacy.certified"] = "true"
    assert best_tags(best, Budget(4.0, 1e-5)) == {
        "best.dfa": "75.00% at epsilon 2.95 (certified); the budget of epsilon 4 covers the choice"}


def test_what_differs_in_its_guarantee_is_not_compared():
    one, other = trials("dfa"), trials("dfa", mechanism="component")
    best = best_settings((*one, *other), runs([(one, (0.5, 0.5)), (other, (0.7, 0.7))]))
    assert {noise: setting.accuracy for (_, noise), setting in best.items()} == {
        "epsilon=3 mechanism=per_example": 0.5, "epsilon=3 mechanism=component": 0.7}


def test_without_validation_accuracy_there_is_no_best():
    group = trials("dfa")
    found = {key: dataclasses.replace(run, metrics={"test/accuracy": 1.0})
             for key, run in runs([(group, (0.5, 0.5))]).items()}
    assert best_settings(group, found) == {} and headline({}) == ""
    store = Mock(close_sweep=Mock(return_value=[]))
    closed(store, Experiment("", "", RandomStopping(tuple(group), tuple(group), Selection())), "FINISHED")
    assert [call[0] for call in store.method_calls] == ["close_sweep"], "of random stopping nothing is told"


def test_noise_that_a_target_sets_is_told_as_it_is_used():
    by_hand = dataclasses.replace(BASE, target_epsilon=0.0, noise_multiplier=2.0)
    assert calibrated(BASE) == {"calibrated.noise_multiplier": repr(with_noise(BASE).noise_multiplier)}
    assert calibrated(by_hand) == {} == calibrated(TrialConfig(dataset="digits", mechanism="photonic", sigma=0.1))
    label = TrialConfig(dataset="digits", mechanism="photonic", algorithm="pdfa", target_label_epsilon=5.0)
    assert calibrated(label) == {"calibrated.sigma": repr(with_noise(label).sigma)}
