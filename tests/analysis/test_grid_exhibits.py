"""Exhibits of grids in which more varies than a figure shows: envelope, price and the headline."""

import dataclasses
import functools
import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from approved import approved
from latex_tools import check_all
from stored import changed, run_of, sweep_of, with_secret_noise

from analysis.catalogue import draw, listed, undrawn
from analysis.exhibits import envelope, headline
from analysis.exhibits.exhibit import ENVELOPE, MAX_WORDS
from analysis.exhibits.frontier import by_epsilon, choice
from analysis.exhibits.frontier import points as frontiers
from analysis.exhibits.table import markdown
from analysis.runs import MixedTrials, ReportError, csv_of, read_runs, trials_of
from pipeline.accounting.certified import with_noise
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.experiment import Experiment, sliced
from pipeline.experiment.sections import Chosen
from pipeline.trials.config import ConfigError, TrialConfig

EPSILONS, NORMS, BATCHES = (1.0, 3.0), (0.5, 2.0), (64, 128)


def texts_of(runs, configs=(), **report):
    """Captions and tables of a frontier, by default as the envelope of all settings."""
    experiment = sweep_of(configs or trials_of(runs), **{"best_of": BEST, **report})
    return by_epsilon.texts(frontiers.frontiers(runs, experiment), runs)


BEST = ("clipping_norm", "batch_size")


def trial(algorithm="bp", epsilon=1.0, norm=0.5, batch=64, seed=0, **other):
    return TrialConfig(**{"dataset": "digits", "hidden": (8,), "algorithm": algorithm, "mechanism": "per_example",
                          "sampler": "poisson", "target_epsilon": epsilon, "clipping_norm": norm, "batch_size": batch,
                          "seed": seed, "epochs": 2, **other})


GRID = [trial(*values) for values in product(("bp", "dfa"), EPSILONS, NORMS, BATCHES, (0, 1))]


def validation(config):
    """For BP the larger norm is better at epsilon 3 and worse at 1; for DFA always; batches of 128 are worse."""
    liked = config.clipping_norm == (0.5 if config.algorithm == "bp" and config.target_epsilon == 1 else 2.0)
    return 0.5 + 0.1 * liked + 0.02 * (config.batch_size == 64) + 0.01 * config.seed


def accuracy(config):
    """Test accuracy prefers what validation does not, so that a choice by it would be seen."""
    private = 0.05 * math.log(config.target_epsilon or 1)
    return 0.9 - validation(config) / 2 + private - 0.03 * (config.algorithm == "dfa")


def tracked(configs, **metrics):
    """Runs as `load_runs` gives them, without a store."""
    return pd.DataFrame([row(config, **metrics) for config in configs])


@functools.cache
def row(config, **metrics):
    values = {"test/accuracy": accuracy(config), "validation/accuracy": validation(config)}
    if config.mechanism == "per_example":
        level = config.target_epsilon or config.noise_multiplier * config.batch_size
        values["epsilon/certified/pld"] = 0.995 * level
    values = {name: value for name, value in (values | metrics).items() if value is not None}
    return run_of(config, values, {"privacy.relation": "add/remove"})


# the envelope

def test_a_point_of_an_envelope_is_the_best_by_validation_and_not_by_test():
    points = frontiers.frontier(tracked(GRID)).set_index(["algorithm", "setting"])
    assert len(points) == 4 and set(points["choices"]) == {4} and set(points["n"]) == {2}
    assert points.loc[("bp", "epsilon=1"), "chosen"] == "clipping_norm 0.5, batch_size 64"
    assert points.loc[("bp", "epsilon=3"), "chosen"] == "clipping_norm 2, batch_size 64"
    expected = np.mean([100 * accuracy(trial("bp", 3.0, 2.0, 64, seed)) for seed in (0, 1)])
    assert points.loc[("bp", "epsilon=3"), "mean"] == pytest.approx(expected)
    best = 100 * max(accuracy(config) for config in GRID if config.target_epsilon == 3)
    assert points.loc[("bp", "epsilon=3"), "mean"] < best


