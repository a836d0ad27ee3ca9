"""What a report doubts: each check fires on a sweep made for it, alone, and not on one that is sound."""

import dataclasses
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_grid_exhibits import tracked, trial

from analysis.exhibits import doubts as checks
from analysis.exhibits import headline
from analysis.exhibits.evidence import Evidence
from analysis.report import overview
from analysis.statistics import accuracy_error
from pipeline.experiment.experiment import Experiment, parse_experiment
from pipeline.experiment.sections import Chosen
from pipeline.learning.data import load
from pipeline.trials.config import TrialConfig
from pipeline.trials.datasets import DATASETS

STATED = Chosen(45, "validation accuracy", (0,))
NORMS = (0.1, 0.5, 2.0, 9.0)  # of which the best lie inside (`test_grid_exhibits.validation`)
CURVES = [(a, e, s) for a, e, s in product(("bp", "dfa"), (1.0, 3.0, 8.0), (0, 1, 2))]


def score(config):
    """A sound sweep: accuracy grows with epsilon, and seeds are a point apart."""
    return 0.6 + 0.05 * np.log(config.target_epsilon or 20) - 0.02 * (config.algorithm == "dfa") + 0.01 * config.seed


def swept(configs, accuracy=score):
    return tracked(configs).assign(**{"test/accuracy": [accuracy(config) for config in configs]})


def fired(configs, accuracy=score, tag=None, **entries):
    """What all checks find, by their name; `tag` has the shares that were clamped, by algorithm."""
    runs = swept(configs, accuracy)
    if tag:
        runs["arithmetic.clamped"] = runs["algorithm"].map(tag)
    experiment = Experiment("sweep", "", tuple(configs), **{"chosen": STATED, **entries})
    return {doubt.check: doubt for doubt in checks.examine(Evidence.of(runs, experiment))}


def declared(**other):
    return [trial(a, e, 2.0, seed=s, **other) for a, e, s in CURVES]


def grid(norms=NORMS, **other):
    return [trial(a, e, norm, seed=s, **other) for (a, e, s), norm in product(CURVES, norms)]


def test_a_sound_sweep_is_not_doubted():
    assert fired(declared()) == fired(grid()) == fired(grid(private_metrics="noisy", validation_fraction=0.5)) == {}


# A bad sweep for each check, on which it fires alone

def at_chance(config):
    return score(config) if config.algorithm == "bp" else (0.142, 0.085, 0.239)[config.seed]  # digits: chance is 13%


def step_limited(config):
    return score(config) if config.algorithm == "dfa" else 0.62 + 0.0001 * (config.target_epsilon > 1) + (
        0.005 * config.seed)


BAD = {
    "chance": (declared(), at_chance, {}, "DFA at every ε: test accuracy within 3 standard errors of chance (13.1%)"),
    "flat": (declared(), step_limited, {}, "BP at every ε: the same test accuracy, so steps or settings limit it"),
    "edge": (grid((0.1, 0.5, 2.0)), score, {}, "BP at ε ≤ 3, 8; DFA at every ε: the best value lies at the end of its "
             "grid (clipping_norm 2 of 0.1 to 2), and better ones may lie beyond; widen the grid there."),
    "effort": ([*grid(NORMS), *(trial("tdfa", e, norm, seed=s) for (a, e, s), norm in product(CURVES, NORMS[:0:-1])
                                if a == "bp")], score, {}, "TDFA at every ε: fewer settings tried than for others (BP "
               "4, DFA 4, TDFA 3); give every algorithm as many."),
    "seeds": ([c for c in declared() if c.seed == 0 or c.algorithm == "bp"], score, {},
              "DFA at every ε: one seed (n = 1), so nobody knows how far seeds differ; give at least three"),
    "clamped": (declared(), score, {"tag": {"dfa": "0, 0.0002, 0.1", "bp": "0.001, 0"}},
                "DFA at every ε: up to 0.1 of a layer's numbers were clamped in integers (limit 0.001)"),
    "noisy": (grid(private_metrics="noisy", validation_fraction=0.02), score, {},
              "BP at ε ≤ 1, 3; DFA at ε ≤ 1, 3: validation accuracies have noise of standard deviation up to 18.2%"),
    "origin": (declared(), score, {"chosen": None}, "Nothing says how the settings were found")}


@pytest.mark.parametrize("check", BAD)
def test_a_check_fires_alone_on_a_sweep_that_is_bad_in_its_way(check):
    configs, accuracy, entries, sentence = BAD[check]
    found = fired(configs, accuracy, **entries)
    assert list(found) == [check] and found[check].sentence.startswith(sentence)


