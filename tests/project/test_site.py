"""The documentation's site: short pages that begin with their answer, links that lead somewhere, no other host."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from browser import Browser, chromium
from commands import parsed
from committed import RESULTS, WRITTEN, manifests, written

from pipeline.cli import photonic
from pipeline.experiment.experiment import parse_experiment
from pipeline.trials.config import settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROOFS = {"privacy"}  # which may be as long as they are
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
STUDIES = sorted(RESULTS.glob("*/README.md"))
LINKING = [*sorted(DOCS.glob("*.md")), *STUDIES, RESULTS / "README.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md",
           ROOT / ".github" / "SECURITY.md"]
MEASURED = [ROOT / "README.md", *(DOCS / f"{name}.md" for name in ("results", "search", "why_dfa")),
            *(RESULTS / study / "README.md" for study in ("features", "ohana2021"))]
CODE = re.compile(r"^```.*?^```$|^(?: {4}|\t)[^\n]*$", re.DOTALL | re.MULTILINE)


def words(text: str) -> int:
    """Words outside blocks of code: what has a letter or a digit between blanks, in tables, too."""
    return sum(any(map(str.isalnum, word)) for word in CODE.sub("", text).split())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short_and_begins_with_its_answer(name):
    assert name in PROOFS or words(PAGES[name]) <= 1_200
    title, answer, *_ = PAGES[name].split("\n\n")
    assert re.fullmatch("# .+", title) and re.match(r"[A-Z`*\[]", answer), answer
    assert not answer.startswith("```") and 8 <= words(answer) <= 80


def test_all_pages_together_and_the_readme_are_short():
    assert sum(words(text) for name, text in PAGES.items() if name not in PROOFS) <= 11_500
    assert words((ROOT / "README.md").read_text(encoding="utf-8")) <= 700


@pytest.mark.parametrize("path", STUDIES, ids=[path.parent.name for path in STUDIES])
def test_notes_of_a_result_are_short(path):
    notes = re.split("^#{1,2} ", WRITTEN.sub("", path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    assert not notes[0] and all(words(part) <= 600 for part in notes)


@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere_and_sentences_are_plain(path):
    """In the checkout; `make docs` holds those of the site, and headings."""
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\((?![a-z]+:)([^)#\s]+)", text):
        assert (path.parent / target).exists(), target
    text = " ".join(WRITTEN.sub("", text).split())
    assert path.stem in PROOFS or not re.findall(r"[^.]*\b(?:of which|but for|those which|of these)\b[^.]*", text)


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_means_are_those_of_the_committed_tables(path):
    pages = [(RESULTS / page).read_text(encoding="utf-8") for page in ("left_out/choices.md", "tuning/tuning.md")]
    tables = "".join([*map(written, manifests()), *pages])
    by_hand = WRITTEN.sub("", path.read_text(encoding="utf-8"))
    shown = set(re.findall(r"\b\d\d\.\d\d ± \d+\.\d\d", by_hand))
    assert shown and all(mean in tables for mean in shown), [mean for mean in shown if mean not in tables]


def commands():
    """(page, what a line of code says after its prompt and environment, without its comment)."""
    for name, page in PAGES.items():
        for code in CODE.findall(page):
            for line in re.sub(r"\\\n\s+", "", code).splitlines():
                if match := re.match(r"(?: {4})?(?:[AB]\$ )?(?:[A-Z_]+=\S+ )*(photonic [^#]*)", line):
                    yield name, match[1]


def test_commands_of_the_pages_parse():
    found = list(commands())
    assert len(found) > 25
    for name, command in found:
        _, subcommand, *words = shlex.split(command)
        assert parsed(subcommand, words), name


@pytest.mark.parametrize(("name", "text"), [
    pytest.param(name, text, id=f"{name}{n}") for name, page in PAGES.items()
    for n, text in enumerate(re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE), start=1)
    if name not in ("own_data",) and re.search("^base:", text, re.MULTILINE)])  # whose data set a plugin enters
def test_experiments_of_the_pages_are_accepted(name, text):
    experiment = parse_experiment(text, ROOT / "experiments" / f"{name}.yaml")
    assert experiment.possible


def test_what_is_loaded_from_elsewhere_is_nothing():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "https:" not in text and "http:" not in text and re.search(r"^  font: false", text, re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
                           cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_settings_commands_and_public_names_are_those_of_the_code(site):
    import analysis
    import pipeline

    listed, commands = (text_of(site / f"{name}.html") for name in ("settings", "commands"))
    missing = [field.name for field in settings() if field.name not in listed]
    assert not missing, missing
    for name, command in photonic.shown.items():
        assert name in commands
        assert all(option in commands for parameter in command.params for option in parameter.opts
                   if option.startswith("-"))
    page = (site / "reference.html").read_text(encoding="utf-8")
    for name in (*pipeline.__all__, *analysis.__all__):
        assert re.search(rf"<h3[^>]*>.*?{name}", page, re.DOTALL), name


SEARCH = """new Promise((found, failed) => {
  const query = document.querySelector("[data-md-component=search-query]"), start = Date.now();
  query.focus();
  query.value = "WORDS";
  window.before = [...document.querySelectorAll(".md-search-result__item h1")].map(title => title.innerText).join();
  const look = () => {
    query.dispatchEvent(new Event("keyup"));
    const titles = [...document.querySelectorAll(".md-search-result__item h1")].map(title => title.innerText);
    if (titles.length && titles.join() !== window.before) found(titles);
    else if (Date.now() - start > 20000) failed(new Error("nothing found"));
    else setTimeout(look, 200);
  };
  look();
})"""


QUESTIONS = {  # what a reader types: the page with the answer, among the first three that are found
    "clipping norm": "Choose settings", "two machines": "Two machines, and a cluster", "selected": "Epsilons",
    "LaTeX table": "Reports", "add a mechanism": "Add feedback, a mechanism, data or another part",
    "share a report": "Delete, rename, share, cite", "secure noise cost": "Release a model", "why DFA": "Why DFA",
    "delete a sweep": "Delete, rename, share, cite", "BibTeX": "Delete, rename, share, cite"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.slow
@pytest.mark.skipif(not chromium(), reason="needs Chromium")
def test_pages_are_shown_and_searched_and_no_other_host_is_asked(site, tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home, browser = f"http://127.0.0.1:{server.server_port}/", Browser(chromium(), tmp_path)
    try:
        for page in (*sorted(site.glob("*.html")), site / "index.html"):
            loaded = len(browser.events)
            browser.call("Page.navigate", url=f"{home}{page.name}")
            while not any(event.get("method") == "Page.loadEventFired" for event in browser.events[loaded:]):
                browser.run("1")  # reads what has been reported until now
        found = {question: browser.run(SEARCH.replace("WORDS", question))[:3] for question in QUESTIONS}
        time.sleep(0.2)
        browser.run("1")
    finally:
        browser.close()
        server.shutdown()
        server.server_close()
    asked = [event["params"]["request"]["url"] for event in browser.events
             if event.get("method") == "Network.requestWillBeSent"]
    assert len(asked) > len(PAGES)
    assert not [url for url in asked if not url.startswith((home, "data:", "blob:"))]
    answers = [event["params"]["response"] for event in browser.events
               if event.get("method") == "Network.responseReceived"]
    assert not [answer["url"] for answer in answers if answer["status"] >= 400]
    assert not {question: titles for question, titles in found.items() if QUESTIONS[question] not in titles}
