"""The page of a report: what stands in it, and how it behaves in a real Chromium."""

import base64
import hashlib
import json
import re
import time
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from approved import approved
from browser import Browser, chromium
from latex_tools import check
from stored import records, stored
from test_palette import contrast, luminance

from analysis import catalogue
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.headline import Headline
from analysis.exhibits.table import Table
from analysis.labels import NO_VALUE, algorithm_labels
from analysis.report import page as pages
from analysis.report.overview import commands, trials
from analysis.report.report import write
from analysis.runs import frame_of
from pipeline.cli import main
from pipeline.experiment.experiment import load_experiment, parse_experiment
from pipeline.tracking.artifacts import TrackedRun
from pipeline.tracking.ui import TRAINING, address
from pipeline.trials.fields import ConfigError

HOSTILE = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">&amp; "quoted"'
FILE = f"""
name: hostile
description: >
  {HOSTILE}
base: {{dataset: digits, hidden: [16], batch_size: 64, epochs: 2}}   # {HOSTILE}
cases:
  - grid: {{algorithm: [bp, pdfa], seed: [0, 1]}}
  - base: {{mechanism: photonic}}
    grid: {{algorithm: [bp, pdfa], sigma: [2, 10], seed: [0, 1]}}
report: [table1, figure2, frontier]
"""
COMMIT = "0123456789" * 4
VERSIONS = "python 3.1, torch 2.2, ray 3.3, mlflow 4.4"
NOTE = "not certified: <b>the noise lies in the span</b>"


def records_of(config, status):
    """Accuracy falls with the place of the algorithm and with sigma; epsilons where there is noise."""
    final = 0.9 - 0.1 * ("bp", "pdfa").index(config.algorithm) - config.sigma / 50 + 0.01 * config.seed
    metrics = [{"validation/accuracy": final - 0.1 / epoch, "alignment/layer_1": 0.25, "alignment/layer_2": 0.5,
                "time/epoch_seconds": 1.0} for epoch in (1, 2)]
    for epoch, of_epoch in enumerate(metrics, start=1):
        if config.sigma:
            of_epoch |= {"epsilon/label/gdp": 8 * epoch / config.sigma, "epsilon/label/rdp": 9 * epoch / config.sigma,
                         "epsilon/claimed/saturating/epochs": 5000.0 * epoch}
    metrics[-1]["test/accuracy"] = final
    tags = {"privacy.relation": "replace-one" if config.sigma else "none", "privacy.notes": NOTE}
    return records(config, metrics, tags, status)


@pytest.fixture(scope="module")
def experiment():
    return parse_experiment(FILE, Path("somewhere/hostile.yaml"))


@pytest.fixture(scope="module")
def store(tmp_path_factory, experiment):
    return stored(tmp_path_factory.mktemp("store"), "hostile", experiment.trials,
                  lambda c: records_of(c, "diverged" if c is experiment.trials[-1] else "finished"),
                  {"git_commit": f"{COMMIT}-dirty", "versions": VERSIONS})


@pytest.fixture(scope="module")
def written(store, experiment, tmp_path_factory):
    return write(experiment, store, tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="module")
def exhibits(written):
    return written.exhibits


@pytest.fixture(scope="module")
def files(written):
    return written.files


@pytest.fixture(scope="module")
def html(files):
    return files[-1].read_text(encoding="utf-8")


# content

def text_of(page):
    """What a reader has when all is unfolded, a line for each paragraph, cell of a head, or row; without figures."""
    text = re.sub(r"<(svg|script|style)\b.*?</\1>", "", page[page.index("<main"):], flags=re.DOTALL)
    text = re.sub(r"</?(p|h\d|li|tr|div|section|summary|d[ltd]|details|figcaption|pre|table|ul)\b[^>]*>", "\n", text)
    text = unescape(re.sub(r"<[^>]+>", "", re.sub(r"</t[dh]>", " | ", text)))
    return "\n".join(filter(None, (" ".join(line.split()) for line in text.splitlines())))


def test_the_page_reads_as_approved_and_escapes_what_users_wrote(html):
    when = r"(?<=Began \(UTC\)\n).+\n(.+)\n.+"  # times differ from run to run
    approved("page", re.sub(when, r"WHEN\n\1\nTIME", text_of(html)))
    assert "<script>window" not in html and "<img" not in html and "<b>the noise" not in html
    assert html.count("&lt;script&gt;window.hacked") == 3  # description, and twice in the file