def test_the_mean_over_seeds_decides_and_not_the_best_seed():
    runs = tracked(GRID)
    lucky = (runs["algorithm"] == "dfa") & (runs["clipping_norm"] == 0.5) & (runs["seed"] == 1)
    runs.loc[lucky, "validation/accuracy"] = 0.7
    runs.loc[lucky.shift(-1, fill_value=False), "validation/accuracy"] = 0.1
    assert set(frontiers.frontier(runs).query("algorithm == 'dfa'")["chosen"]) == {"clipping_norm 2, batch_size 64"}


def test_without_a_choice_nothing_is_chosen_and_validation_is_not_asked_for():
    runs = tracked([c for c in GRID if c.clipping_norm == 2 and c.batch_size == 64], **{"validation/accuracy": None})
    points = frontiers.frontier(runs)
    assert set(points["chosen"]) == {""} and set(points["choices"]) == {1}
    assert "best of" not in texts_of(runs).markdown
    with pytest.raises(ReportError, match="validation/accuracy: missing for 8 of 8"):
        frontiers.frontier(tracked(GRID, **{"validation/accuracy": None}))


def test_settings_that_go_with_the_target_are_named_and_are_no_choice():
    linked = [c for c in GRID if (c.target_epsilon, c.batch_size, c.clipping_norm) in ((1, 64, 2), (3, 128, 2))]
    points = frontiers.frontier(tracked(linked))
    assert points["chosen"].tolist() == ["batch_size 64", "batch_size 128"] * 2 and set(points["choices"]) == {1}


def test_without_targets_the_envelope_is_the_front_by_validation():
    configs = [trial(epsilon=0.0, noise_multiplier=z, batch=batch, seed=seed)
               for z, batch, seed in product((1.0, 2.0), BATCHES, (0, 1))]
    runs = tracked(configs)  # epsilon: z * batch; validation prefers 64
    points = frontiers.frontier(runs)
    assert points["epsilon"].tolist() == [0.995 * 64] and points["choices"].tolist() == [4]
    better = runs.assign(**{"validation/accuracy": runs["validation/accuracy"]
                            + 0.2 * (runs["noise_multiplier"] == 2.0) + 0.2 * (runs["batch_size"] == 128)})
    points = frontiers.frontier(better)
    assert points["chosen"].tolist() == ["batch_size 64", "batch_size 64", "batch_size 128"]
    assert points["setting"].tolist() == ["z=1", "z=2", "z=2"]


def test_the_price_is_of_all_that_was_compared_seeds_included(monkeypatch):
    """What composing trials costs, test_disclosure.py and test_accounting_selection.py say."""
    compared = {}

    def selected(trials):
        compared[trials[0].algorithm, f"epsilon={trials[0].target_epsilon:g}"] = trials
        return SimpleNamespace(value=100 * trials[0].target_epsilon + len(trials) + (trials[0].algorithm == "dfa"))

    monkeypatch.setattr(choice, "selected_epsilon", selected)
    monkeypatch.setattr(choice, "composed_epsilon", choice.composed_epsilon.__wrapped__)  # not cached
    runs = tracked(GRID)
    points = choice.price(frontiers.frontier(runs), frontiers.tried_runs(runs, "certified"))
    points = points.set_index(["algorithm", "setting"])
    assert points["selected_epsilon"].to_dict() == {("bp", "epsilon=1"): 108, ("bp", "epsilon=3"): 308,
                                                    ("dfa", "epsilon=1"): 109, ("dfa", "epsilon=3"): 309}
    for (algorithm, setting), trials in compared.items():
        assert list(trials) == [c for c in GRID
                                if (c.algorithm, f"epsilon={c.target_epsilon:g}") == (algorithm, setting)]
    text = texts_of(runs).markdown
    assert "| DFA | ε ≤ 3 | clipping_norm 2, batch_size 64 | 4 | 309 |" in text
    assert "best of up to 4 settings by validation" in text and "selected ε composes all trials" in text
    runs["test/worst_class_accuracy"] = 0.1
    of_file = sweep_of(GRID, best_of=BEST)
    frames = [frontiers.frontiers(runs, of_file, metric)[0] for metric in ("accuracy", "worst_class")]
    assert by_epsilon.texts(frames, runs).markdown.count("| chosen |") == 1, "of two metrics, not twice"


