"""From tracked trials to accuracy against epsilon."""

import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from approved import approved
from latex_tools import check_all
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from stored import changed, records, stored, sweep_of, with_secret_noise

from analysis.catalogue import mismatch
from analysis.exhibits.frontier import by_epsilon
from analysis.exhibits.frontier import figure as frontier_figure
from analysis.exhibits.frontier import points as frontiers
from analysis.exhibits.frontier.choice import pareto_front
from analysis.runs import MixedTrials, ReportError, csv_of, frame_of, trials_of
from pipeline.accounting.epsilon import Budget
from pipeline.experiment.results import Cited
from pipeline.trials.config import TrialConfig

pytestmark = pytest.mark.usefixtures("only_svg")

BASE = TrialConfig(dataset="digits", mechanism="per_example", sampler="poisson", epochs=2, batch_size=64)
TARGETS = (1.0, 3.0, 8.0)
ALGORITHMS = ("bp", "dfa", "tdfa", "pdfa")


def certified(algorithm, target, seed=0, **other):
    return replace(BASE, algorithm=algorithm, projector="", target_epsilon=target, seed=seed, **other)


def photonic(sigma, seed=0, **other):
    return TrialConfig(dataset="digits", algorithm="pdfa", mechanism="photonic", sigma=sigma, epochs=2, batch_size=64,
                       seed=seed, **other)


GRID = tuple(certified(a, e, seed) for a in ALGORITHMS for e in TARGETS for seed in (0, 1))
LABEL = tuple(photonic(sigma) for sigma in (0.0, 10.0, 20.0))
PLAIN = TrialConfig(dataset="digits", algorithm="bp", epochs=2, batch_size=64)
LABEL_EPSILON = {10.0: 4.0, 20.0: 2.0}


def accuracy(config):
    """0.5, plus 0.1 log10 epsilon, less 0.05 per place of the algorithm, seeds 0.02 apart."""
    epsilon = config.target_epsilon or LABEL_EPSILON.get(config.sigma, 100)
    return 0.5 + 0.1 * math.log10(epsilon) - 0.05 * ALGORITHMS.index(config.algorithm) + 0.02 * config.seed


def records_of(config):
    metrics, relation = [{"validation/accuracy": 0.1} for _ in (1, 2)], "none"
    for epoch, of_epoch in enumerate(metrics, start=1):
        if config.mechanism == "per_example":
            of_epoch |= {"epsilon/certified/pld": config.target_epsilon * epoch / 2,
                         "epsilon/certified/rdp/improved": config.target_epsilon * epoch}
            relation = "add/remove"
        elif config.sigma:
            of_epoch |= {"epsilon/label/gdp": LABEL_EPSILON[config.sigma] * epoch / 2,
                         "epsilon/claimed/second/iterations": 0.001,
                         "epsilon/claimed/saturating/epochs": 100 * LABEL_EPSILON[config.sigma]}
            relation = "replace-one"
    metrics[-1] |= {"test/accuracy": accuracy(config), "test/worst_class_accuracy": accuracy(config) / 2,
                    "alignment/layer_1": accuracy(config), "alignment/layer_2": 0.2, "alignment/layer_3": 0.9}
    return records(config, metrics, {"privacy.relation": relation})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("store"), "both", (*GRID, *LABEL, PLAIN), records_of)


@pytest.fixture(scope="module")
def runs(store):
    return frame_of(store.runs(), (*GRID, *LABEL, PLAIN))


def of_all(runs, **options):
    """The points of all kinds, as an exhibit of these trials has them."""
    return frontiers.frontiers(runs, sweep_of([*GRID, *LABEL, PLAIN]), **options)


# points

