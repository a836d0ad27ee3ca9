"""The built wheel has every module, the page's template and `py.typed`, and a sweep and its report run from it alone.

An editable install hides what a wheel leaves out. The wheel is unpacked into an empty folder that stands first on the
path; the libraries that it needs are those of this environment.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from approved import approved

from pipeline import package as packed
from pipeline.package import wheel_version
from pipeline.sweep.run import git_commit

ROOT = Path(__file__).parents[2]
TINY = """
name: tiny
base: {dataset: digits, hidden: [16, 16], batch_size: 64, epochs: 1, mechanism: per_example, sampler: poisson,
       noise_multiplier: 1}
grid: {algorithm: [bp, dfa]}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree."""
    source = tmp_path_factory.mktemp("source")
    for package in ("pipeline", "analysis"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("results", "__pycache__"))
    for name in ("photonic.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "analysis" / "results").mkdir()
    (source / "analysis" / "results" / "tiny.csv").write_text("n\n3\n")
    for command in (["init", "-q"], ["add", "."]):  # of what git tracks in packages, only what is listed is packed
        subprocess.run(["git", *command], cwd=source, check=True)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w",
             str(source / "wheel"), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = (source / "wheel").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder with what the wheel holds, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def files(folder):
    return {path.relative_to(folder) for package in ("pipeline", "analysis") for path in (folder / package).rglob("*")
            if path.is_file() and path.suffix in (".py", ".html", ".css", ".js", ".typed")}


@pytest.mark.slow
def test_the_wheel_has_every_module_and_the_template(site):
    expected = {path for path in files(ROOT) if path.parts[:2] != ("analysis", "results")}
    assert files(site) == expected and any(path.suffix == ".html" for path in expected)
    assert {Path("pipeline/py.typed"), Path("analysis/py.typed")} <= files(site)
    assert not (site / "analysis" / "results").exists() and (site / "photonic.py").is_file()


def test_the_version_is_that_of_the_tag_or_without_git_that_of_the_citation(tmp_path):
    def version(*commands):
        for command in commands:
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *command], cwd=tmp_path, check=True)
        return subprocess.run([sys.executable, "-m", "setuptools_scm"], cwd=tmp_path, capture_output=True, text=True,
                              check=True).stdout.strip()

    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert f"\nversion: {version()}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert version(["init", "-q"], ["add", "."], ["commit", "-qm", "first"], ["tag", "v9.8.7"]) == "9.8.7"


def test_a_wheel_tells_its_version_and_no_commit_of_the_repository_it_lies_in(tmp_path, monkeypatch):
    assert not wheel_version()
    (tmp_path / "photonic_dfa-9.8.dev7+g1.dist-info").mkdir()
    monkeypatch.setattr(packed, "ROOT", tmp_path / "pipeline")
    assert wheel_version() == "photonic-dfa 9.8.dev7+g1" and git_commit() == "unknown"


@pytest.mark.slow
def test_a_sweep_and_its_report_run_from_the_wheel(wheel, site, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)

    def python(*arguments):
        return subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(site)})

    where = python("-c", "import pipeline, analysis; print(pipeline.__file__, analysis.__file__)").stdout.split()
    assert [Path(file).parents[1] for file in where] == [site, site]
    for arguments in (("sweep", "tiny.yaml", "--workers", "1"), ("report", "tiny.yaml")):
        done = python("-m", "pipeline.cli", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "<html" in (tmp_path / "reports/tiny/index.html").read_text(encoding="utf-8")
    manifest = json.loads((tmp_path / "reports/tiny/manifest.json").read_text(encoding="utf-8"))
    assert manifest["commands"] == ["photonic sweep tiny.yaml", "photonic report tiny.yaml"]
    assert [software.split(",")[0] for software in manifest["software"]] == [
        f"photonic-dfa {wheel.name.split('-')[1]}"]
    header, *_ = (tmp_path / "reports/tiny/runs.csv").read_text(encoding="utf-8").splitlines()
    approved("columns", "\n".join(header.split(",")))


@pytest.mark.nightly
def test_the_wheel_installs_into_an_empty_environment_as_the_page_says(wheel, tmp_path):
    """The lines of docs/start.md, with the file of the wheel and torch's pin; then a sweep, its report and MLflow."""
    shutil.copy(ROOT / "experiments" / "quickstart.yaml", tmp_path)
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    lines = re.search(r"## Without a checkout\n[^#]*?\n((?:    [^\n]+\n)+)", page)[1].replace("WHEEL", str(wheel))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(script, minutes):
        done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=60 * minutes)
        if "No matching distribution" in done.stderr and "connection" in done.stderr.lower():
            pytest.skip("needs a package index")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run(lines, minutes=20)
    photonic = ". env/bin/activate; photonic"
    assert "48 trials: 48 finished" in run(f"{photonic} sweep quickstart.yaml", minutes=15)
    run(f"{photonic} report quickstart.yaml", minutes=5)
    assert "<html" in (tmp_path / "reports/quickstart/index.html").read_text(encoding="utf-8")
    assert "lightonml  1.4.3" in run(f"{photonic} doctor", minutes=2)
    answer = run(". env/bin/activate; photonic ui --port 5077 & server=$!; for n in $(seq 60); do sleep 1; "
                 "curl -sf http://127.0.0.1:5077/ && break; done; kill $server; wait $server || true", minutes=3)
    assert "<title>MLflow</title>" in answer