def test_a_choice_is_priced_by_the_noise_that_runs_record_and_runs_csv_keeps(tmp_path):
    runs = pd.DataFrame([run_of(GRID[0], {}, {"calibrated.noise_multiplier": "9.5"}), run_of(GRID[1], {})])
    begun, other = trials_of(runs)
    assert with_noise(begun).noise_multiplier == 9.5 and not other.recorded_noise
    csv_of(runs).to_csv(tmp_path / "runs.csv", index=False)
    again = read_runs(tmp_path / "runs.csv")
    calibrated = {"noise_multiplier": with_noise(other).noise_multiplier}
    assert trials_of(again) == [begun, other.with_recorded_noise(calibrated)]
    assert again["hidden"].tolist() == runs["hidden"].tolist()


def test_a_cell_keeps_one_setting_and_all_of_its_seeds():
    kept = envelope.best(tracked(GRID), ["algorithm", "setting", "batch_size"])
    assert len(kept) == 2 * 2 * 2 * 2 and set(kept["choices"]) == {2}
    bp = kept[(kept["algorithm"] == "bp") & (kept["setting"] == "epsilon=1")]
    assert set(bp["chosen"]) == {"clipping_norm 0.5"} and sorted(bp["seed"]) == [0, 0, 1, 1]


def test_data_sets_are_panels_and_not_mixed():
    both = [*GRID[:8], *(dataclasses.replace(config, dataset="mnist") for config in GRID[:8])]
    with pytest.raises(MixedTrials, match="dataset"):
        frontiers.frontier(tracked(both))
    (points,) = frontiers.frontiers(tracked(both), sweep_of(both, best_of=BEST))
    assert set(points["dataset"]) == {"digits", "mnist"} and points.attrs["layout"].panels == ("dataset",)


def test_a_slice_is_an_experiment_of_its_trials():
    experiment = sweep_of(GRID)
    half = sliced(experiment, {"batch_size": 128})
    assert {trial.batch_size for trial in half.trials} == {128} and len(half.trials) == 16
    assert len(sliced(experiment, {"batch_size": [64, 128], "target_epsilon": 3}).trials) == 16
    assert "by_batch_size" not in listed(half) and "by_clipping_norm" in listed(half)
    half = sliced(sweep_of(GRID, exhibits=["by_batch_size", "frontier"]), {"batch_size": 128})
    assert listed(half) == ("frontier",)
    assert dict(undrawn(half))["by_batch_size"].endswith("two values or more of batch_size, got batch_size 128")
    for where, message in (({"batch_size": 100}, r"where: batch_size must be one of 64, 128, got 100"),
                           ({"width": 1}, r"where: must be a field that its trials have, got 'width'"),
                           ({"algoritm": "bp"}, r"got 'algoritm'; did you mean 'algorithm'\?")):
        with pytest.raises(ConfigError, match=message):
            sliced(experiment, where)


# what captions may take

