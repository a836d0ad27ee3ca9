"""Two experiments side by side: which trials match, and what their differences are."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from approved import approved
from commands import output
from scipy.stats import ttest_ind, ttest_rel
from stored import records, stored

from analysis import style
from analysis.report.comparison import _labels, plot
from analysis.report.match import PAIRED, WELCH, Side, accuracies, compare, headline, texts
from analysis.runs import MixedTrials, ReportError, frame_of
from analysis.statistics import welch_interval
from pipeline.cli import main
from pipeline.experiment.experiment import parse_experiment

pytestmark = pytest.mark.usefixtures("only_svg")

FILE = """
base: {{dataset: digits, hidden: [16], batch_size: 64, epochs: 1, validation_fraction: 0}}
cases:
  - grid: {{algorithm: [bp, dfa], seed: {{range: [0, {seeds}]}}}}
  - base: {{mechanism: per_example, sampler: shuffled, learning_rate: {rate}}}
    grid: {{algorithm: [bp, dfa], target_epsilon: {targets}, seed: {{range: [0, {seeds}]}}}}
report: []
"""
A = FILE.format(seeds=2, rate=0.1, targets="[2, 4]")
FASTER = FILE.format(seeds=2, rate=0.2, targets="[2, 4, 8]")
MORE_SEEDS = FILE.format(seeds=3, rate=0.1, targets="[2, 4]")
NOISE = np.random.default_rng(0).normal(scale=0.01, size=(2, 100))


def accuracy(config, number):
    """Falls with the place of the algorithm; seeds differ, together in both experiments and apart."""
    shared, own = NOISE[0][config.seed], NOISE[1][10 * number + config.seed] / 4
    return 0.5 + 0.05 * (config.algorithm == "bp") + 0.2 * config.learning_rate + shared + own


def fill(root, name, text, number):
    experiment = parse_experiment(text, Path(f"{name}.yaml"))

    def records_of(config):
        metrics = {"test/accuracy": accuracy(config, number), "alignment/layer_1": 0.1 * number}
        if config.target_epsilon:
            metrics["epsilon/certified/gdp"] = config.target_epsilon
        return records(config, [metrics], {"privacy.relation": "replace-one"})

    store = stored(root, name, experiment.trials, records_of, {"git_commit": str(number) * 40})
    store.log_experiment(text)
    return Side(name, experiment, frame_of(store.runs(), experiment.trials))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module", autouse=True)
def sides(root):
    found = {"a": fill(root / "one", "a", A, 1), "faster": fill(root / "one", "faster", FASTER, 2),
             "more": fill(root / "one", "more", MORE_SEEDS, 3)}
    shutil.copytree(root / "one", root / "two")  # of another checkout
    return found


def cell(found, metric="test/accuracy", **wanted):
    table = found.table[found.table["metric"] == metric]
    for name, value in wanted.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


def expected(side, algorithm, setting):
    runs = side.runs[(side.runs["algorithm"] == algorithm) & (side.runs["setting"] == setting)]
    return 100 * runs.sort_values("seed")["test/accuracy"].to_numpy()


def test_trials_are_matched_by_all_but_what_differs(sides):
    found = compare(sides["a"], sides["faster"])
    assert found.differs == {"learning_rate": ("0.1", "0.2")}
    assert found.unmatched == (0, 4)  # epsilon 8
    settings = list(zip(accuracies(found)["algorithm_a"], accuracies(found)["setting_b"], strict=True))
    assert settings == [(a, s) for s in ("non-private",) for a in ("bp", "dfa")] + [
        (a, s) for a in ("bp", "dfa") for s in ("epsilon=2", "epsilon=4")]
    row = cell(found, algorithm_a="dfa", setting_a="epsilon=4")
    a, b = (expected(side, "dfa", "epsilon=4") for side in (sides["a"], sides["faster"]))
    assert [row["a_mean"], row["b_mean"], row["difference"]] == pytest.approx([a.mean(), b.mean(), (b - a).mean()])
    assert (row["n_a"], row["n_b"]) == (2, 2)
    row = cell(found, "alignment/layer_1", algorithm_a="dfa", setting_a="epsilon=4")
    assert row["difference"] == pytest.approx(0.1)


def test_equal_seeds_are_paired_and_others_are_not(sides):
    row = cell(compare(sides["a"], sides["faster"]), algorithm_a="bp", setting_a="epsilon=2")
    a, b = (expected(side, "bp", "epsilon=2") for side in (sides["a"], sides["faster"]))
    paired, apart = ttest_rel(b, a).confidence_interval(), ttest_ind(b, a, equal_var=False).confidence_interval()
    assert row["interval"] == PAIRED and [row["low"], row["high"]] == pytest.approx([paired.low, paired.high])
    assert paired.high - paired.low < apart.high - apart.low  # what seeds share falls out
    row = cell(compare(sides["a"], sides["more"]), algorithm_a="bp", setting_a="epsilon=2")
    b = expected(sides["more"], "bp", "epsilon=2")
    apart = ttest_ind(b, a, equal_var=False).confidence_interval()
    assert row["interval"] == WELCH and [row["low"], row["high"]] == pytest.approx([apart.low, apart.high])
    assert (row["n_a"], row["n_b"]) == (2, 3)


def test_welch_of_samples_without_spread_or_of_one_value():
    assert welch_interval([1.0, 1.0], [2.0, 2.0, 2.0])[:3] == (1, 1, 1)
    one = welch_interval([1.0], [2.0, 3.0])
    assert one.mean == 1.5 and np.isnan([one.low, one.high]).all() and one.n == 1
    with pytest.raises(ValueError, match="finite"):
        welch_interval([1.0, np.nan], [2.0])


def test_one_seed_has_a_difference_and_no_interval(sides):
    one = [dataclasses.replace(sides[name], runs=sides[name].runs[sides[name].runs["seed"] == 0])
           for name in ("a", "faster")]
    found = compare(*one)
    assert accuracies(found)[["low", "high"]].isna().all().all() and set(accuracies(found)["interval"]) == {""}
    assert "; no interval, as n = 1." in texts(found).body[0]
    plot(found).draw_without_rendering()


def test_what_cannot_be_compared_is_refused_in_one_line(sides):
    a, faster = sides["a"], sides["faster"]
    plain = dataclasses.replace(a, runs=a.runs[a.runs["mechanism"] == "none"])
    private = dataclasses.replace(faster, runs=faster.runs[faster.runs["mechanism"] != "none"])
    with pytest.raises(ReportError, match="a and faster: no trial of one matches a trial of the other"):
        compare(plain, private)
    louder = dataclasses.replace(a, runs=a.runs.assign(target_epsilon=a.runs["target_epsilon"] * 10))
    with pytest.raises(MixedTrials, match="only the seed may differ.*target_epsilon: 20, 40"):
        compare(louder, faster)


def test_the_texts_say_what_differs_and_what_to_make_of_it(sides):
    a, faster = sides["a"], sides["faster"]
    diverged = faster.runs.assign(status=["diverged"] * 2 + ["finished"] * (len(faster.runs) - 2))
    found = compare(a, dataclasses.replace(faster, runs=diverged))
    approved("comparison", "\n\n".join([*headline(found), texts(found).markdown, "# of trials that all finished",
                                        *texts(compare(a, faster)).notes]))


def test_a_difference_below_the_rounding_is_none(sides):
    """Seeds that are all better by a thousandth of a point."""
    b = dataclasses.replace(sides["a"], label="b", runs=sides["a"].runs.assign(
        **{"test/accuracy": sides["a"].runs["test/accuracy"] + 0.00001}))
    found = compare(sides["a"], b)
    assert (accuracies(found)["low"] > 0).all()
    assert headline(found)[1].endswith("in points: 0 with a 95% interval that excludes 0, and 6 more that are no "
                                       "difference at two decimals.")
    assert texts(found).markdown.count("| 0.00 | +0.00 to +0.00 |") == 6


def test_two_sweeps_by_name(root, tmp_path, capsys):
    one = root / "one"
    assert main(["report", "a", "faster", "--mlruns", str(one), "--out", str(tmp_path / "c"),
                 "--format", "svg"]) == 0
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {*(f"comparison.{kind}" for kind in ("csv", "md", "svg", "tex")), "index.html"}
    table = pd.read_csv(tmp_path / "c/comparison.csv")
    assert len(table) == 12 and set(table["metric"]) == {"test/accuracy", "alignment/layer_1"}
    html = (tmp_path / "c/index.html").read_text(encoding="utf-8")
    assert html.count("<figure>") == 1 and "<h1>a and faster</h1>" in html


def test_long_names_widen_a_figure_whose_width_nobody_gave(sides):
    figure = plot(compare(sides["a"], sides["faster"]))
    (ax,), narrow = figure.axes, figure.get_figwidth()
    ax.set_yticks(ax.get_yticks(), ["ternarized direct feedback alignment, eps = 3"] * len(ax.get_yticks()))
    assert narrow < 5 and style.draw(figure)["svg"] and narrow < figure.get_figwidth() < 10


def test_a_sweep_of_two_stores(root, tmp_path, capsys):
    one, two = root / "one", root / "two"
    assert main(["report", "a", "a", "--mlruns", str(one), "--mlruns-b", str(two), "--out", str(tmp_path / "d")]) == 0
    counted, equal, page, beside = capsys.readouterr().out.splitlines()
    assert equal == "The settings of matched trials are equal." and page == f"page: {tmp_path / 'd/index.html'}"
    assert counted.startswith("6 differences in test accuracy, a (B) less a (A), in points: 0 with a 95% interval")
    assert beside.startswith("beside it: comparison.csv .md .tex .svg") and "logged" not in beside
    assert (pd.read_csv(tmp_path / "d/comparison.csv")[["difference", "low", "high"]] == 0).all().all()
    assert "must be two sweeps" in output(capsys, "report", "a", "a", "--mlruns", str(one), code=2)
    assert main(["report", "a", "--mlruns", str(one), "--mlruns-b", str(two)]) == 2
    assert "--mlruns-b: is the store of a second experiment" in capsys.readouterr().err


def test_one_experiment_at_two_commits_is_named_by_them(sides):
    a = sides["a"]
    old, mixed = (a.runs.assign(git_commit=found) for found in ("4" * 40, ["4" * 40] + ["5" * 40] * (len(a.runs) - 1)))
    assert _labels(a.experiment, a.experiment, [old, a.runs]) == ("a at 4444444444", "a at 1111111111")
    assert _labels(a.experiment, a.experiment, [mixed, a.runs]) == ("a (A)", "a (B)")
    assert _labels(a.experiment, sides["more"].experiment, [old, a.runs]) == ("a", "more")
