"""From a real MLflow store, filled with synthetic records, to tables and figures."""

import json
import math
import re
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from mlflow.tracking import MlflowClient
from stored import changed, records, stored

from analysis import style
from analysis.labels import by_noise
from analysis.papers import figure2, table1
from analysis.report.report import write
from analysis.runs import DuplicateTrials, MissingTrials, MixedTrials, ReportError, frame_of, load_history
from analysis.statistics import mean_interval
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.sections import Shown
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Resources

SIGMAS = (0.0, 0.01, 0.03, 0.05, 0.1, 0.2)
ALGORITHMS = ("bp", "dfa", "tdfa", "pdfa")
SETTINGS = ["non-private", "0", "0.01", "0.03", "0.05", "0.1", "0.2"]
EPOCHS = 3


def trial(algorithm="dfa", sigma=None, seed=0, **other):
    """A non-private trial where sigma is None."""
    if sigma is None:
        return TrialConfig(algorithm=algorithm, seed=seed, epochs=EPOCHS, **other)
    rate = 0.01 if algorithm == "bp" else 1.0
    return TrialConfig(algorithm=algorithm, mechanism="photonic", sigma=sigma, seed=seed, epochs=EPOCHS,
                       **{"learning_rate": rate, **other})


GRID = tuple(trial(algorithm, sigma, seed) for algorithm in ALGORITHMS for sigma in (None, *SIGMAS) for seed in (0, 1))
DIVERGED = trial("bp", 0.2, 1)


def accuracy(config):
    """Fractions with known means: 0.9, less 0.1 per place of the algorithm, less sigma, seeds 0.01 apart."""
    noise = config.sigma if config.mechanism == "photonic" else -0.05
    return 0.9 - 0.1 * ALGORITHMS.index(config.algorithm) - noise + 0.01 * config.seed


def fill(root, name, trials, diverged=()):
    def records_of(config):
        final, noise = accuracy(config), config.sigma if config.mechanism == "photonic" else 0
        metrics = [{"validation/accuracy": final - 0.1 / epoch, "alignment/layer_2": 0.5 - noise + 0.01 * epoch}
                   for epoch in range(1, config.epochs + 1)]
        metrics[-1]["test/accuracy"] = final
        status = "diverged" if config in diverged else "finished"
        return records(config, metrics, {"privacy.certified": "false"}, status)

    return stored(root, name, trials, records_of, {"git_commit": "abc"})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def grid_store(root):
    return fill(root, "grid", GRID, diverged=(DIVERGED,))


@pytest.fixture(scope="module")
def runs(grid_store):
    return frame_of(grid_store.runs(), GRID)


# runs

def test_one_typed_row_per_trial_in_the_order_of_the_grid(runs):
    assert list(runs["trial_key"]) == [config.trial_key for config in GRID]
    private = runs.iloc[GRID.index(trial("pdfa", 0.1, 1))]
    config = trial("pdfa", 0.1, 1)
    for name, value in config.canonical().items():
        read = list(private[name]) if name == "hidden" else private[name]
        assert read == value, name
    assert private["setting"] == "0.1" and private["status"] == "finished"
    assert private["test/accuracy"] == pytest.approx(0.51)
    assert private["validation/accuracy"] == pytest.approx(0.51 - 0.1 / 3)  # the last epoch
    assert private["privacy.certified"] == "false" and private["git_commit"] == "abc"
    assert runs["learning_rate"].dtype == float and runs["seed"].dtype == int and runs["epochs"].dtype == int
    plain = runs[runs["setting"] == "non-private"]
    assert plain["sigma"].isna().all() and plain["activation_floor"].isna().all()
    assert runs.loc[runs["algorithm"] == "bp", "threshold"].isna().all()
    assert by_noise(runs["setting"]) == SETTINGS, "fields that do not apply are empty"


def test_missing_trials_are_counted_and_named(grid_store):
    absent = [trial("dfa", 0.7, seed) for seed in range(7)]
    with pytest.raises(MissingTrials, match=rf"56 of 63 trials are finished; missing: dfa sigma=0.7 seed=0 "
                                            rf"\({absent[0].trial_key}\).* and 2 more \(`photonic sweep X` trains"):
        frame_of(grid_store.runs(), [*GRID, *absent], source="X")


def test_an_unfinished_trial_is_missing_and_others_are_left_out(root):
    store = fill(root, "partial", GRID[:3])
    store.start(GRID[3])
    assert list(frame_of(store.runs(), GRID[1:3])["trial_key"]) == [c.trial_key for c in GRID[1:3]]
    assert list(frame_of(store.runs())["status"]) == ["finished"] * 3 + ["running"]
    with pytest.raises(MissingTrials, match="3 of 4 trials are finished"):
        frame_of(store.runs(), GRID[:4])