def crowded():
    """Trials whose captions are as long as they can be: several samplers, seeds and sources of noise, and choices."""
    runs = tracked([*GRID, *(dataclasses.replace(c, mechanism="none", target_epsilon=0.0) for c in GRID[::4])])
    runs = changed(runs, sampler=runs["sampler"].where(runs.index // 2 % 2 > 0, "without_replacement"))
    secure = (runs.index // 4 % 2 == 0) & (runs["mechanism"] != "none")
    runs = pd.concat([with_secret_noise(runs[secure]), runs[~secure]]).sort_index()
    runs["alignment/layer_1"] = 0.5
    runs["test/worst_class_accuracy"] = 0.5
    return runs


def captions(texts):
    return [part for part in (*texts.body, *texts.more) if isinstance(part, str)]


@pytest.mark.slow
def test_captions_of_grids_have_at_most_forty_words(monkeypatch, only_svg):
    monkeypatch.setattr(choice, "composed_epsilon", lambda *_: 1.0)
    runs = crowded()
    experiment = sweep_of(trials_of(runs), best_of=("clipping_norm", "sampler"))
    drawn = [draw(name, experiment, runs, None) for name in ("means", "by_clipping_norm", "by_batch_size")]
    drawn.append(draw("frontier", sweep_of(GRID), tracked(GRID), None))
    for found in drawn:
        said = captions(found.texts)
        assert said and max(len(caption.split()) for caption in said) <= MAX_WORDS, said
        check_all(found.files)
    by_batch = drawn[2].texts
    assert "best of up to 2 settings by validation." in by_batch.body[0] and ENVELOPE in by_batch.notes
    assert "Each ε is a certified ε (partly simulated; add/remove, poisson or without_replacement, δ = 1e-05)." in (
        by_batch.notes)


# who is best

CHOSEN = Chosen(45, "validation accuracy", (0,))
# Whose best settings lie inside of it, and a grid without a choice
INNER = [trial(algorithm, epsilon, norm, seed=seed)
         for algorithm, epsilon, norm, seed in product(("bp", "dfa"), EPSILONS, (0.1, 0.5, 2.0, 9.0), (0, 1))]
DECLARED = [trial(algorithm, epsilon, 2.0, seed=seed)
            for algorithm, epsilon, seed in product(("bp", "dfa"), (1.0, 8.0), (0, 1))]


def seeds_apart():
    """Seeds half a point apart, and other ones of DFA: Welch's half width is t_2 * 0.5 * sqrt(1/8 + 1/8)."""
    others = [c if c.algorithm == "bp" else dataclasses.replace(c, seed=c.seed + 2) for c in INNER]
    return tracked(others).assign(**{"test/accuracy": [accuracy(c) for c in INNER],
                                     "validation/accuracy": [validation(c) for c in INNER]})


def within_seeds():
    runs = tracked(INNER)
    dfa, seed = runs["algorithm"] == "dfa", runs["seed"]
    level = 0.5 + 0.05 * seed + 0.01 * dfa + 0.02 * dfa * seed + 0.1 * (runs["target_epsilon"] == 3)
    return runs.assign(**{"test/accuracy": level})


def a_record_apart():
    """Seeds that differ equally by a record or two prove nothing."""
    runs = tracked(DECLARED)
    level = 0.9 + 0.01 * runs["seed"] + np.where(runs["algorithm"] == "bp", 1 / 360, 0) + 0.002 * runs["target_epsilon"]
    return runs.assign(**{"test/accuracy": level})


def levelled(*levels, configs=DECLARED):
    """Trials of BP with the first accuracy, of DFA with the second, and so on; seeds a point apart."""
    runs = tracked(configs)
    names = list(dict.fromkeys(runs["algorithm"]))
    level = runs["algorithm"].map(dict(zip(names, levels, strict=True)))
    return runs.assign(**{"test/accuracy": level + 0.01 * runs["seed"]})


def apart():
    """Curves without a common epsilon."""
    return [c for c in DECLARED if (c.algorithm == "bp") == (c.target_epsilon == 1)]


THREE = [*DECLARED, *(dataclasses.replace(c, algorithm="tdfa") for c in DECLARED if c.algorithm == "dfa")]


TWO = [*DECLARED, *(dataclasses.replace(c, dataset="mnist") for c in DECLARED)]


def priced(**other):
    """The best of the sweep, and what it costs."""
    price = SimpleNamespace(value=9.876, kind="selected")
    return SimpleNamespace(**{"selected": price, "trials": 8, "gone": 0,
                              "alone": SimpleNamespace(value=2.985, kind="certified"), **other})


ONE_SEED = [c for c in DECLARED if c.seed == 0]
FEWER = [c for c in INNER if c.algorithm == "bp" or c.clipping_norm < 9]
PLAIN = [TrialConfig(dataset="digits", hidden=(8,), batch_size=64, algorithm=a, seed=s) for a in ("bp", "dfa")
         for s in (0, 1)]
HEADLINES = {
    "the best of a grid": lambda: (tracked(INNER), INNER), "other seeds": lambda: (seeds_apart(), INNER),
    "a difference within seeds": lambda: (within_seeds(), INNER),
    "a record apart": lambda: (a_record_apart(), DECLARED),
    "a tie": lambda: (levelled(0.9, 0.9), DECLARED),
    "a lead below the rounding": lambda: (levelled(0.9, 0.90004), DECLARED),
    "a tie of one seed": lambda: (levelled(0.9, 0.9, configs=ONE_SEED), ONE_SEED),
    "two of three": lambda: (levelled(0.9, 0.8, 0.9, configs=THREE), THREE),
    "a tie without a common epsilon": lambda: (levelled(0.9, 0.9, configs=apart()), apart()),
    "two data sets": lambda: (tracked(TWO), TWO),
    "nothing chosen": lambda: (tracked(DECLARED), DECLARED),
    "settings of unknown origin": lambda: (tracked(DECLARED), DECLARED, None),
    "with the price of the best": lambda: (tracked(DECLARED), DECLARED, Chosen(1, "luck", 1), priced()),
    "with a best that nothing covers": lambda: (tracked(DECLARED), DECLARED, CHOSEN, priced(
        selected=None, reason="relation: must be one")),
    "one seed": lambda: (tracked(ONE_SEED), ONE_SEED), "fewer settings": lambda: (tracked(FEWER), FEWER),
    "no guarantee": lambda: (tracked(PLAIN), PLAIN),
    "no frontier": lambda: (tracked(GRID, **{"validation/accuracy": None}), GRID)}


def said(runs, configs, chosen=CHOSEN, best=None):
    """The headline of an experiment file that says how its settings were found."""
    return headline.compose(runs, Experiment("grid", "", tuple(configs), chosen=chosen), best)


def test_the_headline_says_who_leads_what_choosing_cost_and_whether_seeds_could_have_done_it(monkeypatch):
    monkeypatch.setattr(choice, "composed_epsilon", lambda trials: 7.154 + (trials[0].algorithm == "dfa"))
    approved("headlines", "\n\n".join(in_markdown(name, said(*case())) for name, case in HEADLINES.items()))


def in_markdown(name, found):
    folded = [markdown(f"## {heading}", *parts) for heading, parts in found.folded.items()]
    return markdown(f"# {name}", *filter(None, (found.verdict, found.test_error, found.under_table)), *folded)


def test_the_error_of_the_test_set_is_told_where_it_exceeds_that_of_the_seeds():
    """Digits have 360 test records: at 90% their standard error is sqrt(0.9 * 0.1 / 360), or 1.58 points."""
    assert headline._errors([90.0], "digits") == pytest.approx((100 * np.sqrt(0.09 / 360), np.nan), nan_ok=True)
    assert headline._errors([89.0, 91.0], "digits") == pytest.approx((1.5811, 1.0), abs=1e-4)  # s = sqrt(2), n = 2
    assert headline._errors([100.0], "digits")[0] == 0
    close = said(levelled(0.895, 0.8), DECLARED)
    assert close.test_error == ("The test set of 360 records alone has a standard error of 1.6 points, more than the "
                                "seeds (0.5).")
    assert close.under_table == ("± is over seeds; the test set alone has a standard error of up to 2.1 points "
                                 "(scikit-learn's digits, 360 records).")  # of DFA, at 80.5%
    far = levelled(0.6, 0.5).assign(**{"test/accuracy": lambda runs: 0.5 + 0.1 * runs["seed"]})  # s/sqrt(2) = 5 points
    assert said(far, DECLARED).test_error == said(far, DECLARED).under_table == ""
    assert said(tracked(ONE_SEED), ONE_SEED).test_error == "", "nobody knows the error of one seed"


def test_a_choice_that_composition_does_not_cover_is_said_to_have_no_price(monkeypatch):
    def unsupported(trials):
        raise UnsupportedAccounting("delta: must be one")

    monkeypatch.setattr(choice, "selected_epsilon", unsupported)
    monkeypatch.setattr(choice, "composed_epsilon", choice.composed_epsilon.__wrapped__)  # not cached
    assert "At certified ε ≤ 3 (no ε covers the choice of settings), BP" in said(tracked(INNER), INNER).verdict