def test_a_point_is_the_mean_over_seeds_at_the_last_epoch_of_the_tightest_accountant(runs):
    points = frontiers.frontier(runs, "certified")
    assert list(points.columns) == frontiers.COLUMNS and len(points) == 12
    assert list(points["algorithm"]) == np.repeat(ALGORITHMS, 3).tolist() and list(points["epsilon"]) == [1, 3, 8] * 4
    row = points[(points["algorithm"] == "dfa") & (points["epsilon"] == 3)].iloc[0]
    mean = 100 * (0.5 + 0.1 * math.log10(3) - 0.05 + 0.01)
    half = 12.7062  # t quantile with one degree of freedom; seeds are 2 points apart, s/sqrt(2) = 1
    assert [row["mean"], row["low"], row["high"]] == pytest.approx([mean, mean - half, mean + half], abs=1e-3)
    assert (row["n"], row["kind"], row["relation"], row["sampler"], row["delta"], row["setting"]) == (
        2, "certified", "add/remove", "poisson", 1e-5, "epsilon=3")


def test_targets_that_are_met_from_below_are_compared_by_the_target(runs):
    less = runs["algorithm"].eq("dfa") & runs["setting"].eq("epsilon=3")
    cheaper = runs.assign(**{name: runs[name].mask(less, 2.98) for name in runs if name.startswith("epsilon/cert")})
    points = frontiers.frontier(cheaper, "certified").set_index(["algorithm", "setting"])
    assert points.loc[("dfa", "epsilon=3"), "epsilon"] == 2.98 < points.loc[("bp", "epsilon=3"), "epsilon"]
    assert points["on_overall_front"].groupby("algorithm").sum().to_dict() == {"bp": 3, "dfa": 0, "tdfa": 0, "pdfa": 0}


def test_a_frame_without_trials_has_the_frontier_of_its_settings(runs, tmp_path):
    points = frontiers.frontier(runs)
    pd.testing.assert_frame_equal(frontiers.frontier(runs.drop(columns="trial")), points)
    csv_of(runs).to_csv(tmp_path / "runs.csv", index=False)
    own = pd.read_csv(tmp_path / "runs.csv", dtype={"setting": str})  # a user's own frame
    pd.testing.assert_frame_equal(frontiers.frontier(own), points)


def test_networks_without_hidden_layers_have_a_curve_of_their_own_that_no_choice_mixes_with_others(runs):
    linear = changed(runs[runs["algorithm"].eq("bp") & runs["seed"].eq(1)], hidden=()).assign(
        **{name: runs[name] - 0.3 for name in ("test/accuracy", "validation/accuracy")})
    points = frontiers.frontier(pd.concat([runs, linear], ignore_index=True), "certified")
    rows = points[points["algorithm"] == "softmax"]
    assert list(rows["epsilon"]) == [1, 3, 8] and set(rows["n"]) == {1} and set(points["choices"]) == {1}
    assert list(rows["mean"]) == pytest.approx([100 * (0.22 + 0.1 * math.log10(e)) for e in (1, 3, 8)])
    assert list(points["algorithm"])[3:] == np.repeat(ALGORITHMS, 3).tolist()
    assert mismatch("frontier", sweep_of(certified(a, 3.0, hidden=h, validation_fraction=0.0) for a, h in
                                         (("bp", ()), ("bp", (8,)), ("dfa", (8,))))) == ""


def test_label_points_have_the_relation_of_labels_and_no_claimed_epsilon(runs):
    points = frontiers.frontier(runs, "label")
    assert points["epsilon"].tolist() == [2, 4] and points["setting"].tolist() == ["20", "10"]
    assert set(points["relation"]) == {"replace-one label"} and set(points["n"]) == {1}
    assert points[["low", "high", "bootstrap_low", "bootstrap_high"]].isna().all().all()
    assert [set(p["kind"]) for p in of_all(runs)] == [{"certified"}, {"label"}]
    with pytest.raises(ReportError, match="with a finite epsilon/certified or epsilon/label"):
        of_all(runs[runs["mechanism"] == "none"])


