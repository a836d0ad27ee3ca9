"""Heat maps and sweeps along a setting, from synthetic trials; and what all exhibits have in common."""

import math

import numpy as np
import pandas as pd
import pytest
from stored import changed, run_of

from analysis.exhibits import heatmaps, metrics, sweeps
from analysis.exhibits.metrics import METRICS
from analysis.runs import ReportError
from analysis.statistics import SUMMARY, bootstrap_interval, mean_interval, plus_minus, summarize
from pipeline.experiment.exhibits import mismatch
from pipeline.trials.config import TrialConfig

pytestmark = pytest.mark.usefixtures("only_svg")

BASE = {"dataset": "digits", "hidden": (32, 16), "mechanism": "photonic", "batch_size": 64, "epochs": 2}


def grid(**fields):
    """Trials of DFA and PDFA, two seeds each, at every combination of the fields' values."""
    configs = [BASE]
    for name, values in {"algorithm": ["dfa", "pdfa"], **fields, "seed": [0, 1]}.items():
        configs = [{**config, name: value} for config in configs for value in values]
    return [TrialConfig(**config) for config in configs]


SIGMAS, TAUS, BATCHES = (0.0, 0.1, 0.5), (0.5, 1.0), (32, 64, 128)
GRID = grid(sigma=SIGMAS, tau_h=TAUS)
BY_BATCH = grid(sigma=(0.0, 0.1), batch_size=BATCHES)
CERTIFIED = grid(mechanism=["per_example"], sampler=["poisson"], target_epsilon=[3.0], clipping_norm=[1.0, 2.0])


def accuracy(config):
    return 0.9 - config.sigma + 0.1 * config.tau_h - 0.001 * config.batch_size + 0.02 * config.seed


def alignment(config):
    """Of layer 1; layer 2 has the double, and the output layer 0.9."""
    return 0.2 - 0.2 * config.sigma + 0.1 * (config.algorithm == "pdfa")


def tracked(configs):
    """As `load_runs` has them, without a store."""
    return pd.DataFrame([run_of(config, {
        "test/accuracy": accuracy(config), "test/worst_class_accuracy": 0.1, "alignment/layer_1": alignment(config),
        "alignment/layer_2": 2 * alignment(config), "alignment/layer_3": 0.9},
        {"privacy.relation": "add/remove" if config.sampler == "poisson" else "replace-one"}) for config in configs])


def test_up_to_three_values_have_their_range_as_bootstrap_interval():
    assert bootstrap_interval([1.0, 2.0]) == (1.5, 1.0, 2.0, 2)
    assert bootstrap_interval([4.0, 1.0, 2.0]) == pytest.approx((7 / 3, 1.0, 4.0, 3))
    assert bootstrap_interval([3.0, 3.0, 3.0]) == (3.0, 3.0, 3.0, 3)
    mean, low, high, n = bootstrap_interval([84.2])
    assert (mean, n) == (84.2, 1) and math.isnan(low) and math.isnan(high)


def test_four_and_five_values_count_all_their_draws():
    # Of four zeros and ones, P[mean of 4 draws <= k/4] is binomial: P[0 ones] = 1/16 > 2.5%.
    assert bootstrap_interval([0.0, 0.0, 1.0, 1.0])[1:3] == (0.0, 1.0)
    # P[no one among 5 draws of p = 3/5] = .010, at most one = .087: the 2.5% quantile is 1/5; at the top 5/5 (.078).
    assert bootstrap_interval([0.0, 0.0, 1.0, 1.0, 1.0])[1:3] == (0.2, 1.0)
    assert bootstrap_interval([0.0, 0.0, 1.0, 1.0, 1.0], confidence=0.5)[1:3] == pytest.approx((0.4, 0.8))


def test_the_bootstrap_of_many_values_covers_the_mean_nearly_as_often_as_it_says():
    rng, expected = np.random.default_rng(30), 0.935
    intervals = [bootstrap_interval(rng.normal(size=30), resamples=1000) for _ in range(600)]
    covered = sum(low <= 0 <= high for _, low, high, _ in intervals) / 600
    assert abs(covered - expected) < 4 * math.sqrt(expected * (1 - expected) / 600)
    assert bootstrap_interval([0.0] * 29 + [1.0]).high > 0, "every value is drawn"


def test_a_summary_has_both_intervals_and_repeats():
    values = np.random.default_rng(0).normal(size=8)
    summary = summarize(values, -10, 10)
    assert list(summary) == SUMMARY and summary == summarize(values, -10, 10)
    assert (summary["mean"], summary["low"], summary["high"], summary["n"]) == mean_interval(values)
    assert summary["low"] < summary["bootstrap_low"] < summary["mean"] < summary["bootstrap_high"] < summary["high"]
    assert summary["half_width"] == pytest.approx(summary["high"] - summary["mean"])
    assert plus_minus(85.689, half_width=0.301) == "85.69 ± 0.30"
    assert plus_minus(0.5, half_width=math.nan, digits=3) == "0.500"
    assert plus_minus(86.67, half_width=38.82, minimum=0, maximum=100) == "86.67 [47.85, 100.00]"
    summary = summarize([99.0, 95.0], 0, 100)  # 97 +- 12.706 sqrt(8)/sqrt(2): cut to what can be, but its half width
    assert (summary["low"], summary["high"]) == pytest.approx((97 - 25.41, 100), abs=0.01)
    assert summary["half_width"] == pytest.approx(25.41, abs=0.01)
    assert METRICS["alignment"].summarize([0.9, -0.9])["low"] == -1