def test_a_trial_with_two_runs_is_refused(root):
    store = fill(root, "twice", GRID[:2])
    tags = {"trial_key": GRID[0].trial_key, "status": "finished"}
    client = MlflowClient(tracking_uri=store.uri)
    client.set_terminated(client.create_run(store._experiment_id, tags=tags).info.run_id)
    with pytest.raises(DuplicateTrials, match=GRID[0].trial_key):
        frame_of(store.runs(), GRID[:2])
    assert len(frame_of(store.runs(), GRID[1:2])) == 1


def test_an_empty_sweep_has_no_rows(root):
    store = Store(root=root)
    store.open_sweep("nothing yet")
    frame = frame_of(store.runs())
    assert frame.empty and {"trial_key", "sigma", "setting"} <= set(frame.columns)


# statistics

def test_interval_is_students():
    mean, low, high, n = mean_interval([84.2])
    assert (mean, n) == (84.2, 1) and math.isnan(low) and math.isnan(high), "of one value none is invented"
    # t quantiles at 97.5%: 12.7062 with 1 degree of freedom, 4.3027 with 2; s/sqrt(n) = 1/2, and 1/sqrt(3).
    assert mean_interval([1.0, 2.0]) == pytest.approx((1.5, 1.5 - 6.3531, 1.5 + 6.3531, 2), abs=1e-4)
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414, 3), abs=1e-4)
    assert mean_interval([3.0, 3.0, 3.0]) == (3.0, 3.0, 3.0, 3)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_interval_refuses(values):
    with pytest.raises(ValueError, match="values: must be at least one finite number"):
        mean_interval(values)


# table 1


def test_one_seed_has_no_interval(runs):
    one = runs[runs["seed"] == 0]
    table = table1.tabulate(one)
    assert table["accuracy_low"].isna().all() and table["accuracy_high"].isna().all() and set(table["n"]) == {1}
    text = table1.texts(one, table).markdown
    assert "one seed each (n = 1)" in text and "Diverged" not in text and "±" not in text
    mixed = runs.drop(runs.index[0])
    assert "n = 1 to 2 seeds" in table1.caption(mixed, table1.tabulate(mixed))


@pytest.mark.parametrize("change", [{"epochs": 10}, {"hidden": (512,)}, {"batch_size": 128}, {"activation": "relu"}])
def test_another_setting_is_not_compared_with_the_paper(runs, change, monkeypatch):
    monkeypatch.setitem(table1.SETTING, "epochs", EPOCHS)  # the grid here is the paper's, but for its epochs
    assert table1.tabulate(runs)["paper"].notna().all()
    other = runs.assign(**{name: [value] * len(runs) for name, value in change.items()})
    assert table1.tabulate(other)["paper"].isna().all()


def test_trials_without_accuracy_are_an_error(runs):
    broken = runs.copy()
    broken.loc[5, "test/accuracy"] = math.nan
    with pytest.raises(ValueError, match=rf"test/accuracy: missing for 1 of 56.*bp 0.01 seed=1 \({GRID[5].trial_key}"):
        table1.tabulate(broken)
    with pytest.raises(ValueError, match="missing for 56 of 56"):
        table1.tabulate(runs.drop(columns="test/accuracy"))
    with pytest.raises(ValueError, match="at least one trial"):
        table1.tabulate(runs[:0])


def test_only_seeds_are_averaged(runs):
    mixed = changed(runs, learning_rate=runs["learning_rate"].mask(runs.index == 3, 0.5))
    with pytest.raises(MixedTrials, match="bp 0: only the seed may differ.*learning_rate: 0.01, 0.5"):
        table1.tabulate(mixed)
    with pytest.raises(MixedTrials, match="dataset: must be the same.*fashion_mnist, mnist"):
        table1.tabulate(pd.concat([runs, runs.assign(dataset="mnist")]))


# figure 2

@pytest.fixture(scope="module")
def histories(grid_store, runs):
    pdfa = runs[runs["algorithm"] == "pdfa"]
    return (load_history(runs, "validation/accuracy", grid_store),
            load_history(pdfa, figure2.ALIGNMENT, grid_store))


def lines_of(ax):
    return {line.get_label(): line for line in ax.lines if len(line.get_xdata())}