def test_label_targets_are_points_named_by_their_target(tmp_path):
    trials = [photonic(0.0, target_label_epsilon=target, joint_release=True) for target in (3.0, 0.5)]
    store = stored(tmp_path, "targets", (*trials, LABEL[2]), lambda trial: records(trial, [
        {"test/accuracy": 0.6, "epsilon/label/gdp": 0.995 * (trial.target_label_epsilon or 2)}]))
    runs = frame_of(store.runs(), trials)
    points = frontiers.frontier(runs, "label")
    assert points["setting"].tolist() == ["label_epsilon=0.5", "label_epsilon=3"]
    shown = frontiers.frontiers(runs, sweep_of(trials))
    assert "|  | ε ≤ 0.5 | ε ≤ 3 |" in by_epsilon.texts(shown, runs).markdown
    assert "PDFA (label ε ≤ 3, label ε ≤ 0.5)" in by_epsilon.texts(shown, runs.assign(status="diverged")).markdown
    mixed = frontiers.frontier(frame_of(store.runs()), "label")  # settings that go with the noise level, and no choice
    assert mixed["chosen"].tolist() == ["joint_release True", "joint_release False", "joint_release True"]
    assert mixed["choices"].tolist() == [1, 1, 1]


def test_seeds_that_cost_differently_share_the_largest_epsilon(runs):
    early = runs.copy()
    early.loc[0, ["epsilon/certified/pld", "epsilon/certified/rdp/improved"]] = 0.4
    assert frontiers.frontier(early, "certified")["epsilon"].iloc[0] == 1.0


@pytest.mark.parametrize(("change", "message"), [
    ({"delta": 1e-6}, r"delta: must be the same for all points of one frontier, got 1e-05, 1e-06"),
    ({"privacy.relation": "replace-one"}, r"relation: must be the same .* got add/remove, replace-one"),
    ({"dataset": "mnist"}, r"dataset: must be the same .* got digits, mnist")])
def test_what_may_not_be_mixed(runs, change, message):
    mixed = runs.copy()
    for name, value in change.items():
        mixed.loc[(mixed["algorithm"] == "bp") & (mixed["setting"] == "epsilon=1"), name] = value
    with pytest.raises(MixedTrials, match=message):
        frontiers.frontier(mixed, "certified")


def test_a_claimed_epsilon_has_a_panel_for_each_formula_and_says_that_it_is_no_guarantee(runs):
    saturating, second = of_all(runs, kinds=("claimed",))
    assert saturating["epsilon"].tolist() == [200, 400] and second["epsilon"].tolist() == [0.001, 0.001]
    assert set(saturating["relation"]) == {"replace-one"} and set(saturating["formula"]) == {"saturating/epochs"}
    drawn = by_epsilon.of_experiment(runs, "frontier_claimed", sweep_of([*GRID, *LABEL, PLAIN]))
    assert [ax.get_title() for ax in drawn.figure.axes] == [
        "saturating formula, T\u00a0=\u00a0epochs", "second formula, T\u00a0=\u00a0iterations"]
    assert drawn.title == "Accuracy against the ε that is claimed: no guarantee"


def secure(runs, which):
    """The runs as if the noise of these were secret."""
    return pd.concat([with_secret_noise(runs[which]), runs[~which]]).loc[runs.index]


def test_captions_tables_and_notes_say_what_a_reader_may_ask(runs):
    certified, label = of_all(runs)
    claimed, shown = of_all(runs, kinds=("claimed",))[0], frontiers.tightest(runs, "certified").notna()
    first = pd.Series(runs.index == runs.index[shown][0], runs.index)
    lost = runs.copy()
    lost.loc[0, "alignment/layer_1"] = math.nan
    told = {
        "both kinds": by_epsilon.texts([certified, label], runs).markdown,
        "with a budget": "\n".join(by_epsilon.caption(kind, runs, Budget(8, 1e-5)) for kind in (certified, label)),
        "one diverged": "\n".join(by_epsilon.texts([certified], runs.assign(
            status=["diverged"] + ["finished"] * (len(runs) - 1))).notes),
        "alignment, which one trial lacks": "\n".join(by_epsilon.texts(
            of_all(lost, metric="alignment", kinds=("certified",)), lost).notes),
        "claimed": by_epsilon.caption(claimed, runs), "noise of no run tracked": by_epsilon.caption(
            certified, runs.drop(columns="noise")),
        "secret noise of what is shown": by_epsilon.caption(certified, secure(runs, shown)),
        "secret noise of one": by_epsilon.caption(certified, secure(runs, first)),
        "label epsilons of secret noise": by_epsilon.caption(
            label, secure(runs, frontiers.tightest(runs, "label").notna()))}
    approved("frontier", "\n\n".join(f"# {name}\n{text}" for name, text in told.items()))