def test_a_missing_cell_is_marked_and_a_trial_without_alignment_left_out():
    runs = tracked([c for c in GRID if (c.algorithm, c.sigma, c.tau_h) != ("dfa", 0.1, 1.0)])
    runs.loc[0, "alignment/layer_2"] = math.nan
    table = heatmaps.tabulate(runs, "alignment")
    assert len(table) == 11 and table["n"].tolist() == [1] + [2] * 10
    figure = heatmaps.plot(table)
    assert [text.get_text() for text in figure.axes[0].texts][3] == "–"
    assert "n = 1 to 2 seeds" in figure.get_supxlabel()


def test_what_heat_maps_and_sweeps_cannot_show_is_refused():
    runs = tracked(GRID)
    several = changed(runs, learning_rate=pd.Series([0.1, *[0.2] * (len(runs) - 1)]))  # one of two would be chosen
    for tabulate, frame, of, message in (
            (heatmaps.tabulate, several, "accuracy", "validation/accuracy: missing"),
            (heatmaps.tabulate, tracked(CERTIFIED), "accuracy", "needs trials with mechanism photonic"),
            (heatmaps.tabulate, runs.drop(columns="alignment/layer_1"), "alignment", "measured in none of 24 trials"),
            (sweeps.tabulate, runs, "clipping_norm", "clipping_norm: needs trials that have it, found none"),
            (sweeps.tabulate, runs, "batch_size", "validation/accuracy: missing")):
        with pytest.raises(ReportError, match=message):
            tabulate(frame, of)


def test_a_certified_sweep_says_what_its_noise_guarantees():
    table = sweeps.tabulate(tracked(CERTIFIED), "clipping_norm")
    assert sweeps.noise_title(table) == "certified ε ≤ 3, add/remove, δ = 1e-05"
    label = grid(target_label_epsilon=[3.0], tau_h=TAUS)
    title = sweeps.noise_title(sweeps.tabulate(tracked(label), "tau_h"))
    assert title == "label (features public) ε ≤ 3, replace-one label, δ = 1e-05"


ONE_SIGMA, PLAIN = grid(sigma=[0.1], tau_h=TAUS), [TrialConfig(algorithm="bp")]


@pytest.mark.parametrize(("exhibit", "trials", "reason"), [
    ("alignment_heatmap", ONE_SIGMA, "two values or more of both sigma and tau_h, got sigma 0.1 and tau_h 0.5, 1"),
    ("accuracy_heatmap", PLAIN, "got sigma none and tau_h none"),
    ("accuracy_heatmap", grid(sigma=SIGMAS, tau_h=TAUS, batch_size=BATCHES, validation_fraction=[0.0]),
     "chooses by validation accuracy among trials of one algorithm, sigma and tau_h, here differing in batch_size"),
    ("alignment_heatmap", grid(sigma=SIGMAS, tau_h=TAUS, alignment_batches=[0]), "alignment_batches 0"),
    ("tau_h_sweep", BY_BATCH, "at two values or more of tau_h, got 1"),
    ("batch_size_sweep", PLAIN, "two values or more of batch_size, got 256"),
    ("clipping_norm_sweep", GRID, "two values or more of clipping_norm, got none"),
    ("batch_size_sweep", grid(batch_size=BATCHES, tau_h=TAUS, validation_fraction=[0.0]), "here differing in tau_h"),
    ("batch_size_sweep", grid(batch_size=BATCHES, delta=[1e-5, 1e-6]), "needs one delta"),
    ("frontier_slices", PLAIN, "needs trials with a certified epsilon"),
    ("frontier_slices", grid(sigma=[0.1, 1]), "none varies"), ("main_effects", PLAIN, "needs a balanced grid"),
    ("means", PLAIN, "differ in their seed alone"), ("main_effects", GRID[1:], "needs a balanced grid"),
    ("by_sigma", PLAIN, "needs trials of one algorithm at two values or more of sigma, got none"),
    ("by_learning_rate", PLAIN, "needs trials of one algorithm and noise at two values or more of learning_rate, got "),
    ("frontier_alignment", grid(sigma=[0.1, 1], alignment_batches=[0]), "alignment_batches 0"),
    ("frontier_worst_class", PLAIN, "needs trials with a certified epsilon"),
    ("frontier_claimed", CERTIFIED, "needs trials with a claimed epsilon"),
    ("frontier_claimed", grid(sigma=[0.0]), "sigma > 0"),
    ("frontier_claimed", grid(target_label_epsilon=[3.0], joint_release=[True]), "neither joint_release nor denoise"),
    ("frontier_claimed", grid(sigma=SIGMAS, tau_h=TAUS, validation_fraction=[0.0]), "here differing in tau_h"),
    ("alignment_heatmap", GRID, ""), ("accuracy_heatmap", [*GRID, TrialConfig(dataset="digits", batch_size=64)], ""),
    ("tau_h_sweep", GRID, ""), ("tau_h_sweep", grid(tau_h=TAUS, alignment_batches=[0]), ""), ("by_sigma", GRID, ""),
    ("batch_size_sweep", BY_BATCH, ""), ("by_learning_rate", grid(learning_rate=[0.1, 1]), ""),
    ("clipping_norm_sweep", CERTIFIED, ""), ("frontier_claimed", grid(sigma=[0.0, 0.1, 1]), ""),
    ("frontier_worst_class", grid(sigma=[0.1, 1]), ""),
    ("accuracy_heatmap", grid(sigma=SIGMAS, tau_h=TAUS, alignment_batches=[0]), "")])
def test_misfits_are_named_in_one_line(exhibit, trials, reason):
    text = mismatch(exhibit, trials)
    assert bool(text) == bool(reason) and reason in text and "\n" not in text


def test_alignment_counts_convolutions_as_hidden_layers():
    config = TrialConfig(dataset="digits", network="convnet", channels=(2,), hidden=(16,), batch_size=64)
    assert metrics.hidden_alignment(tracked([config])).tolist() == pytest.approx([1.5 * 0.2])

