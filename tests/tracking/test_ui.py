"""`photonic ui`: a port in use, and how many clicks MLflow's page takes from a link that it prints."""

import json
import socket
from pathlib import Path

import mlflow
import pytest
from browser import Browser, chromium
from fault_tools import answers, photonic, wait_for
from ray_nodes import free_port
from search_tools import train

from pipeline.cli import main
from pipeline.experiment.experiment import parse_experiment
from pipeline.sweep.outcome import shared_view
from pipeline.tracking.store import Store
from pipeline.tracking.ui import VIEW
from pipeline.trials.naming import setting_key, short_name

FILE = """
name: shown
base: {dataset: digits, hidden: [8], epochs: 2, mechanism: per_example, sampler: poisson, batch_size: 64}
grid: {algorithm: [bp, dfa], target_epsilon: [1, 3], learning_rate: [0.5, 1], seed: [0, 1]}
"""
HEADERS = "[...document.querySelectorAll('[role=columnheader]')].map(e => e.innerText.trim()).filter(Boolean)"
# Of the switch between MLflow's table and its charts; a mouse that is pressed in the middle of it.
SWITCH = """(() => {
  const found = [...document.querySelectorAll('label, button, [role=radio]')].find(e =>
    e.querySelector('input[value=CHART]') || e.matches('[value=CHART]') || /chart/i.test(e.ariaLabel ?? ''));
  if (!found) return null;
  const box = found.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})()"""


def test_a_port_in_use_ends_with_one_line_and_does_not_show_whose_it_is(tmp_path, capsys):
    Store(root=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["ui", "--mlruns", str(tmp_path), "--port", str(port)]) == 1
    told = capsys.readouterr()
    assert told.err == f"error: --port: must be a free port, got {port}, which another program holds\n"
    assert not told.out


def test_a_store_that_is_not_there_is_not_made_to_be_looked_at(tmp_path, capsys):
    assert main(["ui", "--mlruns", str(tmp_path / "runs")]) == 2
    assert "does not exist (run the sweep first" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_the_view_has_accuracy_epsilon_and_what_varies():
    experiment = parse_experiment(FILE, Path("shown.yaml"))
    view = json.loads(shared_view(experiment.possible, experiment.varied)[VIEW])
    assert view["selectedColumns"] == [
        "metrics.`validation/accuracy`", "metrics.`test/accuracy`", "metrics.`epsilon/certified/pld`",
        "params.`algorithm`", "params.`target_epsilon`", "params.`calibrated.noise_multiplier`",
        "params.`learning_rate`", "params.`seed`"]
    assert view["orderByKey"] == "metrics.`validation/accuracy`" and view["orderByAsc"] is False
    plain = parse_experiment("base: {dataset: digits, validation_fraction: 0}", Path("plain.yaml"))
    view = json.loads(shared_view(plain.possible, plain.varied)[VIEW])
    assert view["orderByKey"] == "metrics.`test/accuracy`" and "compareRunCharts" not in view


def test_runs_are_grouped_by_a_tag_that_every_run_has_and_all_seeds_of_a_setting_share(tmp_path):
    experiment, store = parse_experiment(FILE, Path("shown.yaml")), Store(root=tmp_path)
    view = json.loads(shared_view(experiment.possible, experiment.varied)[VIEW])
    assert view["groupBy"] == {"aggregateFunction": "average",
                               "groupByKeys": [{"mode": "tag", "groupByData": "setting"}]}
    store.open_sweep("shown")
    train(store, experiment.trials, also=experiment.varied)
    trials, groups = {trial.trial_key: trial for trial in experiment.trials}, {}
    for run in store.runs():
        groups.setdefault(run.tags["setting"], set()).add(setting_key(trials[run.trial_key]))
    assert set(groups) == {f"{algorithm} eps{epsilon} lr{rate}" for algorithm in ("bp", "dfa") for epsilon in (1, 3)
                           for rate in (0.5, 1.0)}
    assert all(len(settings) == 1 for settings in groups.values())


def test_mlflows_page_knows_the_words_of_the_view():
    """Its program reads an unknown word as no grouping at all, and shows every run."""
    folder = Path(mlflow.__file__).parent / "server" / "js" / "build" / "static" / "js"
    program = "".join(path.read_text(encoding="utf-8") for path in folder.glob("main.*.js"))
    for word in ('="average"', '="tag"', "groupByKeys", "groupByData", "aggregateFunction", '"groupBy"'):
        assert word in program, word


@pytest.fixture
def served(tmp_path):
    """The lines that `photonic ui` prints, while it serves a sweep."""
    experiment, root, port = parse_experiment(FILE, Path("shown.yaml")), tmp_path / "mlruns", free_port()
    store = Store(root=root)
    store.open_sweep("shown", params={"trials": len(experiment.trials)},
                     contents=shared_view(experiment.possible, experiment.varied))
    train(store, experiment.trials, also=experiment.varied)
    store.close_sweep("FINISHED")
    with photonic("ui", "--mlruns", root, "--port", port, cwd=tmp_path, HOME=str(tmp_path)) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        try:
            wait_for(lambda: answers(f"http://127.0.0.1:{port}"))
            yield lines
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.skipif(not chromium(), reason="needs Chromium")
def test_accuracy_against_epsilon_is_one_click_from_the_runs_and_none_from_its_own_link(served, tmp_path):
    _, runs, chart = (line.split()[0] for line in served)
    # the page draws other charts below it, sooner or later: each plot's titles are read by themselves
    plots = ("[...document.querySelectorAll('.js-plotly-plot')].map(plot => "
             "[...plot.querySelectorAll('.xtitle, .ytitle')].map(e => e.textContent).sort().join(' and '))")
    expected = "epsilon/certified/pld and test/accuracy"
    browser = Browser(chromium(), tmp_path / "profile")
    try:
        browser.look(2600)  # wide enough for all columns, which are drawn only where they are seen
        browser.call("Page.navigate", url=runs)
        shown = wait_for(lambda: (found := browser.run(HEADERS)) and "validation/accuracy" in found and found)
        assert {"algorithm", "target_epsilon", "learning_rate", "seed", "test/accuracy",
                "epsilon/certified/pld"} <= set(shown) and not {"hidden", "batch_size", "train/loss"} & set(shown)
        text = wait_for(lambda: "17 matching runs" in (found := browser.run("document.body.innerText")) and found)
        names = {short_name(trial, ("learning_rate",)) for trial in parse_experiment(FILE, Path("shown.yaml")).trials}
        assert len(names) == 16 and all(f"\n{name}\n" in text for name in names), "all, and none is collapsed"
        assert text.count("\nGroup: ") == 8, "a mean over seeds for each setting"
        x, y = wait_for(lambda: browser.run(SWITCH))
        for kind in ("mousePressed", "mouseReleased"):  # the one click
            browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        wait_for(lambda: expected in browser.run(plots))
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=chart)
        wait_for(lambda: expected in browser.run(plots))
    finally:
        browser.close()
