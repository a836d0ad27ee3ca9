"""Lines and heatmaps over settings, from synthetic trials; and what all exhibits have in common."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from figures import texts_of
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from stored import run_of
from stored import sweep_of as of

from analysis import catalogue, style
from analysis.exhibits import along, metrics, needs
from analysis.exhibits.metrics import METRICS
from analysis.layout import NOISE, Layout, levels, lines_of, panels_of
from analysis.runs import ReportError, such
from analysis.statistics import SUMMARY, bootstrap_interval, mean_interval, plus_minus, summarize
from analysis.text import fixed_text
from pipeline.experiment.experiment import load_experiment, parse_experiment
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import GUARANTEED, KINDS
from pipeline.trials.naming import method

SHIPPED = sorted(file for file in (Path(__file__).parents[2] / "experiments").rglob("*.yaml")
                 if "cluster" not in file.parts)

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


def table_of(trials, *axes, runs=None, **report):
    runs = tracked(trials) if runs is None else runs
    shown = such(runs, lambda trial: bool(needs.with_axes([trial], axes)))
    return along.tabulate(shown, axes, of(trials, **report))


def test_a_missing_cell_is_marked_and_a_trial_without_alignment_left_out():
    trials = [c for c in GRID if (c.algorithm, c.sigma, c.tau_h) != ("dfa", 0.1, 1.0)]
    runs = tracked(trials)
    runs.loc[0, "alignment/layer_2"] = math.nan
    table = table_of(trials, "tau_h", "sigma", runs=runs)
    of_alignment = table[table["metric"] == "alignment"]
    assert len(of_alignment) == 11 and of_alignment["n"].tolist() == [1] + [2] * 10
    figure = along.heatmap(table, ["tau_h", "sigma"])
    assert [text.get_text() for text in figure.axes[0].texts] == ["89.6", "94.6", "79.6", "–", "39.6", "44.6"]
    assert [ax.get_title() for ax in figure.axes[:4]] == ["DFA", "PDFA", "DFA", "PDFA"]
    assert [ax.get_ylabel() for ax in figure.axes[4:]] == ["Test accuracy (%)", "Alignment of the\nupdate (cosine)"]


def test_what_heat_maps_and_lines_cannot_show_is_refused():
    runs = tracked(GRID)
    two = [*GRID, *grid(sigma=SIGMAS, tau_h=TAUS, learning_rate=[0.2])]  # one of two would be chosen
    no_layer = runs.drop(columns="alignment/layer_1")
    for trials, frame, axes, best_of, message in (
            (two, tracked(two), ["tau_h", "sigma"], ("learning_rate",), "validation/accuracy: missing"),
            (CERTIFIED, tracked(CERTIFIED), ["sigma", "tau_h"], (), "sigma and tau_h: needs trials that have it"),
            (GRID, no_layer, ["tau_h", "sigma"], (), "measured in none of 24 trials"),
            (GRID, runs, ["clipping_norm"], (), "clipping_norm: needs trials that have it, found none")):
        with pytest.raises(ReportError, match=message):
            table_of(trials, *axes, runs=frame, best_of=best_of)


def test_lines_say_what_their_noise_guarantees_and_what_is_fixed():
    certified = catalogue.draw("by_clipping_norm", of(CERTIFIED), tracked(CERTIFIED).assign(
        **{"epsilon/certified/pld": 2.99}), None)
    notes = " ".join(certified.texts.notes)
    assert "Each ε is a certified ε (simulated; add/remove, poisson, δ = 1e-05)." in notes
    assert "Fixed: scikit-learn's digits, features pixels, network mlp, mechanism per_example, ε ≤ 3, m = 64," in notes
    assert "| DFA | 94.60 [81.89, 100.00] | 94.60 [81.89, 100.00] |" in certified.markdown
    label = grid(target_label_epsilon=[3.0], tau_h=TAUS)
    drawn = catalogue.draw("by_tau_h", of(label), tracked(label).assign(**{"epsilon/label/pld": 2.99}), None)
    assert "Each ε is a label ε (labels only, simulated; replace-one label, shuffled, δ = 1e-05)." in drawn.texts.notes
    assert any("cosine of the released update, after clipping and noise" in note for note in drawn.texts.notes)


def test_settings_that_follow_the_algorithm_are_told_by_algorithm():
    trials = [replace(trial, algorithm=name, epochs=epochs, batch_size=size) for trial in CERTIFIED[:1]
              for name, epochs, size in (("bp", 4, 64), ("dfa", 2, 64), ("dfa", 2, 128))]
    told = fixed_text(tracked(trials), ("dataset",))
    assert told.endswith("optimizer sgd. By algorithm: BP epochs = 4; DFA epochs = 2."), told


def test_the_alignment_of_the_feedback_stands_beside_that_of_the_update_where_it_was_logged():
    runs = tracked(GRID).assign(**{f"alignment/feedback/layer_{k}": 0.3 * k for k in (1, 2)})
    table = table_of(GRID, "tau_h", runs=runs)
    assert table["metric"].unique().tolist() == ["accuracy", "alignment", "feedback_alignment"]
    assert table[table["metric"] == "feedback_alignment"]["mean"].tolist() == pytest.approx([0.45] * 12)
    drawn = catalogue.draw("by_tau_h", of(GRID), runs, None)
    assert any("before clipping and noise" in note for note in drawn.texts.notes)


# what tells lines and panels apart

ONE_SIGMA, PLAIN = grid(sigma=[0.1], tau_h=TAUS), [TrialConfig(algorithm="bp")]


@pytest.mark.parametrize(("trials", "axes", "best_of", "lines", "panels"), [
    (GRID, ["tau_h"], (), (), ("setting",)),  # 2 algorithms x 3 sigmas are more than five lines
    ([c for c in GRID if c.algorithm == "dfa"], ["tau_h"], (), ("setting",), ()),
    (GRID, ["sigma"], (), ("tau_h",), ()), (GRID, ["sigma"], ("tau_h",), (), ()),
    (grid(sigma=SIGMAS, tau_h=TAUS, batch_size=BATCHES), ["sigma"], (), ("tau_h",), ("batch_size",)),
    (grid(sigma=SIGMAS, dataset=["digits", "mnist"]), ["sigma"], (), (), ("dataset",)),
    ([*grid(sigma=SIGMAS, tau_h=[1.0]), *grid(sigma=SIGMAS, tau_h=[2.0], learning_rate=[0.3])], ["sigma"], (),
     ("learning_rate",), ())])
def test_further_settings_are_lines_up_to_five_then_panels(trials, axes, best_of, lines, panels):
    layout = lines_of(trials, axes, of(trials, best_of=best_of))
    assert (layout.lines, layout.panels, layout.fault) == (lines, panels, "")


def test_more_than_panels_can_show_is_refused_with_what_would():
    wide = grid(sigma=[0.1], batch_size=range(16, 16 + 14), tau_h=range(1, 15))
    assert catalogue.mismatch("by_sigma", of(wide)) == (
        "has at most 5 lines in each of 12 panels, but trials also differ in batch_size (14 values), tau_h (14 "
        "values); give --where tau_h=1, or `report: {best_of: [tau_h]}`, which takes the best by validation accuracy")


def test_settings_that_zip_moves_with_the_axis_are_named_at_it_and_the_presets_may_change():
    text = ("preset: recommended\nbase: {dataset: digits, mechanism: per_example, algorithm: dfa}\n"
            "grid: {target_epsilon: [1, 3], seed: [0, 1]}\nzip: {clipping_norm: [0.5, 1], averaging: [0.8, 0.9]}\n")
    experiment = parse_experiment(text, Path("x.yaml"))
    layout = lines_of(experiment.trials, ["clipping_norm"], experiment)
    assert layout == Layout(lines=("setting",), bound=("averaging",))
    assert len({trial.epochs for trial in experiment.trials}) == 2 and "epochs" in experiment.by_preset
    along_epsilon = lines_of(experiment.trials, ["target_epsilon"], experiment)
    assert along_epsilon == Layout(lines=("averaging",), bound=("clipping_norm",))


@pytest.mark.usefixtures("extensions")
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_line_of_a_shipped_figure_joins_points_that_differ_in_its_axis_and_the_seed_alone(file):
    """But for settings that the file asks to be tuned at every point, which a table then names."""
    experiment = load_experiment(file)
    for name in catalogue.listed(experiment):
        if name.startswith("frontier"):
            for kind in ("claimed",) if name == "frontier_claimed" else GUARANTEED:
                of_one = needs.of_kind(experiment.trials, kind)
                check_lines(of_one, (*KINDS[kind].noise, "setting"), experiment)
        elif axes := needs.axes_of(name):
            check_lines(needs.with_axes(experiment.trials, axes), axes, experiment)


def check_lines(trials, axes, experiment):
    layout = (panels_of if len(axes) == 2 and "setting" not in axes else lines_of)(trials, axes, experiment)
    assert not layout.fault
    lines = {}
    for trial in trials:
        lines.setdefault((method(trial), *levels(trial, layout.factors)), []).append(trial)
    asked = {*axes, *layout.bound, *experiment.report.best_of, *experiment.by_preset, "seed"}
    asked |= {*NOISE} if "setting" in (*axes, *layout.factors) else set()
    for of_line in lines.values():
        fields = [trial.canonical() for trial in of_line]
        differ = {name for one in fields for name in one if any(one.get(name) != other.get(name) for other in fields)}
        assert differ <= asked, differ - asked


# what a figure must be for print

LONG = {"bp": "Back-propagation with per-example clipping", "dfa": "Direct feedback alignment (ours, with denoising)",
        "tdfa": "Ternarized", "pdfa": "Photonic direct feedback alignment on an optical processor"}


def drawn_cases(count):
    """Figures of one to six algorithms: a frontier, one epsilon, lines, heatmaps, worst class."""
    algorithms = ["bp", "dfa", "tdfa", "pdfa", "hybrid", "softmax"][:count]
    certified = [c for a in algorithms for c in grid(
        algorithm=["bp" if a == "softmax" else a], hidden=[() if a == "softmax" else (8,)], mechanism=["per_example"],
        network=["convnet" if a == "hybrid" else "mlp"], sampler=["poisson"], target_epsilon=[0.5, 1.0, 3.0, 8.0])]
    one = [c for c in certified if c.target_epsilon == 3]
    swept = grid(algorithm=["dfa", "tdfa", "pdfa"][:min(3, count)], sigma=SIGMAS, tau_h=(0.25, 0.5, 1.0, 2.0))
    for trials, name in ((certified, "frontier"), (certified, "frontier_worst_class"), (one, "frontier"),
                         (certified, "frontier_alignment"), (swept, "by_tau_h"), (swept, "by_sigma"),
                         (swept, "by_tau_h_and_sigma")):
        runs = tracked(trials)
        level = pd.Series([c.target_epsilon for c in trials])
        yield name, of(trials), runs.assign(**{"epsilon/certified/pld": level.mask(level == 0)})


@pytest.mark.parametrize("width", [3.25, 6.75])
@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow), 6])
def test_no_text_leaves_a_figure_or_lies_over_another_and_axes_have_half_of_it(count, width):
    with style.written_as(style.FigureFiles(("png",), width, labels=LONG if count > 1 else {})):
        for name, experiment, runs in drawn_cases(count):
            figure = catalogue.draw(name, experiment, runs, None).figure
            if figure:
                check_print(figure, width)


def check_print(figure, width):
    boxes = texts_of(figure)
    for place, (text, box) in enumerate(boxes):
        assert box.x0 > -1 and box.y0 > -1 and box.x1 < figure.bbox.width + 1 and box.y1 < figure.bbox.height + 1, text
        for other, its_box in boxes[:place]:
            over = Bbox.intersection(box, its_box)
            assert over is None or min(over.width, over.height) < 1.5, (text.get_text(), other.get_text())
    columns = {}
    for ax in figure.axes:
        if ax.get_label() != "<colorbar>":
            columns.setdefault(round(ax.get_position().x0, 1), []).append(ax.get_position().height)
    assert max(map(sum, columns.values())) >= 0.49
    assert not width or figure.get_figwidth() == width


@pytest.mark.parametrize(("n", "shifts"), [(3, [0, -1.5, 1.5]), (1, [0, 0, 0])])
def test_lines_stand_beside_each_other_where_their_bars_meet_and_no_marker_is_cut(n, shifts):
    rows = [{"algorithm": name, "epsilon": epsilon, "mean": mean, "low": mean - 1, "high": mean, "n": n,
             "half_width": 1} for name, *epsilons in (("bp", 1.36, 9.4), ("dfa", 0.93, 6.5), ("tdfa", 0.931, 6.48))
            for epsilon, mean in zip(epsilons, (90, 100), strict=True)]
    ax = Figure(figsize=(1.3, 1.3), layout="constrained").subplots()
    style.curves(ax, pd.DataFrame(rows), "epsilon", style.looks(pd.DataFrame(rows)))
    style.log_axis(ax, [0.93, 9.4])
    style.within(ax, 0, 100)
    ax.figure.canvas.draw()
    for line, shift in zip(ax.lines, shifts, strict=True):
        at = line.get_transform().transform(line.get_xydata())
        moved = (at - ax.transData.transform(line.get_xydata()))[:, 0] * 72 / ax.figure.dpi
        assert moved == pytest.approx([shift, shift])
        half = line.get_markersize() / 2 * ax.figure.dpi / 72
        assert (at - half > ax.bbox.min).all() and (at + half < ax.bbox.max).all()


def test_a_figure_that_cannot_fit_its_width_says_which_would():
    trials = grid(sigma=SIGMAS, tau_h=[value / 1000 for value in range(1001, 1012)])
    too_narrow = pytest.raises(ReportError, match="width of 4.1 .*--width 4.1")
    with style.written_as(style.FigureFiles(("png",), 3.25)), too_narrow:
        catalogue.draw("by_tau_h_and_sigma", of(trials), tracked(trials), None).files  # noqa: B018


def test_a_figure_too_tall_for_a_page_shows_accuracy_and_says_so_and_its_ticks_are_at_the_values():
    trials = grid(sigma=SIGMAS, tau_h=[1.0], batch_size=(500, 600, 712, 1024))
    with style.written_as(style.FigureFiles(("png",), 3.25)):
        drawn = [catalogue.draw("by_batch_size", of(shown), tracked(shown), None)
                 for shown in (trials, [c for c in trials if c.sigma and c.batch_size > 700])]
    assert [exhibit.title.partition(" by ")[0] for exhibit in drawn] == ["Accuracy", "Accuracy and alignment"]
    assert [[text.get_text() for text in exhibit.figure.axes[0].get_xticklabels()] for exhibit in drawn] == [
        ["500", "600", "712", "1024"], ["712", "1024"]]


def test_text_that_no_width_holds_is_refused():
    figure = Figure(figsize=(3, 2))
    figure.subplots().text(1.5, 0.5, "text beside the axes, wherever they end")
    with pytest.raises(ReportError, match="figure: needs a width of .* for its text, got .*; at most 50 can be had"):
        style.draw(figure)


@pytest.mark.parametrize(("exhibit", "trials", "reason"), [
    ("by_tau_h_and_sigma", ONE_SIGMA, "two values or more of tau_h and of sigma, got tau_h 0.5, 1 and sigma 0.1"),
    ("by_sigma_and_tau_h", PLAIN, "got sigma none and tau_h none"),
    ("by_sigma_and_tau_h", grid(sigma=[0.1, 0.2]), "two values or more of sigma and of tau_h"),
    ("by_sigma_and_tau_h", [c for c in GRID if (c.sigma, c.tau_h) in ((0.1, 0.5), (0.5, 1.0))], "one follows from the"),
    ("by_tau_h", BY_BATCH, "at two values or more of tau_h, got tau_h 1"),
    ("by_batch_size", PLAIN, "two values or more of batch_size, got batch_size 256"),
    ("by_clipping_norm", GRID, "two values or more of clipping_norm, got clipping_norm none"),
    ("frontier_slices", PLAIN, "is no exhibit"), ("by_algorithm", PLAIN, "is no exhibit"),
    ("means", PLAIN, "differ in their seed alone"),
    ("by_sigma", PLAIN, "needs trials that agree in all else at two values or more of sigma, got sigma none"),
    ("frontier_alignment", grid(sigma=[0.1, 1], alignment_batches=[0]), "alignment_batches 0"),
    ("frontier_worst_class", PLAIN, "needs trials with a certified epsilon"),
    ("frontier_claimed", CERTIFIED, "needs trials with a claimed epsilon"),
    ("frontier_claimed", grid(sigma=[0.0]), "sigma > 0"),
    ("frontier_claimed", grid(target_label_epsilon=[3.0], joint_release=[True]), "neither joint_release nor denoise"),
    ("by_tau_h_and_sigma", GRID, ""), ("by_sigma_and_tau_h", [*GRID, TrialConfig(dataset="digits", batch_size=64)], ""),
    ("by_tau_h", GRID, ""), ("by_tau_h", grid(tau_h=TAUS, alignment_batches=[0]), ""), ("by_sigma", GRID, ""),
    ("by_batch_size", BY_BATCH, ""), ("by_learning_rate", grid(learning_rate=[0.1, 1]), ""),
    ("by_clipping_norm", CERTIFIED, ""), ("frontier_claimed", grid(sigma=[0.0, 0.1, 1]), ""),
    ("frontier_worst_class", grid(sigma=[0.1, 1]), "")])
def test_misfits_are_named_in_one_line(exhibit, trials, reason):
    text = catalogue.mismatch(exhibit, of(trials))
    assert bool(text) == bool(reason) and reason in text and "\n" not in text


@pytest.mark.parametrize(("trials", "best_of", "reason"), [
    (grid(sigma=SIGMAS, tau_h=TAUS, validation_fraction=[0.0]), ["tau_h"],
     "takes the best by validation accuracy over tau_h, but not all trials log that"),
    (grid(sigma=SIGMAS, delta=[1e-5, 1e-6]), ["delta"], "needs one delta, but the trials have several")])
def test_the_best_of_settings_is_asked_for_and_needs_scores(trials, best_of, reason):
    assert reason in catalogue.mismatch("by_sigma", of(trials, best_of=best_of))


def test_alignment_counts_convolutions_as_hidden_layers():
    config = TrialConfig(dataset="digits", network="convnet", channels=(2,), hidden=(16,), batch_size=64)
    assert metrics.hidden_alignment(tracked([config]), metrics.UPDATE).tolist() == pytest.approx([1.5 * 0.2])