def test_every_exhibit_stands_on_the_page_with_its_figure_and_data(exhibits, files, html):
    assert [e.name for e in exhibits if f'id="exhibit-{e.name}"' in html] == ["table1", "figure2", "frontier"]
    drawn = [path.stem for path in files if path.suffix == ".svg"]
    assert [e.name for e in exhibits if e.figure] == drawn == ["figure2", "frontier"]
    for exhibit in exhibits:
        assert all((files[0].parent / name).read_bytes() == content for name, content in exhibit.files.items())


def test_an_exhibit_is_written_and_shown_with_the_same_caption_and_table():
    table = Table.of(["", "ε ≤ 3", "n"], [["BP", "", "1"], ["DFA", NO_VALUE, ""]], text_columns=(0, 2))
    exhibit = Exhibit("heat", "Noise by <clip>", Texts(("A `b` caption.", table), ("Another.",), ("One <note>.",)),
                      pd.DataFrame({"a": [1]}))
    files = {name: content.decode() for name, content in exhibit.files.items()}
    check(files.pop("heat.tex"))
    assert files == {
        "heat.csv": "a\n1\n",
        "heat.md": "## Noise by <clip>\n\nA `b` caption.\n\n|  | ε ≤ 3 | n |\n| --- | ---: | --- |\n| BP |  | 1 |\n"
                   "| DFA | – |  |\n\nAnother.\n\n- One <note>.\n"}
    html = pages.render(pages.Page(title="t", what="w", exhibits=[exhibit]))
    assert "Noise by &lt;clip&gt;" in html and "A <code>b</code> caption." in html and "<svg" not in html
    assert re.search(r"<details><summary>More on this exhibit</summary>\s*<p class=\"caption\">Another.</p>\s*"
                     r"<ul class=\"notes\"><li>One &lt;note&gt;.</li></ul>\s*</details>", html)
    assert '<th scope="col" class="n"><span>ε\u00a0≤\u00a03</span></th>' in html
    assert re.findall('download="([^"]+)"', html) == ["heat.csv", "heat.tex"]


def test_downloads_are_the_files_and_a_figures_data_hold_its_curves(files, html):
    links = dict(re.findall(r'download="([^"]+)" href="data:[\w/+]+(?:;charset=utf-8)?;base64,([^"]+)"', html))
    figures = {f"{stem}.{suffix}" for stem in ("figure2", "frontier") for suffix in ("svg", "pdf", "csv")}
    assert set(links) == {"runs.csv", "table1.csv", "table1.tex", "frontier.tex", "hostile.yaml", *figures}
    assert len(html) < 5_000_000
    for path in files:
        if path.name in links:
            assert base64.b64decode(links[path.name]) == path.read_bytes(), path.name
    assert base64.b64decode(links["hostile.yaml"]).decode() == FILE
    table = pd.read_csv(next(path for path in files if path.name == "figure2.csv"))
    assert set(table["panel"]) == {"accuracy", "alignment"}
    row = table[(table["panel"] == "accuracy") & (table["algorithm"] == "pdfa") & (table["setting"] == "2")
                & (table["epoch"] == 2)]
    mean = 100 * (0.9 - 0.1 - 0.04 + 0.01 / 2 - 0.05)
    assert row[["mean", "n"]].to_numpy().tolist() == [pytest.approx([mean, 2])]


def test_the_manifest_says_where_the_data_come_from_and_what_they_are(experiment, files):
    folder = files[0].parent
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    count = len(experiment.trials)
    assert (folder / "hostile.yaml").read_text(encoding="utf-8") == FILE
    assert manifest["experiment"] == "hostile" and manifest["trials"] == {"finished": count - 1, "diverged": 1}
    assert manifest["commits"] == {f"{COMMIT}-dirty": count} and manifest["software"] == {VERSIONS: count}
    assert manifest["commands"][-1] == ".venv/bin/photonic report somewhere/hostile.yaml"
    assert commands(experiment, []) == [f"photonic {verb} somewhere/hostile.yaml" for verb in ("sweep", "report")]
    assert manifest["began"] <= manifest["ended"]
    csv = [path for path in files if path.suffix == ".csv"]
    assert manifest["data"] == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in csv}