def test_every_check_has_its_bad_sweep_and_a_place_in_verdicts():
    names = [check.__name__ for check in checks.CHECKS]
    assert list(BAD) == names and [*checks.AGAINST, "origin"] == names


# chance

def test_the_standard_error_is_of_seeds_and_of_the_test_records_that_they_share():
    assert accuracy_error([0.1, 0.2], 0.5, 100) == pytest.approx(np.sqrt(0.1**2 / 2 / 2 + 0.25 / 100))
    for alone in ([], [0.7], [0.7, 0.7]):
        assert accuracy_error(alone, 0.5, 100) == pytest.approx(0.05)


@pytest.mark.parametrize(("dataset", "levels", "fires"), [
    ("fashion_mnist", (0.1089, 0.1089, 0.1089), True), ("fashion_mnist", (0.1091, 0.1091, 0.1091), False),
    ("fashion_mnist", (0.02, 0.02, 0.02), True), ("fashion_mnist", (0.1556, 0.085, 0.2262), True),
    ("fashion_mnist", (0.1546, 0.1556, 0.1566), False), ("mnist", (0.1135, 0.1135, 0.1135), True)])
def test_chance_is_the_best_constant_answer_and_three_standard_errors(dataset, levels, fires):
    found = fired(declared(dataset=dataset), lambda config: levels[config.seed] + 0.2 * (config.algorithm == "bp"))
    assert ("chance" in found) == fires


def test_shares_of_the_largest_class_are_those_of_the_records():
    counts = np.bincount(load("digits").test_y.numpy())
    assert DATASETS["digits"].spec.majority == counts.max() / counts.sum()


def test_trials_without_privacy_can_be_at_chance_too():
    plain = [TrialConfig(dataset="digits", hidden=(8,), batch_size=64, algorithm="dfa", seed=s) for s in range(3)]
    found = fired([*declared(), *plain], lambda c: at_chance(c) if c.mechanism == "none" else score(c))
    assert list(found) == ["chance"] and found["chance"].sentence.startswith("DFA at non-private: ")


# flat

def test_what_is_as_good_without_privacy_is_not_limited_by_steps():
    plain = [TrialConfig(dataset="digits", hidden=(8,), batch_size=64, algorithm="bp", seed=s) for s in range(3)]
    for without, fires in ((0.628, False), (0.7, True)):
        found = fired([*declared(), *plain],
                      lambda c, without=without: without if c.mechanism == "none" else step_limited(c))
        assert list(found) == ["flat"] * fires


@pytest.mark.parametrize(("gain", "apart", "fires"), [
    (0.0001, 0.005, True), (0.004, 0.005, True), (0.006, 0.005, False),  # more than half a point
    (0.004, 0.00001, False)])  # seeds do not explain it
def test_flat_is_small_and_within_what_seeds_explain(gain, apart, fires):
    found = fired(declared(), lambda c: 0.7 + gain * (c.target_epsilon == 8) + apart * (c.seed - 1) * c.target_epsilon
                  if c.algorithm == "bp" else score(c))
    assert ("flat" in found) == fires


# edge

def test_a_value_at_a_limit_of_its_setting_or_that_is_measured_under_is_no_edge():
    momenta = [dataclasses.replace(c, momentum=m) for c, m in product(declared(), (0.0, 0.5, 0.9))]
    liked = {0.0: 0.7, 0.5: 0.6, 0.9: 0.5}
    experiment = Experiment("sweep", "", tuple(momenta), chosen=STATED)
    runs = swept(momenta).assign(**{"validation/accuracy": [liked[c.momentum] for c in momenta]})
    assert checks.edge(Evidence.of(runs, experiment)) is None, "no momentum is less than 0"
    runs["validation/accuracy"] *= -1
    assert "momentum 0.9 of 0 to 0.9" in checks.edge(Evidence.of(runs, experiment)).sentence


SEARCH = """
base: {dataset: digits, hidden: [8], algorithm: dfa, mechanism: per_example, sampler: poisson, target_epsilon: 3}
search:
  algorithm: random
  trials: 20
  space: {learning_rate: {loguniform: [0.01, 1]}, momentum: {choice: [0, 0.9]}}
"""


@pytest.mark.parametrize(("best", "fires"), [(0.011, True), (0.02, False), (0.5, False), (0.95, True)])
def test_the_end_of_a_search_is_that_of_its_range_and_its_settings_have_an_origin(best, fires):
    experiment = parse_experiment(SEARCH, Path("search.yaml"))
    configs = [experiment.plan.trial({"learning_rate": rate, "momentum": 0.9}) for rate in (0.03, best, 0.3)]
    runs = tracked(configs).assign(**{"validation/accuracy": [0.1, 0.8, 0.2], "test/accuracy": 0.7})
    found = {doubt.check for doubt in checks.examine(Evidence.of(runs, experiment))}
    assert found == {"seeds", *(["edge"] if fires else [])}


