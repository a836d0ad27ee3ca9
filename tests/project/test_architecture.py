"""Who may import whom: the contracts of pyproject.toml hold, and each is seen to refuse what it forbids."""

import ast
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import pipeline
from pipeline.package import ROOT as PACKAGE
from pipeline.sweep import checkpoints, cluster

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
HEAVY = ("torch", "ray", "mlflow", "numpy", "pandas", "matplotlib")
# By contract: the module that would have an import that must not be, and the line.
FORBIDDEN = {
    "layers": ("pipeline/accounting/budget.py", "from pipeline.experiment.plan import Plan"),
    "learning": ("pipeline/learning/randomness.py", "from pipeline.learning.train import train"),
    "cycles": ("pipeline/trials/part.py", "from pipeline.trials.config import TrialConfig"),
    "mlflow": ("analysis/runs.py", "import mlflow"),
    "ray": ("pipeline/sweep/worker.py", "import ray"),
    "lightonml": ("pipeline/learning/training.py", "import lightonml"),
    "reports": ("pipeline/sweep/recorder.py", "from analysis.runs import ReportError"),
    "readers": ("analysis/runs.py", "from pipeline.tracking.store import Store"),
    "drivers": ("pipeline/sweep/cluster.py", "from pipeline.learning.train import train"),
}


def lint(folder):
    program = ("import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command; "
               "lint_imports_command()")
    return subprocess.run([sys.executable, "-c", program, "--no-cache", "--config", "pyproject.toml"],
                          cwd=folder, capture_output=True, text=True)


def test_all_contracts_are_kept():
    done = lint(ROOT)
    assert done.returncode == 0 and f"Contracts: {len(CONTRACTS)} kept, 0 broken" in done.stdout, done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    for package in ("pipeline", "analysis"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("results", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_every_contract_refuses_what_it_forbids(copy):
    assert FORBIDDEN.keys() == {contract["id"] for contract in CONTRACTS}
    allowed = {name: (copy / name).read_text(encoding="utf-8") for name, _ in FORBIDDEN.values()}
    for name, line in FORBIDDEN.values():
        with (copy / name).open("a", encoding="utf-8") as file:
            file.write(f"\n\ndef late():\n    {line}\n")
    done = lint(copy)
    for name, text in allowed.items():
        (copy / name).write_text(text, encoding="utf-8")
    assert done.returncode == 1 and f"Contracts: 0 kept, {len(CONTRACTS)} broken" in done.stdout, done.stdout
    for contract, (name, line) in FORBIDDEN.items():
        arrow = f"{name.removesuffix('.py').replace('/', '.')} -> {line.split()[1]} ("
        if contract == "cycles":
            arrow = arrow.replace("pipeline.trials", "")
        assert done.stdout.count(f" {arrow}") == 1, f"{contract}: {done.stdout}"


def test_every_module_is_in_a_room():
    assert {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")} == {
        "__init__", "__main__", "cli", "api", "doctor", "machine", "package", "sweep", "auditing", "accounting",
        "terminal", "learning", "tracking", "experiment", "trials"}
    assert all((folder / "__init__.py").is_file() for package in ("pipeline", "analysis")
               for folder in (path.parent for path in (ROOT / package).rglob("*.py")))


@pytest.mark.parametrize("path", sorted(ROOT.glob("experiments/*.py")), ids=lambda path: path.name)
def test_experiments_use_the_public_faces_alone(path):
    modules = {node.module for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
               if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.startswith(("pipeline", "analysis"))} <= {"pipeline", "analysis"}


@pytest.mark.parametrize(("code", "others"), [
    ("import pipeline, analysis, photonic", ("dp_accounting", "yaml")),
    ("import pipeline.trials, pipeline.experiment, pipeline.learning, pipeline.sweep, pipeline.accounting, "
     "pipeline.tracking, pipeline.auditing, analysis.exhibits", ()),
    ("from pipeline.cli import main; from pipeline.experiment.experiment import load_experiment; main(['fields']); "
     "load_experiment('experiments/ohana2021/table1.yaml')", ("scipy", "importlib.metadata"))])
def test_nothing_heavy_is_imported_before_it_is_needed(code, others):
    """What answers a typing mistake, or --help, must not wait for numpy."""
    code += f"; import sys; print([m for m in {(*HEAVY, *others)} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["pipeline", "analysis", *(f"pipeline.{room}" for room in (
    "trials", "accounting", "learning.data", "learning.feedback", "learning.mechanisms",
    "auditing"))])
def test_every_name_of_a_face_is_there_and_no_module_hides_it(name):
    face = import_module(name)
    assert set(face.__all__) <= set(dir(face))
    submodules = {path.stem for path in Path(face.__file__).parent.iterdir()}
    for thing in face.__all__:
        assert thing not in submodules and not isinstance(getattr(face, thing), ModuleType)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = face.nothing


def test_the_whole_package_is_shipped_and_digested(monkeypatch, copy):
    assert Path(pipeline.__file__).parent == PACKAGE
    assert cluster.PACKAGE["py_modules"] == [str(PACKAGE)]
    monkeypatch.setattr(checkpoints, "ROOT", copy / "pipeline")
    assert checkpoints._code() == checkpoints.PROGRAM
    assert checkpoints._code(checkpoints.COMPUTING) == checkpoints.SOFTWARE["code"]
    for name, computes in (("cli.py", False), ("learning/training.py", True), ("sweep/run.py", False),
                           ("learning/mechanisms/photonic.py", True), ("accounting/event.py", True),
                           ("trials/config.py", True), ("tracking/ui.py", False)):
        program, software = checkpoints._code(), checkpoints._code(checkpoints.COMPUTING)
        with (copy / "pipeline" / name).open("a") as file:
            file.write("# changed\n")
        assert checkpoints._code() != program, name
        assert (checkpoints._code(checkpoints.COMPUTING) != software) == computes, name