def test_the_panels_have_the_means_of_their_seeds(histories):
    expected = {s if s == "non-private" else f"σ = {s}" for s in SETTINGS}
    bp, _, _, ax, of_alignment = figure2.plot(figure2.tabulate(*histories)).axes
    assert set(lines_of(bp)) == expected and bp.get_title() == "BP"
    lines = lines_of(ax)
    assert set(lines) == expected
    line = lines["σ = 0.1"]
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata() == pytest.approx([50.5 - 10, 50.5 - 5, 50.5 - 10 / 3])  # percent, mean of the seeds
    assert lines["non-private"].get_linestyle() == "--" and lines["σ = 0"].get_linestyle() == "-"
    band = ax.collections[0].get_datalim(ax.transData)
    assert (band.y1 - band.y0) >= 1  # seeds lie a point apart
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Epoch", "Validation\naccuracy (%)")
    lines = lines_of(of_alignment)
    assert list(lines) == ["non-private", *(f"σ = {s}" for s in SETTINGS[1:])]
    assert lines["σ = 0.2"].get_ydata() == pytest.approx([0.31, 0.32, 0.33])

    with pytest.raises(ReportError, match="needs validation/accuracy, found none"):
        figure2.tabulate(histories[0][:0], histories[1])
    with pytest.raises(ReportError, match="needs alignment/layer_2 of pdfa.*alignment_batches"):
        figure2.tabulate(histories[0], histories[1][:0])


# the report

def test_report_writes_and_logs_everything(grid_store, tmp_path):
    experiment = Experiment("grid", "", GRID, Resources(), Shown(("table1", "figure2")), Path("experiments/some.yaml"))
    files = write(experiment, grid_store, tmp_path / "reports" / "grid").files
    names = ["runs.csv", "table1.csv", "table1.md", "table1.tex", "table1-2.tex",
             *(f"figure2.{extension}" for extension in ("csv", "md", "svg", "pdf", "png")), "manifest.json",
             "index.html"]
    assert [path.name for path in files] == names and all(path.stat().st_size > 200 for path in files)
    client = MlflowClient(tracking_uri=grid_store.uri)
    logged = client.list_artifacts(grid_store._parent_id, "report")
    assert {Path(item.path).name for item in logged} == set(names)
    table = pd.read_csv(files[0])
    assert len(table) == len(GRID) and json.loads(table["hidden"][0]) == [512, 512]
    assert table["trial_key"].tolist() == [config.trial_key for config in GRID]


def test_figures_are_drawn_for_papers_and_leave_the_style_of_a_notebook_alone():
    before, figure = dict(matplotlib.rcParams), Figure(figsize=(10, 3))
    figure.subplots().set_xlabel("Validation accuracy (%)")
    drawn = style.draw(figure)
    assert list(drawn) == ["svg", "pdf", "png"] and ">Validation accuracy (%)</text>" in drawn["svg"].decode()
    assert b"/Type3" not in drawn["pdf"] and drawn["pdf"].startswith(b"%PDF")
    assert int.from_bytes(drawn["png"][16:20], "big") == 3000, "10 inches at 300 dpi"
    assert drawn == style.draw(figure) and dict(matplotlib.rcParams) == before


def test_lines_of_one_algorithm_differ_by_shade_and_marker():
    table = pd.DataFrame({"algorithm": ["bp", "dfa", "dfa"], "epochs": [1, 1, 2]})
    found = style.looks(table, ["epochs"])
    assert {name: found["bp", 1][name] for name in ("color", "marker")} == {
        name: style.look("bp")[name] for name in ("color", "marker")}
    darker, brighter = found["dfa", 1], found["dfa", 2]
    assert darker["color"] < to_rgb(style.look("dfa")["color"]) < brighter["color"]
    assert darker["marker"] != brighter["marker"] and brighter["label"] == "DFA, epochs = 2"


def test_a_marker_of_every_second_point_shows_the_values_of_its_own_point():
    figure = Figure()
    figure.subplots().plot([1, 2, 3, 4], [5, 6, 7, 8], marker="o", markevery=2)
    with style.written_as(style.FigureFiles(("svg",))):
        titles = re.findall("<title>([^<]*)</title>", style.draw(figure)["svg"].decode())
    assert titles[-2:] == ["1.0\n5.0", "3.0\n7.0"]


def test_eps_has_the_colours_that_partly_transparent_bands_and_lines_have_on_white(caplog):
    figure = Figure()
    ax = figure.subplots()
    ax.axhspan(0, 1, color=(1, 0, 0), alpha=0.2)
    ax.plot([0, 1], [0, 1], color=(0, 0, 1), alpha=0.75)
    with style.written_as(style.FigureFiles(("eps", "svg"))):
        drawn = style.draw(figure)
    assert b"opacity: 0.2" in drawn["svg"] and "transparency" not in caplog.text
    assert all(f"\n{colour} setrgbcolor\n".encode() in drawn["eps"] for colour in ("1 0.8 0.8", "0.25 0.25 1"))