def test_a_table_of_trials_has_what_was_measured_and_hides_what_a_filter_knows_beside_it(store, experiment):
    runs = frame_of(store.runs(), experiment.trials)
    of_feedback = trials(experiment, runs.assign(**{"alignment/feedback/layer_1": 0.75}))
    assert {column.heading: column.cells[0].text for column in of_feedback if column.heading.startswith("cos")} == {
        "cos layer 1": "0.250", "cos output layer": "0.500", "cos feedback layer 1": "0.750"}
    bare = runs[[name for name in runs if not name.startswith("epsilon/")]]
    assert "guarantee" not in {column.heading for column in trials(experiment, bare)}
    hidden = {column.heading for column in of_feedback if not column.shown}
    assert {"sigma", "mechanism"} <= hidden and not {"epochs", "target_epsilon", "seed"} & hidden


def test_the_answer_stands_before_what_is_folded(html):
    assert "<details" not in html[html.index("<main"):html.index("<h2>")]
    headline = Headline("`bp` wins at ε = 3 <by 2>.", "360 records.", {}, [], "")
    shown, bare = (pages.render(pages.Page(title="t", what="w", headline=said)) for said in (headline, Headline()))
    assert "<code>bp</code> wins at ε\u00a0=\u00a03 &lt;by 2&gt;.</p>" in shown
    assert 'class="headline"' not in bare and 'id="left-out"' not in bare


REPORTS = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
PRIVATE = "base: {dataset: digits, mechanism: per_example, sampler: poisson, target_epsilon: 3, epochs: 1, hidden: [8]}"
MEASURED = {"validation/accuracy": 0.8, "test/accuracy": 0.8, "test/worst_class_accuracy": 0.4, "time/epoch_seconds": 1,
            "alignment/layer_1": 0.3, "alignment/layer_2": 0.3, "epsilon/certified/gdp": 3.0}


@pytest.mark.slow
@pytest.mark.parametrize(("lacks", "status", "left_out"), [
    ("alignment", "finished", {"frontier_alignment": "measured in none of 2 trials (it needs a hidden layer, "}),
    ("test/worst", "finished", {"frontier_worst_class": "test/worst_class_accuracy: missing for 2 of 2 trials"}),
    ("validation", "finished", {"selection": "validation/accuracy: missing for 2 of 2 trials, the first is dfa"}),
    ("epsilon", "finished", {"frontier": "needs trials with a finite epsilon/certified"}),
    ("test/", "finished", {"frontier": "test/accuracy: missing for 2 of 2", "selection": "test/accuracy: missing"}),
    ("", "diverged", {"frontier": "needs trials with", "selection": "validation"}),
    ("its trials", "finished", dict.fromkeys(("frontier", "selection"), "another version of this software"))])
def test_what_a_sweep_lacks_is_left_out_with_the_reason_and_all_else_is_drawn(lacks, status, left_out, tmp_path,
                                                                              monkeypatch, only_svg):
    if lacks == "its trials":
        monkeypatch.setattr(TrackedRun, "trial", None)
    experiment = parse_experiment(f"name: lacking\n{PRIVATE}\ngrid: {{seed: [0, 1]}}\n", Path("lacking.yaml"))
    metrics = {name: value for name, value in MEASURED.items() if not name.startswith(lacks)}
    store = stored(tmp_path, "lacking", experiment.trials,
                   lambda trial: records(trial, [metrics], {"privacy.relation": "add/remove"}, status))
    report = write(experiment, store, tmp_path / "out")
    reasons = {name: reason for name, reason in report.left_out if name in (*catalogue.listed(experiment), "selection")}
    assert all(reason in reasons[name] for name, reason in left_out.items()), reasons
    names = {exhibit.name for exhibit in report.exhibits}
    assert names | reasons.keys() == {*catalogue.listed(experiment), "selection"} and not names & reasons.keys()
    page = report.files[-1].read_text(encoding="utf-8")
    assert all(f"<dt>{name}</dt>" in page for name in left_out) and experiment.trials[0].trial_key in page


RAISES = """
from analysis import exhibit

@exhibit("raises")
def draw(runs):
    return 1 / 0
"""