# figure

def test_axes(runs):
    ax = frontier_figure.frontier_axes(frontiers.frontier(runs, "certified"), Figure().subplots())
    curves = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
    assert list(curves) == ["BP", "DFA", "TDFA", "PDFA"] and ax.get_xscale() == "log"
    assert curves["DFA"].get_xdata().tolist() == [1, 3, 8]
    assert curves["DFA"].get_ydata()[1] == pytest.approx(100 * (0.46 + 0.1 * math.log10(3)))
    bars = [bars for bars in ax.collections if isinstance(bars, LineCollection)]
    assert len(bars) == 4 and np.ptp(bars[0].get_segments()[0][:, 1]) == pytest.approx(2 * 12.7062, abs=1e-3)
    assert (ax.get_xlabel(), ax.get_title()) == ("Certified ε", "")
    assert ax.get_legend().get_title().get_text() == "mean over n = 2 seeds, 95% t interval"


def test_at_one_epsilon_there_is_a_row_for_each_the_best_at_the_top(runs):
    trials = [c for c in GRID if c.target_epsilon == 3]
    shown = runs[runs["target_epsilon"] == 3].reset_index(drop=True)
    experiment = replace(sweep_of(trials), references=(published("They 2021, a model"),))
    (ax,) = by_epsilon.of_experiment(shown, "frontier", experiment).figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "They 2021, a model (ε\u00a0=\u00a03)",
        *(f"{name} (ε\u00a0≤\u00a03)" for name in ("BP", "DFA", "TDFA", "PDFA"))]
    assert ax.get_xlabel() == "Test accuracy (%)"
    assert ax.get_ylim()[0] > ax.get_ylim()[1], "downwards"
    alone = by_epsilon.of_experiment(shown[:2], "frontier", sweep_of(trials[:2]))
    assert alone.figure is None and "| BP |" in alone.markdown


def test_further_settings_are_lines_of_their_own(runs):
    wider = changed(runs, momentum=0.5).assign(**{name: runs[name] - 0.2 for name in ("test/accuracy",)})
    both = pd.concat([runs, wider], ignore_index=True)
    both = both[both["algorithm"].isin(["bp", "dfa"]) & (both["target_epsilon"] > 0)].reset_index(drop=True)
    drawn = by_epsilon.of_experiment(both, "frontier", sweep_of(trials_of(both)))
    (ax,) = drawn.figure.axes
    lines = {line.get_label(): line.get_ydata()[1] for line in ax.lines if not line.get_label().startswith("_")}
    level = 100 * (0.51 + 0.1 * math.log10(3))
    assert lines == pytest.approx({"BP, momentum = 0.9": level, "BP, momentum = 0.5": level - 20,
                                   "DFA, momentum = 0.9": level - 5, "DFA, momentum = 0.5": level - 25})
    assert drawn.rows["momentum"].tolist() == [0.9] * 6 + [0.5] * 6


def published(source, delta=1e-5):
    """A reference as an experiment file lists it."""
    return Cited("", source, 3.0, delta, "", None, 0.897, source)


def test_published_results_are_marked_where_they_guarantee_the_same_and_said_as_printed(runs):
    ours, other = (published("They 2021, a model", delta) for delta in (1e-5, 1e-6))
    experiment = replace(sweep_of([*GRID, *LABEL, PLAIN]), references=(ours, other))
    drawn = by_epsilon.of_experiment(runs, "frontier", experiment)
    certified, label = drawn.figure.axes
    marks = [[line for line in ax.lines if line.get_marker() == "*"] for ax in (certified, label)]
    assert [len(lines) for lines in marks] == [1, 0]
    assert (marks[0][0].get_xdata().item(), marks[0][0].get_ydata().item()) == (3.0, 89.7)
    (legend,) = drawn.figure.legends
    assert [t.get_text() for t in legend.get_texts()][-1] == "They 2021, a model:\n89.7% at ε\u00a0=\u00a03"
    assert drawn.markdown.count("Published by others, and marked: They 2021, a model, 89.7% at ε = 3, δ = 1e-05.") == 1
    worst = by_epsilon.of_experiment(runs, "frontier_worst_class", experiment)
    assert "Published" not in worst.markdown
    assert not any(line.get_marker() == "*" for line in worst.figure.axes[0].lines)