def test_what_a_search_publishes_is_doubted_and_nothing_else():
    experiment = parse_experiment(SEARCH, Path("search.yaml"))
    configs = [dataclasses.replace(experiment.plan.trial({"learning_rate": rate, "momentum": 0.9}),
                                   target_epsilon=0.0, noise_multiplier=noise)  # which a search may ask for as well
               for rate, noise in ((0.03, 1.0), (0.95, 2.0), (0.3, 3.0))]
    runs = tracked(configs).assign(**{"validation/accuracy": [0.1, 0.8, 0.2], "test/accuracy": [0.7, 0.14, 0.1]})
    paid = SimpleNamespace(value=8.0, delta=1e-5)
    choice = SimpleNamespace(selected=paid, standing="simulated", name="dfa", test=0.14, validation=0.8, equals=0,
                             trial_key=configs[1].trial_key)
    said, chosen, low, end = headline.published(choice, runs, experiment).brief
    assert said == ("The search publishes dfa: test accuracy 14.00%, for ε = 8 at δ = 1e-05 of all that it released "
                    "(features and labels; simulated); in doubt: DFA at chance; DFA best at the end of a grid.")
    assert chosen == "It was chosen by its validation accuracy of 80.00%."
    assert low.startswith("DFA at z = 2: test accuracy within 3 standard errors of chance (13.1%)")
    assert "DFA at z = 2: the best value lies at the end of its grid (learning_rate 0.95 of 0.01 to 1)" in end


@pytest.mark.parametrize(("seeds", "told"), [((0, 7), "seeds 0, 7 (1 seed of these also reported here)"),
                                              ((7,), "seed 7"), (3, "3 seeds")])
def test_a_report_shows_how_settings_were_found_and_whether_its_seeds_had_a_part(seeds, told):
    chosen = Chosen(45, "validation accuracy", seeds)
    experiment = Experiment("sweep", "", tuple(declared()), chosen=chosen)
    reported = swept(declared())["seed"]
    assert overview.origin_of_settings(experiment, reported) == [
        ("Settings chosen before", f"45 runs, by validation accuracy, {told}")]
    assert overview.origin_of_settings(dataclasses.replace(experiment, chosen=None), reported) == []
    preset = dataclasses.replace(experiment, chosen=None, preset="recommended")
    assert overview.origin_of_settings(preset, reported) == [("Preset", "recommended")]


# effort, and what a comparison is doubted for

def test_a_comparison_is_doubted_for_its_own_two_curves_and_epsilon():
    configs, accuracy, _, _ = BAD["effort"]
    runs = swept(configs, accuracy)
    evidence = Evidence.of(runs, Experiment("sweep", "", tuple(configs), chosen=STATED))

    def reasons(*algorithms, setting="epsilon=3"):
        rows = [{"algorithm": algorithm, "setting": setting} for algorithm in algorithms]
        return checks.against(evidence, "digits", "certified", rows)

    assert reasons("bp", "dfa") == ([], False)
    assert reasons("bp", "tdfa") == (["fewer settings tried for TDFA"], False)
    lost = runs.assign(**{"test/accuracy": runs["test/accuracy"].mask(
        runs["algorithm"].eq("dfa") & runs["setting"].eq("epsilon=3"), 0.1)})
    evidence = Evidence.of(lost, Experiment("sweep", "", tuple(configs)))
    assert reasons("bp", "dfa") == (["DFA at chance"], True)
    assert reasons("bp", "dfa", setting="epsilon=8") == ([], True)


def test_points_of_several_data_sets_and_without_a_frontier_are_named():
    both = [*declared(), *declared(dataset="mnist")]
    found = fired(both, lambda c: 0.1 if c.dataset == "mnist" and c.target_epsilon == 1 else score(c))
    assert found["chance"].sentence.startswith("BP on MNIST at ε ≤ 1; DFA on MNIST at ε ≤ 1: test accuracy")
    mixed = [*declared(), *declared(delta=1e-6)]
    evidence = Evidence.of(swept(mixed), Experiment("sweep", "", tuple(mixed), chosen=STATED))
    assert "delta: must be the same" in evidence.refused["digits", "certified"]
    assert len(evidence.points) == 12 and set(evidence.points["kind"]) == {""}
    assert evidence.points["compared_epsilon"].isna().all()
    assert checks.examine(evidence) == []