def test_an_exhibit_of_a_plugin_is_drawn_and_one_that_raises_is_left_out(tmp_path, monkeypatch, capsys, extensions):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"^```python\n(.*?)^```$", REPORTS, re.DOTALL | re.MULTILINE)
    assert len(example.splitlines()) <= 20
    Path("my_exhibits.py").write_text(example + RAISES)
    Path("mine.yaml").write_text(f"name: mine\nplugins: [my_exhibits]\n{PRIVATE}\ngrid: {{seed: [0, 1]}}\n"
                                 "report: [raises, alignment_by_noise, frontier]\n")
    experiment = load_experiment("mine.yaml")
    stored(tmp_path / "mlruns", "mine", experiment.trials,
           lambda trial: records(trial, [MEASURED], {"privacy.relation": "add/remove"}))
    assert main(["report", "mine.yaml"]) == 1
    printed = capsys.readouterr()
    assert "left out, for reasons that the page has: raises" in printed.out
    assert printed.err == "error: drawing raises failed; the page has the reasons, and all else\n"
    page = Path("reports/mine/index.html").read_text(encoding="utf-8")
    assert "raised ZeroDivisionError in my_exhibits.py:" in page and "division by zero" in page
    assert "Alignment by noise" in page and Path("reports/mine/alignment_by_noise.pdf").is_file()
    table = pd.read_csv("reports/mine/alignment_by_noise.csv")
    assert table[["algorithm", "setting", "mean", "n"]].values.tolist() == [["dfa", "epsilon=3", 0.3, 2]]
    with pytest.raises(ConfigError, match="exhibit: must have a name of its own, got 'frontier', which analysis"):
        catalogue.exhibit("frontier")(len)
    Path("mine.yaml").write_text(Path("mine.yaml").read_text().replace("[0, 1]", "[0]"))
    with pytest.raises(ConfigError, match="report: alignment_by_noise needs two trials or more, got .*; leave it out"):
        catalogue.check(load_experiment("mine.yaml"))