def test_what_a_source_is_called_is_no_formula_and_may_have_any_letters(runs):
    name = "a $\\frac{$_%&{} <b> \N{CJK UNIFIED IDEOGRAPH-4E2D} \N{GRINNING FACE} ^~#`code"
    experiment = replace(sweep_of([*GRID, *LABEL, PLAIN]), references=(published(name),))
    drawn = by_epsilon.of_experiment(runs, "frontier", experiment)
    files = {suffix: drawn.files[f"frontier.{suffix}"] for suffix in ("svg", "md", "tex")}
    text = "".join(ElementTree.fromstring(files["svg"]).itertext())
    assert all(word in text for word in name.split()) and name in files["md"].decode()
    assert check_all(drawn.files) > 0


@pytest.mark.parametrize(("kept", "wanted", "message"), [
    (lambda runs: runs, ["audited"], "kind: must be one of certified, label, claimed, got 'audited'"),
    (lambda runs: runs, ["certified", "test_acc"],
     "metric: must be one of accuracy, worst_class, alignment, feedback_alignment, got 'test_acc'"),
    (lambda runs: runs[runs["mechanism"] == "per_example"], ["label"], "a finite epsilon/label, found none"),
    (lambda runs: runs.drop(columns="test/worst_class_accuracy"), ["certified", "worst_class"], "missing for 24 of 24"),
    (lambda runs: runs.drop(columns="alignment/layer_2"), ["certified", "alignment"], "measured in none of 24 trials")])
def test_what_has_no_frontier_is_refused(runs, kept, wanted, message):
    with pytest.raises(ReportError, match=message):
        frontiers.frontier(kept(runs), *wanted)


def test_what_an_axis_cannot_show_is_refused(runs):
    certified, label = of_all(runs)
    strange = certified.replace({"algorithm": {"dfa": "mine", "bp": "yours"}})
    for frame, message in ((pd.concat([certified, label]), "kind: must be one on an axis, got certified, label"),
                           (pd.concat(of_all(runs, kinds=("claimed",))), "formula: must be one on an"),
                           (label.assign(delta=[1e-5, 1e-6]), "delta: must be one"),
                           (label.assign(epsilon=0.0), "epsilon > 0"), (label[:0], "epsilon > 0"),
                           (strange, "algorithm: must be one of softmax, bp, dfa, .*, got yours, mine; import")):
        with pytest.raises(ReportError, match=message):
            frontier_figure.frontier_axes(frame, Figure().subplots())


# Pareto fronts, in closed form

def test_pareto_front():
    epsilon, accuracy = [1, 2, 2, 3, 4, 1], [0.5, 0.7, 0.6, 0.7, 0.8, 0.5]
    assert pareto_front(epsilon, accuracy).tolist() == [True, True, False, False, True, True]
    assert pareto_front([], []).tolist() == []
    assert pareto_front([1, 2, 3], [3, 2, 1]).tolist() == [True, False, False]


@pytest.mark.parametrize(("epsilon", "accuracy", "message"), [
    ([0.0], [0.5], "epsilon: must be finite and > 0"), ([math.inf], [0.5], "epsilon: must be finite"),
    ([1.0], [math.nan], "value: must be finite"), ([1.0, 2.0], [0.5], r"shapes \(2,\) and \(1,\)")])
def test_points_that_have_no_place_are_refused(epsilon, accuracy, message):
    with pytest.raises(ValueError, match=message):
        pareto_front(epsilon, accuracy)