def test_figures_for_a_paper(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(f"name: mine\n{PRIVATE}\ngrid: {{clipping_norm: [1, 2], seed: [0, 1]}}\n"
                                 "report: {labels: {dfa: DFA (ours)}, exhibits: [by_clipping_norm]}\n")
    stored(tmp_path / "mlruns", "mine", load_experiment("mine.yaml").trials,
           lambda trial: records(trial, [MEASURED], {"privacy.relation": "add/remove"}))
    assert main(["report", "mine.yaml", "--width", "3.25", "--font", "DejaVu Serif", "--format", "eps"]) == 0
    assert "<svg" in Path("reports/mine/index.html").read_text(encoding="utf-8"), "whatever the files are"
    assert main(["report", "mine.yaml", "--width", "3.25", "--font", "DejaVu Serif", "--format", "svg"]) == 0
    figure = Path("reports/mine/by_clipping_norm.svg").read_text(encoding="utf-8")
    width, height = map(float, re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', figure).groups())
    assert width == 3.25 * 72 and height > width  # panels and legend lie below each other
    assert "DejaVu Serif" in figure and ">DFA (ours)<" in figure
    assert {path.suffix for path in Path("reports/mine").glob("by_*")} == {".csv", ".md", ".tex", ".svg", ".eps"}
    assert algorithm_labels()["dfa"] == "DFA"
    capsys.readouterr()
    for options, message in ((["--width", "0.5"], "--width: must be 1 to 50 inches, got 0.5"),
                             (["--font", "Nobody"], "--font: must be a font of this machine"),
                             (["--format", "gif"], "--format: must be one of svg, pdf, png, eps, got gif")):
        assert main(["report", "mine.yaml", *options]) == 2
        assert message in capsys.readouterr().err


def test_a_trial_leads_to_its_run(store, experiment, html):
    runs = frame_of(store.runs(), experiment.trials)
    for key, run in zip(runs["trial_key"], runs["run_id"], strict=True):
        address_of_run = f"http://127.0.0.1:5000/#/experiments/{store.experiment_id}/runs/{run}?{TRAINING}"
        assert f'<a href="{address_of_run}" target="_blank" rel="noopener">{key}</a>' in html
    for uri, page in (("https://me:secret@host:8000/mlflow/", "https://host:8000/mlflow"),
                      ("postgresql://host/db", "")):
        there = SimpleNamespace(uri=uri, experiment_id="7")
        assert address(there, "abc") == (f"{page}/#/experiments/7/runs/abc?{TRAINING}" if page else "")


def test_ids_of_inlined_figures_are_unique_and_still_refer_to_their_own(files):
    svg = next(path for path in files if path.name == "figure2.svg").read_text(encoding="utf-8")
    both = pages.inline_svg(svg, "one", "A") + pages.inline_svg(svg, "two", "B")
    ids = re.findall(r'\bid="([^"]+)"', both)
    assert len(set(ids)) == len(ids) > 100
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', both))
    assert len(used) > 10 and {a or b for a, b in used} <= set(ids)
    assert "<style type=\"text/css\">#one *{" in both and "<metadata" not in both and "<text" in both
    assert 'aria-label="A"' in both and not re.search(r"<svg[^>]* width=", both)
    first = 100 * (0.9 + 0.01 / 2 - 0.1)
    assert f"<title>non-private\nEpoch: 1\nValidation accuracy (%): {first:.4g}</title>" in both


# in the browser

@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = chromium()
    if program is None:
        pytest.skip("the page is not opened: no Chromium is installed")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def show(browser, files, *width, **look):
    browser.look(*width, **look)
    browser.open(files[-1])


def complaints(browser):
    """What the console says, and requests other than for the page itself and data in it."""
    found = []
    time.sleep(0.2)
    browser.run("1")  # reads what has been reported until now
    for event in browser.events:
        if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            found.append(str(event["params"]))
        elif event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            found += [] if url.startswith("data:") or url.endswith("/index.html") else [url]
    return found


@pytest.fixture
def opened(browser, files):
    """The page with all that is folded open, as a reader has it after some clicks."""
    show(browser, files, 1200)
    browser.run("""[...document.querySelectorAll("summary")].forEach((s) => s.click())""")
    return browser


def test_it_loads_without_a_complaint_or_a_request(opened):
    assert complaints(opened) == []
    assert opened.run("typeof window.hacked") == "undefined"
    assert opened.run("document.title") == "hostile: Experiment report"


def test_what_should_not_be_there_would_be_noticed_and_is_not_run(browser, html, tmp_path):
    doctored = tmp_path / "index.html"
    doctored.write_text(html.replace("</main>", '</main><script>window.hacked = 1</script><img src="http://127.0.0.1:9/a">'))
    browser.look(1200)
    browser.open(doctored)
    assert any("Content Security Policy" in text for text in complaints(browser))
    assert browser.run("typeof window.hacked") == "undefined"


def column(browser, name):
    return browser.run(f"""(() => {{
        const table = document.querySelector("table.sortable"), heads = [...table.tHead.rows[0].cells];
        const place = heads.findIndex((head) => head.innerText.trim() === "{name}");
        return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[place].innerText.trim());
    }})()""")


def head(name):
    return f"""[...document.querySelectorAll("table.sortable th")].find((th) => th.innerText.trim() === "{name}")"""


def test_the_table_is_sorted_by_click_and_by_key(opened):
    before = [float(text) for text in column(opened, "test %")]
    assert len(before) == 12 and before != sorted(before)
    for expected, reverse in (("descending", True), ("ascending", False), ("descending", True)):  # the best first
        opened.run(f"{head('test %')}.querySelector('button').click()")
        assert opened.run(f"{head('test %')}.getAttribute('aria-sort')") == expected
        assert [float(text) for text in column(opened, "test %")] == sorted(before, reverse=reverse)
    opened.run(f"{head('ε label')}.querySelector('button').focus()")
    for reverse in (False, True):
        opened.press("Enter")
        shown = column(opened, "ε label")
        assert shown[8:] == ["–"] * 4  # what has none comes last, either way
        assert [float(text) for text in shown[:8]] == sorted(map(float, shown[:8]), reverse=reverse)
    assert opened.run(f"{head('test %')}.getAttribute('aria-sort')") == "none"
    opened.run(f"{head('noise')}.querySelector('button').click()")
    assert list(dict.fromkeys(column(opened, "noise"))) == [
        "non-private", "σ\u00a0=\u00a02", "σ\u00a0=\u00a010"]  # by sigma, not by letter


def filtered(browser, text):
    """What the page says of a filter: how many trials are shown, and what is wrong with it."""
    browser.run(f"""(() => {{
        const filter = document.getElementById("filter");
        filter.value = {json.dumps(text)};
        filter.dispatchEvent(new Event("input"));
    }})()""")
    return tuple(browser.run(f"document.getElementById('{name}').textContent") for name in ("count", "unknown"))


def test_figures_are_there_with_text(opened):
    figures = opened.run("""[...document.querySelectorAll("figure .drawing")].map((drawing) => {
        const box = drawing.getBoundingClientRect(), card = drawing.closest(".card").getBoundingClientRect();
        return [box.width, box.height, box.right <= card.right, drawing.querySelectorAll("text").length];
    })""")
    assert len(figures) == 2
    for width, height, inside, texts in figures:
        assert width > 300 and height > 200 and inside and texts > 10
    assert opened.run("""document.querySelectorAll("[id]").length
        === new Set([...document.querySelectorAll("[id]")].map((e) => e.id)).size""")


def test_a_figure_can_be_taken_out_of_the_page(opened, files, tmp_path):
    opened.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for suffix in ("svg", "pdf"):
        opened.run(f"document.querySelector('a[download=\"figure2.{suffix}\"]').click()")
        end = time.monotonic() + 20
        while not (tmp_path / f"figure2.{suffix}").exists() and time.monotonic() < end:
            time.sleep(0.05)
        written = next(path for path in files if path.name == f"figure2.{suffix}")
        assert (tmp_path / f"figure2.{suffix}").read_bytes() == written.read_bytes()


FILTERS = dict([
    ("", 12), ("bp", 6), ("pdfa", 6), ("dfa", 0), ("algorithm=PDFA", 6), ("algorithm!=pdfa", 6), ("seed=1", 6),
    ("seed=1 bp", 3), ("sigma<=2", 4), ("σ≤2", 4), ("sigma>0.5 seed=0", 4), ("mechanism=none", 4), ("diverged", 1),
    ("status=diverged", 1), ("noise=non-private", 4), ("noise=σ=10", 4), ("test>=80", 6), ("test>80 test<90", 3),
    ("claimed>=10,000", 8), ("test=90.00", 1), ("epsilon<2", 4), ("label<2", 4), ("claimed>1", 8),
    ("epsilon<2 pdfa seed!=0", 1), ("test >= 80", 6), ("seed == 1", 6), ("noise = σ = 10", 4), ("σ = 10", 4),
    ("layer", 0), ("layer_1=0.25", 12)])  # headings are no cells
# what cannot be, and what is said of it
WRONG_FILTERS = dict([
    ("foo=1", "No column is named foo."), ("bp foo<3", "No column is named foo."), ("test>", "test> needs a value."),
    ("test>high", "test> needs a number, not high."), ("algorithm>bp", "algorithm is no number: use = or !=."),
    ("=3", "No column is named so.")])


def test_filters_know_fields_and_say_what_cannot_be_while_one_types(opened):
    opened.run("document.getElementById('filter').focus()")
    for key in "bp sigma=10":
        opened.press(key)
    assert column(opened, "algorithm") == ["BP"] * 2 and set(column(opened, "noise")) == {"σ\u00a0=\u00a010"}
    expected = {text: (f"{count} of 12 trials", "") for text, count in FILTERS.items()}
    expected |= {text: (f"{6 if 'bp ' in text else 12} of 12 trials", said) for text, said in WRONG_FILTERS.items()}
    assert {text: filtered(opened, text) for text in expected} == expected


def test_a_legend_hides_the_curves_of_an_algorithm(opened):
    figure = "document.querySelector('#exhibit-frontier figure')"
    seen = f"[...{figure}.querySelectorAll('[data-algorithm=pdfa]')].map((g) => g.getBoundingClientRect().height > 0)"
    others = seen.replace("pdfa", "bp")
    assert opened.run(f"[...{figure}.querySelectorAll('.chip')].map((chip) => chip.innerText)") == ["BP", "PDFA"]
    before = opened.run(seen)
    assert any(before)
    for shown in (False, True):
        opened.run(f"{figure}.querySelector('.chip[value=pdfa]').click()")
        assert opened.run(f"{figure}.querySelector('.chip[value=pdfa]').ariaPressed") == str(shown).lower()
        assert opened.run(seen) == (before if shown else [False] * len(before))
        assert any(opened.run(others))


def test_a_marker_says_its_values_at_the_pointer(opened, files):
    rows = pd.read_csv(next(path for path in files if path.name == "frontier.csv"))
    row = rows[(rows["algorithm"] == "bp") & (rows["setting"].astype(str) == "2")].iloc[0]
    opened.run("document.querySelector('#exhibit-frontier figure').scrollIntoView()")
    marks = "document.querySelectorAll('#exhibit-frontier [data-algorithm=bp] use')"
    places = opened.run(f"[...{marks}].map((use) => use.getBoundingClientRect()).map((b) => [b.x + b.width / 2, "
                        "b.y + b.height / 2])")
    said = []
    for x, y in places:
        opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 3, y=y - 3)
        said.append(opened.run("document.getElementById('tip').hidden ? '' : tip.textContent"))
    assert said[-1].startswith("BP\n") and len(set(said)) == 2
    assert any(f"ε = {row['epsilon']:.4g}\n{row['mean']:.4g} ± {row['half_width']:.3g} (95% t interval, n = 2)" in text
               for text in said)
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert opened.run("document.getElementById('tip').hidden")


def test_without_scripts_tables_figures_and_downloads_are_there(browser, files):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    show(browser, files, 1200)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run("document.querySelectorAll('figure .drawing svg text').length") > 20
    assert browser.run("document.querySelectorAll('#trials tbody tr').length") == 12
    assert browser.run("document.querySelectorAll('#exhibit-frontier use > title').length") >= 4
    assert browser.run("document.querySelector('.legend').offsetHeight") == 0


OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LUMINANCE = """(() => {
    const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
    const paper = parse(getComputedStyle(document.body).backgroundColor);
    const texts = ["body", "h1", ".headline", ".lede", ".caption", "figcaption", "dt", "td", "th", "summary h2",
        ".hint", ".notes", ".statements dt.none", "output"];
    return [paper, texts.map((s) => [s, parse(getComputedStyle(document.querySelector(s)).color)]),
            parse(getComputedStyle(document.querySelector(".card")).backgroundColor)];
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_in_light_and_dark(browser, files, dark):
    show(browser, files, 1200, dark)
    paper, texts, card = browser.run(LUMINANCE)
    assert (luminance(paper) < 0.1) == dark
    for name, color in texts:
        assert contrast(color, paper) >= 4.5, name
    assert contrast((0.15, 0.15, 0.15), card) > 10  # figures keep a light ground for their dark text and lines


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_scrolls_sideways_but_what_is_meant_to(browser, files, width):
    show(browser, files, width)
    assert browser.run(OVERFLOW) == 0
    assert browser.run("""Math.min(...[...document.querySelectorAll("main p, figcaption, td, dd")]
        .map((e) => parseFloat(getComputedStyle(e).fontSize)))""") >= 13
    wide = browser.run("""[...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, svg")
        && e.getBoundingClientRect().right > document.documentElement.clientWidth).map((e) => e.outerHTML)""")
    assert wide == []
    cut = browser.run("""[...document.querySelectorAll("figure svg")].filter((svg) =>
        svg.getBoundingClientRect().right > svg.closest(".card").getBoundingClientRect().right).length""")
    assert (cut == 0) == (width == 1440)  # on a phone, what is wide scrolls in its card
    browser.run("document.querySelector('main').style.width = '2000px'")
    assert browser.run(OVERFLOW) > 0


def test_in_print_all_trials_are_there_and_no_buttons(browser, files):
    show(browser, files, 720, media="print")
    browser.run("""dispatchEvent(new Event("beforeprint"))""")
    shown = browser.run("""[".button", ".tools"].filter((s) => document.querySelector(s).offsetHeight > 0)""")
    assert shown == [] and browser.run(OVERFLOW) == 0
    assert browser.run("""(s => s.clientHeight > 100 && s.scrollHeight <= s.clientHeight)
        (document.querySelector("#trials .scroll"))""")
    assert browser.run(f"{FOLDED}.length") == 0
    browser.run("""dispatchEvent(new Event("afterprint"))""")
    assert browser.run(f"{FOLDED}.length") > 5


FOLDED = """[...document.querySelectorAll("details")].filter((d) => !d.open)"""


def test_a_link_to_what_is_folded_opens_it(browser, files):
    show(browser, files, 1200)
    is_open = "document.querySelector('#trials .fold').open"
    assert not browser.run(is_open)
    browser.run("location.hash = '#trials'")
    assert browser.run(f"new Promise((done) => setTimeout(() => done({is_open}), 100))")
    assert not browser.run("document.querySelector('#privacy .fold').open")
